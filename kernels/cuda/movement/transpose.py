"""Transposes: copies whose target and source are contiguous along different dims; the choice of
these dims and of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.launch import WORDS, known, size_hint

#: Least length of a side for tiles; sides below _TILE_FILL are extended by adjacent dims.
_TILE_SIDE, _TILE_FILL = 8, 32
#: Tiles of 256 threads; fixed cost of a tile, in elements; tiles per SM.
_TILES = tuple(
    (r, c)
    for r in (16, 32, 64, 128, 256, 512)
    for c in (8, 16, 32, 64, 128, 256)
    if 1024 <= r * c <= 4096 and r * min(c, 32) >= 256 <= c * min(r, 32)
)
_TILE_COST, _TILE_LEAST = 1500, 4
#: Tiles of short lines (transpose.cuh): most elements by element size; least elements for a full
#: CTA; most lines.
_ROOM, _LITTLE, _LINES = {1: 4096, 2: 2048, 4: 4096, 8: 2048}, 1024, 512
#: They beat whole tiles where these would be filled less than _FILLED, or lines have at most
#: _SECTOR bytes and matrices _LARGE_MATRIX elements; they beat single elements from _SINGLE
#: elements on, for matrices of at most _MATRIX.
_FILLED, _SECTOR, _LARGE_MATRIX, _SINGLE, _MATRIX = 0.5, 32, 1 << 16, 100_000, 1 << 14
#: Rows that stay contiguous use such tiles up to _SHORT_ROW bytes from _MANY_ROWS elements on, or,
#: for elements of 8 bytes, where the tensor exceeds L2 (_LARGE bytes).
_SHORT_ROW, _MANY_ROWS, _LARGE = 12, 1 << 19, 64 << 20

Sides = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Tiled:
    """The call of a tiled transpose, and its number of CTAs."""

    call: str
    blocks: DimLike


def _side(dims: Sequence[int], strides: str) -> str:
    """C++ text of a Side (one element where there are no dims)."""
    sizes, steps = [f"n{k}" for k in dims] or ["1"], [f"{strides}{k}" for k in dims] or ["0"]
    return f"Side<{len(sizes)}>{{{{{', '.join(sizes)}}}, {{{', '.join(steps)}}}}}"


def transposed_dims(
    n: Sequence[DimLike], xs: Sequence[DimLike], ys: Sequence[DimLike]
) -> Sides | None:
    """Dims, innermost first, along which the target is one run, and those along which the source is
    one, when both runs are long enough for tiles.
    """
    last = len(n) - 1
    inner = next((d for d in range(last) if known(xs[d]) == 1), None)
    if known(ys[last]) != 1 or known(xs[last]) in (0, 1) or inner is None:
        return None
    sides = ([last], [inner])
    for side, strides in zip(sides, (ys, xs), strict=True):
        while (size := size_hint(D.product([n[k] for k in side]), _TILE_FILL)) < _TILE_FILL:
            after = next(
                (
                    k
                    for k in range(last)
                    if k not in sides[0] + sides[1]
                    and strides[k] == D.mul(n[side[-1]], strides[side[-1]])
                ),
                None,
            )
            if after is None:
                break
            side.append(after)
        if size < _TILE_SIDE:
            return None
    return sides


def _call(name: str, forms: Sequence[int], elem: int, sides: Sides, outer: Sequence[int]) -> str:
    down, across = sides
    places = (
        f"{_side(down, 'xs')}, {_side(across, 'ys')}, {_side(outer, 'xs')}, {_side(outer, 'ys')}"
    )
    return f"{name}<{WORDS[elem]}, {', '.join(map(str, forms))}>(x, y, {places})"


def whole_tiles(elem: int, n: Sequence[DimLike], sides: Sides, sms: int) -> tuple[str, DimLike]:
    """The call of `copy_transposed`, and its number of CTAs."""
    outer = [k for k in range(len(n) - 1, -1, -1) if k not in (*sides[0], *sides[1])]
    lengths, count = (
        [D.product([n[k] for k in side]) for side in sides],
        D.product([n[k] for k in outer]),
    )
    high, wide = _tile(elem, lengths, count, sms)
    blocks = D.product([D.ceildiv(lengths[0], high), D.ceildiv(lengths[1], wide), count])
    return _call("copy_transposed", (high, wide), elem, sides, outer), blocks


def _tile(elem: int, sides: Sequence[DimLike], count: DimLike, sms: int) -> tuple[int, int]:
    """Rows and columns of a tile (`transpose_block` of transpose.cuh)."""
    height, width, outer = (size_hint(d, 0) for d in (*sides, count))
    if not height or not width:
        return 64, 64

    def cost(rows: int, columns: int) -> float:
        """Cost of all tiles, in waves. Short lines cost their padding to whole sectors."""
        tiles = -(-height // rows) * -(-width // columns) * (outer or sms)
        runs = 1 + 64 / (elem * min(rows, height)) + 32 / (elem * min(columns, width))
        return max(tiles, _TILE_LEAST * sms) * (_TILE_COST + rows * columns) * runs

    return min(_TILES, key=lambda tile: cost(*tile))


def short_lines(
    elem: int,
    n: Sequence[DimLike],
    xs: Sequence[DimLike],
    ys: Sequence[DimLike],
    whole: Sides | None,
    sms: int,
) -> Tiled | None:
    """`copy_tiles`, where it is better than whole tiles of those sides, or than single elements if
    there are none.
    """
    sizes = [size_hint(size, 0) for size in n]
    total, left, kept = math.prod(sizes), list(range(len(n) - 1, -1, -1)), 1
    if not total or 0 in xs or known(D.less(D.product(n), 1 << 31)) != 1:
        return None
    if xs[-1] == ys[-1] == 1:
        left.pop(0)
        if (size := known(n[-1])) is None:
            return None
        kept = size
    sides = _lines(n, xs, ys, left, kept, elem)
    if sides is None:
        return None
    height, width = (math.prod(sizes[d] for d in side) for side in sides)
    if kept > 1:
        large = elem == 8 and total * elem >= _LARGE
        worth = (
            kept * elem <= 512 and kept % 2 == 1
            if large
            else elem == 4 and kept * elem <= _SHORT_ROW and total > _MANY_ROWS
        )
    else:
        worth = (
            height * width < _MATRIX and total >= _SINGLE
            if whole is None
            else _wasteful(elem, sizes, whole, sms)
        )
    if not worth:
        return None
    layers, rows, columns = _layers(
        elem, height, width, kept, total // (height * width * kept), sms
    )
    lines, outer = (
        (D.product([n[d] for d in side]) for side in sides),
        D.product([n[d] for d in left]),
    )
    blocks = [
        D.ceildiv(size, each)
        for size, each in zip((*lines, outer), (rows, columns, layers), strict=True)
    ]
    return Tiled(
        _call("copy_tiles", (layers, rows, columns, kept), elem, sides, left), D.product(blocks)
    )


def _lines(
    n: Sequence[DimLike],
    xs: Sequence[DimLike],
    ys: Sequence[DimLike],
    left: list[int],
    kept: int,
    elem: int,
) -> Sides | None:
    """Dims of the lines of the target and of the source, innermost first, taken from `left`; lines
    go on while they are short.
    """
    sides: Sides = ([], [])
    for side, strides in zip(sides, (ys, xs), strict=True):
        first = next((d for d in left if strides[d] == kept), None)
        if first is None:
            return None
        side.append(first)
        left.remove(first)
    for side, strides in zip(sides, (ys, xs), strict=True):
        while size_hint(D.product([n[d] for d in side]), 0) * kept * elem < 128:
            after = next(
                (d for d in left if strides[d] == D.mul(n[side[-1]], strides[side[-1]])), None
            )
            if after is None:
                break
            side.append(after)
            left.remove(after)
    return sides


def _wasteful(elem: int, n: Sequence[int], sides: Sides, sms: int) -> bool:
    """Whether whole tiles would be hardly filled, or their lines end within a sector of memory that
    neighbouring ones continue.
    """
    height, width = (math.prod(n[k] for k in side) for side in sides)
    rows, columns = _tile(elem, (height, width), math.prod(n) // (height * width), sms)
    filled = height * width / (-(-height // rows) * rows * -(-width // columns) * columns)
    return height * width < _LARGE_MATRIX and (
        filled < _FILLED or min(height, width) * elem <= _SECTOR
    )


def _even(n: int, most: int) -> int:
    """At most as many of n that parts as large are about equal."""
    return -(-n // -(-n // max(min(n, most), 1)))


def _layers(
    elem: int, height: int, width: int, kept: int, count: int, sms: int
) -> tuple[int, int, int]:
    """Layers, rows and columns of a tile of short lines: as large as leaves enough CTAs."""
    room = _ROOM[elem]
    while True:
        side = max(math.isqrt(room // kept), 1)
        rows = _even(height, min(max(side, room // kept // width), _LINES))
        columns = _even(width, min(max(room // kept // rows, 1), _LINES))
        layers = _even(
            count, min(max(room // (rows * columns * kept), 1), _LINES // max(rows, columns))
        )
        blocks = -(-height // rows) * -(-width // columns) * -(-count // layers)
        if blocks >= _TILE_LEAST * sms or room <= _LITTLE:
            return layers, rows, columns
        room //= 2
