"""GEMM on Hopper with split-K over a cluster (`cluster_splitk_sm90.cuh`): tiles, costs, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Pointer
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer
from ..cost.fitted import fitted
from . import persistent_sm90
from .sm90 import Problem, Sizes, kernel, last_stage_mmas, mma_columns

_MAP = "const __grid_constant__ TensorMap"
# bytes of shared memory of an SM, of which every CTA takes 1024 more than it asks for
_SM_SHARED = 233472


@dataclass(frozen=True)
class SplitTile:
    """rows, columns: of the tile, from the left and the right operand of wgmma. swap: the weight is
    the left operand (swap-AB); split: split-K over so many CTAs of a cluster; right_multicast:
    tiles along the left operand that share copies of the right one; resident: CTAs per SM. Of
    batches: left_multicast: tiles along the right operand that share copies of the left one.
    """

    rows: int
    columns: int
    swap: bool
    split: int = 1
    right_multicast: int = 1
    resident: int = 1
    left_multicast: int = 1

    @property
    def bm(self) -> int:
        return self.columns if self.swap else self.rows

    @property
    def bn(self) -> int:
        return self.rows if self.swap else self.columns

    @cached_property
    def cluster_size(self) -> int:
        return self.split * self.right_multicast * self.left_multicast

    @property
    def stage(self) -> int:
        return (self.rows + self.columns) * 128

    @cached_property
    def stages(self) -> int:
        return min(10, (_SM_SHARED // self.resident - 1024 - 1280) // self.stage)

    @property
    def smem(self) -> int:
        pitch, own = (
            self.rows + 4 if self.swap else -(-self.columns // 32) * 32 + 8,
            -(-self.bm // self.split),
        )
        # the ring of stages; partial sums and norms overlay it
        return 1280 + max(
            self.stages * self.stage, (self.bm + (self.split - 1) * own) * pitch * 4 + own * 16
        )

    @property
    def threads(self) -> int:
        return self.rows * 2 + 32

    @property
    def fits(self) -> bool:
        """Whether shared memory and registers of an SM suffice for `resident` CTAs."""
        shared = self.smem <= HOPPER_SHARED and (self.smem + 1024) * self.resident <= _SM_SHARED
        return (
            shared
            and self.stages >= 3
            and (self.columns // 2 + 28) * -(-self.threads // 128) * 128 * self.resident <= 65536
        )


#: The cost model, fitted to measurements on an H200. Clocks to start a cluster of two or more and
#: of five or more, more with multicast, after the last MMA of a CTA, of 64 x 64 x 64 MACs, of a
#: copy, per float exchanged and per result finished, more with an expensive epilogue, with a
#: residual; bytes a clock from L2 to one CTA and to all, from memory to all.
_CLUSTER, _WIDE_CLUSTER, _MULTICAST, _FINISH, _MULTIPLY, _LATENCY = fitted(
    "gemm.cluster_splitk_sm90", "cluster wide_cluster multicast finish multiply latency"
)
_FLOAT, _RESULT, _EXPENSIVE, _RESIDUAL = fitted(
    "gemm.cluster_splitk_sm90", "float result expensive residual"
)
#: Clocks to start a kernel, per unaligned row of y that a warp stores and per result in such a row.
START, _ROW, _RESULTS = fitted("gemm.cluster_splitk_sm90", "start row results")
#: Further clocks in a network, where each launch waits for the one before: of each further wave of
#: CTAs, with multicast, per result and per float exchanged, more per result with swap-AB and norms.
#: Fitted to 2,760 tiles of 254 launches, each in its place in one of 44 networks.
_NETWORK_WAVE, _NETWORK_MULTICAST, _NETWORK_RESULT, _NETWORK_FLOAT, _NETWORK_SWAP_NORMS = fitted(
    "gemm.cluster_splitk_sm90",
    "network_wave network_multicast network_result network_float network_swap_norms",
)
#: Of batches: clocks to start a kernel, a cluster of two or more, of five or more, with multicast,
#: with multicast to more than two CTAs, of a wave of CTAs, per result of an SM, per float
#: exchanged, of 64 x 64 x 64 MACs, growth of these with one warpgroup per SM, clocks of a copy, per
#: byte with few rows or columns; bytes a clock from L2 to one CTA and to all, read from memory and
#: written to it; growth of written bytes where rows of y are not aligned to 32 bytes.
_BATCH_START, _BATCH_CLUSTER, _BATCH_WIDE, _BATCH_MULTICAST, _BATCH_MULTICAST_WIDE = fitted(
    "gemm.cluster_splitk_sm90",
    "batch_start batch_cluster batch_wide batch_multicast batch_multicast_wide",
)
_BATCH_WAVE, _BATCH_RESULT, _BATCH_FLOAT, _BATCH_MULTIPLY, _BATCH_ALONE, _BATCH_LATENCY = fitted(
    "gemm.cluster_splitk_sm90",
    "batch_wave batch_result batch_float batch_multiply batch_alone batch_latency",
)
_SKINNY_BYTE, _BATCH_L2, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE, _SECTORS = fitted(
    "gemm.cluster_splitk_sm90", "skinny_byte batch_l2 batch_chip batch_read batch_write sectors"
)
_SKINNY = 16  # rows or columns
_L2_BYTES, _CHIP_BYTES, _MEMORY_BYTES = fitted(
    "gemm.cluster_splitk_sm90", "l2_bytes chip_bytes memory_bytes"
)
#: (right_multicast, left_multicast)
_MULTICASTS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Concurrent clusters by their size, on 132 SMs with one CTA each.
_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 6: 16, 8: 15}


def candidates(
    m: int,
    n: int,
    steps: int,
    sms: int,
    problem_count: int = 1,
    batch: int = 1,
    mn_major: tuple[bool, bool] = (False, False),
    integers: bool = False,
) -> Iterator[SplitTile]:
    """Candidate tiles for m x n results over `steps` stages of k. problem_count: GEMMs of n columns
    each; they read different channels, so copies of pixels cannot be multicast. batch: number of
    such GEMMs; mn_major: whether A, B are contiguous along their rows; integers: of 8 bits.
    """
    m, n = max(m, 1), max(n, 1)
    for swap in (True, False) if m > 48 else (True,):
        left, right = (n, m) if swap else (m, n)
        # of `right` in equal parts, rounded up to eights; there may be very many parts
        least, most = -(-right // 256), max(-(-right // 256) + 4, -(-right // 64) - 1)
        widths = {
            8 * eights
            for eights in range(1, 33)
            if (parts := max(least, -(-right // (8 * eights)))) <= most
            and -(-right // (8 * parts)) == eights
        }
        if mn_major[0 if swap else 1]:
            widths = {-(-width // 64) * 64 for width in widths}
        widths = {mma_columns(width, integers) for width in widths}
        for rows in (64, 128, 192):
            if rows > 64 and left <= rows - 64:
                continue
            for width in sorted(widths | ({64, 128} if right > 128 else set())):
                tiles = -(-left // rows) * -(-right // width) * problem_count * batch
                for split in (1, 2, 3, 4, 6, 8):
                    if split > 1 and (steps < 2 * split or tiles * split > 3 * sms):
                        break
                    for right_multicast, left_multicast in _multicasts(
                        -(-left // rows),
                        -(-right // width),
                        split,
                        swap and problem_count > 1,
                        batch,
                    ):
                        if width % (8 * right_multicast) and not mn_major[0 if swap else 1]:
                            continue
                        for resident in (
                            (1, 2, 3)[: 3 if right_multicast * left_multicast == 1 else 2]
                            if tiles * split > sms
                            else (1,)
                        ):
                            if (
                                tile := _fitting(
                                    rows,
                                    width,
                                    swap,
                                    split,
                                    right_multicast,
                                    resident,
                                    left_multicast,
                                )
                            ) is not None:
                                yield tile


@cache
def _fitting(
    rows: int,
    columns: int,
    swap: bool,
    split: int,
    right_multicast: int,
    resident: int,
    left_multicast: int,
) -> SplitTile | None:
    """The tile, made once; None where it does not fit."""
    tile = SplitTile(rows, columns, swap, split, right_multicast, resident, left_multicast)
    return tile if tile.fits else None


def _multicasts(
    lefts: int, rights: int, split: int, apart: bool, batch: int
) -> Iterator[tuple[int, int]]:
    """(right_multicast, left_multicast) for `lefts` x `rights` tiles with split-K over `split`
    CTAs. apart: neighbouring tiles have different right operands.
    """
    for right_multicast, left_multicast in _MULTICASTS if batch > 1 else _MULTICASTS[:2]:
        # half of the cluster would be idle
        many = right_multicast > 2 * lefts - 2 or left_multicast > 2 * rights - 2
        if right_multicast * left_multicast == 1 or not (
            many
            or apart
            or split * right_multicast * left_multicast not in _CLUSTERS
            or (batch == 1 and split > 4)
        ):
            yield right_multicast, left_multicast


def slots(cluster_size: int, resident: int, sms: int) -> int:
    """Concurrent CTAs."""
    return max(1, _CLUSTERS[cluster_size] * resident * sms // 132) * cluster_size


def _waves(t: SplitTile, m: int, n: int, sms: int, count: int = 1) -> tuple[int, int, int, int]:
    """Of `count` GEMMs: CTAs, concurrent CTAs, waves, CTAs per SM."""
    left, right = (n, m) if t.swap else (m, n)
    ctas, concurrent = (
        -(-left // (t.rows * t.right_multicast))
        * -(-right // (t.columns * t.left_multicast))
        * t.cluster_size
        * count,
        slots(t.cluster_size, t.resident, sms),
    )
    return (
        ctas,
        concurrent,
        -(-ctas // concurrent),
        min(t.resident, -(-ctas // max(1, concurrent // t.resident))),
    )


def network_cost(t: SplitTile, s: Sizes, norms: bool) -> float:
    """Clocks of a linear layer in a network beyond `tile_cost`: the next launch waits for this one,
    so that it does not overlap the epilogue. norms: folded norms of rows.
    """
    _, _, waves, resident = _waves(t, s.m, s.n, s.sms)
    size = waves * resident * t.rows * t.columns / t.split
    result = (
        _NETWORK_RESULT + _NETWORK_FLOAT * (t.split - 1) + _NETWORK_SWAP_NORMS * (norms and t.swap)
    )
    return (
        _NETWORK_WAVE * (waves - 1) + _NETWORK_MULTICAST * (t.right_multicast > 1) + result * size
    )


def tile_cost(t: SplitTile, s: Sizes) -> float:
    """Clocks of an isolated launch, comparable with `persistent_sm90.tile_cost`."""
    ctas, concurrent, waves, resident = _waves(t, s.m, s.n, s.sms, s.problem_count)
    # with few columns, reading the left operand's rows from shared memory bounds wgmma
    multiply = s.mma_scale * _MULTIPLY * t.rows / 64 * max(t.columns / 64, 0.5 + t.columns / 128)
    if t.rows * resident < 128:
        multiply *= 1.32
    first, second = (1.0, s.crossed) if t.swap else (s.crossed, 1.0)
    copied = (t.rows * first + t.columns * second / t.right_multicast) * 128
    copies = t.bm * s.pixel[0] + t.bn * s.pixel[1] / (1 if t.swap else t.right_multicast)
    step = max(
        resident * multiply,
        resident * copied / _L2_BYTES,
        _LATENCY / t.stages,
        min(ctas, concurrent) * copied / _CHIP_BYTES,
        resident * copies,
    )
    if s.weight_bytes > persistent_sm90.CACHED:
        step = max(
            step,
            resident
            * (t.rows if t.swap else t.columns / t.right_multicast)
            * 128
            / persistent_sm90.STREAM_BYTES,
        )
    size = t.rows * t.columns * resident
    finish = (
        _FINISH
        + s.residual * _RESIDUAL
        + (_RESULT + _EXPENSIVE * s.expensive) * size / t.split
        + _FLOAT * size * (t.split - 1) / t.split
    )
    cluster = (
        (_CLUSTER if t.cluster_size > 1 else 0.0)
        + (_WIDE_CLUSTER if t.cluster_size > 4 else 0.0)
        + (_MULTICAST if t.right_multicast > 1 else 0.0)
    )
    memory = s.memory_bytes / _MEMORY_BYTES
    return max(memory, waves * -(-s.steps // t.split) * step) + waves * finish + cluster


def prices(s: Sizes) -> dict[SplitTile, float]:
    """Clocks of every tile."""
    tiles = candidates(s.m, s.n, s.steps, s.sms, s.problem_count, integers=s.integers)
    return {t: tile_cost(t, s) for t in tiles if not s.statistics or t.bn % 64 == 0}


def rows_cost(t: SplitTile, m: int, n: int, batch: int, sms: int) -> float:
    """Clocks to store unaligned rows, one row of a warp after another."""
    waves = -(-(-(-m // t.bm) * -(-n // t.bn) * t.split * batch) // slots(t.split, t.resident, sms))
    return _ROW * waves * min(t.bm, m) / t.split / (t.rows // 16) + _RESULTS * batch * m * n


def batched_cost(
    t: SplitTile,
    m: int,
    n: int,
    k: int,
    batch: int,
    sms: int,
    crossed: tuple[float, float],
    y: bool,
) -> float:
    """Clocks of `batch` GEMMs of two run-time operands, comparable with
    `multistage_tiles.unaligned_cost`. crossed: `sm90.crossed` of A and B; y: whether rows of y are
    aligned to 16 bytes.
    """
    first, second = crossed[::-1] if t.swap else crossed
    (ctas, _, waves, resident), steps = _waves(t, m, n, sms, batch), -(-k // 64)
    multiply = (
        _BATCH_MULTIPLY
        * t.rows
        / 64
        * max(t.columns / 64, 0.5 + t.columns / 128)
        * (1.0 + _BATCH_ALONE * (t.rows * resident < 128))
    )
    copied = (t.rows * first / t.left_multicast + t.columns * second / t.right_multicast) * 128
    own = -(-steps // t.split) if t.split > 1 else (k - 1) // 64 + last_stage_mmas(k) / 4
    step = max(resident * multiply, _BATCH_LATENCY / t.stages, resident * copied / _BATCH_L2)
    finish = (
        (_BATCH_RESULT + _BATCH_FLOAT * (t.split - 1)) / t.split * t.rows * t.columns * resident
    )
    body = waves * (own * step + _BATCH_WAVE + finish)
    memory = 2 * batch * (m + n) * k / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * (
        1.0 + _SECTORS * (n % 16 > 0)
    )
    more = _BATCH_START + _BATCH_CLUSTER * (t.cluster_size > 1) + _BATCH_WIDE * (t.cluster_size > 4)
    more += (
        _BATCH_MULTICAST * (t.right_multicast * t.left_multicast > 1)
        + _BATCH_MULTICAST_WIDE * (t.right_multicast * t.left_multicast > 2)
        + (0.0 if y else rows_cost(t, m, n, batch, sms))
    )
    if min(m, n) <= _SKINNY:
        more += _SKINNY_BYTE * 2 * batch * (m + n) * steps * 64
    busy: float = (body**1.5 + (ctas * own * copied / _BATCH_CHIP) ** 1.5 + memory**1.5) ** (2 / 3)
    return busy + more


@cache
def batched_prices(
    m: int,
    n: int,
    k: int,
    sms: int,
    batch: int,
    mn_major: tuple[bool, bool],
    crossed: tuple[float, float],
    y: bool,
) -> dict[SplitTile, float]:
    """Clocks of the tiles for `batch` GEMMs of two run-time operands. crossed, y: as for
    `batched_cost`.
    """
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed, y)
        for t in candidates(m, n, -(-k // 64), sms, 1, batch, mn_major)
    }


def emit(problem: Problem, tile: SplitTile, active: DimLike = 1) -> Kernel:
    """The kernel; active: 0 empties the grid."""
    r, n = problem.request, problem.columns
    residual = r.program is None and epilogue.residual(r) and not problem.transposed
    parts = (
        (tile.right_multicast, tile.left_multicast)
        if tile.swap
        else (tile.left_multicast, tile.right_multicast)
    )
    x, w = problem.maps((tile.bm, parts[0]), (tile.bn, parts[1]))
    parameters: list[Parameter] = [
        (_MAP, "map_x", x),
        (_MAP, "map_w", w),
        ("T* __restrict__", "y", Pointer("y")),
        *ints({"M": problem.rows, "N": n}),
        *longs({"ldy": problem.ldy, "ldr": problem.ldr}),
        *problem.parameters,
    ]
    if residual:
        parameters.append(pointer("const T", "res"))
    each = 1
    if problem.source != 1 and "y" not in r.unaligned:
        each = min(4, *(multiple_of(v) for v in (n, *problem.pitches)))
    left, right = problem.mn_major[::-1] if tile.swap else problem.mn_major
    down, along = parts[::-1]
    tiles = D.mul(
        D.ceildiv(problem.rows, tile.bm * down), D.ceildiv(problem.column_tiles(tile.bn), along)
    )
    return kernel(
        problem,
        "gemm/cluster_splitk_sm90",
        parameters,
        problem.epilogue(8, residual),
        tile.columns,
        (D.mul(D.mul(tiles, tile.cluster_size), active), *problem.grid_yz),
        tile.threads,
        tile,
        residual,
        {"TRANSPOSED_CONV": problem.transposed},
        {
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "SWAP": tile.swap,
            "SPLIT": tile.split,
            "RIGHT_MULTICAST": tile.right_multicast,
            "LEFT_MULTICAST": tile.left_multicast,
            "RESIDENT": tile.resident,
            "LEFT_MN_MAJOR": left,
            "RIGHT_MN_MAJOR": right,
            "Y_EACH": each,
            "R_VECTOR": epilogue.vector(r, "res", (problem.ldr,)),
            "LAST_STAGE_MMAS": last_stage_mmas(problem.depth),
        },
    )
