"""A float64 evaluation of a float32 model by ONNX's reference implementation: the judge where two
float32 runtimes disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, OpRun

from tests.support import recurrent
from tracea_onnx.verify import float64
from tracea_onnx.verify.float64_operators import OPERATORS

#: Operators that round nothing (they move values, choose among them, or call others), and those
#: that add up their operands or products of these, beside those whose names say so.
_EXACT, _SUMS = (
    frozenset(names.split())
    for names in (
        """Abs Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape DepthToSpace
        Dropout Expand Flatten Floor Gather GatherElements GatherND GlobalMaxPool Identity If
        Loop Max MaxPool Min Neg OneHot Pad ReduceMax ReduceMin Relu Reshape ReverseSequence
        Round Scan ScatterElements ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK
        Transpose Trilu Unsqueeze Where""",
        (
            "Attention AveragePool Conv ConvTranspose CumSum Einsum GRU Gemm GlobalAveragePool "
            "LSTM "
            "LogSoftmax MatMul Mean RNN Resize Softmax Sum"
        ),
    )
)


def _roughly(value: Any, rng: np.random.Generator, rounded: Any) -> Any:
    """A float64 value with the elements of a mask moved by a rounding of float32 up or down."""
    return value * (
        1.0 + float(np.finfo(np.float32).eps) * rng.choice([-1.0, 1.0], value.shape) * rounded
    )


def _noisy(rng: np.random.Generator) -> type[ReferenceEvaluator]:
    """An evaluator whose nodes, and those of bodies and functions, err as float32 does: each result
    that is no number of float32 by a rounding, and what is added up by one more, as products and
    partial sums are.
    """

    class Noisy(ReferenceEvaluator):
        def _init(self) -> None:
            super()._init()
            for node in self.rt_nodes_:
                if node.op_type not in _EXACT and not isinstance(node, OpFunction):
                    node.run = _with_noise(node, rng)

    return Noisy


def _with_noise(node: Any, rng: np.random.Generator) -> Any:
    run, name = node.run, node.op_type
    sums = name in _SUMS or name.startswith("Reduce") or name.endswith("Normalization")

    def noisy(*args: Any, **more: Any) -> Any:
        if sums:
            args = tuple(
                _roughly(a, rng, a != np.rint(a))
                if isinstance(a, np.ndarray) and a.dtype == np.float64
                else a
                for a in args
            )
        with np.errstate(all="ignore"):
            return tuple(
                _roughly(v, rng, v != v.astype(np.float32))
                if isinstance(v, np.ndarray) and v.dtype == np.float64
                else v
                for v in run(*args, **more)
            )

    return noisy


class _Recurrent(OpRun):
    """The evaluator's own layers have the usual activations alone, and rows of one length."""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        names = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
        feeds = {n: v for n, v in zip(names, inputs, strict=False) if v is not None}
        given = {n: v for n, v in attributes.items() if v is not None}
        made = recurrent.run(type(self).__name__, feeds, given)
        return made if isinstance(self, LSTM) else made[:2]


class LSTM(_Recurrent):
    """As ONNX defines it."""


class GRU(_Recurrent):
    """As ONNX defines it."""


class RNN(_Recurrent):
    """As ONNX defines it."""


def run(
    model: onnx.ModelProto, feeds: Mapping[str, Any], noise: np.random.Generator | None = None
) -> list[Any]:
    """The model's outputs in float64, or as they come out when each node errs as float32 does.
    Raises what the reference evaluator raises for an operator it does not have. Slow: seconds a
    GFLOP.
    """
    wide = {
        k: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype == np.float32 else v
        for k, v in feeds.items()
    }
    return list(
        (ReferenceEvaluator if noise is None else _noisy(noise))(
            float64.widen(model), new_ops=[*OPERATORS, LSTM, GRU, RNN]
        ).run(None, wide)
    )


def errors(exact: Sequence[Any], got: Sequence[Any]) -> list[float]:
    """Root mean square error of each float output against the exact one; infinite where shapes or
    the places of infinities differ.
    """
    out = []
    for a, b in zip(exact, got, strict=True):
        x, y = np.asarray(a), np.asarray(b)
        if y.dtype != np.float32:
            continue
        finite = np.isfinite(x) & (np.abs(x) < np.finfo(np.float32).max)
        same = x.shape == y.shape and bool(np.array_equal(finite, np.isfinite(y)))
        out.append(
            float(np.sqrt(np.mean((x[finite] - y[finite]) ** 2)))
            if same and finite.any()
            else 0.0
            if same
            else float("inf")
        )
    return out
