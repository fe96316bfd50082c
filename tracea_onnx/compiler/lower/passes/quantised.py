"""DequantizeLinear and QuantizeLinear as parts of pointwise expressions and of data movement: an
expression dequantises what it reads, and quantises its result where a QuantizeLinear alone reads
that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, readers
from tracea_onnx.compiler.lower.value import Quantised, Unsupported, Value, View
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr import Expr, substituted
from tracea_onnx.ir.expr_program import simplify
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import Code
from tracea_onnx.shapes.operands import axis_of, broadcast
from tracea_onnx.support.data_classes import dataclass

#: What tensors are quantised to.
INTEGERS = frozenset((DType.U8, DType.I8, DType.U16, DType.I16))
QUANTIZE = frozenset(("QuantizeLinear", "com.microsoft.QuantizeLinear"))
DEQUANTIZE = frozenset(("DequantizeLinear", "com.microsoft.DequantizeLinear"))
_SAME = Expr(1, (), 0)
_RESHAPES = operators(Trait.RESHAPE)
#: Scales with which the quotient of a product is the integer again: none of the two leaves the
#: normal numbers.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**100


@dataclass(frozen=True, eq=False)
class Quantising:
    """The expression of a value and these operands that quantises it."""

    name: str
    expr: Expr
    operands: list[Value]
    scale: Value
    zero: Value | None
    dtype: DType

    @property
    def parts(self) -> tuple[Value | None, ...]:
        """Scale and zero point."""
        return self.scale, self.zero


def check(ctx: Lowering, op: Op) -> None:
    """Refuse what no kernel computes bit for bit."""
    if not ctx.target.ieee:
        raise Unsupported(
            f"the {ctx.plan.backend} kernels divide and add with other roundings than {op.kind}"
        )
    if op.attr("block_size", 0):
        raise Unsupported(
            f"{op.kind} '{op.label}' has a scale for each {op.attr('block_size')} elements; the"
            " kernels take one for all, or one for each place along an axis"
        )
    if op.attr("precision", 0) not in (0, DType.F32):
        raise Unsupported(f"{op.kind} '{op.label}' divides in element type {op.attr('precision')}")


def parameters(ctx: Lowering, op: Op, x: Value) -> tuple[Value, Value | None]:
    """Scale and zero point of the node, as they broadcast to `x`; None for a zero point that is
    0.
    """
    scale, zero = widened(ctx, ctx.value(op.input(1))), ctx.optional(op.input(2))
    if scale.dtype != DType.F32:
        raise Unsupported(
            f"{op.kind} '{op.label}' has scales of type {scale.dtype.name}; the kernels take F32"
        )
    if zero is not None:
        known = zero.data if zero.data is not None else ctx.graph.const(zero.initializer)
        zero = None if known is not None and not known.any() else zero
    return along(ctx, op, x, scale), None if zero is None else along(ctx, op, x, zero)


def widened(ctx: Lowering, scale: Value) -> Value:
    """A constant scale of 16 bits as one of F32, where its contents are known or `name` was made
    before; other scales as they are.
    """
    if scale.dtype not in ctx.target.types - {DType.F32}:
        return scale
    name = wide_name(scale)
    if name not in ctx.values and scale.data is not None:
        made = ctx.define(name, DType.F32, scale.shape)
        made.data = scale.data.astype(np.float32)
    return ctx.values.get(name, scale)


def wide_name(scale: Value) -> str:
    """What a scale of 16 bits is called as one of F32."""
    return f"{scale.name}\0wide"


def along(ctx: Lowering, op: Op, x: Value, v: Value) -> Value:
    """A scale or zero point as a tensor that broadcasts to x."""
    one = v.rank == 0 or v.elements == 1
    if (
        v.rank > 1
        or not isinstance(v.elements, int)
        or (not one and ctx.graph.opset() < 13 and "." not in op.kind)
    ):
        raise Unsupported(
            f"{op.kind} '{op.label}' has '{v.name}' of shape [{', '.join(map(str, v.shape))}]; the"
            " kernels take one number, or one for each place along an axis, as many as are known"
        )
    if v.rank == 0:
        return v
    behind = 0
    if not one:
        axis = axis_of(op.attr("axis", 1), x.rank)
        behind = x.rank - 1 - axis
        ctx.same(v.shape[0], x.shape[axis], f"'{v.name}' and axis {axis} of {op.kind} '{op.label}'")
        if behind == 0:
            return v
    view = ctx.strided(v)
    placed = Value(f"{v.name}\0{behind}", v.dtype, () if one else (v.shape[0], *[1] * behind))
    placed.view = View(view.ref, () if one else (view.strides[0], *[0] * behind))
    placed.data = None if v.data is None else v.data.reshape(() if one else (-1, *[1] * behind))
    placed.prepared = v.is_constant
    return placed


def _number(v: Value) -> float | None:
    """The number that a constant of one element holds."""
    if v.data is None or v.data.size != 1:
        return None
    number = float(v.data.reshape(-1)[0])
    return number if math.isfinite(number) else None


class _Expression:
    """An expression of a tensor; its other operands are numbers, or values of a run."""

    def __init__(self) -> None:
        self.code, self.values = Code(("x",)), list[Value]()

    def of(self, v: Value) -> int:
        """The register of a scale or zero point."""
        number = _number(v)
        if number is not None:
            return self.code.const(number)
        self.values.append(v)
        return self.code.operand(v.name)


def expression(scale: Value, zero: Value | None, dtype: DType) -> tuple[Expr, list[Value]]:
    """The expression that quantises a tensor to `dtype`, and its further operands."""
    e, limits = _Expression(), np.iinfo(numpy_type(int(dtype)))
    out = e.code.op("round", e.code.op("div", -1, e.of(scale)))
    if zero is not None:
        out = e.code.op("add", out, e.of(zero))
    ends = (e.code.const(float(k)) for k in (limits.min, limits.max))
    return e.code.finish(e.code.op("clip", out, *ends)), e.values


def dequantising(held: Quantised) -> tuple[Expr, list[Value]]:
    """The expression of floats, and its operands."""
    e = _Expression()
    x = -1 if held.zero is None else e.code.op("sub", -1, e.of(held.zero))
    return e.code.finish(e.code.op("mul", x, e.of(held.scale))), [held.x, *e.values]


def quantising(ctx: Lowering, op: Op, x: Value) -> Quantising:
    """The parameters of a QuantizeLinear of x. Raises Unsupported where no kernel does."""
    check(ctx, op)
    zero = ctx.optional(op.input(2))
    number = int(zero.dtype) if zero is not None else op.attr("output_dtype", 0) or int(DType.U8)
    if x.dtype not in ctx.target.types or number not in INTEGERS:
        raise Unsupported(
            f"{op.kind} '{op.label}' makes element type {number} of {x.dtype.name}; the kernels"
            " make integers of 8 and 16 bits of"
            f" {', '.join(sorted(t.name for t in ctx.target.types))}"
        )
    if (by := ctx.value(op.input(1)).dtype) not in (x.dtype, DType.F32):
        raise Unsupported(
            f"{op.kind} '{op.label}' divides {x.dtype.name} in {by.name}, the type of its scales"
        )
    dtype = DType(number)
    scale, zero = parameters(ctx, op, x)
    expr, values = expression(scale, zero, dtype)
    return Quantising(op.outputs[0], expr, values, scale, zero, dtype)


def quantiser(ctx: Lowering, name: str) -> Op | None:
    """The QuantizeLinear that alone reads a value."""
    op = ctx.sole.get(name)
    return op if op is not None and op.kind in QUANTIZE and op.input(0) == name else None


def quantiser_of_moved(ctx: Lowering, name: str) -> Op | None:
    """The QuantizeLinear that alone reads a value, if need be after it was reshaped."""
    op = ctx.sole.get(name)
    while op is not None and op.kind in _RESHAPES and op.input(0) == name:
        name = op.outputs[0]
        op = ctx.sole.get(name)
    return quantiser(ctx, name)


def reader(ctx: Lowering, v: Value) -> Quantising | None:
    """The QuantizeLinear that alone reads a value that is about to be made; None without one."""
    op = quantiser(ctx, v.name)
    if op is None or not all(i in ctx.values or ctx.graph.is_const(i) for i in op.inputs[1:] if i):
        return None
    try:
        return quantising(ctx, op, v)
    except Unsupported:
        return None


def is_usual(scale: Value) -> bool:
    """Whether a scale is known to be positive, and neither it nor its reciprocal to be near the
    ends of f32. ONNX takes a negative one, by which kernels would saturate at the other end.
    """
    step = _number(scale)
    return step is not None and _SMALLEST < step < _LARGEST


def is_inverse(held: Quantised, scale: Value, zero: Value | None, dtype: DType) -> bool:
    """Whether quantising what `held` dequantises gives its integers again."""
    return (
        held.x.dtype == dtype
        and is_usual(scale)
        and same_number(held.scale, scale)
        and same_number(held.zero, zero)
    )


def same_number(a: Value | None, b: Value | None) -> bool:
    """Whether both are the same constant number; None is 0."""
    one, other = (0.0 if v is None else _number(v) for v in (a, b))
    return one is not None and one == other


def of_constants(graph: Graph, op: Op) -> bool:
    """Whether it dequantises a constant."""
    return op.kind in DEQUANTIZE and all(graph.is_const(i) for i in op.inputs if i)


def quantisers(ops: Sequence[Op]) -> dict[str, Op]:
    """Values that one QuantizeLinear reads, among others -> that op."""
    found: dict[str, list[Op]] = {}
    for op in ops:
        if op.kind in QUANTIZE:
            found.setdefault(op.input(0), []).append(op)
    return {name: read[0] for name, read in found.items() if len(read) == 1}


def numbered(ctx: Lowering, op: Op, v: Value) -> tuple[Quantising, float, int] | None:
    """A QuantizeLinear of `v` to 8 bits with its scale and its zero point, where these are known
    numbers, and the scale is usual.
    """
    try:
        by = quantising(ctx, op, v)
    except Unsupported:
        return None
    scale, zero = _number(by.scale), 0.0 if by.zero is None else _number(by.zero)
    if scale is None or zero is None or not is_usual(by.scale):
        return None
    return (by, scale, int(zero)) if by.dtype.size == 1 else None


def sole_readers(ops: Sequence[Op], outputs: Collection[str]) -> dict[str, Op]:
    """Values that nothing but one op reads, as its first input or one of several -> that op."""
    return {
        name: read[0]
        for name, read in readers(ops).items()
        if name not in outputs and len(read) == 1
    }


def fused(
    ctx: Lowering, expr: Expr, inputs: Sequence[Value], name: str, dtype: DType, most: int
) -> tuple[Expr, list[Value], str, DType]:
    """An expression with what dequantises its inputs and what alone quantises its result, name and
    type of which it then has; as far as it reads no more than `most` tensors.
    """
    if quantiser(ctx, name) is None and not any(map(is_deferred, inputs)):
        return expr, list(inputs), name, dtype
    expr = simplify(expr, joins=False)  # which finds no activation any more in what it becomes
    values: list[Value] = []

    def placed(operands: Sequence[Value]) -> list[int]:
        for v in operands:
            if not any(v is w for w in values):
                values.append(v)
        return [next(k for k, w in enumerate(values) if w is v) for v in operands]

    parts: list[tuple[Expr, list[int]]] = []
    for v in inputs:
        inner, operands = (
            dequantising(v.quantised) if v.quantised and is_deferred(v) else (_SAME, [v])
        )
        parts.append((inner, placed(operands)))
    if len(values) > most:
        values.clear()
        parts = [(_SAME, placed([v])) for v in inputs]
    expr = substituted(expr, parts, len(values))
    made = reader(ctx, Value(name, dtype, broadcast(ctx, *(v.shape for v in values))))
    if made is None:
        return expr, values, name, dtype
    before = [*range(len(values))]
    after = placed(made.operands)
    if len(values) > most:
        del values[len(before) :]
        return expr, values, name, dtype
    rest = [(_SAME, [k]) for k in after]
    whole = substituted(made.expr, [(expr, before), *rest], len(values))
    return whole, values, made.name, made.dtype


def integers_of(name: str) -> str:
    """Name of the integers of a moved quantised tensor of this name."""
    return f"{name}\0integers"


def is_deferred(v: Value) -> bool:
    """Whether it is stored only as integers."""
    return v.quantised is not None and v.view is None and v.nhwc is None
