"""Products on Hopper (`persistent_sm90.cuh`): tiles, tensor maps and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer
from .sm90 import Problem, kernel, last_products, matrix

_MAP = "const __grid_constant__ TensorMap"
_PANEL, _FREE = 64 * 128, (0.0, 0.0)


@dataclass(frozen=True)
class HopperTile:
    """Rows and columns of one tile. ping: each consumer warpgroup has tiles of its own; cluster:
    blocks that share tiles of B; kept: steps of k for which a block keeps its columns of B (0:
    copied with every tile); tma: results leave by TMA; staging: 64 x 64 buffers of each warpgroup
    for the residual or for results; column: bytes of the epilogue's operands of one column, which
    each warpgroup keeps. Of batches: swap: y's columns are the rows of a tile; beside: blocks along
    columns of tiles that share tiles of A; panels: columns of B are copied by 64."""

    bm: int
    bn: int
    ping: bool
    cluster: int = 1
    kept: int = 0
    tma: bool = False
    staging: int = 0
    column: int = 0
    swap: bool = False
    beside: int = 1
    panels: bool = False

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.cluster * self.beside

    clustered = blocks

    @property
    def stage(self) -> int:
        return (
            self.bm + (0 if self.kept else -(-self.bn // 64) * 64 if self.panels else self.bn)
        ) * 128

    @property
    def stages(self) -> int:
        return min(8, (HOPPER_SHARED - self._fixed) // self.stage)

    @property
    def _fixed(self) -> int:
        return (
            2048 + 2 * (self.staging * _PANEL + self.column * self.bn) + self.kept * self.bn * 128
        )

    @property
    def smem(self) -> int:
        return self.stages * self.stage + self._fixed


@cache
def staged(t: HopperTile, residual: bool, vector: bool = True, column: int = 0) -> HopperTile:
    """The tile with its buffers.

    Of a residual all panels of a tile may fly while it is multiplied; vector: rows of the result
    begin at multiples of 16 bytes.
    """
    t = replace(t, column=column)
    if residual:
        return replace(t, staging=max(2, min(4, t.bm * t.bn // 4096 // (1 if t.ping else 2))))
    if vector and not t.tma:
        return t
    two = replace(t, staging=2)
    return two if t.tma and two.stages >= min(t.stages, 6) else replace(t, staging=1)


_SHAPES = (
    (128, 128, True),
    (64, 256, True),
    (64, 192, True),
    (64, 128, True),
    (128, 64, True),
    (128, 192, False),
)
TILES = tuple(HopperTile(bm, bn, ping, cluster) for bm, bn, ping in _SHAPES for cluster in (1, 2))
#: A tile whose sums leave no registers for another way of storing, and so many steps of k that
#: finishing it hides behind the next one. In whole models on a hot device, copies of B that two
#: blocks share gained nothing on it, and with an activation that needs the special functions it was
#: slower than the others.
_WIDE, _WIDE_STEPS = HopperTile(128, 192, True, tma=True), 8
#: The cost model, fitted to measurements on an H200. Flops a clock of one multiprocessor (f16);
#: bytes a clock from L2 and to memory, for the whole chip; clocks until a copy comes, to start a
#: kernel and a cluster, between the tiles of a block, to finish 64 x 64 results of one warpgroup,
#: more with an activation that needs the special functions.
_FLOPS, _CHIP_BYTES, _MEMORY_BYTES, _LATENCY = 3199.0, 4656.0, 3631.0, 2246.0
_START, _CLUSTER, _EDGE, _PANEL_CLOCKS, _SMOOTH = 1682.0, 5330.0, 262.0, 567.0, 349.0
#: What results that leave by TMA save of the clocks of several turns, and cost at the end.
_TMA_GAIN, _TMA_LATENCY = 0.93, 586.0
#: Clocks of a linear layer more between launches that wait for each other, comparable with
#: `cluster_splitk_sm90.between`.
BETWEEN = 5418.0
#: Of batches: rows of tiles, whether each warpgroup has tiles of its own, and most columns, with so
#: many where the epilogue takes registers beside the sums.
_BATCHED = (
    (64, True, 256, 256),
    (128, True, 192, 128),
    (128, False, 256, 256),
    (256, False, 192, 128),
)
# blocks down and along
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Clocks to start, more for clusters of four, of eight and where blocks share A, between the tiles
#: of a block, more where its warpgroups share them, to finish 64 x 64 results of one warpgroup,
#: more where these lie across y's rows, until a copy comes; flops a clock; bytes a clock from L2,
#: read from memory and written to it; how much more of y is written where tiles' rows do not begin
#: at multiples of 128 bytes (of a tile's columns), and y's not at multiples of 32; the share of
#: tiles' bytes that a last turn which is not full does not save.
(
    _BATCH_START,
    _BATCH_FOUR,
    _BATCH_EIGHT,
    _BATCH_BESIDE,
    _BATCH_EDGE,
    _BATCH_TOGETHER,
    _BATCH_LATENCY,
) = 3678.0, 235.0, 337.0, 347.0, 442.0, 677.0, 3056.0
_BATCH_PANEL, _BATCH_SWAP, _BATCH_FLOPS, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE = (
    356.0,
    145.0,
    3712.0,
    8304.0,
    2611.0,
    2464.0,
)
_LINES, _SECTORS, _LAST_TURN = 21.8, 0.487, 0.68
#: Bytes of a weight that L2 may still hold; bytes a clock that one multiprocessor reads of a larger
#: one, from memory.
CACHED, STREAM_BYTES = 32 << 20, 30.8


def candidates(n: int, steps: int, sms: int, bundles: int = 1) -> list[HopperTile]:
    kept = (
        HopperTile(bm, bn, ping, 1, steps)
        for bm, bn, ping in _SHAPES
        if ping and -(-n // bn) * bundles <= sms // 2
    )
    tiles = [*TILES, *(t for t in kept if staged(t, True).stages >= 3)]
    return [
        *tiles,
        *(replace(t, tma=True) for t in tiles),
        *((_WIDE,) if steps >= _WIDE_STEPS else ()),
    ]


def tile_cost(
    t: HopperTile, m: int, n: int, steps: int, sms: int, residual: bool = False, smooth: bool = False, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> float:  # fmt: skip
    """Clocks, comparable with `cluster_splitk_sm90.tile_cost`. smooth: the epilogue needs special
    functions. bundles: of n columns each; pixel: clocks to copy a step of one row and of one
    filter; made: as for `grouped.made`; crossed: `crossed` of A."""
    tiles_m, tiles_n = -(-m // (t.bm * t.cluster)), -(-n // t.bn) * bundles
    n *= bundles
    turns = (
        -(-tiles_m // (sms // tiles_n)) if t.kept else -(-(tiles_m * tiles_n) // (sms // t.cluster))
    )
    copied = (t.bm * crossed + (0 if t.kept else t.bn / t.cluster)) * 128
    # few products at a time
    multiply = (
        made
        * 2.0
        * t.bm
        * t.bn
        * 64
        / _FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.ping else 128) < 128 else 1.0)
    )
    copies = t.bm * pixel[0] + (0.0 if t.kept else t.bn / t.cluster * pixel[1])
    step = max(
        multiply,
        min(tiles_m * tiles_n * t.cluster, sms) * copied / _CHIP_BYTES,
        _LATENCY / staged(t, residual).stages,
        copies,
    )
    if n * steps * 128 > CACHED:
        step = max(step, t.bn / t.cluster * 128 / STREAM_BYTES)
    finish = t.bm * t.bn / 4096 * (1 if t.ping else 0.5) * (_PANEL_CLOCKS + _SMOOTH * smooth)
    tile = steps * step + _EDGE
    if t.ping:  # the second warpgroup begins one tile later
        body = max(
            turns * tile + finish,
            -(-turns // 2) * (tile + finish) + (tile if turns % 2 == 0 else 0.0),
        )
    else:
        body = turns * (tile + finish)
    if t.tma:
        body = body * (_TMA_GAIN if turns >= 3 else 1.0) + _TMA_LATENCY
    memory = (n * steps * 128 + m * n * 2 * (1 + residual)) / _MEMORY_BYTES
    return (
        _START
        + max(body, memory)
        + (_CLUSTER if t.cluster > 1 else 0.0)
        + (steps * t.bn * pixel[1] if t.kept else 0.0)
    )


def prices(
    m: int, n: int, steps: int, sms: int, residual: bool, smooth: bool, panels: bool, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0, wide: bool = False,
) -> dict[HopperTile, float]:  # fmt: skip
    """Clocks of every tile for m x n with `steps` steps of k. panels: tiles must be a multiple of
    64 columns wide, as all are. bundles: of n columns each, whose results leave by TMA only if
    whole panels of 64 columns are theirs. wide: whether _WIDE, which was measured on products of
    matrices, is among them."""
    tiles = (
        t
        for t in candidates(n, steps, sms, bundles)
        if not t.tma or not (residual or (bundles > 1 and n % 64))
    )
    tiles = (t for t in tiles if t != _WIDE or (wide and not smooth and n % 8 == 0))
    return {
        t: tile_cost(t, m, n, steps, sms, residual, smooth, bundles, pixel, made, crossed)
        for t in tiles
    }


def batched_tiles(
    m: int, n: int, across: tuple[bool, bool], plain: bool = True
) -> Iterator[HopperTile]:
    """Tiles worth a thought for products of two run-time operands. plain: the epilogue takes no
    registers.
    """
    for swap in (False, True) if plain else (False,):
        (left, right), panels = ((n, max(m, 1)), across[0]) if swap else ((m, n), across[1])
        for rows, ping, *most in _BATCHED:
            if rows > 64 and left <= rows - 64:
                continue
            least = -(-right // most[not plain])
            for cluster, beside in _CLUSTERS:
                # columns of which blocks copy parts, or that are so many bytes of y
                by = max(8 if panels else 8 * cluster, 8 if swap else 16)
                widths = {
                    w
                    for parts in range(least, least + 3)
                    for u in (by, 64)
                    if (w := -(-right // (u * parts)) * u) <= most[not plain]
                }
                for width in sorted(widths):
                    if beside <= max(1, 2 * -(-right // width) - 2) and cluster <= max(
                        1, 2 * -(-left // rows) - 2
                    ):
                        yield HopperTile(
                            rows,
                            width,
                            ping,
                            cluster,
                            staging=1,
                            swap=swap,
                            beside=beside,
                            panels=panels,
                        )


def batched_cost(
    t: HopperTile, m: int, n: int, k: int, batch: int, sms: int, crossed: tuple[float, float]
) -> float:
    """Clocks of `batch` products of two run-time operands, comparable with
    `cluster_splitk_sm90.batched_cost`. crossed: `crossed` of A and B.
    """
    left, right = (n, m) if t.swap else (m, n)
    first, second = crossed[::-1] if t.swap else crossed
    tiles, steps = (
        -(-left // (t.bm * t.cluster)) * -(-right // (t.bn * t.beside)) * batch,
        (k - 1) // 64 + last_products(k) / 4,
    )
    clusters = _clusters(t, sms)
    turns = -(-tiles // clusters)
    multiply = (
        2.0
        * t.bm
        * t.bn
        * 64
        / _BATCH_FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.ping else 128) < 128 else 1.0)
    )
    tile = steps * max(multiply, _BATCH_LATENCY / t.stages) + _BATCH_EDGE
    finish = t.bm * t.bn / 4096 * (1 if t.ping else 0.5) * (_BATCH_PANEL + _BATCH_SWAP * t.swap)
    if t.ping:
        body = max(
            turns * tile + finish,
            -(-turns // 2) * (tile + finish) + (tile if turns % 2 == 0 else 0.0),
        )
    else:
        body = turns * (tile + finish + _BATCH_TOGETHER)
    copied = (
        (tiles + _LAST_TURN * (turns * clusters - tiles)) * t.blocks * steps * 128 / _BATCH_CHIP
    )
    copied *= t.bm * first / t.beside + (t.stage / 128 - t.bm) * second / t.cluster
    wide = t.bm if t.swap else t.bn
    written = 1.0 + _LINES / wide * (wide % 64 > 0) + _SECTORS * (n % 16 > 0)
    memory = 2 * batch * (m * k + n * k) / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * written
    return (
        _BATCH_START
        + sqrt(body**2 + copied**2 + memory**2)
        + _BATCH_FOUR * (t.blocks > 2)
        + _BATCH_EIGHT * (t.blocks > 4)
        + _BATCH_BESIDE * (t.beside > 1)
    )


@cache
def batched_prices(
    m: int, n: int, k: int, batch: int, sms: int, across: tuple[bool, bool], crossed: tuple[float, float], plain: bool
) -> dict[HopperTile, float]:  # fmt: skip
    """Clocks of the tiles for `batch` products of two run-time operands, whose rows of y begin at
    multiples of 16 bytes. across: operands that are contiguous along their rows; crossed: as for
    `batched_cost`; plain: as for `batched_tiles`."""
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed) for t in batched_tiles(m, n, across, plain)
    }


def product(problem: Problem, tile: HopperTile, active: DimLike = 1) -> Kernel:
    """The kernel; active: 0 empties the grid."""
    r, batch = problem.request, problem.source == 2
    residual = r.program is None and epilogue.residual(r)
    assert problem.y_vector or not residual
    epi = problem.epilogue(2, residual, tabled=folded_norm.normed(r))
    tile = staged(tile, residual, problem.y_vector, epi.column)
    rows, columns, ldy, ldr = problem.rows, problem.columns, problem.ldy, problem.ldr
    # Where the last columns do not fill 16 bytes, a tensor copy was seen to write beyond them.
    by_tma = tile.tma and not residual and columns % 8 == 0
    store = 0 if not problem.y_vector else 3 if batch else 2 if by_tma else 1
    a, b = problem.maps((tile.bm, tile.beside), (tile.bn, tile.cluster))
    parameters: list[Parameter] = [(_MAP, "map_a", a), (_MAP, "map_b", b)]
    if store == 2:
        parameters.append((_MAP, "map_y", matrix(r, "y", rows, columns, ldy, (16, 64))))
    else:
        parameters += [pointer("T", "y"), *longs({"ldy": ldy})]
    if residual:
        parameters.append((_MAP, "map_r", matrix(r, "res", rows, columns, ldr, (64, 64))))
    parameters += [*ints({"M": rows, "N": columns}), *longs({"ldr": ldr}), *problem.parameters]
    count: DimLike = 1
    if batch:
        count = D.mul(r.ints["B0"], r.ints["B1"])
        parameters += ints({"B1": r.ints["B1"], "matrices": count})
    tiles_m = D.ceildiv(rows, tile.bm * tile.cluster)
    tiles_n = problem.column_tiles(tile.bn * tile.beside)
    if tile.kept:
        assert isinstance(tiles_n, int)
        grid = D.mul(D.minimum(tiles_m, r.sms // tiles_n), tiles_n)
    else:
        clusters = D.minimum(D.product([tiles_m, tiles_n, count]), _clusters(tile, r.sms))
        grid = D.mul(clusters, tile.blocks)
    return kernel(
        problem,
        "gemm/persistent_sm90",
        parameters,
        epi,
        tile.bn,
        (D.mul(grid, active), 1, 1),
        384,
        tile,
        residual,
        {"STORE": store, "FLIPPED": tile.swap},
        {
            "BM": tile.bm,
            "BN": tile.bn,
            "CLUSTER": tile.blocks,
            "ALONG_N": tile.beside,
            "PING": tile.ping,
            "KEPT": tile.kept,
            "STAGING": tile.staging,
            "A_ACROSS": problem.across[0],
            "B_ACROSS": problem.across[1],
            # tiles of STORE 2 have many steps
            "LAST": 4 if store == 2 else last_products(problem.depth),
        },
    )


def _clusters(t: HopperTile, sms: int) -> int:
    """That run at a time."""
    # some multiprocessors have less than three neighbours
    return max(1, sms // t.blocks if t.blocks < 4 else sms * 10 // 11 // t.blocks)
