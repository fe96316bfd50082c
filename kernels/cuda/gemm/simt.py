"""Products of f32 by FFMA in tiles of many shapes, in any layout (`simt.cuh`): tiles and kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D

from ..common import epilogue
from ..common.instantiate import instantiate
from ..common.launch import even
from ..cost import gemm as cost
from ..cost.gemm import Problem
from ..cost.model import Work
from .select import Operands

_HELD = 2  # stages of copies that go through registers


@dataclass(frozen=True)
class LaneTile:
    """Rows and columns of a lane, of which a warp has 4 by 8; warps along rows, along columns, and
    of those that share these and divide k; steps in shared memory: two go there through registers,
    more are copied asynchronously. split: blocks of a cluster that divide k."""

    lane_m: int
    lane_n: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    stages: int = _HELD
    split: int = 1

    @property
    def bm(self) -> int:
        return 4 * self.lane_m * self.warps_m

    @property
    def bn(self) -> int:
        return 8 * self.lane_n * self.warps_n

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
TILES = (
    LaneTile(8, 4, 1, 1, 4), LaneTile(8, 4, 1, 1, 8), LaneTile(4, 8, 2, 1, 2), LaneTile(8, 4, 2, 2),
    LaneTile(8, 4, 4), LaneTile(8, 8, 2, 2), LaneTile(8, 4, 1, 1, 4, _ASYNC),
    LaneTile(4, 8, 1, 1, 4, _ASYNC), LaneTile(4, 4, 1, 1, 8, _ASYNC),
)  # fmt: skip
#: CTAs of a cluster that may divide k, and most of these of an SM for which they do.
_DIVIDED = {
    LaneTile(8, 4, 1, 1, 4): (2, 4),
    LaneTile(8, 4, 1, 1, 8): (2,),
    LaneTile(8, 4, 1, 1, 4, _ASYNC): (2, 4),
    LaneTile(4, 4, 1, 1, 8, _ASYNC): (2,),
}
_MOST = 7
#: Most k for which they compete.
_TERMS = 1200


def works(r: Request, p: Problem) -> dict[LaneTile, Work]:
    """What each tile does for these sizes."""
    if r.arch < 90 or p.k > _TERMS:
        return {}
    out: dict[LaneTile, Work] = {}
    for t in TILES:
        for split in (1, *_DIVIDED.get(t, ())):
            ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * p.batch * split
            if split == 1 or (-(-p.k // t.bk) >= 2 * split and ctas <= _MOST * r.sms):
                tile = replace(t, split=split)
                out[tile] = cost.simt(tile, p)
    return out


def product(r: Request, tile: LaneTile, o: Operands) -> Kernel:
    """The kernel."""
    single = replace(r, unaligned=frozenset(r.operands))  # a lane finishes one result at a time
    epi = epilogue.epilogue(single, o.pitches, 1, scaled=r.family == "matmul", width=1)
    constants: dict[str, bool | int] = {
        name.upper(): getattr(tile, name)
        for name in ("lane_m", "lane_n", "warps_m", "warps_n", "warps_k", "stages")
    }
    held = tile.stages == _HELD
    constants |= {"BK": tile.bk, "BESIDE": tile.beside if held else 1}
    constants |= {"STRAIGHT": o.y_vector and tile.straight}
    for name, how in (("A", o.a), ("B", o.b)):
        constants |= {
            f"{name}_BYTES": how.bytes if how.bytes == 16 and (how.trans or held) else 4,
            f"{name}_ALONG": not (how.trans or how.gather),
            f"{name}_GATHER": how.gather,
        }
    tiles = D.mul(D.ceildiv(o.rows, tile.bm), D.ceildiv(o.columns, tile.bn))
    grid = o.grid(D.mul(tiles, tile.split))
    smem = tile.smem
    if tile.split == 1:
        smem = even(r, smem, D.product(grid), tile.resident)
    return instantiate(
        r,
        "gemm_simt",
        "gemm/simt",
        o.params,
        grid,
        tile.threads,
        epilogue=epi,
        macros={"SPLIT": tile.split, "HELD": held, "BATCHED": o.batched},
        constants=constants,
        smem=smem,
        cluster=tile.split,
    )
