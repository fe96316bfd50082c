"""CUDA kernels for softmax and log-softmax over any axis."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import axis_layout
from ..common.instantiate import instance, ints, invoke, pointer
from ..common.launch import known, parameters, size_hint

#: Elements of a row that one thread keeps in registers, where a warp or the largest CTA has the
#: row; half of it in other CTAs.
_PER_THREAD = 32
#: So many warps have a row of at least as many vectors for each lane of one where there are at most
#: so many rows for each SM; the last of them, where rows are counted and a lane of one
#: had so many bytes, up to so many times those vectors.
_WARPS, _FEW_ROWS, _SOME_ROWS, _LONG = (8, 4), 8, 4, 64
#: Elements of the longest contiguous row, its length not known, that is read through shared memory;
#: of the longest that is no whole vectors and of which lanes take single elements, by the size of
#: one; how many of them each of these takes, if no warp has the row, where the device has room for
#: all of them, and where not.
_SLAB_ROW, _SINGLE_ROW, _EACH, _LANES = 48, {2: 90, 4: 256}, (4, 8), 1024
#: Bytes of the longest rows that are read by vectors of eight bytes, if these are all of them;
#: longer ones by sixteen between their first and last elements.
_EDGES = 200
#: Elements of vectors that each lane of half a warp takes, and where there are so many rows for
#: each SM, of so many vectors.
_HALF, _HALF_MANY, _MANY, _VECTORS = 8, 16, 64, 5
#: Threads that have rows of unknown length, and vectors of each at most, where rows are whole
#: vectors and where not.
_SOME, _SOME_ODD = ((4, 1), (16, 1), (32, 2), (32, 8), (256, 4)), ((16, 1), (32, 8), (256, 4))
#: Elements of the longest column of a slab that lanes of a warp keep in registers; of the longest
#: of which a thread keeps all, and its CTA.
_SLAB_COLUMN, _FLAT, _FLAT_BLOCK = 1024, 16, 128
#: Elements of a slab's column that one thread keeps in registers rather than share them with a
#: neighbour.
_SLAB_ELEMENTS = 32
#: The same of a slab that has a CTA alone, of up to so many bytes, where columns would be read
#: twice; of one whose columns stay in shared memory, where there are more slabs than
#: SMs.
_LARGE_COLUMN, _LARGE_SLAB, _SHARED_COLUMN = 1536, 40960, 4096
#: Elements of a column that one thread keeps in registers (`DEPTH` of softmax.cuh), and how few
#: make another CTA of a cluster worth it.
_DEPTH, _LEAST = 8, 4


def softmax(request: Request) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    small = (
        0
        if known(inner) == 1 and (known(n) is not None or _whole(request))
        else axis_layout.in_slabs(request.dtype, n, inner, _aligned(request), _SLAB_ROW)
    )
    if (known(n) or _SLAB_COLUMN + 1) <= _SLAB_COLUMN:
        small = D.maximum(small, axis_layout.in_wide_slabs(request, request.dtype, outer, n, inner))
    if small == 0 and _again(request):
        small = 1
    rest = axis_layout.negated(small)
    found = [
        _slabs(request, small),
        *(_rows(request, rest) if known(inner) == 1 else _columns(request, rest)),
    ]
    return [k for k in found if k.grid[0] != 0]


def _sizes(request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return parameters(request)["outer"], parameters(request)["n"], parameters(request)["inner"]


def _aligned(request: Request) -> bool:
    return not request.unaligned & {"x", "y"}


def _whole(request: Request) -> bool:
    """Whether contiguous rows are known to be vectors of 16 bytes, however many."""
    return _aligned(request) and multiple_of(_sizes(request)[1]) * request.dtype.size >= 16


def _kernel(
    request: Request, block: int, body: str, grid: DimLike, each: DimLike = 0, cluster: int = 1
) -> Kernel:
    outer, n, inner = _sizes(request)
    given = [
        pointer("const T", "x"),
        pointer("T", "y"),
        *ints({"outer": outer, "n": n, "inner": inner, "each": each}),
    ]
    return instance(request, "softmax", "norm/softmax", given, grid, block, body, cluster=cluster)


def _log(request: Request) -> bool:
    return bool(parameters(request)["log"])


def _slabs(request: Request, use: DimLike) -> Kernel:
    outer, n, inner = _sizes(request)
    each, grid, lanes = axis_layout.slab_columns(
        request, request.dtype, outer, n, inner, _SLAB_ELEMENTS
    )
    sizes = f"outer, {axis_layout.literal(n, 'n')}, {axis_layout.literal(inner, 'inner')}, each"
    length = known(n) or 0
    per = -(-length // lanes) if length <= _LARGE_COLUMN else 0
    room = max(axis_layout.SLABS, (known(D.mul(n, inner)) or 0) * request.dtype.size)
    threads = axis_layout.SLAB_THREADS
    forms = (-(-room // 1024) * 1024, lanes, per, threads, _log(request))
    body = "next_may_start(); " + invoke("softmax_slabs", forms, f"x, y, {sizes}")
    return _kernel(request, threads, body, D.mul(grid, use), each)


def _rows(request: Request, use: DimLike) -> list[Kernel]:
    """A row for some lanes of a warp, a warp, a CTA or a cluster."""
    outer, n, _ = _sizes(request)
    length, widest = known(n), 16 // request.dtype.size
    if length is None:
        whole, longer, kernels = _whole(request), use, list[Kernel]()
        for lanes, vectors in _SOME if whole else _SOME_ODD:
            k = min(vectors, (_PER_THREAD if lanes == 32 else _PER_THREAD // 2) // widest)
            fits = axis_layout.up_to(n, lanes * k * widest)
            kernels.append(
                _row_kernel(request, widest, k, lanes, 1, D.mul(fits, longer), edges=not whole)
            )
            longer = D.mul(axis_layout.negated(fits), longer)
        share, few = axis_layout.clusters(request, outer, n)
        for blocks, chosen in ((1, axis_layout.negated(few)), (share, few)):
            kernels.append(
                _row_kernel(request, widest, 0, 512, blocks, D.mul(longer, chosen), edges=not whole)
            )
        return kernels
    v = axis_layout.direct(request.dtype, n, _aligned(request))
    if 0 < v < widest and length * request.dtype.size > _EDGES:
        v = 0
    else:
        v = v or int(length <= _SINGLE_ROW[request.dtype.size])
    kernels = []
    share, few = axis_layout.clusters(request, outer, n)
    vectors = length // (v or widest)
    each = _EACH[known(D.less(D.mul(outer, -(-length // _EACH[0])), request.sms * _LANES)) != 1]
    many = known(D.less(outer, request.sms * _MANY)) == 0
    for threads in (1, 2, 4, 8, 16, 32, 128, 256, 512, 1024):
        k = max(-(-vectors // threads), 1)
        most = (
            _PER_THREAD
            if threads in (32, 1024)
            else _PER_THREAD // 2
            if threads > 32
            else each
            if v == 1
            else widest
        )
        if threads == 16 and v != 1:
            most = _HALF_MANY if many and k <= _VECTORS else _HALF
        if k * (v or widest) <= most and (v or threads >= 2 * widest - 2):
            break
    else:
        k, threads = 0, 1024
    alone = D.mul(axis_layout.negated(few), use)
    warps = next((w for w in _WARPS if k >= w), 1)
    limit = request.sms * _FEW_ROWS
    if (
        warps > 1
        and known(D.less(limit, outer)) == 1
        and k * (v or widest) * request.dtype.size >= _LONG
    ):
        warps, limit = _WARPS[-1], request.sms * _SOME_ROWS * k
    wide = axis_layout.up_to(outer, limit) if threads == 32 and warps > 1 else 0
    kernels.append(
        _row_kernel(
            request,
            v or widest,
            k,
            threads,
            1,
            D.mul(axis_layout.negated(wide), alone),
            edges=not v,
        )
    )
    if wide != 0:
        kernels.append(
            _row_kernel(
                request, v or widest, -(-k // warps), 32 * warps, 1, D.mul(wide, alone), edges=not v
            )
        )
    if few != 0:
        for threads in (512, 1024):
            k = -(-vectors // (threads * share))
            if k * (v or widest) <= (_PER_THREAD if threads == 1024 else _PER_THREAD // 2):
                break
        else:
            k = 0
        kernels.append(
            _row_kernel(request, v or widest, k, threads, share, D.mul(few, use), edges=not v)
        )
    return kernels


def _row_kernel(
    request: Request, v: int, k: int, lanes: int, blocks: int, use: DimLike, *, edges: bool = True
) -> Kernel:
    outer = _sizes(request)[0]
    block = max(lanes, 128)
    forms = (v, k, lanes, blocks, block, _log(request), edges)
    body = invoke("softmax_rows", forms, "x, y, outer, n")
    return _kernel(
        request,
        block,
        body,
        D.mul(D.mul(D.ceildiv(outer, block // lanes), blocks), use),
        cluster=blocks,
    )


def _column_blocks(request: Request) -> tuple[int, int, int, int, DimLike]:
    """(elements of a vector, vectors next to each other, threads of a CTA, CTAs of a cluster,
    whether (0 or 1) clusters run).
    """
    outer, n, inner = _sizes(request)
    w, across = axis_layout.columns(request.dtype, inner, _aligned(request))
    units, length = D.mul(outer, D.ceildiv(inner, w * across)), known(n)
    threads = (
        256
        if length is None
        else axis_layout.power_of_two(across * -(-length // _DEPTH), 64, 1024 // min(w, 2))
    )
    down = threads // across
    share = 1
    few: DimLike = 0
    if request.arch >= 90 and down > 1:
        share = min(
            1
            << max(
                request.sms // max(size_hint(units, request.sms // axis_layout.CLUSTER), 1), 1
            ).bit_length()
            - 1,
            16,
        )
        share = request.caps.largest_cluster(share)
        while share > 1 and length is not None and length < share * down * _LEAST:
            share //= 2
        if share > 1:
            few = D.mul(
                axis_layout.up_to(units, request.sms // share), D.less(share * down * _LEAST - 1, n)
            )
    return w, across, threads, share, few


def _again(request: Request) -> bool:
    """Whether CTAs that go down columns would read them twice where one has room for [n, inner]
    of few columns, which do not meet in few banks.
    """
    outer, n, inner = _sizes(request)[0], *(known(d) for d in _sizes(request)[1:])
    longest = _SHARED_COLUMN if known(D.less(request.sms, outer)) == 1 else _LARGE_COLUMN
    if (
        not n
        or not inner
        or inner == 1
        or inner % 8 == 0
        or n > longest
        or n * inner * request.dtype.size > _LARGE_SLAB
    ):
        return False
    _, across, threads, share, few = _column_blocks(request)
    return n > _DEPTH * (threads // across) * (share if few != 0 else 1)


def _columns(request: Request, use: DimLike) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    if w := axis_layout.flat(request, request.dtype, outer, n, inner, _aligned(request), _FLAT):
        given = f"x, y, outer, {axis_layout.literal(inner, 'inner')}"
        forms = (w, str(n), _FLAT_BLOCK, _log(request))
        body = "next_may_start(); " + invoke("softmax_flat", forms, given)
        return [
            _kernel(
                request,
                _FLAT_BLOCK,
                body,
                D.mul(D.ceildiv(D.mul(outer, D.floordiv(inner, w)), _FLAT_BLOCK), use),
            )
        ]
    w, across, threads, share, few = _column_blocks(request)
    units, length, down = D.mul(outer, D.ceildiv(inner, w * across)), known(n), threads // across
    kernels = []
    for blocks, chosen in ((1, axis_layout.negated(few)), (share, few)):
        if chosen == 0:
            continue
        kept = length is not None and length <= _DEPTH * down * blocks
        columns = (w, across, threads, blocks, _log(request), kept)
        body = "next_may_start(); " + invoke("softmax_columns", columns, "x, y, n, inner")
        kernels.append(
            _kernel(request, threads, body, D.product([units, blocks, chosen, use]), cluster=blocks)
        )
    return kernels


FAMILIES = {"softmax": softmax}
