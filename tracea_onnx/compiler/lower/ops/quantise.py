"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear as pointwise expressions, merged with
those before and after them. Results are bit for bit as ONNX defines:
q = saturate(round_half_even(x / scale) + zero), x = (q - zero) * scale.

DequantizeLinear is deferred: expressions that read it compute it, and data movement moves the
integers.
"""

from __future__ import annotations

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering, element_type
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.nbits import dequantise_constant
from tracea_onnx.compiler.lower.ops.norm import reduce
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import quantised
from tracea_onnx.compiler.lower.passes.window_rows import is_first_image
from tracea_onnx.compiler.lower.value import Quantised, Unsupported, Value
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.pointwise_ops import Code
from tracea_onnx.match.nbits import TYPES


def dequantize(ctx: Lowering, op: Op) -> None:
    """DequantizeLinear: made where something reads it as floats in memory."""
    if _is_weight(ctx, op):
        dequantise_constant(ctx, op)
        return
    x, scale = ctx.value(op.input(0)), ctx.value(op.input(1))
    quantised.check(ctx, op)
    to = op.attr("output_dtype", 0) or int(scale.dtype)
    kinds = sorted(int(t) for t in ctx.target.types)
    if x.dtype not in quantised.INTEGERS | {DType.I32} or to not in kinds:
        raise Unsupported(
            f"{op.kind} '{op.label}' makes element type {to} of {x.dtype.name}; the kernels make"
            f" {', '.join(DType(k).name for k in kinds)} of integers of 8 and 16 bits, and of I32"
        )
    _widen(ctx, scale)
    held = Quantised(x, *quantised.parameters(ctx, op, x), DType(to))
    if held.zero is not None and held.zero.dtype != x.dtype:
        raise Unsupported(f"{op.kind} '{op.label}' has a zero point of another type than its input")
    if x.dtype == DType.I32 and held.zero is not None:
        raise Unsupported(f"{op.kind} '{op.label}' has integers of 32 bits and a zero point")
    define(ctx, op.outputs[0], held)


def _widen(ctx: Lowering, scale: Value) -> None:
    """Scales of 16 bits that are too many for their contents to be known, as F32."""
    if scale.is_constant and quantised.widened(ctx, scale).dtype != DType.F32:
        name = quantised.wide_name(scale)
        lower_expression(ctx, Expr(1, (), 0), [scale], name, DType.F32)
        ctx.values[name].prepared = True


def _is_weight(ctx: Lowering, op: Op) -> bool:
    """Whether it is a constant of a few bits, with blocks, or whose floats have a type that no
    expression computes in.
    """
    bits, _ = TYPES.get(ctx.graph.dtype(op.input(0)) or 0, (0, False))
    narrow = {ctx.graph.dtype(op.input(1)), op.attr("output_dtype", 0)}
    odd = op.attr("block_size", 0) or narrow.intersection(
        {DType.F16, DType.BF16} - ctx.target.types
    )
    return ctx.graph.is_const(op.input(0)) and bool(0 < bits < 8 or (bits == 8 and odd))


def define(ctx: Lowering, name: str, held: Quantised) -> None:
    """`name` as what these integers are dequantised to."""
    out = ctx.define(name, held.dtype, held.x.shape)
    parts = [v for v in (held.x, held.scale, held.zero) if v is not None]
    out.quantised, out.prepared = held, all(v.is_constant for v in parts)

    def make() -> None:
        expr, values = quantised.dequantising(held)
        lower_expression(ctx, expr, values, name, held.dtype)

    ctx.defer(out, "", parts, make)


def quantize(ctx: Lowering, op: Op) -> None:
    """QuantizeLinear, where the expression before it has not done it."""
    if op.outputs[0] in ctx.values:
        return
    x = ctx.value(op.input(0))
    made = quantised.quantising(ctx, op, x)
    held = x.quantised
    if held is not None and quantised.is_inverse(held, made.scale, made.zero, made.dtype):
        ctx.forward(held.x, op.outputs[0])
        return

    def make() -> None:
        lower_expression(ctx, made.expr, [x, *made.operands], op.outputs[0], made.dtype)

    if held is None and is_first_image(ctx, x, made):
        out = ctx.define(op.outputs[0], made.dtype, x.shape)
        ctx.defer(out, "quantised", [v for v in (x, *made.parts) if v is not None], make)
    else:
        make()


def dynamic_quantize(ctx: Lowering, op: Op) -> None:
    """DynamicQuantizeLinear: a scale and a zero point such that 0 and all elements fit 8 bits."""
    x, (y, *rest) = ctx.value(op.input(0)), op.outputs
    quantised.check(ctx, op)
    ctx.require(x, op.kind)
    scale, zero = (
        (rest[k] if len(rest) > k else "") or f"{y}\0{name}"
        for k, name in enumerate(("scale", "zero"))
    )
    if "quantise_dynamic" in ctx.target.families:
        dtypes = {"y": DType.U8, "scale": DType.F32, "zero": DType.U8}
        names = {"y": (y, x.shape), "scale": (scale, ()), "zero": (zero, ())}
        source, ints = ctx.plain(x), {"n": x.elements, "pieces": _PIECES}
        space = ctx.plan.arena(2 * _PIECES * DType.F32.size)
        ctx.plan.launch("ends", {"x": source}, {"y": space}, ints)
        written = {r: ctx.new_plain(ctx.define(n, dtypes[r], s)) for r, (n, s) in names.items()}
        ctx.plan.launch("quantise_dynamic", {"x": source, "ends": space}, written, ints)
        return
    ends: list[Value] = []
    for kind in ("ReduceMin", "ReduceMax"):
        name = f"{y}\0{kind}"
        attrs = {"axes": [*range(x.rank)], "keepdims": 0}
        if x.rank:
            reduce(ctx, Op(kind, op.label, (x.name,), (name,), attrs, op.nodes))
        ends.append(ctx.value(name) if x.rank else x)
    code = Code(("low", "high"))
    none, limits = code.const(0.0), np.iinfo(numpy_type(int(DType.U8)))
    low, high = code.op("min", -1, none), code.op("max", -2, none)
    span = code.op("div", code.op("sub", high, low), code.const(float(limits.max)))
    step = code.op("where", code.op("eq", low, high), code.const(1.0), span)
    lower_expression(ctx, code.finish(step), ends, scale, DType.F32)
    code = Code(("low", "scale"))
    start = code.op("sub", code.const(0.0), code.op("div", code.op("min", -1, code.const(0.0)), -2))
    fits = code.op("clip", start, code.const(0.0), code.const(float(limits.max)))
    held = ctx.value(scale)
    lower_expression(
        ctx,
        code.finish(code.op("round", fits)),
        [ends[0], held],
        zero,
        element_type(zero, DType.U8),
    )
    expr, values = quantised.expression(held, ctx.value(zero), DType.U8)
    lower_expression(ctx, expr, [x, *values], y, DType.U8)


#: Of a tensor that is quantised as its elements say, looked through by as many tasks at most.
_PIECES = 64
_MICROSOFT = "com.microsoft."
OPS = {
    **dict.fromkeys(("DequantizeLinear", f"{_MICROSOFT}DequantizeLinear"), dequantize),
    **dict.fromkeys(("QuantizeLinear", f"{_MICROSOFT}QuantizeLinear"), quantize),
    "DynamicQuantizeLinear": dynamic_quantize,
}
