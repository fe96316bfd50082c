"""CUDA kernels for data movement: strided copies and transpositions, fills, gathers, layout changes."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Fault, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.cuda_source import WORDS, blocks, known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import C_TYPES, prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.lower.context import merge_dims
from tracea_onnx.ops import DType

#: Images of at most this many channels change layout a pixel at a time.
_NARROW = 16
#: Shorter sides than this are not worth a 64 x 64 tile.
_TILE_SIDE = 16


def _head() -> str:
    return prelude(DType.F32) + template("base", "strided")


def _grid(units: DimLike, request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return (blocks(units, 256, request.sms * 8), 1, 1)


def strided_copy(request: Request, elem: int, shape: Sequence[DimLike], xs: Sequence[DimLike], ys: Sequence[DimLike]) -> list[Kernel]:
    """y[sum i_d * ys_d] = x[sum i_d * xs_d] for elements of `elem` bytes."""
    rows = merge_dims(shape, [xs, ys]) or [(1, [1, 1])]
    n, xs, ys = [r[0] for r in rows], [r[1][0] for r in rows], [r[1][1] for r in rows]
    rank, word = len(rows), WORDS[elem]
    turned = _turned_dim(n, xs, ys)
    if turned is None:
        body = f"copy_strided<{word}, {rank}>(x, y, n, xs, ys);"
        units = D.product(n) if any(known(s) != 1 for s in (xs[-1], ys[-1])) else D.ceildiv(D.product(n), 16 // elem)
        grid = _grid(D.maximum(units, D.minimum(D.product(n), 1)), request)
    else:
        body = f"copy_turned<{word}, {rank}, {turned}>(x, y, n, xs, ys);"
        grid = (D.product([D.ceildiv(d, 64) if k in (turned, rank - 1) else d for k, d in enumerate(n)]), 1, 1)
    signature = ", ".join([f"int n{k}" for k in range(rank)] + [f"i64 {s}{k}" for s in ("xs", "ys") for k in range(rank)])
    arrays = "".join(f"  const {c} {a}[{rank}] = {{{', '.join(f'{a}{k}' for k in range(rank))}}};\n" for c, a in (("int", "n"), ("i64", "xs"), ("i64", "ys")))
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) copy(const {word}* x, {word}* y, {signature}) {{
  after_previous();
{arrays}  {body}
}}
"""
    args: tuple[Argument, ...] = (Pointer("x"), Pointer("y"), *map(Int32, n), *map(Int64, xs), *map(Int64, ys))
    return [Kernel(source, "copy", grid, 256, args, pdl=overlapped(request))]


def _turned_dim(n: Sequence[DimLike], xs: Sequence[DimLike], ys: Sequence[DimLike]) -> int | None:
    """The dim along which the source is contiguous while the target is contiguous along the last, when both are long enough for tiles."""
    last = len(n) - 1

    def long(d: DimLike) -> bool:
        size = known(d)
        return size is None or size >= _TILE_SIDE

    if known(ys[last]) != 1 or known(xs[last]) in (0, 1) or not long(n[last]):
        return None
    return next((d for d in range(last) if known(xs[d]) == 1 and long(n[d])), None)


def copy(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape, xs, ys = ([i[f"{p}{k}"] for k in range(6)] for p in "nxy")
    return strided_copy(request, static(i["elem"], "element size"), shape, xs, ys)


def copy_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape = [i["N"], i["H"], i["W"], i["C"]]
    xs, ys = ([i[f"{p}_ns"], i[f"{p}_rs"], i[f"{p}_cs"], 1] for p in ("x", "y"))
    return strided_copy(request, request.dtype.size, shape, xs, ys)


def fill(request: Request) -> list[Kernel]:
    elem, count = static(parameters(request)["elem"], "element size"), parameters(request)["count"]
    word = WORDS[elem]
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) fill_kernel({word}* y, i64 count, i64 value) {{ after_previous(); fill<{word}>(y, count, value); }}
"""
    return [
        Kernel(source, "fill_kernel", _grid(count, request), 256, (Pointer("y"), Int64(count), Int64(parameters(request)["value"])), pdl=overlapped(request))
    ]


def store_ints(request: Request) -> list[Kernel]:
    count = static(parameters(request)["count"], "element count")
    dtype = DType(static(parameters(request)["dtype"], "element type"))
    source = f"""{_head()}
extern "C" __global__ void store_ints({C_TYPES[dtype]}* y, {", ".join(f"i64 v{k}" for k in range(count))}) {{
  after_previous();
  if (threadIdx.x == 0) {{ {" ".join(f"y[{k}] = v{k};" for k in range(count))} }}
}}
"""
    if count == 0:
        return []
    return [Kernel(source, "store_ints", (1, 1, 1), 32, (Pointer("y"), *(Int64(parameters(request)[f"v{k}"]) for k in range(count))), pdl=overlapped(request))]


def range_(request: Request) -> list[Kernel]:
    dtype, count = DType(static(parameters(request)["dtype"], "element type")), parameters(request)["count"]
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) range({C_TYPES[dtype]}* y, i64 count, i64 start, i64 delta) {{
  after_previous();
  for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < count; k += i64(gridDim.x) * blockDim.x) y[k] = {C_TYPES[dtype]}(start + k * delta);
}}
"""
    args: tuple[Argument, ...] = (Pointer("y"), Int64(count), Int64(parameters(request)["start"]), Int64(parameters(request)["delta"]))
    return [Kernel(source, "range", _grid(count, request), 256, args, pdl=overlapped(request))]


def _gather(request: Request, name: str) -> list[Kernel]:
    i = parameters(request)
    word, index = WORDS[static(i["elem"], "element size")], C_TYPES[DType(static(i["idx_dtype"], "index type"))]
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) {name}_kernel(const {word}* x, const {index}* idx, {word}* y, int outer, int n, int inner, int count, u32* fault) {{
  after_previous();
  {name}<{word}, {index}>(x, idx, y, outer, n, inner, count, fault);
}}
"""
    args: tuple[Argument, ...] = (Pointer("x"), Pointer("idx"), Pointer("y"), *(Int32(i[k]) for k in ("outer", "n", "inner", "count")), Fault())
    return [Kernel(source, f"{name}_kernel", _grid(D.product([i["outer"], i["count"], i["inner"]]), request), 256, args, pdl=overlapped(request))]


def gather(request: Request) -> list[Kernel]:
    return _gather(request, "gather")


def gather_elements(request: Request) -> list[Kernel]:
    return _gather(request, "gather_elements")


def _change_layout(request: Request, to_nhwc: bool) -> list[Kernel]:
    i, side = parameters(request), "y" if to_nhwc else "x"
    word, flag = WORDS[request.dtype.size], "true" if to_nhwc else "false"
    channels, plane = known(i["C"]), D.mul(i["H"], i["W"])
    if channels is not None and channels <= _NARROW:
        body, grid = f"change_narrow<{flag}, {channels}>(x, y, Image{{C, H, W, cs, rs, ns}}, N);", _grid(D.mul(i["N"], plane), request)
        if channels == 0:
            return []
    else:
        body = f"change_layout<{flag}>(x, y, Image{{C, H, W, cs, rs, ns}});"
        grid = (D.product([i["N"], D.ceildiv(plane, 64), D.ceildiv(i["C"], 64)]), 1, 1)
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) layout(const {word}* x, {word}* y, int N, int C, int H, int W, int cs, i64 rs, i64 ns) {{
  after_previous();
  {body}
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"), Pointer("y"), *(Int32(i[k]) for k in ("N", "C", "H", "W")), Int32(i[f"{side}_cs"]), Int64(i[f"{side}_rs"]), Int64(i[f"{side}_ns"]),
    )  # fmt: skip
    return [Kernel(source, "layout", grid, 256, args, pdl=overlapped(request))]


def nchw_to_nhwc(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=True)


def nhwc_to_nchw(request: Request) -> list[Kernel]:
    return _change_layout(request, to_nhwc=False)


def zero_border(request: Request) -> list[Kernel]:
    i, word = parameters(request), WORDS[request.dtype.size]
    names = ("N", "H", "W", "PT", "PL", "PB", "PR")
    source = f"""{_head()}
extern "C" __global__ void __launch_bounds__(256) border({word}* y, {", ".join(f"int {n}" for n in names)}, int cs, i64 rs, i64 ns) {{
  after_previous();
  zero_border<{word}>(y, {", ".join(names)}, cs, rs, ns);
}}
"""
    total = D.product([i["N"], i["H"] + i["PT"] + i["PB"], i["W"] + i["PL"] + i["PR"], i["y_cs"]])
    args: tuple[Argument, ...] = (Pointer("y"), *(Int32(i[n]) for n in names), Int32(i["y_cs"]), Int64(i["y_rs"]), Int64(i["y_ns"]))
    return [Kernel(source, "border", _grid(total, request), 256, args, pdl=overlapped(request))]


FAMILIES = {
    "copy": copy, "copy_nhwc": copy_nhwc, "fill": fill, "store_ints": store_ints, "range": range_, "gather": gather, "gather_elements": gather_elements,
    "nchw_to_nhwc": nchw_to_nhwc, "nhwc_to_nchw": nhwc_to_nchw, "zero_border": zero_border,
}  # fmt: skip
