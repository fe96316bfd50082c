"""GEMV and skinny GEMM in one pass from registers (`registers.cuh`): tiles and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ...common import epilogue
from ...common.launch import declared
from ...common.prelude import prelude
from ...common.templates import template
from .. import select

_MOST = 8  # rows that count as few
_READS, _VALUES = 4, 16  # most of a lane
_NEAR = 8  # chunks of the few rows of a lane
_TERMS = 2048  # most k of f32 for which the cost model holds


@dataclass(frozen=True)
class RegisterTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; lanes: that
    have a row together; reads: chunks of 16 bytes of a lane, of each of `deep` rows; whole: rows of
    the wide operand are whole chunks; near: those of the other one, too, and lanes read them where
    they multiply."""

    wide_a: bool
    few: int
    lanes: int
    reads: int
    deep: int
    whole: bool = False
    near: bool = False

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return 256 // self.lanes * self.deep


def candidates(
    wide_a: bool, few: int, k: int, aligned: bool = False, size: int = 2, whole: bool = False, near: bool = False,
) -> Iterator[RegisterTile]:  # fmt: skip
    """Tiles that read all of k at once, and where none does, those that read most. aligned: rows
    begin at multiples of 16 bytes; size: bytes of an element; whole, near: what tiles may know
    (`RegisterTile`)."""
    chunk = 16 // size
    for lanes in (4, 8, 16, 32):
        reads = -(-(k + (0 if whole else chunk - 1)) // (chunk * lanes))
        if reads > _READS and lanes != 32:
            continue
        for deep in (1, 2, 4):
            if deep * min(reads, _READS) <= (2 if aligned else 1) * _READS and deep * few <= min(
                lanes, _VALUES
            ):
                yield RegisterTile(
                    wide_a,
                    few,
                    lanes,
                    min(reads, _READS),
                    deep,
                    whole,
                    near and few * min(reads, _READS) <= _NEAR,
                )


@dataclass(frozen=True)
class Along:
    """Clocks to start, more where the wide operand is not read before the kernel's turn, then also
    for each term of the few rows, and where its rows begin anywhere; of a chunk's products alone
    and beside other blocks; of a chunk; of a lane's sums; of a block; until the next reads come; a
    byte."""

    start: float
    late: float
    term: float
    anywhere: float
    alone: float
    beside: float
    chunk: float
    sum: float
    block: float
    turn: float
    memory: float


@dataclass(frozen=True)
class Whole:
    """The same where rows of the wide operand are whole chunks. Clocks to start, more where it is
    not read before the kernel's turn; of a block; of a chunk beside others and alone, and for each
    other one of its row where few lanes have that; of what chunks of the few rows take by way of
    shared memory, beside other blocks and alone; of a lane's sums; until the next reads come; a
    byte."""

    start: float
    late: float
    block: float
    chunk: float
    read: float
    again: float
    fill: float
    alone: float
    sum: float
    turn: float
    memory: float


#: The cost models by the bytes of an element, fitted to measurements on an H200.
_ALONG = {
    2: Along(1880.0, 244.0, 0.5, 303.0, 7.0, 76.0, 161.0, 49.0, 270.0, 1500.0, 2.5e-4),
    4: Along(2540.0, 722.0, 0.0, 155.0, 3.01, 53.1, 56.8, 26.5, 125.0, 1750.0, 2.42e-4),
}
_WHOLE = {
    2: Whole(1650.0, 305.0, 73.5, 21.4, 47.2, 22.8, 20.8, 62.1, 65.7, 1500.0, 4.96e-4),
    4: Whole(1780.0, 140.0, 23.2, 0.0, 0.0, 29.8, 16.7, 59.9, 42.8, 1750.0, 5.74e-4),
}


def tile_cost(
    t: RegisterTile,
    rows: int,
    k: int,
    batch: int,
    sms: int,
    whole: bool,
    early: bool,
    size: int = 2,
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.odd_cost`.
    whole: its rows begin at multiples of 16 bytes; early: it is constant."""
    # blocks of one multiprocessor
    here, chunk = -(-(-(-rows // t.rows) * batch) // sms), 16 // size
    memory, products = size * batch * (rows * k + t.few * k + rows * t.few), t.reads * t.few
    slots = 1 << (t.deep * t.few - 1).bit_length()
    if t.whole:
        w, turns = _WHOLE[size], -(-k // (chunk * t.lanes * t.reads))
        chunks, again = t.reads * t.deep, (t.reads - 1) * w.again if t.lanes < 8 else 0.0
        each, alone = (0.0, 0.0) if t.near else (products * w.fill, products * w.alone)
        start = w.start + (0.0 if early else w.late) + w.memory * memory + (turns - 1) * w.turn
        return (
            start
            + turns * (chunks * w.read + alone + here * (chunks * (w.chunk + again) + each))
            + here * (w.block + w.sum * slots)
        )
    d, turns = _ALONG[size], -(-k // (chunk * (t.lanes * t.reads - 1) + 1))
    start = (
        d.start
        + (0.0 if early else d.late + d.term * t.few * k)
        + (0.0 if whole else d.anywhere)
        + d.memory * memory
        + (turns - 1) * d.turn
    )
    return (
        start
        + turns * (d.alone * products + here * (d.beside * products + d.chunk * t.reads * t.deep))
        + here * (d.block + d.sum * slots)
    )


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: Any, b: Any, batched: bool
) -> dict[RegisterTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`select.Access`); batched:
    whether both vary.
    """
    if r.arch < 90 or (r.dtype == DType.F32 and k > _TERMS):
        return {}
    out: dict[RegisterTile, float] = {}
    size = r.dtype.size
    chunks = r.family in select.MATRICES and multiple_of(r.ints["K"]) * size >= 16
    for wide_a, how, other in ((True, a, b), (False, b, a)):
        rows, few = (m, n) if wide_a else (n, m)
        if 0 < few <= _MOST and not how.gather and not how.trans:
            early = not batched and ("x" if wide_a else "w") in r.constant
            aligned, near = how.bytes == 16, other.bytes == 16 and not (other.trans or other.gather)
            whole = aligned and chunks
            tiles = candidates(wide_a, few, k, aligned, size, whole, whole and near)
            out |= {t: tile_cost(t, rows, k, batch, r.sms, aligned, early, size) for t in tiles}
    return out


def product(
    r: Request, tile: RegisterTile, *, params: Sequence[tuple[str, str, Argument]], a: Any, b: Any,
    pitches: tuple[DimLike, ...], y_vector: bool, rows: DimLike, columns: DimLike,
    grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    i = {name: v.value for _, name, v in params if isinstance(v, (Int32, Int64))}
    along, across = (i["b_k"], i["b_n"]) if tile.wide_a else (i["a_k"], i["a_m"])
    sizes = f"FEW = {tile.few}, LANES = {tile.lanes}, READS = {tile.reads}, DEEP = {tile.deep}"
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype == DType.F32)}", select.to_batch(batched),
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr bool WHOLE = {int(tile.whole)}, NEAR = {int(tile.near)};",
        (f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)}, "
        f"ACROSS = {int(across == 1 and along != 1)};"),
        f"constexpr int {sizes};", epi.source, template("gemm/gemv/common", "gemm/gemv/registers"),
    ])  # fmt: skip
    grid = D.mul(D.ceildiv(rows if tile.wide_a else columns, tile.rows), active)
    return Kernel(
        text,
        "gemv_registers",
        (grid, grid_y, grid_z),
        256,
        tuple(v for _, _, v in parameters),
        0,
        1,
        r.arch >= 90,
    )
