"""Row norms between GEMMs, computed without a launch of their own.

    h = x @ w0 + residual    also stores mean and deviation of every 64 columns of each row
    y = norm(h) @ w1 + b     reads h with the weight gamma * w1, and its epilogue computes
                             rstd * (h @ (gamma * w1) - mean * sum(gamma * w1)) + beta @ w1 + b
    z = g @ w2 + norm(h)     normalizes h where it adds it

The norm's value is deferred: any other reader materializes it. Where a gamma is so small that
gamma * w would lose bits, the weights are scaled by a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import MATMUL_OPS, ROW_NORMS, Op, makers, of_roles, readers
from tracea_onnx.compiler.lower.value import DeferredNorm, Value
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match.spec_table import GemmNbitsSpec, GemmSpec
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import PANEL, weight_pitch
from tracea_onnx.support.data_classes import dataclass

#: Columns that readers of a norm may make of one of its: the work of normalising grows with them
#: (measured on an H200: 4 pay, a vocabulary does not).
_WIDEST = 8.0
_STATISTICS = 8  # its bytes
GEMM_NBITS = ":gemm_nbits"
_SLACK = 32  # elements a kernel may read behind a vector of columns


def _growth(graph: Graph, op: Op) -> float:
    """Columns of the GEMM's result for one of x."""
    shapes = [
        graph.shape(n)
        for n in (
            [op.role("w")]
            if op.kind in MATMUL_OPS
            else [n for r, n in op.by_role.items() if r[0] == "w"]
        )
    ]
    trans = GemmSpec.of(op.attrs).trans_b  # of a swiglu, too
    sizes = [
        (int(a), int(b))
        for s in shapes
        if s is not None and len(s) == 2
        for a, b in [s]
        if isinstance(a, int) and isinstance(b, int)
    ]
    return (
        sum(n / max(k, 1) for n, k in (s if trans else s[::-1] for s in sizes))
        if len(sizes) == len(shapes)
        else math.inf
    )


def _is_gemm(graph: Graph, op: Op) -> bool:
    return op.kind in MATMUL_OPS and graph.is_const(op.role("w"))


def _multiplies(graph: Graph, op: Op, value: str) -> bool:
    gates = op.kind == ":swiglu" and all(
        graph.is_const(n) for r, n in op.by_role.items() if r[0] == "w"
    )
    return op.role("x") == value and (_is_gemm(graph, op) or gates)


def multiplies_nbits(op: Op, value: str) -> bool:
    """Whether it multiplies rows by weights of a few bits. These kernels normalise rows on the way,
    whatever the number of columns.
    """
    return op.kind == GEMM_NBITS and op.role("x") == value and op.inputs.count(value) == 1


def with_residuals(graph: Graph, ops: Sequence[Op], outputs: Sequence[str]) -> list[tuple[Op, Op]]:
    """The ops of a partition, each with the one whose work it does. A norm of a sum of rows leaves
    the sum to the GEMM that makes one of them, where GEMMs alone read the norm: then it needs
    no launch.
    """
    maker, read_by = makers(ops), readers(ops)
    instead: dict[int, list[tuple[Op, Op]]] = {}
    for op in ops:
        rows, made = (op.role("x"), op.role("res")), [o for o in op.outputs if o]
        if op.kind not in ROW_NORMS or not all(rows) or op.role("xbias") or len(made) != 2:
            continue
        y, total = made
        read = read_by.get(y, [])
        if graph.dtype(rows[0]) not in (DType.F16, DType.BF16) or y in outputs:
            continue
        if not read or not all(_multiplies(graph, r, y) or multiplies_nbits(r, y) for r in read):
            continue
        if sum(_growth(graph, r) for r in read if not multiplies_nbits(r, y)) > _WIDEST:
            continue
        for value, other in (rows, rows[::-1]):
            gemm = maker.get(value)
            if gemm is None or id(gemm) in instead or not _adds_alone(graph, gemm):
                continue
            if value in outputs or len(read_by[value]) > 1 or value == other:
                continue
            kind = GemmNbitsSpec if gemm.kind == GEMM_NBITS else GemmSpec
            spec = replace(kind.of(gemm.attrs), expr=Expr(2, (Instr("add", (0, 1)),), 2))
            roles = {**gemm.by_role, "e0": other}
            summed = of_roles(spec, roles, (total,), gemm.nodes, gemm.label)
            left = {r: n for r, n in op.by_role.items() if r != "res"} | {"x": total}
            norm = replace(op, inputs=tuple(left.values()), outputs=(y,), by_role=left)
            instead |= {id(gemm): [], id(op): [(summed, gemm), (norm, op)]}
            break
    return [pair for op in ops for pair in instead.get(id(op), [(op, op)])]


def _adds_alone(graph: Graph, op: Op) -> bool:
    """Whether it is a GEMM by a constant that nothing follows but a bias."""
    return (
        op.kind in (":gemm", GEMM_NBITS)
        and graph.is_const(op.role("w"))
        and op.attr("expr") is None
        and len(op.outputs) == 1
    )


def find_candidates(ctx: Lowering, ops: Sequence[Op], outputs: Sequence[str]) -> set[str]:
    """Results of GEMMs whose rows are normalised for GEMMs alone: their statistics are
    wanted.
    """
    graph = ctx.graph
    maker, read_by = makers(ops), readers(ops)

    def adds(op: Op, value: str) -> bool:
        return _is_gemm(graph, op) and op.role("x") != value and op.extras.count(value) == 1

    found: set[str] = set()
    for op in ops:
        if (
            op.kind not in ROW_NORMS
            or op.role("res")
            or op.role("xbias")
            or len([o for o in op.outputs if o]) != 1
        ):
            continue
        x, y = op.role("x"), op.outputs[0]
        read = read_by.get(y, [])
        fit = (
            x in maker
            and _is_gemm(graph, maker[x])
            and y not in outputs
            and all(_multiplies(graph, r, y) or adds(r, y) for r in read)
        )
        widths = [_growth(graph, r) for r in read if _multiplies(graph, r, y)]
        if fit and widths and sum(widths) <= _WIDEST:
            found.add(x)
    return found


def statistics(
    ctx: Lowering,
    name: str,
    dtype: DType,
    rows: DimLike,
    columns: int,
    places: Sequence[tuple[Ref, DimLike]],
) -> Ref | None:
    """Buffer for the row statistics of the GEMM that makes `name`; None where nobody wants them or
    no kernel stores them.

    places: operands that the kernel must reach through tensor maps, with their pitches.
    """
    aligned = all(
        multiple_of(ref.offset) % 16 == 0 and multiple_of(pitch) * dtype.size >= 16
        for ref, pitch in places
    )
    if (
        name not in ctx.needs_row_stats
        or dtype not in (DType.F16, DType.BF16)
        or columns % PANEL
        or not aligned
    ):
        return None
    ctx.statistics[name] = ctx.plan.arena(D.mul(rows, columns // PANEL * _STATISTICS))
    return ctx.statistics[name]


def defer_norm(
    ctx: Lowering,
    op: Op,
    x: Value,
    weights: Mapping[str, str],
    rule: Mapping[str, int],
    eps: float,
    make: Callable[[], None],
) -> bool:
    """Leave this norm over the last axis of x to its readers, where the statistics of x are at
    hand.
    """
    if x.name not in ctx.statistics or op.outputs[0] in ctx.deferred_norms:
        return False
    gamma, beta = (ctx.optional(weights.get(r)) for r in ("gamma", "beta"))
    if any(
        v is not None and not (v.is_constant and v.dtype == x.dtype and v.elements == x.shape[-1])
        for v in (gamma, beta)
    ):
        return False
    out = ctx.define(op.outputs[0], x.dtype, x.shape)
    ctx.deferred_norms[out.name] = DeferredNorm(
        x, ctx.statistics[x.name], gamma, beta, eps, bool(rule["rms"]), rule["gamma_add"]
    )
    ctx.defer(out, "norm", (x,), make)
    return True


def norm_of(ctx: Lowering, v: Value) -> DeferredNorm | None:
    """The deferred norm that `v` is; None where it is none, or a reader materialized it."""
    return ctx.deferred_norms.get(v.name) if v.deferred is not None and v.view is None else None


@dataclass
class Weights:
    """Constants of a GEMM of normalised rows, filled part by part: packed weight, its sums over
    k, bias.
    """

    norm: DeferredNorm
    packed: Ref
    sums: Ref
    bias: Ref

    def add(
        self, ctx: Lowering, w: Value, b: Value | None, params: Mapping[str, int], alpha: float
    ) -> None:
        """params: of pack_gemm, without gamma_add."""
        norm, dtype, at = self.norm, w.dtype, params["n0"]
        gamma = ctx.plain(norm.gamma) if norm.gamma is not None else None
        ints = {**params, "gamma_add": norm.gamma_add}
        inputs = {"w": ctx.plain(w), "gamma": gamma}
        ctx.plan.launch(
            "pack_gemm",
            inputs,
            {"packed": self.packed},
            ints,
            {"alpha": alpha / norm.unscale},
            dtype=dtype,
            more=at > 0,
        )
        given = {
            name: ctx.plain(v) if v is not None else None
            for name, v in (("beta", norm.beta), ("b", b))
        }
        mine = self.packed.at(dtype.size * at * weight_pitch(params["K"], dtype.size))
        size = {name: params[name] for name in ("K", "N", "trans", "ldw")}
        outs = {"sums": self.sums.at(4 * at), "bias": self.bias.at(4 * at)}
        ctx.plan.launch(
            "fold_norm",
            {"w": inputs["w"], "packed": mine, **given},
            outs,
            size,
            {"alpha": alpha, "unscale": norm.unscale},
            dtype=dtype,
            more=at > 0,
        )

    def operands(self) -> dict[str, Ref | None]:
        """Operands that the GEMM reads instead of x and w: folded weights, sums, statistics of
        rows.
        """
        return {
            "w": self.packed,
            "bias": self.bias,
            "x_stats": self.norm.statistics,
            "x_sums": self.sums,
        }

    def ints(self) -> dict[str, DimLike]:
        """Integer parameters of that GEMM."""
        return {"x_rms": int(self.norm.rms)}

    def floats(self) -> dict[str, float]:
        """Float parameters of that GEMM."""
        return {"x_eps": self.norm.eps, "unscale": self.norm.unscale}


def weights(ctx: Lowering, norm: DeferredNorm, packed: Ref, columns: int) -> Weights:
    """Room for them; packed: for so many columns of the GEMM, as pack_gemm fills it."""
    sums, bias = (ctx.plan.arena(4 * (columns + _SLACK)) for _ in range(2))
    return Weights(norm, packed, sums, bias)


def residual(
    ctx: Lowering, norm: DeferredNorm
) -> tuple[dict[str, Ref | None], dict[str, DimLike], dict[str, float]]:
    """Operands and parameters of a residual that is normalised when it is added."""
    n = int(norm.x.shape[-1])
    operands: dict[str, Ref | None] = {"r_stats": norm.statistics}
    for name, v in (("r_gamma", norm.gamma), ("r_beta", norm.beta)):
        if v is not None:
            operands[name] = ctx.packed("pack_bias", {"b": ctx.plain(v)}, {"OC": n}, dtype=v.dtype)
    return operands, {"r_rms": int(norm.rms)}, {"r_eps": norm.eps}
