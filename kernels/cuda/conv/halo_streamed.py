"""Convolutions of stride 1 on Hopper whose weights do not stay in shared memory
(`halo_streamed.cuh`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import (
    HOPPER_SHARED,
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import epilogue
from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import block_costs, cluster_splitk_sm90, persistent_sm90
from . import grouped

#: Sums of a thread at most, stages of weights at least and at most, blocks that divide the steps.
_SUMS, _FEWEST, _MOST, _SPLITS = 128, 3, 16, (1, 2, 3, 4, 6, 8)
_FEW = 32  # outputs; with less was not measured
#: The cost model, fitted to measurements on an H200 (766 of 133 shapes). Clocks to start, of what
#: wgmma should take for 64 rows (bound by shared memory with few columns), of a step beside its
#: products, at least, and until a copy of weights comes; to finish 64 x 64 results, more with an
#: activation that needs the special functions, after each tile, of a cluster that divides the
#: steps, for a float exchanged, of a cluster that shares weights; bytes a clock from L2; what share
#: of a copy the second block takes on; how many times its clocks a tile costs beside those of
#: im2col, which are rather too many there.
_START, _WGMMA, _STEP, _LEAST, _LATENCY, _PANEL, _SMOOTH, _EDGE = (
    2400.0,
    1.05,
    24.0,
    325.0,
    1300.0,
    915.0,
    140.0,
    250.0,
)
_CLUSTER, _FLOAT, _SHARED, _CHIP_BYTES, _SHARED_COPY, _BESIDE, _NEVER = (
    2600.0,
    0.555,
    400.0,
    6400.0,
    0.6,
    1.06,
    1e12,
)
#: Clocks to copy 64 channels of a pixel and of a filter whose rows begin at multiples of so many
#: elements.
_COPIES = {64: (3.1, 0.75), 16: (4.7, 2.9), 8: (4.7, 4.95)}


@dataclass(frozen=True)
class SlabTile:
    """Rows of the output and width of the padded input, images; blocks of 64 pixels; output
    channels; bytes of a slab, slabs, bytes that a tile reads behind the last one; blocks of a
    cluster that divide the steps, and that share copies of weights."""

    rows: int
    width: int
    stack: int
    blocks: int
    columns: int
    slab: int
    slabs: int
    behind: int
    split: int = 1
    share: int = 1

    @property
    def stages(self) -> int:
        return min(_MOST, (HOPPER_SHARED - 2048 - self.slabs * self.slab) // (self.columns * 128))

    @property
    def spare(self) -> int:
        """Bytes behind the weights that are there to be read alone."""
        return max(0, self.behind - self.stages * self.columns * 128)

    @property
    def clustered(self) -> int:
        return self.split * self.share

    @property
    def smem(self) -> int:
        sums = 0 if self.split == 1 else -(-self.blocks // 2) * self.columns * 512
        return 2048 + max(
            sums, self.slabs * self.slab + self.stages * self.columns * 128 + self.spare
        )

    @property
    def fits(self) -> bool:
        return self.stages >= _FEWEST and self.smem <= HOPPER_SHARED


def _shapes(r: Request) -> Iterator[tuple[int, int, int]]:
    """Rows, images and blocks of tiles."""
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


def _width(r: Request) -> int:
    return int(r.ints["OW"]) + (int(r.ints["KW"]) - 1) * int(r.ints["DW"])


def candidates(r: Request) -> list[SlabTile]:
    """The tiles for a convolution that tensor maps reach."""
    i = r.ints
    if (
        i["SH"] != 1
        or i["SW"] != 1
        or i["G"] != 1
        or i["KH"] == i["KW"] == 1
        or not isinstance(i["IW"], int)
        or not isinstance(i["OW"], int)
    ):
        return []
    width, oc, tiles = _width(r), int(i["OC"]), []
    steps = int(i["KH"]) * int(i["KW"]) * -(-int(i["IC"]) // 64)
    if i["OW"] <= 0 or width > 256:
        return []
    widths = {-(-oc // (32 * parts)) * 32 for parts in range(1, 9)} | {64, 128, 256}
    for rows, stack, blocks in _shapes(r):
        height = rows + (int(i["KH"]) - 1) * int(i["DH"])
        if height > 256:
            continue
        slab = -(-stack * height * width * 128 // 1024) * 1024
        behind = max(
            0, (blocks // stack * 64 - rows * width + (int(i["KW"]) - 1) * int(i["DW"])) * 128
        )
        for columns in sorted(widths):
            if columns > 256 or columns >= oc + 32 or -(-blocks // 2) * columns > 2 * _SUMS:
                continue
            # sums of warpgroups with unlike many blocks could not be exchanged without waiting for
            # each product
            splits = _SPLITS if blocks % 2 == 0 else (1,)
            for slabs in (2, 1):
                tile = SlabTile(rows, width, stack, blocks, columns, slab, slabs, behind)
                if tile.fits:
                    tiles += [
                        t
                        for t in (replace(tile, split=s) for s in splits)
                        if t.fits and t.split * 4 <= max(steps, 4)
                    ]
                    tiles.append(replace(tile, share=2))
                    break
    return tiles


def prices(r: Request, m: int) -> dict[SlabTile, float]:
    costs = {t: tile_cost(t, r, m) for t in candidates(r) if int(r.ints["OC"]) >= _FEW}
    return {t: cost for t, cost in costs.items() if cost < _NEVER}


def tile_cost(t: SlabTile, r: Request, m: int) -> float:
    """Clocks for m output pixels, comparable with `persistent_sm90.tile_cost`."""
    i, high, oc, taps = (
        r.ints,
        r.ints["OH"],
        int(r.ints["OC"]),
        int(r.ints["KH"]) * int(r.ints["KW"]),
    )
    rows_m = m / int(i["OW"])
    stacks = (
        -(-rows_m // (high * t.stack)) * -(-high // t.rows)
        if isinstance(high, int)
        else rows_m / t.rows
    )
    tiles = -(-stacks // t.share) * t.share * -(-oc // t.columns)
    if t.split > 1 and tiles * t.split > cluster_splitk_sm90.slots(t.split, 1, r.sms):
        return _NEVER
    products = -(-int(i["IC"]) // 16)
    chunks = -(-products // 4)
    pixel, filters = _copied(i["x_cs"])[0], _copied(int(i["IC"]))[1]
    pixels = t.stack * (t.rows + (int(i["KH"]) - 1) * int(i["DH"])) * t.width
    one = t.blocks * max(t.columns / 2, 16 + t.columns / 4) * _WGMMA
    copies = max(
        t.columns * filters / (1 + _SHARED_COPY * (t.share - 1)) + pixels * pixel / taps,
        _LATENCY / t.stages,
        _LEAST,
    )
    steps = (
        taps
        / t.split
        * (
            (chunks - 1) * max(4 * one + _STEP, copies)
            + max((products - 4 * (chunks - 1)) * one + _STEP, copies)
        )
    )
    fill, slabs = pixels * pixel, -(-chunks // t.split)
    bytes_read = (slabs * pixels + taps * chunks / t.split * t.columns / t.share) * 128
    body = max(
        steps + fill * slabs * (t.slabs == 1),
        min(tiles * t.split, r.sms) * bytes_read / _CHIP_BYTES,
    )
    finish = t.blocks * t.columns / 64 * (_PANEL + _SMOOTH * block_costs.dear(r)) + _EDGE
    if t.split > 1:
        finish = (
            finish / t.split
            + _CLUSTER
            + t.blocks * 64 * t.columns * (t.split - 1) / t.split * _FLOAT
        )
    return float(
        _BESIDE
        * (_START + _SHARED * (t.share - 1) + fill + -(-tiles * t.split // r.sms) * (body + finish))
    )


def _copied(pitch: DimLike) -> tuple[float, float]:
    """Clocks to copy 64 channels of one pixel and of one filter, rows of that many."""
    return _COPIES[64 if multiple_of(pitch) >= 64 else 16 if multiple_of(pitch) >= 16 else 8]


def convolution(r: Request, tile: SlabTile, active: DimLike) -> Kernel:
    i, oc, ic = r.ints, int(r.ints["OC"]), int(r.ints["IC"])
    taps, pitch, height = (
        int(i["KH"]) * int(i["KW"]),
        -(-ic // 8) * 8,
        tile.rows + (int(i["KH"]) - 1) * int(i["DH"]),
    )
    strides = tuple(D.mul(i[f"x_{p}"], 2) for p in ("cs", "rs", "ns"))
    maps = (
        (
            "map_x",
            TensorMap(
                Pointer("x"),
                r.dtype,
                (ic, i["IW"], i["IH"], i["N"]),
                strides,
                (64, tile.width, height, tile.stack),
            ),
        ),
        (
            "map_w",
            TensorMap(
                Pointer("w"),
                r.dtype,
                (pitch, taps, oc),
                (pitch * 2, taps * pitch * 2),
                (64, 1, tile.columns // tile.share),
            ),
        ),
    )
    epi = epilogue.epilogue(
        replace(r, ints={**i, **{f"o{k}_ld": i.get("r_cs", 0) for k in range(4)}}),
        (i.get("r_cs", 0),),
        width=2,
    )
    parameters: list[tuple[str, str, Argument]] = [
        ("const __grid_constant__ TensorMap", n, v) for n, v in maps
    ]
    parameters += [("T*", "y", Pointer("y")), ("i64", "ldy", Int64(i["y_cs"]))]
    parameters += [
        ("int", n, Int32(v))
        for n, v in (("N", oc), ("IMAGES", i["N"]), ("OH", i["OH"]), ("OW", i["OW"]))
    ]
    parameters += [("i64", "ldr", Int64(i.get("r_cs", 0))), *epi.parameters]
    constants = {n: int(i[n]) for n in ("KH", "KW", "DH", "DW", "PT", "PL")}
    chunks = -(-ic // 64)
    constants |= {
        "CHUNKS": chunks,
        "LAST": -(-(ic - 64 * (chunks - 1)) // 16),
        "WIDTH_IN": tile.width,
        "TILE_H": tile.rows,
        "STACK": tile.stack,
    }
    constants |= {
        "PER": tile.blocks // tile.stack,
        "BN": tile.columns,
        "STAGES": tile.stages,
        "SLABS": tile.slabs,
        "BEHIND": tile.spare,
    }
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", "#define SOURCE 2", "#define Y_VECTOR 1", f"#define SPLIT {tile.split}",
        f"constexpr int SHARE = {tile.share};", f"#define PARAMETERS {declared(r, parameters)}",
        f"#define EPILOGUE_ARGUMENTS {epi.arguments}", f"constexpr int {', '.join(f'{n} = {v}' for n, v in constants.items())};",
        f"constexpr bool EARLY = {int('w' in r.constant)}, WHOLE_CHUNKS = {int(oc % 8 == 0)};",
        grouped.constants(), persistent_sm90.multiply(tile.columns, "f16" if r.dtype == DType.F16 else "bf16"), epi.source,
        template("common/tma"), template("common/cluster_splitk"), template("common/epilogue_store"), template("conv/halo_streamed"),
    ])  # fmt: skip
    tiles = D.mul(
        D.ceildiv(D.mul(D.ceildiv(i["N"], tile.stack), D.ceildiv(i["OH"], tile.rows)), tile.share),
        -(-oc // tile.columns),
    )
    blocks = (
        D.mul(tiles, tile.split)
        if tile.split > 1
        else D.mul(D.minimum(tiles, r.sms // tile.share), tile.share)
    )
    return Kernel(
        text,
        "conv_slab",
        (D.mul(blocks, active), 1, 1),
        384,
        tuple(v for _, _, v in parameters),
        tile.smem,
        tile.split * tile.share,
        True,
    )
