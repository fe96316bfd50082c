"""Plans for the CUDA launcher: every family launch is turned into cubin launches by `kernels/cuda`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.kernel_request import (
    Argument,
    Fault,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    TensorMap,
    Unfit,
)
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.plan.builder import PlanBuilder, Ref
from tracea_onnx.plan.extents import extents
from tracea_onnx.pricing.device_caps import DeviceCaps
from tracea_onnx.support import discovery

#: Threads that compile at a time (133 kernels, 16 cores: one thread 36 s, 16 threads 4.4 s; NVRTC
#: keeps a cache of its own, beside which nothing gains).
_COMPILERS = 16


class Emitter:
    """The kernels for requests, chosen in one way.

    Networks ask for the same again and again, first to learn what can run: it is emitted once.
    """

    def __init__(self, choices: kernel_choice.Choices = kernel_choice.BY_PRICE) -> None:
        self._choices = choices
        self._made: dict[tuple[object, ...], list[Kernel]] = {}

    def __call__(self, r: Request) -> list[Kernel]:
        """Raises Unfit with a sentence when the backend has none."""
        named = (
            tuple(sorted(r.ints.items())),
            tuple(sorted(r.floats.items())),
            json.dumps(r.program, sort_keys=True),
        )
        key = (r.family, r.dtype, *named, r.operands, r.caps, r.unaligned, r.constant, r.tf32)
        if key not in self._made:
            with kernel_choice.choosing(self._choices):
                self._made[key] = discovery.module("kernels", "cuda").emit(r)
        return self._made[key]


class CudaPlanBuilder(PlanBuilder):
    """A PlanBuilder whose launches name cubins. caps: the device.

    `compile_kernels=False` leaves cubins out (the probe of which nodes can run needs only to know
    that a kernel exists). tf32: whether products of f32 may round their elements to TF32. emit:
    makes the kernels; Plans of one graph share it. traps: their waits for copies end. `asked` has
    what each launch of a run was made for."""

    def __init__(
        self,
        name: str,
        caps: DeviceCaps,
        *,
        compile_kernels: bool = True,
        tf32: bool = False,
        emit: Emitter | None = None,
        traps: bool = False,
    ) -> None:
        super().__init__(name, "cuda")
        self._traps = traps
        self.caps, self.compile_kernels, self.tf32, self._emit = (
            caps,
            compile_kernels,
            tf32,
            emit or Emitter(),
        )
        self.asked: list[Request] = []
        self._cubins: dict[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        self._compile()
        return {**super().to_json(), "arch": self.caps.arch, "sms": self.caps.sms}

    def _compile(self) -> None:
        """Fill in the cubins that are still missing, several at a time: NVRTC compiles without
        Python's lock.
        """
        missing = [(source, at) for source, at in self._cubins.items() if not self.blobs[at]]
        if not missing or not self.compile_kernels:
            return
        backend = discovery.module("kernels", "cuda")
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1, _COMPILERS)) as pool:
            cubins = pool.map(
                lambda m: backend.compile(
                    backend.trapping(m[0]) if self._traps else m[0], self.caps.arch
                ),
                missing,
            )
            for (_, at), cubin in zip(missing, cubins, strict=True):
                self.blobs[at] = cubin

    def _append(
        self,
        family: str,
        refs: Mapping[str, Ref | None],
        ints: Mapping[str, DimLike],
        floats: Mapping[str, float],
        program: Mapping[str, Any] | None,
        dtype: DType,
        to: list[dict[str, Any]],
    ) -> None:
        present = frozenset(n for n, r in refs.items() if r is not None)
        unaligned = frozenset(
            n for n, r in refs.items() if r is not None and multiple_of(r.offset) % 16
        )
        constant = frozenset(
            n for n, r in refs.items() if r is not None and self.is_constant(r) and to is self._run
        )
        request = Request(
            family,
            dtype,
            dict(ints),
            dict(floats),
            program,
            present,
            self.caps,
            unaligned,
            constant,
            self.tf32,
        )
        try:
            kernels = self._emit(request)
        except Unfit as e:
            raise Unsupported(str(e)) from None
        if to is self._run:
            self._bound(family, refs, ints, dtype)
        sizes = next((k.scratch for k in kernels if k.scratch), ())
        scratch = {f"scratch{k}": self.arena(n) for k, n in enumerate(sizes)}
        places = {**refs, **scratch}
        to.extend(self._record(k, places) for k in kernels)
        if to is self._run:
            self.asked += [request] * len(kernels)

    def _bound(
        self, family: str, refs: Mapping[str, Ref | None], ints: Mapping[str, DimLike], dtype: DType
    ) -> None:
        """Note what the launch may touch of each buffer: a run compares it with the buffers' sizes."""
        present = {o: int(ref is not None) for o, ref in refs.items()}
        for operand, (low, high) in extents(
            family, ints, present, dtype.size, border=False
        ).items():
            ref = refs.get(operand)
            if ref is not None and not (low == 0 and high == 0):
                first, end = (
                    self.expr(D.select(D.less(low, high), ref.offset + e, 0)) for e in (low, high)
                )
                self._extents[ref.buffer, first, end, f"{family} {operand}"] = None

    def _record(self, k: Kernel, places: Mapping[str, Ref | None]) -> dict[str, Any]:
        return {
            "k": "cuda", "cubin": self._cubin(k.source), "symbol": k.symbol, "grid": [self.expr(d) for d in k.grid], "block": k.block, "smem": k.smem,
            "cluster": k.cluster, "pdl": k.pdl, "args": [self._argument(a, places) for a in k.args],
        }  # fmt: skip

    def _cubin(self, source: str) -> int:
        if source not in self._cubins:
            self.blobs.append(b"")  # `to_json` compiles it
            self._cubins[source] = len(self.blobs) - 1
        return self._cubins[source]

    def _argument(self, a: Argument, places: Mapping[str, Ref | None]) -> list[Any]:
        if isinstance(a, Int32):
            return ["i", self.expr(a.value)]
        if isinstance(a, Int64):
            return ["l", self.expr(a.value)]
        if isinstance(a, Float32):
            return ["f", a.value]
        if isinstance(a, Fault):
            return ["e"]
        pointer = a.pointer if isinstance(a, TensorMap) else a
        ref = places.get(pointer.operand)
        if ref is None:
            return ["null"]
        place = ref.at(pointer.offset)
        if isinstance(a, Pointer):
            return ["p", place.buffer, self.expr(place.offset)]
        im2col = (
            [list(a.im2col[0]), list(a.im2col[1]), a.im2col[2], a.im2col[3]]
            if a.im2col is not None
            else None
        )
        return ["t", {
            "buffer": place.buffer, "offset": self.expr(place.offset), "dtype": int(a.dtype), "dims": [self.expr(d) for d in a.dims],
            "strides": [self.expr(d) for d in a.strides], "box": list(a.box), "swizzle": a.swizzle, "im2col": im2col, "steps": list(a.steps),
            "together": a.together,
        }]  # fmt: skip
