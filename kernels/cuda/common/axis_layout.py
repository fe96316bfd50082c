"""How kernels over an axis n of [outer, n, inner] are laid out: what a thread, a block and the
device have of it.
"""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from .launch import known, size_hint, vector_width

#: Bytes of slabs that a block has in shared memory, and the largest slab of which that many are
#: worth it.
SLABS, SLAB = 16384, 1024
#: Longest contiguous row that is read through shared memory, in elements.
SLAB_ROW = 48
#: Bytes of a row of columns of which a thread has one vector; columns so short that this is always
#: best, and threads of a multiprocessor that make it so for others, the first of these where they
#: are up to FLAT_FEW long.
FLAT_ROW, FLAT_SHORT, FLAT_FEW, FLAT_THREADS = 128, 8, 32, (256, 384)
#: Threads of a block that has slabs.
SLAB_THREADS = 256
#: How many times as many slabs for each turn of a block's threads make it worth having fewer of
#: them; elements of a column without bounds.
_IDLE, LONG = 1.1, 1 << 31


def negated(condition: DimLike) -> DimLike:
    return D.sub(1, condition)


def up_to(n: DimLike, most: DimLike) -> DimLike:
    """Whether n <= most."""
    return negated(D.less(most, n))


def literal(value: DimLike, name: str) -> str:
    """A number as such, which saves divisions, or the parameter of that name."""
    number = known(value)
    return name if number is None else str(number)


def power_of_two(n: int, least: int, most: int) -> int:
    """The smallest power of two that is at least n, within bounds that are powers of two."""
    return min(max(1 << max(n - 1, 0).bit_length(), least), most)


def direct(dtype: DType, n: DimLike, aligned: bool) -> int:
    """Elements of a vector of contiguous rows that are nothing but vectors of at least eight bytes;
    0: they are not.
    """
    v = vector_width(dtype, n)
    return v if aligned and known(n) and v * dtype.size >= 8 else 0


def in_slabs(
    dtype: DType, n: DimLike, inner: DimLike, aligned: bool, longest: int = SLAB_ROW
) -> DimLike:
    """Whether [n, inner] is so small (contiguous rows: up to `longest`) that blocks bring several
    to shared memory.
    """
    if known(inner) == 1:
        return 0 if direct(dtype, n, aligned) else up_to(n, longest)
    return up_to(D.mul(n, inner), SLAB // dtype.size)


def in_wide_slabs(
    request: Request, dtype: DType, outer: DimLike, n: DimLike, inner: DimLike
) -> DimLike:
    """Whether [n, inner] of few columns, which do not begin at multiples of 8 elements, fits a
    block and is one for every multiprocessor.
    """
    across = known(inner)
    if across is None or across == 1 or across * dtype.size >= FLAT_ROW or across % 8 == 0:
        return 0
    return D.mul(up_to(D.mul(n, inner), SLABS // dtype.size), D.less(request.sms - 1, outer))


def flat(
    request: Request,
    dtype: DType,
    outer: DimLike,
    n: DimLike,
    inner: DimLike,
    aligned: bool,
    most: int,
) -> int:
    """Elements of a vector of columns of which threads have all n each, next to each other: where
    these are at most `most`, a row of columns is worth a transaction, and there are threads for the
    whole device or columns are as short as a thread may ask for at once; 0: not so.
    """
    length, across = known(n), known(inner)
    if not length or across is None or length > most or across * dtype.size < FLAT_ROW:
        return 0
    w = columns(dtype, inner, aligned)[0]
    threads = request.sms * FLAT_THREADS[length > FLAT_FEW]
    return (
        w if length <= FLAT_SHORT or known(D.less(D.mul(outer, across // w), threads)) == 0 else 0
    )


def slabs(request: Request, dtype: DType, outer: DimLike, slab: DimLike) -> tuple[DimLike, DimLike]:
    """(slabs of a block, blocks): blocks for the whole device first."""
    each = D.maximum(
        D.minimum(
            D.floordiv(SLABS // dtype.size, D.maximum(slab, 1)), D.ceildiv(outer, request.sms * 4)
        ),
        1,
    )
    return each, D.ceildiv(outer, each)


def slab_lanes(n: DimLike) -> int:
    """Lanes for each column of a slab: about eight elements each."""
    length = known(n)
    return 4 if length is None else power_of_two(-(-length // 8), 1, 32)


def slab_columns(
    request: Request, dtype: DType, outer: DimLike, n: DimLike, inner: DimLike, most: int = LONG
) -> tuple[DimLike, DimLike, int]:
    """(slabs of a block, blocks, lanes for each column). Lanes that join what they have of a column
    cost more than they bring: no more than leave a block's threads one column each, unless these
    had more than `most` elements. Fewer slabs where the last turn would leave most threads without
    a column.
    """
    each, grid = slabs(request, dtype, outer, D.mul(n, inner))
    length, across = known(n), known(inner)
    if not length or not across:
        return each, grid, slab_lanes(n)
    # as many as where there are enough for all blocks
    count = known(each) or max(SLABS // dtype.size // (length * across), 1)
    spare: int = max(SLAB_THREADS // (count * across), 1)
    lanes = max(
        min(1 << spare.bit_length() - 1, slab_lanes(n)), power_of_two(-(-length // most), 1, 32)
    )
    turns = -(-count * across * lanes // SLAB_THREADS)
    fewer = SLAB_THREADS * (turns - 1) // (across * lanes)
    if turns * fewer > _IDLE * (turns - 1) * count:
        each = D.minimum(each, fewer)
        grid = D.ceildiv(outer, each)
    return each, grid, lanes


def columns(dtype: DType, inner: DimLike, aligned: bool) -> tuple[int, int]:
    """(elements of a vector, vectors next to each other) of a block that reads down columns."""
    w = min(vector_width(dtype, inner), 8 // dtype.size) if aligned else 1
    length = known(inner)
    return max(w, 1), 32 if length is None else power_of_two(-(-length // max(w, 1)), 1, 32)


def column_tiles(outer: DimLike, inner: DimLike, w: int, across: int) -> DimLike:
    """Blocks of `across` vectors of w columns, in the next row of columns where one ends (`Column`
    of reduce/reduce.cuh).
    """
    return D.ceildiv(D.mul(outer, across if across == 4 else D.ceildiv(inner, w)), across)


#: Bytes of a row that make it worth another block of a cluster; blocks of one where it is not known
#: how many would do.
_PART, CLUSTER = 16384, 8


def clusters(request: Request, rows: DimLike, n: DimLike, usual: int = 0) -> tuple[int, DimLike]:
    """Blocks of the clusters that share rows of n elements, and whether (0 or 1) there are so few
    and long ones that all clusters run at once. usual: rows to choose by where they are not
    known.
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
