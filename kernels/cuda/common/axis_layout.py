"""Layout of kernels that reduce or scan axis n of [outer, n, inner].

- rows: inner = 1, so each [n] is contiguous.
- columns: inner > 1; a thread reads vectors of neighbouring columns and goes down n.
- flat: each thread has all n elements of its columns.
- staged: a CTA copies several whole [n, inner] matrices to shared memory.

Functions that return 0 or 1 (a `DimLike`) decide at run time where sizes are symbolic.
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .launch import known, size_hint, vector_width

#: Shared memory of a CTA for staged matrices, and the largest matrix that is staged, in bytes.
STAGE_BYTES, LARGEST_STAGED = 16384, 1024
#: Longest contiguous row that is staged, in elements.
STAGED_ROW = 48
#: Flat layout: least bytes of [inner]; longest n for which it is always taken; threads per SM that
#: it needs for longer n, up to FLAT_FEW and beyond.
FLAT_ROW, FLAT_SHORT, FLAT_FEW, FLAT_THREADS = 128, 8, 32, (256, 384)
#: Threads of a CTA with staged matrices.
STAGED_THREADS = 256
#: Fewer matrices are staged where this factor more of them fit a full iteration of the CTA; length
#: of a column without bounds.
_IDLE, LONG = 1.1, 1 << 31


def negated(condition: DimLike) -> DimLike:
    return D.sub(1, condition)


def up_to(n: DimLike, most: DimLike) -> DimLike:
    """Whether n <= most."""
    return negated(D.less(most, n))


def literal(value: DimLike, name: str) -> str:
    """C++ text of a size: its value if known (which saves divisions), else the parameter."""
    number = known(value)
    return name if number is None else str(number)


def power_of_two(n: int, least: int, most: int) -> int:
    """The smallest power of two that is at least n, within bounds that are powers of two."""
    return min(max(1 << max(n - 1, 0).bit_length(), least), most)


def direct(dtype: DType, n: DimLike, aligned: bool) -> int:
    """Elements of a vector where contiguous rows consist of aligned vectors of 8 bytes or more,
    else 0.
    """
    v = vector_width(dtype, n)
    return v if aligned and known(n) and v * dtype.size >= 8 else 0


def staged(
    dtype: DType, n: DimLike, inner: DimLike, aligned: bool, longest: int = STAGED_ROW
) -> DimLike:
    """Whether [n, inner] is small enough to be staged; longest: of contiguous rows, in elements."""
    if known(inner) == 1:
        return 0 if direct(dtype, n, aligned) else up_to(n, longest)
    return up_to(D.mul(n, inner), LARGEST_STAGED // dtype.size)


def staged_wide(
    request: Request, dtype: DType, outer: DimLike, n: DimLike, inner: DimLike
) -> DimLike:
    """Whether [n, inner] with few, unaligned columns (inner no multiple of 8) is staged: it fits a
    CTA, and there is at least one for each SM.
    """
    across = known(inner)
    if across is None or across == 1 or across * dtype.size >= FLAT_ROW or across % 8 == 0:
        return 0
    return D.mul(up_to(D.mul(n, inner), STAGE_BYTES // dtype.size), D.less(request.sms - 1, outer))


def flat(
    request: Request,
    dtype: DType,
    outer: DimLike,
    n: DimLike,
    inner: DimLike,
    aligned: bool,
    most: int,
) -> int:
    """Elements of a vector of columns in the flat layout; 0 where another layout is better. Flat
    needs n <= most, inner long enough for full memory transactions, and n short or enough threads
    for the device.
    """
    length, across = known(n), known(inner)
    if not length or across is None or length > most or across * dtype.size < FLAT_ROW:
        return 0
    w = columns(dtype, inner, aligned)[0]
    threads = request.sms * FLAT_THREADS[length > FLAT_FEW]
    return (
        w if length <= FLAT_SHORT or known(D.less(D.mul(outer, across // w), threads)) == 0 else 0
    )


def staged_grid(
    request: Request, dtype: DType, outer: DimLike, matrix: DimLike
) -> tuple[DimLike, DimLike]:
    """(matrices per CTA, CTAs) for matrices of so many elements; the device is filled first."""
    each = D.maximum(
        D.minimum(
            D.floordiv(STAGE_BYTES // dtype.size, D.maximum(matrix, 1)),
            D.ceildiv(outer, request.sms * 4),
        ),
        1,
    )
    return each, D.ceildiv(outer, each)


def staged_lanes(n: DimLike) -> int:
    """Lanes that share a column of a staged matrix: about eight elements each."""
    length = known(n)
    return 4 if length is None else power_of_two(-(-length // 8), 1, 32)


def staged_columns(
    request: Request, dtype: DType, outer: DimLike, n: DimLike, inner: DimLike, most: int = LONG
) -> tuple[DimLike, DimLike, int]:
    """(matrices per CTA, CTAs, lanes per column).

    Combining lanes costs more than it saves. So a column gets no more lanes than there are spare
    threads, unless a thread would have more than `most` elements. A CTA stages fewer matrices
    where most of its threads would idle in the last iteration.
    """
    each, grid = staged_grid(request, dtype, outer, D.mul(n, inner))
    length, across = known(n), known(inner)
    if not length or not across:
        return each, grid, staged_lanes(n)
    # of a CTA where outer fills the device
    count = known(each) or max(STAGE_BYTES // dtype.size // (length * across), 1)
    spare: int = max(STAGED_THREADS // (count * across), 1)
    lanes = max(
        min(1 << spare.bit_length() - 1, staged_lanes(n)), power_of_two(-(-length // most), 1, 32)
    )
    iterations = -(-count * across * lanes // STAGED_THREADS)
    fewer = STAGED_THREADS * (iterations - 1) // (across * lanes)
    if iterations * fewer > _IDLE * (iterations - 1) * count:
        each = D.minimum(each, fewer)
        grid = D.ceildiv(outer, each)
    return each, grid, lanes


def columns(dtype: DType, inner: DimLike, aligned: bool) -> tuple[int, int]:
    """(elements of a vector, neighbouring vectors) of a CTA in the column layout."""
    w = min(vector_width(dtype, inner), 8 // dtype.size) if aligned else 1
    length = known(inner)
    return max(w, 1), 32 if length is None else power_of_two(-(-length // max(w, 1)), 1, 32)


def column_tiles(outer: DimLike, inner: DimLike, w: int, across: int) -> DimLike:
    """CTAs of `across` vectors of w columns. A CTA may span the end of one [inner] and the start of
    the next (`Column` of reduce/reduce.cuh).
    """
    return D.ceildiv(D.mul(outer, across if across == 4 else D.ceildiv(inner, w)), across)


#: Least bytes of a row for each CTA of a cluster; cluster size where sizes are symbolic.
_PART, CLUSTER = 16384, 8


def clusters(request: Request, rows: DimLike, n: DimLike, usual: int = 0) -> tuple[int, DimLike]:
    """(CTAs of a cluster that shares one row of n elements, use). use (0 or 1): whether rows are so
    few and so long that all clusters run at once. usual: the number of rows to assume where it is
    symbolic.
    """
    if request.arch < 90:
        return 1, 0
    share = request.caps.largest_cluster(
        min(
            1
            << max(
                request.sms // max(size_hint(rows, usual or request.sms // CLUSTER), 1), 1
            ).bit_length()
            - 1,
            16,
        )
    )
    length = known(n)
    share = min(share, CLUSTER) if usual and length is None else share
    while share > 1 and length is not None and length * request.dtype.size < share * _PART:
        share //= 2
    if share == 1:
        return 1, 0
    return share, D.mul(
        up_to(rows, request.sms // share), D.less(share * _PART // request.dtype.size - 1, n)
    )
