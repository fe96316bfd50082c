"""Convolutions of few input channels by FFMA (`small_c_simt.cuh`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import product

from tracea_onnx.codegen import kernel_choice, size_ranges
from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.instantiate import longs
from ..common.launch import smem_of_partial_wave
from ..cost.fitted import fitted
from ..gemm import select
from . import problem

_STATIC = ("IC", "KH", "KW", "SH", "SW", "DH", "DW")
#: Windows of at most so many terms (input channels x taps) and so wide (windows of one row: wider),
#: with strides up to 4, have a tile on every device.
MOST_TERMS, WIDEST, WIDEST_ROW = 400, 15, 31
#: Assumed height, width and number of symbolic images; most taps of a row whose pixels are in
#: registers at a time.
_USUAL, _BATCH, _MOST_TAPS = 112, 8, 8
#: Windows whose tiles are kept.
_WINDOWS = 256
#: With several symbolic sizes: a tile also serves more pixels up to this factor of their least
#: clocks; fractions of the pixels that are priced.
_ALIKE, _PARTS = 1.05, (1.0, 0.8, 0.64)
#: Most results for cp.async: in larger grids other CTAs hide the copies, and copies through
#: registers take fewer instructions.
_MOST_ASYNC = 1 << 24
#: Clocks to start; per FMA instruction: latency of one warp, and issue of each warp of a scheduler;
#: the same of cp.async; instructions of a copied row of pixels and of 32 of its pixels.
_START, _ALONE, _TOGETHER, _COPY_ALONE, _COPY_TOGETHER = fitted(
    "conv.small_c_simt", "start alone together copy_alone copy_together"
)
_ROW, _PIECE_OF_ROW = fitted("conv.small_c_simt", "row piece_of_row")
#: With copies through registers: clocks to start, to start a CTA, per 32 pixels or 16 filters that
#: a warp copies; latency of FMAs in warps.
_BEGIN, _CTA, _COPY, _WAITS = fitted("conv.small_c_simt", "begin cta copy waits")


@dataclass(frozen=True)
class SmallCTile:
    """pixels: outputs of a thread along a row; groups of these along a row and `down` rows of a
    CTA; columns: output channels of a CTA; parts: threads that split the rows of a window.
    """

    pixels: int
    groups: int
    down: int
    columns: int
    parts: int = 1

    @property
    def threads(self) -> int:
        return self.groups * self.down * self.columns // 8 * self.parts


@dataclass(frozen=True)
class _Window:
    """Of a convolution: input channels, height and width of its filters, strides, dilations; bytes
    of shared memory that a CTA may have.
    """

    channels: int
    height: int
    width: int
    down: int
    across: int
    dilation_down: int
    dilation_across: int
    smem_block: int

    @property
    def piece(self) -> int:
        """Taps of a row whose pixels are in registers at a time."""
        return min(self.width, _MOST_TAPS)

    def row_pixels(self, tile: SmallCTile) -> int:
        """Pixels of a row that a thread has in registers."""
        across = (tile.pixels - 1) * self.across + (self.piece - 1) * self.dilation_across
        return (across + 4) // 4 * 4

    def patch(self, tile: SmallCTile) -> tuple[int, int]:
        """Rows of all channels that a CTA reads; pitch of a row in floats."""
        pitch = (
            (tile.groups - 1) * tile.pixels * self.across
            + (self.width - 1) // self.piece * self.piece * self.dilation_across
            + self.row_pixels(tile)
            + 3
        )
        rows = (tile.down - 1) * self.down + (self.height - 1) * self.dilation_down + 1
        return self.channels * rows, pitch // 4 * 4

    def smem(self, tile: SmallCTile) -> int:
        rows, pitch = self.patch(tile)
        filters = self.channels * self.height * self.width * (tile.columns + 4)
        sums = (tile.parts - 1) * tile.threads // tile.parts * tile.pixels * 8
        return max(filters + rows * pitch, sums) * 4

    def resident(self, tile: SmallCTile) -> int:
        """Resident CTAs per SM, by shared memory and registers."""
        registers = tile.pixels * 8 + self.row_pixels(tile) + 40
        by_smem = self.smem_block // (self.smem(tile) + 1024)
        return min(by_smem, 65536 // (registers * tile.threads), 8)


@dataclass(frozen=True)
class _Work:
    """Resources and instructions of a tile's CTA, independent of image sizes.

    rows, span: rows of all channels that it copies, and pixels of each; multiply: instructions of a
    warp.
    """

    smem: int
    resident: int
    rows: int
    span: int
    multiply: float


def _window(r: Request) -> _Window:
    ic, kh, kw, sh, sw, dh, dw = (int(r.ints[n]) for n in _STATIC)
    return _Window(ic, kh, kw, sh, sw, dh, dw, r.caps.smem_block)


def configs(r: Request) -> Mapping[SmallCTile, _Work]:
    """The tiles that a device has for a window."""
    return _configs(_window(r))


@lru_cache(_WINDOWS)
def _configs(w: _Window) -> Mapping[SmallCTile, _Work]:
    """Sizes of images do not change them, and a kernel is chosen for each of many."""
    most, found = min(w.smem_block, 160 * 1024), dict[SmallCTile, _Work]()
    lines = w.channels * w.height
    for pixels, columns, threads in product((8, 4), (64, 32, 16), (128, 64)):
        if pixels * w.across % 4:
            continue
        around = threads * 8 // columns
        for k in range(around.bit_length()):
            for parts in (1, 2, 3, 4):
                tile = SmallCTile(pixels, 1 << k, around >> k, columns, parts)
                if w.row_pixels(tile) > 64 or parts > lines // 2 + 1:
                    continue
                smem, resident = w.smem(tile), w.resident(tile)
                if smem <= most and resident > 0:
                    found[tile] = _Work(
                        smem,
                        resident,
                        w.patch(tile)[0],
                        (tile.groups * tile.pixels - 1) * w.across
                        + (w.width - 1) * w.dilation_across
                        + 1,
                        -(-lines // parts) * (w.row_pixels(tile) / 2 + w.width * pixels * 8),
                    )
    return found


def supports(r: Request) -> bool:
    if not problem.fixed(r, *_STATIC, "OC", "G") or "w" in r.unaligned:
        return False
    if problem.transposed(r) or r.ints["G"] != 1 or not (r.dtype == DType.F32 or problem.planar(r)):
        return False
    return int(r.ints["IC"]) <= 4 and len(configs(r)) > 0


def _grid(r: Request, tile: SmallCTile) -> tuple[DimLike, int]:
    """CTAs along the pixels and the channels."""
    i = r.ints
    return D.product(
        [i["N"], D.ceildiv(i["OW"], tile.groups * tile.pixels), D.ceildiv(i["OH"], tile.down)]
    ), -(-int(i["OC"]) // tile.columns)


def _asynchronous(r: Request) -> bool:
    """Whether pixels are copied by cp.async, not through registers."""
    (n,), (height, width) = problem.about(r, _BATCH, "N"), problem.about(r, _USUAL, "OH", "OW")
    return r.dtype == DType.F32 and n * height * width * int(r.ints["OC"]) <= _MOST_ASYNC


def _launch_smem(r: Request, tile: SmallCTile) -> int:
    """Dynamic shared memory of a CTA."""
    ctas, columns = _grid(r, tile)
    return (
        smem_of_partial_wave(r, D.mul(ctas, columns), _window(r).smem(tile))
        if _asynchronous(r)
        else _window(r).smem(tile)
    )


def _pricing(r: Request) -> Callable[[int], dict[SmallCTile, float]]:
    """Clocks of each tile for so many images, of the height and width of the moment."""
    tiles, taps = configs(r), int(r.ints["KH"]) * int(r.ints["KW"])

    @cache
    def is_spread(tile: SmallCTile) -> bool:
        ctas, columns = _grid(r, tile)
        return smem_of_partial_wave(r, D.mul(ctas, columns), tiles[tile].smem) != tiles[tile].smem

    def cost(tile: SmallCTile, work: _Work, ctas: int, asynchronous: bool) -> float:
        warps, multiply, resident = tile.threads // 32, work.multiply, work.resident
        # prefers the tile with least idle threads among equally fast ones
        idle = 0.05 * ctas * tile.threads / 128 / r.sms * multiply
        per_sm = -(-ctas // r.sms)
        if not asynchronous:
            copies = -(-work.rows * -(-work.span // 32) * 32 // tile.threads) + 2 * -(
                -taps * tile.columns // tile.threads
            )
            warps_per_scheduler = min(resident, per_sm) * tile.threads / 128
            one = (
                _CTA
                + (warps_per_scheduler + _WAITS) * multiply
                + warps_per_scheduler * copies * _COPY
            )
            return _BEGIN + -(-ctas // (resident * r.sms)) * one + idle
        lines = -(-work.rows // warps) if work.rows >= warps else work.rows / warps  # per warp
        copy = max(1.0, lines) * _ROW + lines * -(-work.span // 32) * _PIECE_OF_ROW
        if 2 * ctas <= r.sms * resident and not is_spread(tile):
            # unevenly distributed: CTAs of the launch before still occupy SMs
            per_sm = -(-2 * ctas // r.sms) - ctas // r.sms
        warps_per_scheduler = min(resident, per_sm) * tile.threads / 128
        one = (
            _START
            + (warps_per_scheduler * _TOGETHER + _ALONE) * multiply
            + (warps_per_scheduler * _COPY_TOGETHER + _COPY_ALONE) * copy
        )
        return -(-per_sm // resident) * one + idle

    def price(images: int) -> dict[SmallCTile, float]:
        (height, width), asynchronous = problem.about(r, _USUAL, "OH", "OW"), _asynchronous(r)
        return {
            tile: cost(
                tile,
                work,
                images
                * -(-height // tile.down)
                * -(-width // (tile.groups * tile.pixels))
                * -(-int(r.ints["OC"]) // tile.columns),
                asynchronous,
            )
            for tile, work in tiles.items()
        }

    return price


def choose(r: Request) -> Iterator[tuple[SmallCTile, DimLike]]:
    """(tile, condition): one tile, or with several symbolic sizes one for each range of pixels."""
    pixels, priced = select.pixels(r), _pricing(r)
    if len(D.symbols(pixels)) < 2:
        (images,) = problem.about(r, _BATCH, "N")
        yield kernel_choice.cheapest(priced(images)), 1
        return

    def price(size: int) -> dict[SmallCTile, float]:
        costs: dict[SmallCTile, float] = {}
        for part in _PARTS:  # sizes of which some are multiples of tiles and others are not
            with size_ranges.at(pixels, round(part * size)):
                for tile, clocks in priced(problem.about(r, 1, "N")[0]).items():
                    costs[tile] = costs.get(tile, 0.0) + clocks / part
        return costs

    yield from select.choose(pixels, price, False, _ALIKE)


def emit(r: Request, tile: SmallCTile, active: DimLike = 1) -> list[Kernel]:
    """active: 0 empties the grid."""
    i, (ctas, columns), window = r.ints, _grid(r, tile), _window(r)
    return problem.kernel(
        r,
        "conv/small_c_simt",
        ("IH", "IW", "OH", "OW", "OC", "PT", "PL"),
        (D.mul(ctas, active), columns, 1),
        tile.threads,
        {
            **{n: int(i[n]) for n in _STATIC},
            "P": tile.pixels,
            "GROUPS": tile.groups,
            "DOWN": tile.down,
            "BN": tile.columns,
            "PIECE": window.piece,
            "PARTS": tile.parts,
            "THREADS": tile.threads,
            "RESIDENT": window.resident(tile),
            "FILTER_PITCH": select.channels(r, int(i["IC"])),
            "MULTIPLE": 1,
            "X_VECTOR": False,
        },
        more=longs({"x_c": 1 if i.get("x_c", 0) == 0 else i["x_c"]}),
        width=4,
        macros={"ASYNCHRONOUS": _asynchronous(r)},
        smem=_launch_smem(r, tile),
    )
