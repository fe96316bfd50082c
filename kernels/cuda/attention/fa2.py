"""FlashAttention-2 by mma.sync, 16-bit operands (`fa2.cuh`)."""

from __future__ import annotations

from tracea_onnx.codegen.kernel_request import Kernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.support.data_classes import dataclass

from ..common.launch import known, parameters
from . import problem
from .problem import Problem


@dataclass(frozen=True)
class Fa2Config:
    """warps: of a CTA, with 16 query rows each."""

    warps: int

    def __str__(self) -> str:
        return f"fa2 {16 * self.warps}"

    def scratch(self, request: Request, p: Problem, use: DimLike) -> DimLike | None:
        return None

    def kernels(self, request: Request, p: Problem, use: DimLike, place: str = "") -> list[Kernel]:
        rows, keys = 16 * self.warps, 64 if p.widest <= 128 else 32
        pitch, pitch_v = (-(-n // 16) * 32 + 16 for n in (p.head, p.head_v))
        grid = (D.mul(problem.blocks(request, rows), use), 1, 1)
        smem = rows * pitch + 2 * keys * (pitch + pitch_v)
        sizes = {"WARPS": self.warps, "BN": keys, **problem.reads(request, p)}
        return [
            problem.kernel(request, p, "attention/fa2", grid, 32 * self.warps, sizes, smem=smem)
        ]


def config(request: Request) -> Fa2Config:
    """Fewer warps of a CTA where that fills the device."""
    sizes = [known(parameters(request)[k]) for k in ("B", "H", "S")]
    if any(s is None for s in sizes):
        return Fa2Config(4)
    b, h, s = (int(x or 0) for x in sizes)
    for warps in (4, 2):
        if b * h * -(-s // (16 * warps)) >= request.sms and s > 8 * warps:
            return Fa2Config(warps)
    return Fa2Config(1 if s <= 16 else 2)
