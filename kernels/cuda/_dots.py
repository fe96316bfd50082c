"""Products of which one operand has few rows, and of few terms (`dots.cuh`, `dots_turned.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Int32, Int64, Kernel, Request
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_backend = registry.module("kernels", "cuda")
_product, _epilogue = _backend.part("_product"), _backend.part("_epilogue")
_MOST = 8  # rows that count as few
_READS, _TURNED_READS, _VALUES = 4, 8, 16  # most of a lane


@dataclass(frozen=True)
class DotTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; lanes: that have a row together, or where the wide operand is contiguous along
    its rows (deep 0), a block's rows; reads: chunks of 16 bytes of a lane, of each of `deep` rows."""

    wide_a: bool
    few: int
    lanes: int
    reads: int
    deep: int

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return 256 // self.lanes * self.deep or (self.lanes - 1) * 8

    @property
    def template(self) -> str:
        return "dots" if self.deep else "dots_turned"


def candidates(wide_a: bool, few: int, k: int, along: bool, whole: bool = False) -> Iterator[DotTile]:
    """Tiles that read all of k at once, and where none does, those that read most. whole: rows begin at multiples of 16 bytes."""
    most, last = (_READS, 32) if along else (_TURNED_READS, 4)
    for lanes in (4, 8, 16, 32):
        reads = -(-(k + 7) // (8 * lanes)) if along else -(-k * lanes // 256)
        if reads > most and lanes != last:
            continue
        for deep in (1, 2, 4) if along else (0,):
            if deep * min(reads, most) <= (2 if whole else 1) * _READS and deep * few <= min(lanes, _VALUES):
                yield DotTile(wide_a, few, lanes, min(reads, most), deep)


#: The cost models, fitted to measurements on an H200. Clocks to start, more where the wide operand is not read before the kernel's turn, then also for
#: each term of the few rows, and where its rows begin anywhere; of a chunk's products alone and beside other blocks; of a chunk; of a lane's sums; of a block; a byte.
_START, _LATE, _TERM, _ANYWHERE, _ALONE, _BESIDE, _CHUNK, _SUM, _BLOCK, _MEMORY = 1880.0, 244.0, 0.5, 303.0, 7.0, 76.0, 161.0, 49.0, 270.0, 2.5e-4
#: The same where the wide operand is contiguous along its rows, with clocks of one of the few rows, alone and for each lane.
_TURNED_START, _TURNED_ANYWHERE, _TURNED_ALONE, _TURNED_BESIDE, _TURNED_FILL = 2210.0, 220.0, 33.0, 8.0, 115.0
_TURNED_BLOCK, _ROW, _LANE, _TURNED_MEMORY = 278.0, 60.0, 7.7, 6.8e-4
_TURN = 1500.0  # clocks until the next reads come


def tile_cost(t: DotTile, rows: int, k: int, batch: int, sms: int, whole: bool, early: bool) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `_product.odd_cost`. whole: its rows begin at multiples of 16 bytes; early: it is constant."""
    here = -(-(-(-rows // t.rows) * batch) // sms)  # blocks of one multiprocessor
    memory, products = 2 * batch * (rows * k + t.few * k + rows * t.few), t.reads * t.few
    if not t.deep:
        turns = -(-k * t.lanes // (256 * t.reads))
        start = _TURNED_START + (0.0 if whole else _TURNED_ANYWHERE) + _TURNED_MEMORY * memory + (turns - 1) * _TURN
        each = _TURNED_ALONE * products + _TURNED_BESIDE * (here - 1) * (products + t.reads) + _TURNED_FILL * here * -(-t.few * t.reads // t.lanes)
        return start + turns * each + here * (_TURNED_BLOCK + t.few * (_ROW + _LANE * t.lanes))
    turns = -(-k // (8 * t.lanes * t.reads - 7))
    slots = 1 << (t.deep * t.few - 1).bit_length()
    start = _START + (0.0 if early else _LATE + _TERM * t.few * k) + (0.0 if whole else _ANYWHERE) + _MEMORY * memory + (turns - 1) * _TURN
    return start + turns * (_ALONE * products + here * (_BESIDE * products + _CHUNK * t.reads * t.deep)) + here * (_BLOCK + _SUM * slots)


def prices(r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, batched: bool) -> dict[DotTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`_product.Access`); batched: whether both vary."""
    if r.dtype == DType.F32 or r.arch < 90:
        return {}
    out: dict[DotTile, float] = {}
    for wide_a, how in ((True, a), (False, b)):
        rows, few = (m, n) if wide_a else (n, m)
        if 0 < few <= _MOST and not how.gather:
            early = not batched and ("x" if wide_a else "w") in r.constant
            out |= {t: tile_cost(t, rows, k, batch, r.sms, how.bytes == 16, early) for t in candidates(wide_a, few, k, not how.trans, how.bytes == 16)}
    return out


def product(
    r: Request, tile: DotTile, *, params: Sequence[tuple[str, str, Argument]], pitches: tuple[DimLike, ...], rows: DimLike, columns: DimLike,
    grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `_product.product` takes them."""
    epi = _epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    i = {name: v.value for _, name, v in params if isinstance(v, (Int32, Int64))}
    along, across = (i["b_k"], i["b_n"]) if tile.wide_a else (i["a_k"], i["a_m"])
    sizes = f"FEW = {tile.few}, LANES = {tile.lanes}, READS = {tile.reads}{f', DEEP = {tile.deep}' if tile.deep else ''}"
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", _product.to_batch(batched),
        f"#define PARAMETERS {', '.join(_product.declaration(t, n) for t, n, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)}, ACROSS = {int(across == 1 and along != 1)};", f"constexpr int {sizes};",
        epi.source, _backend.template("thin_common"), _backend.template(tile.template),
    ])  # fmt: skip
    grid = D.mul(D.ceildiv(rows if tile.wide_a else columns, tile.rows), active)
    return Kernel(text, "product_dots", (grid, grid_y, grid_z), 256, tuple(v for _, _, v in parameters), 0, 1, r.arch >= 90)
