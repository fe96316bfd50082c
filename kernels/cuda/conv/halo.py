"""Convolutions of stride 1 on Hopper from input patches with a halo (`halo.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import (
    HOPPER_SHARED,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue
from ..common.instantiate import instantiate, ints, pointer, sizes, wgmma
from ..cost.fitted import fitted, table
from ..gemm import cluster_splitk_sm90
from . import grouped, problem

#: With resident weights: pixels of a tile, most taps. With streamed weights: most accumulators of a
#: thread, least and most stages of weights, values of split-K, least output channels.
_PIXELS, _TAPS = 128, 25
_ACCUMULATORS, _MIN_STAGES, _MAX_STAGES, _SPLITS, _MIN_CHANNELS = 128, 3, 16, (1, 2, 3, 4, 6, 8), 32
#: The cost with resident weights, measured on an H200: flops a clock with 64 columns and with more;
#: clocks to start, and of the epilogue of 64 x 64 results; factor of a step's clocks where columns
#: of merged groups share no channels (`grouped.alone`); bytes of weights a clock.
_FLOPS_NARROW, _FLOPS, _BEGIN, _PANEL_CLOCKS, _GROUPED, _WEIGHTS = fitted(
    "conv.halo", "flops_narrow flops begin panel_clocks grouped weights"
)
#: The cost with streamed weights, fitted to 766 measurements of 133 shapes on an H200. Clocks to
#: start; factor of the ideal clocks of a wgmma (bound by shared memory with few columns); clocks of
#: a step besides its MMAs, least clocks of a step, clocks of a copy of weights; of the epilogue of
#: 64 x 64 results, more if it is expensive, after each tile.
_START, _WGMMA, _STEP, _LEAST, _LATENCY = fitted("conv.halo", "start wgmma step least latency")
_PANEL, _EXPENSIVE, _EDGE = fitted("conv.halo", "panel expensive edge")
#: Clocks of split-K over a cluster, per float exchanged, of a cluster with multicast of weights;
#: bytes a clock from L2; part of the copies that the second CTA of a multicast saves; factor that
#: makes these clocks comparable with those of im2col tiles, which are overestimated.
_CLUSTER, _FLOAT, _MULTICAST, _CHIP_BYTES, _MULTICAST_COPY, _IM2COL_RATIO = fitted(
    "conv.halo", "cluster float multicast chip_bytes multicast_copy im2col_ratio"
)
#: Clocks to copy 64 channels of a pixel and of a filter, by alignment of their rows in elements.
_COPIES: Mapping[int, tuple[float, float]] = table("conv.halo", "copies")


@dataclass(frozen=True)
class HaloTile:
    """Of a tile: rows of the output, width: pixels of an input row with padding, stack: images,
    wgmmas of 64 pixels, columns: output channels. stages of weights; patch_bytes of an input patch,
    number of patches in the ring; overread: bytes that wgmma reads behind the last patch; split:
    split-K over a cluster of so many CTAs; multicast: CTAs of a cluster that share weights;
    weights_resident: all weights stay in shared memory.
    """

    rows: int
    width: int
    stack: int
    wgmmas: int
    columns: int
    stages: int
    patch_bytes: int
    patches: int
    overread: int
    split: int = 1
    multicast: int = 1
    weights_resident: bool = False

    @property
    def weights(self) -> int:
        """Bytes of the stages of weights."""
        return self.stages * self.columns * 128

    @property
    def spare(self) -> int:
        """Bytes reserved behind the weights for `overread`."""
        return max(0, self.overread - self.weights)

    @property
    def cluster_size(self) -> int:
        return self.split * self.multicast

    @property
    def smem(self) -> int:
        sums = 0 if self.split == 1 else -(-self.wgmmas // 2) * self.columns * 512
        return 2048 + max(sums, self.patches * self.patch_bytes + self.weights + self.spare)


tiles = (HaloTile,)


def supports(r: Request) -> bool:
    tensor_maps = problem.by_tensor_maps(r) and problem.stored_by_tensor_maps(r)
    return tensor_maps and not problem.transposed(r)


def _taps(r: Request) -> int:
    return int(r.ints["KH"]) * int(r.ints["KW"])


def _width(r: Request) -> int:
    return int(r.ints["OW"]) + (int(r.ints["KW"]) - 1) * int(r.ints["DW"])


def _height(r: Request, rows: int) -> int:
    """Rows of a patch: those of the tile and its halo."""
    return rows + (int(r.ints["KH"]) - 1) * int(r.ints["DH"])


def configs(r: Request) -> list[HaloTile]:
    """The tiles for a convolution that tensor maps reach."""
    i = r.ints
    fixed = isinstance(i["IW"], int) and isinstance(i["OW"], int)
    if not fixed or i["SH"] != 1 or i["SW"] != 1 or _taps(r) == 1 or int(i["OW"]) <= 0:
        return []
    return [*_resident(r), *_streamed(r)]


def _tile(r: Request, rows: int, stack: int, wgmmas: int, columns: int) -> HaloTile:
    width = _width(r)
    patch_bytes = -(-stack * _height(r, rows) * width * 128 // 1024) * 1024
    overread = wgmmas // stack * 64 - rows * width + (int(r.ints["KW"]) - 1) * int(r.ints["DW"])
    return HaloTile(rows, width, stack, wgmmas, columns, 0, patch_bytes, 1, max(0, overread * 128))


def _resident(r: Request) -> Iterator[HaloTile]:
    """Tiles with resident weights: two wgmmas per warpgroup, as many patches as fit."""
    rows, merged, steps = _PIXELS // _width(r), grouped.of(r), _taps(r) * grouped.of(r).chunks
    if not rows or _taps(r) > _TAPS or _height(r, rows) > 256 or epilogue.residual(r):
        return
    for columns in (64, 128) if merged.columns > 64 else (64,):
        tile = replace(_tile(r, rows, 1, 2, columns), stages=steps, weights_resident=True)
        patches = min(4, (HOPPER_SHARED - 2048 - tile.weights) // tile.patch_bytes)
        if patches >= 2:
            yield replace(tile, patches=patches)


def _streamed(r: Request) -> Iterator[HaloTile]:
    """Tiles whose weights are streamed through a ring."""
    oc, steps = int(r.ints["OC"]), _taps(r) * grouped.of(r).chunks
    if r.ints["G"] != 1 or _width(r) > 256:
        return
    widths = {-(-oc // (32 * parts)) * 32 for parts in range(1, 9)} | {64, 128, 256}
    for rows, stack, wgmmas in _shapes(r):
        if _height(r, rows) > 256:
            continue
        for columns in sorted(widths):
            if columns > 256 or columns >= oc + 32 or -(-wgmmas // 2) * columns > 2 * _ACCUMULATORS:
                continue
            # with split-K both warpgroups need equally many wgmmas to exchange their sums
            splits = _SPLITS if wgmmas % 2 == 0 else (1,)
            for patches in (2, 1):
                tile = replace(_tile(r, rows, stack, wgmmas, columns), patches=patches)
                available = HOPPER_SHARED - 2048 - patches * tile.patch_bytes
                tile = replace(tile, stages=min(_MAX_STAGES, available // (columns * 128)))
                if tile.stages >= _MIN_STAGES and tile.smem <= HOPPER_SHARED:
                    divided = (replace(tile, split=s) for s in splits if s * 4 <= max(steps, 4))
                    yield from (t for t in divided if t.smem <= HOPPER_SHARED)
                    yield replace(tile, multicast=2)
                    break


def _shapes(r: Request) -> Iterator[tuple[int, int, int]]:
    """(rows, images, wgmmas) of tiles with streamed weights."""
    out_height, out_width, width, seen = r.ints["OH"], int(r.ints["OW"]), _width(r), set()
    for wgmmas in range(2, 9):
        rows = (64 * wgmmas - out_width) // width + 1 if 64 * wgmmas >= out_width else 0
        if not rows:
            continue
        stack = 1
        if isinstance(out_height, int) and out_height > 0:
            rows = -(-out_height // -(-out_height // rows))
            if rows == out_height:
                per = -(-((out_height - 1) * width + out_width) // 64)
                if wgmmas % per:
                    continue
                stack = wgmmas // per
        if (rows, stack) not in seen:
            yield rows, stack, wgmmas
        seen.add((rows, stack))


def prices(r: Request, m: int) -> dict[HaloTile, float]:
    """Clocks for m output pixels, comparable with `persistent_sm90.tile_cost`."""
    return {t: cost(t, r, m) for t in configs(r) if t.weights_resident or _measured(t, r, m)}


def cost(t: HaloTile, r: Request, m: int) -> float:
    return _resident_cost(t, r, m) if t.weights_resident else _streamed_cost(t, r, m)


def _resident_cost(t: HaloTile, r: Request, m: int) -> float:
    tiles_n: int = grouped.tiles(r, t.columns)
    out_height, out_width = r.ints["OH"], int(r.ints["OW"])
    tiles = (
        m / (out_height * out_width) * -(-out_height // t.rows)
        if isinstance(out_height, int)
        else m / (t.rows * out_width)
    )
    waves = -(-tiles // max(1, r.sms // tiles_n)) * -(-tiles_n // r.sms)
    flops = t.stages * 2.0 * _PIXELS * t.columns * 64 * grouped.straddling(r) * grouped.mma_scale(r)
    multiply = flops / (_FLOPS if t.columns > 64 else _FLOPS_NARROW)
    multiply *= _GROUPED if grouped.alone(r)[1] else 1.0
    finish = _PIXELS * t.columns / 4096 * _PANEL_CLOCKS
    filters = t.stages * t.columns * grouped.pixel(r)[0] if r.ints["G"] == 1 else 0.0
    clocks = max(waves * multiply, -(-waves // 2) * (multiply + finish)) + finish
    return float(_BEGIN + clocks + max(t.weights / _WEIGHTS, filters))


def _tiles(t: HaloTile, r: Request, m: int) -> float:
    """Tiles of m pixels with streamed weights."""
    out_height, rows = r.ints["OH"], m / int(r.ints["OW"])
    stacks = (
        -(-rows // (out_height * t.stack)) * -(-out_height // t.rows)
        if isinstance(out_height, int)
        else rows / t.rows
    )
    return float(-(-stacks // t.multicast) * t.multicast * -(-int(r.ints["OC"]) // t.columns))


def _measured(t: HaloTile, r: Request, m: int) -> bool:
    """Whether the cost with streamed weights holds: all clusters of split-K are concurrent."""
    slots = cluster_splitk_sm90.slots(t.split, 1, r.sms)
    return int(r.ints["OC"]) >= _MIN_CHANNELS and (
        t.split == 1 or _tiles(t, r, m) * t.split <= slots
    )


def _streamed_cost(t: HaloTile, r: Request, m: int) -> float:
    i, taps, tiles = r.ints, _taps(r), _tiles(t, r, m)
    mmas = -(-int(i["IC"]) // 16)
    chunks = -(-mmas // 4)
    pixel, filters = _copied(i["x_cs"])[0], _copied(int(i["IC"]))[1]
    pixels = t.stack * _height(r, t.rows) * t.width
    mma = t.wgmmas * max(t.columns / 2, 16 + t.columns / 4) * _WGMMA
    copies = max(
        t.columns * filters / (1 + _MULTICAST_COPY * (t.multicast - 1)) + pixels * pixel / taps,
        _LATENCY / t.stages,
        _LEAST,
    )
    whole = (chunks - 1) * max(4 * mma + _STEP, copies)
    steps = taps / t.split * (whole + max((mmas - 4 * (chunks - 1)) * mma + _STEP, copies))
    fill, patches = pixels * pixel, -(-chunks // t.split)
    read = (patches * pixels + taps * chunks / t.split * t.columns / t.multicast) * 128
    body = max(
        steps + fill * patches * (t.patches == 1), min(tiles * t.split, r.sms) * read / _CHIP_BYTES
    )
    finish = t.wgmmas * t.columns / 64 * (_PANEL + _EXPENSIVE * epilogue.expensive(r)) + _EDGE
    if t.split > 1:
        sums = t.wgmmas * 64 * t.columns
        finish = finish / t.split + _CLUSTER + sums * (t.split - 1) / t.split * _FLOAT
    waves = -(-tiles * t.split // r.sms)
    return float(
        _IM2COL_RATIO * (_START + _MULTICAST * (t.multicast - 1) + fill + waves * (body + finish))
    )


def _copied(pitch: DimLike) -> tuple[float, float]:
    """Clocks to copy 64 channels of one pixel and of one filter, whose rows have this pitch."""
    return _COPIES[64 if multiple_of(pitch) >= 64 else 16 if multiple_of(pitch) >= 16 else 8]


def emit(r: Request, tile: HaloTile, active: DimLike) -> list[Kernel]:
    """active: 0 empties the grid."""
    i, oc, taps, merged = r.ints, int(r.ints["OC"]), _taps(r), grouped.of(r)
    strides = tuple(D.mul(i[f"x_{p}"], 2) for p in ("cs", "rs", "ns"))
    x = TensorMap(
        Pointer("x"),
        r.dtype,
        (int(i["IC"]), i["IW"], i["IH"], i["N"]),
        strides,
        (64, tile.width, _height(r, tile.rows), tile.stack),
    )
    w = TensorMap(
        Pointer("w", grouped.filters(r)),
        r.dtype,
        (merged.pitch, taps, oc),
        (merged.pitch * 2, taps * merged.pitch * 2),
        (64, 1, tile.columns // tile.multicast),
    )
    ldr = i.get("r_cs", 0)
    flat = replace(r, ints={**i, **{f"o{k}_ld": ldr for k in range(4)}})
    channels, columns = grouped.alone(r)
    mmas = -(-merged.channels // 16)
    constants: dict[str, bool | int] = {
        "WEIGHTS_RESIDENT": tile.weights_resident,
        **{n: int(i[n]) for n in ("KH", "KW", "DH", "DW", "PT", "PL")},
        "CHUNKS": merged.chunks,
        "LAST_CHUNK_MMAS": 4 if tile.weights_resident and merged.chunks > 1 else (mmas - 1) % 4 + 1,
        "TILE_H": tile.rows,
        "WIDTH_IN": tile.width,
        "STACK": tile.stack,
        "WGMMAS_PER_IMAGE": tile.wgmmas // tile.stack,
        "BN": tile.columns,
        "STAGES": tile.stages,
        "PATCHES": tile.patches,
        "OVERREAD": tile.spare,
        "MULTICAST": tile.multicast,
        "GROUP_MMAS": channels // 16 or 4,
        "GROUP_COLUMNS": columns or tile.columns,
        "EARLY": "w" in r.constant,
        "WHOLE_TILES": merged.columns % tile.columns == 0 and oc % merged.columns == 0,
        "WHOLE_CHUNKS": oc % 8 == 0,
    }
    tiles_n = grouped.tiles(r, tile.columns)
    tiles = D.mul(D.ceildiv(i["N"], tile.stack), D.ceildiv(i["OH"], tile.rows))
    if tile.weights_resident:  # all tiles of a CTA have the same columns
        grid = D.mul(D.minimum(tiles, max(1, r.sms // tiles_n)), tiles_n)
    else:
        grid = D.mul(D.ceildiv(tiles, tile.multicast), tiles_n)
        grid = grid if tile.split > 1 else D.minimum(grid, r.sms // tile.multicast)
        grid = D.mul(grid, tile.cluster_size)
    kernel = instantiate(
        r,
        "conv_halo",
        "conv/halo",
        [
            ("const __grid_constant__ TensorMap", "map_x", x),
            ("const __grid_constant__ TensorMap", "map_w", w),
            pointer("T", "y"),
            ("i64", "ldy", Int64(i["y_cs"])),
            *ints({"N": oc, "IMAGES": i["N"], **sizes(r, "OH", "OW")}),
            ("i64", "ldr", Int64(ldr)),
            *grouped.parameters(r),
        ],
        (D.mul(grid, active), 1, 1),
        384,
        epilogue=epilogue.epilogue(flat, (ldr,), width=2),
        macros={
            "SOURCE": 2,
            "Y_VECTOR": 1,
            "SPLIT": tile.split,
            **wgmma(r.dtype, columns or tile.columns),
        },
        constants=constants,
        text=grouped.constants(r),
        smem=tile.smem,
        cluster=tile.cluster_size,
    )
    return [kernel]
