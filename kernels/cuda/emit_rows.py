"""CUDA kernels over rows: softmax, LayerNorm and RMSNorm, rotary embedding."""

from __future__ import annotations

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Float32, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.cuda_source import blocks, known, overlapped, parameters, template, vector_width
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike

#: Elements of a row that one thread keeps in registers.
_PER_THREAD = 32


def row_shape(request: Request, n: DimLike) -> tuple[int, int, int]:
    """(V, K, threads) of rows of n elements: K vectors of V elements in each thread's registers; K = 0 when n is symbolic or too long."""
    length, widest = known(n), 16 // request.dtype.size
    if length is None:
        return widest, 0, 256
    v = vector_width(request.dtype, length)
    vectors = -(-length // v)
    for threads in (32, 128, 256, 512, 1024):
        k = -(-vectors // threads)
        if k * v <= (_PER_THREAD if threads in (32, 1024) else _PER_THREAD // 2):
            return v, max(k, 1), threads
    return v, 0, 1024


def _grid(rows: DimLike, threads: int) -> tuple[tuple[DimLike, DimLike, DimLike], int]:
    """Grid and block: four rows a block when a warp has a row, else one."""
    return ((D.ceildiv(rows, 4), 1, 1), 128) if threads == 32 else ((rows, 1, 1), threads)


def softmax(request: Request) -> list[Kernel]:
    outer, n, inner = (parameters(request)[k] for k in ("outer", "n", "inner"))
    log = "true" if parameters(request)["log"] else "false"
    head = prelude(request.dtype) + template("base", "rows")
    if known(inner) == 1:
        v, k, threads = row_shape(request, n)
        grid, block = _grid(outer, threads)
        source = f"""{head}
extern "C" __global__ void __launch_bounds__({block}) softmax(const T* x, T* y, int rows, int n) {{
  after_previous();
  softmax_rows<{v}, {k}, {threads}, {log}>(x, y, rows, n);
}}
"""
        return [Kernel(source, "softmax", grid, block, (Pointer("x"), Pointer("y"), Int32(outer), Int32(n)), pdl=overlapped(request))]
    source = f"""{head}
extern "C" __global__ void __launch_bounds__(256) softmax(const T* x, T* y, int outer, int n, int inner) {{
  after_previous();
  softmax_columns<{log}>(x, y, outer, n, inner);
}}
"""
    grid = (blocks(D.mul(outer, inner), 256, request.sms * 8), 1, 1)
    return [Kernel(source, "softmax", grid, 256, (Pointer("x"), Pointer("y"), Int32(outer), Int32(n), Int32(inner)), pdl=overlapped(request))]


def layernorm(request: Request) -> list[Kernel]:
    rows, n, rms = parameters(request)["rows"], parameters(request)["N"], bool(parameters(request)["rms"])
    v, k, threads = row_shape(request, n)
    grid, block = _grid(rows, threads)
    present = [o for o in ("x", "res", "xbias", "gamma", "beta", "y", "skip") if o in request.operands and not (rms and o == "beta")]
    places = {o: o if o in present else "nullptr" for o in ("x", "res", "xbias", "gamma", "beta", "y", "skip")}
    early = "true" if request.operands & {"gamma", "beta"} <= request.constant else "false"
    plus = "1.f" if parameters(request)["gamma_add"] else "0.f"
    signature = ", ".join(f"{'' if o in ('y', 'skip') else 'const '}T* {o}" for o in present)
    source = f"""{prelude(request.dtype)}{template("base", "rows")}
extern "C" __global__ void __launch_bounds__({block}) layernorm({signature}, int rows, int n, float eps) {{
  norm_rows<{v}, {k}, {threads}, {early}>(Norm{{{", ".join(places.values())}, n, {"true" if rms else "false"}, {plus}, eps}}, rows);
}}
"""
    args: tuple[Argument, ...] = (*(Pointer(o) for o in present), Int32(rows), Int32(n), Float32(request.floats["eps"]))
    return [Kernel(source, "layernorm", grid, block, args, pdl=overlapped(request))]


def rope(request: Request) -> list[Kernel]:
    i = parameters(request)
    flags = ", ".join("true" if i[k] else "false" for k in ("interleaved", "full"))
    sizes, strides = ("S", "H", "D", "rot"), ("x_b", "x_s", "x_h", "y_b", "y_s", "y_h", "c_b", "c_s")
    signature = ", ".join([f"int {s}" for s in sizes] + [f"i64 {s}" for s in strides])
    source = f"""{prelude(request.dtype)}{template("base", "rows")}
extern "C" __global__ void __launch_bounds__(256) rope(const T* x, const T* cosines, const T* sines, T* y, int B, {signature}) {{
  after_previous();
  rope_pairs<{flags}>(x, cosines, sines, y, B, Rope{{{", ".join(sizes + strides)}}});
}}
"""
    work = i["D"] - D.floordiv(i["rot"], 2)
    grid = (blocks(D.product([i["B"], i["S"], i["H"], work]), 256, request.sms * 8), 1, 1)
    args: tuple[Argument, ...] = (
        *(Pointer(o) for o in ("x", "cos", "sin", "y")), Int32(i["B"]), *(Int32(i[s]) for s in sizes), *(Int64(i[s]) for s in strides),
    )  # fmt: skip
    return [Kernel(source, "rope", grid, 256, args, pdl=overlapped(request))]


FAMILIES = {"softmax": softmax, "layernorm": layernorm, "rope": rope}
