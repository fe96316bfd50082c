"""CUDA Plans run from Python without ONNX Runtime: kernel tests and the tuner, never a session.

# plan: PlanBuilder.to_json(); blobs: its cubins and constants
(y,) = run_plan(plan, blobs, [x])
times = time_plan(plan, blobs, [x], replays=200)  # microseconds on the device
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.builder import write_pack
from tracea_onnx.runtime import device_caps
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.library import library_path

Array = npt.NDArray[Any]

#: How an element type appears in numpy; bfloat16 as its 16 bits.
NUMPY: Mapping[int, type[np.generic]] = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16, DType.F64: np.float64,
    DType.BOOL: np.bool_, DType.U8: np.uint8, DType.I8: np.int8,
    DType.I32: np.int32, DType.I64: np.int64,
}  # fmt: skip

_MESSAGE = 512
_OUTPUT = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_size_t,
)


class _HostTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


@dataclass(frozen=True)
class Times:
    """Microseconds on the device: `total` of one replay of all launches as a graph, `launches` of
    each launch (symbol, time).
    """

    total: float
    launches: list[tuple[str, float]]


def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library_path()))
    lib.tracea_cuda_open.restype = ctypes.c_void_p
    lib.tracea_cuda_time.restype = ctypes.c_int64
    return lib


def properties(ordinal: int = 0) -> dict[str, str]:
    """What a compile request's metadata says of a CUDA device, which this initialises.

    Raises TraceaError when there is no driver or no such device.
    """
    text, message, size = (
        ctypes.create_string_buffer(4096),
        ctypes.create_string_buffer(_MESSAGE),
        ctypes.c_size_t,
    )
    if _library().tracea_cuda_device(ordinal, text, size(len(text)), message, size(_MESSAGE)):
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
        pack = write_pack([(["plan"], dict(plan), list(blobs))], "native_cuda")
        arrays = {n: np.ascontiguousarray(a) for n, a in (initializers or {}).items()}
        count = max(len(arrays), 1)
        names = (ctypes.c_char_p * count)(*(n.encode() for n in arrays))
        data = (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays.values()))
        sizes = (ctypes.c_size_t * count)(*(a.nbytes for a in arrays.values()))
        message, size = ctypes.create_string_buffer(_MESSAGE), ctypes.c_size_t
        self._handle = ctypes.c_void_p(
            self._lib.tracea_cuda_open(
                device,
                int(graphs),
                pack,
                size(len(pack)),
                names,
                data,
                sizes,
                size(len(arrays)),
                message,
                size(_MESSAGE),
            )
        )
        if not self._handle:
            raise TraceaError(message.value.decode())

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.tracea_cuda_close(self._handle)
        self._handle = ctypes.c_void_p()

    def _tensors(self, inputs: Sequence[Array]) -> tuple[Any, list[Any]]:
        specs = self.plan["inputs"]
        if len(inputs) != len(specs):
            raise UsageError(f"the plan has {len(specs)} inputs, {len(inputs)} were given")
        keep: list[Any] = []
        rows = []
        for spec, given in zip(specs, inputs, strict=True):
            a = np.ascontiguousarray(given).reshape(given.shape)
            if a.dtype != np.dtype(NUMPY[spec["dtype"]]):
                raise UsageError(
                    f"input '{spec['name']}' must be {np.dtype(NUMPY[spec['dtype']])}, not "
                    f"{a.dtype}"
                )
            dims = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
            keep += [a, dims]
            rows.append(_HostTensor(a.ctypes.data, spec["dtype"], a.ndim, dims))
        return (_HostTensor * max(len(rows), 1))(*rows), keep

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for these inputs, in the Plan's order."""
        tensors, keep = self._tensors(inputs)
        outputs: list[Array] = []

        def output(_: int, k: int, dims: Any, rank: int) -> int:
            outputs.append(
                np.empty(
                    tuple(dims[i] for i in range(rank)), NUMPY[self.plan["outputs"][k]["dtype"]]
                )
            )
            return int(outputs[-1].ctypes.data)

        message, size = ctypes.create_string_buffer(_MESSAGE), ctypes.c_size_t
        if self._lib.tracea_cuda_run(
            self._handle, tensors, size(len(inputs)), _OUTPUT(output), None, message, size(_MESSAGE)
        ):
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
        tensors, keep = self._tensors(inputs)
        most = len(self.plan["run"]) + 1
        times = (ctypes.c_double * most)()
        names, message = (
            ctypes.create_string_buffer(256 * most),
            ctypes.create_string_buffer(_MESSAGE),
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
            size(_MESSAGE),
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
