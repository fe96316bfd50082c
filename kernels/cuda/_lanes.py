"""Products of f32 by FFMA in tiles of many shapes, in any layout (`lanes.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Kernel, Request
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_backend = registry.module("kernels", "cuda")
_product, _epilogue = _backend.part("_product"), _backend.part("_epilogue")
_HELD = 2  # stages of copies that go through registers


@dataclass(frozen=True)
class LaneTile:
    """Rows and columns of a lane, of which a warp has 4 by 8; warps along rows, along columns, and of those that share these and divide k; steps in shared memory:
    two go there through registers, more are copied asynchronously."""

    lane_m: int
    lane_n: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    stages: int = _HELD

    @property
    def bm(self) -> int:
        return 4 * self.lane_m * self.warps_m

    @property
    def bn(self) -> int:
        return 8 * self.lane_n * self.warps_n

    @property
    def bk(self) -> int:
        """k of a step."""
        return 32 if self.warps_k > (2 if self.stages == _HELD else 1) else 16

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def beside(self) -> int:
        """Blocks of a multiprocessor, so many that what a thread holds, reads ahead and adds up lies in registers."""
        return max(1, 65536 // (min(255, 2 * self.lane_m * self.lane_n + 32) * self.threads))

    @property
    def smem(self) -> int:
        """Bytes of all steps, then of the results."""
        return 4 * max(self.stages * self.bk * (self.bm + self.bn + 8), self.warps_k * self.bm * (self.bn + 4))


TILES = (
    LaneTile(8, 4, 1, 1, 4), LaneTile(4, 8, 1, 1, 4), LaneTile(8, 4, 2, 1, 2), LaneTile(8, 4, 1, 1, 2), LaneTile(4, 12, 1, 1, 4), LaneTile(8, 16, 2, 1, 2),
    LaneTile(8, 8, 2, 1, 2), LaneTile(8, 8, 1, 1, 4), LaneTile(8, 8, 2, 2), LaneTile(8, 12, 2, 1, 2), LaneTile(8, 4, 2, 2),
    LaneTile(4, 4, 1, 1, 4, 3), LaneTile(8, 4, 1, 1, 4, 3), LaneTile(8, 4, 1, 1, 2, 3), LaneTile(4, 8, 1, 1, 4, 3),
)  # fmt: skip
#: The cost model, fitted to measurements on an H200, of copies through registers and of asynchronous ones. Clocks to start, of each step of a wave of blocks and of a
#: warp's FFMA in it; of what a warp reads of shared memory, and copies along k and along rows; of a result, and of each that is added to it; clocks a byte from memory.
_COSTS = ((2150.0, 376.0, 1.23, 0.912, 2.92, 0.0, 0.0823, 0.0694, 4.98e-4), (2270.0, 346.0, 1.3, 0.828, 4.59, 1.58, 0.316, 0.0412, 3.55e-4))
_TERMS = 512  # most k for which these hold


def tile_cost(t: LaneTile, m: int, n: int, k: int, batch: int, sms: int, a_along: bool, b_along: bool) -> float:
    """Clocks, comparable with `_product.odd_cost`."""
    start, step, ffma, read, along, turned, result, joined, memory = _COSTS[t.stages > _HELD]
    down, across, size, deep = -(-m // t.bm), -(-n // t.bn), t.lane_m * t.lane_n, -(-k // 4) * 4
    blocks, here = down * across * batch, -(-down * across * batch // sms)
    waves = -(-here // min(t.beside, 227 * 1024 // (t.smem + 1024)))
    each = -(-k // t.bk) * step + ffma * deep / t.warps_k * size
    reads = read * blocks * t.bm * t.bn * deep * (t.lane_m + t.lane_n) / size
    copies = batch * k * (m * across * (along if a_along else turned) + n * down * (along if b_along else turned))
    results = here * t.bm * t.bn * (result + joined * (t.warps_k - 1))
    return start + waves * each + (reads + copies) / (32 * sms) + results + memory * 4 * batch * (m * k + n * k + m * n)


def prices(r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, y: bool) -> dict[LaneTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`_product.Access`); y: whether rows of y begin at multiples of 16 bytes. None where all do."""
    if r.arch < 90 or r.dtype != DType.F32 or k > _TERMS or (y and a.bytes == b.bytes == 16):
        return {}
    along = [not (how.trans or how.gather) for how in (a, b)]
    return {t: tile_cost(t, m, n, k, batch, r.sms, *along) for t in TILES}


def product(
    r: Request, tile: LaneTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any, pitches: tuple[DimLike, ...],
    rows: DimLike, columns: DimLike, grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `_product.product` takes them."""
    single = replace(r, unaligned=frozenset(r.operands))  # a lane finishes one result at a time
    epi = _epilogue.epilogue(single, pitches, 1, scaled=r.family == "matmul", width=1)
    parameters = [*params, *epi.parameters]
    sizes = {name.upper(): getattr(tile, name) for name in ("lane_m", "lane_n", "warps_m", "warps_n", "warps_k", "stages")}
    sizes |= {"BK": tile.bk, "BESIDE": tile.beside if tile.stages == _HELD else 1}
    ways: dict[str, int] = {}
    for o, how in (("A", a), ("B", b)):
        sizes[f"{o}_BYTES"] = how.bytes if how.trans and how.bytes == 16 else 4
        ways |= {f"{o}_ALONG": int(not (how.trans or how.gather)), f"{o}_GATHER": int(how.gather)}
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 1", _product.to_batch(batched),
        f"#define PARAMETERS {', '.join(_product.declaration(t, n) for t, n, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int {', '.join(f'{name} = {value}' for name, value in sizes.items())};",
        f"constexpr bool {', '.join(f'{name} = {value}' for name, value in ways.items())};", epi.source, _backend.template("lanes"),
    ])  # fmt: skip
    grid = D.product([D.ceildiv(rows, tile.bm), D.ceildiv(columns, tile.bn), active])
    return Kernel(text, "product_lanes", (grid, grid_y, grid_z), tile.threads, tuple(v for _, _, v in parameters), tile.smem, 1, True)
