"""Depthwise convolutions with large windows (`large.cuh`): what of a window meets the image, and
the division into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ...common.launch import shared
from ...gemm import select

#: Channels of a block, taps of a row that a thread holds at a time, registers beside these.
CHANNELS, _PIECE, _REGISTERS = 8, 32, 40
#: Where a size is symbolic.
_USUAL, _BATCH = 28, 8
#: Where several are: a tile serves more pixels, too, while it takes at most so many times the
#: clocks.
_ALIKE = 1.1
#: Clocks to start, to start a block, to copy four channels of a pixel (of a warp), for a row of the
#: window of one thread, for a warp's results; how much a read of shared memory counts.
_BEGIN, _START, _COPY, _LATENCY, _LAST, _READ = 1400.0, 2100.0, 58.0, 180.0, 80.0, 0.48


@dataclass(frozen=True)
class LargeTile:
    """Output columns of a thread, groups of them side by side and rows of a block, parts into which
    the window's rows are divided.
    """

    columns: int
    groups: int
    rows: int
    parts: int

    @property
    def threads(self) -> int:
        return CHANNELS * self.groups * self.rows * self.parts


def _met(kernel: int, stride: int, before: int, image: DimLike, out: DimLike) -> tuple[int, int]:
    """First tap of an axis that meets the image for any output, and how many from there do."""
    if not (isinstance(image, int) and isinstance(out, int)) or out < 1:
        return 0, kernel
    first = min(max(0, before - (out - 1) * stride), kernel - 1)
    return first, max(1, min(kernel, image + before) - first)


def met(r: Request) -> tuple[tuple[int, int], tuple[int, int]]:
    """`_met` of rows and of columns."""
    i = r.ints
    down, across = (
        _met(int(i[f"K{a}"]), int(i[f"S{a}"]), int(i[p]), i[f"I{a}"], i[f"O{a}"])
        for a, p in (("H", "PT"), ("W", "PL"))
    )
    return down, across


def _piece(wide: int) -> int:
    return min(-(-wide // 4) * 4, _PIECE)


def patch_rows(r: Request, tile: LargeTile) -> int:
    """Rows of the image that a block reads."""
    rows, height = (tile.rows - 1) * int(r.ints["SH"]) + met(r)[0][1], r.ints["IH"]
    return min(rows, height) if isinstance(height, int) else rows


def _pitch(r: Request, tile: LargeTile) -> tuple[int, int]:
    """Pixels that a thread holds and from a row of a patch to the next."""
    wide, sw = met(r)[1][1], int(r.ints["SW"])
    held = ((tile.columns - 1) * sw + _piece(wide) + 3) // 4 * 4
    return held, (tile.groups - 1) * tile.columns * sw + (wide - 1) // _piece(wide) * _piece(
        wide
    ) + held


def smem(r: Request, tile: LargeTile) -> int:
    (_, high), (_, wide) = met(r)

    def apart(floats: int) -> int:
        return (floats + 27) // 32 * 32 + 4

    patch = max(
        CHANNELS * apart(patch_rows(r, tile) * _pitch(r, tile)[1]),
        tile.threads // 8 * (tile.columns * 8 + 8),
    )
    return 4 * (CHANNELS * apart(high * (-(-wide // 4) * 4)) + patch)


def resident(r: Request, tile: LargeTile) -> int:
    """Blocks of a multiprocessor, by shared memory and registers."""
    registers = (
        -(-(tile.columns + _pitch(r, tile)[0] + _piece(met(r)[1][1]) // 2 + _REGISTERS) // 8) * 8
    )
    return min(
        (shared(r) + 1024) // (smem(r, tile) + 1024),
        65536 // (registers * tile.threads),
        2048 // tile.threads,
    )


def _tiles(r: Request) -> Iterator[LargeTile]:
    i = r.ints
    sw, width, height = int(i["SW"]), select.known(i["OW"], _USUAL), select.known(i["OH"], _USUAL)
    for columns in (8, 4):
        if columns * sw % 4 or columns * sw > 32:
            continue
        for groups in (1, 2, 3, 4, 5, 6, 7, 8):
            if groups * columns >= width + columns:
                continue
            for rows in (1, 2, 4, 7, 8, 14, 16):
                if rows >= 2 * height:
                    continue
                for parts in (1, 2, 4, 8):
                    tile = LargeTile(columns, groups, rows, parts)
                    if (
                        tile.threads % 32 == 0
                        and 64 <= tile.threads <= 512
                        and parts <= met(r)[0][1]
                        and resident(r, tile) > 0
                    ):
                        yield tile


def _price(r: Request, tile: LargeTile) -> float:
    """Clocks."""
    i, ((_, high), (_, wide)) = r.ints, met(r)
    n, height, width = (
        int(select.known(i["N"], _BATCH)),
        int(select.known(i["OH"], _USUAL)),
        int(select.known(i["OW"], _USUAL)),
    )
    blocks = (
        n
        * -(-height // tile.rows)
        * -(-width // (tile.groups * tile.columns))
        * -(-int(i["OC"]) // CHANNELS)
    )
    held, pitch = _pitch(r, tile)
    rows, warps = patch_rows(r, tile), tile.threads // 32
    together = min(resident(r, tile), -(-blocks // r.sms))
    copies = -(-2 * (high * wide + rows * pitch) // 32) * _COPY  # instructions
    each = -(-min(high, rows) // tile.parts)  # rows of the window of a thread
    words = held + -(-wide // 4) * 4
    # clocks of a warp and row of the window
    row = max((tile.columns * wide + words / 4) / 4, _READ * words)
    one = together * warps * (each * row + _LAST) + each * _LATENCY
    return _BEGIN + -(-blocks // (r.sms * together)) * (_START + together * copies / 4 + one)


def choose(r: Request) -> LargeTile | None:
    """None where nothing fits."""
    costs = {t: _price(r, t) for t in _tiles(r)}
    return kernel_choice.cheapest(costs) if costs else None


def chosen(r: Request) -> list[tuple[LargeTile, DimLike]]:
    """The tiles, and whether each is for the sizes of a run: where several are symbolic, by the
    pixels.
    """
    tile, pixels = choose(r), select.pixels(r)
    if tile is None or len(D.symbols(pixels)) < 2:
        return [] if tile is None else [(tile, 1)]
    return list(
        select.choose(pixels, lambda _: {t: _price(r, t) for t in _tiles(r)}, False, _ALIKE)
    )


def applies(r: Request) -> bool:
    i = r.ints
    return (
        all(isinstance(i[n], int) for n in ("PT", "PL"))
        and i["DH"] == i["DW"] == 1
        and i["OC"] == i["G"]
    )


def constants(r: Request, tile: LargeTile) -> str:
    (top, high), (left, wide) = met(r)
    values = {
        "TOP": top,
        "LEFT": left,
        "HIGH": high,
        "WIDE": wide,
        "P": tile.columns,
        "GROUPS": tile.groups,
        "ROWS": tile.rows,
        "PARTS": tile.parts,
    }
    values |= {
        "PIECE": _piece(wide),
        "PATCH_ROWS": patch_rows(r, tile),
        "RESIDENT": resident(r, tile),
    }
    return f"constexpr int {', '.join(f'{n} = {v}' for n, v in values.items())};"
