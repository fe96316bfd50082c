"""CUDA Plans made by hand from the kernels the stand-in knows (`libcuda.cc`)."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen.kernel_request import Argument, Kernel, Pointer
from tracea_onnx.compiler.plan_writer import BackendPlan, Emitter
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.runtime.device_caps import usual
from tracea_onnx.support import discovery

_LAUNCHES = discovery.module("kernels", "cuda.launches")
CUBIN = b"\x7fELF fake kernels\0"


class HandPlan(BackendPlan):
    """A Plan whose launches are given directly.

    An argument is a Ref, None for an absent operand, or an argument of
    `tracea_onnx.codegen.kernel_request`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, Emitter(backends.get("cuda")), {}, usual(90, 132))
        self.named: dict[str, Ref | None] = {}  # operands that tensor maps name

    def kernel(
        self,
        symbol: str,
        arguments: Sequence[Argument | Ref | None],
        grid: DimLike = 1,
        *,
        block: int = 32,
        smem: int = 0,
        cluster: int = 1,
        pdl: bool = False,
        init: bool = False,
    ) -> None:
        places: dict[str, Ref | None] = {}
        converted: list[Argument] = []
        for a in arguments:
            if a is None or isinstance(a, Ref):
                places[str(len(places))] = a
                converted.append(Pointer(str(len(places) - 1)))
            else:
                converted.append(a)
        places |= self.named
        kernel = Kernel("fake", symbol, (grid, 1, 1), block, tuple(converted), smem, cluster, pdl)
        (self._init if init else self._run).append(self._record(_LAUNCHES.Launch(kernel), places))

    def const(self, size: int) -> Ref:
        ref = self.arena(size)
        self.buffers[ref.buffer]["kind"] = "const"
        return ref

    def code(self, source: str) -> int:
        if source not in self._code:
            self._code[source] = len(self.blobs)
            self.blobs.append(CUBIN)
        return self._code[source]
