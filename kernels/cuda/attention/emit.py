"""CUDA kernels for attention: decoding kernels where query rows are few, else FlashAttention-3 on
Hopper, FlashAttention-2 for 16-bit operands elsewhere, and for f32 3xTF32 or FFMA.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracea_onnx.codegen.kernel_request import Int32, Kernel, Pointer, Request
from tracea_onnx.codegen.size_ranges import dispatch
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr_program import compile_program
from tracea_onnx.ir.pointwise_ops import Code
from tracea_onnx.plan import kernel_families as families

from ..common.epilogue import Parameter
from ..common.instantiate import instantiate, ints, longs
from ..common.launch import moved, parameters, size_hint
from ..pointwise.pointwise import pointwise
from . import fa2, problem, simt
from .decode import config as decode
from .decode import select
from .decode.config import DecodeConfig
from .fa3_sm90 import config as fa3
from .problem import Problem


def configs(request: Request, p: Problem) -> list[tuple[Any, DimLike]]:
    """Configurations worth having, and for each whether it is the one for the sizes of a run."""
    cached = "lens" in request.operands
    few, all_rows = (
        (decode.simt_configs(request, p), False) if cached else select.configs(request, p)
    )
    if all_rows:
        return few
    left: DimLike = 1
    for _, use in few:
        left = D.mul(left, D.sub(1, use))
    others: list[tuple[Any, DimLike]]
    if request.dtype == DType.F32:
        others = simt.configs(request, p)
    elif request.arch == 90 and not cached:
        rows = select.as_rows(request)
        others = [*fa3.configs(rows, problem.problem(rows))]
    else:
        others = [(fa2.config(request), 1)]
    return [*few, *((c, D.mul(use, left)) for c, use in others if left != 0)]


def attention(request: Request) -> list[Kernel]:
    i = request.ints
    if "lens" in request.operands:
        return _kernels(request)
    if not isinstance(i["S"], Dim) or i["T"] is i["S"]:
        return _kernels(request)
    one = D.equal(i["S"], 1)  # a step of decoding
    return dispatch(
        [(one, _kernels(replace(request, ints={**i, "S": 1}))), (D.sub(1, one), _kernels(request))]
    )


def _unquantised(request: Request) -> Request:
    """The attention alone."""
    kinds = families.FAMILIES["attention"]
    ints = {n: d for n, d in request.ints.items() if n in kinds.ints}
    floats = {n: v for n, v in request.floats.items() if n in kinds.floats}
    return replace(request, family="attention", ints=ints, floats=floats)


def _quantised(request: Request, count: DimLike, place: str, use: DimLike) -> list[Kernel]:
    """What quantises `count` results at `place`."""
    code = Code(("x",))
    quotient = code.op("round", code.op("div", -1, code.const(request.floats["q_scale"])))
    kind, zero = DType(int(request.ints["q_dtype"])), float(request.ints["q_zero"])
    limits = np.iinfo(numpy_type(int(kind)))
    ends = (code.const(float(v)) for v in (limits.min, limits.max))
    made = code.finish(code.op("clip", code.op("add", quotient, code.const(zero)), *ends))
    sizes: dict[str, DimLike] = dict.fromkeys(("n0", "n1", "n2", "n3", "n4"), 1)
    sizes |= {"n5": count, "x0_5": 1, "x0_dtype": int(request.dtype), "y_dtype": int(kind)}
    launch = replace(
        request, family="pointwise", dtype=DType.F32, ints=sizes, floats={},
        operands=frozenset({"x0", "y"}), constant=frozenset(),
        program=compile_program(made, type="f32", joins=False, named=False),
    )  # fmt: skip
    return [
        moved(replace(k, grid=(D.mul(k.grid[0], use), *k.grid[1:])), {"x0": Pointer(place)})
        for k in pointwise(launch)
    ]


def _kernels(request: Request) -> list[Kernel]:
    p = problem.problem(request)
    # where configurations are chosen for a range of a batch that is known at run time
    batch = size_hint(request.ints["B"], 0)
    sized = replace(request, ints={**request.ints, "B": batch}) if batch else request
    chosen, quantises = configs(sized, p), problem.quantises(request)
    rows = select.as_rows(request)  # for configurations of many rows
    by_tma: DimLike = 0
    apart: DimLike = 0  # whether another launch quantises
    for c, use in chosen:
        by_tma = D.add(by_tma, use) if isinstance(c, fa3.Fa3Config) else by_tma
        if quantises and not fa3.stores_rows(c):
            apart = D.add(apart, use)
    kernels, repacked, places = _repacked(rows, p, by_tma) if by_tma != 0 else ([], rows, {})
    scratch = list(kernels[0].scratch) if kernels else []
    count, between = D.product([request.ints[n] for n in ("B", "S", "H", "DV")]), ""
    if apart != 0:
        between = f"scratch{len(scratch)}"
        scratch.append(D.product([count, request.dtype.size, apart]))
    for c, use in chosen:
        place, alone = f"scratch{len(scratch)}", quantises and not fa3.stores_rows(c)
        of_tma, of_rows, of_all = (
            _unquantised(r) if alone else r for r in (repacked, rows, request)
        )
        merged = problem.problem(of_rows)
        if isinstance(c, fa3.Fa3Config):
            made = c.kernels(of_tma, merged, use, place, places)
            part = c.scratch(of_tma, p, use)
        else:
            stream = isinstance(c, DecodeConfig) and c.compute == "stream"
            made = c.kernels(*((of_rows, merged) if stream else (of_all, p)), use, place)
            part = c.scratch(of_all, p, use)
        kernels += [moved(k, {"y": Pointer(between)}) for k in made] if alone else made
        scratch += [] if part is None else [part]
    if apart != 0:
        kernels += _quantised(request, count, between, apart)
    return [replace(k, scratch=tuple(scratch)) for k in kernels]


def _repacked(
    request: Request, p: Problem, use: DimLike
) -> tuple[list[Kernel], Request, dict[str, str]]:
    """Copies of the operands that TMA cannot read: the launch that makes them, the request with the
    copies' pitches, and where they lie.
    """
    i = parameters(request)
    operands = [o for o in "qkv" if not fa3.copied(request, o)]
    if not operands:
        return [], request, {}
    pitches, given = dict(request.ints), list[Parameter]()
    constants: dict[str, int] = {}
    scratch: list[DimLike] = []
    most: DimLike = 0
    for n, name in enumerate("abc"):
        o = operands[min(n, len(operands) - 1)]  # those of a missing operand are not read
        heads, rows = i["H" if o == "q" else "KVH"], i["S" if o == "q" else "T"]
        row = -(-p.size(o) // 8) * 8
        given += [
            ("const T*", name, Pointer(o)),
            ("T*", f"{name}_to", Pointer(f"scratch{n}")),
            *longs({f"{name}_{a}": i[f"{o}_{a}"] for a in "bsh"}),
            *ints({f"{name}_heads": heads, f"{name}_rows": rows}),
        ]
        constants |= {
            f"SIZE_{name.upper()}": p.size(o),
            f"READ_{name.upper()}": problem.access(request, p, o),
        }
        if n < len(operands):
            step = {"b": D.product([heads, rows, row]), "s": row, "h": D.mul(rows, row)}
            pitches |= {f"{o}_{a}": d for a, d in step.items()}
            count = D.product([i["B"], heads, rows, row])
            scratch.append(D.mul(count, 2))
            most = D.maximum(most, D.floordiv(count, 8))
    kernel = instantiate(
        request,
        "attention_repack",
        "attention/repack",
        [*given, ("int", "batch", Int32(i["B"]))],
        (D.mul(D.minimum(D.ceildiv(most, 256), 8 * request.sms), use), len(operands), 1),
        256,
        constants=constants,
        scratch=tuple(scratch),
    )
    readable = replace(request, ints=pitches, unaligned=request.unaligned - set(operands))
    return [kernel], readable, {o: f"scratch{n}" for n, o in enumerate(operands)}


FAMILIES = {"attention": attention, "attention_quantised": attention}
