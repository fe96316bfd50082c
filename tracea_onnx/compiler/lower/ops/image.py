"""Pooling, resizing and squeeze-excite over channels-last images."""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue import activation_only
from tracea_onnx.compiler.lower.op import Op, of_roles
from tracea_onnx.compiler.lower.ops.conv import conv
from tracea_onnx.compiler.lower.ops.gemm import gemm
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.passes import byte_images, conv3d_by_2d, quantised
from tracea_onnx.compiler.lower.value import Unsupported, Value, View, contiguous
from tracea_onnx.compiler.lower.window import launch_pool, pooling
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.match.spec_table import Attributes, ConvSpec, GemmSpec, SqueezeExciteSpec
from tracea_onnx.shapes.operators import result


def pool(ctx: Lowering, op: Op) -> None:
    """MaxPool and AveragePool over one or two spatial dims."""
    if op.outputs[0] in ctx.values:
        return  # the convolution that made its input pooled it
    x = ctx.value(op.input(0))
    mode = 0 if op.kind == "MaxPool" else 2 if op.attr("count_include_pad", 0) else 1
    axes = pooling(op, x)
    shape = (*x.shape[:2], *(w.out for w in axes[4 - x.rank :]))
    if mode == 0 and x.dtype in byte_images.BYTES and ctx.target.byte_pools and x.rank < 5:
        src, out = byte_images.image_of(ctx, x), ctx.define(op.outputs[0], x.dtype, shape)
        dst = byte_images.new_image(ctx, out)
        launch_pool(ctx, x, mode, src, dst, x.shape[:2], axes)
        return
    if mode == 0 and x.dtype in byte_images.BYTES:  # f32 holds them
        inner = tuple(f"{op.outputs[0]}\0{k}" for k in ("x", "y"))
        same = Expr(1, (), 0)
        lower_expression(ctx, same, [x], inner[0], DType.F32)
        pool(ctx, replace(op, inputs=inner[:1], outputs=inner[1:]))
        lower_expression(ctx, same, [ctx.value(inner[1])], op.outputs[0], x.dtype)
        return
    ctx.require(x, "pooling")
    if x.rank == 5:
        conv3d_by_2d.pool(ctx, op, x, mode, axes)
        return
    out = ctx.define(op.outputs[0], x.dtype, shape)
    launch_pool(ctx, x, mode, ctx.nhwc(x), ctx.new_nhwc(out), x.shape[:2], axes)


def global_pool(ctx: Lowering, op: Op) -> None:
    """GlobalAveragePool and GlobalMaxPool: [N, C, H, W] to [N, C, 1, 1]."""
    x = ctx.value(op.input(0))
    if op.kind == "GlobalAveragePool" and _mean_of_bytes(ctx, op, x):
        return
    ctx.require(x, "global pooling")
    out = ctx.define(op.outputs[0], x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:])))
    pool_globally(ctx, x, out, 0 if op.kind == "GlobalMaxPool" else 1)


def _mean_of_bytes(ctx: Lowering, op: Op, x: Value) -> bool:
    """The means of a dequantised image that is stored only as integers, quantised where that is
    what alone reads them; False where no kernel computes that.
    """
    held = x.quantised
    if (
        held is None
        or not quantised.is_deferred(x)
        or "global_mean_int8" not in ctx.target.families
    ):
        return False
    parts: list[Value | None] = [held.scale, held.zero]
    if held.x.dtype not in byte_images.BYTES or x.rank not in (3, 4):
        return False
    name, dtype = op.outputs[0], x.dtype
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    by = quantised.reader(ctx, Value(name, dtype, shape))
    taken = by is not None and by.dtype in byte_images.BYTES and quantised.is_usual(by.scale)
    if by is not None and taken and not any(v and v.rank for v in by.parts):
        name, dtype = by.name, by.dtype
        parts += by.parts
    if dtype not in (DType.F32, *byte_images.BYTES):
        return False
    if any(v is not None and v.rank for v in parts):
        return False
    source, out = byte_images.image_of(ctx, held.x), ctx.define(name, dtype, shape)
    names = ("x_scale", "x_zero", "y_scale", "y_zero")
    operands = {n: ctx.plain(v) for n, v in zip(names, parts, strict=False) if v is not None}
    ints = {"x_dtype": int(held.x.dtype), "y_dtype": int(dtype), "y_ns": x.shape[1]}
    ctx.plan.launch(
        "global_mean_int8",
        {"x": source.ref, **operands},
        {"y": ctx.new_plain(out)},
        {**ints, **x.nchw(), **source.pitches("x")},
    )
    return True


def pool_globally(ctx: Lowering, x: Value, out: Value, mode: int) -> None:
    """mode: 0 for the largest element of each channel, 1 for the mean."""
    if x.nhwc is None or x.view is not None:
        # plain storage: a reduction over contiguous rows
        ints = {"kind": 1 if mode else 2, "dtype": int(x.dtype), **around(x.shape, 2, x.rank - 1)}
        ctx.run("reduce", {"x": x}, out, ints, dtype=x.dtype)
        return
    ints = {"mode": mode, **x.nchw(), **x.nhwc.pitches("x"), "y_ns": x.shape[1]}
    ctx.run("global_pool", {"x": x.nhwc.ref}, out, ints, dtype=x.dtype)


_COORD = {"half_pixel": 0, "asymmetric": 1, "align_corners": 2, "pytorch_half_pixel": 3}
#: "": of operator sets before 11, where ONNX Runtime rounds up what shrinks and down what grows.
_ROUNDING = {"round_prefer_floor": 0, "floor": 1, "ceil": 2, "round_prefer_ceil": 3, "": 4}


def resize(ctx: Lowering, op: Op) -> None:
    """Nearest, linear and cubic Resize (and Upsample) of one or two spatial dims."""
    x = ctx.value(op.input(0))
    if x.rank not in (3, 4):
        raise Unsupported(f"Resize has an operand of rank {x.rank}; the kernels take 3 or 4")
    mode = op.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic") or (
        mode == "cubic"
        and ("resize_cubic" not in ctx.target.families or op.attr("exclude_outside", 0))
    ):
        raise Unsupported(
            f"no {ctx.plan.backend} kernel computes Resize in mode '{mode}' with these attributes"
        )
    old = op.kind == "Upsample" or ctx.graph.opset() < 11
    coord = "asymmetric" if old else op.attr("coordinate_transformation_mode", "half_pixel")
    if coord not in _COORD or op.attr("antialias", 0):
        raise Unsupported(f"no kernel computes Resize with coordinates '{coord}' or antialias")
    rounding = (
        "floor"
        if op.kind == "Upsample"
        else ""
        if old
        else op.attr("nearest_mode", "round_prefer_floor")
    )
    if rounding not in _ROUNDING or (rounding == "" and not old):
        raise Unsupported(f"no kernel computes Resize with nearest_mode '{rounding}'")
    shape = result(ctx, op)
    if any(a is not b and a != b for a, b in zip(shape[:2], x.shape[:2], strict=True)):
        raise Unsupported(
            "Resize changes the batch or channel dim; the kernels resize height and width"
        )
    n, c, h, w = x.image()
    out = ctx.define(op.outputs[0], x.dtype, shape)
    _, _, oh, ow = out.image()
    scales = op.attr("scales") or (None if op.input(3) else ctx.content(op.input(2) or op.input(1)))
    scale_h, scale_w = (
        (_ratio(oh, h), _ratio(ow, w))
        if scales is None
        else (float(scales[2]) if x.rank == 4 else 1.0, float(scales[-1]))
    )
    family, how = "resize2d", {"coord": _COORD[coord]}
    floats = {"scale_h": scale_h, "scale_w": scale_w}
    if mode == "cubic":
        family, floats["a"] = "resize_cubic", float(op.attr("cubic_coeff_a", -0.75))
    else:
        how |= {"mode": int(mode == "linear"), "rounding": _ROUNDING[rounding]}
    if not isinstance(c, int):  # images of one channel each
        planes, made = (
            ctx.define(f"{out.name}\0{k}", x.dtype, (D.mul(n, c), 1, *size))
            for k, size in (("planes", (h, w)), ("resized", (oh, ow)))
        )
        planes.view = View(ctx.plain(x), contiguous(planes.shape))
        x, whole, out = planes, out, made
        n, c = D.mul(n, c), 1
    else:
        whole = out
    src, dst = ctx.nhwc(x), ctx.new_nhwc(out)
    ints = {**how, "N": n, "C": c, "IH": h, "IW": w, "OH": oh, "OW": ow}
    ctx.run_image(family, src, dst, x.dtype, ints, floats)
    if whole is not out:
        whole.view = View(ctx.plain(out), contiguous(whole.shape))


def lrn(ctx: Lowering, op: Op) -> None:
    """Local response normalisation, of channels."""
    x = ctx.value(op.input(0))
    ctx.available("lrn", "LRN")
    if x.rank != 4:
        raise Unsupported(f"LRN has an operand of rank {x.rank}; the kernel takes 4")
    src = ctx.nhwc(x)
    dst = ctx.new_nhwc(ctx.define(op.outputs[0], x.dtype, x.shape))
    ints = {"size": int(op.attr("size")), **x.nchw()}
    floats = {
        "alpha": float(op.attr("alpha", 1e-4)),
        "beta": float(op.attr("beta", 0.75)),
        "bias": float(op.attr("bias", 1.0)),
    }
    ctx.run_image("lrn", src, dst, x.dtype, ints, floats)


_SAMPLING = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}
_OUTSIDE = {"zeros": 0, "border": 1, "reflection": 2}


def grid_sample(ctx: Lowering, op: Op) -> None:
    """An image read where a grid says."""
    x, grid = (ctx.value(n) for n in op.inputs)
    mode, pad = op.attr("mode", "linear"), op.attr("padding_mode", "zeros")
    ctx.available("grid_sample", "GridSample")
    if (
        x.rank != 4
        or grid.rank != 4
        or mode not in _SAMPLING
        or pad not in _OUTSIDE
        or grid.dtype not in (x.dtype, DType.F32)
    ):
        raise Unsupported(
            f"no kernel computes GridSample of rank {x.rank} in mode '{mode}', padding_mode '{pad}'"
            f" and a grid of rank {grid.rank} and type {grid.dtype.name}"
        )
    n, c, h, w = x.image()
    _, oh, ow, pair = grid.shape
    ctx.same(grid.shape[0], n, f"the batches of GridSample '{op.label}'")
    ctx.same(pair, 2, f"the coordinates of GridSample '{op.label}' and the axes of an image")
    out = ctx.define(op.outputs[0], x.dtype, (n, c, oh, ow))
    src, places = ctx.nhwc(x), ctx.plain(grid)
    dst = ctx.new_nhwc(out)
    ints: dict[str, DimLike] = {
        "mode": _SAMPLING[mode], "pad": _OUTSIDE[pad], "corners": int(op.attr("align_corners", 0)),
        "grid_dtype": int(grid.dtype), "N": n, "C": c, "IH": h, "IW": w, "OH": oh, "OW": ow,
    }  # fmt: skip
    ctx.run_image("grid_sample", src, dst, x.dtype, ints, grid=places)


def _ratio(out: DimLike, of: DimLike) -> float:
    """The scale that makes `of` positions `out`; 0 (of the sizes themselves, as the kernels take
    it) where they are known at run time only.
    """
    return out / of if isinstance(out, int) and isinstance(of, int) else 0.0


def _excite(ctx: Lowering, op: Op, spec: SqueezeExciteSpec, x: Value) -> bool:
    """Squeeze-excite as one launch; False where that cannot be."""
    weights = [ctx.value(op.role(f"w{k}")) for k in (1, 2)]
    biases = [ctx.optional(op.role(f"b{k}")) for k in (1, 2)]
    c = x.shape[1] if x.rank == 4 else None
    constant = all(
        v.is_constant and v.dtype == x.dtype for v in (*weights, *biases) if v is not None
    )
    if (
        not ctx.target.launch_bound
        or x.nhwc is None
        or x.view is not None
        or not isinstance(c, int)
        or not constant
    ):
        return False
    try:
        act1, act2 = (activation_only(e, x.dtype) for e in (spec.expr1, spec.expr2))
    except Unsupported:
        return False
    rows = spec.kind == "conv" or bool(spec.trans_b)  # weights are [out, in]
    r = int(weights[0].elements) // c if isinstance(weights[0].elements, int) else 0
    if r * c != weights[0].elements or weights[0].elements != weights[1].elements:
        return False
    if any(b is not None and b.elements != n for b, n in zip(biases, (r, c), strict=True)):
        return False
    size = {"K": c, "N": r, "n0": 0, "N_total": r}
    packed = [
        ctx.packed(
            "pack_gemm",
            {"w": ctx.plain(w)},
            {**size, "trans": int(t), "ldw": c if t else r},
            {"alpha": 1.0},
            dtype=x.dtype,
        )
        for w, t in zip(weights, (rows, not rows), strict=True)
    ]
    bias = [
        ctx.packed("pack_bias", {"b": ctx.plain(b)}, {"OC": n}, dtype=b.dtype)
        if b is not None
        else None
        for b, n in zip(biases, (r, c), strict=True)
    ]
    src = x.nhwc
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    dst = ctx.new_nhwc(out)
    ints = {**x.nchw(), "R": r, "act1": act1[0], "act2": act2[0]}
    floats = {"p0": act1[1], "p1": act1[2], "q0": act2[1], "q1": act2[2]}
    operands = {"w1": packed[0], "b1": bias[0], "w2": packed[1], "b2": bias[1]}
    try:
        ctx.run_image("squeeze_excite", src, dst, x.dtype, ints, floats, **operands)
    except Unsupported:
        del ctx.values[out.name]
        return False
    return True


def squeeze_excite(ctx: Lowering, op: Op) -> None:
    """y = x * gate, gate = f2(w2 f1(w1 mean(x) + b1) + b2): one launch, or pool, two small GEMMs
    and a channel-wise multiply.
    """
    spec, x = SqueezeExciteSpec.of(op.attrs), ctx.value(op.role("x"))
    base = op.outputs[0]
    ctx.require(x, "squeeze-excite")
    if _excite(ctx, op, spec, x):
        return
    pooled = ctx.define(
        base + "\0pool",
        x.dtype,
        (x.shape[0], x.shape[1], 1, 1) if spec.kind == "conv" else (x.shape[0], x.shape[1]),
    )
    if x.rank != 4:
        raise Unsupported(
            f"squeeze-and-excitation has an operand of rank {x.rank}; the kernel takes 4"
        )
    pool_globally(ctx, x, pooled, 1)
    step = pooled.name
    for k, expr in ((1, spec.expr1), (2, spec.expr2)):
        roles = {"x": step, "w": op.role(f"w{k}")}
        if op.role(f"b{k}"):
            roles["b"] = op.role(f"b{k}")
        step = f"{base}\0fc{k}"
        if spec.kind == "conv":
            layer: Attributes = ConvSpec(expr=expr)
        else:
            layer = GemmSpec(trans_b=spec.trans_b, expr=expr)
        part = of_roles(layer, roles, (step,), op.nodes, op.label)
        (conv if spec.kind == "conv" else gemm)(ctx, part)
    gate = ctx.value(step)
    if gate.rank == 2:
        shaped = ctx.define(base + "\0gate", x.dtype, (*gate.shape, 1, 1))
        shaped.view = View(ctx.plain(gate), contiguous(shaped.shape))
        gate = shaped
    lower_expression(ctx, Expr(2, (Instr("mul", (0, 1)),), 2), [x, gate], base, x.dtype)


OPS = {
    "MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool, "Resize": resize, "Upsample": resize,
    "GridSample": grid_sample, "LRN": lrn,
    ":squeeze_excite": squeeze_excite,
}  # fmt: skip
