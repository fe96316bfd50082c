"""Convolutions of few channels, transposed and in groups too, by FFMA (`narrow_simt.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common.launch import spread
from ..gemm import select
from . import problem
from .problem import transposed, window

#: Groups of output channels of a CTA at most.
_BESIDE = 32
#: Elements of a row that a thread holds, sums of it, and products of a row's unrolled text at most;
#: bytes of filters of a CTA.
_HELD, _SUMS, _TEXT, _SMEM = 96, 40, 1536, 96 * 1024
#: Sums where a whole warp divides the input channels, and those bytes then and of more channels, on
#: Hopper.
_SUMS_OF_WARPS, _SMEM_OF_WARPS = 16, 200 * 1024
#: Channels of a group, in or out, of which the fewer must be so few; input channels at most; pixels
#: of which each may have a warp. In f32 outputs may be more where pixels are so many that copies of
#: filters do not count, in CTAs of this many threads; where they are yet more, they fill the 32
#: columns of a product's tile.
_FEW, _MOST, _FEW_PIXELS, _MORE, _MANY_PIXELS, _WIDEST = 20, 640, 4096, 28, 65536, 256
#: Channels of which a pixel may have a multiple: pad channels up to it are written where that makes
#: whole vectors.
WRITTEN = 8
#: Where a size is symbolic.
_USUAL, _BATCH = 56, 8
#: Clocks to start, to copy filters for each four elements of a thread, that loads take, of what a
#: thread does for each pixel of a store, of a load of pixels; bytes a clock that are read, and
#: written as whole sectors of memory or as parts of them.
_START, _COPY, _LOAD, _PIXEL, _LINES = 3000.0, 100.0, 700.0, 60.0, 8.0
_READ, _WRITE, _PARTS = 1400.0, 1200.0, 500.0
#: How much longer elements of two bytes take, and tiles that have fewer channels than threads could
#: share, for want of room.
_SHORT, _FORCED = 1.25, 1.4
#: Of windows of one pixel, fitted to measurements of their own: clocks to start, to copy filters
#: for each four elements of a thread; bytes a clock; how much longer that takes for each 100 KB
#: beyond 100 that an SM's threads read at a time in several steps; of an instruction, of
#: an access to shared memory or L1, of an instruction of a thread; elements of two bytes beside all
#: this, and the bytes of theirs.
_ONE_START, _ONE_COPY, _ONE_BYTES, _SPILLED = 2400.0, 600.0, 2.5e3, 0.2
_ISSUE, _ACCESS, _ALONE, _ONE_SHORT, _SHORT_BYTES = 0.82, 0.43, 1.34, 0.65, 0.81
#: The part of these clocks that several channels of a pixel take beside products, four a thread, in
#: two bytes.
_WOVEN = 0.75


@dataclass(frozen=True)
class NarrowTile:
    """Output pixels and channels of a thread, threads that divide the input channels, groups of
    output channels of a CTA, input channels at a time; its threads; ahead: times as many input
    channels whose loads are under way together.
    """

    pixels: int
    channels: int
    parts: int
    beside: int
    step: int
    threads: int = 128
    ahead: int = 1

    @property
    def unit(self) -> int:
        """Filters of a load."""
        return 4 if self.channels > 2 else self.channels

    @property
    def together(self) -> int:
        """Threads of one pixel."""
        return self.parts * self.beside


tiles = (NarrowTile,)


def _of_group(r: Request) -> tuple[int, int]:
    """Input and output channels of a group."""
    g = select.static(r, "G")
    return select.static(r, "IC") // g, select.static(r, "OC") // g


def _hits(r: Request) -> tuple[int, int]:
    """Taps of a pixel along both axes."""
    kh, kw, sh, sw = window(r)[:4]
    return (-(-kh // sh), -(-kw // sw)) if transposed(r) else (kh, kw)


def _spread(r: Request) -> bool:
    """Whether pixels of a thread lie apart: windows do not overlap."""
    return not transposed(r) and window(r)[:2] == (1, 1)


def _span(r: Request, tile: NarrowTile) -> int:
    if _spread(r):
        return tile.pixels
    kw, sw, dw = (window(r)[k] for k in (1, 3, 5))
    return (
        tile.pixels + _hits(r)[1] - 1
        if transposed(r)
        else (tile.pixels - 1) * sw + (kw - 1) * dw + 1
    )


def vector(r: Request, step: int) -> int:
    """Elements that one load of input channels may take, `step` of which are read at a time."""
    inner, size = _of_group(r)[0], r.dtype.size
    steps = (
        r.ints["x_cs"],
        r.ints["x_rs"],
        r.ints["x_ns"],
        *((inner,) if r.ints["G"] != 1 else ()),
        *((step,) if step < inner else ()),
    )
    most = 1 if "x" in r.unaligned else min(16 // size, *(multiple_of(s) for s in steps))
    return next(v for v in (8, 4, 2, 1) if v <= most and v < 2 * step)


def _chunks(r: Request, tile: NarrowTile) -> int:
    return int(r.ints["G"]) * -(-_of_group(r)[1] // tile.channels)


def _pads(r: Request) -> bool:
    """Whether pad channels may be written: a pixel has whole vectors."""
    return (
        all(multiple_of(r.ints[n]) >= WRITTEN for n in ("y_cs", "y_rs", "y_ns"))
        and "y" not in r.unaligned
    )


def smem(r: Request, tile: NarrowTile) -> int:
    (kh, kw), unit = window(r)[:2], tile.unit
    step = tile.step * -(-tile.channels // unit) * unit * tile.beside + (
        tile.beside * unit if tile.parts > 1 else 0
    )
    return 4 * kh * kw * -(-_of_group(r)[0] // tile.step) * step


def _tiles(r: Request) -> dict[NarrowTile, float]:
    """With how much longer they take than their price."""
    inner, size = _of_group(r)[0], r.dtype.size
    step = inner if inner <= 8 else 8 if size == 2 else 4
    tiles = dict.fromkeys(_tiles_of(r, step, most=1), 1.0)
    if min(_of_group(r)) > _FEW:
        return {t: worse for t, worse in tiles.items() if t.threads == _WIDEST}
    for less in (step, 2) if size == 4 else (step,):
        tiles = tiles or dict.fromkeys(_tiles_of(r, less, most=_BESIDE), _FORCED)
    return tiles


def _tiles_of(r: Request, step: int, most: int) -> Iterator[NarrowTile]:
    """most: times as many CTAs beside each other as channels ask for, where filters need the
    room.
    """
    (inner, outer), one = _of_group(r), _spread(r)
    # elements are stored one by one: neighbouring threads' near each other
    ragged = one and r.ints["G"] != 1 and outer * r.dtype.size % 16 != 0
    widths = (8, 7, 6, 5, 4)
    least = min(-(-outer // c) * c for c in widths)  # channels that threads have together
    wide = outer if outer <= 8 else next(c for c in widths if -(-outer // c) * c == least)
    hopper, steps = r.arch == 90, -(-inner // step)
    for channels in {*(() if ragged and outer > 8 else (wide,)), *((4,) if outer > 4 else ())}:
        count = int(r.ints["G"]) * -(-outer // channels)
        blocks = -(-count // _BESIDE)
        options = [-(-count // n) for n in range(blocks, min(blocks * most, count) + 1)]
        for pixels in (1, 2) if ragged else (1, 2, 4) if one else (1, 2, 4, 8):
            for parts in (1, 2, 4, 8, 16, *((32,) if _warps(r) else ())):
                if parts > steps:
                    break
                large = hopper and (parts == 32 or min(inner, outer) > _FEW)
                rooms = [_SMEM_OF_WARPS if large else _SMEM]
                if parts > 1 and outer <= WRITTEN and hopper:
                    # one CTA an SM rather than threads that have all channels of a pixel
                    rooms.append(_SMEM_OF_WARPS)
                tile = NarrowTile(
                    pixels, channels, parts, 0, step, ahead=2 if one and steps > parts else 1
                )
                fitting = (
                    t
                    for room in rooms
                    for t in (replace(tile, beside=b) for b in options)
                    if smem(r, t) <= room
                )
                sums = _SUMS if parts < 32 else _SUMS_OF_WARPS
                held = _span(r, tile) * step * r.dtype.size
                found = next(fitting, None)
                if found is None or pixels * channels > sums or held > 4 * _HELD:
                    continue
                for threads in (64, 128, 256):
                    if found.together <= threads:
                        yield replace(found, threads=threads)


def supports(r: Request) -> bool:
    i = r.ints
    if not problem.fixed(r, *problem.WINDOW, "IC", "OC", "G") or "w" in r.unaligned:
        return False
    inner, outer = _of_group(r)
    few = min(inner, outer) <= _FEW or (outer <= _MORE and _many(r))
    return few and inner <= _MOST and not (transposed(r) and (i["DH"], i["DW"]) != (1, 1))


def _warps(r: Request) -> bool:
    """Whether a whole warp may divide the input channels of a pixel."""
    return r.ints["G"] == 1 and int(r.ints["OC"]) <= WRITTEN and _pixels_of(r) <= _FEW_PIXELS


def _many(r: Request) -> bool:
    """Whether pixels are so many that threads may compute more channels."""
    return r.dtype.size == 4 and r.ints["G"] == 1 and _pixels_of(r) >= _MANY_PIXELS


def _pixels_of(r: Request) -> int:
    return prod(
        select.known(r.ints[n], usual)
        for n, usual in (("N", _BATCH), ("OH", _USUAL), ("OW", _USUAL))
    )


def _grid(r: Request, tile: NarrowTile) -> tuple[DimLike, int]:
    """Tiles of pixels, and CTAs beside each other."""
    i, pixels = r.ints, tile.threads // tile.together
    beside = -(-_chunks(r, tile) // tile.beside)
    if _spread(r):
        return D.ceildiv(select.pixels(r), pixels * tile.pixels), beside
    apart = int(i["SW"]) if transposed(r) else 1
    across = D.mul(D.ceildiv(i["OW"], tile.pixels * apart), apart)
    return D.ceildiv(D.product([i["N"], i["OH"], across]), pixels), beside


def _resident(r: Request, tile: NarrowTile) -> int:
    """CTAs of an SM, by registers, threads and shared memory."""
    held = _span(r, tile) * tile.step * r.dtype.size // 4 * min(2, _rows_ahead(r, tile))
    registers = min(255, 48 + tile.pixels * tile.channels + held + tile.channels)
    room = 200 * 1024 // (smem(r, tile) + 1024)
    return max(1, min(65536 // (registers * tile.threads), 1024 // tile.threads, room))


def cost(r: Request, tile: NarrowTile, rows: int) -> float:
    """Clocks for so many output pixels."""
    inner, (down, across) = _of_group(r)[0], _hits(r)
    kh, _, sh, sw = window(r)[:4]
    size, f32 = r.dtype.size, r.dtype.size == 4
    if _spread(r):
        return _one_price(r, tile, rows)
    width = int(select.known(r.ints["OW"], _USUAL))
    per = tile.pixels * (sw if transposed(r) else 1)
    tiles = -(
        -max(int(rows * (-(-width // per) * per / width) / tile.pixels), 1)
        // (tile.threads // tile.together)
    )
    beside = -(-_chunks(r, tile) // tile.beside)
    resident, warps = _resident(r, tile), tile.threads / 32
    blocks = min(tiles, max(1, resident * r.sms // beside)) * beside
    # of a CTA; CTAs of an SM
    turns, here = -(-tiles * beside // blocks), -(-blocks // r.sms)
    # neighbouring threads have different columns' taps
    taps = (min(down, kh / sh + 0.5) if transposed(r) else down) * across
    steps = -(-inner // (tile.step * tile.parts))
    each = taps * steps * tile.step  # channels of taps of a thread
    loads = down * steps * _span(r, tile) * -(-tile.step // vector(r, tile.step))
    filters = -(-tile.channels // 4)
    issued = (
        each * (tile.pixels * tile.channels + filters)
        + loads * 5
        + (0 if f32 else each * tile.pixels / 2)
    )
    issued += (
        150
        + 40 * down * steps
        + tile.pixels * (_PIXEL + 6 * tile.channels) / tile.parts
        + 2 * tile.pixels * tile.channels * (tile.parts.bit_length() - 1)
    )
    reads = each * filters * 4.0 + loads * _LINES
    copies = -(-smem(r, tile) // (16 * tile.threads)) * _COPY
    rounds = max(1, -(-down // _rows_ahead(r, tile)) * steps)
    busy = turns * here * warps * max(issued / 4, reads)
    alone = turns * (rounds * _LOAD + issued * 1.5)
    images = rows / max(1, width * int(select.known(r.ints["OH"], _USUAL)))
    read = (
        images
        * float(select.known(D.mul(r.ints["IH"], r.ints["IW"]), _USUAL**2))
        * int(r.ints["IC"])
        * size
        * beside
    )
    pixel = int(r.ints["OC"]) * size
    parted = min(pixel, 32) * (0.7 + 0.08 * tile.pixels * transposed(r)) if pixel % 32 else 0.0
    memory = read / _READ + rows * (pixel / _WRITE + parted / _PARTS)
    clocks = (
        copies * (1 + 0.3 * min(here, resident)) + max(busy, alone, memory) + 0.3 * (busy + memory)
    )
    return _START + (clocks if f32 else _SHORT * clocks)


def _one_price(r: Request, tile: NarrowTile, rows: int) -> float:
    """As `cost`, for windows of one pixel."""
    i, (inner, size) = r.ints, (_of_group(r)[0], r.dtype.size)
    pitch, resident = -(-int(i["IC"]) // 8) * 8 * size, _resident(r, tile)
    beside = -(-_chunks(r, tile) // tile.beside)
    tiles = -(-rows // (tile.threads // tile.together * tile.pixels))
    blocks = min(tiles, max(1, resident * r.sms // beside)) * beside
    # of a CTA; warps of an SM
    turns, warps = -(-tiles * beside // blocks), -(-blocks // r.sms) * tile.threads / 32
    rounds = -(-inner // (tile.step * tile.parts))
    each, filters, halvings = (
        rounds * tile.step,
        -(-tile.channels // 4),
        tile.parts.bit_length() - 1,
    )
    sums = tile.pixels * tile.channels
    issued: float = (
        each * (sums + filters + (tile.pixels if size == 2 else 0)) + 4 * rounds * tile.pixels
    )
    issued += 60 + tile.pixels * (20 + 8 * tile.channels) / tile.parts + 2 * sums * halvings
    apart = 8 / min(8, tile.together)  # pixels that a quarter of a warp reads
    lines = 4 * min(8.0, max(1.0, apart * min(1.0, pitch * int(i["SW"]) / 128) + 0.5))
    accesses: float = (
        4 * each * filters
        + rounds * tile.pixels * -(-tile.step * size // 16) * lines
        + sums * halvings
    )
    if _written(r, tile) or tile.channels * size % 16 == 0:
        accesses += 8 * tile.pixels * -(-tile.channels * size // 16) / tile.parts
    else:  # elements of threads whose results lie apart are sectors; those of groups are not apart
        accesses += sums * (2 if i["G"] != 1 else min(32, tile.channels * size)) / tile.parts
    read, spilled = (
        rows * beside * max(pitch, 32),
        resident * tile.threads / tile.parts * tile.pixels * pitch / 1e5 - 1,
    )
    memory = (
        read * (1 + _SPILLED * max(0.0, spilled) * (rounds > 1))
        + rows * -(-int(i["OC"]) // 8) * 8 * size
    )
    clocks = _ONE_COPY * smem(r, tile) / (16 * tile.threads) + memory / _ONE_BYTES * (
        1.0 if size == 4 else _SHORT_BYTES
    )
    clocks += turns * (warps * (_ISSUE * issued / 4 + _ACCESS * accesses) + _ALONE * issued)
    return _ONE_START + (clocks if size == 4 else _ONE_SHORT * clocks)


def _rows_ahead(r: Request, tile: NarrowTile) -> int:
    """Rows of a window whose loads may be under way together."""
    down, across = _hits(r)
    if -(-_of_group(r)[0] // tile.step) > 1:
        return 1
    most = min(
        _TEXT // (across * tile.step * tile.pixels * tile.channels),
        2 * _HELD * 4 // (_span(r, tile) * tile.step * r.dtype.size),
    )
    return int(max(1, min(down, most)))


def prices(r: Request, rows: int) -> dict[NarrowTile, float]:
    return {t: worse * cost(r, t, rows) for t, worse in _tiles(r).items()} if supports(r) else {}


def beside_products(r: Request, rows: int) -> dict[NarrowTile, float]:
    """Clocks of the tiles for windows of one pixel that compete with products, at most
    `most_beside` channels: of more than a pixel's vector those whose threads store four channels
    each, and neighbours what follows.
    """
    costs = prices(r, rows)
    return (
        costs
        if int(r.ints["OC"]) <= WRITTEN
        else {t: _WOVEN * cost for t, cost in costs.items() if t.channels == 4}
    )


def most_beside(r: Request) -> int:
    return WRITTEN if r.dtype.size == 4 else _FEW


def _written(r: Request, tile: NarrowTile) -> int:
    """Channels that threads write with pad channels, where they have all there are; 0 where they
    write no others.
    """
    i = r.ints
    return WRITTEN if i["G"] == 1 and tile.channels >= int(i["OC"]) and _pads(r) else 0


def pixels(r: Request) -> Request:
    """A convolution by windows of one pixel, whose pixels follow each other, as one of a line."""
    i = r.ints
    line = select.pixels(r)
    ints = {
        **i,
        "N": 1,
        "IH": 1,
        "OH": 1,
        "IW": line,
        "OW": line,
        **{f"{o}_{p}": 0 for o in "xyr" for p in ("rs", "ns")},
    }
    return replace(r, ints=ints)


def emit(r: Request, tile: NarrowTile, active: DimLike = 1) -> list[Kernel]:
    """active: 0 empties the grid."""
    i, (inner, outer) = r.ints, _of_group(r)
    woven = i["G"] == 1 and tile.beside > 1 and tile.channels % tile.unit == 0
    together = tile.unit if woven else tile.channels  # channels that are stored at a time
    columns = 0 if _chunks(r, tile) == 1 else together if i["G"] == 1 else gcd(together, outer)
    steps = (*problem.pitches(r, "y"), *((columns,) if columns else ()))
    store = (
        r.dtype.size
        if "y" in r.unaligned
        else min(16, *(multiple_of(s) * r.dtype.size for s in steps))
    )
    tiles, beside = _grid(r, tile)
    blocks = D.minimum(tiles, max(1, _resident(r, tile) * r.sms // beside))
    return problem.kernel(
        r,
        "conv/narrow_simt",
        ("N", "IH", "IW", "OH", "OW", "PT", "PL"),
        (D.mul(blocks, active), beside, 1),
        tile.threads,
        {
            **dict(zip(problem.WINDOW, window(r), strict=True)),
            "IN": inner,
            "OUT": outer,
            "G": int(i["G"]),
            "OCT": tile.channels,
            "CB": tile.beside,
            "KS": tile.parts,
            "P": tile.pixels,
            "CSTEP": tile.step,
            "V": vector(r, tile.step),
            "FILTER_PITCH": select.channels(r, inner),
            "THREADS": tile.threads,
            "Y_BYTES": store,
            "ROWS_AHEAD": _rows_ahead(r, tile),
            "STEPS_AHEAD": tile.ahead,
            "WRITTEN": _written(r, tile),
            "ONE_ROW": i["N"] == i["OH"] == 1,
            "TRANSPOSED": transposed(r),
        },
        width=2 if together <= 2 else 4 if together <= 4 else 8,
        columns=columns,
        smem=spread(r, D.mul(blocks, beside), smem(r, tile)),
    )
