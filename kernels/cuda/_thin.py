"""Products of which one operand has few rows (`thin.cuh`, `thin_turned.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Kernel, Request
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_backend = registry.module("kernels", "cuda")
_product, _epilogue = _backend.part("_product"), _backend.part("_epilogue")
_MOST = 8  # rows that count as few


@dataclass(frozen=True)
class ThinTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; deep: rows of a warp, 0 where the wide
    operand is contiguous along its rows; split: blocks that divide k."""

    wide_a: bool
    few: int
    deep: int
    split: int = 1

    def rows(self, size: int) -> int:
        """Rows of one block, of elements of `size` bytes."""
        return 8 * self.deep or 31 * (16 // size)

    @property
    def piece(self) -> int:
        """Elements along k of the few rows in shared memory."""
        return min(4096, 8192 // self.few // 256 * 256) if self.deep else 4096 // self.few // 8 * 8


#: Clocks until a kernel's first loads have come and after its last ones, until later ones come, to add up the sums of a cluster, bytes a clock from memory.
_START, _LATENCY, _EXCHANGE, _MEMORY_BYTES = 2500.0, 800.0, 900.0, 2600.0


def tile_cost(t: ThinTile, rows: int, k: int, batch: int, sms: int, size: int) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `_product.tile_cost`."""
    chunk = 16 // size
    here = -(-(-(-rows // t.rows(size)) * t.split * batch) // sms)  # blocks of one multiprocessor
    reads = -(-k // (t.split * 32 * chunk)) * t.deep if t.deep else -(-k // (t.split * 8))  # of a thread
    work = 2 * reads * chunk * (1 + t.few * (1 + 4 / max(t.deep, chunk if not t.deep else 1)))
    turns = -(-here // 3) * -(-reads // (16 if t.deep else 8)) * _LATENCY
    return _START + max(here * work, turns, rows * k * size * batch / _MEMORY_BYTES) + (_EXCHANGE if t.split > 1 else 0.0)


def prices(r: Request, m: int, n: int, k: int, batch: int, a: tuple[DimLike, DimLike], b: tuple[DimLike, DimLike]) -> dict[ThinTile, float]:
    """Clocks of the tiles for these sizes. a, b: steps of the operands from row to row and along k."""
    out = {}
    for wide_a in (True, False):
        rows, few = (m, n) if wide_a else (n, m)
        row_step, k_step = a if wide_a else b
        if few > _MOST or (k_step != 1 and row_step != 1):
            continue
        for deep in (1, 2, 4) if k_step == 1 else (0,):
            for split in (1, 2, 4, 8) if r.arch >= 90 else (1,):
                if split == 1 or k >= 512 * split // r.dtype.size:
                    tile = ThinTile(wide_a, max(few, 1), deep, split)
                    out[tile] = tile_cost(tile, rows, k, batch, r.sms, r.dtype.size)
    return out


def product(
    r: Request, tile: ThinTile, *, params: Sequence[tuple[str, str, Argument]], pitches: tuple[DimLike, ...], rows: DimLike, columns: DimLike, grid_y: DimLike,
    grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `_product.product` takes them."""
    epi = _epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype == DType.F32)}", f"#define BATCHED {int(batched)}", f"#define SPLIT {tile.split}",
        f"#define PARAMETERS {', '.join(_product.declaration(t, n) for t, n, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)};",
        f"constexpr int FEW = {tile.few}, DEEP = {tile.deep}, PIECE = {tile.piece};", epi.source, _backend.template("thin_common"),
        _backend.template("thin" if tile.deep else "thin_turned"),
    ])  # fmt: skip
    blocks = D.ceildiv(rows if tile.wide_a else columns, tile.rows(r.dtype.size))
    grid = (D.product([blocks, tile.split, active]), grid_y, grid_z)
    return Kernel(text, "product_thin", grid, 256, tuple(v for _, _, v in parameters), 0, tile.split, r.arch >= 90)
