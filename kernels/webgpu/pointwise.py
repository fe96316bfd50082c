"""Pointwise programs, over strided tensors with broadcasting and over channels-last images."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.compiler.lower.epilogue_kinds import FULL, SCALAR
from tracea_onnx.compiler.lower.value import contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType

from .programs import program
from .shader import Launch, Shader, as_float, from_float, parameters, static


def pointwise(r: Request) -> list[Launch]:
    if r.program is None:
        raise NoKernel("a pointwise kernel without a program")
    p, shader = parameters(r), Shader(r)
    shape = [p[f"n{d}"] for d in range(6)]
    names = [f"x{k}" for k in range(int(r.program["n_in"]))]
    types = {name: DType(static(p[f"{name}_dtype"], "element type")) for name in (*names, "y")}
    strides = [[p[f"{name}_{d}"] for d in range(6)] for name in names]
    rows = merge_dims(shape, [contiguous(shape), *strides]) or [(1, [0] * (len(names) + 1))]
    for name in names:
        shader.read(name, types[name])
    shader.write("y", types["y"])
    shader.sizes({f"n{d}": n for d, (n, _) in enumerate(rows)})
    for k, name in enumerate(names):
        shader.sizes({f"{name}_{d}": s[k + 1] for d, (_, s) in enumerate(rows)})
    lines = ["  var rest = i;"]
    for d in reversed(range(len(rows))):
        lines.append(
            f"  let i{d} = rest % p.n{d}; rest = rest / p.n{d};" if d else "  let i0 = rest;"
        )
    values = []
    for name in names:
        at = " + ".join(f"i{d} * p.{name}_{d}" for d in range(len(rows)))
        values.append(as_float(types[name], f"load_{name}({at})"))
    before = program(shader, r.program)
    lines.append(f"  let v = compute({', '.join(values)});")
    lines.append(f"  store_y(i, {from_float(types['y'], 'v')});")
    return [shader.each("\n".join(lines), D.product(shape), before)]


def pointwise_nhwc(r: Request) -> list[Launch]:
    if r.program is None:
        raise NoKernel("a pointwise kernel without a program")
    p, shader = parameters(r), Shader(r)
    values = []
    shader.sizes({k: p[k] for k in ("C", "H", "W", "y_cs", "y_rs", "y_ns")})
    for k in range(int(r.program["n_in"])):
        name, kind = f"x{k}", static(p[f"x{k}_kind"], "kind of operand")
        shader.read(name)
        if kind == FULL:
            shader.sizes({f"{name}_{s}": p[f"{name}_{s}"] for s in ("cs", "rs", "ns")})
            at = f"n * p.{name}_ns + h * p.{name}_rs + w * p.{name}_cs + c"
        elif kind == SCALAR:
            at = "0"
        else:
            shader.size(f"{name}_ns", p[f"{name}_ns"])
            at = f"n * p.{name}_ns + c"
        values.append(f"load_{name}({at})")
    shader.write("y")
    before = program(shader, r.program)
    body = f"""  let c = i % p.C; let pixel = i / p.C;
  let w = pixel % p.W; let h = pixel / p.W % p.H; let n = pixel / (p.W * p.H);
  store_y(n * p.y_ns + h * p.y_rs + w * p.y_cs + c, compute({", ".join(values)}));"""
    return [shader.each(body, D.product([p[k] for k in "NCHW"]), before)]


FAMILIES = {"pointwise": pointwise, "pointwise_nhwc": pointwise_nhwc}
