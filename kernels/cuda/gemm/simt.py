"""f32 GEMM by FFMA of operands in any layout (`simt.cuh`): tiles and kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue
from ..common.instantiate import instantiate
from ..common.launch import smem_of_even_waves
from ..cost import gemm as cost
from ..cost.gemm import Problem
from ..cost.model import Work
from .select import Operands

_REGISTER_STAGED = 2  # stages of tiles that copy through registers


@dataclass(frozen=True)
class SimtTile:
    """thread_m, thread_n: the tile of one thread; a warp has 4 x 8 threads. warps_m, warps_n: along
    rows and columns; warps_k: split-K over warps. stages in shared memory: 2 (copies staged through
    registers) or more (cp.async). split: split-K over a cluster of so many CTAs.
    """

    thread_m: int
    thread_n: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    stages: int = _REGISTER_STAGED
    split: int = 1

    @cached_property
    def bm(self) -> int:
        return 4 * self.thread_m * self.warps_m

    @cached_property
    def bn(self) -> int:
        return 8 * self.thread_n * self.warps_n

    @cached_property
    def bk(self) -> int:
        """k of one stage."""
        return (
            64
            if self.warps_k > 4
            else 32
            if self.warps_k > (2 if self.stages == _REGISTER_STAGED else 1)
            else 16
        )

    @cached_property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @cached_property
    def min_ctas(self) -> int:
        """CTAs per SM for __launch_bounds__, so that accumulators, prefetched operands and copies
        fit into registers.
        """
        return max(1, 65536 // (min(255, 2 * self.thread_m * self.thread_n + 32) * self.threads))

    @cached_property
    def resident(self) -> int:
        """Resident CTAs per SM."""
        return max(1, min(self.min_ctas, HOPPER_SHARED // (self.smem + 1024)))

    @cached_property
    def direct_store(self) -> bool:
        """Whether threads store accumulators directly, four columns at a time."""
        return self.warps_k == self.split == 1 and self.thread_m * self.thread_n <= 96

    @cached_property
    def smem(self) -> int:
        """Bytes of the stages; of the results, which overlay them."""
        return 4 * max(
            self.stages * self.bk * (self.bm + self.bn + 8), self.warps_k * self.bm * (self.bn + 4)
        )


_CP_ASYNC = 3
TILES = (
    SimtTile(8, 4, 1, 1, 4), SimtTile(8, 4, 1, 1, 8), SimtTile(4, 8, 2, 1, 2), SimtTile(8, 4, 2, 2),
    SimtTile(8, 4, 4), SimtTile(8, 8, 2, 2), SimtTile(8, 4, 1, 1, 4, _CP_ASYNC),
    SimtTile(4, 8, 1, 1, 4, _CP_ASYNC), SimtTile(4, 4, 1, 1, 8, _CP_ASYNC),
)  # fmt: skip
#: Values of `split` of tiles; these tiles with each value.
_SPLITS = {
    SimtTile(8, 4, 1, 1, 4): (2, 4),
    SimtTile(8, 4, 1, 1, 8): (2,),
    SimtTile(8, 4, 1, 1, 4, _CP_ASYNC): (2, 4),
    SimtTile(4, 4, 1, 1, 8, _CP_ASYNC): (2,),
}
_SPLIT_TILES = tuple(replace(t, split=s) for t in TILES for s in (1, *_SPLITS.get(t, ())))
#: Most CTAs per SM of a grid with split-K.
_MOST_CTAS_PER_SM = 7
#: Largest k for which these tiles are considered.
_MOST_K = 1200


def works(r: Request, p: Problem) -> dict[SimtTile, Work]:
    """`Work` of each tile."""
    if r.arch < 90 or p.k > _MOST_K:
        return {}
    out: dict[SimtTile, Work] = {}
    for t in _SPLIT_TILES:
        ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * p.batch * t.split
        if t.split == 1 or (-(-p.k // t.bk) >= 2 * t.split and ctas <= _MOST_CTAS_PER_SM * r.sms):
            out[t] = cost.simt(t, p)
    return out


def emit(r: Request, tile: SimtTile, o: Operands) -> Kernel:
    """The kernel."""
    single = replace(r, unaligned=frozenset(r.operands))  # a thread finishes one result at a time
    epi = epilogue.epilogue(single, o.pitches, 1, scaled=r.family == "matmul", width=1)
    constants: dict[str, bool | int] = {
        name.upper(): getattr(tile, name)
        for name in ("thread_m", "thread_n", "warps_m", "warps_n", "warps_k", "stages")
    }
    register_staged = tile.stages == _REGISTER_STAGED
    constants |= {"BK": tile.bk, "MIN_CTAS": tile.min_ctas if register_staged else 1}
    constants |= {"DIRECT_STORE": o.y_vector and tile.direct_store}
    for name, how in (("A", o.a), ("B", o.b)):
        constants |= {
            f"{name}_BYTES": how.bytes if how.bytes == 16 and (how.trans or register_staged) else 4,
            f"{name}_K_MAJOR": not (how.trans or how.gather),
            f"{name}_GATHER": how.gather,
        }
    tiles = D.mul(D.ceildiv(o.rows, tile.bm), D.ceildiv(o.columns, tile.bn))
    grid = o.grid(D.mul(tiles, tile.split))
    smem = tile.smem
    if tile.split == 1:
        smem = smem_of_even_waves(r, smem, D.product(grid), tile.resident)
    return instantiate(
        r,
        "gemm_simt",
        "gemm/simt",
        o.params,
        grid,
        tile.threads,
        epilogue=epi,
        macros={"SPLIT": tile.split, "REGISTER_STAGED": register_staged, "BATCHED": o.batched},
        constants=constants,
        smem=smem,
        cluster=tile.split,
    )
