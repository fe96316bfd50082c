"""Data movement of dequantised tensors moves their integers, so that a QuantizeLinear with the same
scale and zero point costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.quantise import define
from tracea_onnx.compiler.lower.passes import quantised
from tracea_onnx.compiler.lower.value import Quantised, Value
from tracea_onnx.ir.op_traits import Trait, operators

#: Operators whose elements are some of their first input's, or of all inputs'.
_MOVES = operators(Trait.MOVE) - {"CenterCropPad", "Pad", "Trilu", "Where"} | {"MaxPool"}
_ALL = frozenset(("Concat",))


def lower(ctx: Lowering, op: Op, move: Callable[[Lowering, Op], None]) -> bool:
    """The operator on integers, where all that it moves is dequantised in the same way."""
    if op.kind not in _MOVES:
        return False
    moved = op.inputs if op.kind in _ALL else op.inputs[:1]
    held: list[Quantised] = []
    for name in moved:
        v = ctx.values.get(name)
        if v is None or v.quantised is None or not quantised.is_deferred(v):
            return False
        held.append(v.quantised)
    if not held or not all(_alike(h, held[0]) for h in held):
        return False
    names = tuple(h.x.name for h in held)
    inner = {o: quantised.integers_of(o) for o in op.outputs if o}
    outputs = tuple(inner.get(o, "") for o in op.outputs)
    for name, made in inner.items():
        if (result := _quantised_again(ctx, name, held[0])) is not None:
            ctx.relabelled(made, result)
    move(ctx, replace(op, inputs=(*names, *op.inputs[len(names) :]), outputs=outputs))
    for name, made in inner.items():
        define(ctx, name, replace(held[0], x=ctx.values[made]))
    return True


def _quantised_again(ctx: Lowering, name: str, held: Quantised) -> str | None:
    """The result of the QuantizeLinear that alone reads `name`, where it gives the integers."""
    made = quantised.reader(ctx, Value(name, held.dtype, held.x.shape))
    if made is None or not quantised.is_inverse(held, made.scale, made.zero, made.dtype):
        return None
    return made.name


def _alike(a: Quantised, b: Quantised) -> bool:
    """Whether both have one scale and one zero point for all elements, and the same."""
    return (
        a.x.dtype == b.x.dtype
        and a.dtype == b.dtype
        and a.scale.rank == 0
        and (
            a is b
            or (quantised.same_number(a.scale, b.scale) and quantised.same_number(a.zero, b.zero))
        )
    )
