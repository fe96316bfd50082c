"""Convolutions of stride 1 on Hopper that read a pixel once for all taps (`halo.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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

from ..common import epilogue
from ..common.instantiate import instantiate, ints, pointer, sizes, wgmma
from ..gemm import cluster_splitk_sm90
from . import grouped, problem

#: Pixels of a tile and taps at most where weights stay. Else: sums of a thread at most, stages of
#: weights at least and at most, CTAs that divide the steps, output channels at least.
_PIXELS, _TAPS = 128, 25
_SUMS, _FEWEST, _MOST, _SPLITS, _FEW = 128, 3, 16, (1, 2, 3, 4, 6, 8), 32
#: The cost of resident weights, measured on an H200: flops a clock with 64 columns and with more;
#: clocks to start, and to finish 64 x 64 results; the part of a step's clocks where columns share
#: channels with no others; bytes of weights a clock.
_FLOPS_NARROW, _FLOPS, _BEGIN, _PANEL_CLOCKS, _APART, _WEIGHTS = (
    2870.0,
    3400.0,
    700.0,
    350.0,
    0.75,
    77.0,
)
#: The cost of streamed weights, fitted to measurements on an H200 (766 of 133 shapes). Clocks to
#: start, of what wgmma should take for 64 rows (bound by shared memory with few columns), of a step
#: beside its products, at least, and until a copy of weights comes; to finish 64 x 64 results, more
#: with an activation that needs the special functions, after each tile.
_START, _WGMMA, _STEP, _LEAST, _LATENCY = 2400.0, 1.05, 24.0, 325.0, 1300.0
_PANEL, _SMOOTH, _EDGE = 915.0, 140.0, 250.0
#: Clocks of a cluster that divides the steps, for a float exchanged, of a cluster that shares
#: weights; bytes a clock from L2; what share of a copy the second CTA takes on; how many times its
#: clocks a tile costs beside those of im2col, which are rather too many there.
_CLUSTER, _FLOAT, _SHARED, _CHIP_BYTES, _SHARED_COPY, _BESIDE = (
    2600.0,
    0.555,
    400.0,
    6400.0,
    0.6,
    1.06,
)
#: Clocks to copy 64 channels of a pixel and of a filter whose rows begin at multiples of so many
#: elements.
_COPIES = {64: (3.1, 0.75), 16: (4.7, 2.9), 8: (4.7, 4.95)}


@dataclass(frozen=True)
class HaloTile:
    """rows: of the output; width: pixels of a row, padding included; stack: images; blocks: of 64
    pixels; columns: output channels; stages: of weights; slab: bytes; slabs; behind: bytes that a
    tile reads behind the last slab; split: CTAs of a cluster that divide the steps; share: CTAs of
    one that share weights; resident: whether all weights have a stage.
    """

    rows: int
    width: int
    stack: int
    blocks: int
    columns: int
    stages: int
    slab: int
    slabs: int
    behind: int
    split: int = 1
    share: int = 1
    resident: bool = False

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.stages * self.columns * 128

    @property
    def spare(self) -> int:
        """Bytes behind the weights that are only read."""
        return max(0, self.behind - self.weights)

    @property
    def cluster_size(self) -> int:
        return self.split * self.share

    @property
    def smem(self) -> int:
        sums = 0 if self.split == 1 else -(-self.blocks // 2) * self.columns * 512
        return 2048 + max(sums, self.slabs * self.slab + self.weights + self.spare)


tiles = (HaloTile,)


def supports(r: Request) -> bool:
    tensor_maps = problem.by_tensor_maps(r) and problem.stored_by_tensor_maps(r)
    return tensor_maps and not problem.transposed(r)


def _taps(r: Request) -> int:
    return int(r.ints["KH"]) * int(r.ints["KW"])


def _width(r: Request) -> int:
    return int(r.ints["OW"]) + (int(r.ints["KW"]) - 1) * int(r.ints["DW"])


def _height(r: Request, rows: int) -> int:
    """Rows of a slab."""
    return rows + (int(r.ints["KH"]) - 1) * int(r.ints["DH"])


def configs(r: Request) -> list[HaloTile]:
    """The tiles for a convolution that tensor maps reach."""
    i = r.ints
    fixed = isinstance(i["IW"], int) and isinstance(i["OW"], int)
    if not fixed or i["SH"] != 1 or i["SW"] != 1 or _taps(r) == 1 or int(i["OW"]) <= 0:
        return []
    return [*_resident(r), *_streamed(r)]


def _tile(r: Request, rows: int, stack: int, blocks: int, columns: int) -> HaloTile:
    width = _width(r)
    slab = -(-stack * _height(r, rows) * width * 128 // 1024) * 1024
    behind = blocks // stack * 64 - rows * width + (int(r.ints["KW"]) - 1) * int(r.ints["DW"])
    return HaloTile(rows, width, stack, blocks, columns, 0, slab, 1, max(0, behind * 128))


def _resident(r: Request) -> Iterator[HaloTile]:
    """Weights stay: two blocks for each warpgroup, as many slabs as there is room for."""
    rows, bundle, steps = _PIXELS // _width(r), grouped.of(r), _taps(r) * grouped.of(r).chunks
    if not rows or _taps(r) > _TAPS or _height(r, rows) > 256 or epilogue.residual(r):
        return
    for columns in (64, 128) if bundle.columns > 64 else (64,):
        tile = replace(_tile(r, rows, 1, 2, columns), stages=steps, resident=True)
        slabs = min(4, (HOPPER_SHARED - 2048 - tile.weights) // tile.slab)
        if slabs >= 2:
            yield replace(tile, slabs=slabs)


def _streamed(r: Request) -> Iterator[HaloTile]:
    """Weights pass through a ring."""
    oc, steps = int(r.ints["OC"]), _taps(r) * grouped.of(r).chunks
    if r.ints["G"] != 1 or _width(r) > 256:
        return
    widths = {-(-oc // (32 * parts)) * 32 for parts in range(1, 9)} | {64, 128, 256}
    for rows, stack, blocks in _shapes(r):
        if _height(r, rows) > 256:
            continue
        for columns in sorted(widths):
            if columns > 256 or columns >= oc + 32 or -(-blocks // 2) * columns > 2 * _SUMS:
                continue
            # sums of warpgroups with unlike many blocks could not be exchanged without waiting for
            # each product
            splits = _SPLITS if blocks % 2 == 0 else (1,)
            for slabs in (2, 1):
                tile = replace(_tile(r, rows, stack, blocks, columns), slabs=slabs)
                room = HOPPER_SHARED - 2048 - slabs * tile.slab
                tile = replace(tile, stages=min(_MOST, room // (columns * 128)))
                if tile.stages >= _FEWEST and tile.smem <= HOPPER_SHARED:
                    divided = (replace(tile, split=s) for s in splits if s * 4 <= max(steps, 4))
                    yield from (t for t in divided if t.smem <= HOPPER_SHARED)
                    yield replace(tile, share=2)
                    break


def _shapes(r: Request) -> Iterator[tuple[int, int, int]]:
    """Rows, images and blocks of tiles whose weights are streamed."""
    high, wide, width, seen = r.ints["OH"], int(r.ints["OW"]), _width(r), set()
    for blocks in range(2, 9):
        rows = (64 * blocks - wide) // width + 1 if 64 * blocks >= wide else 0
        if not rows:
            continue
        stack = 1
        if isinstance(high, int) and high > 0:
            rows = -(-high // -(-high // rows))
            if rows == high:
                per = -(-((high - 1) * width + wide) // 64)
                if blocks % per:
                    continue
                stack = blocks // per
        if (rows, stack) not in seen:
            yield rows, stack, blocks
        seen.add((rows, stack))


def prices(r: Request, m: int) -> dict[HaloTile, float]:
    """Clocks for m output pixels, comparable with `persistent_sm90.tile_cost`."""
    return {t: cost(t, r, m) for t in configs(r) if t.resident or _measured(t, r, m)}


def cost(t: HaloTile, r: Request, m: int) -> float:
    return _resident_cost(t, r, m) if t.resident else _streamed_cost(t, r, m)


def _resident_cost(t: HaloTile, r: Request, m: int) -> float:
    tiles_n: int = grouped.tiles(r, t.columns)
    high, wide = r.ints["OH"], int(r.ints["OW"])
    tiles = m / (high * wide) * -(-high // t.rows) if isinstance(high, int) else m / (t.rows * wide)
    turns = -(-tiles // max(1, r.sms // tiles_n)) * -(-tiles_n // r.sms)
    flops = t.stages * 2.0 * _PIXELS * t.columns * 64 * grouped.straddling(r) * grouped.mma_scale(r)
    multiply = flops / (_FLOPS if t.columns > 64 else _FLOPS_NARROW)
    multiply *= _APART if grouped.alone(r)[1] else 1.0
    finish = _PIXELS * t.columns / 4096 * _PANEL_CLOCKS
    filters = t.stages * t.columns * grouped.pixel(r)[0] if r.ints["G"] == 1 else 0.0
    clocks = max(turns * multiply, -(-turns // 2) * (multiply + finish)) + finish
    return float(_BEGIN + clocks + max(t.weights / _WEIGHTS, filters))


def _tiles(t: HaloTile, r: Request, m: int) -> float:
    """Tiles of m pixels whose weights are streamed."""
    high, rows = r.ints["OH"], m / int(r.ints["OW"])
    stacks = (
        -(-rows // (high * t.stack)) * -(-high // t.rows)
        if isinstance(high, int)
        else rows / t.rows
    )
    return float(-(-stacks // t.share) * t.share * -(-int(r.ints["OC"]) // t.columns))


def _measured(t: HaloTile, r: Request, m: int) -> bool:
    """Whether the cost of streamed weights holds: all clusters that divide steps run at once."""
    slots = cluster_splitk_sm90.slots(t.split, 1, r.sms)
    return int(r.ints["OC"]) >= _FEW and (t.split == 1 or _tiles(t, r, m) * t.split <= slots)


def _streamed_cost(t: HaloTile, r: Request, m: int) -> float:
    i, taps, tiles = r.ints, _taps(r), _tiles(t, r, m)
    products = -(-int(i["IC"]) // 16)
    chunks = -(-products // 4)
    pixel, filters = _copied(i["x_cs"])[0], _copied(int(i["IC"]))[1]
    pixels = t.stack * _height(r, t.rows) * t.width
    one = t.blocks * max(t.columns / 2, 16 + t.columns / 4) * _WGMMA
    copies = max(
        t.columns * filters / (1 + _SHARED_COPY * (t.share - 1)) + pixels * pixel / taps,
        _LATENCY / t.stages,
        _LEAST,
    )
    whole = (chunks - 1) * max(4 * one + _STEP, copies)
    steps = taps / t.split * (whole + max((products - 4 * (chunks - 1)) * one + _STEP, copies))
    fill, slabs = pixels * pixel, -(-chunks // t.split)
    read = (slabs * pixels + taps * chunks / t.split * t.columns / t.share) * 128
    body = max(
        steps + fill * slabs * (t.slabs == 1), min(tiles * t.split, r.sms) * read / _CHIP_BYTES
    )
    finish = t.blocks * t.columns / 64 * (_PANEL + _SMOOTH * epilogue.expensive(r)) + _EDGE
    if t.split > 1:
        sums = t.blocks * 64 * t.columns
        finish = finish / t.split + _CLUSTER + sums * (t.split - 1) / t.split * _FLOAT
    turns = -(-tiles * t.split // r.sms)
    return float(_BESIDE * (_START + _SHARED * (t.share - 1) + fill + turns * (body + finish)))


def _copied(pitch: DimLike) -> tuple[float, float]:
    """Clocks to copy 64 channels of one pixel and of one filter, rows of that many."""
    return _COPIES[64 if multiple_of(pitch) >= 64 else 16 if multiple_of(pitch) >= 16 else 8]


def emit(r: Request, tile: HaloTile, active: DimLike) -> list[Kernel]:
    """active: 0 empties the grid."""
    i, oc, taps, bundle = r.ints, int(r.ints["OC"]), _taps(r), grouped.of(r)
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
        (bundle.pitch, taps, oc),
        (bundle.pitch * 2, taps * bundle.pitch * 2),
        (64, 1, tile.columns // tile.share),
    )
    ldr = i.get("r_cs", 0)
    flat = replace(r, ints={**i, **{f"o{k}_ld": ldr for k in range(4)}})
    channels, columns = grouped.alone(r)
    products = -(-bundle.channels // 16)
    constants: dict[str, bool | int] = {
        "WEIGHTS_RESIDENT": tile.resident,
        **{n: int(i[n]) for n in ("KH", "KW", "DH", "DW", "PT", "PL")},
        "CHUNKS": bundle.chunks,
        "LAST": 4 if tile.resident and bundle.chunks > 1 else (products - 1) % 4 + 1,
        "TILE_H": tile.rows,
        "WIDTH_IN": tile.width,
        "STACK": tile.stack,
        "PER": tile.blocks // tile.stack,
        "BN": tile.columns,
        "STAGES": tile.stages,
        "SLABS": tile.slabs,
        "BEHIND": tile.spare,
        "SHARE": tile.share,
        "EACH": channels // 16 or 4,
        "MANY": columns or tile.columns,
        "EARLY": "w" in r.constant,
        "WHOLE_TILES": bundle.columns % tile.columns == 0 and oc % bundle.columns == 0,
        "WHOLE_CHUNKS": oc % 8 == 0,
    }
    tiles_n = grouped.tiles(r, tile.columns)
    tiles = D.mul(D.ceildiv(i["N"], tile.stack), D.ceildiv(i["OH"], tile.rows))
    if tile.resident:  # a CTA keeps its columns
        grid = D.mul(D.minimum(tiles, max(1, r.sms // tiles_n)), tiles_n)
    else:
        grid = D.mul(D.ceildiv(tiles, tile.share), tiles_n)
        grid = grid if tile.split > 1 else D.minimum(grid, r.sms // tile.share)
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
