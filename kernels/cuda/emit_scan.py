"""CUDA kernels for running sums over one axis."""

from __future__ import annotations

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Int32, Kernel, Pointer, Request, Unfit
from tracea_onnx.cuda_source import known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import C_TYPES, prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_axis = registry.module("kernels", "cuda").part("_axis")

_FLOATS = (DType.F32, DType.F16, DType.BF16)
#: Elements of the longest row that a warp goes along alone; those of a thread at a time.
_WARP_ROW, _PER_THREAD = 1024, 8
#: Threads of other blocks; how many blocks a multiprocessor holds; most blocks of a row or of columns.
_BLOCK, _RESIDENT, _MOST = 256, 4, 512
#: Elements of a part of a row: what a block has at a time, but for a vector before and one after.
_PART = _BLOCK * _PER_THREAD - 16
#: Threads of a cluster's block; elements that make another block of it worth it; the most that it can have; most blocks.
_CLUSTER_BLOCK, _CLUSTER_PART, _CLUSTER_MOST, _CLUSTER = 1024, 4096, 1024 * _PER_THREAD - 16, 16


def cumsum(request: Request) -> list[Kernel]:
    i = parameters(request)
    dtype = DType(static(i["dtype"], "element type"))
    if dtype not in (*_FLOATS, DType.I64, DType.I32):
        raise Unfit(f"running sums over {dtype.name}")
    outer, n, inner = i["outer"], i["n"], i["inner"]
    small = _axis.in_slabs(dtype, n, inner, aligned=False)
    rest = _axis.negated(small)
    found = [*_slabs(request, dtype, small)]
    if known(inner) == 1:
        short = _axis.up_to(n, _WARP_ROW)
        long = D.mul(_axis.negated(short), rest)
        length = known(n)
        k, v = _PER_THREAD if length is None else min(-(-length // 32), _PER_THREAD), 16 // dtype.size
        found += _scan(request, dtype, 128, f"scan_rows<1, {k}, 32, 128, 1, @>(x, y, held, outer, n, 1);", D.ceildiv(outer, 4), D.mul(short, rest))
        share, few = _clusters(request)
        vectors = f"{v}, {_PER_THREAD // v}"
        if few != 0:
            body = f"scan_rows<{vectors}, {_CLUSTER_BLOCK}, {_CLUSTER_BLOCK}, {share}, @>(x, y, held, outer, n, {share});"
            found += _scan(request, dtype, _CLUSTER_BLOCK, body, D.mul(outer, share), D.mul(long, few), cluster=share)
        found += _scan(
            request, dtype, _BLOCK, f"scan_rows<{vectors}, {_BLOCK}, {_BLOCK}, 1, @>(x, y, held, outer, n, parts);", outer,
            D.mul(_axis.negated(few), long), _parts(request, outer, D.ceildiv(n, _PART)),
            f"reduce_rows<Policy, {v}, {_BLOCK}, {_BLOCK}>(x, (Policy::Result*)nullptr, held, outer, n, parts);",
        )  # fmt: skip
    else:
        across = _axis.columns(dtype, inner, aligned=False)[1]
        tiles = D.mul(outer, D.ceildiv(inner, across))
        parts = _parts(request, tiles, D.floordiv(n, _BLOCK // across * _PER_THREAD))
        found += _scan(
            request, dtype, _BLOCK, f"scan_columns<{_PER_THREAD}, {across}, {_BLOCK}, @>(x, y, held, n, inner, parts);", tiles, rest,
            parts, f"reduce_columns<Policy, 1, {across}, {_BLOCK}, 1>(x, (Policy::Result*)nullptr, held, n, inner, parts);",
        )  # fmt: skip
    return [k for k in found if k.grid[0] != 0]


def _clusters(request: Request) -> tuple[int, DimLike]:
    """Blocks of the clusters that have a row each, and whether (0 or 1) all have room at once and a row is long enough, but not too long."""
    outer, n = parameters(request)["outer"], parameters(request)["n"]
    if request.arch < 90:
        return 1, 0
    share, rows, length = _CLUSTER, known(outer), known(n)
    if length is not None:
        share = _axis.power_of_two(-(-length // _CLUSTER_PART), 2, _CLUSTER)
        while share > 2 and rows is not None and rows * share > request.sms and length * 2 <= share * _CLUSTER_MOST:
            share //= 2
    fits = D.mul(D.less(_CLUSTER_PART, n), _axis.up_to(n, share * _CLUSTER_MOST))
    return share, D.mul(fits, _axis.up_to(outer, request.sms // share))


def _parts(request: Request, units: DimLike, worth: DimLike) -> DimLike:
    """Blocks that share each of so many rows or tiles of columns, where `worth` would be worth it."""
    return D.maximum(D.minimum(D.minimum(D.floordiv(request.sms * _RESIDENT, D.maximum(units, 1)), worth), _MOST), 1)


def _slabs(request: Request, dtype: DType, use: DimLike) -> list[Kernel]:
    i = parameters(request)
    each, grid = _axis.slabs(request, dtype, i["outer"], D.mul(i["n"], i["inner"]))
    sizes = f"outer, {_axis.literal(i['n'], 'n')}, {_axis.literal(i['inner'], 'inner')}, parts"
    body = f"scan_slabs<{_axis.SLABS}, {_axis.slab_lanes(i['n'])}, {_axis.SLAB_THREADS}, @>(x, y, {sizes});"
    return _scan(request, dtype, _axis.SLAB_THREADS, body, grid, use, each)


def _scan(request: Request, dtype: DType, block: int, body: str, grid: DimLike, use: DimLike, parts: DimLike = 1, before: str = "", cluster: int = 1) -> list[Kernel]:
    """`body` with what it does for @; before it, where a row or column is divided into parts, `before` leaves the sum of each in scratch."""
    i = parameters(request)
    outer, n, inner = i["outer"], i["n"], i["inner"]
    flags = ", ".join("true" if i[k] else "false" for k in ("exclusive", "reverse"))
    divided = bool(before) and parts != 1
    policy = "Fold<kSum>" if dtype in _FLOATS else f"FoldInt<kSum, {C_TYPES[dtype]}>"
    held, pointer = ("Policy::Held* held, ", "held") if divided else ("", "(const Policy::Held*)nullptr")
    start = "next_may_start();\n  if (parts == 1) wait_for_previous();" if divided and known(inner) == 1 else "after_previous();"
    signature = f"const {C_TYPES[dtype]}* x, {C_TYPES[dtype]}* y, {held}int outer, int n, int inner, int parts"
    source = f"""{prelude(dtype if dtype in _FLOATS else DType.F32)}{template("base", "span", "cluster", "reduce", "scan")}
typedef {policy} Policy;
extern "C" __global__ void __launch_bounds__({block}) cumsum({signature}) {{
  {start}
  {body.replace("@", flags).replace("held", pointer)}
}}
"""
    args: tuple[Argument, ...] = (
        Pointer("x"), Pointer("y"), *([Pointer("scratch0")] if divided else []), Int32(outer), Int32(n), Int32(inner), Int32(parts),
    )  # fmt: skip
    pdl = overlapped(request)
    blocks = D.mul(grid, use)
    if not divided:
        return [Kernel(source, "cumsum", (blocks, 1, 1), block, args, cluster=cluster, pdl=pdl)]
    source += f"""extern "C" __global__ void __launch_bounds__({block}) cumsum_parts({signature}) {{
  wait_for_previous();
  next_may_start();  // what x holds can be read
  {before}
}}
"""
    blocks = D.mul(blocks, parts)
    scratch = (D.product([outer, parts, inner, max(dtype.size, 4), use]),)
    first = Kernel(source, "cumsum_parts", (D.mul(blocks, D.less(1, parts)), 1, 1), block, args, pdl=pdl, scratch=scratch)
    return [first, Kernel(source, "cumsum", (blocks, 1, 1), block, args, pdl=pdl, scratch=scratch)]


FAMILIES = {"cumsum": cumsum}
