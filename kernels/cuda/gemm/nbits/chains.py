"""Norm of rows, GEMM with few-bit weights and gate (family `gemm_nbits_norm`): one kernel for few
rows, a launch for each of them for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.codegen.size_ranges import above, dispatch
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.kernel_families import FAMILIES as _FAMILIES

from ...common.instantiate import sizes
from ...common.launch import chained, known, static
from ...norm.layernorm import layernorm
from ...pointwise.pointwise import pointwise
from . import stream_rows
from .emit import gemm_nbits
from .layout import FLOATS, layout_of


def _gemm(r: Request) -> list[Kernel]:
    ints = {name: d for name, d in r.ints.items() if name in _FAMILIES["gemm_nbits"].ints}
    return gemm_nbits(replace(r, family="gemm_nbits", ints=ints))


def _steps(r: Request, columns: int) -> list[Kernel]:
    """Launches one after the other: norm, GEMM, gate; columns: of the result."""
    m, k, size = r.ints["M"], r.ints["K"], r.dtype.size
    normed, gated = stream_rows.normed(r), stream_rows.gated(r)
    between: list[DimLike] = []
    steps: list[tuple[list[Kernel], Mapping[str, tuple[int, DimLike]]]] = []
    places: dict[str, tuple[int, DimLike]] = {}
    weights = {"gamma", "beta"}
    if normed:
        ints: dict[str, DimLike] = {"rows": m, "N": k, **sizes(r, "rms", "gamma_add")}
        rows = replace(
            r, family="layernorm", ints=ints, program=None,
            operands=(r.operands & {"x", *weights}) | {"y"},
        )  # fmt: skip
        places["x"] = len(between), 0
        steps.append((layernorm(rows), {"y": places["x"]}))
        between.append(D.mul(m, D.mul(k, size)))
    whole = replace(r, operands=r.operands - weights)
    if gated:
        places["y"] = len(between), 0
        between.append(D.mul(m, 2 * columns * size))
        ints = {**r.ints, "N": 2 * columns, "ldy": 2 * columns}
        whole = replace(whole, ints=ints, program=None)
    steps.append((_gemm(whole), places))
    if gated:
        ints = dict.fromkeys(("n0", "n1", "n2", "n3"), 1)
        ints |= {"n4": m, "n5": columns, "y_dtype": int(r.dtype)}
        for j in range(2):
            ints |= {f"x{j}_4": 2 * columns, f"x{j}_5": 1, f"x{j}_dtype": int(r.dtype)}
        gate = replace(
            r, family="pointwise", dtype=DType.F32, ints=ints,
            operands=frozenset({"x0", "x1", "y"}), constant=frozenset(),
        )  # fmt: skip
        b, _ = places["y"]
        steps.append((pointwise(gate), {"x0": (b, 0), "x1": (b, columns * size)}))
    return chained(steps, between)


def gemm_nbits_norm(r: Request) -> list[Kernel]:
    n, m = static(r.ints["N"], "N"), r.ints["M"]
    at = layout_of(replace(r, ints={**r.ints, "N": n * (1 + stream_rows.gated(r))}))
    most = 0 if at.zeros == FLOATS else stream_rows.most_rows(r, at, n)
    choices: list[tuple[DimLike, list[Kernel]]] = []
    low = 0
    for rows in dict.fromkeys((min(1, most), most)):
        if not rows or (within := known(D.less(m, rows + 1))) == 0:
            continue
        tile = stream_rows.tile(r, at, n, rows)
        assert tile is not None
        above_low: DimLike = D.less(low, m) if low else 1
        few = [stream_rows.emit(r, at, n, tile)]
        if within == 1:
            return dispatch([*choices, (above_low, few)]) if choices else few
        choices.append((D.mul(above_low, D.less(m, rows + 1)), few))
        low = rows
    with above(m, low, None) if low else nullcontext():
        more = _steps(r, n)
    return dispatch([*choices, (D.less(low, m), more)]) if choices else more


FAMILIES = {"gemm_nbits_norm": gemm_nbits_norm}
