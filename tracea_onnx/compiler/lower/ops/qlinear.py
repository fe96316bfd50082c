"""QLinear operators of ONNX and ONNX Runtime, lowered as the float operators on dequantised
operands. ConvInteger and MatMulInteger give the integer sums themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.copies import concat
from tracea_onnx.compiler.lower.ops.gemm import gemm as float_gemm
from tracea_onnx.compiler.lower.ops.image import global_pool, pool
from tracea_onnx.compiler.lower.ops.norm import softmax
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.ops.quantise import define, dequantize, quantize
from tracea_onnx.compiler.lower.passes import integer_gemm, quantised
from tracea_onnx.compiler.lower.value import Quantised, Unsupported, Value
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.pointwise_ops import Code
from tracea_onnx.match.spec_table import ConvSpec, GemmSpec
from tracea_onnx.shapes.operands import axis_of

_MICROSOFT = "com.microsoft."
_BINARY = {f"{_MICROSOFT}QLinearAdd": "add", f"{_MICROSOFT}QLinearMul": "mul"}
Lower = Callable[[Lowering, Op], None]

#: What is said of these operators in terms of others, whatever the operator set.
_DEQUANTIZE, _QUANTIZE = "com.microsoft.DequantizeLinear", "com.microsoft.QuantizeLinear"


def _floats(ctx: Lowering, op: Op, given: tuple[str, ...], axis: int, which: str = "") -> str:
    """The dequantised value of integers, as a new value."""
    name = f"{op.outputs[0]}\0{which}{given[0]}"
    dequantize(ctx, Op(_DEQUANTIZE, op.label, given, (name,), {"axis": axis}, op.nodes))
    return name


def _whole(ctx: Lowering, op: Op, x: str, zero: str, axis: int) -> str:
    """The integers, less their zero point, as floats."""
    name, v = f"{op.outputs[0]}\0{x}", ctx.value(x)
    one, start = Value("\0one", DType.F32, ()), ctx.optional(zero)
    one.data = np.ones((), np.float32)
    along = Op(_DEQUANTIZE, op.label, (), (), {"axis": axis}, op.nodes)
    held = None if start is None else quantised.along(ctx, along, v, start)
    define(ctx, name, Quantised(v, one, held))
    return name


def _quantised(ctx: Lowering, op: Op, scale: str, zero: str) -> Op:
    """An op that quantises the float result, as a new value."""
    name = f"{op.outputs[0]}\0floats"
    ctx.sole[name] = Op(_QUANTIZE, op.label, (name, scale, zero), op.outputs, {}, op.nodes)
    return ctx.sole[name]


def _made(ctx: Lowering, op: Op, lowered: bool, by: Op | None = None) -> None:
    if not lowered:
        raise Unsupported(f"no kernel computes {op.kind} of these operands")
    if by is not None and by.inputs[0] in ctx.values:
        quantize(ctx, by)


def _bias(ctx: Lowering, op: Op, bias: str, x_scale: str, w_scale: str) -> str:
    """A bias of integers, which has the scale of the sums."""
    both = f"{op.outputs[0]}\0scale"
    scales = [ctx.value(x_scale), ctx.value(w_scale)]
    lower_expression(ctx, Expr(2, (Instr("mul", (0, 1)),), 2), scales, both, DType.F32)
    return _floats(ctx, op, (bias, both, ""), 0)


def qlinear_conv(ctx: Lowering, op: Op) -> None:
    """QLinearConv."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = op.inputs[:8]
    roles = {
        "x": _floats(ctx, op, (x, x_scale, x_zero), 1),
        "w": _floats(ctx, op, (w, w_scale, w_zero), 0),
    }
    if op.input(8):
        roles["b"] = _bias(ctx, op, op.input(8), x_scale, w_scale)
    by = _quantised(ctx, op, y_scale, y_zero)
    conv = of_roles(ConvSpec.of(op.attrs), roles, by.inputs[:1], op.nodes, op.label)
    _made(ctx, op, integer_gemm.conv(ctx, conv), by)


def qlinear_matmul(ctx: Lowering, op: Op) -> None:
    """QLinearMatMul: of integers by a constant, of floats by a value of a run."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = op.inputs
    last = [ctx.value(v).rank - 1 for v in (a, b)]
    roles = {
        "x": _floats(ctx, op, (a, a_scale, a_zero), last[0] - 1),
        "w": _floats(ctx, op, (b, b_scale, b_zero), last[1]),
    }
    by = _quantised(ctx, op, y_scale, y_zero)
    gemm = of_roles(GemmSpec(), roles, by.inputs[:1], op.nodes, op.label)
    if ctx.value(b).is_constant:
        _made(ctx, op, integer_gemm.gemm(ctx, gemm), by)
    else:
        float_gemm(ctx, gemm)
        _made(ctx, op, True, by)


def conv_integer(ctx: Lowering, op: Op) -> None:
    """ConvInteger by a constant weight."""
    roles = {
        "x": _whole(ctx, op, op.input(0), op.input(2), 1),
        "w": _whole(ctx, op, op.input(1), op.input(3), 0),
    }
    conv = of_roles(ConvSpec.of(op.attrs), roles, op.outputs, op.nodes, op.label)
    _made(ctx, op, integer_gemm.conv(ctx, conv, DType.I32))


def matmul_integer(ctx: Lowering, op: Op) -> None:
    """MatMulInteger by a constant."""
    last = [ctx.value(op.input(k)).rank - 1 for k in (0, 1)]
    roles = {
        "x": _whole(ctx, op, op.input(0), op.input(2), last[0] - 1),
        "w": _whole(ctx, op, op.input(1), op.input(3), last[1]),
    }
    gemm = of_roles(GemmSpec(), roles, op.outputs, op.nodes, op.label)
    _made(ctx, op, integer_gemm.gemm(ctx, gemm, DType.I32))


def qlinear_binary(ctx: Lowering, op: Op) -> None:
    """QLinearAdd and QLinearMul, of which a zero point may be absent."""
    names = [*op.inputs, ""][:8]
    values = [ctx.value(_floats(ctx, op, tuple(names[k : k + 3]), 0, str(k))) for k in (0, 3)]
    by = _quantised(ctx, op, names[6], names[7])
    expr = Expr(2, (Instr(_BINARY[op.kind], (0, 1)),), 2)
    lower_expression(ctx, expr, values, by.inputs[0], DType.F32)
    _made(ctx, op, True, by)


def qlinear_unary(ctx: Lowering, op: Op) -> None:
    """QLinearSigmoid and QLinearLeakyRelu, of which a zero point may be absent."""
    x, by = (
        ctx.value(_floats(ctx, op, op.inputs[:3], 0)),
        _quantised(ctx, op, op.input(3), op.input(4)),
    )
    code = Code(("x",))
    if op.kind == f"{_MICROSOFT}QLinearSigmoid":
        made = code.op("sigmoid", -1)
    else:
        below = code.op("lt", -1, code.const(0.0))
        slope = code.const(float(op.attr("alpha", 0.01)))
        made = code.op("where", below, code.op("mul", -1, slope), -1)
    lower_expression(ctx, code.finish(made), [x], by.inputs[0], DType.F32)
    _made(ctx, op, True, by)


def qlinear_where(ctx: Lowering, op: Op) -> None:
    """QLinearWhere."""
    names = op.inputs
    values = [ctx.value(_floats(ctx, op, names[k : k + 3], 0, str(k))) for k in (1, 4)]
    by = _quantised(ctx, op, names[7], names[8])
    expr = Expr(3, (Instr("where", (0, 1, 2)),), 3)
    lower_expression(ctx, expr, [ctx.value(names[0]), *values], by.inputs[0], DType.F32)
    _made(ctx, op, True, by)


def qlinear_concat(ctx: Lowering, op: Op) -> None:
    """QLinearConcat, whose inputs have scales of their own."""
    names = op.inputs
    parts = tuple(_floats(ctx, op, names[k : k + 3], 0, str(k)) for k in range(2, len(names), 3))
    by = _quantised(ctx, op, names[0], names[1])
    concat(ctx, Op("Concat", op.label, parts, by.inputs[:1], op.attrs, op.nodes))
    _made(ctx, op, True, by)


def _between(kind: str, lower: Lower) -> Lower:
    """The ONNX operator `kind` between what dequantises its input and quantises its result."""

    def made(ctx: Lowering, op: Op) -> None:
        if op.attr("channels_last", 0):
            raise Unsupported(f"{op.kind} '{op.label}' has channels_last")
        x, by = _floats(ctx, op, op.inputs[:3], 0), _quantised(ctx, op, op.input(3), op.input(4))
        lower(ctx, Op(kind, op.label, (x,), by.inputs[:1], op.attrs, op.nodes))
        _made(ctx, op, True, by)

    return made


def qlinear_softmax(ctx: Lowering, op: Op) -> None:
    """QLinearSoftmax over one axis."""
    axis, rank = op.attr("axis", -1), ctx.value(op.inputs[0]).rank
    if op.attr("opset", 13) < 13 and axis_of(axis, rank) < rank - 1:
        raise Unsupported(f"{op.kind} '{op.label}' is over all axes from one on")
    _between("Softmax", softmax)(ctx, replace(op, attrs={**op.attrs, "axis": axis}))


def qgemm(ctx: Lowering, op: Op) -> None:
    """QGemm by a constant; without a scale of its result that is floats."""
    a, a_scale, a_zero, b, b_scale, b_zero = op.inputs[:6]
    spec = GemmSpec.of(op.attrs)
    roles = {
        "x": _floats(ctx, op, (a, a_scale, a_zero), 0),
        "w": _floats(ctx, op, (b, b_scale, b_zero), 0 if spec.trans_b else 1),
    }
    if op.input(6):
        roles["b"] = _bias(ctx, op, op.input(6), a_scale, b_scale)
    by = _quantised(ctx, op, op.input(7), op.input(8)) if op.input(7) else None
    outputs = op.outputs if by is None else by.inputs[:1]
    gemm = of_roles(spec, roles, outputs, op.nodes, op.label)
    _made(ctx, op, integer_gemm.gemm(ctx, gemm), by)


OPS = {
    **dict.fromkeys(_BINARY, qlinear_binary),
    f"{_MICROSOFT}QLinearAveragePool": _between("AveragePool", pool),
    f"{_MICROSOFT}QLinearConcat": qlinear_concat,
    f"{_MICROSOFT}QLinearGlobalAveragePool": _between("GlobalAveragePool", global_pool),
    f"{_MICROSOFT}QLinearLeakyRelu": qlinear_unary,
    f"{_MICROSOFT}QLinearSigmoid": qlinear_unary,
    f"{_MICROSOFT}QLinearSoftmax": qlinear_softmax,
    f"{_MICROSOFT}QLinearWhere": qlinear_where,
    f"{_MICROSOFT}QGemm": qgemm,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "MatMulInteger": matmul_integer,
}
