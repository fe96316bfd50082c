"""Convolutions (also transposed, grouped) of few channels by FFMA (`narrow_simt.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, prod

from tracea_onnx.codegen.kernel_request import Kernel, Request, once
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common.launch import smem_of_partial_wave
from ..cost.fitted import fitted
from ..gemm import select
from . import problem
from .problem import transposed, window

#: Most groups of output channels of a CTA.
_MOST_CHANNEL_GROUPS = 32
#: Of a thread: most elements of a row in registers, most accumulators, most unrolled FMAs of a row;
#: bytes of filters of a CTA.
_MOST_ELEMENTS, _SUMS, _MOST_FMAS, _SMEM = 96, 40, 1536, 96 * 1024
#: The same accumulators where a warp splits the input channels; bytes of filters then, and with
#: more channels, on Hopper.
_SUMS_OF_WARPS, _SMEM_OF_WARPS = 16, 200 * 1024
#: Most of the lesser of input and output channels of a group; most input channels; most pixels for
#: which each may have a warp. In f32: most output channels with at least _MANY_PIXELS pixels, where
#: copies of filters take little time, in CTAs of _WIDEST threads; more channels fill GEMM tiles of
#: 32 columns.
_MOST_NARROW, _MOST_INPUTS, _WARP_PIXELS, _MOST_OUTPUTS, _MANY_PIXELS, _WIDEST = (
    20,
    640,
    4096,
    28,
    65536,
    256,
)
#: Padding channels up to this number are written, where a pixel then has whole vectors.
WRITTEN = 8
#: Sizes that are assumed for symbolic ones.
_USUAL, _BATCH = 56, 8
#: Clocks to start, per copy of four filter elements by a thread, of the latency of loads, of
#: instructions per stored pixel, of a load of pixels; bytes a clock read, written in whole sectors,
#: and written in partial sectors.
_START, _COPY, _LOAD, _PIXEL, _LINES = fitted("conv.narrow_simt", "start copy load pixel lines")
_READ, _WRITE, _PARTIAL = fitted("conv.narrow_simt", "read write partial")
#: Factors of 16-bit types, and of tiles with fewer channels per CTA than threads could share,
#: because shared memory does not suffice.
_HALF, _FORCED = fitted("conv.narrow_simt", "half forced")
#: Factor of the instructions of CTAs that run alone; growth of the clocks of copies with each CTA
#: of an SM; share of the other clocks that the longest of them do not hide; share of a pixel's
#: partial sector that is written, and more of it per pixel of a transposed convolution's thread.
_ISSUE_ALONE, _COPIES_RESIDENT, _OVERLAP, _PARTED, _PARTED_TRANSPOSED = fitted(
    "conv.narrow_simt", "issue_alone copies_resident overlap parted parted_transposed"
)
#: Of windows of one pixel, fitted separately: clocks to start, per copy of four filter elements by
#: a thread; bytes a clock; growth of their time per 100 KB beyond 100 that an SM reads at a time in
#: several steps; clocks of an instruction of an SM, of an access to shared memory or L1, of an
#: instruction of a thread; factors of all this, and of the bytes, in 16-bit types.
_ONE_START, _ONE_COPY, _ONE_BYTES, _SPILLED = fitted(
    "conv.narrow_simt", "one_start one_copy one_bytes spilled"
)
_ISSUE, _ACCESS, _SERIAL, _ONE_HALF, _HALF_BYTES = fitted(
    "conv.narrow_simt", "issue access serial one_half half_bytes"
)
#: Factor of these clocks with interleaved channels, four per thread, compared with GEMM kernels.
(_INTERLEAVED,) = fitted("conv.narrow_simt", "interleaved")


@dataclass(frozen=True)
class NarrowTile:
    """pixels, channels: outputs of a thread; k_threads: threads that split the input channels;
    channel_groups of `channels` outputs per CTA; step: input channels at a time; threads of the
    CTA; ahead: steps whose loads are in flight together.
    """

    pixels: int
    channels: int
    k_threads: int
    channel_groups: int
    step: int
    threads: int = 128
    ahead: int = 1

    @property
    def unit(self) -> int:
        """Filters per load."""
        return 4 if self.channels > 2 else self.channels

    @property
    def threads_per_pixel(self) -> int:
        """Threads that share a pixel."""
        return self.k_threads * self.channel_groups


tiles = (NarrowTile,)


@once
def _of_group(r: Request) -> tuple[int, int]:
    """Input and output channels of a group."""
    g = select.static(r, "G")
    return select.static(r, "IC") // g, select.static(r, "OC") // g


@once
def _hits(r: Request) -> tuple[int, int]:
    """Most taps of an output pixel along both axes."""
    kh, kw, sh, sw = window(r)[:4]
    return (-(-kh // sh), -(-kw // sw)) if transposed(r) else (kh, kw)


@once
def _spread(r: Request) -> bool:
    """Whether pixels of a thread are not neighbours: windows do not overlap."""
    return not transposed(r) and window(r)[:2] == (1, 1)


@once
def _span(r: Request, tile: NarrowTile) -> int:
    if _spread(r):
        return tile.pixels
    kw, sw, dw = (window(r)[k] for k in (1, 3, 5))
    return (
        tile.pixels + _hits(r)[1] - 1
        if transposed(r)
        else (tile.pixels - 1) * sw + (kw - 1) * dw + 1
    )


@once
def vector(r: Request, step: int) -> int:
    """Elements per load of input channels, of which `step` are read at a time."""
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


@once
def _chunks(r: Request, tile: NarrowTile) -> int:
    return int(r.ints["G"]) * -(-_of_group(r)[1] // tile.channels)


def _pads(r: Request) -> bool:
    """Whether padding channels may be written: a pixel has whole vectors."""
    return (
        all(multiple_of(r.ints[n]) >= WRITTEN for n in ("y_cs", "y_rs", "y_ns"))
        and "y" not in r.unaligned
    )


@once
def smem(r: Request, tile: NarrowTile) -> int:
    (kh, kw), unit = window(r)[:2], tile.unit
    step = tile.step * -(-tile.channels // unit) * unit * tile.channel_groups + (
        tile.channel_groups * unit if tile.k_threads > 1 else 0
    )
    return 4 * kh * kw * -(-_of_group(r)[0] // tile.step) * step


@once
def _tiles(r: Request, warps: bool) -> Mapping[NarrowTile, float]:
    """Tiles, each with a factor of its cost. warps: whether a warp may split the input channels."""
    inner, size = _of_group(r)[0], r.dtype.size
    step = inner if inner <= 8 else 8 if size == 2 else 4
    tiles = dict.fromkeys(_tiles_of(r, step, 1, warps), 1.0)
    if min(_of_group(r)) > _MOST_NARROW:
        return {t: worse for t, worse in tiles.items() if t.threads == _WIDEST}
    for less in (step, 2) if size == 4 else (step,):
        tiles = tiles or dict.fromkeys(_tiles_of(r, less, _MOST_CHANNEL_GROUPS, warps), _FORCED)
    return tiles


def _tiles_of(r: Request, step: int, most: int, warps: bool) -> Iterator[NarrowTile]:
    """most: factor up to which channels are divided among more CTAs, where shared memory for
    filters does not suffice.
    """
    (inner, outer), one = _of_group(r), _spread(r)
    # elements are stored one by one, those of neighbouring threads contiguously
    ragged = one and r.ints["G"] != 1 and outer * r.dtype.size % 16 != 0
    widths = (8, 7, 6, 5, 4)
    least = min(-(-outer // c) * c for c in widths)  # channels including idle ones
    channels_each = outer if outer <= 8 else next(c for c in widths if -(-outer // c) * c == least)
    hopper, steps = r.arch == 90, -(-inner // step)
    for channels in {
        *(() if ragged and outer > 8 else (channels_each,)),
        *((4,) if outer > 4 else ()),
    }:
        count = int(r.ints["G"]) * -(-outer // channels)
        ctas = -(-count // _MOST_CHANNEL_GROUPS)
        options = [-(-count // n) for n in range(ctas, min(ctas * most, count) + 1)]
        for pixels in (1, 2) if ragged else (1, 2, 4) if one else (1, 2, 4, 8):
            for k_threads in (1, 2, 4, 8, 16, *((32,) if warps else ())):
                if k_threads > steps:
                    break
                large = hopper and (k_threads == 32 or min(inner, outer) > _MOST_NARROW)
                budgets = [_SMEM_OF_WARPS if large else _SMEM]
                if k_threads > 1 and outer <= WRITTEN and hopper:
                    # one CTA per SM rather than threads with all channels of a pixel
                    budgets.append(_SMEM_OF_WARPS)
                tile = NarrowTile(
                    pixels,
                    channels,
                    k_threads,
                    0,
                    step,
                    ahead=2 if one and steps > k_threads else 1,
                )
                fitting = (
                    t
                    for budget in budgets
                    for t in (replace(tile, channel_groups=b) for b in options)
                    if smem(r, t) <= budget
                )
                sums = _SUMS if k_threads < 32 else _SUMS_OF_WARPS
                elements = _span(r, tile) * step * r.dtype.size
                found = next(fitting, None)
                if found is None or pixels * channels > sums or elements > 4 * _MOST_ELEMENTS:
                    continue
                for threads in (64, 128, 256):
                    if found.threads_per_pixel <= threads:
                        yield replace(found, threads=threads)


def supports(r: Request) -> bool:
    i = r.ints
    if not problem.fixed(r, *problem.WINDOW, "IC", "OC", "G") or "w" in r.unaligned:
        return False
    inner, outer = _of_group(r)
    narrow = min(inner, outer) <= _MOST_NARROW or (outer <= _MOST_OUTPUTS and _many(r))
    return narrow and inner <= _MOST_INPUTS and not (transposed(r) and (i["DH"], i["DW"]) != (1, 1))


def _warps(r: Request) -> bool:
    """Whether a whole warp may split the input channels of a pixel."""
    return r.ints["G"] == 1 and int(r.ints["OC"]) <= WRITTEN and _pixels_of(r) <= _WARP_PIXELS


def _many(r: Request) -> bool:
    """Whether threads may compute more channels, because there are many pixels."""
    return r.dtype.size == 4 and r.ints["G"] == 1 and _pixels_of(r) >= _MANY_PIXELS


def _pixels_of(r: Request) -> int:
    return prod(
        select.known(r.ints[n], usual)
        for n, usual in (("N", _BATCH), ("OH", _USUAL), ("OW", _USUAL))
    )


def _grid(r: Request, tile: NarrowTile) -> tuple[DimLike, int]:
    """Tiles of pixels, and CTAs along the channels."""
    i, pixels = r.ints, tile.threads // tile.threads_per_pixel
    channel_groups = -(-_chunks(r, tile) // tile.channel_groups)
    if _spread(r):
        return D.ceildiv(select.pixels(r), pixels * tile.pixels), channel_groups
    stride = int(i["SW"]) if transposed(r) else 1
    across = D.mul(D.ceildiv(i["OW"], tile.pixels * stride), stride)
    return D.ceildiv(D.product([i["N"], i["OH"], across]), pixels), channel_groups


@once
def _resident(r: Request, tile: NarrowTile) -> int:
    """Resident CTAs per SM, by registers, threads and shared memory."""
    elements = _span(r, tile) * tile.step * r.dtype.size // 4 * min(2, _rows_ahead(r, tile))
    registers = min(255, 48 + tile.pixels * tile.channels + elements + tile.channels)
    by_smem = 200 * 1024 // (smem(r, tile) + 1024)
    return max(1, min(65536 // (registers * tile.threads), 1024 // tile.threads, by_smem))


@dataclass(frozen=True)
class _Work:
    """Resources and instructions of a tile, independent of image sizes. channel_groups: CTAs along
    the channels; resident CTAs per SM; of a thread: instructions, clocks of reads one after
    another, clocks of copies of filters, loads whose latency is not hidden.
    """

    channel_groups: int
    resident: int
    issued: float
    reads: float
    copies: float
    rounds: float


@once
def _work(r: Request, tile: NarrowTile) -> _Work:
    inner, (down, across) = _of_group(r)[0], _hits(r)
    kh, _, sh, _ = window(r)[:4]
    # neighbouring threads have taps of different phases along columns
    taps = (min(down, kh / sh + 0.5) if transposed(r) else down) * across
    steps = -(-inner // (tile.step * tile.k_threads))
    each = taps * steps * tile.step  # FMA steps of a thread: channels of all taps
    loads = down * steps * _span(r, tile) * -(-tile.step // vector(r, tile.step))
    filters = -(-tile.channels // 4)
    issued = (
        each * (tile.pixels * tile.channels + filters)
        + loads * 5
        + (0 if r.dtype.size == 4 else each * tile.pixels / 2)
    )
    issued += (
        150
        + 40 * down * steps
        + tile.pixels * (_PIXEL + 6 * tile.channels) / tile.k_threads
        + 2 * tile.pixels * tile.channels * (tile.k_threads.bit_length() - 1)
    )
    return _Work(
        -(-_chunks(r, tile) // tile.channel_groups),
        _resident(r, tile),
        issued,
        each * filters * 4.0 + loads * _LINES,
        -(-smem(r, tile) // (16 * tile.threads)) * _COPY,
        max(1, -(-down // _rows_ahead(r, tile)) * steps),
    )


def cost(r: Request, tile: NarrowTile, rows: int) -> float:
    """Clocks for `rows` output pixels."""
    if _spread(r):
        return _one_price(r, tile, rows)
    size, w = r.dtype.size, _work(r, tile)
    width, channel_groups, resident = (
        int(select.known(r.ints["OW"], _USUAL)),
        w.channel_groups,
        w.resident,
    )
    per = tile.pixels * (window(r)[3] if transposed(r) else 1)
    tiles = -(
        -max(int(rows * (-(-width // per) * per / width) / tile.pixels), 1)
        // (tile.threads // tile.threads_per_pixel)
    )
    ctas = min(tiles, max(1, resident * r.sms // channel_groups)) * channel_groups
    # waves; CTAs per SM
    waves, per_sm = -(-tiles * channel_groups // ctas), -(-ctas // r.sms)
    busy = waves * per_sm * (tile.threads / 32) * max(w.issued / 4, w.reads)
    alone = waves * (w.rounds * _LOAD + w.issued * _ISSUE_ALONE)
    images = rows / max(1, width * int(select.known(r.ints["OH"], _USUAL)))
    read = (
        images
        * float(select.known(D.mul(r.ints["IH"], r.ints["IW"]), _USUAL**2))
        * int(r.ints["IC"])
        * size
        * channel_groups
    )
    pixel = int(r.ints["OC"]) * size
    parted = (
        min(pixel, 32) * (_PARTED + _PARTED_TRANSPOSED * tile.pixels * transposed(r))
        if pixel % 32
        else 0.0
    )
    memory = read / _READ + rows * (pixel / _WRITE + parted / _PARTIAL)
    clocks = (
        w.copies * (1 + _COPIES_RESIDENT * min(per_sm, resident))
        + max(busy, alone, memory)
        + _OVERLAP * (busy + memory)
    )
    return _START + (clocks if size == 4 else _HALF * clocks)


def _one_price(r: Request, tile: NarrowTile, rows: int) -> float:
    """`cost` for windows of one pixel."""
    i, (inner, size) = r.ints, (_of_group(r)[0], r.dtype.size)
    pitch, resident = -(-int(i["IC"]) // 8) * 8 * size, _resident(r, tile)
    channel_groups = -(-_chunks(r, tile) // tile.channel_groups)
    tiles = max(1, -(-rows // (tile.threads // tile.threads_per_pixel * tile.pixels)))
    ctas = min(tiles, max(1, resident * r.sms // channel_groups)) * channel_groups
    # waves; warps per SM
    waves, warps = -(-tiles * channel_groups // ctas), -(-ctas // r.sms) * tile.threads / 32
    rounds = -(-inner // (tile.step * tile.k_threads))
    each, filters, halvings = (
        rounds * tile.step,
        -(-tile.channels // 4),
        tile.k_threads.bit_length() - 1,
    )
    sums = tile.pixels * tile.channels
    issued: float = (
        each * (sums + filters + (tile.pixels if size == 2 else 0)) + 4 * rounds * tile.pixels
    )
    issued += 60 + tile.pixels * (20 + 8 * tile.channels) / tile.k_threads + 2 * sums * halvings
    read_pixels = 8 / min(8, tile.threads_per_pixel)  # pixels per quarter of a warp
    lines = 4 * min(8.0, max(1.0, read_pixels * min(1.0, pitch * int(i["SW"]) / 128) + 0.5))
    accesses: float = (
        4 * each * filters
        + rounds * tile.pixels * -(-tile.step * size // 16) * lines
        + sums * halvings
    )
    if _written(r, tile) or tile.channels * size % 16 == 0:
        accesses += 8 * tile.pixels * -(-tile.channels * size // 16) / tile.k_threads
    else:  # a sector per element, except in groups, whose elements are contiguous
        accesses += sums * (2 if i["G"] != 1 else min(32, tile.channels * size)) / tile.k_threads
    read, spilled = (
        rows * channel_groups * max(pitch, 32),
        resident * tile.threads / tile.k_threads * tile.pixels * pitch / 1e5 - 1,
    )
    memory = (
        read * (1 + _SPILLED * max(0.0, spilled) * (rounds > 1))
        + rows * -(-int(i["OC"]) // 8) * 8 * size
    )
    clocks = _ONE_COPY * smem(r, tile) / (16 * tile.threads) + memory / _ONE_BYTES * (
        1.0 if size == 4 else _HALF_BYTES
    )
    clocks += waves * (warps * (_ISSUE * issued / 4 + _ACCESS * accesses) + _SERIAL * issued)
    return _ONE_START + (clocks if size == 4 else _ONE_HALF * clocks)


@once
def _rows_ahead(r: Request, tile: NarrowTile) -> int:
    """Rows of a window whose loads may be in flight together."""
    down, across = _hits(r)
    if -(-_of_group(r)[0] // tile.step) > 1:
        return 1
    most = min(
        _MOST_FMAS // (across * tile.step * tile.pixels * tile.channels),
        2 * _MOST_ELEMENTS * 4 // (_span(r, tile) * tile.step * r.dtype.size),
    )
    return int(max(1, min(down, most)))


def prices(r: Request, rows: int) -> dict[NarrowTile, float]:
    if not supports(r):
        return {}
    return {t: worse * cost(r, t, rows) for t, worse in _tiles(r, _warps(r)).items()}


def pointwise_prices(r: Request, rows: int) -> dict[NarrowTile, float]:
    """Clocks of the tiles for pointwise convolutions with at most `most_pointwise_channels`
    outputs, comparable with those of GEMM kernels. Of more than WRITTEN channels: only tiles whose
    threads store four contiguous channels.
    """
    costs = prices(r, rows)
    return (
        costs
        if int(r.ints["OC"]) <= WRITTEN
        else {t: _INTERLEAVED * cost for t, cost in costs.items() if t.channels == 4}
    )


def most_pointwise_channels(r: Request) -> int:
    return WRITTEN if r.dtype.size == 4 else _MOST_NARROW


@once
def _written(r: Request, tile: NarrowTile) -> int:
    """Channels that a thread stores including padding, if it has all channels of a pixel; 0: it
    stores no padding.
    """
    i = r.ints
    return WRITTEN if i["G"] == 1 and tile.channels >= int(i["OC"]) and _pads(r) else 0


@once
def pixels(r: Request) -> Request:
    """A pointwise convolution of contiguous pixels as one over a single row."""
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
    interleaved = i["G"] == 1 and tile.channel_groups > 1 and tile.channels % tile.unit == 0
    stored = tile.unit if interleaved else tile.channels  # channels per store
    columns = 0 if _chunks(r, tile) == 1 else stored if i["G"] == 1 else gcd(stored, outer)
    steps = (*problem.pitches(r, "y"), *((columns,) if columns else ()))
    store = (
        r.dtype.size
        if "y" in r.unaligned
        else min(16, *(multiple_of(s) * r.dtype.size for s in steps))
    )
    tiles, channel_groups = _grid(r, tile)
    ctas = D.minimum(tiles, max(1, _resident(r, tile) * r.sms // channel_groups))
    return problem.kernel(
        r,
        "conv/narrow_simt",
        ("N", "IH", "IW", "OH", "OW", "PT", "PL"),
        (D.mul(ctas, active), channel_groups, 1),
        tile.threads,
        {
            **dict(zip(problem.WINDOW, window(r), strict=True)),
            "IN": inner,
            "OUT": outer,
            "G": int(i["G"]),
            "OCT": tile.channels,
            "CB": tile.channel_groups,
            "KS": tile.k_threads,
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
        width=2 if stored <= 2 else 4 if stored <= 4 else 8,
        columns=columns,
        smem=smem_of_partial_wave(r, D.mul(ctas, channel_groups), smem(r, tile)),
    )
