"""The tiles of `gemm.cuh`, and what each takes: clocks of an H200, fitted to measurements of one
kind of product or another.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.ir.abi import DType

from ...common.launch import clustered


@dataclass(frozen=True)
class Tile:
    """Rows and columns of one block, its warps along both, copy stages, and how many blocks share
    one tile's k. warps_k: warps that share the k of a stage (f32). terms: products that tensor
    cores make of one of f32 (3, or 1 of rounded operands); 0: none, FFMA does it. grouped:
    warpgroups make them (Hopper), while threads split the next stage."""

    bm: int
    bn: int
    warps_m: int
    warps_n: int
    stages: int
    split: int = 1
    warps_k: int = 1
    terms: int = 0
    grouped: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def smem(self) -> int:
        return (
            max(self.stages * (self.bm + self.bn) * 128, self.warps_k * self.bm * (self.bn + 8) * 4)
            + self.parts
        )

    @property
    def parts(self) -> int:
        """Bytes of what is split of b, which take as much again where b is turned."""
        return 2 * self.bn * 128 if self.grouped else 0


def _grouped(bm: int, bn: int, stages: int) -> Tile:
    return Tile(bm, bn, bm // 16, 1, stages, terms=3, grouped=True)


_TILES = (
    Tile(128, 128, 2, 2, 3), Tile(64, 128, 2, 2, 3), Tile(128, 64, 2, 2, 3), Tile(64, 64, 2, 2, 4), Tile(32, 64, 1, 4, 4), Tile(16, 64, 1, 4, 6),
    Tile(16, 32, 1, 2, 8),
)  # fmt: skip
#: Beside these, where whole copies of less than 16 bytes take most of the time: more warps, or more
#: blocks of fewer stages, hide more of it.
TILES_WHOLE = (
    Tile(128, 128, 4, 2, 3),
    Tile(64, 128, 2, 4, 3),
    Tile(64, 128, 2, 2, 2),
    Tile(128, 64, 4, 2, 3),
    Tile(64, 64, 2, 2, 3),
)
#: A thread has 8 rows and 8 or 16 columns where it can; small tiles get their warps along k.
_TILES_F32 = (
    Tile(128, 128, 4, 1, 3), Tile(128, 64, 4, 1, 3, warps_k=2), Tile(64, 64, 2, 2, 3), Tile(64, 64, 2, 1, 3, warps_k=4), Tile(32, 64, 1, 1, 3, warps_k=8),
    Tile(32, 32, 1, 1, 4, warps_k=4), Tile(16, 32, 1, 1, 4, warps_k=4),
)  # fmt: skip
#: Tiles of f32 on tensor cores, by mma.sync and by wgmma.
_TENSOR = (
    Tile(128, 128, 2, 4, 3, terms=3), Tile(128, 64, 2, 2, 3, terms=3), Tile(64, 64, 2, 2, 3, terms=3),
    Tile(64, 64, 2, 1, 3, warps_k=2, terms=3), Tile(128, 128, 2, 4, 3, terms=1), Tile(64, 64, 2, 2, 4, terms=1),
)  # fmt: skip
_GROUPED = (
    _grouped(64, 32, 4), _grouped(64, 64, 3), _grouped(128, 32, 3), _grouped(128, 64, 3),
    _grouped(128, 128, 4),
)  # fmt: skip
#: GPUs whose tensor cores are at most twice as fast with TF32 as FFMA is: three products of it are
#: slower.
FEW_TENSOR = (86, 89)
#: Clocks of the copies of 32 of a row's 64 elements of two bytes, by the bytes of each; where each
#: has all of its elements or none.
_COPIES, _WHOLE = {4: 5.6, 8: 3.0, 16: 1.3}, {4: 3.6, 8: 1.7, 16: 1.4}
#: Columns of the widest f32 tile that reads neighbouring ones of b together.
MOST_LINES = 64
#: Bytes one multiprocessor reads from L2 per clock, flops it does per clock (mma.sync), clocks
#: before the first step's data and after the last.
_L2_BYTES, _FLOPS, _LATENCY, _STEP_LATENCY, _EXCHANGE = 30.0, 1900.0, 2500.0, 700.0, 1500.0


def tiles(dtype: DType, tf32: bool = False, arch: int = 80) -> tuple[Tile, ...]:
    """tf32: also those that round elements of f32."""
    if dtype != DType.F32:
        return _TILES
    return (
        *_TILES_F32,
        *(t for t in _TENSOR if tf32 or t.terms == 3),
        *(_GROUPED if arch == 90 else ()),
    )


def _registers(t: Tile, f32: bool) -> int:
    """Of a thread, so many that what it reads ahead and its sums fit."""
    if not f32:
        return 200 if t.bm * t.bn > 8192 else 110
    return (
        min(48 + 2 * t.bm, 255) if not t.terms else 64 + 2 * t.bm * t.bn // (t.threads // t.warps_k)
    )


def held(t: Tile, f32: bool = True, turned: bool = False) -> int:
    """Blocks that a multiprocessor holds. turned: whether neighbours are rows of b."""
    if t.grouped:
        registers = 255 if t.bn == 128 else 168 if t.threads == 128 else 128
        return min(
            227 * 1024 // (t.smem + turned * t.parts + 1024), 65536 // (t.threads * registers)
        )
    return max(
        1, min(200 * 1024 // t.smem, 1536 // t.threads, 65536 // (t.threads * _registers(t, f32)))
    )


def tile_cost(t: Tile, m: int, n: int, steps: int, batch: int, sms: int) -> float:
    """Clocks for the product of m x n of two-byte elements with `steps` stages of k: full waves
    over the chip, each bound by arithmetic, L2 or copy latency.
    """
    blocks = -(-m // t.bm) * -(-n // t.bn) * t.split * batch
    resident = max(1, min(held(t, f32=False), -(-blocks // sms)))
    waves = -(-blocks // (sms * resident))
    flops = 2.0 * t.bm * t.bn * 64
    efficiency = (
        1.0
        if t.bm * t.bn >= 16384
        else 0.8
        if t.bm * t.bn >= 8192
        else 0.65
        if t.bm * t.bn >= 4096
        else 0.5
    )
    step = max(
        resident * flops / (_FLOPS * efficiency),
        resident * (t.bm + t.bn) * 128 / _L2_BYTES,
        _STEP_LATENCY / (t.stages - 1),
    )
    return (
        waves * (-(-steps // t.split) * step + _LATENCY)
        + (_EXCHANGE if t.split > 1 else 0.0)
        + 0.01 * t.bm * t.bn
    )


def window_cost(
    t: Tile, m: int, n: int, steps: int, batch: int, sms: int, transposed: bool
) -> float:
    """As `tile_cost`, of windows of an image, fitted to those of few channels on an H200: their
    addresses, and where results of phases lie, take most of the time.
    """
    blocks = -(-m // t.bm) * -(-n // t.bn) * t.split * batch
    resident = max(1, min(held(t, f32=False), -(-blocks // sms)))
    copies = (t.bm + t.bn) * 8 / t.threads
    step = copies * (79.0 + 64.0 * resident) + 0.0173 * resident * t.bm * t.bn
    ends = 1430.0 + t.bm * t.bn * (0.31 + resident * (0.24 if transposed else 0.042))
    return (
        170.0
        + -(-blocks // (sms * resident)) * (ends + -(-steps // t.split) * step)
        + (2190.0 if t.split > 1 else 0.0)
    )


@dataclass(frozen=True)
class Odd:
    """What makes a product cost more than its arithmetic. a, b: bytes of the copies of either
    operand; y: whether rows of y begin at multiples of 16 bytes; whole: whether each copy has all
    of its elements or none; each: elements of two bytes that a store has where rows of y
    begin and end at multiples of so many (8, 4, 2, 1)."""

    a: int
    b: int
    y: bool
    whole: bool = False
    each: int = 1


def odd_cost(t: Tile, m: int, n: int, k: int, batch: int, sms: int, odd: Odd) -> float:
    """As `tile_cost`, fitted to products of rows that begin anywhere on an H200; copies of two
    bytes go through registers.
    """
    steps = -(-k // (64 * t.split))
    blocks, chip = -(-m // t.bm) * -(-n // t.bn) * t.split * batch, clustered(sms, t.split)
    resident = held(t, f32=False)
    # Blocks of one multiprocessor: where they come while those of the kernel before are there,
    # these make them lie unevenly.
    here = (
        -(-2 * blocks // chip) - blocks // chip
        if 2 * blocks <= chip * resident
        else -(-blocks // chip)
    )
    waves = -(-here // resident)
    memory = batch * (m * k + n * k + m * n) * 2
    results = here * t.bm * min(t.bn, n)
    if odd.whole and min(odd.a, odd.b) > 2:
        return _whole_cost(t, m, n, k, batch, sms, odd)
    slow = [rows * 8 // t.threads for rows, size in ((t.bm, odd.a), (t.bn, odd.b)) if size == 2]
    wide = sum(
        rows * (_WHOLE if odd.whole else _COPIES)[size]
        for rows, size in ((t.bm, odd.a), (t.bn, odd.b))
        if size > 2
    )
    turns = 1 if sum(slow) <= 8 else sum(-(-count // 4) for count in slow)
    # two warps hide less of it
    latency = (649.0 * turns if slow else 456.0 / (t.stages - 1)) * (
        2.0 if t.threads < 128 else 1.0
    )
    step = here * (0.042 * t.bm * t.bn + wide + 1.14 * t.threads * sum(slow)) + waves * latency
    ends = 0.08 * results + waves * 6.4 * t.bm * t.bn / t.threads
    return (
        2500.0
        + steps * step
        + (1820.0 if t.split > 1 else 0.0)
        + 3.5e-4 * memory
        + ends
        + waves * _anywhere(t, m, n, odd)
    )


def _whole_cost(t: Tile, m: int, n: int, k: int, batch: int, sms: int, odd: Odd) -> float:
    """As `odd_cost`, of products of two-byte elements that are copied in whole pieces of 4, 8 or 16
    bytes.
    """
    steps, blocks, chip = (
        -(-k // (64 * t.split)),
        -(-m // t.bm) * -(-n // t.bn) * t.split * batch,
        clustered(sms, t.split),
    )
    sums = t.bm * t.bn / t.threads
    resident = (
        2
        if sums == 64 and t.threads == 256
        else max(
            1,
            min(
                227 * 1024 // (t.smem + 1024),
                2048 // t.threads,
                int(65536 / (t.threads * (50 + 1.5 * sums))),
            ),
        )
    )
    here = (
        -(-2 * blocks // chip) - blocks // chip
        if 2 * blocks <= chip * resident
        else -(-blocks // chip)
    )
    waves = -(-here // resident)
    latency = (473.0 / (t.stages - 1) + 108.0) * (2.0 if t.threads < 128 else 1.0)
    step = (
        here * (0.0286 * t.bm * t.bn + t.bm * _WHOLE[odd.a] + t.bn * _WHOLE[odd.b])
        + waves * latency
    )
    ends = 0.064 * here * t.bm * min(t.bn, n) + waves * 13.2 * sums
    return (
        2510.0
        + steps * step
        + (1820.0 if t.split > 1 else 0.0)
        + 3.4e-4 * batch * (m * k + n * k + m * n) * 2
        + ends
        + waves * _anywhere(t, m, n, odd)
    )


def _anywhere(t: Tile, m: int, n: int, odd: Odd) -> float:
    """Clocks that a block takes more to store rows of y that do not begin at multiples of 16 bytes."""
    columns, words = min(n, t.bn), max(odd.each, 2)
    lanes = 8 if columns <= 8 * words else 16 if columns <= 16 * words else 32  # of a row of y
    turns = min(t.bm, m) * lanes / t.threads
    return (
        0.0
        if odd.y
        else 323.0 + 153.0 * turns
        if odd.each == 1
        else 443.0 + 7.2 * turns * max(1.0, columns / words / 32)
    )
