"""Convolutions: layout, padding border, weight packing, kernel choice and fused epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracea_onnx.compiler.lower.context import Border, Lowering
from tracea_onnx.compiler.lower.epilogue import plan_epilogue
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import bf16_gemm, conv3d_by_2d, conv_pool, integer_gemm
from tracea_onnx.compiler.lower.passes.focus_stem import spread_weight
from tracea_onnx.compiler.lower.passes.fold_affine import Scaled, scaled
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Unsupported, Value, View
from tracea_onnx.compiler.lower.window import over_axes, sides
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match.spec_table import ConvSpec, ConvTransposeSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.shapes.windows import Window, windows

#: Up to how many times its pixels an image may have with the zeros that a dilated convolution reads
#: around it; sizes of images and lines not known before a run.
_MOST_PADDED, _USUAL_SIDE, _USUAL_LINE = 2.5, 32, 1024


def needed_border(op: Op, graph: Graph) -> tuple[str, Border] | None:
    """The input a convolution reads with a zero border, and that border, as far as attributes tell
    (a hint, not a promise).
    """
    roles = op.by_role
    known = shapes(graph)
    x, w = known.dims(roles["x"]) or (), known.dims(roles.get("w", "")) or ()
    if len(w) not in (3, 4):
        return None
    try:
        axes = windows(op, x[2:] or [D.symbol("?")] * (len(w) - 2), w[2:])
        (t, b), (left, r) = ((0, 0), *(a.padding() for a in axes))[-2:]
    except Unsupported:
        return None
    if len(axes) == 2 and all((a.kernel, a.stride, a.dilation) == (3, 1, 1) for a in axes):
        more = op.attr("group", 1) == 1  # Winograd tiles may read one row and column further
        b, r = b + more, r + more
    return roles["x"], (t, left, b, r)


def _padded(h: DimLike, w: DimLike, border: Border) -> float:
    """How many times its pixels an image has with the border around it; unknown sizes are taken to
    be usual ones.
    """
    high, wide = (
        d if isinstance(d, int) and d > 0 else _USUAL_LINE if h == 1 else _USUAL_SIDE
        for d in (h, w)
    )
    return (high + border[0] + border[2]) * (wide + border[1] + border[3]) / (high * wide)


def _groups(spec: ConvSpec) -> int:
    """How many groups a convolution has."""
    if spec.group < 1:
        raise Unsupported(f"the convolution has {spec.group} groups; at least 1 is required")
    return spec.group


def _as_many_channels(ctx: Lowering, x: Value, channels: int) -> None:
    """Where only a run says how many channels an image has, there must be as many as the weight
    reads.
    """
    what = "channels of an image and those that a convolution's weight takes"
    if not isinstance(x.shape[1], int) and ctx.plan.require(x.shape[1], channels, what):
        x.shape = (x.shape[0], channels, *x.shape[2:])


def conv(ctx: Lowering, op: Op) -> None:
    """y = epilogue(conv(x, w) * scale + shift + bias), channels-last inside."""
    roles = op.by_role
    x, w = ctx.value(roles["x"]), ctx.value(roles["w"])
    if integer_gemm.conv(ctx, op):
        return
    alone = roles.keys() <= {"x", "w", "b"} and op.attr("expr") is None
    if x.rank == w.rank == 5 and alone and w.is_constant and w.dtype == x.dtype:
        conv3d_by_2d.conv(ctx, op, x, w, conv)
        return
    _check(ctx, x, w)
    blocks = ctx.blocks.get(x.name)
    if blocks is not None:
        x, w = blocks.image, spread_weight(ctx, w, blocks)
    oc, icg = int(w.shape[0]), int(w.shape[1])
    spec = ConvSpec.of(op.attrs)
    g = _groups(spec)
    _as_many_channels(ctx, x, icg * g)
    n, ic, h, wd = x.image()
    if not isinstance(ic, int) or ic != icg * g or oc % g:
        raise Unsupported(
            f"the input has {ic} channels, and the weight takes {icg} in each of {g} groups"
        )
    if blocks is not None:
        doubled = {"strides": [2, 2], "pads": [2 * p for p in spec.pads]}
        op = replace(op, attrs={**op.attrs, **doubled})
    axes = over_axes(op, x, w.shape[2:])
    (kh, kw), (oh, ow), dilation = _taps(axes), [a.out for a in axes], max(a.dilation for a in axes)
    out_shape: Dims = (n, oc, *(a.out for a in axes[4 - x.rank :]))
    apart = g == ic > 1
    depthwise = apart and (oc == ic or "deconv2d_dw" in ctx.target.families)
    several = apart and not depthwise and oc <= _FILTERS * ic
    winograd = (
        "conv2d_wino" in ctx.target.families
        and all((a.kernel, a.stride, a.dilation) == (3, 1, 1) for a in axes)
        and g == 1
        and ic >= 16
        and oc >= 16
        and w.is_constant  # which pays for the transform
        and _winograd_pays(n, oh, ow)
    )
    halfs = not depthwise and bf16_gemm.fits(
        ctx, x.name, w, icg * kh * kw, oc // g, instead_of=bf16_gemm.WINOGRAD if winograd else 1.0
    )
    wino = winograd and not halfs
    if not halfs:
        x = bf16_gemm.widened(ctx, x)
    (top, bottom), (left, right) = (a.padding() for a in axes)
    border = (top, left, bottom + wino, right + wino) if ctx.target.border else (0, 0, 0, 0)
    if dilation > 1 and _padded(h, wd, border) > _MOST_PADDED:
        raise Unsupported(
            f"dilation {dilation} on this image would mostly multiply padding;"
            " ONNX Runtime's kernel skips it"
        )
    planes: DimLike = 0
    planar = (
        ic <= ctx.target.planar
        and g == 1
        and x.nhwc is None
        and _in_planes(x, axes, D.product([n, oh, ow, oc, ic]))
    )
    patches = (
        blocks is None
        and ctx.target.launch_bound
        and x.view is not None
        and g == 1
        and _patches(x, axes)
    )
    if patches and not (planar and x.dtype.size == 4 and ic * kh * kw <= _SHORT):
        src = _matrix(ctx, x, oh, ow, kh, kw)  # every input is read once: a GEMM of rows
        axes = (Window(oh, out=oh), Window(ow, out=ow))
        ic, kh, kw = ic * kh * kw, 1, 1
    elif planar:
        view = ctx.strided(x)
        s_n, planes, s_h, s_w = (
            view.strides if x.rank == 4 else (*view.strides[:2], 0, view.strides[2])
        )
        src = Nhwc(view.ref, s_w, s_h, s_n)
    elif several:
        src = _repeated(ctx, x, oc // ic, border)
        depthwise, ic, g = True, oc, oc
    else:
        src = ctx.nhwc(x, border, stem=ic <= 4 and g == 1)
    after = scaled(ctx, op, spec, roles, oc, out_shape)
    family = (
        "conv2d_dw"
        if depthwise
        else "conv2d_wino"
        if wino
        else "conv2d_bf16"
        if halfs
        else "conv2d"
    )
    pitch = int(src.cs) if isinstance(src.cs, int) else 0
    sizes = {"OC": oc, "IC": ic, "KH": kh, "KW": kw, "G": g, "x_cs": pitch}
    dtype = w.dtype
    wide = None if halfs else ctx.plain(w)

    def packed(family: str) -> Ref:
        packing = f"pack_{family}"
        ints = {n: sizes[n] for n in FAMILIES[packing].ints if n in sizes}
        if halfs:
            return bf16_gemm.packed(ctx, packing, w, ints, scale=after.scale)
        return ctx.packed(packing, {"w": wide, "scale": after.scale}, ints, dtype=dtype)

    made = packed(family) if not wino else None
    ints = {"N": n, "IC": ic, "OC": oc, "G": g, **sides(axes), **src.pitches("x")}
    if planes != 0:
        ints["x_c"] = planes
    bias = _bias(ctx, roles, after, oc)
    _launch(
        ctx, op, after, dtype, family, src, packed if made is None else made, bias, ints, out_shape
    )


#: Filters of a channel up to which a kernel for one of each takes the channel so many times: for
#: more, one that computes 16 channels of a group wastes less (Zen 4, AVX-512).
_FILTERS = 8
#: Multiply-adds for which tensor cores are worth a launch that brings the channels of a pixel
#: together.
_LITTLE = 1 << 25
#: Terms of windows side by side for which FFMA is done before a launch has made rows of them.
_SHORT = 64


#: Tiles that take Winograd's kernel as long as fewer do: it reads filters for so long.
_FEWEST_TILES = 8


def _winograd_pays(n: DimLike, oh: DimLike, ow: DimLike) -> bool:
    """Whether Winograd multiplies less: 16 times for a tile of 2x2 results, not 9 for each."""
    if not (isinstance(oh, int) and isinstance(ow, int)):
        return True
    images = n if isinstance(n, int) else 1
    tiles = images * -(-oh // 2) * -(-ow // 2)
    return 16 * max(tiles, _FEWEST_TILES) < 9 * images * oh * ow


def _taps(axes: Sequence[Window]) -> list[int]:
    return [a.kernel for a in axes]


def _in_planes(x: Value, axes: Sequence[Window], each: DimLike) -> bool:
    """Whether a convolution reads an image of `Target.planar` channels in any order of axes: small
    windows on tensor cores in 16-bit types, by FFMA those in f32, lines and what is little work.
    each: multiply-adds of one tap.
    """
    stride, line = max(a.stride for a in axes), axes[0].kernel == 1
    if (
        x.dtype.size == 2
        and x.rank == 4
        and stride <= 4
        and all(a.kernel <= 8 and a.dilation == 1 for a in axes)
    ):
        return True
    taps, channels = math.prod(_taps(axes)), x.shape[1]
    wide = max((a.kernel - 1) * a.dilation for a in axes)
    little = x.dtype.size == 4 or line or (isinstance(each, int) and each * taps <= _LITTLE)
    return (
        little
        and isinstance(channels, int)
        and taps * channels <= 400
        and wide <= (31 if line else 15)
        and stride <= (8 if line else 4)
    )


def _patches(x: Value, axes: Sequence[Window]) -> bool:
    """Whether the windows of a convolution tile the image."""
    tiles = all(a.kernel == a.stride and a.dilation == 1 and not any(a.pads) for a in axes)
    return x.rank == 4 and tiles and math.prod(_taps(axes)) > 1


def _matrix(ctx: Lowering, x: Value, oh: DimLike, ow: DimLike, kh: int, kw: int) -> Nhwc:
    """The windows of size kh x kw of an image as pixels of c * kh * kw channels, in the order of a
    convolution's weights.
    """
    n, c = x.shape[0], x.channels
    view = ctx.strided(x)
    s_n, s_c, s_h, s_w = view.strides
    to = ctx.images(x.dtype, n, c * kh * kw, oh, ow)
    source = View(view.ref, (s_n, D.mul(s_h, kh), D.mul(s_w, kw), s_c, s_h, s_w))
    ctx.copy(
        source,
        View(to.ref, (to.ns, to.rs, to.cs, kh * kw, kw, 1)),
        (n, oh, ow, c, kh, kw),
        x.dtype,
        whole=False,
    )
    return to


def _repeated(ctx: Lowering, x: Value, times: int, border: Border) -> Nhwc:
    """The image with every channel so many times, one after another."""
    src, (n, _, h, w), c = ctx.nhwc(x), x.image(), x.channels
    to = ctx.images(x.dtype, n, c * times, h, w, border)
    ctx.copy(
        View(src.ref, (src.ns, src.rs, src.cs, 1, 0)),
        View(to.ref, (to.ns, to.rs, to.cs, times, 1)),
        (n, h, w, c, times),
        x.dtype,
        whole=False,
    )
    return to


def conv_transpose(ctx: Lowering, op: Op) -> None:
    """ConvTranspose with its epilogue; pads crop the full output."""
    roles = op.by_role
    x, w = ctx.value(roles["x"]), ctx.value(roles["w"])
    if x.quantised is not None and w.quantised is not None:
        raise Unsupported("no kernel computes ConvTranspose of quantised operands in integers")
    _check(ctx, x, w)
    spec = ConvTransposeSpec.of(op.attrs)
    g = _groups(spec)
    oc = int(w.shape[1]) * g
    _as_many_channels(ctx, x, int(w.shape[0]))
    n, ic, *_ = x.image()
    if not isinstance(ic, int) or ic != w.shape[0] or ic % g:
        raise Unsupported(
            f"the input has {ic} channels, and the weight takes {w.shape[0]} in {g} groups"
        )
    axes = over_axes(op, x, w.shape[2:], transposed=True)
    if (
        spec.auto_pad.startswith("SAME")
        and not spec.output_shape
        and any(a.stride > a.dilation * (a.kernel - 1) + 1 for a in axes)
    ):
        raise Unsupported("ConvTranspose leaves gaps; ONNX Runtime's sizes are not ONNX's then")
    src = ctx.nhwc(x)
    shape = (n, oc, *(a.out for a in axes[4 - x.rank :]))
    after = scaled(ctx, op, spec, roles, oc, shape)
    (kh, kw), dilations = _taps(axes), {a.dilation for a in axes}
    depthwise = "deconv2d_dw" in ctx.target.families and g == ic > 1 and dilations == {1}
    packing, params = "pack_deconv2d", {"OC": oc, "KH": kh, "KW": kw}
    if depthwise:
        packing = "pack_conv2d_dw"
    else:
        params |= {"IC": ic, "G": g}
    packed = ctx.packed(packing, {"w": ctx.plain(w), "scale": after.scale}, params, dtype=x.dtype)
    family = "deconv2d_dw" if depthwise else "deconv2d"
    ints = {"N": n, "IC": ic, "OC": oc, "G": g, **sides(axes), **src.pitches("x")}
    bias = _bias(ctx, roles, after, oc)
    _launch(ctx, op, after, x.dtype, family, src, packed, bias, ints, shape)


def _check(ctx: Lowering, x: Value, w: Value) -> None:
    if not D.is_static(w.shape):
        raise Unsupported(
            f"the weight of the convolution has shape [{', '.join(map(str, w.shape))}]; the kernels"
            " need to know it"
        )
    halved = x.name in ctx.halved
    ctx.require(w if halved else x, "a convolution")
    if w.dtype != x.dtype and not halved:
        raise Unsupported(
            f"the convolution has an input of type {x.dtype.name}, and a weight of {w.dtype.name}"
        )
    if w.rank not in (3, 4) or x.rank != w.rank:
        raise Unsupported(
            f"the convolution has a weight of rank {w.rank} and an input of rank {x.rank}"
        )


def _bias(ctx: Lowering, roles: Mapping[str, str], after: Scaled, channels: int) -> Ref:
    b = ctx.optional(roles.get("b"))
    if b is not None and b.elements != channels:
        raise Unsupported(
            f"the convolution has {channels} output channels, and a bias of shape {list(b.shape)}"
        )
    return ctx.packed(
        "pack_bias",
        {"b": ctx.plain(b) if b is not None else None, "scale": after.scale, "shift": after.shift},
        {"OC": channels},
        dtype=b.dtype if b is not None else DType.F32,
    )


def _launch(
    ctx: Lowering,
    op: Op,
    after: Scaled,
    dtype: DType,
    family: str,
    src: Nhwc,
    packed: Ref | Callable[[str], Ref],
    bias: Ref,
    ints: dict[str, DimLike],
    shape: Dims,
) -> None:
    """packed: the weights, or what packs them for a family, where another one may stand in for
    this.
    """
    expr, extras, halfs = after.expr, list(after.extras), family == "conv2d_bf16"
    if halfs:
        epi, extras = bf16_gemm.epilogue(ctx, expr, extras, shape, 1)
    else:
        epi = plan_epilogue(ctx, expr, extras, dtype, shape, 1)
    name = op.outputs[0]
    made = DType.BF16 if halfs and epi is not None and name in ctx.halved else dtype
    out = ctx.define(name if epi is not None else name + "\0before", made, shape)
    operands: dict[str, Ref | None] = {"x": src.ref, "bias": bias}
    if isinstance(packed, Ref):
        operands["w"] = packed
    if epi is not None:
        full = [epi.residual] if epi.residual is not None else [v for _, v in epi.full]
        stored = [ctx.nhwc(v) for v in full]
        if any(not _same_pitches(s, stored[0]) for s in stored[1:]):
            epi = None  # a program reads its full operands with one set of pitches
            del ctx.values[name]
            extras = [bf16_gemm.widened(ctx, v) for v in extras]
            out = ctx.define(name + "\0before", dtype, shape)
        else:
            operands |= epi.operands
            if epi.residual is not None:
                operands["res"] = stored[0].ref
            for (k, _), s in zip(epi.full, stored, strict=False):
                operands[f"o{k}"] = s.ref
            if stored:
                ints |= stored[0].pitches("r")
            ints |= epi.ints
    if (
        family == "conv2d"
        and epi is not None
        and conv_pool.launch(ctx, out, dtype, operands, ints, epi)
    ):
        return
    dst = ctx.new_nhwc(out)
    ints |= dst.pitches("y")
    if halfs:
        ints |= bf16_gemm.types(ctx.value(op.role("x")), epi, out)
    floats, program = (epi.floats, epi.program) if epi else (None, None)
    asked = family
    if not isinstance(packed, Ref):
        given = {**operands, "w": Ref(-1), "y": dst.ref}
        family = ctx.plan.substitute(family, given, ints, floats, program, dtype)
        operands["w"] = packed(family)
    ctx.plan.launch(
        family,
        operands,
        {"y": dst.ref},
        ints,
        floats,
        program,
        whole=False,
        dtype=dtype,
        instead_of=asked if family != asked else "",
    )
    if epi is None:
        assert expr is not None
        lower_expression(ctx, expr, [out, *extras], name, dtype)


def _same_pitches(a: Nhwc, b: Nhwc) -> bool:
    return a.cs == b.cs and (a.rs is b.rs or a.rs == b.rs) and (a.ns is b.ns or a.ns == b.ns)


OPS = {":conv": conv, ":conv_transpose": conv_transpose}
