"""Persistent, warp-specialized GEMM on Hopper (`persistent_sm90.cuh`): tiles, costs, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import sqrt

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue, folded_norm
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer
from ..cost.fitted import fitted
from .sm90 import Problem, Sizes, kernel, last_stage_mmas, matrix

_MAP = "const __grid_constant__ TensorMap"
_PANEL = 64 * 128


@dataclass(frozen=True)
class HopperTile:
    """bm, bn: rows and columns of a tile. pingpong: each consumer warpgroup has tiles of its own,
    else two share a tile (cooperative); multicast_b: CTAs of a cluster that share tiles of B;
    resident_b: stages of B that stay in shared memory, all of k (0: B is copied with every tile);
    tma: results are stored by TMA; staging: 64 x 64 buffers per warpgroup for the residual or the
    results; column: bytes of the epilogue's operands of one column, in shared memory. Of batches:
    swap: rows of a tile are columns of y (swap-AB); multicast_a: CTAs of a cluster that share tiles
    of A; panels: B is contiguous along its rows and is copied in panels of 64 of them.
    """

    bm: int
    bn: int
    pingpong: bool
    multicast_b: int = 1
    resident_b: int = 0
    tma: bool = False
    staging: int = 0
    column: int = 0
    swap: bool = False
    multicast_a: int = 1
    panels: bool = False

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.multicast_b * self.multicast_a

    @property
    def stage(self) -> int:
        return (
            self.bm + (0 if self.resident_b else -(-self.bn // 64) * 64 if self.panels else self.bn)
        ) * 128

    @property
    def stages(self) -> int:
        return min(8, (HOPPER_SHARED - self._fixed) // self.stage)

    @property
    def _fixed(self) -> int:
        return (
            2048
            + 2 * (self.staging * _PANEL + self.column * self.bn)
            + self.resident_b * self.bn * 128
        )

    @property
    def smem(self) -> int:
        return self.stages * self.stage + self._fixed


@cache
def staged(t: HopperTile, residual: bool, vector: bool = True, column: int = 0) -> HopperTile:
    """The tile with its staging buffers: of a residual, up to all panels of the tile, copied
    during the main loop. vector: rows of the result are aligned to 16 bytes.
    """
    t = replace(t, column=column)
    if residual:
        return replace(t, staging=max(2, min(4, t.bm * t.bn // 4096 // (1 if t.pingpong else 2))))
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
TILES = tuple(
    HopperTile(bm, bn, pingpong, multicast_b)
    for bm, bn, pingpong in _SHAPES
    for multicast_b in (1, 2)
)
#: The widest tile: its accumulators leave registers only for stores by TMA. _WIDE_STEPS: stages of
#: k from which its epilogue overlaps the next main loop. In whole models on a hot device, multicast
#: of B gained nothing with it, and with an expensive epilogue it was slower than the others.
_WIDE, _WIDE_STEPS = HopperTile(128, 192, True, tma=True), 8
#: The cost model, fitted to measurements on an H200. Flops per clock and SM (f16); bytes a clock
#: from L2 and to memory, of all SMs; clocks of a copy, to start a kernel and a cluster, from one
#: tile of a CTA to the next, of the epilogue of 64 x 64 results of one warpgroup, more if it is
#: expensive.
_FLOPS, _CHIP_BYTES, _MEMORY_BYTES, _LATENCY = fitted(
    "gemm.persistent_sm90", "flops chip_bytes memory_bytes latency"
)
_START, _CLUSTER, _EDGE, _PANEL_CLOCKS, _EXPENSIVE = fitted(
    "gemm.persistent_sm90", "start cluster edge panel_clocks expensive"
)
#: Of stores by TMA: the factor of the clocks of three waves or more, and clocks at the end.
_TMA_GAIN, _TMA_LATENCY = fitted("gemm.persistent_sm90", "tma_gain tma_latency")
#: Further clocks of a linear layer in a network, where each launch waits for the one before
#: (`cluster_splitk_sm90.network_cost`).
(NETWORK_COST,) = fitted("gemm.persistent_sm90", "network_cost")
#: Of batches: rows of a tile, pingpong, most columns with a simple epilogue, and with one that
#: needs registers besides the accumulators.
_BATCHED = (
    (64, True, 256, 256),
    (128, True, 192, 128),
    (128, False, 256, 256),
    (256, False, 192, 128),
)
# (multicast_b, multicast_a)
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Of batches: clocks to start, more for clusters of four, of eight and with multicast of A, from
#: one tile of a CTA to the next, more if cooperative, of a copy, of the epilogue of 64 x 64 results
#: of one warpgroup, more with swap-AB; flops a clock; bytes a clock from L2, read from memory and
#: written to it; growth of written bytes where rows of tiles are not aligned to 128 bytes (over a
#: tile's columns), and rows of y not to 32 bytes; share of the copies of an incomplete last wave
#: that is not saved.
(
    _BATCH_START,
    _BATCH_FOUR,
    _BATCH_EIGHT,
    _BATCH_MULTICAST_A,
    _BATCH_EDGE,
    _BATCH_COOPERATIVE,
    _BATCH_LATENCY,
) = fitted(
    "gemm.persistent_sm90",
    "batch_start batch_four batch_eight batch_multicast_a batch_edge batch_cooperative"
    " batch_latency",
)
_BATCH_PANEL, _BATCH_SWAP, _BATCH_FLOPS, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE = fitted(
    "gemm.persistent_sm90", "batch_panel batch_swap batch_flops batch_chip batch_read batch_write"
)
_LINES, _SECTORS, _LAST_WAVE = fitted("gemm.persistent_sm90", "lines sectors last_wave")
#: Bytes of a weight that L2 may still hold from the last run; bytes per clock and SM that are read
#: from memory of a larger one.
CACHED, STREAM_BYTES = 32 << 20, 30.8


def candidates(n: int, steps: int, sms: int, problem_count: int = 1) -> list[HopperTile]:
    """Tiles for `problem_count` GEMMs of n columns over `steps` stages of k."""
    resident_b = (
        HopperTile(bm, bn, pingpong, 1, steps)
        for bm, bn, pingpong in _SHAPES
        if pingpong and -(-n // bn) * problem_count <= sms // 2
    )
    tiles = [*TILES, *(t for t in resident_b if staged(t, True).stages >= 3)]
    return [
        *tiles,
        *(replace(t, tma=True) for t in tiles),
        *((_WIDE,) if steps >= _WIDE_STEPS else ()),
    ]


def tile_cost(t: HopperTile, s: Sizes) -> float:
    """Clocks of an isolated launch, comparable with `cluster_splitk_sm90.tile_cost`."""
    tiles_m, tiles_n = -(-s.m // (t.bm * t.multicast_b)), -(-s.n // t.bn) * s.problem_count
    waves = (
        -(-tiles_m // (s.sms // tiles_n))
        if t.resident_b
        else -(-(tiles_m * tiles_n) // (s.sms // t.multicast_b))
    )
    copied = (t.bm * s.crossed + (0 if t.resident_b else t.bn / t.multicast_b)) * 128
    # 1.11: narrow wgmma do not reach the peak
    multiply = (
        s.mma_scale
        * 2.0
        * t.bm
        * t.bn
        * 64
        / _FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.pingpong else 128) < 128 else 1.0)
    )
    copies = t.bm * s.pixel[0] + (0.0 if t.resident_b else t.bn / t.multicast_b * s.pixel[1])
    step = max(
        multiply,
        min(tiles_m * tiles_n * t.multicast_b, s.sms) * copied / _CHIP_BYTES,
        _LATENCY / staged(t, s.residual).stages,
        copies,
    )
    if s.weight_bytes > CACHED:
        step = max(step, t.bn / t.multicast_b * 128 / STREAM_BYTES)
    finish = (
        t.bm * t.bn / 4096 * (1 if t.pingpong else 0.5) * (_PANEL_CLOCKS + _EXPENSIVE * s.expensive)
    )
    tile = s.steps * step + _EDGE
    if t.pingpong:  # the second warpgroup begins one tile later
        body = max(
            waves * tile + finish,
            -(-waves // 2) * (tile + finish) + (tile if waves % 2 == 0 else 0.0),
        )
    else:
        body = waves * (tile + finish)
    if t.tma:
        body = body * (_TMA_GAIN if waves >= 3 else 1.0) + _TMA_LATENCY
    return (
        _START
        + max(body, s.memory_bytes / _MEMORY_BYTES)
        + (_CLUSTER if t.multicast_b > 1 else 0.0)
        + (s.steps * t.bn * s.pixel[1] if t.resident_b else 0.0)
    )


def prices(s: Sizes, wide: bool = False) -> dict[HopperTile, float]:
    """Clocks of every tile. wide: also of _WIDE, which was measured on linear layers only. Results
    of several GEMMs leave by TMA only if each has whole panels of 64 columns.
    """
    tiles = (
        t
        for t in candidates(s.n, s.steps, s.sms, s.problem_count)
        if not t.tma or not (s.residual or (s.problem_count > 1 and s.n % 64))
    )
    tiles = (t for t in tiles if t != _WIDE or (wide and not s.expensive and s.n % 8 == 0))
    return {t: tile_cost(t, s) for t in tiles}


def batched_tiles(
    m: int, n: int, mn_major: tuple[bool, bool], simple_epilogue: bool = True
) -> Iterator[HopperTile]:
    """Candidate tiles for batched matmul. simple_epilogue: it needs few registers; mn_major:
    whether A, B are contiguous along their rows.
    """
    for swap in (False, True) if simple_epilogue else (False,):
        (left, right), panels = ((n, max(m, 1)), mn_major[0]) if swap else ((m, n), mn_major[1])
        for rows, pingpong, *most in _BATCHED:
            if rows > 64 and left <= rows - 64:
                continue
            least = -(-right // most[not simple_epilogue])
            for multicast_b, multicast_a in _CLUSTERS:
                # the unit of a width: parts that CTAs multicast, or aligned rows of y
                by = max(8 if panels else 8 * multicast_b, 8 if swap else 16)
                widths = {
                    w
                    for parts in range(least, least + 3)
                    for u in (by, 64)
                    if (w := -(-right // (u * parts)) * u) <= most[not simple_epilogue]
                }
                for width in sorted(widths):
                    if multicast_a <= max(1, 2 * -(-right // width) - 2) and multicast_b <= max(
                        1, 2 * -(-left // rows) - 2
                    ):
                        yield HopperTile(
                            rows,
                            width,
                            pingpong,
                            multicast_b,
                            staging=1,
                            swap=swap,
                            multicast_a=multicast_a,
                            panels=panels,
                        )


def batched_cost(
    t: HopperTile, m: int, n: int, k: int, batch: int, sms: int, crossed: tuple[float, float]
) -> float:
    """Clocks of `batch` GEMMs of two run-time operands, comparable with
    `cluster_splitk_sm90.batched_cost`. crossed: `crossed` of A and B.
    """
    left, right = (n, m) if t.swap else (m, n)
    first, second = crossed[::-1] if t.swap else crossed
    tiles, steps = (
        -(-left // (t.bm * t.multicast_b)) * -(-right // (t.bn * t.multicast_a)) * batch,
        (k - 1) // 64 + last_stage_mmas(k) / 4,
    )
    clusters = _clusters(t, sms)
    waves = -(-tiles // clusters)
    multiply = (
        2.0
        * t.bm
        * t.bn
        * 64
        / _BATCH_FLOPS
        * (1.11 if t.bn * t.bm // (64 if t.pingpong else 128) < 128 else 1.0)
    )
    tile = steps * max(multiply, _BATCH_LATENCY / t.stages) + _BATCH_EDGE
    finish = t.bm * t.bn / 4096 * (1 if t.pingpong else 0.5) * (_BATCH_PANEL + _BATCH_SWAP * t.swap)
    if t.pingpong:
        body = max(
            waves * tile + finish,
            -(-waves // 2) * (tile + finish) + (tile if waves % 2 == 0 else 0.0),
        )
    else:
        body = waves * (tile + finish + _BATCH_COOPERATIVE)
    copied = (
        (tiles + _LAST_WAVE * (waves * clusters - tiles))
        * t.cluster_size
        * steps
        * 128
        / _BATCH_CHIP
    )
    copied *= t.bm * first / t.multicast_a + (t.stage / 128 - t.bm) * second / t.multicast_b
    wide = t.bm if t.swap else t.bn
    written = 1.0 + _LINES / wide * (wide % 64 > 0) + _SECTORS * (n % 16 > 0)
    memory = 2 * batch * (m * k + n * k) / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * written
    return (
        _BATCH_START
        + sqrt(body**2 + copied**2 + memory**2)
        + _BATCH_FOUR * (t.cluster_size > 2)
        + _BATCH_EIGHT * (t.cluster_size > 4)
        + _BATCH_MULTICAST_A * (t.multicast_a > 1)
    )


@cache
def batched_prices(
    m: int,
    n: int,
    k: int,
    batch: int,
    sms: int,
    mn_major: tuple[bool, bool],
    crossed: tuple[float, float],
    simple_epilogue: bool,
) -> dict[HopperTile, float]:
    """Clocks of the tiles for `batch` GEMMs of two run-time operands, with rows of y aligned to 16
    bytes. crossed: as for `batched_cost`; the others as for `batched_tiles`.
    """
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed)
        for t in batched_tiles(m, n, mn_major, simple_epilogue)
    }


def emit(problem: Problem, tile: HopperTile, active: DimLike = 1) -> Kernel:
    """The kernel; active: 0 empties the grid."""
    r, batch = problem.request, problem.source == 2
    residual = r.program is None and epilogue.residual(r)
    assert problem.y_vector or not residual
    epi = problem.epilogue(2, residual, tabled=folded_norm.normed(r))
    tile = staged(tile, residual, problem.y_vector, epi.column)
    rows, columns, ldy, ldr = problem.rows, problem.columns, problem.ldy, problem.ldr
    # TMA stores were seen to write beyond the last columns where these do not fill 16 bytes.
    by_tma = tile.tma and not residual and columns % 8 == 0
    store = 0 if not problem.y_vector else 3 if batch else 2 if by_tma else 1
    a, b = problem.maps((tile.bm, tile.multicast_a), (tile.bn, tile.multicast_b))
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
    tiles_m = D.ceildiv(rows, tile.bm * tile.multicast_b)
    tiles_n = problem.column_tiles(tile.bn * tile.multicast_a)
    if tile.resident_b:
        assert isinstance(tiles_n, int)
        grid = D.mul(D.minimum(tiles_m, r.sms // tiles_n), tiles_n)
    else:
        clusters = D.minimum(D.product([tiles_m, tiles_n, count]), _clusters(tile, r.sms))
        grid = D.mul(clusters, tile.cluster_size)
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
        {"STORE": store, "SWAP": tile.swap},
        {
            "BM": tile.bm,
            "BN": tile.bn,
            "CLUSTER": tile.cluster_size,
            "CLUSTER_N": tile.multicast_a,
            "PINGPONG": tile.pingpong,
            "RESIDENT_B": tile.resident_b,
            "STAGING": tile.staging,
            "A_MN_MAJOR": problem.mn_major[0],
            "B_MN_MAJOR": problem.mn_major[1],
            # with STORE 2 k is long: a shorter last stage gains nothing
            "LAST_STAGE_MMAS": 4 if store == 2 else last_stage_mmas(problem.depth),
        },
    )


def _clusters(t: HopperTile, sms: int) -> int:
    """Concurrent clusters."""
    # some GPCs have SMs that are part of no cluster of four
    return max(1, sms // t.cluster_size if t.cluster_size < 4 else sms * 10 // 11 // t.cluster_size)
