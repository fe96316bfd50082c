"""Gather and scatter of elements by run-time indices, where the slice of an index is not
contiguous, and triangles of matrices (Trilu).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.shapes.operands import axis_of, constant
from tracea_onnx.shapes.operators import result

#: Dims the kernels take.
_RANK = 5
#: A OneHot of more is no list of sizes.
_SIZES = 64


def _axis(op: Op, x: Value) -> int:
    return axis_of(int(op.attr("axis", 0)), x.rank)


def _require(ctx: Lowering, op: Op, indices: Value, rank: int) -> None:
    ctx.available("scatter_along", op.kind)
    if indices.dtype not in (DType.I64, DType.I32):
        raise Unsupported(
            f"{op.kind} has indices of type {indices.dtype.name}; the kernel reads I64 and I32"
        )
    if rank > _RANK:
        raise Unsupported(f"{op.kind} needs {rank} dims; the kernel takes {_RANK}")


def _five(
    n: Sequence[DimLike], s: Sequence[DimLike], m: Sequence[DimLike], *, first: bool = False
) -> dict[str, DimLike]:
    """The kernels' parameters of so many dims; those that are left over come first unless the dims
    do.
    """

    def filled(values: Sequence[DimLike], fill: int) -> list[DimLike]:
        rest: list[DimLike] = [fill] * (_RANK - len(values))
        return [*values, *rest] if first else [*rest, *values]

    return {
        f"{letter}{k}": d
        for letter, values, fill in (("n", n, 1), ("s", s, 0), ("m", m, 1))
        for k, d in enumerate(filled(values, fill))
    }


def _within(ctx: Lowering, op: Op, idx: Value, x: Value, axis: int) -> None:
    """Beside the axis of the indices, there may be no more of them than the tensor has elements."""
    if idx.rank != x.rank:
        raise Unsupported(
            f"{op.kind} has a tensor of rank {x.rank}, and indices of rank {idx.rank}"
        )
    for a in range(x.rank):
        if a != axis:
            ctx.at_least(
                x.shape[a],
                idx.shape[a],
                f"axis {a} of '{x.name}', which {op.kind} '{op.label}' indexes,",
            )


def gather_along(ctx: Lowering, op: Op, x: Value, idx: Value, axis: int) -> None:
    """GatherElements from a tensor that has more than the indices on other axes."""
    _require(ctx, op, idx, x.rank)
    _within(ctx, op, idx, x, axis)
    view = ctx.strided(x)
    out = ctx.define(op.outputs[0], x.dtype, idx.shape)
    ints = {
        "elem": x.dtype.size,
        "idx_dtype": int(idx.dtype),
        "axis": axis + _RANK - x.rank,
        **_five(idx.shape, view.strides, x.shape),
    }
    ctx.run("gather_along", {"x": view.ref, "idx": idx}, out, ints)


def gather_tuples(ctx: Lowering, op: Op, x: Value, idx: Value) -> None:
    """GatherND by indices that only a run knows."""
    b, k = int(op.attr("batch_dims", 0)), idx.shape[-1]
    if not isinstance(k, int) or not 0 <= b < idx.rank or b + k > x.rank:
        raise Unsupported(
            f"GatherND has {b} batch dims and tuples of {k} for a tensor of rank {x.rank}"
        )
    for a in range(b):
        ctx.same(idx.shape[a], x.shape[a], f"the batches of GatherND '{op.label}'")
    _require(ctx, op, idx, k)
    lead, strides = idx.shape[:-1], contiguous(x.shape)
    operands = {"x": ctx.plain(x), "idx": ctx.plain(idx)}
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    ints: dict[str, DimLike] = {
        "elem": x.dtype.size,
        "idx_dtype": int(idx.dtype),
        "k": k,
        "count": D.product(lead),
        "inner": D.product(x.shape[b + k :]),
    }
    ints |= {
        "each": D.product(lead[b:]),
        "step": D.product(x.shape[b:]),
        **_five((), strides[b : b + k], x.shape[b : b + k], first=True),
    }
    ctx.run("gather_tuples", operands, out, ints)


def _copied(ctx: Lowering, op: Op, x: Value) -> Value:
    """The result of an operator that changes some elements of x, before it has."""
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    view = ctx.strided(x)
    ctx.copy(view, View(ctx.new_plain(out), contiguous(x.shape)), x.shape, x.dtype, whole=False)
    return out


def _changes(ctx: Lowering, op: Op, updates: Value, shape: Sequence[DimLike]) -> None:
    """Refuse updates that are reduced, or of another shape than the indices say."""
    if op.attr("reduction", "none") != "none":
        raise Unsupported(
            f"{op.kind} reduces; sums of a parallel kernel would depend on the order of threads"
        )
    if len(shape) != updates.rank:
        raise Unsupported(
            f"{op.kind} has updates of rank {updates.rank}; its indices require {len(shape)}"
        )
    for axis, (a, b) in enumerate(zip(updates.shape, shape, strict=True)):
        ctx.same(a, b, f"the updates of {op.kind} '{op.label}' and its indices along axis {axis}")


def scatter_elements(ctx: Lowering, op: Op) -> None:
    """ScatterElements: a copy of the data, then updates at indices along one axis."""
    x, idx, updates = (ctx.value(n) for n in op.inputs)
    _require(ctx, op, idx, x.rank)
    _changes(ctx, op, updates, idx.shape)
    _within(ctx, op, idx, x, _axis(op, x))
    index, update = ctx.plain(idx), ctx.plain(updates)
    out = _copied(ctx, op, x)
    ints = {
        "elem": x.dtype.size,
        "idx_dtype": int(idx.dtype),
        "axis": _axis(op, x) + _RANK - x.rank,
        **_five(idx.shape, contiguous(x.shape), x.shape),
    }
    ctx.plan.launch(
        "scatter_along", {"idx": index, "u": update}, {"y": ctx.plain(out)}, ints, whole=False
    )


def scatter_flat(ctx: Lowering, op: Op, x: Value, idx: Value, shape: Dims) -> None:
    """Zeros of that shape, and x at places that count its elements."""
    _require(ctx, op, idx, 1)
    if idx.rank != x.rank:
        raise Unsupported(f"{op.kind} has indices of rank {idx.rank}, and elements of {x.rank}")
    for a, (d, e) in enumerate(zip(idx.shape, x.shape, strict=True)):
        ctx.same(d, e, f"the indices and elements of {op.kind} '{op.label}' along axis {a}")
    index, update = ctx.plain(idx), ctx.plain(x)
    out = ctx.define(op.outputs[0], x.dtype, shape)
    zeros: dict[str, DimLike] = {"elem": x.dtype.size, "count": out.elements, "value": 0}
    y = ctx.new_plain(out)
    ctx.plan.launch("fill", {}, {"y": y}, zeros, whole=False)
    ints = {
        "elem": x.dtype.size, "idx_dtype": int(idx.dtype), "axis": _RANK - 1,
        **_five((x.elements,), (1,), (out.elements,)),
    }  # fmt: skip
    ctx.plan.launch("scatter_along", {"idx": index, "u": update}, {"y": y}, ints, whole=False)


def scatter_nd(ctx: Lowering, op: Op) -> None:
    """ScatterND: a copy of the data, then slices at index tuples."""
    x, idx, updates = (ctx.value(n) for n in op.inputs)
    k = idx.shape[-1] if idx.rank else None
    if not isinstance(k, int) or k > x.rank:
        raise Unsupported(f"ScatterND has tuples of {k} for a tensor of rank {x.rank}")
    _require(ctx, op, idx, k)
    _changes(ctx, op, updates, (*idx.shape[:-1], *x.shape[k:]))
    index, update = ctx.plain(idx), ctx.plain(updates)
    out = _copied(ctx, op, x)
    ints: dict[str, DimLike] = {
        "elem": x.dtype.size,
        "idx_dtype": int(idx.dtype),
        "k": k,
        "count": D.product(idx.shape[:-1]),
        "inner": D.product(x.shape[k:]),
    }
    ints |= _five((), contiguous(x.shape)[:k], x.shape[:k], first=True)
    ctx.plan.launch(
        "scatter_tuples", {"idx": index, "u": update}, {"y": ctx.plain(out)}, ints, whole=False
    )


def trilu(ctx: Lowering, op: Op) -> None:
    """Trilu: the upper or lower triangle of each matrix, zero elsewhere."""
    x = ctx.value(op.input(0))
    ctx.available("scatter_along", op.kind)
    if x.rank < 2:
        raise Unsupported(f"{op.kind} of rank {x.rank}")
    diagonal = constant(ctx, op.input(1), "the diagonal") if op.input(1) else 0
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    rows, columns = x.shape[-2:]
    ints: dict[str, DimLike] = {
        "outer": D.product(x.shape[:-2]),
        "rows": rows,
        "columns": columns,
        "diagonal": diagonal,
        "upper": int(op.attr("upper", 1)),
    }
    ctx.run("triangle", {"x": x}, out, {"elem": x.dtype.size, **ints})


def one_hot(ctx: Lowering, op: Op) -> None:
    """OneHot: [.., depth, ..] with `on` at the index and `off` elsewhere."""
    idx, values = ctx.value(op.input(0)), ctx.value(op.input(2))
    axis, shape = axis_of(op.attr("axis", -1), idx.rank + 1), result(ctx, op)
    depth = shape[axis]
    if (
        values.ints is not None
        and idx.ints is not None
        and len(idx.ints) == 1
        and len(values.ints) == 2
        and all(isinstance(d, int) for d in (depth, *idx.ints))
        and int(depth) <= _SIZES
    ):
        # How TorchScript writes the repeats of `repeat_interleave`: one dim among ones.
        ctx.define(op.outputs[0], values.dtype, shape).ints = tuple(
            values.ints[d in (idx.ints[0], idx.ints[0] + depth)] for d in range(int(depth))
        )
        return
    _require(ctx, op, idx, idx.rank)
    ctx.same(values.elements, 2, f"the values of OneHot '{op.label}' and what it takes")
    out = ctx.define(op.outputs[0], values.dtype, shape)
    ints: dict[str, DimLike] = {
        "outer": D.product(idx.shape[:axis]),
        "depth": depth,
        "inner": D.product(idx.shape[axis:]),
    }
    ints |= {"elem": values.dtype.size, "idx_dtype": int(idx.dtype)}

    def make() -> None:
        ctx.run("one_hot", {"idx": idx, "values": values}, out, ints)

    rows = axis == idx.rank and isinstance(depth, int) and values.dtype in ctx.target.types
    if rows and values.data is not None and values.data.reshape(-1).tolist() == [0, 1]:
        ctx.defer(out, "one_hot", [idx], make)
    else:
        make()


def tensor_scatter(ctx: Lowering, op: Op) -> None:
    """TensorScatter: a cache with new rows along an axis, from places on that each row of the batch
    has.
    """
    ctx.available("cache_write", op.kind)
    past, new = ctx.value(op.input(0)), ctx.value(op.input(1))
    axis = axis_of(int(op.attr("axis", -2)), past.rank)
    if axis == 0 or new.rank != past.rank or new.dtype != past.dtype:
        raise Unsupported(f"the axis and the operands of {op.kind} do not fit one another")
    for k, (have, want) in enumerate(zip(new.shape, past.shape, strict=True)):
        if k != axis:
            ctx.same(have, want, f"axis {k} of what {op.kind} '{op.label}' writes and of its cache")
    out = ctx.define(op.outputs[0], past.dtype, past.shape)
    batch, heads, size = (
        past.shape[0],
        D.product(past.shape[1:axis]),
        D.product(past.shape[axis + 1 :]),
    )
    at = ctx.optional(op.input(2)) or ctx.define(f"{out.name}\0at", DType.I64, (batch,))
    if not op.input(2):
        ctx.run("fill", {}, at, {"elem": 8, "count": batch, "value": 0})
    if at.dtype != DType.I64:
        raise Unsupported(f"{op.kind} has places of type {at.dtype.name}, not I64")
    ctx.same(at.elements, batch, f"the places of {op.kind} '{op.label}' and its rows")
    rows = new.shape[axis]
    ints: dict[str, DimLike] = {
        "elem": past.dtype.size, "B": batch, "H": heads, "S": rows, "P": past.shape[axis],
        "T": past.shape[axis], "D": size, "x_b": D.product([heads, rows, size]), "x_s": size,
        "x_h": D.mul(rows, size), "at_dtype": int(at.dtype), "keep": 1,
        "circular": int(op.attr("mode", "linear") == "circular"),
    }  # fmt: skip
    ctx.run("cache_write", {"past": past, "x": new, "at": at}, out, ints, whole=False)


OPS = {
    "OneHot": one_hot,
    "ScatterElements": scatter_elements,
    "Scatter": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "Trilu": trilu,
}
