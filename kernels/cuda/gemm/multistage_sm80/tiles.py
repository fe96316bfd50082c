"""The tiles of `gemm.cuh`, and cost models of 16-bit types in clocks of an H200, each fitted to
measurements of one kind of GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from tracea_onnx.codegen.kernel_request import HOPPER_SHARED
from tracea_onnx.ir.abi import DType
from tracea_onnx.support.data_classes import dataclass

from ...common.launch import sms_of_clusters
from ...cost.fitted import fitted, groups, table


@dataclass(frozen=True)
class Tile:
    """bm, bn: rows and columns of a CTA; warps_m, warps_n: warps along both; stages of copies;
    split: split-K over so many CTAs; warps_k: split-K over warps within a stage (f32). terms: 3:
    3xTF32, 1: TF32 (rounded operands), 0: FFMA. wgmma: 3xTF32 by wgmma (Hopper), while threads
    split the operands of the next stage.
    """

    bm: int
    bn: int
    warps_m: int
    warps_n: int
    stages: int
    split: int = 1
    warps_k: int = 1
    terms: int = 0
    wgmma: bool = False

    @cached_property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @cached_property
    def smem(self) -> int:
        return (
            max(self.stages * (self.bm + self.bn) * 128, self.warps_k * self.bm * (self.bn + 8) * 4)
            + self.parts
        )

    @cached_property
    def parts(self) -> int:
        """Bytes of the remainders of B (3xTF32 by wgmma); the same again if B is transposed."""
        return 2 * self.bn * 128 if self.wgmma else 0


def _wgmma_tile(bm: int, bn: int, stages: int) -> Tile:
    return Tile(bm, bn, bm // 16, 1, stages, terms=3, wgmma=True)


_TILES = (
    Tile(128, 128, 2, 2, 3), Tile(64, 128, 2, 2, 3), Tile(128, 64, 2, 2, 3), Tile(64, 64, 2, 2, 4),
    Tile(32, 64, 1, 4, 4), Tile(16, 64, 1, 4, 6), Tile(16, 32, 1, 2, 8),
)  # fmt: skip
#: Further tiles where whole copies of fewer than 16 bytes take most of the time: more warps, or
#: more resident CTAs with fewer stages, hide more of their latency.
TILES_WHOLE = (
    Tile(128, 128, 4, 2, 3),
    Tile(64, 128, 2, 4, 3),
    Tile(64, 128, 2, 2, 2),
    Tile(128, 64, 4, 2, 3),
    Tile(64, 64, 2, 2, 3),
)
#: Thread tiles of 8 x 8 or 8 x 16 where possible; small tiles have warps along k.
_TILES_F32 = (
    Tile(128, 128, 4, 1, 3), Tile(128, 64, 4, 1, 3, warps_k=2), Tile(64, 64, 2, 2, 3),
    Tile(64, 64, 2, 1, 3, warps_k=4), Tile(32, 64, 1, 1, 3, warps_k=8),
    Tile(32, 32, 1, 1, 4, warps_k=4), Tile(16, 32, 1, 1, 4, warps_k=4),
)  # fmt: skip
#: Tiles of f32 on tensor cores, by mma.sync and by wgmma.
_TENSOR = (
    Tile(128, 128, 2, 4, 3, terms=3), Tile(128, 64, 2, 2, 3, terms=3),
    Tile(64, 64, 2, 2, 3, terms=3), Tile(64, 64, 2, 1, 3, warps_k=2, terms=3),
    Tile(128, 128, 2, 4, 3, terms=1), Tile(64, 64, 2, 2, 4, terms=1),
)  # fmt: skip
_WGMMA = (
    _wgmma_tile(64, 32, 4), _wgmma_tile(64, 64, 3), _wgmma_tile(128, 32, 3),
    _wgmma_tile(128, 64, 3), _wgmma_tile(128, 128, 4),
)  # fmt: skip
#: Architectures on which TF32 is at most twice as fast as FFMA, so that 3xTF32 is slower.
SLOW_TF32 = (86, 89)
#: Clocks to copy 32 of a row's 64 16-bit elements by bytes of a copy; the same for whole copies.
_COPIES: Mapping[int, float] = table("gemm.multistage_sm80.tiles", "copies")
_WHOLE: Mapping[int, float] = table("gemm.multistage_sm80.tiles", "whole_copies")
#: Columns of the widest FFMA tile that reads a transposed B four elements at a time.
MOST_LINES = 64
#: Bytes per clock from L2 to one SM, flops per clock and SM (mma.sync), clocks to fill the
#: pipeline, of a stage's copies, of the split-K exchange.
_L2_BYTES, _FLOPS, _LATENCY, _STEP_LATENCY, _EXCHANGE = fitted(
    "gemm.multistage_sm80.tiles", "l2_bytes flops latency step_latency exchange"
)
#: Shares of these flops that tiles reach, by their results: of at least 16384, 8192, 4096, of
#: fewer; clocks of a result.
_SHARES: list[float] = groups("gemm.multistage_sm80.tiles", "shares")[0]
(_RESULT,) = fitted("gemm.multistage_sm80.tiles", "result")
#: `window_cost`: clocks to start; of a copy by a thread, and more with each resident CTA; of a step
#: per result; at the end of a tile, and per result of it: once, with each resident CTA, the same of
#: transposed convolutions; of the split-K exchange.
_WINDOW_START, _WINDOW_COPY, _WINDOW_COPY_RESIDENT, _WINDOW_RESULT_STEP = fitted(
    "gemm.multistage_sm80.tiles", "window_start window_copy window_copy_resident window_result_step"
)
_WINDOW_END, _WINDOW_RESULT, _WINDOW_RESULT_RESIDENT, _WINDOW_RESULT_TRANSPOSED = fitted(
    "gemm.multistage_sm80.tiles",
    "window_end window_result window_result_resident window_result_transposed",
)
(_WINDOW_EXCHANGE,) = fitted("gemm.multistage_sm80.tiles", "window_exchange")
#: `unaligned_cost`: clocks to start; of the split-K exchange; of a byte from memory; of a step per
#: result and per copy of two bytes; of the latency of copies, and of copies of two bytes; at the
#: end of a tile per result of an SM and per result of a thread; factor of the latency with two
#: warps.
_ODD_START, _ODD_EXCHANGE, _ODD_BYTE, _ODD_RESULT_STEP, _ODD_SLOW_COPY = fitted(
    "gemm.multistage_sm80.tiles", "odd_start odd_exchange odd_byte odd_result_step odd_slow_copy"
)
_ODD_LATENCY, _ODD_SLOW_LATENCY, _ODD_RESULT, _ODD_THREAD_RESULT, _FEW_WARPS = fitted(
    "gemm.multistage_sm80.tiles",
    "odd_latency odd_slow_latency odd_result odd_thread_result few_warps",
)
#: The same with whole copies of 4 bytes or more; the part of the latency that stages do not hide.
_WHOLE_START, _WHOLE_BYTE, _WHOLE_RESULT_STEP, _WHOLE_LATENCY, _WHOLE_LATENCY_LEAST = fitted(
    "gemm.multistage_sm80.tiles",
    "whole_start whole_byte whole_result_step whole_latency whole_latency_least",
)
_WHOLE_RESULT, _WHOLE_THREAD_RESULT = fitted(
    "gemm.multistage_sm80.tiles", "whole_result whole_thread_result"
)
#: Stores of rows that are not aligned to 16 bytes: clocks of a CTA and of a pass of all its
#: threads, element by element; the same of words.
_STORE, _STORE_PASS, _STORE_WORDS, _STORE_WORDS_PASS = fitted(
    "gemm.multistage_sm80.tiles", "store store_pass store_words store_words_pass"
)


def tiles(dtype: DType, tf32: bool = False, arch: int = 80) -> tuple[Tile, ...]:
    """Tiles of a type. tf32: also those that round f32 elements to TF32."""
    if dtype != DType.F32:
        return _TILES
    return (
        *_TILES_F32,
        *(t for t in _TENSOR if tf32 or t.terms == 3),
        *(_WGMMA if arch == 90 else ()),
    )


def _registers(t: Tile, f32: bool) -> int:
    """Registers of a thread: accumulators and prefetched operands."""
    if not f32:
        return 200 if t.bm * t.bn > 8192 else 110
    return (
        min(48 + 2 * t.bm, 255) if not t.terms else 64 + 2 * t.bm * t.bn // (t.threads // t.warps_k)
    )


def resident_ctas(t: Tile, f32: bool = True, transposed: bool = False) -> int:
    """Resident CTAs per SM. transposed: whether B is contiguous along its rows."""
    if t.wgmma:
        registers = 255 if t.bn == 128 else 168 if t.threads == 128 else 128
        return min(
            HOPPER_SHARED // (t.smem + transposed * t.parts + 1024),
            65536 // (t.threads * registers),
        )
    return max(
        1, min(200 * 1024 // t.smem, 1536 // t.threads, 65536 // (t.threads * _registers(t, f32)))
    )


def tile_cost(t: Tile, m: int, n: int, steps: int, batch: int, sms: int) -> float:
    """Clocks of `batch` aligned 16-bit GEMMs of m x n results over `steps` stages of k: full waves,
    each bound by arithmetic, L2 or the latency of copies.
    """
    ctas = -(-m // t.bm) * -(-n // t.bn) * t.split * batch
    resident = max(1, min(resident_ctas(t, f32=False), -(-ctas // sms)))
    waves = -(-ctas // (sms * resident))
    flops = 2.0 * t.bm * t.bn * 64
    share = _SHARES[sum(t.bm * t.bn < results for results in (16384, 8192, 4096))]
    step = max(
        resident * flops / (_FLOPS * share),
        resident * (t.bm + t.bn) * 128 / _L2_BYTES,
        _STEP_LATENCY / (t.stages - 1),
    )
    return (
        waves * (-(-steps // t.split) * step + _LATENCY)
        + (_EXCHANGE if t.split > 1 else 0.0)
        + _RESULT * t.bm * t.bn
    )


def window_cost(
    t: Tile, m: int, n: int, steps: int, batch: int, sms: int, transposed: bool
) -> float:
    """`tile_cost` of implicit GEMM, fitted to convolutions of few channels on an H200, where the
    addresses of pixels take most of the time. transposed: a transposed convolution.
    """
    ctas = -(-m // t.bm) * -(-n // t.bn) * t.split * batch
    resident = max(1, min(resident_ctas(t, f32=False), -(-ctas // sms)))
    copies = (t.bm + t.bn) * 8 / t.threads
    step = copies * (_WINDOW_COPY + _WINDOW_COPY_RESIDENT * resident)
    step += _WINDOW_RESULT_STEP * resident * t.bm * t.bn
    each = _WINDOW_RESULT_TRANSPOSED if transposed else _WINDOW_RESULT_RESIDENT
    ends = _WINDOW_END + t.bm * t.bn * (_WINDOW_RESULT + resident * each)
    return (
        _WINDOW_START
        + -(-ctas // (sms * resident)) * (ends + -(-steps // t.split) * step)
        + (_WINDOW_EXCHANGE if t.split > 1 else 0.0)
    )


@dataclass(frozen=True)
class Alignment:
    """Alignment of a 16-bit GEMM. a, b: bytes of a copy of A and of B; y: whether rows of y are
    aligned to 16 bytes; whole: whether each copy is entirely inside or outside of its operand;
    each: elements of a store: rows of y begin and end at multiples of so many (8, 4, 2, 1).
    """

    a: int
    b: int
    y: bool
    whole: bool = False
    each: int = 1


def unaligned_cost(
    t: Tile, m: int, n: int, k: int, batch: int, sms: int, alignment: Alignment
) -> float:
    """`tile_cost` of unaligned operands, fitted on an H200. Copies of two bytes are staged through
    registers.
    """
    steps = -(-k // (64 * t.split))
    ctas, slots = -(-m // t.bm) * -(-n // t.bn) * t.split * batch, sms_of_clusters(sms, t.split)
    resident = resident_ctas(t, f32=False)
    # CTAs per SM: in small grids they are unevenly distributed, because CTAs of the kernel before
    # still occupy some SMs.
    per_sm = (
        -(-2 * ctas // slots) - ctas // slots if 2 * ctas <= slots * resident else -(-ctas // slots)
    )
    waves = -(-per_sm // resident)
    memory = batch * (m * k + n * k + m * n) * 2
    results = per_sm * t.bm * min(t.bn, n)
    if alignment.whole and min(alignment.a, alignment.b) > 2:
        return _whole_cost(t, m, n, k, batch, sms, alignment)
    slow = [
        rows * 8 // t.threads
        for rows, size in ((t.bm, alignment.a), (t.bn, alignment.b))
        if size == 2
    ]
    copied = sum(
        rows * (_WHOLE if alignment.whole else _COPIES)[size]
        for rows, size in ((t.bm, alignment.a), (t.bn, alignment.b))
        if size > 2
    )
    passes = 1 if sum(slow) <= 8 else sum(-(-count // 4) for count in slow)
    # two warps hide less of the latency
    latency = (_ODD_SLOW_LATENCY * passes if slow else _ODD_LATENCY / (t.stages - 1)) * (
        _FEW_WARPS if t.threads < 128 else 1.0
    )
    step = (
        per_sm * (_ODD_RESULT_STEP * t.bm * t.bn + copied + _ODD_SLOW_COPY * t.threads * sum(slow))
        + waves * latency
    )
    ends = _ODD_RESULT * results + waves * _ODD_THREAD_RESULT * t.bm * t.bn / t.threads
    return (
        _ODD_START
        + steps * step
        + (_ODD_EXCHANGE if t.split > 1 else 0.0)
        + _ODD_BYTE * memory
        + ends
        + waves * _unaligned_stores(t, m, n, alignment)
    )


def _whole_cost(
    t: Tile, m: int, n: int, k: int, batch: int, sms: int, alignment: Alignment
) -> float:
    """`unaligned_cost` with whole copies of 4, 8 or 16 bytes."""
    steps, ctas, slots = (
        -(-k // (64 * t.split)),
        -(-m // t.bm) * -(-n // t.bn) * t.split * batch,
        sms_of_clusters(sms, t.split),
    )
    sums = t.bm * t.bn / t.threads
    resident = (
        2
        if sums == 64 and t.threads == 256
        else max(
            1,
            min(
                HOPPER_SHARED // (t.smem + 1024),
                2048 // t.threads,
                int(65536 / (t.threads * (50 + 1.5 * sums))),
            ),
        )
    )
    per_sm = (
        -(-2 * ctas // slots) - ctas // slots if 2 * ctas <= slots * resident else -(-ctas // slots)
    )
    waves = -(-per_sm // resident)
    latency = (_WHOLE_LATENCY / (t.stages - 1) + _WHOLE_LATENCY_LEAST) * (
        _FEW_WARPS if t.threads < 128 else 1.0
    )
    step = (
        per_sm
        * (
            _WHOLE_RESULT_STEP * t.bm * t.bn
            + t.bm * _WHOLE[alignment.a]
            + t.bn * _WHOLE[alignment.b]
        )
        + waves * latency
    )
    ends = _WHOLE_RESULT * per_sm * t.bm * min(t.bn, n) + waves * _WHOLE_THREAD_RESULT * sums
    return (
        _WHOLE_START
        + steps * step
        + (_ODD_EXCHANGE if t.split > 1 else 0.0)
        + _WHOLE_BYTE * batch * (m * k + n * k + m * n) * 2
        + ends
        + waves * _unaligned_stores(t, m, n, alignment)
    )


def _unaligned_stores(t: Tile, m: int, n: int, alignment: Alignment) -> float:
    """Further clocks of a CTA to store rows of y that are not aligned to 16 bytes."""
    columns, words = min(n, t.bn), max(alignment.each, 2)
    lanes_per_row = 8 if columns <= 8 * words else 16 if columns <= 16 * words else 32
    passes = min(t.bm, m) * lanes_per_row / t.threads
    return (
        0.0
        if alignment.y
        else _STORE + _STORE_PASS * passes
        if alignment.each == 1
        else _STORE_WORDS + _STORE_WORDS_PASS * passes * max(1.0, columns / words / 32)
    )
