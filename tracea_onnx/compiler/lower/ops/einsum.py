"""Einsum of two tensors as one GEMM that reads its operands with the strides they have."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.axes import merge_dims, pad_rows
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.shapes.operands import terms

#: Sizes and the strides of the first operand, the second and the result.
Row = tuple[DimLike, list[DimLike]]


def einsum(ctx: Lowering, op: Op) -> None:
    """Einsum of one or two operands: a reduction, or one batched GEMM over permuted views."""
    values = [ctx.value(n) for n in op.inputs]
    spelled, out = terms(str(op.attr("equation", "")), [v.rank for v in values])
    if len(values) > 2 or any(len(set(t)) != len(t) for t in (*spelled, out)):
        raise Unsupported(
            f"Einsum '{op.attr('equation')}' has more than two tensors, or an axis twice"
        )
    if any(
        set(t) - set(out).union(*(o for k, o in enumerate(spelled) if k != j))
        for j, t in enumerate(spelled)
    ):
        raise Unsupported(f"Einsum '{op.attr('equation')}' sums over an axis of one tensor alone")
    size: dict[str, DimLike] = {}
    for v, t in zip(values, spelled, strict=True):
        for c, d in zip(t, v.shape, strict=True):
            if c in size and not ctx.plan.require(
                size[c], d, f"the sizes along '{c}' of Einsum '{op.label}'"
            ):
                raise Unsupported(f"axis '{c}' of Einsum has both {size[c]} and {d} elements")
            size.setdefault(c, d)
    for v in values:
        ctx.require(v, "Einsum")
    if len(values) == 1:
        ctx.define(op.outputs[0], values[0].dtype, tuple(size[c] for c in out)).view = _laid(
            ctx, values[0], spelled[0], out
        )
        return
    if not set(spelled[0]) & set(spelled[1]) - set(out):
        sides = [
            _transposed(ctx, v, t, out, size, f"{op.outputs[0]}\0{k}")
            for k, (v, t) in enumerate(zip(values, spelled, strict=True))
        ]
        lower_expression(
            ctx, Expr(2, (Instr("mul", (0, 1)),), 2), sides, op.outputs[0], values[0].dtype
        )
        return
    _matmul(ctx, op.outputs[0], values, spelled, out, size)


def _laid(ctx: Lowering, v: Value, term: str, out: str) -> View:
    """v with its axes in the order of `out`; one it does not have has stride 0."""
    view = ctx.strided(v)
    steps = dict(zip(term, view.strides, strict=True))
    return View(view.ref, tuple(steps.get(c, 0) for c in out))


def _transposed(
    ctx: Lowering, v: Value, term: str, out: str, size: dict[str, DimLike], name: str
) -> Value:
    transposed = ctx.define(name, v.dtype, tuple(size[c] if c in term else 1 for c in out))
    transposed.view = _laid(ctx, v, term, out)
    return transposed


def _matmul(
    ctx: Lowering,
    name: str,
    values: Sequence[Value],
    spelled: Sequence[str],
    out: str,
    size: dict[str, DimLike],
) -> None:
    """The result in its own order where every group of axes is one dim of a GEMM then; else
    operands are copied, and the result is read as a view.
    """
    result = ctx.define(name, values[0].dtype, tuple(size[c] for c in out))
    own = dict(zip(out, contiguous(result.shape), strict=True))
    for a, b in ((0, 1), (1, 0)):
        views = [ctx.strided(values[k]) for k in (a, b)]
        found = _dims(spelled[a], spelled[b], out, views, own, size)
        if found is not None:
            _launch(ctx, result, views, found)
            return
    first, second = spelled
    batch, m = [c for c in out if c in first and c in second], [c for c in out if c not in second]
    n, k = [c for c in out if c not in first], [c for c in first if c not in out]
    views = []
    for v, order, side in ((values[0], [*batch, *m, *k], "a"), (values[1], [*batch, *k, *n], "b")):
        copied = _transposed(ctx, v, spelled[len(views)], "".join(order), size, f"{name}\0{side}")
        steps = dict(
            zip(order, View(ctx.plain(copied), contiguous(copied.shape)).strides, strict=True)
        )
        views.append(View(ctx.plain(copied), tuple(steps[c] for c in spelled[len(views)])))
    order = [*batch, *m, *n]
    made = ctx.define(f"{name}\0product", result.dtype, tuple(size[c] for c in order))
    steps = dict(zip(order, contiguous(made.shape), strict=True))
    found = _dims(first, second, "".join(order), views, steps, size)
    if found is None:  # sizes that no kernel counts to
        raise Unsupported(f"the axes {order} of Einsum are too large to be read as one")
    _launch(ctx, made, views, found)
    assert made.view is not None
    result.view = View(made.view.ref, tuple(steps[c] for c in out))


def _dims(
    first: str,
    second: str,
    out: str,
    views: Sequence[View],
    own: dict[str, DimLike],
    size: dict[str, DimLike],
) -> tuple[list[Row], Row, Row, Row] | None:
    """(two batch dims, rows, columns, terms) of first @ second; None where they are more. An axis
    of the first operand alone that does not join the rows is a batch dim along which the second one
    stays where it is.
    """
    steps = [
        dict(zip(t, v.strides, strict=True)) for t, v in zip((first, second), views, strict=True)
    ]

    def rows(letters: Sequence[str]) -> list[Row]:
        return list(
            merge_dims(
                tuple(size[c] for c in letters),
                [tuple(s.get(c, 0) for c in letters) for s in (*steps, own)],
            )
        )

    columns, inner = (
        rows([c for c in out if c not in first]),
        rows([c for c in first if c not in out]),
    )
    others = rows([c for c in out if c in first])
    if len(columns) > 1 or len(inner) > 1 or (columns and columns[0][1][2] != 1):
        return None
    at = next((k for k in range(len(others) - 1, -1, -1) if others[k][1][1] == 0), None)
    one: Row = (1, [0, 0, 0])
    m = others.pop(at) if at is not None else one
    if len(others) > 2:
        return None
    return (
        list(pad_rows(others, 2, 3)),
        m,
        columns[0] if columns else one,
        inner[0] if inner else one,
    )


def _launch(
    ctx: Lowering, result: Value, views: Sequence[View], found: tuple[list[Row], Row, Row, Row]
) -> None:
    (b0, b1), m, n, k = found
    ints: dict[str, DimLike] = {
        "B0": b0[0], "B1": b1[0], "M": m[0], "N": n[0], "K": k[0], "a_0": b0[1][0], "a_1": b1[1][0],
        "a_m": m[1][0], "a_k": k[1][0],
        "b_0": b0[1][1], "b_1": b1[1][1], "b_k": k[1][1], "b_n": n[1][1], "y_0": b0[1][2],
        "y_1": b1[1][2], "ldy": m[1][2] if m[0] != 1 else D.mul(n[0], 1),
        "act": 0,
    }  # fmt: skip
    floats = {"alpha": 1.0, "p0": 0.0, "p1": 0.0}
    ctx.plan.launch(
        "matmul",
        {"a": views[0].ref, "b": views[1].ref},
        {"y": ctx.new_plain(result)},
        ints,
        floats,
        dtype=result.dtype,
    )


OPS = {"Einsum": einsum}
