"""`model.Work` of the f32 GEMM kernels for each of their tiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from tracea_onnx.runtime.device_caps import DeviceCaps
from tracea_onnx.support.data_classes import dataclass

from .model import PEAK, Work, peak, slots

#: Milliseconds that one more launch adds to a stream of launches.
_NEXT_LAUNCH = 2.3e-3


@dataclass(frozen=True)
class Problem:
    """`batch` GEMMs y[m, n] = A[m, k] B[n, k]^T. dram: least bytes read and written. kind: "" or
    "_conv" (implicit GEMM: rows of A are windows of an image). expensive_epilogue: as in
    `epilogue.expensive`; residual: whether the epilogue reads one. Of (A, B): a, b: bytes of one
    copy; transposed: contiguous along rows, not along k; gathered: read element by element. y:
    whether rows of y are aligned to 16 bytes.
    """

    caps: DeviceCaps
    m: int
    n: int
    k: int
    batch: int
    dram: float
    kind: str
    expensive_epilogue: bool
    residual: bool
    a: int
    b: int
    transposed: tuple[bool, bool]
    gathered: tuple[bool, bool]
    y: bool

    @cached_property
    def peak(self) -> Mapping[str, float]:
        """Flops a clock of one SM by arithmetic unit."""
        return _peaks(self.caps.arch)

    @cached_property
    def slots(self) -> Mapping[int, int]:
        """Concurrent CTAs by cluster size, with one CTA per SM."""
        return _slots(self.caps)

    @cached_property
    def weight(self) -> float:
        """Cost of finishing one result, relative to a plain store."""
        return 1.0 + 0.6 * self.expensive_epilogue + 0.4 * self.residual


@cache
def _peaks(arch: int) -> Mapping[str, float]:
    return {unit: peak(unit, arch) for unit in PEAK}


@cache
def _slots(caps: DeviceCaps) -> Mapping[int, int]:
    return {size: slots(caps, size, 1) for size in range(1, 17)}


def multistage(t: Any, p: Problem, resident: int) -> Work:
    """`gemm/multistage_sm80`: cp.async, then FFMA or tensor cores (TF32 or 3xTF32). resident: CTAs
    per SM.
    """
    depth, m, n = 32, min(t.bm, p.m), min(t.bn, p.n)
    ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * t.split * p.batch
    name, unit, terms = "ffma", "ffma", 1
    copies = 0.0  # warp instructions
    for rows, width, gathered in ((m, p.a, p.gathered[0]), (n, p.b, p.gathered[1])):
        copies += rows * depth * 4 / (4 if gathered else width) / 32
    if t.wgmma:
        name, unit, terms = "tf32_wgmma", "tf32", 3
        shared = 3.0 * (t.bm + t.bm // 64 * t.bn) * 128
        copies += 4 * (t.bm + t.bn)  # both operands are split
    elif t.terms:
        name, unit, terms = "tf32", "tf32", t.terms
        shared = (t.warps_n * t.bm + t.warps_m * t.bn) * 128.0
        copies += 4 * (t.warps_n * t.bm + t.warps_m * t.bn) * (t.terms > 1)
    else:  # a warp has 4 x 8 lanes
        shared = t.bm * t.bn * depth * (8 * t.warps_m / t.bm + 4 * t.warps_n / t.bn)
    groups = 1.0 if p.kind else max(1.0, t.threads / 128)  # all warps compute addresses
    return Work(
        f"{name}{p.kind}",
        p.peak[unit],
        ctas,
        p.slots[t.split] * resident,
        -(-p.k // (depth * t.split)),
        2.0 * t.bm * t.bn * depth * terms,
        shared,
        (m + n) * 128.0,
        copies,
        groups,
        t.stages - 1,
        m * n / t.split * p.weight * (1 if p.y else 2),
        t.bm * t.bn * (t.split - 1) / t.split,
        p.dram,
        t.split > 1,
        0.0,
        # without clusters, a second launch reduces the split-K partial sums
        _NEXT_LAUNCH * p.caps.clock * (t.split > 1 and p.caps.arch < 90),
    )


def simt(t: Any, p: Problem) -> Work:
    """`gemm/simt`: FFMA."""
    ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * t.split * p.batch
    m, n = min(t.bm, p.m), min(t.bn, p.n)
    shared = t.warps_m * t.warps_n * t.bk * 32.0 * (t.thread_m + t.thread_n)
    copies = 0.0
    for rows, width, transposed in ((m, p.a, p.transposed[0]), (n, p.b, p.transposed[1])):
        copied = 16 if width == 16 and (transposed or t.stages == 2) else 4
        copies += rows * t.bk * 4 / copied / 32
    summed = t.bm * t.bn * (t.warps_k - 1) * 0.5
    return Work(
        "simt_async" if t.stages > 2 else "simt",
        p.peak["ffma"],
        ctas,
        p.slots[t.split] * t.resident,
        -(-p.k // (t.bk * t.split)),
        2.0 * t.bm * t.bn * t.bk,
        shared,
        (m + n) * t.bk * 4.0,
        copies,
        max(1.0, t.threads / 128),
        t.stages - 1,
        m * n / t.split * p.weight * (1 if p.y else 1.3) + summed,
        t.bm * t.bn * (t.split - 1) / t.split,
        p.dram,
        t.split > 1,
    )


def gemv(t: Any, p: Problem) -> Work:
    """`gemm/gemv`: the wide operand is read at once, or with a prefetch distance (staged)."""
    rows = p.m if t.wide_a else p.n
    if t.reads:
        span, sums = (
            4 * t.lanes_per_row * t.reads,
            1 << (t.rows_per_lane * t.narrow_rows - 1).bit_length(),
        )
        return Work(
            "gemv_at_once",
            p.peak["ffma"],
            -(-rows // t.rows) * p.batch,
            p.slots[1] * 4,
            -(-p.k // span),
            2.0 * t.rows * span * t.narrow_rows,
            0.0 if t.direct else t.narrow_rows * span * 32.0 * t.rows_per_lane,
            t.rows * span * 4.0,
            t.rows * t.lanes_per_row * t.reads / 32
            + (0 if t.direct else t.narrow_rows * span / 32),
            2,
            1,
            256.0 * sums,
            0.0,
            p.dram,
            False,
        )
    span = 128 * t.warps_per_row
    return Work(
        "gemv_staged",
        p.peak["ffma"],
        -(-rows // t.rows) * t.split * p.batch,
        p.slots[t.split] * (2 if t.rows_per_lane > 1 else 4),
        -(-p.k // (t.split * span)),
        2.0 * t.rows * span * t.narrow_rows,
        t.narrow_rows * span * 32.0 / t.warps_per_row,
        t.rows * span * 4.0,
        t.rows * span / 128,
        2,
        4 if t.rows_per_lane == 1 else 2,
        256.0 * t.rows_per_lane * t.narrow_rows,
        t.rows * t.narrow_rows * (t.split - 1),
        p.dram,
        t.split > 1,
        t.narrow_rows * p.k / t.split * 4.0,
    )
