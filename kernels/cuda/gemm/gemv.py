"""GEMV and skinny GEMM (`gemv.cuh`): configurations, their costs, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import Int32, Int64, Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of

from ..common import epilogue
from ..common.instantiate import instantiate
from ..cost import gemm as cost
from ..cost.gemm import Problem
from ..cost.model import Work
from . import select

_MOST = 8  # rows of the narrow operand
_READS, _VALUES = 4, 16  # most of a lane that reads all of its k at once
_NEAR = 8  # chunks of the narrow operand that such a lane may read itself
_TERMS = 2048  # most k of f32 for which `_at_once_cost` holds


@dataclass(frozen=True)
class GemvTile:
    """wide_a: A is the operand with many rows, else B. few: most rows of the narrow one; deep: rows
    of a lane; split: CTAs of a cluster that divide k; share: warps that have a row together; lanes:
    of a warp that do; reads: chunks of 16 bytes that a lane reads of each of its rows at once, 0
    where it reads ahead (STAGED). whole: rows of the wide operand are whole chunks; near: those of
    the narrow one, too, and lanes read them where they multiply."""

    wide_a: bool
    few: int
    deep: int
    split: int = 1
    share: int = 1
    lanes: int = 32
    reads: int = 0
    whole: bool = False
    near: bool = False

    @property
    def rows(self) -> int:
        """Rows of one CTA."""
        return 256 // (self.lanes * self.share) * self.deep

    @property
    def piece(self) -> int:
        """Elements along k of the narrow operand in shared memory."""
        return min(4096 if self.share == 1 else 8192, 8192 // self.few // 256 * 256)


def at_once(
    wide_a: bool, few: int, k: int, aligned: bool = False, size: int = 2, whole: bool = False, near: bool = False,
) -> Iterator[GemvTile]:  # fmt: skip
    """Tiles that read all of k at once, and where none does, those that read most. aligned: rows
    begin at multiples of 16 bytes; size: bytes of an element; whole, near: what tiles may know."""
    chunk = 16 // size
    for lanes in (4, 8, 16, 32):
        reads = -(-(k + (0 if whole else chunk - 1)) // (chunk * lanes))
        if reads > _READS and lanes != 32:
            continue
        reads = min(reads, _READS)
        here = near and few * reads <= _NEAR
        for deep in (1, 2, 4):
            if deep * reads <= (2 if aligned else 1) * _READS and deep * few <= min(lanes, _VALUES):
                yield GemvTile(wide_a, few, deep, 1, 1, lanes, reads, whole, here)


def staged(r: Request, wide_a: bool, few: int, k: int) -> Iterator[GemvTile]:
    """Tiles that read ahead."""
    for deep, share in ((1, 1), (2, 1), (4, 1), (1, 8)):
        for split in (1, 2, 4, 8, *((16,) if share > 1 else ())):
            if split == 1 or (split <= r.caps.cluster and k >= 512 * split // r.dtype.size):
                yield GemvTile(wide_a, max(few, 1), deep, split, share)


#: Costs of STAGED tiles, measured on an H200: clocks to start and for a wave of CTAs, of a warp's
#: access to shared memory, of four warps' FMA, of a sum over lanes, and of clusters: each, for each
#: CTA of an SM and each further peer. Clocks per byte from memory.
_START, _WAVE, _SHARED, _FMA, _SUM = 900.0, 1850.0, 3.8, 2.9, 0.8
_EXCHANGE, _BLOCK, _PEER, _MEMORY = 1000.0, 530.0, 150.0, 3.3e-4
# more clocks to start for each further narrow row, and where warps share a row: so many times
_FEW, _SHARED_FEW = 0.08, 0.2


def _staged_cost(t: GemvTile, rows: int, k: int, batch: int, sms: int) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.tile_cost`."""
    here = -(-(-(-rows // t.rows) * t.split * batch) // sms)  # CTAs of one SM
    exchange = _EXCHANGE + _BLOCK * here + _PEER * (t.split - 1) if t.split > 1 else 0.0
    start = _START + _WAVE * -(-here // 4) + exchange + _MEMORY * rows * k * 2 * batch
    start *= 1.0 + (_SHARED_FEW if t.share > 1 else _FEW) * (t.few - 1)
    reads = -(-k // (t.split * t.share * 256))  # of a lane for one row
    filled = 10 + 0.04 * t.few * k / t.split if t.share > 1 else 0.0
    products = reads * 8 * (t.few * _SHARED + t.deep * (t.few + 1) * _FMA / 4)
    return start + here * 8 * (products + t.deep * t.few * _SUM + filled)


@dataclass(frozen=True)
class _Costs:
    """Of tiles that read all of k at once, fitted to measurements on an H200. Clocks to start, more
    where the wide operand is not read before the kernel's turn, then also for each term of the
    narrow rows, and where its rows begin anywhere; of a CTA; of a lane's sums; until the next reads
    come; a byte. Of a chunk beside other CTAs, alone, and for each other one of its row where few
    lanes have that; of what a narrow chunk takes by way of shared memory, beside other CTAs and
    alone."""

    start: float
    late: float
    block: float
    sum: float
    turn: float
    memory: float
    chunk: float
    beside: float
    alone: float
    read: float = 0.0
    again: float = 0.0
    term: float = 0.0
    anywhere: float = 0.0


#: By whether rows of the wide operand are whole chunks.
_COSTS = {
    False: _Costs(
        1880.0, 244.0, 270.0, 49.0, 1500.0, 2.5e-4, 161.0, 76.0, 7.0, term=0.5, anywhere=303.0
    ),
    True: _Costs(
        1650.0, 305.0, 73.5, 65.7, 1500.0, 4.96e-4, 21.4, 20.8, 62.1, read=47.2, again=22.8
    ),
}


def _at_once_cost(
    t: GemvTile, rows: int, k: int, batch: int, sms: int, aligned: bool, early: bool
) -> float:
    """Clocks for `rows` rows of the wide operand, comparable with `multistage_tiles.odd_cost`.
    aligned: they begin at multiples of 16 bytes; early: they are constant."""
    c, chunk = _COSTS[t.whole], 8
    here = -(-(-(-rows // t.rows) * batch) // sms)  # CTAs of one SM
    span = t.lanes * t.reads * chunk - (0 if t.whole else chunk - 1)
    turns, chunks = -(-k // span), t.reads * t.deep
    products = 0 if t.near else t.reads * t.few
    again = (t.reads - 1) * c.again if t.lanes < 8 else 0.0
    start = c.start + (0.0 if early else c.late + c.term * t.few * k)
    start += (0.0 if aligned else c.anywhere) + (turns - 1) * c.turn
    start += c.memory * 2 * batch * (rows * k + t.few * k + rows * t.few)
    each = chunks * (c.chunk + again) + products * c.beside
    slots = 1 << (t.deep * t.few - 1).bit_length()
    return (
        start
        + turns * (chunks * c.read + products * c.alone + here * each)
        + here * (c.block + c.sum * slots)
    )


def _tiles(
    r: Request, m: int, n: int, k: int, a: select.Access, b: select.Access, ahead: bool
) -> Iterator[tuple[GemvTile, bool, bool]]:
    """Those that read ahead, or that read all of k at once; whether rows of the wide operand begin
    at multiples of 16 bytes, and are constant."""
    size = r.dtype.size
    if not ahead and (r.arch < 90 or (size == 4 and k > _TERMS)):
        return
    chunks = r.family in select.MATRICES and multiple_of(r.ints["K"]) * size >= 16
    for wide_a, how, other in ((True, a, b), (False, b, a)):
        few = n if wide_a else m
        if few > _MOST or how.trans or how.gather or (few <= 0 and not ahead):
            continue
        aligned, near = how.bytes == 16, other.bytes == 16 and not (other.trans or other.gather)
        whole, early = aligned and chunks, ("x" if wide_a else "w") in r.constant
        at_them = at_once(wide_a, few, k, aligned, size, whole, whole and near)
        for t in staged(r, wide_a, few, k) if ahead else at_them:
            yield t, aligned, early


def works(r: Request, p: Problem, a: select.Access, b: select.Access) -> dict[GemvTile, Work]:
    """What each tile does for a product of f32. a, b: how the operands are read."""
    return {
        t: cost.gemv(t, p)
        for ahead in (True, False)
        for t, *_ in _tiles(r, p.m, p.n, p.k, a, b, ahead)
    }


def prices(
    r: Request, m: int, n: int, k: int, batch: int, a: select.Access, b: select.Access, ahead: bool
) -> dict[GemvTile, float]:
    """Clocks of the tiles for these sizes of 16-bit types, of those that read ahead or of those
    that read all of k at once. a, b: how the operands are read."""
    out: dict[GemvTile, float] = {}
    for t, aligned, early in _tiles(r, m, n, k, a, b, ahead):
        rows = m if t.wide_a else n
        if ahead:
            out[t] = _staged_cost(t, rows, k, batch, r.sms)
        else:
            out[t] = _at_once_cost(t, rows, k, batch, r.sms, aligned, early)
    return out


def product(r: Request, tile: GemvTile, o: select.Operands) -> Kernel:
    """The kernel."""
    i = {name: v.value for _, name, v in o.params if isinstance(v, (Int32, Int64))}
    along, across = (i["b_k"], i["b_n"]) if tile.wide_a else (i["a_k"], i["a_m"])
    constants: dict[str, bool | int] = {
        name.upper(): getattr(tile, name)
        for name in ("wide_a", "few", "deep", "lanes", "share", "piece", "reads", "whole", "near")
    }
    constants["EARLY"] = ("x" if tile.wide_a else "w") in r.constant and not o.batched
    constants["ACROSS"] = across == 1 and along != 1
    blocks = D.ceildiv(o.rows if tile.wide_a else o.columns, tile.rows)
    return instantiate(
        r,
        "gemv",
        "gemm/gemv",
        o.params,
        o.grid(D.mul(blocks, tile.split)),
        256,
        epilogue=epilogue.epilogue(r, o.pitches, 1, scaled=r.family == "matmul"),
        macros={"SPLIT": tile.split, "STAGED": not tile.reads, "BATCHED": o.batched},
        constants=constants,
        cluster=tile.split,
    )
