"""Col2Im of blocks that tile an image, MaxUnpool and CenterCropPad."""

from __future__ import annotations

import math

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.indexed import scatter_flat
from tracea_onnx.compiler.lower.ops.padding import surround
from tracea_onnx.compiler.lower.value import Unsupported, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.shapes.operands import axes
from tracea_onnx.shapes.operators import result


def col2im(ctx: Lowering, op: Op) -> None:
    """Blocks that tile an image: [N, C * block, blocks] transposed in memory."""
    x, shape = ctx.value(op.input(0)), result(ctx, op)
    block = [int(d) for d in ctx.contents(op.input(2), "the blocks of an image").reshape(-1)]
    axes = len(block)
    alone = [1] * axes
    if (
        list(op.attr("strides") or alone) != block
        or any(op.attr("pads") or [])
        or list(op.attr("dilations") or alone) != alone
        or axes > 2
        or min(block, default=0) < 1
    ):
        raise Unsupported("Col2Im adds up blocks that overlap, or leaves gaps; no kernel does")
    n, c, *sides = shape
    if x.rank != 3 or len(sides) != axes:
        raise Unsupported(f"Col2Im has a tensor of rank {x.rank}, and {axes} sizes of blocks")
    for d, b in zip(sides, block, strict=True):
        ctx.multiple(d, b, f"a side of the image of Col2Im '{op.label}'")
    counts = [D.floordiv(d, b) for d, b in zip(sides, block, strict=True)]
    ctx.same(x.shape[2], D.product(counts), f"the blocks of Col2Im '{op.label}'")
    ctx.same(x.shape[1], D.mul(c, math.prod(block)), f"the channels of Col2Im '{op.label}'")
    source = contiguous((n, c, *block, *counts))
    ctx.plain(x)
    out = ctx.define(op.outputs[0], x.dtype, shape)
    steps: list[DimLike] = [*source[:2]]
    extents: list[DimLike] = [n, c]
    for k in range(axes):
        steps += [source[2 + axes + k], source[2 + k]]
        extents += [counts[k], block[k]]
    ctx.copy(
        View(ctx.plain(x), tuple(steps)),
        View(ctx.new_plain(out), contiguous(tuple(extents))),
        tuple(extents),
        x.dtype,
    )


def max_unpool(ctx: Lowering, op: Op) -> None:
    """Zeros, but for the elements that a MaxPool took, at the places it took them from."""
    if op.input(2):
        raise Unsupported("MaxUnpool is told its sizes; ONNX does not say what places mean then")
    scatter_flat(ctx, op, ctx.value(op.input(0)), ctx.value(op.input(1)), result(ctx, op))


def center_crop_pad(ctx: Lowering, op: Op) -> None:
    """As many elements as asked for around the center, zeros where there are none."""
    x, shape = ctx.value(op.input(0)), result(ctx, op)
    before: list[DimLike] = [0] * x.rank
    after: list[DimLike] = [0] * x.rank
    for axis in axes(ctx, op, x.rank, 2) or range(x.rank):
        have, want = x.shape[axis], shape[axis]
        grown, cut = D.floordiv(D.sub(want, have), 2), D.floordiv(D.sub(have, want), 2)
        before[axis] = D.select(D.less(have, want), grown, D.mul(cut, -1))
        after[axis] = D.sub(D.sub(want, have), before[axis])
    out = surround(ctx, op.outputs[0], x, [*before, *after])
    out.shape = shape


OPS = {"CenterCropPad": center_crop_pad, "Col2Im": col2im, "MaxUnpool": max_unpool}
