"""GEMV and skinny GEMM with the few rows in shared memory (`staged.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ...common import epilogue
from ...common.launch import declared
from ...common.prelude import prelude
from ...common.templates import template
from .. import select

_MOST = 8  # rows that count as few


@dataclass(frozen=True)
class StagedTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; deep: rows
    of a warp; split: blocks of a cluster that divide k; share: warps that have one row together.
    """

    wide_a: bool
    few: int
    deep: int
    split: int = 1
    share: int = 1

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return 8 // self.share * self.deep

    @property
    def piece(self) -> int:
        """Elements along k of the few rows in shared memory."""
        return min(4096 if self.share == 1 else 8192, 8192 // self.few // 256 * 256)


#: The cost model, measured on an H200: clocks to start and for a wave of blocks, of a warp's access
#: to shared memory, of four warps' FMA, of a sum over lanes, and of clusters: each, for each block
#: of a multiprocessor and each further peer. Clocks per byte from memory.
_START, _WAVE, _SHARED, _FMA, _SUM, _EXCHANGE, _BLOCK, _PEER, _MEMORY = (
    900.0,
    1850.0,
    3.8,
    2.9,
    0.8,
    1000.0,
    530.0,
    150.0,
    3.3e-4,
)
# more clocks to start for each further one of the few rows, and where warps share a row: so many
# times
_FEW, _SHARED_FEW = 0.08, 0.2


def single_cost(t: StagedTile, rows: int, k: int, batch: int, here: int, early: bool) -> float:
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
    t: StagedTile, rows: int, k: int, batch: int, sms: int, size: int, early: bool
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.tile_cost`."""
    chunk = 16 // size
    here = -(-(-(-rows // t.rows) * t.split * batch) // sms)  # blocks of one multiprocessor
    if size == 4 and t.share == 1:
        return single_cost(t, rows, k, batch, here, early)
    exchange = _EXCHANGE + _BLOCK * here + _PEER * (t.split - 1) if t.split > 1 else 0.0
    start = _START + _WAVE * -(-here // 4) + exchange + _MEMORY * rows * k * size * batch
    if size == 4:  # fitted apart
        start += 1190.0 + t.few * (234.0 + 0.0187 * k / t.split)
    reads = -(-k // (t.split * t.share * 32 * chunk))  # of a lane for one row
    filled = 10 + 0.04 * t.few * k / t.split if t.share > 1 else 0.0
    if size == 2:  # fitted apart
        start *= 1.0 + (_SHARED_FEW if t.share > 1 else _FEW) * (t.few - 1)
    return start + here * 8 * (
        reads * chunk * (t.few * _SHARED + t.deep * (t.few + 1) * _FMA / 4)
        + t.deep * t.few * _SUM
        + filled
    )


def prices(
    r: Request,
    m: int,
    n: int,
    k: int,
    batch: int,
    a: tuple[DimLike, DimLike],
    b: tuple[DimLike, DimLike],
) -> dict[StagedTile, float]:
    """Clocks of the tiles for these sizes. a, b: steps of the operands from row to row and along k."""
    out: dict[StagedTile, float] = {}
    for wide_a in (True, False):
        rows, few = (m, n) if wide_a else (n, m)
        early = ("x" if wide_a else "w") in r.constant
        if few > _MOST or (a if wide_a else b)[1] != 1:
            continue
        for deep, share in ((1, 1), (2, 1), (4, 1), (1, 8)):
            for split in (1, 2, 4, 8, *((16,) if share > 1 else ())):
                if split == 1 or (split <= r.caps.cluster and k >= 512 * split // r.dtype.size):
                    tile = StagedTile(wide_a, max(few, 1), deep, split, share)
                    out[tile] = tile_cost(tile, rows, k, batch, r.sms, r.dtype.size, early)
    return out


def product(
    r: Request, tile: StagedTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any,
    pitches: tuple[DimLike, ...], y_vector: bool, rows: DimLike, columns: DimLike,
    grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    sizes = f"FEW = {tile.few}, DEEP = {tile.deep}, SHARE = {tile.share}, PIECE = {tile.piece}"
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype == DType.F32)}", select.to_batch(batched),
        f"#define SPLIT {tile.split}", f"#define PARAMETERS {declared(r, parameters)}",
        f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)};",
        f"constexpr int {sizes};", epi.source,
        template("common/cluster_splitk", "gemm/gemv/common", "gemm/gemv/staged"),
    ])  # fmt: skip
    blocks = D.ceildiv(rows if tile.wide_a else columns, tile.rows)
    return Kernel(
        text,
        "gemv_staged",
        (D.product([blocks, tile.split, active]), grid_y, grid_z),
        256,
        tuple(v for _, _, v in parameters),
        0,
        tile.split,
        r.arch >= 90,
    )
