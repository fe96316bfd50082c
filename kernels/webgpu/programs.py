"""Pointwise programs and activations as WGSL.

WGSL says little about infinities and NaN: their constants come from `p`, and a NaN is told by its
bits. Functions whose errors WGSL does not bound closely are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tracea_onnx.codegen.kernel_request import NoKernel
from tracea_onnx.ir.abi import ACTIVATIONS, OPCODE, OPCODES

from .shader import Shader, float_text, static

#: Of each opcode, its value; {0}, {1}, {2} are its operands.
_FLOAT = {
    "copy": "{0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "fma": "fma({0}, {1}, {2})", "min": "keep_min({0}, {1})", "max": "keep_max({0}, {1})",
    "neg": "-{0}", "abs": "abs({0})", "sqrt": "sqrt({0})", "rsqrt": "inverseSqrt({0})",
    "reciprocal": "1.0 / {0}", "exp": "exp({0})", "log": "log({0})", "erf": "erf_({0})",
    "tanh": "tanh_({0})", "sigmoid": "sigmoid_({0})", "floor": "floor({0})", "ceil": "ceil({0})",
    "round": "round({0})", "sign": "sign({0})", "pow": "pow_({0}, {1})",
    "mod": "mod_({0}, {1})", "fmod": "{0} - {1} * trunc({0} / {1})",
    "eq": "one({0} == {1})", "lt": "one({0} < {1})", "le": "one({0} <= {1})",
    "and": "one({0} != 0.0 && {1} != 0.0)", "or": "one({0} != 0.0 || {1} != 0.0)",
    "not": "one({0} == 0.0)", "xor": "one(({0} != 0.0) != ({1} != 0.0))",
    "where": "select({2}, {1}, {0} != 0.0)", "isnan": "one(is_nan({0}))",
    "isinf": "one((bitcast<u32>({0}) & 0x7fffffffu) == 0x7f800000u)",
    "relu": "keep_max({0}, 0.0)", "leaky_relu": "select({1} * {0}, {0}, {0} >= 0.0)",
    "clip": "keep_min(keep_max({0}, {1}), {2})", "silu": "{0} * sigmoid_({0})",
    "hard_sigmoid": "keep_min(keep_max({1} * {0} + {2}, 0.0), 1.0)",
    "hard_swish": "{0} * clamp({0} * f32(1.0 / 6.0) + 0.5, 0.0, 1.0)",
    "elu": "select({1} * expm1_({0}), {0}, {0} >= 0.0)",
    "gelu_erf": "0.5 * {0} * (1.0 + erf_({0} * 0.70710678118654752))",
    "gelu_tanh": "{0} * sigmoid_(1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0}))",
    "quick_gelu": "{0} * sigmoid_({1} * {0})", "mish": "{0} * tanh_(softplus_({0}))",
    "softplus": "softplus_({0})", "square": "{0} * {0}",
    "prelu": "select({1} * {0}, {0}, {0} >= 0.0)",
    "selu": "{2} * select({1} * expm1_({0}), {0}, {0} > 0.0)",
    "celu": "keep_max({0}, 0.0) + keep_min(0.0, {1} * expm1_({0} / {1}))",
    "softsign": "{0} / (1.0 + abs({0}))", "trunc": "trunc({0})",
}  # fmt: skip


def _value(name: str, operands: Sequence[str]) -> str:
    text = _FLOAT.get(name)
    if text is None:
        raise NoKernel(f"the WebGPU backend does not compute {name}")
    return text.format(*(f"({o})" for o in operands))


def program(shader: Shader, given: Mapping[str, Any]) -> str:
    """WGSL text of `compute`, a function of the program's inputs, all f32."""
    if given.get("stages"):
        raise NoKernel("the WebGPU backend computes one expression a kernel")
    if given["type"]:
        raise NoKernel("the WebGPU backend has no arithmetic of 64-bit integers")
    n_in, regs = int(given["n_in"]), int(given["regs"])
    inputs = [f"g{k}: f32" for k in range(n_in)]
    lines = [f"  var r{k} = {f'g{k}' if k < n_in else '0.0'};" for k in range(max(regs, n_in))]
    for at, (op, target, a, b, c, imm) in enumerate(given["code"]):
        opcode = OPCODE[OPCODES[int(op)]]
        if opcode.name == "const":
            value = float(imm)
            if math.isfinite(value):
                text = float_text(value)
            else:
                shader.number(f"compute{at}", value)
                text = f"p.compute{at}"
        else:
            text = _value(opcode.name, [f"r{int(r)}" for r in (a, b, c)[: opcode.arity]])
        lines.append(f"  r{int(target)} = {text};")
    lines.append(f"  return r{int(given['out'])};")
    body = "\n".join(lines)
    return f"fn compute({', '.join(inputs)}) -> f32 {{\n{body}\n}}\n"


def activation(shader: Shader) -> str:
    """WGSL text of `activate(v)`, of the request's built-in activation."""
    request = shader.request
    name = ACTIVATIONS[static(request.ints.get("act", 0), "activation")]
    if name == "none":
        value = "v"
    else:
        arity = OPCODE[name].arity
        for k in range(arity - 1):
            shader.number(f"act{k}", request.floats.get(f"p{k}", 0.0))
        value = _value(name, ["v", "p.act0", "p.act1"][:arity])
    return f"fn activate(v: f32) -> f32 {{ return {value}; }}\n"
