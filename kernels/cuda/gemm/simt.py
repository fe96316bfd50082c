"""Products of f32 by FFMA in tiles of many shapes, in any layout (`simt.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

from ..common import epilogue
from ..common.instantiate import instantiate
from . import block_costs

_HELD = 2  # stages of copies that go through registers


@dataclass(frozen=True)
class LaneTile:
    """Rows and columns of a lane, of which a warp has 4 by 8; warps along rows, along columns, and
    of those that share these and divide k; steps in shared memory: two go there through registers,
    more are copied asynchronously. split: blocks of a cluster that divide k. tall: a warp has 8 by
    4 lanes."""

    lane_m: int
    lane_n: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    stages: int = _HELD
    split: int = 1
    tall: bool = False

    @property
    def bm(self) -> int:
        return (8 if self.tall else 4) * self.lane_m * self.warps_m

    @property
    def bn(self) -> int:
        return (4 if self.tall else 8) * self.lane_n * self.warps_n

    @property
    def bk(self) -> int:
        """k of a step."""
        return (
            64
            if self.warps_k > 4
            else 32
            if self.warps_k > (2 if self.stages == _HELD else 1)
            else 16
        )

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def beside(self) -> int:
        """Blocks of a multiprocessor, so many that what a thread holds, reads ahead and adds up
        lies in registers.
        """
        return max(1, 65536 // (min(255, 2 * self.lane_m * self.lane_n + 32) * self.threads))

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds."""
        return max(1, min(self.beside, 227 * 1024 // (self.smem + 1024)))

    @property
    def straight(self) -> bool:
        """Whether lanes write their sums where they may four at a time: registers reach."""
        return self.warps_k == self.split == 1 and self.lane_m * self.lane_n <= 96

    @property
    def smem(self) -> int:
        """Bytes of all steps, then of the results."""
        return 4 * max(
            self.stages * self.bk * (self.bm + self.bn + 8), self.warps_k * self.bm * (self.bn + 4)
        )


_ASYNC = 3
#: Clocks of tiles to start, of each step of a wave of blocks, and of each step of a block.
_TILES = {
    LaneTile(8, 4, 1, 1, 4): (2320.0, 464.0, 294.0), LaneTile(8, 4, 1, 1, 2): (2390.0, 519.0, 127.0), LaneTile(8, 4, 2, 1, 2): (2200.0, 450.0, 259.0),
    LaneTile(8, 8, 1, 1, 4): (2100.0, 644.0, 556.0), LaneTile(8, 8, 2, 1, 2): (2630.0, 518.0, 552.0), LaneTile(8, 12, 2, 1, 2): (2500.0, 483.0, 815.0),
    LaneTile(8, 12, 2, 2): (2040.0, 2050.0, 759.0), LaneTile(8, 4, 2, 2): (1570.0, 969.0, 334.0), LaneTile(8, 8, 2): (2140.0, 1400.0, 346.0),
    LaneTile(8, 8, 2, 2): (1720.0, 812.0, 947.0), LaneTile(8, 4, 1, 1, 8): (2500.0, 377.0, 761.0), LaneTile(4, 12, 1, 1, 4): (2100.0, 564.0, 607.0),
    LaneTile(8, 4, 4): (2250.0, 1060.0, 352.0), LaneTile(4, 8, 2, 1, 2): (2740.0, 476.0, 220.0), LaneTile(4, 12, 2, 1, 2): (2630.0, 659.0, 288.0),
    LaneTile(8, 4, 2, 1, 2, tall=True): (3040.0, 683.0, 241.0), LaneTile(4, 4, 1, 1, 4, _ASYNC): (2310.0, 292.0, 118.0),
    LaneTile(8, 4, 1, 1, 4, _ASYNC): (2160.0, 347.0, 231.0), LaneTile(4, 8, 1, 1, 4, _ASYNC): (2160.0, 420.0, 164.0),
    LaneTile(4, 4, 1, 1, 8, _ASYNC): (2140.0, 315.0, 355.0), LaneTile(4, 4, 1, 1, 4, _ASYNC, tall=True): (2610.0, 210.0, 146.0),
    LaneTile(8, 4, 1, 1, 4, _ASYNC, tall=True): (2600.0, 313.0, 255.0),
}  # fmt: skip
#: What tiles share whose copies go through registers, and those that copy asynchronously.
_HELD_COSTS = block_costs.Kind(
    along=1.98,
    along16=3.55,
    turned=1.78,
    turned16=3.19,
    memory=0.000198,
    result=0.157,
    dear=0.493,
    joined=0.629,
    anywhere=0.00865,
    exchange=870.0,
)
_ASYNC_COSTS = block_costs.Kind(
    along=3.86,
    along16=4.41,
    turned=2.86,
    turned16=9.61,
    memory=0.000103,
    result=0.37,
    dear=0.745,
    joined=0.849,
    anywhere=0.0,
    exchange=1050.0,
)
TILES = tuple(_TILES)
#: Blocks of a cluster that may divide k, and most of these of a multiprocessor for which they do.
_DIVIDED = {
    LaneTile(8, 4, 1, 1, 4, _ASYNC): (2, 4), LaneTile(4, 4, 1, 1, 4, _ASYNC): (2, 4), LaneTile(8, 4, 1, 1, 4): (2, 4), LaneTile(8, 8, 1, 1, 4): (2, 4),
    LaneTile(8, 4, 1, 1, 8): (2,), LaneTile(4, 4, 1, 1, 8, _ASYNC): (2,),
}  # fmt: skip
_MOST = 7
#: Clocks of a row's part that a block writes where blocks that follow each other have the others,
#: at the same time: parts meet in lines of 128 bytes.
_PART, _LINE = 0.12, 32
# what the tiles cost where others copy whole rows 16 bytes at a time: so many times their clocks
_WHOLE = 1.12


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, y: bool
) -> dict[LaneTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`select.Access`); y:
    whether rows of y begin at multiples of 16 bytes.
    """
    if r.arch < 90 or r.dtype != DType.F32 or k > block_costs.TERMS:
        return {}
    whole, out = _WHOLE if a.bytes == b.bytes == 16 else 1.0, dict[LaneTile, float]()
    for t, own in _TILES.items():
        kind = _HELD_COSTS if t.stages == _HELD else _ASYNC_COSTS
        for split in (1, *_DIVIDED.get(t, ())):
            how = block_costs.Blocks(t.bm, t.bn, t.bk, split, t.resident)
            if split == 1 or (-(-k // t.bk) >= 2 * split and how.here(m, n, batch, r.sms) <= _MOST):
                parts = (
                    batch * m * -(-n // t.bn)
                    if m <= t.bm and n > t.bn and n % _LINE and k <= t.bk
                    else 0
                )
                out[replace(t, split=split)] = (
                    whole
                    * block_costs.clocks(
                        kind, own, how, m, n, k, batch, r.sms, a, b, y, block_costs.dear(r)
                    )
                    + _PART * parts
                )
    return out


def product(
    r: Request, tile: LaneTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any, pitches: tuple[DimLike, ...], y_vector: bool,
    rows: DimLike, columns: DimLike, grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    single = replace(r, unaligned=frozenset(r.operands))  # a lane finishes one result at a time
    epi = epilogue.epilogue(single, pitches, 1, scaled=r.family == "matmul", width=1)
    constants: dict[str, bool | int] = {
        name.upper(): getattr(tile, name)
        for name in ("lane_m", "lane_n", "warps_m", "warps_n", "warps_k", "stages", "tall")
    }
    held = tile.stages == _HELD
    constants |= {"BK": tile.bk, "BESIDE": tile.beside if held else 1}
    constants |= {"STRAIGHT": y_vector and tile.straight}
    for o, how in (("A", a), ("B", b)):
        constants |= {
            f"{o}_BYTES": how.bytes if how.bytes == 16 and (how.trans or held) else 4,
            f"{o}_ALONG": not (how.trans or how.gather),
            f"{o}_GATHER": how.gather,
        }
    grid = D.product([D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn), tile.split, active])
    smem = tile.smem
    if tile.split == 1:
        smem = block_costs.even(r, smem, D.product([grid, grid_y, grid_z]), tile.resident)
    return instantiate(
        r,
        "product_lanes",
        "gemm/simt",
        params,
        (grid, grid_y, grid_z),
        tile.threads,
        epilogue=epi,
        macros={"SPLIT": tile.split, "HELD": held, "BATCHED": batched},
        constants=constants,
        smem=smem,
        cluster=tile.split,
    )
