"""ONNX's element types and numpy's, without onnx where numpy itself has the type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.ir.messages import Message, in_onnx

#: The number of strings, which no kernel reads (those of other types: `abi.DType`).
STRING = 8
#: Of numpy's own types.
_NUMPY = {
    1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", STRING: "O", 9: "?", 10: "f2",
    11: "f8", 12: "u4", 13: "u8", 14: "c8", 15: "c16",
}  # fmt: skip


@cache
def numpy_type(number: int) -> np.dtype[Any]:
    """Of an element type. Raises KeyError for a number that is none."""
    if number in _NUMPY:
        return np.dtype(_NUMPY[number])
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def tensor_values(t: Any) -> npt.NDArray[Any]:
    """The values of a tensor that holds them. Raises ValueError or TypeError for a damaged one."""
    if isinstance(t, Message) and t.data_type in _NUMPY and t.HasField("raw_data"):
        return np.frombuffer(t.raw_data, numpy_type(t.data_type)).reshape(t.dims)
    from onnx import numpy_helper

    tensor: Any = in_onnx(t)
    return numpy_helper.to_array(tensor)
