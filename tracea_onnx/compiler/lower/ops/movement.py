"""Shape arithmetic and views: they cost nothing, because a view or a symbolic value is enough.

Small integer tensors (the Shape/Gather/Concat towers of dynamic exports) are followed symbolically;
they reach memory only when something really reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_onnx.compiler.lower.axes import around, broadcast_strides
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.passes import pointwise_stages, summed_rows
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Unsupported, Value, View, contiguous
from tracea_onnx.compiler.lower.views import regrouped, reshape_view
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.shapes.operands import axis_of, bounds, integers, parts, permutation, placed
from tracea_onnx.shapes.operators import result

#: Channels that an image kernel takes at a time.
_VECTOR = 16


def _moved(
    ctx: Lowering,
    op: Op,
    x: Value,
    shape: Dims,
    move: Callable[[View, int], View],
    read: Callable[[Value], View] | None = None,
) -> None:
    """The output as `move` of the view of x that `read` gives, and the size of an element.
    Integers that merely count go on counting; they are moved in memory only when something reads
    them there.
    """
    out = ctx.define(op.outputs[0], x.dtype, shape)

    def make() -> None:
        out.view = move((read or ctx.strided)(x), x.dtype.size)

    if x.affine is None:
        make()
    else:
        out.affine = move(x.affine, 1)
        ctx.defer(out, "", [x], make)


def identity(ctx: Lowering, op: Op) -> None:
    """Identity and its kind: the output is the input."""
    ctx.forward(ctx.value(op.input(0)), op.outputs[0])


def relabel(ctx: Lowering, op: Op, x: Value, new: Dims) -> None:
    """Same elements in the same order under another shape, which has as many of them."""
    ctx.same(
        D.product(new),
        x.elements,
        f"the elements of {op.kind} '{op.label}', of its result and its input,",
    )
    out = ctx.define(op.outputs[0], x.dtype, new)
    out.affine = reshape_view(x.affine, x.shape, new) if x.affine is not None else None
    known = x.deferred if x.view is None else None
    hot = known is not None and known.kind == "one_hot" and new[-1:] == x.shape[-1:]
    if known is not None and (out.affine is not None or hot):

        def make() -> None:
            out.view = View(ctx.plain(x), contiguous(new))

        ctx.defer(out, known.kind if hot else "", known.parts if hot else [x], make)
        return
    static = D.is_static(new)
    if x.data is not None and static:
        out.data = x.data.reshape([int(d) for d in new if isinstance(d, int)])
    if x.ints is not None and static:
        out.ints = x.ints
        return
    if x.initializer:
        out.view = View(ctx.plain(x), contiguous(new))
        return
    if x.view is None and x.nhwc is not None and _same_image(ctx, x, out):
        out.nhwc = x.nhwc
        return
    view = (
        ctx.as_view(x)
        if x.view is not None or (x.nhwc is not None and ctx.target.launch_bound)
        else None
    )
    out.view = reshape_view(view, x.shape, new) if view is not None else None
    if out.view is None and view is not None and _to_image(ctx, out, view, x.shape):
        return
    if out.view is None:
        out.view = View(ctx.plain(x), contiguous(new))


def _same_image(ctx: Lowering, x: Value, out: Value) -> bool:
    """Whether `out` is the image x with or without an axis of one row."""
    return not ctx.target.launch_bound and out.rank in (3, 4) and out.image() == x.image()


def _to_image(ctx: Lowering, out: Value, view: View, old: Dims) -> bool:
    """Where channels that lie side by side are reordered (shuffled between groups), the copy makes
    a channels-last image again.
    """
    if (
        not ctx.target.launch_bound
        or out.rank != 4
        or not isinstance(out.shape[1], int)
        or out.dtype not in ctx.target.types
        or out.name in ctx.alias
    ):
        return False
    if len(old) < 5 or view.strides[-1] == 1 or 1 not in view.strides[1:-2]:
        return False
    if regrouped(View(view.ref, (1, 1, 1, 1)), out.shape, old) is None:
        return False
    to = ctx.new_nhwc(out)
    transposed = regrouped(View(to.ref, (to.ns, 1, to.rs, to.cs)), out.shape, old)
    assert transposed is not None  # dims are split, never joined
    ctx.copy(view, transposed, old, out.dtype, whole=False)
    return True


def reshape(ctx: Lowering, op: Op) -> None:
    """Reshape: a view; moved in memory only where a reader needs that."""
    x, new = ctx.value(op.input(0)), result(ctx, op)
    target = integers(ctx, op.input(1), "the shape") if op.input(1) else []
    for k, d in enumerate([] if op.attr("allowzero", 0) else target[: x.rank]):
        if isinstance(d, Dim) and d is not x.shape[k]:
            # A 0 that only a run knows stands for the input's size, too: then the two must be
            # equal. (Symbols of other partitions cannot be compared.)
            ctx.plan.require(
                d,
                D.select(D.equal(d, 0), x.shape[k], d),
                f"dim {k} of the target of {op.kind} '{op.label}', where 0 stands for the"
                " input's, and that",
            )
    relabel(ctx, op, x, new)


def flatten(ctx: Lowering, op: Op) -> None:
    """Flatten: [d0 .. d(axis-1), d(axis) .. dn], two dims."""
    relabel(ctx, op, ctx.value(op.input(0)), result(ctx, op))


def squeeze(ctx: Lowering, op: Op) -> None:
    """Squeeze and Unsqueeze."""
    x, axes, new = ctx.value(op.input(0)), placed(ctx, op), result(ctx, op)
    for k in range(x.rank):
        if k not in axes:
            ctx.same(x.shape[k], 1, f"axis {k} that Squeeze '{op.label}' removes, and 1")
    if not pointwise_stages.placed(ctx, x, axes, Value(op.outputs[0], x.dtype, new)):
        relabel(ctx, op, x, new)


def transpose(ctx: Lowering, op: Op) -> None:
    """Transpose: a view with permuted strides."""
    x, shape_ = ctx.value(op.input(0)), result(ctx, op)
    perm = permutation(op, x.rank)
    if x.dtype.size not in (1, 2, 4, 8):
        raise Unsupported(f"the copy kernel does not move elements of {x.dtype.size} bytes")
    _moved(
        ctx,
        op,
        x,
        shape_,
        lambda view, _: View(view.ref, tuple(view.strides[p] for p in perm)),
        lambda v: ctx.as_view(v, channels_last=perm[-1:] == [1]),
    )


def _clamp(v: DimLike, lo: DimLike, hi: DimLike) -> DimLike:
    return D.minimum(D.maximum(v, lo), hi)


def slice_(ctx: Lowering, op: Op) -> None:
    """Slice: a view with an offset and scaled strides. Starts and ends may be symbolic."""
    x = ctx.value(op.input(0))
    shape_, offset = list(x.shape), [0] * x.rank
    step_of = [1] * x.rank
    begin: list[DimLike] = list(offset)
    for k, s, e, st in bounds(ctx, op, x.rank):
        n = x.shape[k]
        first, last = _from_end(s, n), _from_end(e, n)
        if st > 0:
            first, last = _clamp(first, 0, n), _clamp(last, 0, n)
            length = D.maximum(D.ceildiv(last - first, st), 0)
            if first != 0:
                # an empty slice begins within its operand, too
                first = D.maximum(D.minimum(first, n - 1), 0)
        else:
            if not isinstance(n, int) or not isinstance(first, int) or not isinstance(last, int):
                raise Unsupported("Slice reads a symbolic dim backwards")
            first = min(max(first, 0), n - 1)
            last = min(max(last, -1), n - 1) if not (isinstance(e, int) and e < -n) else -1
            length = max(-(-(last - first) // st), 0)
        begin[k], step_of[k], shape_[k] = first, st, _known_length(x, k, s, e, st, length)
    if (
        x.view is None
        and x.nhwc is not None
        and _cut_image(ctx, ctx.define(op.outputs[0], x.dtype, tuple(shape_)), x, begin, step_of)
    ):
        return

    def move(view: View, size: int) -> View:
        start: DimLike = 0
        for b, s in zip(begin, view.strides, strict=True):
            start = start + D.mul(b, s)
        return View(
            view.ref.at(D.mul(start, size)),
            tuple(D.mul(s, k) for s, k in zip(view.strides, step_of, strict=True)),
        )

    _moved(ctx, op, x, tuple(shape_), move, ctx.as_view)


def _cut_image(
    ctx: Lowering, out: Value, x: Value, begin: Sequence[DimLike], steps: Sequence[int]
) -> bool:
    """`out` as part of a channels-last image in place; not where its channels would not begin at a
    vector.
    """
    assert x.nhwc is not None
    first, old = begin[1], x.nhwc
    if (
        not ctx.target.launch_bound
        or not isinstance(first, int)
        or first % _VECTOR
        or steps[1] != 1
        or not isinstance(out.shape[1], int)
        or min(steps) < 1
    ):
        return False
    *rows, column = (0, *begin[2:]) if x.rank == 3 else begin[2:]
    *row_steps, column_step = (1, *steps[2:]) if x.rank == 3 else steps[2:]
    at = D.mul(begin[0], old.ns) + first + D.mul(rows[0], old.rs) + D.mul(column, old.cs)
    whole = all(a is b or a == b for a, b in zip(out.shape[2:], x.shape[2:], strict=True))
    out.nhwc = Nhwc(
        old.ref.at(D.mul(at, x.dtype.size)), D.mul(old.cs, column_step),
        D.mul(old.rs, row_steps[0]), D.mul(old.ns, steps[0]),
        old.border if whole else (0, 0, 0, 0),
    )  # fmt: skip
    return True


def _from_end(v: DimLike, n: DimLike) -> DimLike:
    if isinstance(v, int):
        if v >= 2**31 - 1:
            return n
        return v if v >= 0 else D.maximum(n + v, 0) if v > -(2**31) else 0
    return D.select(D.less(v, 0), v + n, v)


def _known_length(
    x: Value, axis: int, start: DimLike, end: DimLike, step: int, length: DimLike
) -> DimLike:
    """Plain spellings of common symbolic slices: everything, and up to a dim that is no longer than
    the axis.
    """
    n = x.shape[axis]
    if (
        step == 1
        and isinstance(start, int)
        and start == 0
        and ((isinstance(end, int) and end >= 2**31 - 1) or end is n)
    ):
        return n
    return length


def split(ctx: Lowering, op: Op) -> None:
    """Split: a view for each output."""
    x = ctx.value(op.input(0))
    k = axis_of(op.attr("axis", 0), x.rank)
    n = x.shape[k]
    sizes = parts(ctx, op, n)
    fixed = [s for s in sizes if isinstance(s, int) and s >= 0]
    if x.ints is not None and x.rank == 1 and len(fixed) == len(sizes) and sum(fixed) == n:
        at = 0
        for name, count in zip(op.outputs, fixed, strict=True):
            if name:
                ctx.define(name, x.dtype, (count,)).ints = x.ints[at : at + count]
            at += count
        return
    total: DimLike = 0
    for s in sizes:
        total = total + s
        if not D.never_negative(s):
            ctx.at_least(s, 0, f"a part of Split '{op.label}'")
    ctx.same(total, n, f"the sum of the parts of Split '{op.label}' and the size of the axis")
    start: DimLike = 0
    for name, s in zip(op.outputs, sizes, strict=True):
        if name:
            out = ctx.define(name, x.dtype, (*x.shape[:k], s, *x.shape[k + 1 :]))
            if (
                x.view is not None
                or x.nhwc is None
                or not _cut_image(
                    ctx, out, x, [start if a == k else 0 for a in range(x.rank)], [1] * x.rank
                )
            ):
                view = ctx.as_view(x)
                out.view = View(
                    view.ref.at(D.mul(D.mul(start, view.strides[k]), x.dtype.size)), view.strides
                )
        start = start + s


def expand(ctx: Lowering, op: Op) -> None:
    """Expand: a view whose broadcast axes have stride 0."""
    x, shape_ = ctx.value(op.input(0)), result(ctx, op)
    if (
        x.ints is not None
        and len(x.ints) == 1
        and len(shape_) == 1
        and isinstance(shape_[0], int)
        and shape_[0] <= 8
    ):
        ctx.define(op.outputs[0], x.dtype, shape_).ints = x.ints * shape_[0]
        return
    if pointwise_stages.placed(
        ctx,
        x,
        [*[None] * (len(shape_) - x.rank), *range(x.rank)],
        Value(op.outputs[0], x.dtype, shape_),
    ):
        return
    _moved(
        ctx,
        op,
        x,
        shape_,
        lambda view, _: View(view.ref, broadcast_strides(ctx.plan, view, x.shape, shape_)),
    )


def _picked(view: View, axis: int, first: DimLike, steps: Dims, size: int) -> View:
    """The view with `axis` indexed by first + sum(index * step)."""
    stride = view.strides[axis]
    return View(
        view.ref.at(D.mul(D.mul(first, stride), size)),
        (*view.strides[:axis], *(D.mul(s, stride) for s in steps), *view.strides[axis + 1 :]),
    )


def inside(ctx: Lowering, counting: View, shape: Dims, n: DimLike) -> bool:
    """Whether indices of this shape that count stay in 0..n; the Plan checks at run time what the
    symbols do not show.
    """
    last = counting.ref.offset
    if not all(D.never_negative(d) for d in (last, *counting.strides)):
        return False
    for d, s in zip(shape, counting.strides, strict=True):
        last = last + D.mul(d - 1, s)
    if isinstance(last, int) and isinstance(n, int):
        return last < n
    return ctx.plan.require_at_least(
        n, last + 1, "an axis that is read at each position up to a size of the inputs"
    )


def gather(ctx: Lowering, op: Op) -> None:
    """Gather along one axis: a view for affine indices, else a kernel."""
    x, idx = ctx.value(op.input(0)), ctx.value(op.input(1))
    k, shape_ = axis_of(op.attr("axis", 0), x.rank), result(ctx, op)
    n = x.shape[k]
    if idx.ints is not None and all(isinstance(i, int) for i in idx.ints):
        picks = [int(i) for i in idx.ints if isinstance(i, int)]
        if len(picks) == 1:
            at = n + picks[0] if picks[0] < 0 else picks[0]
            ctx.at_least(
                n,
                picks[0] + 1 if picks[0] >= 0 else -picks[0],
                f"the axis that Gather '{op.label}' reads at {picks[0]}",
            )
            _moved(
                ctx,
                op,
                x,
                shape_,
                lambda view, size: _picked(view, k, at, tuple(0 for _ in idx.shape), size),
            )
            return
    if idx.affine is not None and inside(ctx, idx.affine, idx.shape, n):
        first, steps = idx.affine.ref.offset, idx.affine.strides
        _moved(ctx, op, x, shape_, lambda view, size: _picked(view, k, first, steps, size))
        return
    if idx.dtype not in (DType.I64, DType.I32):
        raise Unsupported(
            f"Gather has indices of type {idx.dtype.name}; the kernel reads I64 and I32"
        )
    out = ctx.define(op.outputs[0], x.dtype, shape_)
    ints = {"elem": x.dtype.size, "count": idx.elements, "idx_dtype": int(idx.dtype)}
    ints |= around(x.shape, k)

    def make() -> None:
        ctx.run("gather", {"x": x, "idx": idx}, out, ints)

    if out.name in ctx.deferrable and x.rank == 2 and k == 0 and summed_rows.fits(ctx, out, [x]):
        ctx.defer(out, "rows", [x, idx], make)
    else:
        make()


OPS = {
    "Identity": identity, "Dropout": identity, "Reshape": reshape,
    "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": squeeze, "Transpose": transpose, "Slice": slice_, "Split": split,
    "Expand": expand, "Gather": gather,
}  # fmt: skip
