"""Attention of 16-bit operands by mma.sync (`fa2.cuh`): tiles and the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike

from ..common.launch import known, overlapped, parameters
from ..common.prelude import prelude
from ..common.templates import template
from . import problem


@dataclass(frozen=True)
class MmaTile:
    """warps: of a block, with 16 query rows each."""

    warps: int

    def __str__(self) -> str:
        return f"mma {16 * self.warps}"


def _warps(request: Request) -> int:
    """Fewer warps of a block where that fills the device."""
    i = parameters(request)
    sizes = [known(i[k]) for k in ("B", "H", "S")]
    if any(s is None for s in sizes):
        return 4
    b, h, s = (int(x or 0) for x in sizes)
    return next(
        (w for w in (4, 2) if b * h * -(-s // (16 * w)) >= request.sms and s > 8 * w),
        1 if s <= 16 else 2,
    )


def kernel(request: Request, p: Any, tile: MmaTile, use: DimLike) -> Kernel:
    warps, keys = tile.warps, 64 if p.widest <= 128 else 32
    pitch, pitch_v = (-(-n // 16) * 32 + 16 for n in (p.head, p.head_v))
    smem = 16 * warps * pitch + 2 * keys * (pitch + pitch_v)
    constants = f"{p.constants(request.dtype)}constexpr int WARPS = {warps}, BN = {keys};\n"
    templates = template(
        "common/base",
        "common/mma",
        "attention/problem",
        "attention/online_softmax",
        "attention/fa2",
    )
    source = f"{prelude(request.dtype)}{constants}{templates}{problem.entry(32 * warps)}"
    grid = (D.mul(problem.blocks(request, 16 * warps), use), 1, 1)
    return Kernel(
        source,
        "attention",
        grid,
        32 * warps,
        problem.arguments(request, {}),
        smem=smem,
        pdl=overlapped(request),
    )


def tiles(request: Request) -> list[tuple[MmaTile, DimLike]]:
    """The tile, whatever the sizes of a run."""
    return [(MmaTile(_warps(request)), 1)]
