"""Convolution and pooling over three spatial dims by kernels for two. For a convolution, the depth
slices of a window are channels of one image. Pooling reduces height and width first, then depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.padding import surround
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Unsupported, Value, View
from tracea_onnx.compiler.lower.window import launch_pool, over_axes
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.match.spec_table import ConvSpec
from tracea_onnx.shapes.windows import Window


def slices(ctx: Lowering, x: Value, depth: Window) -> tuple[Nhwc, DimLike, int]:
    """The image of each step along the depth, whose channels are those of `x` for every tap there:
    its storage, how many there are, their channels.
    """
    if not ctx.target.launch_bound:
        raise Unsupported(f"no {ctx.plan.backend} kernel runs over 3 spatial dims")
    c = x.channels
    before, after = depth.padding()
    if before or after:
        x = surround(ctx, f"{x.name}\0deep", x, (0, 0, before, 0, 0, 0, 0, after, 0, 0))
    n, _, _, h, w = x.shape
    s_n, s_c, s_d, s_h, s_w = ctx.strided(x).strides
    count, taps = D.mul(n, depth.out), depth.kernel
    lies = (
        taps == depth.stride == 1
        and s_c == 1
        and (n == 1 or s_n == D.mul(x.shape[2], s_d))
        and all(factor(s) % ctx.target.vector == 0 for s in (s_w, s_h, s_d))
    )
    if lies:
        return Nhwc(ctx.strided(x).ref, s_w, s_h, s_d), count, c
    wide = c * taps
    to = ctx.images(x.dtype, count, wide, h, w)
    shape: Dims = (n, depth.out, h, w, c, taps)
    source = View(
        ctx.strided(x).ref,
        (s_n, D.mul(s_d, depth.stride), s_h, s_w, s_c, D.mul(s_d, depth.dilation)),
    )
    ctx.copy(
        source,
        View(to.ref, (D.mul(depth.out, to.ns), to.ns, to.rs, to.cs, taps, 1)),
        shape,
        x.dtype,
        whole=False,
    )
    return to, count, wide


def conv(ctx: Lowering, op: Op, x: Value, w: Value, lower: Callable[[Lowering, Op], None]) -> None:
    """lower: what lowers a convolution over height and width."""
    ctx.require(x, "a convolution")
    oc, icg, *kernel = (int(d) for d in w.shape if isinstance(d, int))
    depth, *plane = over_axes(op, x, kernel)
    src, count, wide = slices(ctx, x, depth)
    name, image, filters = (f"{op.outputs[0]}\0{part}" for part in ("flat", "slices", "filters"))
    v = ctx.define(image, x.dtype, (count, wide, *x.shape[3:]))
    v.nhwc = src
    f = ctx.define(filters, w.dtype, (oc, icg * kernel[0], *kernel[1:]))
    f.initializer, f.data = (
        w.initializer,
        None if w.data is None else w.data.reshape(oc, -1, *kernel[1:]),
    )
    spec = ConvSpec(
        group=ConvSpec.of(op.attrs).group,
        pads=[e.padding()[side] for side in (0, 1) for e in plane],
        strides=[e.stride for e in plane],
        dilations=[e.dilation for e in plane],
    )
    roles = {**op.by_role, "x": image, "w": filters}
    lower(ctx, of_roles(spec, roles, (name,), op.nodes, op.label))
    made = ctx.nhwc(ctx.value(name))
    give(ctx, op, made, x, (x.shape[0], oc, depth.out, plane[0].out, plane[1].out))


def give(ctx: Lowering, op: Op, image: Nhwc, x: Value, shape: Dims) -> None:
    """The result: `image` has its slices."""
    out = ctx.define(op.outputs[0], x.dtype, shape)
    out.view = View(image.ref, (D.mul(shape[2], image.ns), 1, image.ns, image.rs, image.cs))


def pool(ctx: Lowering, op: Op, x: Value, mode: int, axes: Sequence[Window]) -> None:
    """mode: as `pool2d` has it."""
    depth, *plane = axes
    n, d, c = x.shape[0], x.shape[2], x.channels
    src, count, _ = slices(ctx, x, Window(d, out=d))
    oh, ow = plane[0].out, plane[1].out
    flat = ctx.images(x.dtype, count, c, oh, ow)
    launch_pool(ctx, x, mode, src, flat, (count, c), plane)
    # Rows of these images are pixels of one row, whose image's height is the depth.
    lines = Nhwc(flat.ref, flat.cs, flat.ns, D.mul(d, flat.ns))
    width = D.mul(oh, ow)
    deep = ctx.images(x.dtype, n, c, depth.out, width)
    launch_pool(ctx, x, mode, lines, deep, (n, c), (depth, Window(width, out=width)))
    rows = Nhwc(deep.ref, deep.cs, D.mul(ow, deep.cs), deep.rs)
    give(ctx, op, rows, x, (n, c, depth.out, oh, ow))
