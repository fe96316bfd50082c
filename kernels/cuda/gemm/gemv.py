"""GEMV and skinny GEMM (`gemv.cuh`): tiles, their costs, kernels."""

from __future__ import annotations

from collections.abc import Iterator

from tracea_onnx.codegen.kernel_request import Int32, Int64, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue
from ..common.instantiate import instantiate
from ..cost import gemm as cost
from ..cost.fitted import fitted, groups
from ..cost.gemm import Problem
from ..cost.model import Work
from . import select

_MOST = 8  # most rows of the narrow operand
_READS, _VALUES = 4, 16  # most chunks of a row, and most results, of a lane (not STAGED)
_MOST_DIRECT = 8  # most chunks of the narrow operand that a lane reads into registers
_MOST_K = 2048  # most k of f32 for which `_at_once_cost` holds


@dataclass(frozen=True)
class GemvTile:
    """wide_a: A is the wide operand (many rows), else B. narrow_rows: most rows of the narrow
    operand; rows_per_lane: rows of the wide operand; split: split-K over a cluster of so many CTAs;
    warps_per_row, lanes_per_row: that share a row of the wide operand; reads: 16-byte chunks of
    each row that a lane reads at once; 0: it prefetches (STAGED). whole: rows of the wide operand
    are whole chunks; direct: so are those of the narrow operand, and lanes read these into
    registers, without shared memory.
    """

    wide_a: bool
    narrow_rows: int
    rows_per_lane: int
    split: int = 1
    warps_per_row: int = 1
    lanes_per_row: int = 32
    reads: int = 0
    whole: bool = False
    direct: bool = False

    @property
    def rows(self) -> int:
        """Rows of one CTA."""
        return 256 // (self.lanes_per_row * self.warps_per_row) * self.rows_per_lane

    @property
    def piece(self) -> int:
        """Elements along k of the narrow operand in shared memory."""
        return min(4096 if self.warps_per_row == 1 else 8192, 8192 // self.narrow_rows // 256 * 256)


def at_once(
    wide_a: bool,
    narrow_rows: int,
    k: int,
    aligned: bool = False,
    size: int = 2,
    whole: bool = False,
    direct: bool = False,
) -> Iterator[GemvTile]:
    """Tiles that read all of k at once; where no tile does, those that read most of it. aligned:
    rows of the wide operand are aligned to 16 bytes; size: bytes of an element; whole, direct:
    whether tiles may have these properties.
    """
    chunk = 16 // size
    for lanes_per_row in (4, 8, 16, 32):
        reads = -(-(k + (0 if whole else chunk - 1)) // (chunk * lanes_per_row))
        if reads > _READS and lanes_per_row != 32:
            continue
        reads = min(reads, _READS)
        directly = direct and narrow_rows * reads <= _MOST_DIRECT
        for rows_per_lane in (1, 2, 4):
            if rows_per_lane * reads <= (
                2 if aligned else 1
            ) * _READS and rows_per_lane * narrow_rows <= min(lanes_per_row, _VALUES):
                yield GemvTile(
                    wide_a, narrow_rows, rows_per_lane, 1, 1, lanes_per_row, reads, whole, directly
                )


def staged(r: Request, wide_a: bool, narrow_rows: int, k: int) -> Iterator[GemvTile]:
    """Tiles that prefetch chunks of long rows."""
    for rows_per_lane, warps_per_row in ((1, 1), (2, 1), (4, 1), (1, 8)):
        for split in (1, 2, 4, 8, *((16,) if warps_per_row > 1 else ())):
            if split == 1 or (split <= r.caps.cluster and k >= 512 * split // r.dtype.size):
                yield GemvTile(wide_a, max(narrow_rows, 1), rows_per_lane, split, warps_per_row)


#: Of STAGED tiles, measured on an H200: clocks to start, of a wave of CTAs, of a warp's shared
#: memory access, of an FMA of four warps, of a sum over lanes; of a cluster's exchange: once, per
#: CTA of an SM, per further CTA of the cluster. Clocks per byte from memory.
_START, _WAVE, _SHARED, _FMA, _SUM = fitted("gemm.gemv", "start wave shared fma sum")
_EXCHANGE, _EXCHANGE_CTA, _EXCHANGE_PEER, _MEMORY = fitted(
    "gemm.gemv", "exchange exchange_cta exchange_peer memory"
)
#: Growth of the clocks to start with each further narrow row; the same where warps share a row,
#: and then clocks to fill shared memory: at least, and per term of the narrow operand.
_NARROW_ROW, _NARROW_ROW_SHARED, _FILLED, _FILLED_TERM = fitted(
    "gemm.gemv", "narrow_row narrow_row_shared filled filled_term"
)


def _staged_cost(t: GemvTile, rows: int, k: int, batch: int, sms: int) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.tile_cost`."""
    resident = -(-(-(-rows // t.rows) * t.split * batch) // sms)  # CTAs of one SM
    exchange = (
        _EXCHANGE + _EXCHANGE_CTA * resident + _EXCHANGE_PEER * (t.split - 1)
        if t.split > 1
        else 0.0
    )
    start = _START + _WAVE * -(-resident // 4) + exchange + _MEMORY * rows * k * 2 * batch
    start *= 1.0 + (_NARROW_ROW_SHARED if t.warps_per_row > 1 else _NARROW_ROW) * (
        t.narrow_rows - 1
    )
    reads = -(-k // (t.split * t.warps_per_row * 256))  # of a lane for one row
    filled = _FILLED + _FILLED_TERM * t.narrow_rows * k / t.split if t.warps_per_row > 1 else 0.0
    multiply = (
        reads * 8 * (t.narrow_rows * _SHARED + t.rows_per_lane * (t.narrow_rows + 1) * _FMA / 4)
    )
    return start + resident * 8 * (multiply + t.rows_per_lane * t.narrow_rows * _SUM + filled)


@dataclass(frozen=True)
class _Costs:
    """Clocks of tiles that read all of k at once, fitted to measurements on an H200.

    start: of the kernel; dependent: more where the wide operand is not constant, so that it is read
    after griddepcontrol.wait; cta: of one CTA; sum: of a value that lanes add up; iteration: of one
    more pass over k; memory: per byte. Per CTA of an SM: chunk: of a chunk of the wide operand;
    narrow: of a chunk of the narrow operand through shared memory; chunk_repeat: of each further
    chunk of a row of fewer than 8 lanes. Once: narrow_fixed and chunk_fixed. dependent_term: per
    element of the narrow operand, as `dependent`; unaligned: for rows of the wide operand that are
    not aligned to 16 bytes.
    """

    start: float
    dependent: float
    cta: float
    sum: float
    iteration: float
    memory: float
    chunk: float
    narrow: float
    narrow_fixed: float
    chunk_fixed: float = 0.0
    chunk_repeat: float = 0.0
    dependent_term: float = 0.0
    unaligned: float = 0.0


#: By whether rows of the wide operand are whole chunks.
_COSTS = tuple(_Costs(**costs) for costs in groups("gemm.gemv", "at_once at_once_whole"))


def _at_once_cost(
    t: GemvTile, rows: int, k: int, batch: int, sms: int, aligned: bool, early: bool
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with
    `multistage_tiles.unaligned_cost`. aligned: rows are aligned to 16 bytes; early: the operand is
    constant.
    """
    c, chunk = _COSTS[t.whole], 8
    resident = -(-(-(-rows // t.rows) * batch) // sms)  # CTAs of one SM
    span = t.lanes_per_row * t.reads * chunk - (0 if t.whole else chunk - 1)
    iterations, chunks = -(-k // span), t.reads * t.rows_per_lane
    multiply = 0 if t.direct else t.reads * t.narrow_rows
    chunk_repeat = (t.reads - 1) * c.chunk_repeat if t.lanes_per_row < 8 else 0.0
    start = c.start + (0.0 if early else c.dependent + c.dependent_term * t.narrow_rows * k)
    start += (0.0 if aligned else c.unaligned) + (iterations - 1) * c.iteration
    start += c.memory * 2 * batch * (rows * k + t.narrow_rows * k + rows * t.narrow_rows)
    each = chunks * (c.chunk + chunk_repeat) + multiply * c.narrow
    slots = 1 << (t.rows_per_lane * t.narrow_rows - 1).bit_length()
    return (
        start
        + iterations * (chunks * c.chunk_fixed + multiply * c.narrow_fixed + resident * each)
        + resident * (c.cta + c.sum * slots)
    )


def _tiles(
    r: Request, m: int, n: int, k: int, a: select.Access, b: select.Access, ahead: bool
) -> Iterator[tuple[GemvTile, bool, bool]]:
    """Tiles, those that prefetch (`ahead`) or those that read all of k at once, each with: whether
    rows of the wide operand are aligned to 16 bytes, whether it is constant.
    """
    size = r.dtype.size
    if not ahead and (r.arch < 90 or (size == 4 and k > _MOST_K)):
        return
    chunks = r.family in select.MATRICES and multiple_of(r.ints["K"]) * size >= 16
    for wide_a, how, other in ((True, a, b), (False, b, a)):
        narrow_rows = n if wide_a else m
        if narrow_rows > _MOST or how.trans or how.gather or (narrow_rows <= 0 and not ahead):
            continue
        aligned, direct = how.bytes == 16, other.bytes == 16 and not (other.trans or other.gather)
        whole, early = aligned and chunks, ("x" if wide_a else "w") in r.constant
        at_them = at_once(wide_a, narrow_rows, k, aligned, size, whole, whole and direct)
        for t in staged(r, wide_a, narrow_rows, k) if ahead else at_them:
            yield t, aligned, early


def works(r: Request, p: Problem, a: select.Access, b: select.Access) -> dict[GemvTile, Work]:
    """`Work` of each tile for an f32 GEMM. a, b: how the operands are read."""
    return {
        t: cost.gemv(t, p)
        for ahead in (True, False)
        for t, *_ in _tiles(r, p.m, p.n, p.k, a, b, ahead)
    }


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: select.Access, b: select.Access, ahead: bool
) -> dict[GemvTile, float]:
    """Clocks of the tiles for 16-bit types: of those that prefetch (`ahead`), or of those that read
    all of k at once. a, b: how the operands are read.
    """
    out: dict[GemvTile, float] = {}
    for t, aligned, early in _tiles(r, m, n, k, a, b, ahead):
        rows = m if t.wide_a else n
        if ahead:
            out[t] = _staged_cost(t, rows, k, batch, r.sms)
        else:
            out[t] = _at_once_cost(t, rows, k, batch, r.sms, aligned, early)
    return out


def emit(r: Request, tile: GemvTile, o: select.Operands) -> Kernel:
    """The kernel."""
    i = {name: v.value for _, name, v in o.params if isinstance(v, (Int32, Int64))}
    along, across = (i["b_k"], i["b_n"]) if tile.wide_a else (i["a_k"], i["a_m"])
    constants: dict[str, bool | int] = {
        name.upper(): getattr(tile, name)
        for name in (
            "wide_a",
            "narrow_rows",
            "rows_per_lane",
            "lanes_per_row",
            "warps_per_row",
            "piece",
            "reads",
            "whole",
            "direct",
        )
    }
    constants["EARLY"] = ("x" if tile.wide_a else "w") in r.constant and not o.batched
    constants["NARROW_MN_MAJOR"] = across == 1 and along != 1
    ctas = D.ceildiv(o.rows if tile.wide_a else o.columns, tile.rows)
    return instantiate(
        r,
        "gemv",
        "gemm/gemv",
        o.params,
        o.grid(D.mul(ctas, tile.split)),
        256,
        epilogue=epilogue.epilogue(r, o.pitches, 1, scaled=r.family == "matmul"),
        macros={"SPLIT": tile.split, "STAGED": not tile.reads, "BATCHED": o.batched},
        constants=constants,
        cluster=tile.split,
    )
