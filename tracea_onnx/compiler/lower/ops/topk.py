"""The largest or smallest elements along an axis, and their places."""

from __future__ import annotations

from tracea_onnx.compiler.lower.axes import around
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.ir.abi import DType
from tracea_onnx.shapes.operands import axis_of
from tracea_onnx.shapes.operators import result


def topk(ctx: Lowering, op: Op) -> None:
    """TopK along one axis, largest or smallest, with values and indices."""
    x = ctx.value(op.input(0))
    ctx.available("topk", "TopK")
    if x.dtype not in {DType.I32, *ctx.target.types}:
        raise Unsupported(f"no kernel computes TopK of type {x.dtype.name}")
    axis, shape = axis_of(op.attr("axis", -1), x.rank), result(ctx, op)
    k = shape[axis]
    if not isinstance(k, int):
        raise Unsupported(f"TopK takes {k} results; the number must be constant")
    ctx.at_least(x.shape[axis], k, f"axis {axis} of '{x.name}', of which TopK takes {k},")
    source = ctx.plain(x)
    written = {
        role: ctx.new_plain(ctx.define(name, dtype, shape))
        for role, name, dtype in zip(("y", "at"), op.outputs, (x.dtype, DType.I64), strict=False)
        if name
    }  # fmt: skip
    ints = {
        **around(x.shape, axis), "k": k, "largest": int(op.attr("largest", 1)),
        "dtype": int(x.dtype),
    }  # fmt: skip
    if k:
        ctx.plan.launch(
            "topk",
            {"x": source},
            written,
            ints,
            dtype=x.dtype if x.dtype in ctx.target.types else DType.F32,
        )


OPS = {"TopK": topk}
