"""Launches of cubins as a Plan has them (docs/cuda.md, "Launches")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracea_onnx.codegen.backend import Plan
from tracea_onnx.codegen.kernel_request import (
    Argument,
    FaultWord,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    TensorMap,
    Words,
)
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Launch:
    """A kernel as the launch of a Plan."""

    kernel: Kernel

    @property
    def scratch(self) -> tuple[DimLike, ...]:
        return self.kernel.scratch

    def record(self, plan: Plan, places: Mapping[str, Ref | None]) -> dict[str, Any]:
        k = self.kernel
        return {
            "k": "cuda", "cubin": plan.code(k.source), "symbol": k.symbol,
            "grid": [plan.expr(d) for d in k.grid], "block": k.block, "smem": k.smem,
            "cluster": k.cluster, "pdl": k.pdl,
            "args": [_argument(a, plan, places) for a in k.args],
        }  # fmt: skip


def _argument(a: Argument, plan: Plan, places: Mapping[str, Ref | None]) -> list[Any]:
    if isinstance(a, Int32):
        return ["i", plan.expr(a.value)]
    if isinstance(a, Int64):
        return ["l", plan.expr(a.value)]
    if isinstance(a, Float32):
        return ["f", a.value]
    if isinstance(a, FaultWord):
        return ["e"]
    if isinstance(a, Words):
        return ["w", a.count]
    pointer = a.pointer if isinstance(a, TensorMap) else a
    ref = places.get(pointer.operand)
    if ref is None:
        return ["null"]
    place = ref.at(pointer.offset)
    if isinstance(a, Pointer):
        return ["p", place.buffer, plan.expr(place.offset)]
    im2col = (
        [list(a.im2col[0]), list(a.im2col[1]), a.im2col[2], a.im2col[3]]
        if a.im2col is not None
        else None
    )
    return ["t", {
        "buffer": place.buffer, "offset": plan.expr(place.offset), "dtype": int(a.dtype),
        "dims": [plan.expr(d) for d in a.dims],
        "strides": [plan.expr(d) for d in a.strides], "box": list(a.box), "swizzle": a.swizzle,
        "im2col": im2col, "steps": list(a.element_strides),
        "together": a.l2_promotion,
    }]  # fmt: skip
