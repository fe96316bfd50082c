"""CUDA kernels for reductions over one axis and argmax."""

from __future__ import annotations

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Int32, Kernel, Pointer, Request, Unfit
from tracea_onnx.cuda_source import blocks, known, overlapped, parameters, static, template, vector_width
from tracea_onnx.cuda_text import C_TYPES, prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_KINDS = ("kSum", "kMean", "kMax", "kMin", "kProd", "kL1", "kL2", "kSumSquare", "kLogSum", "kLogSumExp")
_FLOATS = (DType.F32, DType.F16, DType.BF16)
#: Longest row that a warp reduces alone.
_WARP_ROW = 1024


def _sizes(request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return parameters(request)["outer"], parameters(request)["n"], parameters(request)["inner"]


def _element(request: Request) -> DType:
    return DType(static(parameters(request)["dtype"], "element type"))


def _threads(n: DimLike) -> int:
    length = known(n)
    return 32 if length is not None and length <= _WARP_ROW else 256


def reduce(request: Request) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    dtype, kind = _element(request), _KINDS[static(parameters(request)["kind"], "reduction")]
    sizes: tuple[Argument, ...] = (Int32(outer), Int32(n), Int32(inner))
    if dtype not in _FLOATS:
        if dtype not in (DType.I64, DType.I32) or kind not in ("kSum", "kMax", "kMin", "kProd"):
            raise Unfit(f"a reduction of kind {kind[1:]} over {dtype.name}")
        a = C_TYPES[dtype]
        body, grid, block = f"reduce_integers<{kind}, {a}>(x, y, outer, n, inner);", blocks(D.mul(outer, inner), 8, request.sms * 8), 256
    elif known(inner) == 1:
        a, threads = "T", _threads(n)
        v = vector_width(dtype, n) if known(n) is not None else 16 // dtype.size
        body = f"reduce_rows<{kind}, {v}, {threads}>(x, y, outer, n);"
        grid, block = (D.ceildiv(outer, 4), 128) if threads == 32 else (outer, threads)
    else:
        a, body, grid, block = "T", f"reduce_columns<{kind}>(x, y, n, inner);", D.mul(outer, D.ceildiv(inner, 32)), 256
    source = f"""{prelude(dtype if dtype in _FLOATS else DType.F32)}{template("base", "reduce")}
extern "C" __global__ void __launch_bounds__({block}) reduce(const {a}* x, {a}* y, int outer, int n, int inner) {{
  after_previous();
  {body}
}}
"""
    return [Kernel(source, "reduce", (grid, 1, 1), block, (Pointer("x"), Pointer("y"), *sizes), pdl=overlapped(request))]


def argmax(request: Request) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    dtype, threads = _element(request), _threads(n)
    if dtype not in (*_FLOATS, DType.I64):
        raise Unfit(f"an argmax over {dtype.name}")
    flags = ", ".join("true" if parameters(request)[k] else "false" for k in ("min", "last"))
    block = 128 if threads == 32 else threads
    source = f"""{prelude(dtype if dtype in _FLOATS else DType.F32)}{template("base", "reduce")}
extern "C" __global__ void __launch_bounds__({block}) argmax(const {C_TYPES[dtype]}* x, i64* y, int outer, int n, int inner) {{
  after_previous();
  argmax_rows<{C_TYPES[dtype]}, {flags}, {threads}>(x, y, outer, n, inner);
}}
"""
    results = D.mul(outer, inner)
    grid = D.ceildiv(results, 4) if threads == 32 else results
    grid = D.select(D.equal(n, 0), 0, grid)  # an empty axis has no extremum
    return [Kernel(source, "argmax", (grid, 1, 1), block, (Pointer("x"), Pointer("y"), Int32(outer), Int32(n), Int32(inner)), pdl=overlapped(request))]


FAMILIES = {"reduce": reduce, "argmax": argmax}
