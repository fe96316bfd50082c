"""Operators of opset 1 that ONNX removed and ONNX Runtime still runs: Affine, Crop, ImageScaler."""

from __future__ import annotations

import numpy as np

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Unsupported, View
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.pointwise_ops import Code


def affine(ctx: Lowering, op: Op) -> None:
    """alpha * x + beta."""
    x, code = ctx.value(op.input(0)), Code(("x",))
    alpha, beta = (code.const(float(op.attr(k, d))) for k, d in (("alpha", 1.0), ("beta", 0.0)))
    out = code.op("add", code.op("mul", -1, alpha), beta)
    lower_expression(ctx, code.finish(out), [x], op.outputs[0], x.dtype)


def image_scaler(ctx: Lowering, op: Op) -> None:
    """scale * x + the bias of the channel."""
    x, bias = ctx.value(op.input(0)), [float(b) for b in op.attr("bias", ())]
    if x.rank != 4:
        raise Unsupported(f"ImageScaler has an operand of rank {x.rank}; the kernel takes 4")
    ctx.same(x.shape[1], len(bias), f"the channels and biases of ImageScaler '{op.label}'")
    shift = ctx.define(f"{op.outputs[0]}\0bias", DType.F32, (len(bias), 1, 1))
    shift.data = np.array(bias, np.float32).reshape(-1, 1, 1)
    code = Code(("x", "bias"))
    out = code.op("add", code.op("mul", -1, code.const(float(op.attr("scale", 1.0)))), -2)
    lower_expression(ctx, code.finish(out), [x, shift], op.outputs[0], x.dtype)


def crop(ctx: Lowering, op: Op) -> None:
    """An image without its border, or `scale` rows and columns of it from there: a view."""
    x, scale = ctx.value(op.input(0)), op.attr("scale")
    border = [int(b) for b in op.attr("border", (0, 0, 0, 0))]
    if x.rank != 4 or len(border) != 4 or min(border) < 0 or len(scale or (0, 0)) != 2:
        raise Unsupported("Crop takes no borders off an image of rank 4")
    left, top, right, bottom = border
    before, after = (top, left), (bottom, right)
    sizes = [
        d - (b + e) if scale is None else int(scale[k])
        for k, (d, b, e) in enumerate(zip(x.shape[2:], before, after, strict=True))
    ]
    for d, b, size in zip(x.shape[2:], before, sizes, strict=True):
        ctx.at_least(d, size + b, f"a side of '{x.name}', which Crop '{op.label}' crops,")
    view = ctx.strided(x)
    first = D.add(*(D.mul(s, b) for s, b in zip(view.strides[2:], before, strict=True)))
    out = ctx.define(op.outputs[0], x.dtype, (*x.shape[:2], *sizes))
    out.view = View(view.ref.at(D.mul(first, x.dtype.size)), view.strides)


OPS = {"Affine": affine, "Crop": crop, "ImageScaler": image_scaler}
