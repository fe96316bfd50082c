"""One check of a CUDA kernel family: operands as they lie in memory, and what float64 says the
outputs must be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

Array = np.ndarray[Any, Any]
#: Unit roundoff of a stored result.
ROUNDOFF = {DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
_NUMPY = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16, DType.F64: np.float64,
    DType.I64: np.int64, DType.I32: np.int32, DType.I16: np.int16,
    DType.I8: np.int8, DType.U64: np.uint64, DType.U32: np.uint32, DType.U16: np.uint16,
    DType.U8: np.uint8, DType.BOOL: np.uint8,
}  # fmt: skip


def stored(x: Array, dtype: DType) -> Array:
    """`x` as it lies in memory: bfloat16 as its upper 16 bits, rounded to nearest even."""
    if dtype != DType.BF16:
        return np.ascontiguousarray(x, _NUMPY[dtype])
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def value(a: Array, dtype: DType) -> Array:
    """Stored elements as float64 (integers stay what they are)."""
    if dtype == DType.BF16:
        return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return a.astype(np.float64) if dtype in (DType.F32, DType.F16, DType.F64) else a


def poisoned(count: int, dtype: DType) -> Array:
    """A buffer whose elements no kernel would write: NaN, or a bit pattern."""
    a = np.full(count, 0x5A, np.uint8).repeat(dtype.size).view(_NUMPY[dtype])
    if dtype in (DType.F32, DType.F16, DType.F64):
        a = np.full(count, np.nan, _NUMPY[dtype])
    return np.full(count, 0x7FC1, np.uint16) if dtype == DType.BF16 else a


@dataclass(frozen=True)
class Output:
    """Where a result lies in its buffer of `count` elements and what it must be. bound: largest
    error; None demands equality.
    """

    dtype: DType
    count: int
    shape: Sequence[int]
    strides: Sequence[int]
    want: Array
    bound: Array | float | None
    offset: int = 0

    def read(self, buffer: Array) -> Array:
        if 0 in self.shape:
            return np.zeros(self.shape, buffer.dtype)
        return np.lib.stride_tricks.as_strided(
            buffer[self.offset :], self.shape, [s * buffer.itemsize for s in self.strides]
        )

    def error(self, buffer: Array) -> float:
        """Worst error over its bound; above 1 is wrong.

        NaN and infinities must be where they belong.
        """
        got = value(self.read(buffer), self.dtype)
        if self.want.size == 0:
            return 0.0
        if self.bound is None:
            return 0.0 if np.array_equal(got, self.want) else np.inf
        with np.errstate(all="ignore"):
            same = (got == self.want) | (np.isnan(got) & np.isnan(self.want))
            ratio = np.abs(got - self.want) / self.bound
        ratio = np.where(same, 0.0, np.where(np.isnan(ratio), np.inf, ratio))
        return float(ratio.max())


def contiguous(shape: Sequence[int]) -> list[int]:
    out, step = [], 1
    for d in reversed(shape):
        out.append(step)
        step *= max(d, 1)
    return out[::-1]


def plain(dtype: DType, want: Array, bound: Array | float | None) -> Output:
    """A contiguous result."""
    return Output(dtype, want.size, want.shape, contiguous(want.shape), want, bound)


def rounding(want: Array, dtype: DType, magnitude: Array | float, steps: float = 8.0) -> Array:
    """Bound of a result: rounding to its type, and `steps` units of f32 of the magnitude of what
    was added up.
    """
    u = ROUNDOFF.get(dtype, 0.0)
    with np.errstate(all="ignore"):
        tiny = {DType.F16: 2.0**-24, DType.F32: 1e-37}.get(dtype, 1e-37)
        return np.asarray(1.01 * u * np.abs(want) + steps * 2.0**-24 * magnitude + tiny)


@dataclass(frozen=True)
class Case:
    """One launch of a family and its expected outputs. operands: input name to stored array; env:
    values of symbols; constant: as of a Request; tile: what the kernel must use, whatever would be
    chosen.
    """

    name: str
    family: str
    dtype: DType
    ints: Mapping[str, DimLike]
    operands: Mapping[str, Array]
    outputs: Mapping[str, Output]
    floats: Mapping[str, float] = field(default_factory=dict)
    program: Mapping[str, Any] | None = None
    env: Mapping[str, int] = field(default_factory=dict)
    unaligned: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    tile: Any = None


def quantised(case: Case, k: int, *, kept: bool = False) -> Case:
    """The same by the family that quantises y, to U8 or I8 as `k` says: in q, beside y where it is
    kept, or, of a family that reads a q, in place of y.
    """
    y, scale, kind = case.outputs["y"], 0.03125, (DType.U8, DType.I8)[k % 2]
    zero, low = (120, 0) if kind == DType.U8 else (-7, -128)
    at, steps = y.want / scale, np.broadcast_to(np.asarray(y.bound) / scale, y.want.shape)
    with np.errstate(invalid="ignore"):
        tie = np.abs(at - np.floor(at) - 0.5) <= steps
        want = np.clip(np.rint(at) + zero, low, low + 255)
    bound = np.where(tie, 1.0 + np.floor(steps), 1e-9)
    nothing = np.isnan(want)  # becomes any integer
    want, bound = np.where(nothing, 0, want), np.where(nothing, 256.0, bound)
    family = f"{case.family}_quantised"
    name = "y" if "q" in case.operands else "q"
    made = {name: replace(y, dtype=kind, want=want, bound=bound)}
    outputs = {n: o for n, o in case.outputs.items() if n != "y" or (kept and name == "q")}
    return replace(
        case, name=f"{case.name} {kind.name}", family=family, outputs={**outputs, **made},
        ints={**case.ints, "q_dtype": int(kind), "q_zero": zero},
        floats={**case.floats, "q_scale": scale},
    )  # fmt: skip
