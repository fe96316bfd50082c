"""Products of which one operand has few rows, and of few terms (`registers.cuh`,
`registers_nmajor.cuh`): tiles and kernels.
"""

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
# most of a lane; reads along rows where no other lanes need fewer
_READS, _TURNED_READS, _LAST_READS, _VALUES = 4, 8, 20, 16
_NEAR = 8  # chunks of the few rows of a lane
_TERMS = 2048  # most k of f32 for which the cost model holds


@dataclass(frozen=True)
class DotTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the other one; lanes: that
    have a row together, or where the wide operand is contiguous along its rows (deep 0), a block's
    rows; reads: chunks of 16 bytes of a lane, of each of `deep` rows; whole: rows of the wide
    operand are whole chunks; near: those of the other one, too, and lanes read them where they
    multiply."""

    wide_a: bool
    few: int
    lanes: int
    reads: int
    deep: int
    whole: bool = False
    near: bool = False

    def rows(self, size: int) -> int:
        """Rows of one block, of elements of `size` bytes."""
        return 256 // self.lanes * self.deep or (self.lanes - 1) * (16 // size)

    @property
    def template(self) -> str:
        return "gemm/gemv/registers" if self.deep else "gemm/gemv/registers_nmajor"


def candidates(
    wide_a: bool, few: int, k: int, along: bool, aligned: bool = False, size: int = 2, whole: bool = False, near: bool = False,
) -> Iterator[DotTile]:  # fmt: skip
    """Tiles that read all of k at once, and where none does, those that read most. aligned: rows
    begin at multiples of 16 bytes; size: bytes of an element; whole, near: what tiles may know
    (`DotTile`)."""
    (most, last), chunk = (
        (_READS, 32) if along else (_TURNED_READS, 4 if size == 2 or few % 2 == 0 else 8),
        16 // size,
    )
    for lanes in (4, 8, 16, 32):
        reads = (
            -(-(k + (0 if whole else chunk - 1)) // (chunk * lanes))
            if along
            else -(-k * lanes // 256)
        )
        if (reads > most and lanes != last) or (not along and few * chunk * lanes % 32):
            continue
        if not along:
            turns = -(-reads // _LAST_READS)
            yield DotTile(wide_a, few, lanes, -(-reads // turns), 0)
            continue
        for deep in (1, 2, 4):
            if deep * min(reads, most) <= (2 if aligned else 1) * _READS and deep * few <= min(
                lanes, _VALUES
            ):
                yield DotTile(
                    wide_a,
                    few,
                    lanes,
                    min(reads, most),
                    deep,
                    whole,
                    near and few * min(reads, most) <= _NEAR,
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


@dataclass(frozen=True)
class Turned:
    """The same where the wide operand is contiguous along its rows, with clocks of filling shared
    memory, and of one of the few rows, alone and for each lane.
    """

    start: float
    anywhere: float
    alone: float
    beside: float
    fill: float
    block: float
    row: float
    lane: float
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
_TURNED = {
    2: Turned(2210.0, 220.0, 33.0, 8.0, 115.0, 278.0, 60.0, 7.7, 1500.0, 6.8e-4),
    4: Turned(2800.0, 0.0, 8.14, 9.57, 165.0, 82.7, 17.1, 5.45, 1220.0, 3.59e-4),
}


def tile_cost(
    t: DotTile, rows: int, k: int, batch: int, sms: int, whole: bool, early: bool, size: int = 2
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.odd_cost`.
    whole: its rows begin at multiples of 16 bytes; early: it is constant."""
    # blocks of one multiprocessor
    here, chunk = -(-(-(-rows // t.rows(size)) * batch) // sms), 16 // size
    memory, products = size * batch * (rows * k + t.few * k + rows * t.few), t.reads * t.few
    if not t.deep:
        c, turns = _TURNED[size], -(-k * t.lanes // (256 * t.reads))
        start = c.start + (0.0 if whole else c.anywhere) + c.memory * memory + (turns - 1) * c.turn
        each = (
            c.alone * products
            + c.beside * (here - 1) * (products + t.reads)
            + c.fill * here * -(-t.few * t.reads // t.lanes)
        )
        return start + turns * each + here * (c.block + t.few * (c.row + c.lane * t.lanes))
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
) -> dict[DotTile, float]:
    """Clocks of the tiles for these sizes. a, b: how operands are read (`select.Access`); batched:
    whether both vary.
    """
    if r.arch < 90 or (r.dtype == DType.F32 and k > _TERMS):
        return {}
    out: dict[DotTile, float] = {}
    size = r.dtype.size
    chunks = r.family in select.MATRICES and multiple_of(r.ints["K"]) * size >= 16
    for wide_a, how, other in ((True, a, b), (False, b, a)):
        rows, few = (m, n) if wide_a else (n, m)
        if 0 < few <= _MOST and not how.gather:
            early = not batched and ("x" if wide_a else "w") in r.constant
            aligned, near = how.bytes == 16, other.bytes == 16 and not (other.trans or other.gather)
            whole = aligned and chunks and not how.trans
            tiles = candidates(wide_a, few, k, not how.trans, aligned, size, whole, whole and near)
            out |= {t: tile_cost(t, rows, k, batch, r.sms, aligned, early, size) for t in tiles}
    return out


def product(
    r: Request, tile: DotTile, *, params: Sequence[tuple[str, str, Argument]], pitches: tuple[DimLike, ...], rows: DimLike, columns: DimLike,
    grid_y: DimLike, grid_z: DimLike, batched: bool, active: DimLike,
) -> Kernel:  # fmt: skip
    """The kernel, with parameters as `select.product` takes them."""
    epi = epilogue.epilogue(r, pitches, 1, scaled=r.family == "matmul")
    parameters = [*params, *epi.parameters]
    early = ("x" if tile.wide_a else "w") in r.constant and not batched
    i = {name: v.value for _, name, v in params if isinstance(v, (Int32, Int64))}
    along, across = (i["b_k"], i["b_n"]) if tile.wide_a else (i["a_k"], i["a_m"])
    sizes = f"FEW = {tile.few}, LANES = {tile.lanes}, READS = {tile.reads}{f', DEEP = {tile.deep}' if tile.deep else ''}"
    text = "\n".join([
        prelude(r.dtype), f"#define IS_F32 {int(r.dtype == DType.F32)}", select.to_batch(batched),
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        *([f"constexpr bool WHOLE = {int(tile.whole)}, NEAR = {int(tile.near)};"] if tile.deep else []),
        f"constexpr bool WIDE_A = {int(tile.wide_a)}, EARLY = {int(early)}, ACROSS = {int(across == 1 and along != 1)};", f"constexpr int {sizes};",
        epi.source, template("gemm/gemv/common"), template(tile.template),
    ])  # fmt: skip
    grid = D.mul(D.ceildiv(rows if tile.wide_a else columns, tile.rows(r.dtype.size)), active)
    return Kernel(
        text,
        "product_dots",
        (grid, grid_y, grid_z),
        256,
        tuple(v for _, _, v in parameters),
        0,
        1,
        r.arch >= 90,
    )
