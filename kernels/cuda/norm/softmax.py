"""Softmax and log-softmax over any axis; `common/axis_layout.py` defines the layouts."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import axis_layout
from ..common.instantiate import instance, ints, invoke, pointer
from ..common.launch import known, parameters, size_hint

#: Most elements of a row in the registers of a thread, where a warp or the largest CTA has the row;
#: half of it in other CTAs.
_PER_THREAD = 32
#: Several warps per row: `w` of _WARPS where a lane of one warp would have at least w vectors and
#: there are at most _FEW_ROWS rows per SM; the last of _WARPS up to _SOME_ROWS rows per SM and
#: vector, where a lane of one warp would have at least _LONG bytes.
_WARPS, _FEW_ROWS, _SOME_ROWS, _LONG = (8, 4), 8, 4, 64
#: Longest staged row of symbolic length, in elements. Longest misaligned row that is read by single
#: elements, by element size. Elements of it per lane, if less than a warp has the row: where at
#: most _LANES lanes per SM are needed, and beyond.
_STAGED_ROW, _SINGLE_ROW, _EACH, _LANES = 48, {2: 90, 4: 256}, (4, 8), 1024
#: Longest rows (bytes) that are read by 8-byte vectors where they consist of these; longer ones are
#: read by 16-byte vectors and single elements at the ends.
_EDGES = 200
#: Most elements per lane for half a warp per row; with at least _MANY rows per SM, and at most
#: _VECTORS vectors per lane.
_HALF, _HALF_MANY, _MANY, _VECTORS = 8, 16, 64, 5
#: (threads per row, most vectors per thread) for rows of symbolic length: aligned and misaligned.
_SOME, _SOME_ODD = ((4, 1), (16, 1), (32, 2), (32, 8), (256, 4)), ((16, 1), (32, 8), (256, 4))
#: Longest column of a staged matrix; longest column in the flat layout, and threads of its CTA.
_STAGED_COLUMN, _FLAT, _FLAT_BLOCK = 1024, 16, 128
#: Most elements of a staged column per lane before lanes share it.
_STAGED_ELEMENTS = 32
#: Matrices of one CTA each, staged where the column layout would read columns twice: longest column
#: in registers; most bytes; longest column in shared memory, with more matrices than SMs.
_LARGE_COLUMN, _LARGE_MATRIX, _SHARED_COLUMN = 1536, 40960, 4096
#: Column layout: elements of a column in a thread's registers (`DEPTH` of softmax.cuh); least
#: elements per thread for another CTA of a cluster.
_DEPTH, _LEAST = 8, 4


def softmax(request: Request) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    small = (
        0
        if known(inner) == 1 and (known(n) is not None or _whole(request))
        else axis_layout.staged(request.dtype, n, inner, _aligned(request), _STAGED_ROW)
    )
    if (known(n) or _STAGED_COLUMN + 1) <= _STAGED_COLUMN:
        small = D.maximum(small, axis_layout.staged_wide(request, request.dtype, outer, n, inner))
    if small == 0 and _again(request):
        small = 1
    rest = axis_layout.negated(small)
    found = [
        _staged(request, small),
        *(_rows(request, rest) if known(inner) == 1 else _columns(request, rest)),
    ]
    return [k for k in found if k.grid[0] != 0]


def _sizes(request: Request) -> tuple[DimLike, DimLike, DimLike]:
    return parameters(request)["outer"], parameters(request)["n"], parameters(request)["inner"]


def _aligned(request: Request) -> bool:
    return not request.unaligned & {"x", "y"}


def _whole(request: Request) -> bool:
    """Whether contiguous rows are known to consist of aligned 16-byte vectors."""
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


def _staged(request: Request, use: DimLike) -> Kernel:
    outer, n, inner = _sizes(request)
    each, grid, lanes = axis_layout.staged_columns(
        request, request.dtype, outer, n, inner, _STAGED_ELEMENTS
    )
    sizes = f"outer, {axis_layout.literal(n, 'n')}, {axis_layout.literal(inner, 'inner')}, each"
    length = known(n) or 0
    per = -(-length // lanes) if length <= _LARGE_COLUMN else 0
    room = max(axis_layout.STAGE_BYTES, (known(D.mul(n, inner)) or 0) * request.dtype.size)
    threads = axis_layout.STAGED_THREADS
    forms = (-(-room // 1024) * 1024, lanes, per, threads, _log(request))
    body = "pdl_launch_dependents(); " + invoke("softmax_staged", forms, f"x, y, {sizes}")
    return _kernel(request, threads, body, D.mul(grid, use), each)


def _rows(request: Request, use: DimLike) -> list[Kernel]:
    """Contiguous rows: part of a warp, a warp, a CTA or a cluster per row."""
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
    """Column layout: (elements of a vector, neighbouring vectors, threads of a CTA, CTAs of a
    cluster, whether (0 or 1) clusters are used).
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
    """Whether the column layout would read columns twice while [n, inner], of few columns and
    without bank conflicts, fits the shared memory of a CTA.
    """
    outer, n, inner = _sizes(request)[0], *(known(d) for d in _sizes(request)[1:])
    longest = _SHARED_COLUMN if known(D.less(request.sms, outer)) == 1 else _LARGE_COLUMN
    if (
        not n
        or not inner
        or inner == 1
        or inner % 8 == 0
        or n > longest
        or n * inner * request.dtype.size > _LARGE_MATRIX
    ):
        return False
    _, across, threads, share, few = _column_blocks(request)
    return n > _DEPTH * (threads // across) * (share if few != 0 else 1)


def _columns(request: Request, use: DimLike) -> list[Kernel]:
    outer, n, inner = _sizes(request)
    if w := axis_layout.flat(request, request.dtype, outer, n, inner, _aligned(request), _FLAT):
        given = f"x, y, outer, {axis_layout.literal(inner, 'inner')}"
        forms = (w, str(n), _FLAT_BLOCK, _log(request))
        body = "pdl_launch_dependents(); " + invoke("softmax_flat", forms, given)
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
        body = "pdl_launch_dependents(); " + invoke("softmax_columns", columns, "x, y, n, inner")
        kernels.append(
            _kernel(request, threads, body, D.product([units, blocks, chosen, use]), cluster=blocks)
        )
    return kernels


FAMILIES = {"softmax": softmax}
