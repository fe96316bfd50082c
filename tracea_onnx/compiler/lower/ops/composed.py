"""Operators that are lowered to a few launches of others: norms without a kernel of their own,
Hardmax, EyeLike, AffineGrid, ReverseSequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering, element_type
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.contrib import counted
from tracea_onnx.compiler.lower.ops.gemm import matmul
from tracea_onnx.compiler.lower.ops.image import pool
from tracea_onnx.compiler.lower.ops.movement import gather
from tracea_onnx.compiler.lower.ops.norm import reduce
from tracea_onnx.compiler.lower.ops.pointwise import cast, lower_expression
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.pointwise_ops import Code
from tracea_onnx.shapes.operands import axes, axis_of
from tracea_onnx.shapes.operators import result


def _reduced(ctx: Lowering, op: Op, kind: str, x: Value, **attrs: Any) -> Value:
    """A reduction of x, as a new value."""
    name = f"{op.outputs[0]}\0{kind}{len(ctx.values)}"
    reduce(ctx, Op(kind, op.label, (x.name,), (name,), attrs, op.nodes))
    return ctx.value(name)


def _computed(ctx: Lowering, name: str, values: Mapping[int, Value], code: Code, out: int) -> Value:
    """An expression of values by their ids in the code."""
    inputs = [values[-1 - k] for k in range(len(code.operands))]
    dtype = inputs[0].dtype
    lower_expression(ctx, code.finish(out), inputs, name, dtype)
    return ctx.value(name)


def _norm_kind(op: Op) -> str:
    p = op.attr("p", 2)  # a float in the first operator set
    if p not in (1, 2):
        raise Unsupported(f"{op.kind} '{op.label}' has p {p}; kernels compute 1 and 2")
    return f"ReduceL{int(p)}"


def lp_normalization(ctx: Lowering, op: Op) -> None:
    """x / norm(x) along an axis; 0 where the norm is."""
    x = ctx.value(op.input(0))
    axis = axis_of(int(op.attr("axis", -1)), x.rank)
    norm = _reduced(ctx, op, _norm_kind(op), x, axes=[axis], keepdims=1)
    code = Code(("x", "norm"))
    zero = code.const(0.0)
    out = code.op("where", code.op("eq", -2, zero), zero, code.op("div", -1, -2))
    _computed(ctx, op.outputs[0], {-1: x, -2: norm}, code, out)


def global_lp_pool(ctx: Lowering, op: Op) -> None:
    """GlobalLpPool: (sum |x|^p)^(1/p) over the spatial axes."""
    x = ctx.value(op.input(0))
    attrs = {"axes": [*range(2, x.rank)], "keepdims": 1}
    reduce(ctx, Op(_norm_kind(op), op.label, op.inputs[:1], op.outputs, attrs, op.nodes))


def lp_pool(ctx: Lowering, op: Op) -> None:
    """The norm of windows: the root of the sum of powers, which is a mean of so many terms."""
    x, name, squares = ctx.value(op.input(0)), op.outputs[0], _norm_kind(op) == "ReduceL2"
    if op.attr("ceil_mode", 0):
        raise Unsupported(f"LpPool '{op.label}' rounds up sizes; kernels divide by whole windows")
    code = Code(("x",))
    power = code.op("square" if squares else "abs", -1)
    powers = _computed(ctx, f"{name}\0powers", {-1: x}, code, power)
    attrs = {**op.attrs, "count_include_pad": 1}
    mean = f"{name}\0mean"
    pool(ctx, Op("AveragePool", op.label, (powers.name,), (mean,), attrs, op.nodes))
    code = Code(("mean",))
    total = code.op("mul", -1, code.const(math.prod(op.attr("kernel_shape"))))
    out = code.op("sqrt", total) if squares else total
    _computed(ctx, name, {-1: ctx.value(mean)}, code, out)


def mean_variance(ctx: Lowering, op: Op) -> None:
    """(x - mean(x)) / (deviation(x) + 1e-9) over some axes, the variance of differences from the
    mean.
    """
    x, name = ctx.value(op.input(0)), op.outputs[0]
    over = {"axes": axes(ctx, op, x.rank) or [0, 2, 3], "keepdims": 1}
    code = Code(("x", "mean"))
    mean = _reduced(ctx, op, "ReduceMean", x, **over)
    apart = _computed(ctx, f"{name}\0apart", {-1: x, -2: mean}, code, code.op("sub", -1, -2))
    code = Code(("x",))
    square = _computed(ctx, f"{name}\0square", {-1: apart}, code, code.op("square", -1))
    variance = _reduced(ctx, op, "ReduceMean", square, **over)
    code = Code(("x", "variance"))
    deviation = code.op("add", code.op("sqrt", -2), code.const(1e-9))
    _computed(ctx, name, {-1: apart, -2: variance}, code, code.op("div", -1, deviation))


def hardmax(ctx: Lowering, op: Op) -> None:
    """1 at the first largest element along an axis, and 0 elsewhere."""
    x, name = ctx.value(op.input(0)), op.outputs[0]
    ctx.require(x, "a Hardmax")
    opset = ctx.graph.opset()
    axis = axis_of(int(op.attr("axis", -1 if opset >= 13 else 1)), x.rank)
    if opset < 13 and any(d != 1 for d in x.shape[axis + 1 :]):
        raise Unsupported(f"Hardmax of opset {opset} flattens the axes behind {axis}")
    n = x.shape[axis]
    most = ctx.define(f"{name}\0most", DType.I64, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    ints = {**around(x.shape, axis), "min": 0, "last": 0, "dtype": int(x.dtype)}
    ints["outer"] = D.select(D.equal(n, 0), 0, ints["outer"])  # nothing reads places of nothing
    ctx.run("argmax", {"x": x}, most, ints, dtype=x.dtype)
    at = _places(ctx, f"{name}\0at", x.shape, axis)
    code = Code(("most", "at"))
    lower_expression(ctx, code.finish(code.op("eq", -1, -2)), [most, at], name, x.dtype)


def _places(ctx: Lowering, name: str, shape: Dims, axis: int) -> Value:
    """Positions 0, 1, ... along an axis, with size 1 on the other axes."""
    return _along(ctx, name, counted(ctx, f"{name}\0line", shape[axis]), len(shape), axis)


def _along(ctx: Lowering, name: str, line: Value, rank: int, axis: int) -> Value:
    out = ctx.define(
        name, line.dtype, tuple(line.shape[0] if k == axis else 1 for k in range(rank))
    )
    out.view = View(ctx.plain(line), contiguous(out.shape))
    return out


def eye_like(ctx: Lowering, op: Op) -> None:
    """1 on one diagonal of a matrix with the shape of the operand."""
    x, name = ctx.value(op.input(0)), op.outputs[0]
    if x.rank != 2:
        raise Unsupported(f"EyeLike has an operand of rank {x.rank}; it must be 2")
    dtype = element_type(name, int(op.attr("dtype", int(x.dtype))))
    row, column = (_places(ctx, f"{name}\0{k}", x.shape, k) for k in range(2))
    code = Code(("row", "column"))
    out = code.op("eq", code.op("add", -1, code.const(int(op.attr("k", 0)))), -2)
    lower_expression(ctx, code.finish(out), [row, column], name, dtype)


def cast_like(ctx: Lowering, op: Op) -> None:
    """CastLike: Cast to the second input's element type."""
    to = {**op.attrs, "to": int(ctx.value(op.input(1)).dtype)}
    cast(ctx, Op("Cast", op.label, op.inputs[:1], op.outputs, to, op.nodes))


def affine_grid(ctx: Lowering, op: Op) -> None:
    """theta @ (x, y, [z,] 1) of the centers of pixels, which are constants: a plane of each
    coordinate, transposed in memory where a reader needs it.
    """
    theta = ctx.value(op.input(0))
    ctx.require(theta, "a grid")
    shape = result(ctx, op)
    inner = [d for d in shape[1:-1] if isinstance(d, int)]
    n = len(shape) - 2
    if len(inner) < n or min(inner, default=0) < 0 or theta.rank != 3:
        raise Unsupported(f"AffineGrid makes grids of {shape[1:-1]} from a tensor of rank 3")
    dims = (shape[0], n, n + 1)
    for have, want in zip(theta.shape, dims, strict=True):
        ctx.same(have, want, f"the matrices of AffineGrid '{op.label}' and its grids")
    corners = int(op.attr("align_corners", 0))
    if corners and 1 in inner:
        raise Unsupported("ONNX does not say where the one center between two corners lies")
    lines = [np.linspace(-1, 1, d) if corners else (2 * np.arange(d) + 1) / d - 1 for d in inner]
    grid = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(grid), np.ones(inner)]).reshape(n + 1, -1)
    name = op.outputs[0]
    base = ctx.define(f"{name}\0points", DType.F32, points.shape)
    base.data = np.ascontiguousarray(points, np.float32)
    if theta.dtype != DType.F32:
        lower_expression(ctx, Expr(1, (), 0), [base], f"{name}\0narrow", theta.dtype)
        base = ctx.value(f"{name}\0narrow")
        base.prepared = True
    matrices = ctx.define(f"{name}\0matrices", theta.dtype, dims)
    matrices.view = ctx.strided(theta)
    made = matmul(ctx, matrices, base, None, False, f"{name}\0product")
    view = ctx.strided(made)
    steps = tuple(D.mul(view.strides[2], d) for d in contiguous(inner))
    out = ctx.define(name, theta.dtype, shape)
    out.view = View(view.ref, (view.strides[0], *steps, view.strides[1]))


def _scalar(ctx: Lowering, name: str, value: DimLike) -> Value:
    out = ctx.define(name, DType.I64, ())
    out.ints = (value,)
    return out


def reverse_sequence(ctx: Lowering, op: Op) -> None:
    """Rows of x gathered in another order: of the first two axes, time runs backwards up to the
    length of each sequence. A length that is negative, or more than there are, is an index out of
    range.
    """
    x, lengths, name = ctx.value(op.input(0)), ctx.value(op.input(1)), op.outputs[0]
    time, batch = int(op.attr("time_axis", 0)), int(op.attr("batch_axis", 1))
    if x.rank < 2 or {time, batch} != {0, 1} or lengths.dtype != DType.I64 or lengths.rank != 1:
        raise Unsupported("ReverseSequence takes time and batches on the first two axes")
    ctx.same(
        lengths.shape[0], x.shape[batch], f"the lengths and batches of ReverseSequence '{op.label}'"
    )
    count = D.product(x.shape[:2])

    places = counted(ctx, f"{name}\0places", count)
    at = ctx.define(f"{name}\0at", DType.I64, x.shape[:2])
    at.view = View(ctx.plain(places), contiguous(at.shape))
    values = [
        at,
        _places(ctx, f"{name}\0time", x.shape[:2], time),
        _along(ctx, f"{name}\0lengths", lengths, 2, batch),
        _scalar(ctx, f"{name}\0step", x.shape[1] if time == 0 else 1),
        _scalar(ctx, f"{name}\0longest", x.shape[time]),
        _scalar(ctx, f"{name}\0count", count),
    ]
    code = Code(("at", "time", "length", "step", "longest", "count"))
    last = code.op("sub", -3, code.const(1.0))
    back = code.op("sub", code.op("sub", last, -2), -2)
    moved = code.op("where", code.op("lt", -2, -3), code.op("mul", back, -4), code.const(0.0))
    wrong = code.op("or", code.op("lt", -5, -3), code.op("lt", -3, code.const(0.0)))
    order = code.op("where", wrong, -6, code.op("add", -1, moved))
    lower_expression(ctx, code.finish(order), values, f"{name}\0order", DType.I64)
    rows = ctx.define(f"{name}\0rows", x.dtype, (count, *x.shape[2:]))
    rows.view = View(ctx.plain(x), contiguous(rows.shape))
    inputs = (rows.name, f"{name}\0order")
    gather(ctx, Op("Gather", op.label, inputs, op.outputs, {"axis": 0}, op.nodes))


OPS = {
    "AffineGrid": affine_grid, "CastLike": cast_like, "EyeLike": eye_like,
    "GlobalLpPool": global_lp_pool,
    "Hardmax": hardmax, "LpNormalization": lp_normalization, "LpPool": lp_pool,
    "MeanVarianceNormalization": mean_variance, "ReverseSequence": reverse_sequence,
}  # fmt: skip
