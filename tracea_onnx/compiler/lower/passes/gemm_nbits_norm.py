"""GEMMs with few-bit weights on a GPU that also compute the norm of their rows, or a gate whose
other half is a GEMM of the same rows.

    y = norm(h) @ w        normalises h where it is read
    y = f(x @ w0, x @ w1)  is one GEMM
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import ROW_NORMS, Op, makers, readers
from tracea_onnx.compiler.lower.passes import gemm_norm, sibling_gemms
from tracea_onnx.compiler.lower.value import RowNorm, Value
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match.spec_table import GemmNbitsSpec

_FAMILY = "gemm_nbits_norm"


def gates(ctx: Lowering, graph: Graph, ops: Sequence[Op], outputs: Sequence[str]) -> dict[str, Op]:
    """Results of GEMMs whose epilogue reads one other GEMM of the same rows, by alike
    weights, that nothing else reads: that GEMM.
    """
    if _FAMILY not in ctx.target.families:
        return {}
    maker, read_by = makers(ops), readers(ops)
    found: dict[str, Op] = {}
    for op in ops:
        if op.kind != gemm_norm.GEMM_NBITS or len(op.extras) != 1:
            continue
        spec, other = GemmNbitsSpec.of(op.attrs), maker.get(op.extras[0])
        if other is None or other.kind != op.kind or other.role("x") != op.role("x"):
            continue
        value = other.outputs[0]
        alike = sibling_gemms.nbits_key(graph, other)
        if value in outputs or len(read_by[value]) > 1 or spec.expr is None or alike is None:
            continue
        same = alike == sibling_gemms.nbits_key(graph, op, alone=False)
        if same and spec.expr.n_in == 2 and spec.N == GemmNbitsSpec.of(other.attrs).N:
            found[op.outputs[0]] = other
    return found


def prenormed(ctx: Lowering, graph: Graph, ops: Sequence[Op], outputs: Sequence[str]) -> set[str]:
    """Norms that one launch alone reads."""
    if _FAMILY not in ctx.target.families:
        return set()
    read_by = readers(ops)
    found: set[str] = set()
    for op in ops:
        made = [o for o in op.outputs if o]
        if op.kind not in ROW_NORMS or op.role("res") or op.role("xbias") or len(made) != 1:
            continue
        (y,), read = made, read_by.get(made[0], [])
        if not read or y in outputs or not all(gemm_norm.multiplies_nbits(r, y) for r in read):
            continue
        results = {r.outputs[0] for r in read}
        first = read[0].outputs[0]
        group = {o.outputs[0] for o in ctx.merges.get(first, ())}
        pairs = [{o, g.outputs[0]} for o, g in ctx.gates.items() if o in results]
        if len(results) == 1 or results == group or results in pairs:
            found.add(y)
    return found


def defer_norm(
    ctx: Lowering, op: Op, x: Value, weights: Mapping[str, str], rule: Mapping[str, int],
    eps: float, make: Callable[[], None],
) -> bool:  # fmt: skip
    """Leave this norm over the last axis of x to the GEMM that reads it."""
    name = op.outputs[0]
    if name not in ctx.prenormed or name in ctx.row_norms:
        return False
    gamma, beta = (ctx.optional(weights.get(r)) for r in ("gamma", "beta"))
    for v in (gamma, beta):
        if v is not None and not (
            v.is_constant and v.dtype == x.dtype and v.elements == x.shape[-1]
        ):
            return False
    if gamma is None or x.dtype not in (DType.F16, DType.BF16):
        return False
    out = ctx.define(name, x.dtype, x.shape)
    ctx.row_norms[name] = RowNorm(x, gamma, beta, eps, bool(rule["rms"]), rule["gamma_add"])
    ctx.defer(out, "norm", (x,), make)
    return True


def norm_of(ctx: Lowering, v: Value) -> RowNorm | None:
    """The norm that `v` is, if it was left to its reader."""
    return ctx.row_norms.get(v.name) if v.deferred is not None and v.view is None else None
