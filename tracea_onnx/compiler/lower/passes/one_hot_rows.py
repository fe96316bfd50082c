"""GEMMs of one-hot rows with constant weights, as in models that read bytes, become lookups of rows
of the weights. What follows the GEMM is computed once per session, for every row of the weights.

    OneHot(i, n, [0, 1]) @ w, + bias, activation  =  rows[j]
    rows = activation(concat(w, [0]) + bias)
    j = i, i + n of a negative i, n of one that OneHot leaves without a 1
"""

from __future__ import annotations

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.padding import surround
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Value, View
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.pointwise_ops import Code


def lower(
    ctx: Lowering, op: Op, x: Value, w: Value, expr: Expr | None, extras: list[Value]
) -> bool:
    """expr(x w, extras), if x is a OneHot that nothing has read. w is [depth, columns] or, as a
    view, its transpose.
    """
    if x.deferred is None or x.view is not None or x.deferred.kind != "one_hot":
        return False
    (idx,) = x.deferred.parts
    name, (depth, columns) = op.outputs[0], w.shape
    assert isinstance(depth, int)
    rows = surround(ctx, f"{name}\0rows", w, (0, 0, 1, 0))
    early = all(
        v.is_constant and v.rank <= 2 and v.shape[-1:] in ((), (1,), (columns,))
        and all(d == 1 for d in v.shape[:-1])
        for v in extras
    )  # fmt: skip
    if expr is not None and early:
        lower_expression(ctx, expr, [rows, *extras], f"{name}\0done", w.dtype)
        rows = ctx.value(f"{name}\0done")
    lower_expression(ctx, _row(depth), [idx], f"{name}\0row", idx.dtype)
    found = name if expr is None or early else f"{name}\0before"
    ctx.run(
        "gather",
        {"x": rows, "idx": ctx.value(f"{name}\0row")},
        ctx.define(found, w.dtype, (*x.shape[:-1], columns)),
        {"elem": w.dtype.size, "outer": 1, "n": depth + 1, "inner": columns,
         "count": idx.elements, "idx_dtype": int(idx.dtype)},
    )  # fmt: skip
    if found != name and expr is not None:
        lower_expression(ctx, expr, [ctx.value(found), *extras], name, w.dtype)
    return True


def transposed(ctx: Lowering, w: Value) -> Value:
    """The transpose of a matrix, where it lies."""
    out = Value(f"{w.name}\0transposed", w.dtype, (w.shape[1], w.shape[0]))
    view = ctx.strided(w)
    out.view = View(view.ref, (view.strides[1], view.strides[0]))
    return out


def _row(depth: int) -> Expr:
    code = Code(["i"])
    i, zero, n = code.operand("i"), code.const(0), code.const(depth)
    up = code.op("where", code.op("lt", i, zero), code.op("add", i, n), i)
    return code.finish(code.op("where", code.op("lt", up, zero), n, code.op("min", up, n)))
