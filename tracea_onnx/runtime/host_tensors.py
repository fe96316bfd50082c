"""Tensors of numpy as the native library's harnesses take and give them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.builder import write_pack

Array = npt.NDArray[Any]

#: How an element type appears in numpy; bfloat16 as its 16 bits.
NUMPY: Mapping[int, type[np.generic]] = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16, DType.F64: np.float64,
    DType.BOOL: np.bool_, DType.U8: np.uint8, DType.I8: np.int8,
    DType.I32: np.int32, DType.I64: np.int64,
}  # fmt: skip

#: Bytes of room for a line that says what failed.
MESSAGE = 512
OUTPUT = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_size_t,
)


class HostTensor(ctypes.Structure):
    """The structure of that name of `ep/testing/host_tensor.h`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


def tensors_of(plan: Mapping[str, Any], inputs: Sequence[Array]) -> tuple[Any, list[Any]]:
    """A Plan's inputs as an array of `HostTensor`, and what must outlive it. Raises UsageError."""
    specs = plan["inputs"]
    if len(inputs) != len(specs):
        raise UsageError(f"the plan has {len(specs)} inputs, {len(inputs)} were given")
    keep: list[Any] = []
    rows = []
    for spec, given in zip(specs, inputs, strict=True):
        a = np.ascontiguousarray(given).reshape(given.shape)
        if a.dtype != np.dtype(NUMPY[spec["dtype"]]):
            raise UsageError(
                f"input '{spec['name']}' must be {np.dtype(NUMPY[spec['dtype']])}, not {a.dtype}"
            )
        dims = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        keep += [a, dims]
        rows.append(HostTensor(a.ctypes.data, spec["dtype"], a.ndim, dims))
    return (HostTensor * max(len(rows), 1))(*rows), keep


def outputs_of(plan: Mapping[str, Any], made: list[Array], places: Sequence[Array] = ()) -> Any:
    """The callback that gives memory for outputs: `places`, else arrays of its own. They are added
    to `made`.
    """

    def output(_: int, k: int, dims: Any, rank: int) -> int:
        made.append(
            places[k]
            if places
            else np.empty(tuple(dims[i] for i in range(rank)), NUMPY[plan["outputs"][k]["dtype"]])
        )
        return int(made[-1].ctypes.data)

    return OUTPUT(output)


def opened(
    function: Any,
    first: Sequence[Any],
    plan: Mapping[str, Any],
    blobs: Sequence[bytes],
    initializers: Mapping[str, Array],
) -> ctypes.c_void_p:
    """The handle that a function of the native library, which takes `first` and a Plan, opens.
    Raises TraceaError with the library's line.
    """
    pack = write_pack([(["plan"], dict(plan), list(blobs))], "harness")
    arrays = {n: np.ascontiguousarray(a) for n, a in initializers.items()}
    count = max(len(arrays), 1)
    names = (ctypes.c_char_p * count)(*(n.encode() for n in arrays))
    data = (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays.values()))
    sizes = (ctypes.c_size_t * count)(*(a.nbytes for a in arrays.values()))
    size, message = ctypes.c_size_t, ctypes.create_string_buffer(MESSAGE)
    function.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(
        function(
            *first, pack, size(len(pack)), names, data, sizes, size(len(arrays)), message,
            size(MESSAGE),
        )
    )  # fmt: skip
    if not handle:
        raise TraceaError(message.value.decode())
    return handle
