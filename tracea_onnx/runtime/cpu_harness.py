"""Runs CPU Plans from Python without ONNX Runtime, with any variant of their kernels. The tuner
uses it, a session never.

    with LoadedPlan(plan, blobs, initializers, threads=2) as loaded:
        (y,) = loaded.run([x], {3: 1})  # launch 3 in variant 1
        usual, other = loaded.time([x], [{}, {3: 1}], turns=5)
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from tracea_onnx.errors import TraceaError
from tracea_onnx.runtime import host_device
from tracea_onnx.runtime.host_device import HostDevice
from tracea_onnx.runtime.host_tensors import MESSAGE, Array, opened, outputs_of, tensors_of
from tracea_onnx.runtime.native_library import best_isa
from tracea_onnx.support import machine
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.library import library_path

#: Variants of launches by their index in the Plan's run; the others are as the Plan says.
Variants = Mapping[int, int]


def device(threads: int = 0) -> HostDevice:
    """The host, with sessions of so many threads; 0: as many as there are processors."""
    usable = machine.cores()
    return host_device.device(best_isa(), min(threads, usable) if threads else usable)


@dataclass(frozen=True)
class Times:
    """Microseconds: `total` of a run, `launches` of each launch (its family, time), medians."""

    total: float
    launches: list[tuple[str, float]]


class LoadedPlan:
    """A CPU Plan, its constants prepared; a context manager. plan, blobs, initializers: as of
    `cuda_harness.LoadedPlan`.

    isa: instruction set, "" for the machine's best. Raises TraceaError with the native library's
    line.
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        blobs: Sequence[bytes],
        initializers: Mapping[str, Array],
        *,
        threads: int = 1,
        isa: str = "",
    ) -> None:
        self.plan = plan
        self._lib = ctypes.CDLL(str(library_path()))
        first = threads, isa.encode()
        self._handle = opened(self._lib.tracea_cpu_open, first, plan, blobs, initializers)

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.tracea_cpu_close(self._handle)
        self._handle = ctypes.c_void_p()

    def run(
        self,
        inputs: Sequence[Array],
        variants: Variants | None = None,
        places: Sequence[Array] = (),
    ) -> list[Array]:
        """Outputs for these inputs, in the Plan's order. places: memory of theirs, as large."""
        outputs: list[Array] = []
        given = outputs_of(self.plan, outputs, places)
        self._call(self._lib.tracea_cpu_run, inputs, [variants or {}], (), given, ())
        return outputs

    def time(self, inputs: Sequence[Array], sides: Sequence[Variants], turns: int) -> list[Times]:
        """Times each set of variants, in turn, so that what disturbs one disturbs the others."""
        count = len(self.plan["run"])
        us = (ctypes.c_double * (len(sides) * (count + 1)))()
        numbers = (ctypes.c_int(len(sides)), ctypes.c_int(turns))
        self._call(
            self._lib.tracea_cpu_time, inputs, sides, numbers, outputs_of(self.plan, []), (us,)
        )
        return [
            Times(
                us[k],
                [
                    (launch["k"], us[len(sides) + k * count + n])
                    for n, launch in enumerate(self.plan["run"])
                ],
            )
            for k in range(len(sides))
        ]

    def _call(
        self,
        function: Any,
        inputs: Sequence[Array],
        sides: Sequence[Variants],
        numbers: Sequence[Any],
        outputs: Any,
        results: Sequence[Any],
    ) -> None:
        tensors, keep = tensors_of(self.plan, inputs)
        count = len(self.plan["run"])
        variants = (ctypes.c_int64 * max(len(sides) * count, 1))(
            *(side.get(k, -1) for side in sides for k in range(count))
        )
        message = ctypes.create_string_buffer(MESSAGE)
        if function(
            self._handle, tensors, variants, *numbers, outputs, None, *results, message,
            ctypes.c_size_t(MESSAGE),
        ):  # fmt: skip
            raise TraceaError(message.value.decode())
        del keep
