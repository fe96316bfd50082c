"""fp16 and bf16: their ranges, and conversion of constants to them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from onnx import NodeProto, TensorProto, helper

from tracea_onnx.ir import edit
from tracea_onnx.ir.abi import LARGEST, DType
from tracea_onnx.ir.graph import Array, Graph, tensor_array
from tracea_onnx.support.data_classes import dataclass

#: Elements that one thread converts at a time.
_PART = 1 << 20


@dataclass(frozen=True)
class FloatFormat:
    """A narrow floating-point type: ONNX's number and name, unit roundoff eps, and the largest
    finite value where that is below fp32's.
    """

    name: str
    type: int
    text: str
    eps: float
    largest: float | None

    def beyond(self, value: Array) -> bool:
        """Whether some finite element is beyond the type's range."""
        if self.largest is None or not value.size:
            return False
        if all(-self.largest <= v <= self.largest for v in (np.min(value), np.max(value))):
            return False  # NaN is in no range
        return bool(np.any(np.abs(value[np.isfinite(value)]) > self.largest))

    def convert(self, value: Array) -> Array:
        """The bits of the values rounded to nearest, as uint16; finite stays finite, and what is
        not zero stays so (the smallest subnormal instead).
        """
        value = np.ascontiguousarray(value, np.float32)
        out = np.empty(value.shape, np.uint16)
        source, target = value.reshape(-1), out.reshape(-1)
        parts = [slice(k, k + _PART) for k in range(0, value.size, _PART)]

        def convert(part: slice) -> None:
            target[part] = self._converted(source[part])

        if len(parts) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets go of Python's lock
                list(pool.map(convert, parts))
        else:
            for part in parts:
                convert(part)
        return out

    def _converted(self, value: Array) -> Array:
        dtype = helper.tensor_dtype_to_np_dtype(self.type)
        zero, infinity = np.array([0.0, np.inf]).astype(dtype)
        largest = np.nextafter(infinity, zero).astype(np.float32)
        least = np.nextafter(zero, infinity).astype(np.float32)
        if not all(-largest <= v <= largest for v in (np.min(value), np.max(value))):
            value = np.where(np.isfinite(value), np.clip(value, -largest, largest), value)
        with np.errstate(invalid="ignore"):  # signalling NaN
            out: Array = value.astype(dtype).view(np.uint16)
        lost = (out & 0x7FFF == 0) & (value != 0)
        if np.any(lost):
            out[lost] = np.copysign(least, value[lost]).astype(dtype).view(np.uint16)
        return out


FP16 = FloatFormat(
    "fp16", int(TensorProto.FLOAT16), "tensor(float16)", 2.0**-10, LARGEST[DType.F16]
)
BF16 = FloatFormat("bf16", int(TensorProto.BFLOAT16), "tensor(bfloat16)", 2.0**-7, None)
FORMATS = {k.name: k for k in (FP16, BF16)}


class Weights:
    """Narrow twins of a graph's constants: initializers (`made`) or, in a function's body,
    literals.
    """

    def __init__(self, g: Graph, kind: FloatFormat, clamped: list[str]) -> None:
        self.g, self.kind, self._clamped = g, kind, clamped
        self.made: list[TensorProto] = []
        self.literals: dict[str, NodeProto] = {}
        self._body = not g.proto.initializer and any(n.op == "Constant" for n in g.nodes)

    def narrow(self, name: str, taken: set[str]) -> str | None:
        """The name of the constant's narrow twin, which in a body is a literal still to be written;
        None for what is no constant.
        """
        value = self._value(name)
        if value is None:
            return None
        if self.kind.beyond(value):
            self._clamped.append(name)
        tensor = self._tensor(value)
        tensor.name = edit.unique(f"{name}/{self.kind.name}", taken)
        if not self._body:
            self.made.append(tensor)
            return tensor.name
        self.literals[tensor.name] = helper.make_node("Constant", [], [tensor.name], value=tensor)
        return tensor.name

    def _value(self, name: str) -> Array | None:
        """The constant's values, read for this once: kept, they would be a second copy of the
        model.
        """
        scope: Graph | None = self.g
        while scope is not None and scope.is_const(name):
            stored = next((t for t in scope.proto.initializer if t.name == name), None)
            if stored is not None:
                return tensor_array(stored, scope.folder)
            scope = scope.outer if scope.producer(name) is None else None
        return self.g.const(name)

    def _tensor(self, value: Array) -> TensorProto:
        out = TensorProto(data_type=self.kind.type, dims=value.shape)
        out.raw_data = self.kind.convert(value).tobytes()
        return out

    def add_scalar(self, name: str, value: float) -> None:
        """An fp32 scalar the graph needs."""
        self.made.append(helper.make_tensor(name, TensorProto.FLOAT, (), [value]))

    def scalars(self) -> list[NodeProto]:
        """Constant nodes of the narrow scalars."""
        return [helper.make_node("Constant", [], [t.name], value=t) for t in self.made]
