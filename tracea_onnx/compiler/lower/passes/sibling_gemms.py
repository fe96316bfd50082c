"""GEMMs of one input, merged into one with concatenated weights: the query, key and value
projections of attention, the halves of a gate.

Each result is a column slice of the merged one; this pays where readers accept strided operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.compiler.lower.context import Lowering, matrix_rows
from tracea_onnx.compiler.lower.op import MATMUL_OPS, Op, makers, readers
from tracea_onnx.compiler.lower.passes import gemm_norm, quantised
from tracea_onnx.compiler.lower.value import Dims, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, kinds
from tracea_onnx.match.spec_table import GemmNbitsSpec, GemmSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import NBITS_TILE, packed_elements
from tracea_onnx.support.data_classes import dataclass

_READERS = kinds(Trait.SLICE)
_WHOLE_BIAS = 32  # elements pack_bias writes at a time
_ALIGNED = 8  # a slice starts at a vector boundary


@dataclass(frozen=True)
class Part:
    """A weight [K, N] (or [N, K] with `trans`), a bias, and the value that their GEMM defines."""

    name: str
    w: Value
    b: Value | None
    trans: bool
    alpha: float = 1.0

    @property
    def width(self) -> int:
        """N: columns of the weight."""
        return int(self.w.shape[0 if self.trans else 1])

    @property
    def depth(self) -> int:
        """K: rows of the weight."""
        return int(self.w.shape[1 if self.trans else 0])


def fits(ctx: Lowering, x: Value, parts: Sequence[Part]) -> bool:
    """Whether `merged` can compute these."""
    for p in parts:
        constant = p.w.is_constant and p.w.rank == 2 and p.w.dtype == x.dtype
        row = p.b is None or (
            p.b.is_constant and p.b.elements == p.width == p.b.shape[-1] and p.b.dtype == x.dtype
        )
        if not constant or not row or p.width % _ALIGNED or x.shape[-1] != p.depth:
            return False
    return (
        ctx.target.launch_bound and len(parts) > 1 and x.rank >= 2 and x.dtype in ctx.target.types
    )


def merged(ctx: Lowering, x: Value, parts: Sequence[Part]) -> list[Value]:
    """x @ [w0 | w1 | ...] + [b0 | b1 | ...] as one launch; the parts' values are slices of its
    rows.
    """
    k, total = parts[0].depth, sum(p.width for p in parts)
    packed = ctx.plan.arena(x.dtype.size * packed_elements("pack_gemm", K=k, N_total=total))
    norm = gemm_norm.norm_of(ctx, x)
    folded = gemm_norm.weights(ctx, norm, packed, total) if norm is not None else None
    bias = new_row(ctx, total) if any(p.b is not None for p in parts) else None
    at = 0
    for p in parts:
        params = {
            "K": k,
            "N": p.width,
            "trans": int(p.trans),
            "ldw": int(contiguous(p.w.shape)[0]),
            "n0": at,
            "N_total": total,
        }
        if folded is not None:
            folded.add(ctx, p.w, p.b, params, p.alpha)
        else:
            ctx.plan.launch(
                "pack_gemm",
                {"w": ctx.plain(p.w)},
                {"packed": packed},
                params,
                {"alpha": p.alpha},
                dtype=x.dtype,
                more=at > 0,
            )
            if bias is not None:
                given = None if p.b is None else ctx.plain(p.b)
                pack_row(ctx, bias, at, given, p.width, x.dtype)
        at += p.width
    src, ldx = matrix_rows(ctx, norm.x if norm is not None else x)
    lead = x.shape[:-1]
    dst = ctx.plan.arena(D.mul(D.mul(D.product(lead), total), x.dtype.size))
    ints: dict[str, DimLike] = {"M": D.product(lead), "N": total, "K": k, "ldx": ldx, "ldy": total}
    if folded is not None:
        ctx.plan.launch(
            "gemm_norm",
            {"x": src, **folded.operands()},
            {"y": dst},
            ints | folded.ints(),
            folded.floats(),
            dtype=x.dtype,
        )
    else:
        ctx.plan.launch(
            "gemm", {"x": src, "w": packed, "bias": bias}, {"y": dst}, ints, dtype=x.dtype
        )
    return slices(ctx, [(p.name, p.width) for p in parts], dst, lead, x.dtype)


def new_row(ctx: Lowering, columns: int) -> Ref:
    """Memory for f32 of so many columns, which `pack_row` writes."""
    return ctx.plan.arena(DType.F32.size * (packed_elements("pack_bias", OC=columns) + _WHOLE_BIAS))


def pack_row(ctx: Lowering, row: Ref, at: int, given: Ref | None, width: int, dtype: DType) -> None:
    """Writes `width` constants of this type from column `at` on, zeros where none are given. Parts
    are written in their order: each is filled up with zeros, where the next one begins.
    """
    ctx.plan.launch(
        "pack_bias",
        {"b": given},
        {"packed": row.at(DType.F32.size * at)},
        {"OC": width},
        dtype=dtype,
        more=at > 0,
    )


def slices(
    ctx: Lowering, parts: Sequence[tuple[str, int]], rows: Ref, lead: Dims, dtype: DType
) -> list[Value]:
    """Values of these names and widths, one behind the other in contiguous rows."""
    made: list[Value] = []
    strides, at = contiguous((*lead, sum(width for _, width in parts))), 0
    for name, width in parts:
        made.append(ctx.define(name, dtype, (*lead, width)))
        made[-1].view = View(rows.at(dtype.size * at), strides)
        at += width
    return made


def part_of(ctx: Lowering, op: Op) -> Part | None:
    """A GEMM as a part, where nothing but a bias follows it."""
    roles = op.by_role
    if op.kind not in MATMUL_OPS:
        return None
    spec = GemmSpec.of(op.attrs)
    if spec.trans_a or spec.expr is not None or spec.beta != 1.0:
        return None
    if (
        "bn_scale" in roles
        or not ctx.graph.is_const(roles["w"])
        or (roles.get("b") and not ctx.graph.is_const(roles["b"]))
    ):
        return None
    return Part(
        op.outputs[0],
        ctx.value(roles["w"]),
        ctx.optional(roles.get("b")),
        bool(spec.trans_b),
        spec.alpha,
    )


def nbits_key(graph: Graph, op: Op, *, alone: bool = True) -> tuple[object, ...] | None:
    """Key that GEMMs with few-bit weights share if they can be merged. None where more than the
    GEMM is computed (alone: by an expression, too), or its columns are no whole tiles.
    """
    spec, roles = GemmNbitsSpec.of(op.attrs), op.by_role
    if (alone and spec.expr is not None) or roles.get("b") or spec.N % NBITS_TILE:
        return None
    types = (graph.dtype(roles[n]) if roles.get(n) else None for n in ("scale", "zero"))
    return (spec.form, spec.K, spec.bits, spec.block, spec.signed, *types)


def integers(graph: Graph, op: Op, made: Mapping[str, Op]) -> tuple[object, ...] | None:
    """What products of 8-bit integers must have in common: what x is dequantised from; None where
    the weight is not dequantised, or more than a bias follows.
    """
    spec, roles = GemmSpec.of(op.attrs), op.by_role
    x, w = (made.get(roles[role]) for role in ("x", "w"))
    if x is None or w is None or not {x.kind, w.kind} <= quantised.DEQUANTIZE:
        return None
    constant = [n for n in (*w.inputs, roles.get("b")) if n]
    plain = not spec.trans_a and spec.expr is None and spec.alpha == spec.beta == 1.0
    if not plain or "bn_scale" in roles or not all(map(graph.is_const, constant)):
        return None
    return x.inputs


def _in_place(
    value: str, read_by: Mapping[str, list[Op]], known: Mapping[str, Value], outputs: Sequence[str]
) -> bool:
    """Whether everything that reads the value takes it as a slice of rows, if need be after its
    columns were split into heads and axes exchanged.
    """
    read = read_by.get(value, [])
    return (
        value not in outputs
        and bool(read)
        and all(
            r.kind in _READERS
            or (_is_view(r, known) and _in_place(r.outputs[0], read_by, known, outputs))
            for r in read
        )
    )


def _is_view(op: Op, known: Mapping[str, Value]) -> bool:
    if op.kind == "Transpose":
        return True
    old, new = known.get(op.input(0)), known.get(op.outputs[0])
    return (
        op.kind == "Reshape"
        and old is not None
        and new is not None
        and new.rank == old.rank + 1
        and old.shape[:-1] == new.shape[:-2]
    )


def find(
    ctx: Lowering,
    graph: Graph,
    ops: Sequence[Op],
    known: Mapping[str, Value],
    outputs: Sequence[str],
) -> dict[str, list[Op]]:
    """GEMMs of this partition to compute together: each one's value -> all of its group, where
    every reader takes a slice.
    """
    read_by = readers(ops)
    groups: dict[tuple[object, ...], list[Op]] = {}
    few, made = "pack_gemm_nbits_part" in ctx.target.families, makers(ops)
    for op in ops:
        value = op.outputs[0] if op.outputs else ""
        if value in outputs or graph.is_output(value):
            continue
        alike: tuple[object, ...] | None = None
        if op.kind in MATMUL_OPS:
            alike = (op.by_role["x"],) if part_of(ctx, op) else integers(graph, op, made)
        elif few and op.kind == ":gemm_nbits" and (of := nbits_key(graph, op)) is not None:
            alike = (op.by_role["x"], *of)
        if alike is not None and _in_place(value, read_by, known, outputs):
            groups.setdefault(alike, []).append(op)
    return {op.outputs[0]: group for group in groups.values() if len(group) > 1 for op in group}


def lower(ctx: Lowering, x: Value, group: Sequence[Op]) -> Mapping[str, Value] | None:
    """All GEMMs of a group at once; None where they do not fit together."""
    parts = [p for p in (part_of(ctx, op) for op in group) if p is not None]
    if len(parts) != len(group) or not fits(ctx, x, parts):
        return None
    return {v.name: v for v in merged(ctx, x, parts)}
