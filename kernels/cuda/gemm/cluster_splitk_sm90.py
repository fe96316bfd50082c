"""Products on Hopper with few tiles (`cluster_splitk_sm90.cuh`): tiles, tensor maps and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Pointer
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import epilogue
from ..common.epilogue import Parameter
from ..common.instantiate import ints, longs, pointer
from . import persistent_sm90
from .sm90 import Problem, kernel, last_products

_MAP = "const __grid_constant__ TensorMap"
_FREE = (0.0, 0.0)
# bytes of shared memory of one multiprocessor, of which every block takes 1024 more than it asks
# for
_SHARED = 233472


@dataclass(frozen=True)
class SplitTile:
    """Rows of the left operand and of the right one. swap: the weight is the left one; split:
    blocks that divide k; share: neighbouring tiles along the left operand that share copies of the
    right one; resident: blocks that one multiprocessor has room for. Of batches: beside:
    neighbouring tiles along the right operand that share copies of the left one."""

    rows: int
    columns: int
    swap: bool
    split: int = 1
    share: int = 1
    resident: int = 1
    beside: int = 1

    @property
    def bm(self) -> int:
        return self.columns if self.swap else self.rows

    @property
    def bn(self) -> int:
        return self.rows if self.swap else self.columns

    @cached_property
    def cluster(self) -> int:
        return self.split * self.share * self.beside

    @property
    def clustered(self) -> int:
        """CTAs of a cluster."""
        return self.cluster

    @property
    def stage(self) -> int:
        return (self.rows + self.columns) * 128

    @cached_property
    def stages(self) -> int:
        return min(10, (_SHARED // self.resident - 1024 - 1280) // self.stage)

    @property
    def smem(self) -> int:
        pitch, own = (
            self.rows + 4 if self.swap else -(-self.columns // 32) * 32 + 8,
            -(-self.bm // self.split),
        )
        # the ring, then the sums and norms
        return 1280 + max(
            self.stages * self.stage, (self.bm + (self.split - 1) * own) * pitch * 4 + own * 16
        )

    @property
    def threads(self) -> int:
        return self.rows * 2 + 32

    @property
    def fits(self) -> bool:
        """Whether so many blocks have their shared memory and registers on one multiprocessor."""
        shared = self.smem <= HOPPER_SHARED and (self.smem + 1024) * self.resident <= _SHARED
        return (
            shared
            and self.stages >= 3
            and (self.columns // 2 + 28) * -(-self.threads // 128) * 128 * self.resident <= 65536
        )


#: The cost model, fitted to measurements on an H200. Clocks to start a cluster of two and more and
#: of five and more, more where copies are shared, after the last product of a block, for 64 x 64 x
#: 64 products, until a copy comes, per float exchanged and per float finished, more with an
#: activation that needs the special functions, for a residual; bytes a clock from L2 for one block
#: and for all, from memory for all.
_CLUSTER, _WIDE_CLUSTER, _SHARED_COPIES, _FINISH, _MULTIPLY, _LATENCY = (
    532.0,
    523.0,
    556.0,
    704.0,
    165.1,
    1961.0,
)
_FLOAT, _RESULT, _SMOOTH, _RESIDUAL = 0.455, 0.228, 0.063, 379.0
#: Clocks to start a kernel, for each row of a warp that begins anywhere and each result in such a
#: row.
START, _ROW, _RESULTS = 2100.0, 150.0, 6.4e-4
#: Clocks more between launches that wait for each other: of each further wave of blocks, where
#: copies are shared, per float finished and exchanged, more where these lie across the rows beside
#: norms. Fitted to 2,760 tiles of 254 launches, each in its place in one of 44 networks.
_NEXT_WAVE, _SHARED_BETWEEN, _RESULT_BETWEEN, _FLOAT_BETWEEN, _ACROSS_NORMS = (
    4164.0,
    1844.0,
    0.362,
    0.17,
    0.157,
)
#: Of batches: clocks to start a kernel, a cluster of two and more, of five and more, where blocks
#: share copies, where more than two do, of a wave of blocks, of a result of a multiprocessor, per
#: float exchanged, for 64 x 64 x 64 products, how much longer these take of one warpgroup alone,
#: until a copy comes, more for a byte with few rows or columns; bytes a clock from L2 for one block
#: and for all, read from memory and written to it; how much more of y is written where its rows do
#: not begin at multiples of 32 bytes.
_BATCH_START, _BATCH_CLUSTER, _BATCH_WIDE, _BATCH_SHARED, _BATCH_MANY = (
    801.0,
    303.0,
    317.0,
    340.0,
    115.0,
)
_BATCH_WAVE, _BATCH_RESULT, _BATCH_FLOAT, _BATCH_MULTIPLY, _BATCH_ALONE, _BATCH_LATENCY = (
    2040.0,
    0.146,
    0.473,
    120.7,
    0.244,
    1806.0,
)
_NARROW, _BATCH_L2, _BATCH_CHIP, _BATCH_READ, _BATCH_WRITE, _SECTORS = (
    3.5e-4,
    114.3,
    8311.0,
    2428.0,
    6798.0,
    1.986,
)
_FEW = 16  # rows or columns
_L2_BYTES, _CHIP_BYTES, _MEMORY_BYTES = 75.4, 4849.0, 5804.0
#: Tiles that share copies: of the right operand, and of the left one.
_SHARES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
#: Clusters of so many blocks that 132 multiprocessors run at a time, each with one block.
_ROOM = {1: 132, 2: 66, 3: 39, 4: 30, 6: 16, 8: 15}


def candidates(
    m: int, n: int, steps: int, sms: int, bundles: int = 1, batch: int = 1, across: tuple[bool, bool] = (False, False)
) -> Iterator[SplitTile]:  # fmt: skip
    """Tiles worth a thought for m x n with `steps` stages of k. bundles: of n columns each; they
    see different pixels, so these cannot be shared. batch: of such products; across: whether A and
    B are contiguous along their rows."""
    m, n = max(m, 1), max(n, 1)
    for swap in (True, False) if m > 48 else (True,):
        left, right = (n, m) if swap else (m, n)
        least = -(-right // 256)
        widths = {
            (right + 8 * parts - 1) // (8 * parts) * 8
            for parts in range(least, max(least + 5, -(-right // 64)))
        }
        if across[0 if swap else 1]:
            widths = {-(-width // 64) * 64 for width in widths}
        for rows in (64, 128, 192):
            if rows > 64 and left <= rows - 64:
                continue
            for width in sorted(widths | ({64, 128} if right > 128 else set())):
                tiles = -(-left // rows) * -(-right // width) * bundles * batch
                for split in (1, 2, 3, 4, 6, 8):
                    if split > 1 and (steps < 2 * split or tiles * split > 3 * sms):
                        break
                    for share, beside in _shared(
                        -(-left // rows), -(-right // width), split, swap and bundles > 1, batch
                    ):
                        if width % (8 * share) and not across[0 if swap else 1]:
                            continue
                        for resident in (
                            (1, 2, 3)[: 3 if share * beside == 1 else 2]
                            if tiles * split > sms
                            else (1,)
                        ):
                            if (
                                tile := _fitting(rows, width, swap, split, share, resident, beside)
                            ) is not None:
                                yield tile


@cache
def _fitting(
    rows: int, columns: int, swap: bool, split: int, share: int, resident: int, beside: int
) -> SplitTile | None:
    """The tile, made once; None where it does not fit."""
    tile = SplitTile(rows, columns, swap, split, share, resident, beside)
    return tile if tile.fits else None


def _shared(
    lefts: int, rights: int, split: int, apart: bool, batch: int
) -> Iterator[tuple[int, int]]:
    """How many neighbouring tiles share copies of the right operand, and of the left one, where
    `lefts` x `rights` tiles have k divided by `split`. apart: right operands that neighbours cannot
    share."""
    for share, beside in _SHARES if batch > 1 else _SHARES[:2]:
        # a cluster of which half has nothing to do
        many = share > 2 * lefts - 2 or beside > 2 * rights - 2
        if share * beside == 1 or not (
            many or apart or split * share * beside not in _ROOM or (batch == 1 and split > 4)
        ):
            yield share, beside


def slots(cluster: int, resident: int, sms: int) -> int:
    """Blocks that run at a time."""
    return max(1, _ROOM[cluster] * resident * sms // 132) * cluster


def _turns(t: SplitTile, m: int, n: int, sms: int, count: int = 1) -> tuple[int, int, int, int]:
    """Of `count` products: blocks, those that run at a time, how often so many do, and those that
    one multiprocessor runs at a time.
    """
    left, right = (n, m) if t.swap else (m, n)
    blocks, room = (
        -(-left // (t.rows * t.share)) * -(-right // (t.columns * t.beside)) * t.cluster * count,
        slots(t.cluster, t.resident, sms),
    )
    return (
        blocks,
        room,
        -(-blocks // room),
        min(t.resident, -(-blocks // max(1, room // t.resident))),
    )


def between(t: SplitTile, m: int, n: int, sms: int, norms: bool) -> float:
    """Clocks of a linear layer more than `tile_cost` says, between launches that wait for each
    other: how a block ends is not hidden behind how the next launch begins there. norms: those of
    rows are part of the product."""
    _, _, waves, together = _turns(t, m, n, sms)
    size = waves * together * t.rows * t.columns / t.split
    result = _RESULT_BETWEEN + _FLOAT_BETWEEN * (t.split - 1) + _ACROSS_NORMS * (norms and t.swap)
    return _NEXT_WAVE * (waves - 1) + _SHARED_BETWEEN * (t.share > 1) + result * size


def tile_cost(
    t: SplitTile, m: int, n: int, steps: int, sms: int, residual: bool = False, smooth: bool = False, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> float:  # fmt: skip
    """Clocks, comparable with `persistent_sm90.tile_cost`. smooth: the epilogue needs special
    functions. bundles: of n columns each; pixel: clocks to copy a step of one row and of one
    filter; made: as for `grouped.made`; crossed: `sm90.crossed` of A."""
    blocks, room, waves, together = _turns(t, m, n, sms, bundles)
    n *= bundles
    # few columns: bound by the left operand's rows
    multiply = made * _MULTIPLY * t.rows / 64 * max(t.columns / 64, 0.5 + t.columns / 128)
    if t.rows * together < 128:
        multiply *= 1.32
    first, second = (1.0, crossed) if t.swap else (crossed, 1.0)
    copied = (t.rows * first + t.columns * second / t.share) * 128
    copies = t.bm * pixel[0] + t.bn * pixel[1] / (1 if t.swap else t.share)
    step = max(
        together * multiply,
        together * copied / _L2_BYTES,
        _LATENCY / t.stages,
        min(blocks, room) * copied / _CHIP_BYTES,
        together * copies,
    )
    if n * steps * 128 > persistent_sm90.CACHED:
        step = max(
            step,
            together
            * (t.rows if t.swap else t.columns / t.share)
            * 128
            / persistent_sm90.STREAM_BYTES,
        )
    memory = (n * steps * 128 + m * n * 2 * (1 + residual)) / _MEMORY_BYTES
    size = t.rows * t.columns * together
    finish = (
        _FINISH
        + residual * _RESIDUAL
        + (_RESULT + _SMOOTH * smooth) * size / t.split
        + _FLOAT * size * (t.split - 1) / t.split
    )
    cluster = (
        (_CLUSTER if t.cluster > 1 else 0.0)
        + (_WIDE_CLUSTER if t.cluster > 4 else 0.0)
        + (_SHARED_COPIES if t.share > 1 else 0.0)
    )
    return max(memory, waves * -(-steps // t.split) * step) + waves * finish + cluster


def prices(
    m: int, n: int, steps: int, sms: int, residual: bool, smooth: bool, panels: bool, bundles: int = 1, pixel: tuple[float, float] = _FREE,
    made: float = 1.0, crossed: float = 1.0,
) -> dict[SplitTile, float]:  # fmt: skip
    """Clocks of every tile for m x n with `steps` steps of k. panels: tiles must be a multiple of
    64 columns wide. bundles: of n columns each.
    """
    tiles = (t for t in candidates(m, n, steps, sms, bundles) if not panels or t.bn % 64 == 0)
    return {
        t: tile_cost(t, m, n, steps, sms, residual, smooth, bundles, pixel, made, crossed)
        for t in tiles
    }


def rows_cost(t: SplitTile, m: int, n: int, batch: int, sms: int) -> float:
    """Clocks to store rows that begin anywhere, a warp one after another."""
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
    """Clocks of `batch` products of two run-time operands, comparable with
    `multistage_tiles.odd_cost`. crossed: `sm90.crossed` of A and B; y: whether
    rows of y begin at multiples of 16 bytes."""
    first, second = crossed[::-1] if t.swap else crossed
    (blocks, _, waves, together), steps = _turns(t, m, n, sms, batch), -(-k // 64)
    multiply = (
        _BATCH_MULTIPLY
        * t.rows
        / 64
        * max(t.columns / 64, 0.5 + t.columns / 128)
        * (1.0 + _BATCH_ALONE * (t.rows * together < 128))
    )
    copied = (t.rows * first / t.beside + t.columns * second / t.share) * 128
    own = -(-steps // t.split) if t.split > 1 else (k - 1) // 64 + last_products(k) / 4
    step = max(together * multiply, _BATCH_LATENCY / t.stages, together * copied / _BATCH_L2)
    finish = (
        (_BATCH_RESULT + _BATCH_FLOAT * (t.split - 1)) / t.split * t.rows * t.columns * together
    )
    body = waves * (own * step + _BATCH_WAVE + finish)
    memory = 2 * batch * (m + n) * k / _BATCH_READ + 2 * batch * m * n / _BATCH_WRITE * (
        1.0 + _SECTORS * (n % 16 > 0)
    )
    more = _BATCH_START + _BATCH_CLUSTER * (t.cluster > 1) + _BATCH_WIDE * (t.cluster > 4)
    more += (
        _BATCH_SHARED * (t.share * t.beside > 1)
        + _BATCH_MANY * (t.share * t.beside > 2)
        + (0.0 if y else rows_cost(t, m, n, batch, sms))
    )
    if min(m, n) <= _FEW:
        more += _NARROW * 2 * batch * (m + n) * steps * 64
    busy: float = (body**1.5 + (blocks * own * copied / _BATCH_CHIP) ** 1.5 + memory**1.5) ** (
        2 / 3
    )
    return busy + more


@cache
def batched_prices(
    m: int, n: int, k: int, sms: int, batch: int, across: tuple[bool, bool], crossed: tuple[float, float], y: bool
) -> dict[SplitTile, float]:  # fmt: skip
    """Clocks of the tiles for `batch` products of two run-time operands. crossed, y: as for
    `batched_cost`.
    """
    return {
        t: batched_cost(t, m, n, k, batch, sms, crossed, y)
        for t in candidates(m, n, -(-k // 64), sms, 1, batch, across)
    }


def product(problem: Problem, tile: SplitTile, active: DimLike = 1) -> Kernel:
    """The kernel; active: 0 empties the grid."""
    r, n = problem.request, problem.columns
    residual = r.program is None and epilogue.residual(r) and not problem.turned
    parts = (tile.share, tile.beside) if tile.swap else (tile.beside, tile.share)
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
    left, right = problem.across[::-1] if tile.swap else problem.across
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
        (D.mul(D.mul(tiles, tile.cluster), active), *problem.beside),
        tile.threads,
        tile,
        residual,
        {"TURNED": problem.turned},
        {
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "SWAP": tile.swap,
            "SPLIT": tile.split,
            "SHARE": tile.share,
            "SHARE_LEFT": tile.beside,
            "RESIDENT": tile.resident,
            "LEFT_ACROSS": left,
            "RIGHT_ACROSS": right,
            "Y_EACH": each,
            "R_VECTOR": epilogue.vector(r, "res", (problem.ldr,)),
            "LAST": last_products(problem.depth),
        },
    )
