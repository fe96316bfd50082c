"""Runs CUDA Plans from Python without ONNX Runtime. Kernel tests and the tuner use it, a session
never.

# plan: PlanBuilder.to_json(); blobs: its cubins and constants
(y,) = run_plan(plan, blobs, [x])
times = time_plan(plan, blobs, [x], replays=200)  # microseconds on the device
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.runtime import device_caps
from tracea_onnx.runtime.host_tensors import MESSAGE, Array, opened, outputs_of, tensors_of
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.library import library_path


@dataclass(frozen=True)
class Times:
    """Microseconds on the device: `total` of one replay of all launches as a graph, `launches` of
    each launch (symbol, time).
    """

    total: float
    launches: list[tuple[str, float]]


def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library_path()))
    lib.tracea_cuda_time.restype = ctypes.c_int64
    return lib


def properties(ordinal: int = 0) -> dict[str, str]:
    """Metadata of a compile request for a CUDA device, which this initialises.

    Raises TraceaError when there is no driver or no such device.
    """
    text, message, size = (
        ctypes.create_string_buffer(4096),
        ctypes.create_string_buffer(MESSAGE),
        ctypes.c_size_t,
    )
    if _library().tracea_cuda_device(ordinal, text, size(len(text)), message, size(MESSAGE)):
        raise TraceaError(message.value.decode())
    return dict(line.split("=", 1) for line in text.value.decode().splitlines())


def device(ordinal: int = 0) -> device_caps.DeviceCaps:
    """A CUDA device. Raises as `properties` does."""
    return device_caps.of_request(properties(ordinal))


def listed() -> int:
    """GPUs that the driver will offer, found without initialising CUDA; 0 without the native
    library.
    """
    try:
        return int(_library().tracea_cuda_listed())
    except (TraceaError, OSError):
        return 0


class LoadedPlan:
    """A CUDA Plan on a device, its constants prepared; a context manager.

    plan: what `BackendPlan.to_json` gives; blobs: its blobs; initializers: contents of the
    `initializer` buffers by name. graphs: replay recorded graphs, as the provider option
    enable_cuda_graph=1 does. bfloat16 tensors are numpy arrays of uint16. Raises TraceaError with
    the native library's line (no driver, a bad plan, a kernel that cannot be loaded).
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        blobs: Sequence[bytes],
        initializers: Mapping[str, Array] | None = None,
        *,
        device: int = 0,
        graphs: bool = False,
    ) -> None:
        self.plan = plan
        self._lib = _library()
        first = device, int(graphs)
        self._handle = opened(self._lib.tracea_cuda_open, first, plan, blobs, initializers or {})

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.tracea_cuda_close(self._handle)
        self._handle = ctypes.c_void_p()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for these inputs, in the Plan's order."""
        tensors, keep = tensors_of(self.plan, inputs)
        outputs: list[Array] = []
        message, size = ctypes.create_string_buffer(MESSAGE), ctypes.c_size_t
        if self._lib.tracea_cuda_run(
            self._handle, tensors, size(len(inputs)), outputs_of(self.plan, outputs), None, message,
            size(MESSAGE),
        ):  # fmt: skip
            raise TraceaError(message.value.decode())
        del keep
        return outputs

    def time(self, inputs: Sequence[Array], replays: int = 100, *, within: bool = False) -> Times:
        """Run once, then time `replays` replays of all launches as one CUDA graph (their mean) and
        each launch: many of it alone, so that its operands lie in cache and neighbours overlap
        (their mean), or `within` a run of all, on what the others leave in cache, with the events
        between (medians of the replays).
        """
        if replays < 1:
            raise UsageError("replays must be positive")
        self.run(inputs)
        tensors, keep = tensors_of(self.plan, inputs)
        most = len(self.plan["run"]) + 1
        times = (ctypes.c_double * most)()
        names, message = (
            ctypes.create_string_buffer(256 * most),
            ctypes.create_string_buffer(MESSAGE),
        )
        size = ctypes.c_size_t
        count = self._lib.tracea_cuda_time(
            self._handle,
            tensors,
            size(len(inputs)),
            ctypes.c_int(replays),
            ctypes.c_int(within),
            times,
            size(most),
            names,
            size(len(names)),
            message,
            size(MESSAGE),
        )
        if count < 0:
            raise TraceaError(message.value.decode())
        del keep
        symbols = names.value.decode().splitlines()
        return Times(times[0], [(symbols[k], times[k + 1]) for k in range(count)])


def run_plan(
    plan: Mapping[str, Any],
    blobs: Sequence[bytes],
    inputs: Sequence[Array],
    initializers: Mapping[str, Array] | None = None,
    *,
    device: int = 0,
) -> list[Array]:
    """Outputs of a CUDA Plan for `inputs`; see `LoadedPlan`."""
    with LoadedPlan(plan, blobs, initializers, device=device) as loaded:
        return loaded.run(inputs)


def time_plan(
    plan: Mapping[str, Any],
    blobs: Sequence[bytes],
    inputs: Sequence[Array],
    replays: int = 100,
    initializers: Mapping[str, Array] | None = None,
    *,
    device: int = 0,
) -> Times:
    """Device times of a CUDA Plan for `inputs`; see `LoadedPlan.time`."""
    with LoadedPlan(plan, blobs, initializers, device=device) as loaded:
        return loaded.time(inputs, replays)
