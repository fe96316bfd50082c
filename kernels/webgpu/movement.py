"""Copies, layout changes, gathers and what is filled."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .shader import Launch, Shader, parameters, raw, static

#: Of an index that may be negative, from operand idx: `row_of(i, n)`, -1 where it is out of range.
_ROW = """fn row_of(i: i32, n: i32) -> i32 {{
  {read}
  let row = select(low, low + n, low < 0);
  return select(-1, row, whole && row >= 0 && row < n);
}}
"""
_READS = {
    DType.I32: "let low = load_{0}(i); let whole = true;",
    DType.I64: "let v = load_{0}(i); let low = bitcast<i32>(v.x); "
    "let whole = v.y == select(0u, 0xffffffffu, low < 0);",
}


def row_function(dtype: DType, operand: str = "idx") -> str:
    """WGSL of `row_of`; raises NoKernel for other types of indices."""
    if dtype not in _READS:
        raise NoKernel(f"the WebGPU backend has no indices of type {dtype.name}")
    return _ROW.format(read=_READS[dtype].format(operand))


def copy(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    dtype = raw(p["elem"])
    shape = [p[f"n{d}"] for d in range(6)]
    rows = merge_dims(shape, [[p[f"{o}{d}"] for d in range(6)] for o in "xy"]) or [(1, [0, 0])]
    shader.read("x", dtype)
    shader.write("y", dtype)
    for d, (n, (x, y)) in enumerate(rows):
        shader.sizes({f"n{d}": n, f"x{d}": x, f"y{d}": y})
    lines = ["  var rest = i;"]
    for d in reversed(range(len(rows))):
        lines.append(
            f"  let i{d} = rest % p.n{d}; rest = rest / p.n{d};" if d else "  let i0 = rest;"
        )
    from_x, to_y = (" + ".join(f"i{d} * p.{o}{d}" for d in range(len(rows))) for o in "xy")
    lines.append(f"  store_y({to_y}, load_x({from_x}));")
    return [shader.each("\n".join(lines), D.product(shape))]


def _image(r: Request, source: str, target: str, more: tuple[str, ...]) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    shader.read("x")
    shader.write("y")
    shader.sizes({k: p[k] for k in ("C", "H", "W", *more)})
    # neighbouring threads write neighbouring elements
    places = (
        "let c = i % p.C; let pixel = i / p.C;"
        if target == "y_last"
        else "let plane = i / (p.H * p.W); let c = plane % p.C; let pixel = "
        "plane / p.C * p.H * p.W + i % (p.H * p.W);"
    )
    last = "n * p.{0}_ns + h * p.{0}_rs + w * p.{0}_cs + c"
    at = {
        "x_last": last.format("x"),
        "y_last": last.format("y"),
        "planes": "((n * p.C + c) * p.H + h) * p.W + w",
    }
    body = f"""  {places}
  let w = pixel % p.W; let h = pixel / p.W % p.H; let n = pixel / (p.W * p.H);
  store_y({at[target]}, load_x({at[source]}));"""
    return [shader.each(body, D.product([p[k] for k in "NCHW"]))]


def nchw_to_nhwc(r: Request) -> list[Launch]:
    return _image(r, "planes", "y_last", ("y_cs", "y_rs", "y_ns"))


def nhwc_to_nchw(r: Request) -> list[Launch]:
    return _image(r, "x_last", "planes", ("x_cs", "x_rs", "x_ns"))


def copy_nhwc(r: Request) -> list[Launch]:
    pitches = ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns")
    return _image(r, "x_last", "y_last", pitches)


def gather(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    dtype, index = raw(p["elem"]), DType(static(p["idx_dtype"], "type of indices"))
    shader.read("x", dtype)
    shader.read("idx", index)
    shader.write("y", dtype)
    shader.fault()
    shader.sizes({"n": p["n"], "inner": p["inner"], "rows": p["count"]})
    body = """  let k = i % p.inner; let j = i / p.inner % p.rows; let o = i / (p.inner * p.rows);
  let row = row_of(j, p.n);
  if (row < 0) { fault(); return; }
  store_y(i, load_x((o * p.n + row) * p.inner + k));"""
    count = D.product([p["outer"], p["count"], p["inner"]])
    return [shader.each(body, count, row_function(index))]


def fill(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    dtype = raw(p["elem"])
    shader.write("y", dtype)
    value = static(p["value"], "value")
    if dtype == DType.U64:
        low, high = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
        text = f"vec2<u32>({low}u, {high}u)"
    else:
        text = f"{value & ((1 << 8 * dtype.size) - 1)}u"
    return [shader.each(f"  store_y(i, {text});", p["count"])]


def _integer(shader: Shader, name: str, value: DimLike, dtype: DType) -> str:
    """A size, which a run knows in 32 bits, as an element."""
    shader.size(name, value)
    if dtype == DType.I64:
        return f"vec2<u32>(bitcast<u32>(p.{name}), select(0u, 0xffffffffu, p.{name} < 0))"
    if dtype == DType.I32:
        return f"p.{name}"
    if dtype == DType.BOOL:
        return f"select(0u, 1u, p.{name} != 0)"
    raise NoKernel(f"the WebGPU backend stores no sizes of type {dtype.name}")


def store_ints(r: Request) -> list[Launch]:
    p, shader = parameters(r), Shader(r)
    dtype = DType(static(p["dtype"], "element type"))
    count = static(p["count"], "count")
    shader.write("y", dtype)
    lines = [
        f"  if (i == {k}) {{ store_y(i, {_integer(shader, f'v{k}', p[f'v{k}'], dtype)}); }}"
        for k in range(count)
    ]
    return [shader.each("\n".join(lines), count)]


FAMILIES = {
    "copy": copy, "nchw_to_nhwc": nchw_to_nhwc, "nhwc_to_nchw": nhwc_to_nchw,
    "copy_nhwc": copy_nhwc, "gather": gather, "fill": fill, "store_ints": store_ints,
}  # fmt: skip
