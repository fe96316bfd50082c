"""Data movement that needs a kernel: concatenation, tiling, index tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering, element_type
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops import indexed
from tracea_onnx.compiler.lower.ops.movement import gather, inside, relabel
from tracea_onnx.compiler.lower.passes import summed_rows
from tracea_onnx.compiler.lower.passes.focus_stem import find_blocks
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.compiler.lower.views import image_in
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.element_types import tensor_values
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.operands import axis_of, integers, whole_number
from tracea_onnx.shapes.operators import result


def concat(ctx: Lowering, op: Op) -> None:
    """Concat: one launch that copies all parts, unless they already lie in place."""
    parts = [ctx.value(n) for n in op.inputs]
    first = parts[0]
    k, shape_ = axis_of(op.attr("axis", 1), first.rank), result(ctx, op)
    for p in parts:
        for a in range(first.rank):
            if a != k:
                ctx.same(
                    p.shape[a],
                    first.shape[a],
                    f"the sizes along axis {a} of what Concat '{op.label}' joins",
                )
    out = ctx.define(op.outputs[0], first.dtype, shape_)
    blocks = find_blocks(parts) if out.name in ctx.block_concats and k == 1 else None
    if blocks is not None:
        ctx.blocks[out.name] = blocks
        return
    images = [p for p in parts if p.nhwc is not None]
    if (
        k == 1
        and first.rank in (3, 4)
        and images
        and len(images) * 2 >= len(parts)
        and first.dtype in ctx.target.types
        and isinstance(shape_[k], int)
    ):
        _concat_channels(ctx, op, out, parts)
        return
    if k == first.rank - 1 and all(p.affine is not None and p.shape[k] == 1 for p in parts):
        ctx.defer(out, "tuples", parts, lambda: _join(ctx, out, parts, k))
    elif out.name in ctx.deferrable and k == first.rank - 2 and summed_rows.fits(ctx, out, parts):
        ctx.defer(out, "concat", parts, lambda: _join(ctx, out, parts, k))
    else:
        _join(ctx, out, parts, k)


def _join(ctx: Lowering, out: Value, parts: list[Value], k: int) -> None:
    step = contiguous(out.shape)[k]
    at: DimLike = 0
    moves: list[tuple[View, DimLike, Dims]] = []
    for p in parts:
        if p.elements != 0:
            moves.append((ctx.strided(p), D.mul(at, step), p.shape))
        at = at + p.shape[k]
    ctx.copy_all(ctx.fresh(out), out.dtype, moves)


def _concat_channels(ctx: Lowering, op: Op, out: Value, parts: list[Value]) -> None:
    if out.name in ctx.concats:  # some producers wrote their slice in place
        dst = out.nhwc = ctx.concats[out.name]
    else:
        dst = ctx.new_nhwc(out)
    at = 0
    moves: list[tuple[View, DimLike, Dims]] = []
    for p in parts:
        n, _, h, w = out.image()
        c = p.channels
        there = replace(dst, ref=dst.ref.at(out.dtype.size * at))
        if p.nhwc is None or (
            ctx.slots.get(p.name) != (out.name, at)
            and replace(p.nhwc, border=there.border) != there
        ):
            lying = image_in(p) if "copies" in ctx.target.families else None
            src = lying or ctx.nhwc(p)
            if "copies" in ctx.target.families:
                moves.append((View(src.ref, (src.ns, src.rs, src.cs, 1)), at, (n, h, w, c)))
                at += c
                continue
            ints = {**out.nchw(), "C": c, **src.pitches("x"), **dst.pitches("y")}
            ctx.plan.launch(
                "copy_nhwc", {"x": src.ref}, {"y": there.ref}, ints, whole=False, dtype=out.dtype
            )
        at += c
    ctx.copy_all(View(dst.ref, (dst.ns, dst.rs, dst.cs, 1)), out.dtype, moves)


def tile(ctx: Lowering, op: Op) -> None:
    """Tile: one strided copy; y[i] = x[i mod size] along each axis."""
    x = ctx.value(op.input(0))
    repeats = integers(ctx, op.input(1), "the repeats")
    for r in repeats:
        ctx.at_least(r, 0, f"a repeat of Tile '{op.label}'")
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    ref = ctx.new_plain(out)
    view, strides = ctx.strided(x), contiguous(out.shape)
    # y[r, i] over (repeat, index) pairs per axis: a copy of twice the rank with stride 0 on the
    # source's repeats
    shape_ = tuple(d for r, n in zip(repeats, x.shape, strict=True) for d in (r, n))
    src = tuple(s for st in view.strides for s in (0, st))
    dst = tuple(s for st, n in zip(strides, x.shape, strict=True) for s in (D.mul(st, n), st))
    ctx.copy(View(view.ref, src), View(ref, dst), shape_, x.dtype)


def constant_of_shape(ctx: Lowering, op: Op) -> None:
    """ConstantOfShape: a fill, deferred until something reads it."""
    dims = result(ctx, op)
    t = op.attr("value")
    dtype = element_type(op.outputs[0], int(t.data_type)) if t is not None else DType.F32
    value = tensor_values(t) if t is not None else np.zeros(1, np.float32)
    out = ctx.define(op.outputs[0], dtype, dims)
    ctx.plan.launch(
        "fill",
        {},
        {"y": ctx.new_plain(out)},
        {"elem": dtype.size, "count": out.elements, "value": bits(value)},
        whole=isinstance(out.elements, int),
    )


def bits(value: np.ndarray[Any, Any]) -> int:
    """The bit pattern of the first element, as `fill` takes it."""
    return int.from_bytes(
        value.reshape(-1)[:1].tobytes(), "little", signed=value.dtype.itemsize == 8
    )


def range_(ctx: Lowering, op: Op) -> None:
    """Range of whole numbers: integers stay an affine view; a kernel writes them only when they are
    read.
    """
    dtype = ctx.value(op.input(0)).dtype
    if dtype not in (DType.I64, DType.I32, DType.F32):
        raise Unsupported(f"no kernel computes Range of type {dtype.name}")
    (n,) = result(ctx, op)
    first, _, step = (whole_number(ctx, i, "a bound of a Range") for i in op.inputs)
    out = ctx.define(op.outputs[0], dtype, (n,))
    if isinstance(n, int) and n <= 8 and dtype == DType.I64:
        out.ints = tuple(first + step * k for k in range(n))
        return
    ints: dict[str, DimLike] = {"count": n, "start": first, "delta": step, "dtype": int(dtype)}
    if dtype != DType.F32:
        out.affine = View(Ref(-1, first), (step,))
    ctx.defer(out, "", (), lambda: ctx.run("range", {}, out, ints))


def gather_elements(ctx: Lowering, op: Op) -> None:
    """Along one axis.

    Where x is wider than the indices on another, or may be, it is found element by element.
    """
    x, idx = ctx.value(op.input(0)), ctx.value(op.input(1))
    k = axis_of(op.attr("axis", 0), x.rank)
    if idx.dtype not in (DType.I64, DType.I32):
        raise Unsupported(f"GatherElements has indices of type {idx.dtype.name}")
    if idx.rank != x.rank:
        raise Unsupported(
            f"GatherElements has indices of rank {idx.rank} for a tensor of rank {x.rank}"
        )
    if any(
        not (a is b or a == b)
        for j, (a, b) in enumerate(zip(x.shape, idx.shape, strict=True))
        if j != k
    ):
        indexed.gather_along(ctx, op, x, idx, k)
        return
    if idx.affine is not None and inside(ctx, idx.affine, idx.shape, x.shape[k]):
        affine, view = idx.affine, ctx.strided(x)
        steps = tuple(
            (0 if j == k else s) + D.mul(affine.strides[j], view.strides[k])
            for j, s in enumerate(view.strides)
        )
        start = D.mul(D.mul(affine.ref.offset, view.strides[k]), x.dtype.size)
        ctx.define(op.outputs[0], x.dtype, idx.shape).view = View(view.ref.at(start), steps)
        return
    out = ctx.define(op.outputs[0], x.dtype, idx.shape)
    ints = {"elem": x.dtype.size, "count": idx.shape[k], "idx_dtype": int(idx.dtype)}
    ctx.run("gather_elements", {"x": x, "idx": idx}, out, ints | around(x.shape, k))


def _affine(ctx: Lowering, op: Op, x: Value, idx: Value) -> list[View]:
    """The members of index tuples where all of them count, within what they point into; nothing
    otherwise.
    """
    known = idx.deferred if idx.view is None else None
    if known is None or known.kind != "tuples" or op.attr("batch_dims", 0):
        return []
    found = [
        p.affine
        for p, d in zip(known.parts, x.shape, strict=False)
        if p.affine is not None and inside(ctx, p.affine, p.shape, d)
    ]
    return found if len(found) == len(known.parts) else []


def gather_nd(ctx: Lowering, op: Op) -> None:
    """Where the members of the index tuples count: a view. Of tuples of one, a Gather."""
    x, idx = ctx.value(op.input(0)), ctx.value(op.input(1))
    if not idx.rank:
        raise Unsupported("GatherND has a single index")
    if idx.shape[-1] == 1 and not op.attr("batch_dims", 0):
        flat = replace(op, inputs=(op.input(1),), outputs=(op.outputs[0] + "\0flat",))
        relabel(ctx, flat, idx, idx.shape[:-1])
        gather(ctx, replace(op, kind="Gather", inputs=(op.input(0), *flat.outputs), attrs={}))
        return
    affine = _affine(ctx, op, x, idx)
    if not affine:
        indexed.gather_tuples(ctx, op, x, idx)
        return
    view, lead = ctx.strided(x), idx.shape[:-1]
    start: DimLike = 0
    steps: list[DimLike] = [0] * len(lead)
    for axis, part in enumerate(affine):
        start = start + D.mul(part.ref.offset, view.strides[axis])
        steps = [
            s + D.mul(c, view.strides[axis]) for s, c in zip(steps, part.strides, strict=False)
        ]
    rest = len(affine)
    out = ctx.define(op.outputs[0], x.dtype, (*lead, *x.shape[rest:]))
    out.view = View(view.ref.at(D.mul(start, x.dtype.size)), (*steps, *view.strides[rest:]))


def _image(op: Op, x: Value) -> Dims:
    if x.rank != 4:
        raise Unsupported(f"{op.kind} of rank {x.rank}")
    return x.shape


def depth_to_space(ctx: Lowering, op: Op) -> None:
    """DepthToSpace: [N, C, H, W] to [N, C / b^2, H b, W b], as a transposed copy."""
    x = ctx.value(op.input(0))
    n, _, h, w = _image(op, x)
    b, c = int(op.attr("blocksize")), x.channels
    ctx.multiple(c, b * b, f"the channels of DepthToSpace '{op.label}'")
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    image, view = x.nhwc is not None and x.view is None, ctx.as_view(x)
    sn, sc, sh, sw = view.strides
    q = c // (b * b)
    # y[n, q, h, i, w, j]
    if op.attr("mode", "DCR") == "DCR":
        src = (sn, sc, sh, D.mul(sc, b * q), sw, D.mul(sc, q))
    else:
        src = (sn, D.mul(sc, b * b), sh, D.mul(sc, b), sw, sc)
    six: Dims = (n, q, h, b, w, b)
    # of whole vectors of channels, an image stays one
    if (
        image
        and ctx.target.launch_bound
        and q % ctx.target.vector == 0
        and x.dtype in ctx.target.types
    ):
        to, order = ctx.new_nhwc(out), (0, 2, 3, 4, 5, 1)
        dst = (to.ns, 1, D.mul(to.rs, b), to.rs, D.mul(to.cs, b), to.cs)
        transposed = (
            View(view.ref, tuple(src[k] for k in order)),
            View(to.ref, tuple(dst[k] for k in order)),
        )
        ctx.copy(*transposed, tuple(six[k] for k in order), x.dtype, whole=False)
        return
    ctx.copy(View(view.ref, src), View(ctx.new_plain(out), contiguous(six)), six, x.dtype)


def space_to_depth(ctx: Lowering, op: Op) -> None:
    """SpaceToDepth: [N, C, H, W] to [N, C b^2, H / b, W / b], as a transposed copy."""
    x = ctx.value(op.input(0))
    n, c, h, w = _image(op, x)
    b = int(op.attr("blocksize"))
    for d, side in ((h, "height"), (w, "width")):
        ctx.multiple(d, b, f"the {side} of SpaceToDepth '{op.label}'")
    view = ctx.strided(x)
    sn, sc, sh, sw = view.strides
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    hb, wb = out.shape[2:]
    six: Dims = (n, b, b, c, hb, wb)
    src: Dims = (sn, sh, sw, sc, D.mul(sh, b), D.mul(sw, b))
    if op.attr("mode", "DCR") == "CRD":  # from opset 28 on: channels stay outermost
        six, src = (n, c, b, b, hb, wb), (sn, sc, sh, sw, *src[4:])
    ctx.copy(View(view.ref, src), View(ctx.new_plain(out), contiguous(six)), six, x.dtype)


OPS = {
    "Concat": concat, "Tile": tile, "ConstantOfShape": constant_of_shape, "Range": range_,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth,
}  # fmt: skip
