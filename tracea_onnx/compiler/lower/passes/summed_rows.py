"""Prologue of norms: the norm kernel adds up its input rows, such as embeddings looked up in
tables, broadcast positions, or a class token before the patches of an image.

    norm(table0[ids] + table1[types] + positions)

is one launch: each summand says where the row of it for a row of the result lies, and nothing is
written in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_onnx.compiler.lower.axes import broadcast_strides, merge_dims, pad_rows
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import ROW_NORMS, Op, makers
from tracea_onnx.compiler.lower.value import Dims, Value, View, contiguous
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.expr import Expr
from tracea_onnx.match.spec_table import PointwiseSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass

#: Summands a kernel takes.
MOST = 4


@dataclass(frozen=True)
class Summand:
    """Rows at `ref` + index * stride over the leading dims, in elements; with `index` that is where
    the row's number in the table at `ref` is read (`rows` rows, `pitch` elements apart). It counts
    where lo <= index of the last leading dim < hi (None: everywhere), and strides there start at
    lo.
    """

    ref: Ref
    strides: Dims
    index: Ref | None = None
    index_type: int = 0
    rows: DimLike = 0
    pitch: DimLike = 0
    lo: DimLike = 0
    hi: DimLike | None = None


def is_sum(expr: Expr) -> bool:
    """Whether this is nothing but the sum of its inputs, each once."""
    counts: list[dict[int, int]] = [{k: 1} for k in range(expr.n_in)]
    for ins in expr.code:
        if ins.op != "add":
            return False
        a, b = (counts[k] for k in ins.args)
        counts.append({k: a.get(k, 0) + b.get(k, 0) for k in {*a, *b}})
    return bool(expr.code) and counts[expr.out] == dict.fromkeys(range(expr.n_in), 1)


def find(ops: Sequence[Op], outputs: Sequence[str]) -> set[str]:
    """Values of this partition that a norm could sum as it reads them, and their summands."""
    maker = makers(ops)
    found: set[str] = set()
    queue = [n for op in ops if op.kind in ROW_NORMS for n in (op.role("x"), op.role("res"))]
    while queue:
        name = queue.pop()
        op = maker.get(name)
        if op is None or name in found or name in outputs:
            continue
        if op.kind in ("Gather", "Concat"):
            found.add(name)
        if op.kind in ("Add", "Sum", "Concat") or (
            op.kind == ":pointwise" and is_sum(PointwiseSpec.of(op.attrs).expr)
        ):
            found.add(name)
            queue += op.inputs
    return found


def fits(ctx: Lowering, out: Value, parts: Sequence[Value]) -> bool:
    """Whether these may be summands of `out`: of its float type, whole along the last axis, and not
    images.
    """
    return (
        out.dtype in ctx.target.types and out.rank > 1
        and all(
            p.dtype == out.dtype and p.rank and p.shape[-1] == out.shape[-1]
            and (p.nhwc is None or p.view is not None)
            for p in parts
        )
    )  # fmt: skip


def operands(
    ctx: Lowering, parts: Sequence[Value], shape: Dims
) -> tuple[dict[str, Ref | None], dict[str, DimLike]] | None:
    """Operands and parameters of a `layernorm_sum` over the sum of `parts`, of this shape; None
    when there are too many of them.
    """
    found = [s for p in parts for s in _summands(ctx, p, shape)]
    lead = shape[:-1]
    cut = any(s.hi is not None for s in found)
    head = lead[:-1] if cut else lead
    rows = merge_dims(head, [s.strides[: len(head)] for s in found])
    if len(found) > MOST or len(rows) > (1 if cut else 2):
        return None
    rows = pad_rows(rows, 1 if cut else 2, len(found))
    if cut:
        rows.append((lead[-1], [s.strides[-1] for s in found]))
    refs: dict[str, Ref | None] = {}
    ints: dict[str, DimLike] = {"outer": rows[0][0], "inner": rows[1][0], "N": shape[-1]}
    for k, s in enumerate(found):
        refs |= {f"x{k}": s.ref, f"i{k}": s.index}
        ints |= {
            f"x{k}_o": rows[0][1][k],
            f"x{k}_i": rows[1][1][k],
            f"x{k}_lo": s.lo,
            f"x{k}_hi": rows[1][0] if s.hi is None else s.hi,
        }
        ints |= {f"x{k}_ld": s.pitch, f"x{k}_n": s.rows, f"i{k}_dtype": s.index_type}
    return refs, ints


def _summands(ctx: Lowering, v: Value, shape: Dims, *, part: bool = False) -> list[Summand]:
    """`v` broadcast to `shape` as summands.

    `part`: it is one of those that lie side by side already.
    """
    known = v.deferred if v.view is None else None
    if known is not None and known.kind == "sum":
        return [s for p in known.parts for s in _summands(ctx, p, shape, part=part)]
    if known is not None and known.kind == "rows":
        table, index = known.parts
        view = ctx.strided(index)
        strides = broadcast_strides(ctx.plan, view, index.shape, shape[:-1])
        return [
            Summand(
                ctx.plain(table),
                strides,
                view.ref,
                int(index.dtype),
                table.shape[0],
                table.shape[1],
            )
        ]
    if known is not None and known.kind == "concat" and not part and v.shape[-2] == shape[-2]:
        found: list[Summand] = []
        at: DimLike = 0
        for p in known.parts:
            end = at + p.shape[-2]
            found += [
                replace(s, lo=at, hi=end)
                for s in _summands(ctx, p, (*shape[:-2], p.shape[-2], shape[-1]), part=True)
            ]
            at = end
        return found
    view = ctx.strided(v)
    if view.strides[-1] != 1:
        view = View(ctx.plain(v), contiguous(v.shape))
    return [Summand(view.ref, broadcast_strides(ctx.plan, view, v.shape, shape)[:-1])]


def is_profitable(parts: Sequence[Value], shape: Dims) -> bool:
    """Whether a norm over these saves a launch by adding them up itself."""
    return any((p.deferred is not None and p.view is None) or p.shape != shape for p in parts)
