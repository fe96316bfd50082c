"""Products of which one operand has few rows (`staged.cuh`, `staged_nmajor.cuh`): tiles and
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import Argument, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ...common import epilogue
from ...common.launch import declared
from ...common.prelude import prelude
from ...common.templates import template
from .. import block_costs, select

_MOST = 8  # rows that count as few
_TERMS = 32  # most terms of a short product
_FEW_TERMS = 20  # more want registers that there are not


@dataclass(frozen=True)
class ThinTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; deep: rows
    of a warp, 0 where the wide operand is contiguous along its rows; split: blocks that divide k;
    share: warps that have one row together."""

    wide_a: bool
    few: int
    deep: int
    split: int = 1
    share: int = 1

    def rows(self, size: int) -> int:
        """Rows of one block, of elements of `size` bytes."""
        return 8 // self.share * self.deep or 31 * (16 // size)

    @property
    def template(self) -> str:
        return "gemm/gemv/staged" if self.deep else "gemm/gemv/staged_nmajor"

    @property
    def piece(self) -> int:
        """Elements along k of the few rows in shared memory."""
        return (
            min(4096 if self.share == 1 else 8192, 8192 // self.few // 256 * 256)
            if self.deep
            else 4096 // self.few // 8 * 8
        )


@dataclass(frozen=True)
class ShortTile:
    """A product of `depth` terms: a block has 128 rows of the wide operand and `others` of the
    other one.
    """

    wide_a: bool
    depth: int
    others: int

    @property
    def template(self) -> str:
        return "gemm/gemv/small_k"


#: The cost model, measured on an H200: clocks to start and for a wave of blocks, of a warp's access
#: to shared memory, of four warps' FMA, of a sum over lanes, and of clusters: each, for each block
#: of a multiprocessor and each further peer. Clocks per byte from memory. Parts of lines that are
#: written in a clock.
_START, _WAVE, _SHARED, _FMA, _SUM, _EXCHANGE, _BLOCK, _PEER, _MEMORY, _WRITES = (
    900.0,
    1850.0,
    3.8,
    2.9,
    0.8,
    1000.0,
    530.0,
    150.0,
    3.3e-4,
    38.0,
)
# more clocks to start for each further one of the few rows, and where warps share a row: so many
# times
_FEW, _SHARED_FEW = 0.08, 0.2
# short products of f32 of more terms and more results cost more: so many times their clocks
_MANY = (4, 3e5, 1.15)
# clocks of a result of f32 that takes many instructions: of a warp beside others, and until it is
# there
_FINISH, _FINISH_LATE = 36.0, 160.0
_TURN = 1100.0  # clocks until reads along k come, beyond a kernel's first two
_TURN_F32 = 280.0  # of f32: eight reads of k across lanes


def single_cost(t: ThinTile, rows: int, k: int, batch: int, here: int, early: bool) -> float:
    """Clocks of f32 whose warps have rows of their own, fitted to 271 measurements; `here` blocks
    of one multiprocessor. early: the wide operand is constant.
    """
    rounds, reads = -(-here // (2 if t.deep > 1 else 4)), -(-k // (t.split * 128))
    # of reads that are under way together
    turns = -(-reads // (2 if t.deep * t.few > 16 else 8 if t.deep == 1 else 16 // t.deep))
    joined = 628.0 + here * (497.0 + 10.7 * (t.split - 1) * t.deep * t.few) if t.split > 1 else 0.0
    first = min(k / t.split, t.piece)  # elements of the few rows that all of a block wait for
    filled = t.few * (0.866 * first + 0.522 * (k / t.split - first))
    # else they hide behind memory
    products = reads * (15.3 * t.few + 7.3 * t.deep) if t.few > 4 else 0.0
    start = 2330.0 + (0.0 if early else 407.0) + 49.5 * t.deep + 3.54e-4 * 4 * batch * rows * k
    return (
        start
        + here * (569.0 + products)
        + filled
        + 638.0 * turns * rounds
        + 297.0 * (rounds - 1)
        + joined
    )


def tile_cost(
    t: ThinTile, rows: int, k: int, batch: int, sms: int, size: int, early: bool
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.tile_cost`."""
    chunk = 16 // size
    here = -(-(-(-rows // t.rows(size)) * t.split * batch) // sms)  # blocks of one multiprocessor
    if size == 4 and t.deep and t.share == 1:
        return single_cost(t, rows, k, batch, here, early)
    exchange = _EXCHANGE + _BLOCK * here + _PEER * (t.split - 1) if t.split > 1 else 0.0
    if size == 4 and not t.deep:
        exchange *= 0.5
    start = _START + _WAVE * -(-here // 4) + exchange + _MEMORY * rows * k * size * batch
    if size == 4:  # fitted apart
        start += 1190.0 + t.few * (234.0 + 0.0187 * k / t.split) if t.deep else 660.0 * t.few
    if not t.deep:
        steps = -(-k // (t.split * 8))
        # eight reads are under way together
        late = max(-(-steps // 8) - 2, 0) * _TURN if size == 2 else -(-steps // 8) * _TURN_F32
        return (
            start
            + 1000.0
            + late
            + here * 8 * chunk * (steps * (t.few + 1) * _FMA / 4 + 3 * t.few * _SHARED)
        )
    reads = -(-k // (t.split * t.share * 32 * chunk))  # of a lane for one row
    filled = 10 + 0.04 * t.few * k / t.split if t.share > 1 else 0.0
    if size == 2:  # fitted apart
        start *= 1.0 + (_SHARED_FEW if t.share > 1 else _FEW) * (t.few - 1)
    return start + here * 8 * (
        reads * chunk * (t.few * _SHARED + t.deep * (t.few + 1) * _FMA / 4)
        + t.deep * t.few * _SUM
        + filled
    )


def short_cost(
    t: ShortTile, m: int, n: int, batch: int, sms: int, size: int, along: bool, dear: bool
) -> float:
    """Clocks, comparable with `tile_cost`. along: whether the wide operand is contiguous along k;
    dear: whether finishing a result takes many instructions.
    """
    rows, others = (m, n) if t.wide_a else (n, m)
    parts = -(-others // t.others) * batch
    here, together = -(-(-(-rows // 128) * parts) // sms), min(t.others, others)
    apart = min(32, 1 + n * size) if t.wide_a else 4  # lines of 32 bytes that a warp writes at once
    if size == 4:
        # blocks of one multiprocessor, with as many warps as have rows
        busy = -(-rows // 32) * parts / (4 * sms)
        read, written = (
            2.7 * t.depth * (min(32, t.depth) if along else 1),
            together * (2.4 * t.depth + 5.3 * apart),
        )
        more = 5500.0 if t.depth > _FEW_TERMS else 0.0
        finished = together * max(_FINISH * busy, _FINISH_LATE) if dear else 0.0
        cost = (
            2200.0
            + -(-here // 12) * 510.0
            + busy * read
            + max(busy, 0.6) * written
            + finished
            + 2.8e-4 * batch * size * (m * n + (m + n) * t.depth)
            + more
        )
        return cost * (_MANY[2] if t.depth > _MANY[0] and batch * m * n > _MANY[1] else 1.0)
    reads = 8 * t.depth * max(1.0, min(32.0, t.depth / 2))
    written = 2000.0 + batch * m * n * apart / (32 * _WRITES)
    apart *= 2 if t.wide_a and n > t.others else 1  # blocks share lines
    cost = 2410.0 + here * (0.58 * reads + together * (4.5 * t.depth + 3.1 * apart))
    return max(cost, written) + (6300.0 if t.depth > _FEW_TERMS else 0.0)


def prices(
    r: Request,
    m: int,
    n: int,
    k: int,
    batch: int,
    a: tuple[DimLike, DimLike],
    b: tuple[DimLike, DimLike],
    terms: DimLike,
) -> dict[ThinTile | ShortTile, float]:
    """Clocks of the tiles for these sizes. a, b: steps of the operands from row to row and along k;
    terms: k where kernels may be made for it.
    """
    out: dict[ThinTile | ShortTile, float] = {}
    for wide_a in (True, False):
        rows, few = (m, n) if wide_a else (n, m)
        early = ("x" if wide_a else "w") in r.constant
        row_step, k_step = a if wide_a else b
        if isinstance(terms, int) and 0 < terms <= _TERMS:
            for others in (8, 32):
                short = ShortTile(wide_a, terms, others)
                out[short] = short_cost(
                    short, m, n, batch, r.sms, r.dtype.size, k_step == 1, block_costs.dear(r)
                )
        if few > _MOST or (k_step != 1 and row_step != 1):
            continue
        for deep, share in ((1, 1), (2, 1), (4, 1), (1, 8)) if k_step == 1 else ((0, 1),):
            for split in (1, 2, 4, 8, *((16,) if share > 1 else ())):
                if split == 1 or (split <= r.caps.cluster and k >= 512 * split // r.dtype.size):
                    tile = ThinTile(wide_a, max(few, 1), deep, split, share)
                    out[tile] = tile_cost(tile, rows, k, batch, r.sms, r.dtype.size, early)
    return out


def product(
    r: Request, tile: ThinTile | ShortTile, *, params: Sequence[tuple[str, str, Argument]], pitches: tuple[DimLike, ...], rows: DimLike, columns: DimLike,
    grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    wide = rows if tile.wide_a else columns
    if isinstance(tile, ShortTile):
        sizes = f"DEPTH = {tile.depth}, OTHERS = {tile.others}"
        grid_x, split, threads = (
            D.mul(D.ceildiv(wide, 128), D.ceildiv(columns if tile.wide_a else rows, tile.others)),
            1,
            128,
        )
    else:
        sizes = f"FEW = {tile.few}, DEEP = {tile.deep}, SHARE = {tile.share}, PIECE = {tile.piece}"
        grid_x, split, threads = (
            D.mul(D.ceildiv(wide, tile.rows(r.dtype.size)), tile.split),
            tile.split,
            256,
        )
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype == DType.F32)}", select.to_batch(batched), f"#define SPLIT {split}",
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)};", f"constexpr int {sizes};", epi.source,
        *map(template, ("common/cluster_splitk", "gemm/gemv/common", tile.template)),
    ])  # fmt: skip
    name = "product_short" if tile.template == "gemm/gemv/small_k" else "product_thin"
    return Kernel(
        text,
        name,
        (D.mul(grid_x, active), grid_y, grid_z),
        threads,
        tuple(v for _, _, v in parameters),
        0,
        split,
        r.arch >= 90,
    )
