"""`Value`: one tensor during lowering, with its type, dims, and where its elements are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dim_proofs import Dims as Dims
from tracea_onnx.ir.dims import DimLike, mul, product
from tracea_onnx.ir.graph import Array
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.environment import Unsupported as Unsupported
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class View:
    """Elements at `ref` + sum(index * stride); strides in elements."""

    ref: Ref
    strides: Dims


@dataclass(frozen=True)
class Nhwc:
    """Channels-last storage of a [N, C, H, W] tensor (rank 3 counts as H = 1): pitches per pixel,
    row and image, and the zero border (top, left, bottom, right) around each image.
    """

    ref: Ref
    cs: DimLike
    rs: DimLike
    ns: DimLike
    border: tuple[int, int, int, int] = (0, 0, 0, 0)

    def pitches(self, operand: str) -> dict[str, DimLike]:
        """The parameters of a launch that say where the images of this operand lie."""
        return {f"{operand}_cs": self.cs, f"{operand}_rs": self.rs, f"{operand}_ns": self.ns}


@dataclass(frozen=True)
class Deferred:
    """A tensor whose computation is deferred. A reader that can fuse it reads `parts`; any other
    calls `make`, which materializes it.

    kind: what `parts` are. "rows": table and indices of a lookup; "sum": summands; "concat":
    tensors concatenated along the axis before the last; "tuples": members of integer tuples;
    "one_hot": indices; "quantised": floats, scale and zero point of an 8-bit image of few channels;
    "norm": the rows. stage: the `pointwise_stages.Stage` that computes it, if it is pointwise.
    """

    kind: str
    parts: tuple[Value, ...]
    make: Callable[[], None]
    stage: object = None


@dataclass(frozen=True, eq=False)
class Late:
    """Ops that may be lowered with the op that reads them, as one launch. `make` tries it and
    returns whether it did.
    """

    ops: Sequence[Any]
    make: Callable[[], bool]


@dataclass(frozen=True, eq=False)
class Quantised:
    """(x - zero) * scale of integers, for each element; scale (F32) and zero, which may be absent,
    broadcast to them. dtype: of the result.
    """

    x: Value
    scale: Value
    zero: Value | None
    dtype: DType = DType.F32


@dataclass(frozen=True)
class Counted:
    """A result whose size along `axis` is known only after its kernel ran. Its dims are the largest
    possible ones; the kernel stores the size at `count`.
    """

    axis: int
    count: Ref


@dataclass
class Value:
    """One tensor.

    At least one of `data`/`ints` (contents known), `view`, `nhwc`, `initializer` or `deferred`
    tells where it is.
    """

    name: str
    dtype: DType
    shape: Dims
    view: View | None = None
    nhwc: Nhwc | None = None
    initializer: str = ""
    ints: Dims | None = None  # contents of a small integer tensor, row-major, possibly symbolic
    sizes: Array | None = None  # contents of a short tensor of floats that hold dims (Whole)
    data: Array | None = field(default=None, repr=False)  # contents of a constant, if at most 4 KiB
    deferred: Deferred | None = field(default=None, repr=False)
    quantised: Quantised | None = field(default=None, repr=False)  # what it is dequantised from
    prepared: bool = False  # made once per session, of constants
    counted: Counted | None = None  # nothing in its partition reads it
    # an integer tensor whose element is offset + sum(index * stride) of this (its buffer means
    # nothing)
    affine: View | None = None

    @property
    def rank(self) -> int:
        """How many axes the value has."""
        return len(self.shape)

    @property
    def elements(self) -> DimLike:
        """How many elements the value has."""
        return product(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same in every run of a session."""
        return bool(self.initializer) or self.data is not None or self.prepared

    def image(self) -> tuple[DimLike, DimLike, DimLike, DimLike]:
        """(N, C, H, W) of a rank-3 or rank-4 tensor."""
        if self.rank == 4:
            return self.shape[0], self.shape[1], self.shape[2], self.shape[3]
        if self.rank == 3:
            return self.shape[0], self.shape[1], 1, self.shape[2]
        raise Unsupported(
            f"'{self.name}' has rank {self.rank}; convolution and pooling kernels take rank 3 or 4"
        )

    def nchw(self) -> dict[str, DimLike]:
        """The same as parameters of a launch."""
        return dict(zip("NCHW", self.image(), strict=True))

    @property
    def channels(self) -> int:
        """How many channels an image has."""
        c = self.shape[1]
        if not isinstance(c, int):
            raise Unsupported(
                f"the number of channels of '{self.name}' is symbolic; the kernels need a constant"
            )
        return c


def contiguous(shape: Sequence[DimLike]) -> Dims:
    """Row-major strides in elements."""
    out: list[DimLike] = []
    step: DimLike = 1
    for d in reversed(shape):
        out.append(step)
        step = mul(step, d)
    return tuple(reversed(out))


def same_strides(a: Dims, b: Dims, shape: Dims) -> bool:
    """Equal wherever it matters (a stride along a dim of 1 does not)."""
    return all(x is y or x == y or d == 1 for x, y, d in zip(a, b, shape, strict=True))


@dataclass(frozen=True)
class Blocks:
    """Channel (dy * row_step + dx * column_step) * channels + c of a concatenation is channel c of
    `image` at offset (dy, dx) of each 2x2 block.
    """

    image: Value
    row_step: int
    column_step: int


@dataclass(frozen=True)
class RowNorm:
    """norm(x) * (gamma + gamma_add) + beta of rows, which their reader normalises."""

    x: Value
    gamma: Value
    beta: Value | None
    eps: float
    rms: bool
    gamma_add: int


@dataclass(frozen=True)
class DeferredNorm:
    """norm(x) * (gamma + gamma_add) + beta of rows with these statistics."""

    x: Value
    statistics: Ref
    gamma: Value | None
    beta: Value | None
    eps: float
    rms: bool
    gamma_add: int

    @property
    def unscale(self) -> float:
        """A power of two that weights are divided by, so that gamma * w keeps its bits in 16-bit
        types.
        """
        if self.gamma is None or self.gamma.data is None:
            return 1.0
        most = float(
            np.abs(np.asarray(self.gamma.data, np.float64) + self.gamma_add).max(initial=0.0)
        )
        return 2.0 ** math.ceil(math.log2(most)) if 0.0 < most < math.inf else 1.0
