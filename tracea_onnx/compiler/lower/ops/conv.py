"""Convolutions: layout, padding border, weight packing, kernel choice and fused epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracea_onnx.compiler.lower.context import Border, Lowering
from tracea_onnx.compiler.lower.epilogue import plan_epilogue
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import conv3d_by_2d, conv_pool
from tracea_onnx.compiler.lower.passes.focus_stem import spread_weight
from tracea_onnx.compiler.lower.passes.fold_affine import Scaled, scaled
from tracea_onnx.compiler.lower.value import Dims, Nhwc, Unsupported, Value, View
from tracea_onnx.compiler.lower.window import pair, resolve_pads
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match.spec_table import ConvSpec, ConvTransposeSpec
from tracea_onnx.plan.builder import Ref

#: Up to how many times its pixels an image may have with the zeros that a dilated convolution reads
#: around it; sizes of images and lines not known before a run.
_MOST_PADDED, _USUAL_SIDE, _USUAL_LINE = 2.5, 32, 1024


def needed_border(op: Op, graph: Graph) -> tuple[str, Border] | None:
    """The input a convolution reads with a zero border, and that border, as far as attributes tell
    (a hint, not a promise).
    """
    roles = op.operands("x", "w", "b")
    shape = graph.shape(roles.get("w", ""))
    if shape is None or len(shape) not in (3, 4) or any(not isinstance(d, int) for d in shape):
        return None
    kernel = [int(d) for d in shape[2:] if isinstance(d, int)]
    x = graph.shape(roles["x"])
    dims: list[DimLike] = [d if isinstance(d, int) else D.symbol("?") for d in (x or ())[2:]] or [
        D.symbol("?")
    ] * len(kernel)
    spec = ConvSpec.of(op.attrs)
    strides = spec.strides or [1] * len(kernel)
    dilations = spec.dilations or [1] * len(kernel)
    try:
        t, left, b, r = resolve_pads(spec, dims, kernel, strides, dilations)
    except Unsupported:
        return None
    if kernel == [3, 3] and strides == [1, 1] and dilations == [1, 1] and spec.group == 1:
        b, r = b + 1, r + 1  # Winograd tiles may read one row and column further
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
    if not isinstance(x.shape[1], int) and ctx.plan.require(x.shape[1], channels):
        x.shape = (x.shape[0], channels, *x.shape[2:])


def conv(ctx: Lowering, op: Op) -> None:
    """y = epilogue(conv(x, w) * scale + shift + bias), channels-last inside."""
    roles = op.operands("x", "w", "b")
    x, w = ctx.value(roles["x"]), ctx.value(roles["w"])
    if x.rank == w.rank == 5 and not op.fused and w.is_constant and w.dtype == x.dtype:
        conv3d_by_2d.conv(ctx, op, x, w, conv)
        return
    _check(ctx, x, w)
    blocks = ctx.blocks.get(x.name)
    if blocks is not None:
        x, w = blocks.image, spread_weight(ctx, w, blocks)
    spatial = w.rank - 2
    oc, icg = int(w.shape[0]), int(w.shape[1])
    kernel, spec = [int(k) for k in w.shape[2:]], ConvSpec.of(op.attrs)
    g = _groups(spec)
    _as_many_channels(ctx, x, icg * g)
    n, ic, h, wd = x.image()
    if not isinstance(ic, int) or ic != icg * g or oc % g:
        raise Unsupported(
            f"the input has {ic} channels, and the weight takes {icg} in each of {g} groups"
        )
    sh, sw = pair(spec.strides, 1, spatial)
    dh, dw = pair(spec.dilations, 1, spatial)
    if blocks is not None:
        sh = sw = 2
    strides, dilations = ([sh, sw], [dh, dw]) if spatial == 2 else ([sw], [dw])
    pads = resolve_pads(spec, (h, wd) if spatial == 2 else (wd,), kernel, strides, dilations)
    if blocks is not None:
        pads = (2 * pads[0], 2 * pads[1], 2 * pads[2], 2 * pads[3])
    kh, kw = (kernel[0], kernel[1]) if spatial == 2 else (1, kernel[0])
    oh = D.floordiv(h + (pads[0] + pads[2] - dh * (kh - 1) - 1), sh) + 1
    ow = D.floordiv(wd + (pads[1] + pads[3] - dw * (kw - 1) - 1), sw) + 1
    if any(isinstance(d, int) and d <= 0 for d in (oh, ow)):
        raise Unsupported("the convolution has an empty output")
    # a line under a 2-d weight is an image of height 1, and so is its result
    out_shape: Dims = (n, oc, oh, ow) if x.rank == 4 else (n, oc, ow)
    depthwise = g == ic > 1 and (oc == ic or "deconv2d_dw" in ctx.target.families)
    wino = (
        "conv2d_wino" in ctx.target.families
        and kh == kw == 3
        and (sh, sw, dh, dw, g) == (1, 1, 1, 1, 1)
        and ic >= 16
        and oc >= 16
        and spatial == 2
    )
    border = (
        (pads[0], pads[1], pads[2] + wino, pads[3] + wino) if ctx.target.border else (0, 0, 0, 0)
    )
    if max(dh, dw) > 1 and _padded(h, wd, border) > _MOST_PADDED:
        raise Unsupported(
            f"dilation {max(dh, dw)} on this image would mostly multiply padding;"
            " ONNX Runtime's kernel skips it"
        )
    planes: DimLike = 0
    planar = (
        ic <= ctx.target.planar
        and g == 1
        and x.nhwc is None
        and _in_planes(x, (kh, kw), (sh, sw), (dh, dw), D.product([n, oh, ow, oc, ic]))
    )
    patches = (
        blocks is None
        and ctx.target.few_launches
        and x.view is not None
        and _patches(x, kernel, (sh, sw), (dh, dw), pads, g)
    )
    if patches and not (planar and x.dtype.size == 4 and ic * kh * kw <= _SHORT):
        src = _matrix(ctx, x, oh, ow, kh, kw)  # every input is read once: a product of rows
        ic, h, wd, kh, kw, sh, sw = ic * kh * kw, oh, ow, 1, 1, 1, 1
    elif planar:
        view = ctx.strided(x)
        s_n, planes, s_h, s_w = (
            view.strides if x.rank == 4 else (*view.strides[:2], 0, view.strides[2])
        )
        src = Nhwc(view.ref, s_w, s_h, s_n, (0, 0, 0, 0))
    else:
        src = ctx.nhwc(x, border, stem=ic <= 4 and g == 1)
    after = scaled(ctx, op, spec, roles, oc, out_shape)
    if depthwise:
        family, packing, params = "conv2d_dw", "pack_conv2d_dw", {"OC": oc, "KH": kh, "KW": kw}
    elif wino:
        family, packing, params = "conv2d_wino", "pack_conv2d_wino", {"OC": oc, "IC": ic}
    else:
        pitch = int(src.cs) if isinstance(src.cs, int) else 0
        family, packing, params = (
            "conv2d",
            "pack_conv2d",
            {"OC": oc, "IC": ic, "KH": kh, "KW": kw, "G": g, "x_cs": pitch},
        )
    packed = ctx.packed(packing, {"w": ctx.plain(w), "scale": after.scale}, params, dtype=x.dtype)
    ints: dict[str, DimLike] = {
        "N": n, "IC": ic, "IH": h, "IW": wd, "OC": oc, "OH": oh, "OW": ow, "KH": kh, "KW": kw,
        "SH": sh, "SW": sw, "DH": dh, "DW": dw,
        "PT": pads[0], "PL": pads[1], "G": g, "x_cs": src.cs, "x_rs": src.rs, "x_ns": src.ns,
        **({"x_c": planes} if planes != 0 else {}),
    }  # fmt: skip
    _launch(
        ctx, op, after, x.dtype, family, src, packed, _bias(ctx, roles, after, oc), ints, out_shape
    )


#: Multiply-adds for which tensor cores are worth a launch that brings the channels of a pixel
#: together.
_LITTLE = 1 << 25
#: Terms of windows side by side for which FFMA is done before a launch has made rows of them.
_SHORT = 64


def _in_planes(
    x: Value,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    each: DimLike,
) -> bool:
    """Whether a convolution reads an image of `Target.planar` channels in any order of axes: small
    windows on tensor cores in 16-bit types, by FFMA those in f32, lines and what is little work.
    each: multiply-adds of one tap."""
    if (
        x.dtype.size == 2
        and x.rank == 4
        and max(kernel) <= 8
        and max(strides) <= 4
        and dilations == (1, 1)
    ):
        return True
    taps, channels = math.prod(kernel), x.shape[1]
    wide = max((k - 1) * d for k, d in zip(kernel, dilations, strict=True))
    little = (
        x.dtype.size == 4 or kernel[0] == 1 or (isinstance(each, int) and each * taps <= _LITTLE)
    )
    return (
        little
        and isinstance(channels, int)
        and taps * channels <= 400
        and wide <= (31 if kernel[0] == 1 else 15)
        and max(strides) <= (8 if kernel[0] == 1 else 4)
    )


def _patches(
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Border,
    groups: int,
) -> bool:
    """Whether the windows of a convolution tile the image."""
    return (
        x.rank == 4
        and list(kernel) == list(strides)
        and math.prod(kernel) > 1
        and set(dilations) == {1}
        and not any(pads)
        and groups == 1
    )


def _matrix(ctx: Lowering, x: Value, oh: DimLike, ow: DimLike, kh: int, kw: int) -> Nhwc:
    """The windows of size kh x kw of an image as pixels of c * kh * kw channels, in the order of a
    convolution's weights.
    """
    n, c, _, _ = x.image()
    view = ctx.strided(x)
    s_n, s_c, s_h, s_w = view.strides
    if not isinstance(c, int):
        raise Unsupported(
            f"the number of channels of '{x.name}' is symbolic; the kernels need a constant"
        )
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


def conv_transpose(ctx: Lowering, op: Op) -> None:
    """ConvTranspose with its epilogue; pads crop the full output."""
    roles = op.operands("x", "w", "b")
    x, w = ctx.value(roles["x"]), ctx.value(roles["w"])
    _check(ctx, x, w)
    spatial, spec = w.rank - 2, ConvTransposeSpec.of(op.attrs)
    g = _groups(spec)
    oc, kernel = int(w.shape[1]) * g, [int(k) for k in w.shape[2:]]
    _as_many_channels(ctx, x, int(w.shape[0]))
    n, ic, h, wd = x.image()
    if not isinstance(ic, int) or ic != w.shape[0] or ic % g:
        raise Unsupported(
            f"the input has {ic} channels, and the weight takes {w.shape[0]} in {g} groups"
        )
    if spec.output_shape or spec.auto_pad not in ("", "NOTSET", "VALID"):
        raise Unsupported("no kernel computes ConvTranspose with output_shape or auto_pad")
    sh, sw = pair(spec.strides, 1, spatial)
    dh, dw = pair(spec.dilations, 1, spatial)
    extra = spec.output_padding or [0] * spatial
    eh, ew = (extra[0], extra[1]) if spatial == 2 else (0, extra[0])
    pads = resolve_pads(
        spec, (h, wd) if spatial == 2 else (wd,), kernel, [1] * spatial, [1] * spatial
    )
    kh, kw = (kernel[0], kernel[1]) if spatial == 2 else (1, kernel[0])
    oh = D.mul(h - 1, sh) + (eh + dh * (kh - 1) + 1 - pads[0] - pads[2])
    ow = D.mul(wd - 1, sw) + (ew + dw * (kw - 1) + 1 - pads[1] - pads[3])
    src = ctx.nhwc(x)
    shape: Dims = (n, oc, oh, ow) if x.rank == 4 else (n, oc, ow)
    after = scaled(ctx, op, spec, roles, oc, shape)
    depthwise = "deconv2d_dw" in ctx.target.families and g == ic > 1 and dh == dw == 1
    packing, params = "pack_deconv2d", {"OC": oc, "KH": kh, "KW": kw}
    if depthwise:
        packing = "pack_conv2d_dw"
    else:
        params |= {"IC": ic, "G": g}
    packed = ctx.packed(packing, {"w": ctx.plain(w), "scale": after.scale}, params, dtype=x.dtype)
    ints: dict[str, DimLike] = {
        "N": n, "IC": ic, "IH": h, "IW": wd, "OC": oc, "OH": oh, "OW": ow, "KH": kh, "KW": kw,
        "SH": sh, "SW": sw, "DH": dh, "DW": dw,
        "PT": pads[0], "PL": pads[1], "G": g, "x_cs": src.cs, "x_rs": src.rs, "x_ns": src.ns,
    }  # fmt: skip
    _launch(
        ctx,
        op,
        after,
        x.dtype,
        "deconv2d_dw" if depthwise else "deconv2d",
        src,
        packed,
        _bias(ctx, roles, after, oc),
        ints,
        shape,
    )


def _check(ctx: Lowering, x: Value, w: Value) -> None:
    if not w.is_constant:
        raise Unsupported(
            "the weight of the convolution is computed at run time; the kernels need a constant"
        )
    ctx.require(x, "a convolution")
    if w.dtype != x.dtype:
        raise Unsupported(
            f"the convolution has an input of type {x.dtype.name}, and a weight of {w.dtype.name}"
        )
    if w.rank not in (3, 4) or x.rank != w.rank:
        raise Unsupported(
            f"the convolution has a weight of rank {w.rank} and an input of rank {x.rank}"
        )


def _bias(ctx: Lowering, roles: Mapping[str, str], after: Scaled, channels: int) -> Ref:
    b = ctx.optional(roles.get("b"))
    if b is not None and not b.is_constant:
        raise Unsupported(
            "the bias of the convolution is computed at run time; the kernels need a constant"
        )
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
    packed: Ref,
    bias: Ref,
    ints: dict[str, DimLike],
    shape: Dims,
) -> None:
    expr, extras = after.expr, after.extras
    epi = plan_epilogue(ctx, expr, extras, dtype, shape, 1)
    name = op.outputs[0]
    out = ctx.define(name if epi is not None else name + "\0before", dtype, shape)
    operands: dict[str, Ref | None] = {"x": src.ref, "w": packed, "bias": bias}
    if epi is not None:
        full = [epi.residual] if epi.residual is not None else [v for _, v in epi.full]
        stored = [ctx.nhwc(v) for v in full]
        if any(not _same_pitches(s, stored[0]) for s in stored[1:]):
            epi = None  # a program reads its full operands with one set of pitches
            del ctx.values[name]
            out = ctx.define(name + "\0before", dtype, shape)
        else:
            operands |= epi.operands
            if epi.residual is not None:
                operands["res"] = stored[0].ref
            for (k, _), s in zip(epi.full, stored, strict=False):
                operands[f"o{k}"] = s.ref
            if stored:
                ints |= {"r_cs": stored[0].cs, "r_rs": stored[0].rs, "r_ns": stored[0].ns}
            ints |= epi.ints
    if (
        family == "conv2d"
        and epi is not None
        and conv_pool.launch(ctx, out, dtype, operands, ints, epi)
    ):
        return
    dst = ctx.new_nhwc(out)
    ints |= {"y_cs": dst.cs, "y_rs": dst.rs, "y_ns": dst.ns}
    ctx.plan.launch(
        family,
        operands,
        {"y": dst.ref},
        ints,
        epi.floats if epi else None,
        epi.program if epi else None,
        whole=False,
        dtype=dtype,
    )
    if epi is None:
        assert expr is not None
        lower_expression(ctx, expr, [out, *extras], name, dtype)


def _same_pitches(a: Nhwc, b: Nhwc) -> bool:
    return a.cs == b.cs and (a.rs is b.rs or a.rs == b.rs) and (a.ns is b.ns or a.ns == b.ns)


_ORT_ACTIVATIONS = {
    "Relu": ("relu",), "Sigmoid": ("sigmoid",), "Tanh": ("tanh",),
    "LeakyRelu": ("leaky_relu", 0.01),
    "Clip": ("clip", -3.4028234663852886e38, 3.4028234663852886e38),
    "HardSigmoid": ("hard_sigmoid", 0.2, 0.5),
}  # fmt: skip


def ort_fused_conv(ctx: Lowering, op: Op) -> None:
    """com.microsoft.FusedConv(x, w, b?, z?): convolution, optional sum, then the named activation;
    what ORT's own tools leave behind.
    """
    name = op.attr("activation", "")
    if name and name not in _ORT_ACTIVATIONS:
        raise Unsupported(f"no kernel computes FusedConv with activation {name}")
    code: list[Instr] = []
    n_in = 2 if op.input(3) else 1
    value = 0
    if op.input(3):
        code.append(Instr("add", (0, 1)))
        value = n_in
    if name:
        opcode, *defaults = _ORT_ACTIVATIONS[name]
        given = [float(p) for p in op.attr("activation_params") or []]
        args = [value]
        for p in given or defaults:
            code.append(Instr("const", (), float(p)))
            args.append(n_in + len(code) - 1)
        code.append(Instr(str(opcode), tuple(args)))
        value = n_in + len(code) - 1
    roles = {r: n for r, n in zip(("x", "w", "b", "e0"), op.inputs, strict=False) if n}
    spec = ConvSpec.of(op.attrs)
    if code:
        spec = replace(spec, expr=Expr(n_in, tuple(code), value))
    conv(ctx, of_roles(spec, roles, op.outputs, op.nodes, op.opset, op.label))


OPS = {
    "com.microsoft.FusedConv": ort_fused_conv,
    "Conv": conv,
    ":conv": conv,
    "ConvTranspose": conv_transpose,
    ":conv_transpose": conv_transpose,
}
