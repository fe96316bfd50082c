"""What the GEMM kernels of f32 do with each configuration (`model.Work`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tracea_onnx.runtime.device_caps import DeviceCaps

from .model import PEAK, Work, peak, slots

#: Milliseconds of a launch between others.
_LAUNCH = 2.3e-3


@dataclass(frozen=True)
class Problem:
    """`batch` products of m x n results over k; dram: bytes read and written at least. kind: "" or
    "_conv", whose rows of A are windows of an image. dear, residual: what the epilogue does. a, b:
    bytes of a copy of either operand; turned: those whose rows are neighbours; gathered: those that
    are read element by element; y: whether rows of the result begin at multiples of 16 bytes.
    """

    caps: DeviceCaps
    m: int
    n: int
    k: int
    batch: int
    dram: float
    kind: str
    dear: bool
    residual: bool
    a: int
    b: int
    turned: tuple[bool, bool]
    gathered: tuple[bool, bool]
    y: bool

    @cached_property
    def peak(self) -> Mapping[str, float]:
        """Flops a clock of one SM by arithmetic unit."""
        return {unit: peak(unit, self.caps.arch) for unit in PEAK}

    @cached_property
    def room(self) -> Mapping[int, int]:
        """CTAs that run at a time by the size of their clusters, one on an SM."""
        return {size: slots(self.caps, size, 1) for size in range(1, 17)}

    @cached_property
    def weight(self) -> float:
        """Of a result, in those that are only stored."""
        return 1.0 + 0.6 * self.dear + 0.4 * self.residual


def multistage(t: Any, p: Problem, resident: int) -> Work:
    """`gemm/multistage_sm80`: cp.async, then FFMA or TF32 (three products of split operands)."""
    depth, m, n = 32, min(t.bm, p.m), min(t.bn, p.n)
    ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * t.split * p.batch
    name, unit, terms = "ffma", "ffma", 1
    copies = 0.0  # instructions of warps
    for rows, width, gathered in ((m, p.a, p.gathered[0]), (n, p.b, p.gathered[1])):
        copies += rows * depth * 4 / (4 if gathered else width) / 32
    if t.grouped:
        name, unit, terms = "tf32_wgmma", "tf32", 3
        shared = 3.0 * (t.bm + t.bm // 64 * t.bn) * 128
        copies += 4 * (t.bm + t.bn)  # both operands are split
    elif t.terms:
        name, unit, terms = "tf32", "tf32", t.terms
        shared = (t.warps_n * t.bm + t.warps_m * t.bn) * 128.0
        copies += 4 * (t.warps_n * t.bm + t.warps_m * t.bn) * (t.terms > 1)
    else:  # lanes of a warp: 4 x 8
        shared = t.bm * t.bn * depth * (8 * t.warps_m / t.bm + 4 * t.warps_n / t.bn)
    groups = 1.0 if p.kind else max(1.0, t.threads / 128)  # addresses of windows keep all busy
    return Work(
        f"{name}{p.kind}",
        p.peak[unit],
        ctas,
        p.room[t.split] * resident,
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
        # without clusters, another launch adds the parts up
        _LAUNCH * p.caps.clock * (t.split > 1 and p.caps.arch < 90),
    )


def simt(t: Any, p: Problem) -> Work:
    """`gemm/simt`: FFMA in tiles of many shapes."""
    ctas = -(-p.m // t.bm) * -(-p.n // t.bn) * t.split * p.batch
    m, n = min(t.bm, p.m), min(t.bn, p.n)
    shared = t.warps_m * t.warps_n * t.bk * 32.0 * (t.lane_m + t.lane_n)
    copies = 0.0
    for rows, width, turned in ((m, p.a, p.turned[0]), (n, p.b, p.turned[1])):
        wide = 16 if width == 16 and (turned or t.stages == 2) else 4
        copies += rows * t.bk * 4 / wide / 32
    summed = t.bm * t.bn * (t.warps_k - 1) * 0.5
    return Work(
        "simt_async" if t.stages > 2 else "simt",
        p.peak["ffma"],
        ctas,
        p.room[t.split] * t.resident,
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
    """`gemm/gemv`: rows of the wide operand that lanes read at once, or ahead."""
    rows = p.m if t.wide_a else p.n
    if t.reads:
        span, sums = 4 * t.lanes * t.reads, 1 << (t.deep * t.few - 1).bit_length()
        return Work(
            "gemv_at_once",
            p.peak["ffma"],
            -(-rows // t.rows) * p.batch,
            p.room[1] * 4,
            -(-p.k // span),
            2.0 * t.rows * span * t.few,
            0.0 if t.near else t.few * span * 32.0 * t.deep,
            t.rows * span * 4.0,
            t.rows * t.lanes * t.reads / 32 + (0 if t.near else t.few * span / 32),
            2,
            1,
            256.0 * sums,
            0.0,
            p.dram,
            False,
        )
    span = 128 * t.share
    return Work(
        "gemv_staged",
        p.peak["ffma"],
        -(-rows // t.rows) * t.split * p.batch,
        p.room[t.split] * (2 if t.deep > 1 else 4),
        -(-p.k // (t.split * span)),
        2.0 * t.rows * span * t.few,
        t.few * span * 32.0 / t.share,
        t.rows * span * 4.0,
        t.rows * span / 128,
        2,
        4 if t.deep == 1 else 2,
        256.0 * t.deep * t.few,
        t.rows * t.few * (t.split - 1),
        p.dram,
        t.split > 1,
        t.few * p.k / t.split * 4.0,
    )
