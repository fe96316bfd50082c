"""How far two runs of a model are apart, and how far they may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

#: 2 eps sqrt(K) of fp32 at K = 4608 (a 3x3 convolution of 512 channels), times 2 for the depth of a
#: network.
SINGLE = 3.2e-5
#: The same for 10 bits of mantissa at K = 64: half precision networks differ this much between any
#: two kernels.
HALF = 1.6e-2


def floor(model: onnx.ModelProto) -> float:
    """The difference any two correct evaluations of the model may have, relative to an output's
    largest value.
    """
    half = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    stored = any(t.data_type in half for t in model.graph.initializer)
    cast = any(
        a.name == "to" and a.i in half
        for n in model.graph.node
        if n.op_type == "Cast"
        for a in n.attribute
    )
    fed = any(i.type.tensor_type.elem_type in half for i in model.graph.input)
    return HALF if stored or cast or fed else SINGLE


def difference(expected: Sequence[Any], got: Sequence[Any]) -> float:
    """Largest |a - b| over all outputs, each relative to its largest finite |a|.

    Infinite when lengths, dtypes, shapes, integers, strings, or the places of NaN and infinities
    differ.
    """
    if len(expected) != len(got):
        return math.inf
    return max((_one(a, b) for a, b in zip(expected, got, strict=True)), default=0.0)


def distance(expected: Any, got: Any) -> float:
    """The root of the mean square of the differences."""
    a, b = (np.asarray(v).astype(np.float64) for v in (expected, got))
    return float(np.sqrt(np.mean((a - b) ** 2)))


def _one(a: Any, b: Any) -> float:
    if isinstance(a, (list, tuple)):
        return difference(a, b) if isinstance(b, (list, tuple)) else math.inf
    if isinstance(a, dict):
        return (
            0.0
            if isinstance(b, dict)
            and a.keys() == b.keys()
            and all(math.isclose(a[k], b[k], rel_tol=1e-4, abs_tol=1e-6) for k in a)
            else math.inf
        )
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return math.inf
    if x.dtype.kind not in "fc":
        return 0.0 if np.array_equal(x, y) else math.inf
    if not x.size:
        return 0.0
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, y = x.astype(wide), y.astype(wide)
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(
        x[~finite], y[~finite], equal_nan=True
    ):
        return math.inf
    if not finite.any():
        return 0.0
    return float(np.abs(x - y)[finite].max() / max(np.abs(x[finite]).max(), 1e-30))
