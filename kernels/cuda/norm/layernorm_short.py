"""How norms of short rows are laid out (`layernorm_short.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import axis_layout
from ..common.launch import known, parameters, vector_width

#: Longest row that some lanes of a warp have, in elements; the most vectors that a lane has of it
#: by choice, and where all lanes of a warp have one.
LONGEST, _VECTORS, _MOST = 1024, 8, 16
#: Elements that a lane has of a row: where many rows are read from one tensor; else fewer, so that
#: more are on their way at a time.
_ELEMENTS, _FEWER = 24, 8
#: Instructions for an element, a step of the sums, and besides, about.
_ELEMENT, _STEP, _REST = 8, 4, 40
#: Threads of a block where few threads are needed, and where there are more than so many for each
#: multiprocessor: blocks start only so fast.
_THREADS, _LARGE, _MANY = 128, 256, 512
#: Single elements of two bytes go through shared memory where rows are this long, where so many
#: tensors have them and so many bytes a multiprocessor.
_SLAB_ROW, _SLAB_TENSORS, _SLAB_BYTES = 16, 4, 16384


@dataclass(frozen=True)
class Short:
    """K vectors of V elements in each of LANES lanes; each > 0: by slabs of so many rows. grid:
    blocks.
    """

    v: int
    k: int
    lanes: int
    grid: DimLike
    threads: int
    each: DimLike = 0


def shapes(request: Request, rows: DimLike, tensors: int, outputs: int) -> list[Short]:
    """The kernels for rows that are short enough; none where they are not. tensors: those with such
    rows, of which so many are outputs.
    """
    length = known(parameters(request)["N"])
    if length is None or not 0 < length <= LONGEST:
        return []
    v = _width(request, length)
    few = divided(length, v, _FEWER)
    if few is None:
        return []
    many = D.less(request.sms * _MANY, D.mul(rows, few[1]))
    slabs: DimLike = 0
    if (
        request.family == "layernorm"
        and v * request.dtype.size == 2
        and length >= _SLAB_ROW
        and tensors >= _SLAB_TENSORS
    ):
        slabs = D.less(request.sms * _SLAB_BYTES, D.mul(rows, length * request.dtype.size))
    large = few if tensors - outputs > 1 else divided(length, v, _ELEMENTS) or few
    out = []
    for (k, lanes), threads, use in (
        (few, _THREADS, axis_layout.negated(many)),
        (large, _LARGE, many),
    ):
        out.append(
            Short(
                v,
                k,
                lanes,
                D.product([D.ceildiv(rows, threads // lanes), use, axis_layout.negated(slabs)]),
                threads,
            )
        )
    if slabs != 0:
        each, grid = axis_layout.slabs(request, request.dtype, rows, length)
        out.append(Short(1, *few, D.mul(grid, slabs), axis_layout.SLAB_THREADS, each))
    return [s for s in out if s.grid != 0]


def divided(n: int, v: int, most: int) -> tuple[int, int] | None:
    """(vectors of a lane, lanes) for rows of n elements, a lane with `most` at most if that can be:
    the fewest instructions.
    """
    vectors = -(-n // v)
    found = [(-(-vectors // lanes), lanes) for lanes in (1, 2, 4, 8, 16, 32)]
    fit = [
        (k, lanes)
        for k, lanes in found
        if k <= _VECTORS and k * v <= most and (lanes >= 4 or k == 1 or k * v <= 3)
    ]
    if not fit:
        return found[-1] if found[-1][0] <= _MOST else None
    return min(fit, key=lambda f: f[1] * (f[0] * v * _ELEMENT + f[1].bit_length() * _STEP + _REST))


def _width(request: Request, n: int) -> int:
    """Elements of a vector that all rows consist of, wherever they begin."""
    i = parameters(request)
    if request.unaligned & request.operands:
        return 1
    pitches = (
        [
            i[f"x{k}_{p}"]
            for k in range(4)
            for p in (("ld",) if f"i{k}" in request.operands else ("o", "i"))
        ]
        if request.family == "layernorm_sum"
        else []
    )
    return vector_width(request.dtype, n, *(multiple_of(p) for p in pitches))
