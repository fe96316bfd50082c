"""8-bit images are stored channels-last. Any op may read them with these strides; integer GEMMs and
convolutions read them as images. Where there are many channels, each pixel is aligned for vectors
(`Target.byte_pitch`); there are no other gaps. Pointwise expressions keep the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Value, View
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.plan.builder import Ref

BYTES = (DType.U8, DType.I8)


def image_of(ctx: Lowering, v: Value) -> Nhwc:
    """Images of 8 bits as channels-last ones; copied once where they are not."""
    v.nhwc = lying(ctx, v)
    if v.nhwc is None:
        v.nhwc = _made(ctx, v)
        ctx.copy(ctx.strided(v), _view_of(v, v.nhwc), v.shape, v.dtype, whole=False)
    return v.nhwc


def lying(ctx: Lowering, v: Value) -> Nhwc | None:
    """The image where its channels follow each other already."""
    if v.nhwc is not None:
        return v.nhwc
    view = ctx.strided(v)
    ns, c, *rows, cs = view.strides
    if c != 1 and v.shape[1] != 1:
        return None
    return Nhwc(view.ref, cs, rows[0] if rows else D.mul(cs, v.shape[-1]), ns)


def _image(v: Value, ref: Ref, cs: DimLike) -> Nhwc:
    _, _, h, w = v.image()
    rs = D.mul(w, cs)
    return Nhwc(ref, cs, rs, D.mul(h, rs))


def _made(ctx: Lowering, v: Value) -> Nhwc:
    """Storage of its own."""
    (n, c, h, w), unit = v.image(), ctx.target.byte_pitch
    cs = D.round_up(c, unit) if isinstance(c, int) and c > unit else c
    return _image(v, ctx.plan.arena(D.product([n, h, w, cs, v.dtype.size])), cs)


def _view_of(v: Value, image: Nhwc) -> View:
    rows = (image.rs,) if v.rank == 4 else ()
    return View(image.ref, (image.ns, 1, *rows, image.cs))


def lay(ctx: Lowering, v: Value, ref: Ref) -> Nhwc:
    """Let `v` be channels-last at `ref`, without gaps; kernels of floats read whole vectors of
    channels.
    """
    image = _image(v, ref, v.image()[1])
    v.view = _view_of(v, image)
    if v.dtype in BYTES or factor(v.shape[1]) % ctx.target.vector == 0:
        v.nhwc = image
    return image


def new_image(ctx: Lowering, v: Value) -> Nhwc:
    """Storage for images of integers."""
    if v.dtype not in BYTES:
        return lay(ctx, v, ctx.plan.arena(D.mul(v.elements, v.dtype.size)))
    v.nhwc = _made(ctx, v)
    v.view = _view_of(v, v.nhwc)
    return v.nhwc


def keeps(inputs: Sequence[Value], dtype: DType) -> bool:
    """Whether an expression of these is of images in this order: of 8 bits, or to be."""
    return any(
        v.nhwc is not None and (v.dtype in BYTES if v.view is not None else dtype in BYTES)
        for v in inputs
    )


def last(dims: Sequence[DimLike]) -> Dims:
    """Dims, or strides, with the second one behind the others."""
    return (dims[0], *dims[2:], dims[1])


def channels_last(ctx: Lowering, v: Value, rank: int) -> Value:
    """An operand of an expression over images, its channels last."""
    view, before = _view_of(v, v.nhwc) if v.nhwc is not None else ctx.strided(v), rank - v.rank
    out = Value(f"{v.name}\0last", v.dtype, last((*[1] * before, *v.shape)))
    out.view = View(view.ref, last((*[0] * before, *view.strides)))
    return out
