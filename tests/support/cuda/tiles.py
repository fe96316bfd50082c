"""Tiles of the GEMM and convolution kernels: all that must be checked, those worth timing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.support.cuda.driver import device
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.support import discovery


def tiles(dtype: DType, n: int, steps: int) -> list[Any]:
    """Every tile of the general kernel with every split, those of the Hopper kernel for n columns
    and so many steps of k, and some of the split one of each kind.
    """
    costs, wgmma, split = _tile_modules()
    general = [
        replace(t, split=s) for t in costs.tiles(dtype, True, device()[0]) for s in (1, 2, 4, 8)
    ]
    if dtype == DType.F32 or device()[0] != 90:
        return general
    kinds = [
        (64, 8, True, 4, 1, 3), (64, 16, True, 1, 2, 2), (64, 24, True, 3, 1, 1),
        (64, 56, True, 8, 1, 2), (128, 64, True, 2, 2, 1), (128, 104, True, 1, 1, 1),
        (128, 128, True, 4, 2, 1), (64, 200, True, 2, 1, 1), (192, 80, True, 2, 1, 1),
        (192, 192, True, 1, 1, 1), (128, 256, True, 1, 2, 1), (64, 64, False, 4, 1, 2),
        (192, 144, False, 1, 2, 1), (64, 200, False, 1, 1, 2),
        (64, 128, False, 1, 2, 1), (128, 64, False, 2, 1, 2), (128, 96, False, 6, 1, 1),
        (128, 128, False, 2, 2, 1), (128, 256, False, 1, 1, 1),
        (64, 32, False, 1, 1, 3), (128, 192, False, 4, 2, 1),
    ]  # fmt: skip
    return (
        general
        + list(wgmma.candidates(n, steps, device()[1]))
        + [split.SplitTile(*kind) for kind in kinds if kind[3] <= steps]
    )


def halo_tiles(r: Request, *, resident: bool) -> list[Any]:
    """Tiles of the kernel for convolutions of stride 1 whose weights stay in shared memory, or some
    of those whose weights do not: of each height and each split.
    """
    if r.arch != 90 or r.dtype == DType.F32:
        return []
    halo = discovery.module("kernels", "cuda.conv.halo")
    found = [t for t in halo.configs(r) if t.weights_resident == resident]
    if resident:
        return found
    alone = {(t.wgmmas, t.stack, t.patches): t for t in found if t.cluster_size == 1}
    return [
        *alone.values(),
        *{(t.split, t.multicast): t for t in found if t.cluster_size > 1}.values(),
    ]


def _tile_modules() -> tuple[Any, Any, Any]:
    costs, wgmma, split = (
        discovery.module("kernels", f"cuda.gemm.{n}")
        for n in ("multistage_sm80.tiles", "persistent_sm90", "cluster_splitk_sm90")
    )
    return costs, wgmma, split


def plausible(
    m: int, n: int, k: int, *, steps: int = 0, most: int = 9, stored: bool = True
) -> list[Any]:
    """The tiles of each Hopper kernel that its cost model likes best, and some that it likes less:
    what it might be wrong about. `steps` of k (0: k / 64; negative: none of these kernels applies,
    only the general one); stored: rows of the result begin at multiples of 16 bytes.
    """
    costs, wgmma, split = _tile_modules()
    sms = device()[1]
    count = steps or -(-k // 64)
    sizes = discovery.module("kernels", "cuda.gemm.sm90").Sizes(m, n, count, sms)
    if steps < 0:
        general = [
            replace(t, split=s)
            for t in costs.tiles(DType.F16)
            for s in (1, 2, 4, 8)
            if s == 1 or -(-k // 64) >= 2 * s
        ]
        return sorted(general, key=lambda t: costs.tile_cost(t, m, n, -(-k // 64), 1, sms))[:most]
    out = []
    for kind, tiles in (
        (wgmma, wgmma.candidates(n, count, sms) if stored else []),
        (split, split.candidates(m, n, count, sms)),
    ):
        ranked = sorted(tiles, key=lambda t: kind.tile_cost(t, sizes))
        if not ranked:
            continue
        best = kind.tile_cost(ranked[0], sizes)
        rest = [t for t in ranked[most:] if kind.tile_cost(t, sizes) < 1.6 * best]
        out += ranked[:most] + random.Random(m * n + k).sample(rest, min(most, len(rest)))
    return out


def rounds(t: Any) -> bool:
    """Whether elements of f32 are rounded to TF32."""
    return getattr(t, "terms", 0) == 1


def tile_name(t: Any) -> str:
    if hasattr(t, "thread_m"):
        return (
            f"simt {t.bm}x{t.bn} of {t.thread_m}x{t.thread_n} by {t.warps_k} stages{t.stages} "
            f"split{t.split}"
        )
    if hasattr(t, "tile"):
        return f"copied, {tile_name(t.tile)}"
    if hasattr(t, "wide_a"):
        how = (
            f"lanes{t.lanes_per_row} reads{t.reads}"
            if t.reads
            else f"split{t.split} warps{t.warps_per_row}"
        )
        return f"gemv narrow{t.narrow_rows} rows{t.rows_per_lane} {how} wide {'ba'[t.wide_a]}"
    if hasattr(t, "pingpong"):
        more = (
            " pingpong" * t.pingpong,
            " swap" * t.swap,
            " resident_b" * (t.resident_b > 0),
            " tma" * t.tma,
        )
        return (
            f"wgmma {t.bm}x{t.bn}{''.join(more)} "
            f"cluster{t.multicast_b}{f'x{t.multicast_a}' if t.multicast_a > 1 else ''}"
        )
    if hasattr(t, "swap"):
        return (
            f"split {t.rows}x{t.columns}{' swap' if t.swap else ''} split{t.split} "
            f"multicast{t.right_multicast} resident{t.resident}"
        )
    if hasattr(t, "stack"):
        return (
            f"halo {t.rows} rows of {t.stack} wgmmas{t.wgmmas} x{t.columns} patches{t.patches} "
            f"split{t.split} multicast{t.multicast}"
        )
    if hasattr(t, "channel_groups"):
        return (
            f"narrow {t.pixels} pixels x{t.channels} k_threads{t.k_threads} "
            f"groups{t.channel_groups} step{t.step} threads{t.threads} ahead{t.ahead}"
        )
    if hasattr(t, "passes"):
        return f"patch {t.height}x{t.width} wgmmas{t.wgmmas} groups{t.groups}x{t.columns}"
    if hasattr(t, "high"):
        return f"direct {t.bm}x{t.bn} by {t.warps_k} ahead{t.ahead}"
    if hasattr(t, "warps_m") and not hasattr(t, "split"):
        return f"flat {t.bm}x{t.bn} held{t.held} ahead{t.ahead}"
    return (
        f"tile {t.bm}x{t.bn} "
        f"split{t.split}{f' terms{t.terms} warps_k{t.warps_k}' if t.terms else ''}"
    )
