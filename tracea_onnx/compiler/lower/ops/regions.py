"""RoiAlign, DeformConv and Det."""

from __future__ import annotations

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import matmul
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Nhwc, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.plan.extents import MOST_SAMPLES
from tracea_onnx.shapes.operators import result
from tracea_onnx.shapes.windows import Window, windows

_MODES = {"avg": 0, "max": 1}
_PLACES = {"output_half_pixel": 0, "half_pixel": 1}


def roi_align(ctx: Lowering, op: Op) -> None:
    """Every region of an image as one of the same size."""
    x, rois, batch = (ctx.value(n) for n in op.inputs)
    ctx.available("roi_align", op.kind)
    ctx.require(x, op.kind)
    mode = op.attr("mode", "avg")
    # before opset 16 there was one way to place pixels
    places = (
        op.attr("coordinate_transformation_mode", "half_pixel")
        if ctx.graph.opset() >= 16
        else "output_half_pixel"
    )
    ratio = int(op.attr("sampling_ratio", 0))
    if mode not in _MODES or places not in _PLACES or not 0 <= ratio <= MOST_SAMPLES:
        raise Unsupported(
            f"no kernel computes RoiAlign in mode '{mode}' with coordinates '{places}' and"
            f" sampling_ratio {ratio}"
        )
    if x.rank != 4 or rois.rank != 2 or batch.rank != 1 or batch.dtype != DType.I64:
        raise Unsupported("RoiAlign reads regions [R, 4] and batches [R] (I64) of images")
    if rois.dtype != x.dtype:
        raise Unsupported(f"RoiAlign has regions of type {rois.dtype.name}, images {x.dtype.name}")
    ctx.same(rois.shape[1], 4, f"the corners of a region of RoiAlign '{op.label}'")
    ctx.same(batch.shape[0], rois.shape[0], f"the batches and regions of RoiAlign '{op.label}'")
    n, c, h, w = x.image()
    src, regions, which = ctx.nhwc(x), ctx.plain(rois), ctx.plain(batch)
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    r, _, oh, ow = out.image()
    ints: dict[str, DimLike] = {
        "mode": _MODES[mode], "half": _PLACES[places], "ratio": ratio,
        "N": n, "C": c, "IH": h, "IW": w, "R": r, "OH": oh, "OW": ow,
    }  # fmt: skip
    scale = {"scale": float(op.attr("spatial_scale", 1.0))}
    dst = ctx.new_nhwc(out)
    ctx.run_image("roi_align", src, dst, x.dtype, ints, scale, rois=regions, batch=which)


def deform_conv(ctx: Lowering, op: Op) -> None:
    """im2col of the displaced windows, then a GEMM with the weights."""
    x, w, offset = (ctx.value(op.input(k)) for k in range(3))
    b, mask = ctx.optional(op.input(3)), ctx.optional(op.input(4))
    ctx.available("deform_columns", op.kind)
    ctx.require(x, op.kind)
    groups, moved = int(op.attr("group", 1)), int(op.attr("offset_group", 1))
    given = [v for v in (w, offset, b, mask) if v is not None]
    if {v.rank for v in given if v is not b} | {x.rank} != {4} or (b is not None and b.rank != 1):
        raise Unsupported("DeformConv has operands of other ranks than 4; the kernels take images")
    if any(v.dtype != x.dtype for v in given):
        raise Unsupported("the operands of DeformConv have several element types")
    sizes = [d for d in w.shape if isinstance(d, int)]
    if len(sizes) < 4 or op.attr("kernel_shape", sizes[2:]) != sizes[2:]:
        raise Unsupported("the weights of DeformConv have a symbolic size, or another kernel_shape")
    n, _, h, width = x.image()
    c, (made, _, kh, kw) = x.channels, sizes
    if min(groups, moved, made, c, kh, kw) < 1 or c % groups or made % groups or c % moved:
        raise Unsupported(f"{groups} groups and {moved} of offsets do not divide the channels")
    ctx.same(sizes[1] * groups, c, f"the channels of DeformConv '{op.label}' and its weights")
    down, across = windows(op, (h, width), (kh, kw))
    (top, _), (left, _) = down.padding(), across.padding()
    for v, members, what in ((offset, 2, "offsets"), (mask, 1, "masks")):
        if v is None:
            continue
        wanted = (n, moved * kh * kw * members, down.out, across.out)
        for have, want in zip(v.shape, wanted, strict=True):
            ctx.same(have, want, f"a size of the {what} of DeformConv '{op.label}'")
    ints = {
        "N": n, "C": c, "IH": h, "IW": width, "OH": down.out, "OW": across.out, "G": groups,
        "DG": moved, "PT": top, "PL": left, **_steps(down, "H"), **_steps(across, "W"),
    }  # fmt: skip
    name, k = op.outputs[0], c // groups * kh * kw
    places = (n, down.out, across.out)
    seen = ctx.define(f"{name}\0columns", x.dtype, (*places, groups, k))
    src = ctx.nhwc(x)
    operands = {"x": src.ref, "offset": ctx.plain(offset)}
    operands |= {} if mask is None else {"mask": ctx.plain(mask)}
    y, pitches = ctx.new_plain(seen), src.pitches("x")
    ctx.plan.launch("deform_columns", operands, {"y": y}, {**ints, **pitches}, dtype=x.dtype)
    transposed = _transposed(
        ctx, w, groups, (made // groups, kh, kw, c // groups), f"{name}\0weights"
    )
    if groups == 1:
        rows = _alike(ctx, seen, (*places, k))
        ref = ctx.plain(matmul(ctx, rows, transposed, b, True, f"{name}\0product"))
        out = ctx.define(name, x.dtype, result(ctx, op))
        row = D.mul(across.out, made)
        image = Nhwc(ref, made, row, D.mul(down.out, row))
        if ctx.target.channel_pitch(made) == made:
            out.nhwc = image
        else:
            out.view = View(ref, (image.ns, 1, image.rs, made))
        return
    pixels, share = D.product(places), made // groups
    rows = ctx.define(f"{name}\0rows", x.dtype, (groups, pixels, k))
    rows.view = View(y, (k, groups * k, 1))
    ref = ctx.plain(matmul(ctx, rows, transposed, None, True, f"{name}\0product"))
    out = ctx.define(name if b is None else f"{name}\0sums", x.dtype, result(ctx, op))
    each = D.mul(down.out, across.out)
    from_groups = View(ref, (D.mul(each, share), D.mul(pixels, share), 1, share))
    order = (n, groups, share, each)
    ctx.copy(from_groups, View(ctx.new_plain(out), contiguous(order)), order, x.dtype)
    if b is not None:
        column = _alike(ctx, b, (made, 1, 1))
        lower_expression(ctx, Expr(2, (Instr("add", (0, 1)),), 2), [out, column], name, x.dtype)


def _steps(w: Window, axis: str) -> dict[str, DimLike]:
    return {f"K{axis}": w.kernel, f"S{axis}": w.stride, f"D{axis}": w.dilation}


def _alike(ctx: Lowering, v: Value, shape: tuple[DimLike, ...]) -> Value:
    """The elements of a tensor under other dims."""
    out = ctx.define(f"{v.name}\0{len(shape)}d", v.dtype, shape)
    out.view = View(ctx.plain(v), contiguous(shape))
    return out


def _transposed(
    ctx: Lowering, w: Value, groups: int, sizes: tuple[int, int, int, int], name: str
) -> Value:
    """Weights [groups * made, channels, KH, KW] as rows of [KH, KW, channels]."""
    made, kh, kw, channels = sizes
    rows, k = groups * made, kh * kw * channels
    out = ctx.define(name, w.dtype, (groups, made, k) if groups > 1 else (rows, k))
    source = View(ctx.plain(w), (channels * kh * kw, 1, kh * kw))
    order = (rows, kh * kw, channels)
    ctx.copy(source, View(ctx.new_plain(out), contiguous(order)), order, w.dtype)
    out.prepared = w.is_constant
    return out


def determinant(ctx: Lowering, op: Op) -> None:
    """Det of matrices."""
    x = ctx.value(op.input(0))
    ctx.available("determinant", op.kind)
    ctx.require(x, op.kind)
    if x.rank < 2:
        raise Unsupported(f"Det has an operand of rank {x.rank}")
    ctx.same(x.shape[-2], x.shape[-1], f"the rows and columns of Det '{op.label}'")
    out = ctx.define(op.outputs[0], x.dtype, result(ctx, op))
    ints = {"count": out.elements, "n": x.shape[-1]}
    ctx.run("determinant", {"x": x}, out, ints, dtype=x.dtype)


OPS = {"RoiAlign": roi_align, "DeformConv": deform_conv, "Det": determinant}
