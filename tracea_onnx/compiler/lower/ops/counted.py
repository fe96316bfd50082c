"""Operators whose result size depends on the contents of tensors: NonZero, Compress, Unique,
NonMaxSuppression.

Lowering gives each room for the largest. A kernel counts how much it used, and what reads the
result is in another partition, where that is the size of an input.
"""

from __future__ import annotations

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.operands import axis_of

_AXES = 6
_NONZERO = frozenset({DType.F32, DType.I32, DType.I64, DType.U8, DType.BOOL})
_UNIQUE = frozenset({DType.F32, DType.I64})


def _count(ctx: Lowering, op: Op, family: str) -> Ref:
    """Operand that receives the size. Raises Unsupported where the backend counts nothing."""
    if family not in ctx.target.families:
        raise Unsupported(
            f"how large the result of {op.kind} is depends on what tensors hold, and the sizes of a"
            f" partition follow from the shapes of its inputs on the backend {ctx.plan.backend}"
        )
    return ctx.plan.arena(DType.I64.size)


def _of_type(x: Value, kind: str, types: frozenset[DType]) -> None:
    if x.dtype not in types:
        raise Unsupported(f"no kernel computes {kind} of type {x.dtype.name}")


def _along(op: Op, x: Value) -> tuple[int, Dims]:
    """The axis of the slices, and the dims: one axis of all elements where none is given."""
    axis = op.attr("axis")
    return (0, (x.elements,)) if axis is None else (axis_of(axis, x.rank), x.shape)


def nonzero(ctx: Lowering, op: Op) -> None:
    """The coordinates [rank, count] of what is not zero."""
    x, count = ctx.value(op.input(0)), _count(ctx, op, "nonzero")
    _of_type(x, op.kind, _NONZERO)
    if not 1 <= x.rank <= _AXES:
        raise Unsupported(f"no kernel computes NonZero of rank {x.rank}; it takes 1 to {_AXES}")
    source = ctx.plain(x)
    y = ctx.define_counted(op.outputs[0], DType.I64, (x.rank, x.elements), 1, count)
    sizes: list[DimLike] = [1] * (_AXES - x.rank)
    ints = {f"n{k}": n for k, n in enumerate([*sizes, *x.shape])}
    ints |= {"rank": x.rank, "dtype": int(x.dtype)}
    ctx.plan.launch("nonzero", {"x": source}, {"y": y, "count": count}, ints, whole=False)


def compress(ctx: Lowering, op: Op) -> None:
    """The slices along an axis, or the elements, for which a condition holds; it may be shorter."""
    x, condition = (ctx.value(name) for name in op.inputs)
    count = _count(ctx, op, "compress")
    if condition.rank != 1 or condition.dtype != DType.BOOL:
        raise Unsupported("Compress has a condition that is no list of booleans")
    length = condition.shape[0]
    axis, shape = _along(op, x)
    most = D.minimum(shape[axis], length)
    refs = {"x": ctx.plain(x), "condition": ctx.plain(condition)}
    dims = (*shape[:axis], most, *shape[axis + 1 :])
    y = ctx.define_counted(op.outputs[0], x.dtype, dims, axis, count)
    ints = {**around(shape, axis), "length": length, "elem": x.dtype.size}
    ctx.plan.launch("compress", refs, {"y": y, "count": count}, ints, whole=False)


def unique(ctx: Lowering, op: Op) -> None:
    """The different elements, or slices along an axis; where each is first, which one each element
    is, and how often each is there.
    """
    x, count = ctx.value(op.input(0)), _count(ctx, op, "unique")
    _of_type(x, op.kind, _UNIQUE)
    axis, shape = _along(op, x)
    n, source = shape[axis], ctx.plain(x)
    out: dict[str, Ref | None] = {
        "y": ctx.define_counted(op.outputs[0], x.dtype, shape, axis, count),
        "count": count,
    }
    roles = ("first", "inverse", "counts")
    for role, name in zip(roles, op.outputs[1:], strict=False):
        if name and role == "inverse":
            out[role] = ctx.new_plain(ctx.define(name, DType.I64, (n,)))
        elif name:
            out[role] = ctx.define_counted(name, DType.I64, (n,), 0, count)
    ints = {
        **around(shape, axis), "sorted": int(op.attr("sorted", 1)), "dtype": int(x.dtype),
    }  # fmt: skip
    ctx.plan.launch("unique", {"x": source}, out, ints, whole=False)


def _number(ctx: Lowering, op: Op, k: int, what: str) -> float | None:
    """An operand of one constant number; None where it is absent."""
    name = op.input(k)
    if not name:
        return None
    found = ctx.contents(name, what)
    if found.size != 1:
        raise Unsupported(f"{what} '{name}' has {found.size} elements, not one")
    number: float = found.reshape(-1)[0].item()
    return number


def non_max_suppression(ctx: Lowering, op: Op) -> None:
    """Rows of batch, class and box: the boxes of each class by their scores, without those that
    overlap a better one.
    """
    boxes, scores, count = ctx.value(op.input(0)), ctx.value(op.input(1)), _count(ctx, op, "nms")
    if boxes.rank != 3 or scores.rank != 3 or {boxes.dtype, scores.dtype} != {DType.F32}:
        raise Unsupported("NonMaxSuppression reads boxes and scores of rank 3 and type F32")
    batch, classes, n = scores.shape
    label = f"NonMaxSuppression '{op.label}'"
    ctx.same(boxes.shape[0], batch, f"the batches of {label}")
    ctx.same(boxes.shape[1], n, f"the boxes and the scores of {label}")
    ctx.same(boxes.shape[2], 4, f"the numbers of a box of {label}")
    limit, overlap, score = (
        _number(ctx, op, k, what)
        for k, what in ((2, "the number of boxes"), (3, "the overlap"), (4, "the least score"))
    )
    if not 0 <= (overlap or 0.0) <= 1:
        raise Unsupported(f"the overlap of {label} is {overlap}; it must be from 0 to 1")
    most = D.minimum(n, max(int(limit or 0), 0))
    pairs = D.mul(batch, classes)
    sizes: dict[str, DimLike] = {"B": batch, "C": classes, "most": most}
    center = int(op.attr("center_point_box", 0))
    picked = ctx.plan.arena(D.product([pairs, most, DType.I64.size]))
    counts = ctx.plan.arena(D.mul(pairs, DType.I64.size))
    ctx.plan.launch(
        "nms",
        {"boxes": ctx.plain(boxes), "scores": ctx.plain(scores)},
        {"picked": picked, "counts": counts},
        {**sizes, "N": n, "center": center, "above": int(score is not None)},
        {"overlap": overlap or 0.0, "score": score or 0.0},
        whole=False,
    )
    shape = (D.mul(pairs, most), 3)
    y = ctx.define_counted(op.outputs[0], DType.I64, shape, 0, count)
    ctx.plan.launch(
        "nms_list",
        {"picked": picked, "counts": counts},
        {"y": y, "count": count},
        sizes,
        whole=False,
    )


OPS = {
    "NonZero": nonzero, "Compress": compress, "Unique": unique,
    "NonMaxSuppression": non_max_suppression,
}  # fmt: skip
