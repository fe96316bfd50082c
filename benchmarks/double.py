"""A float64 evaluation of a float32 model by ONNX's reference implementation: the judge where two float32 runtimes disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class OneHot(OpRun):
    """The evaluator's own OneHot does not take a depth of shape [1], which the operator allows."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int = -1) -> tuple[Any]:
        size = int(np.reshape(depth, -1)[0])
        hot = np.mod(np.asarray(indices, np.int64), size)[..., None] == np.arange(size)
        return (np.where(np.moveaxis(hot, -1, axis), values[1], values[0]),)


class ImageScaler(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: scale * x + bias of each channel."""

    def _run(self, x: Any, bias: Any = None, scale: float = 1.0) -> tuple[Any]:
        return (x * scale + np.asarray(bias, np.float64).reshape(1, -1, 1, 1),)


class Crop(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: border is left, top, right, bottom; scale is height, width."""

    def _run(self, x: Any, border: Any = None, scale: Any = None) -> tuple[Any]:
        left, top, right, bottom = (int(v) for v in border)
        height, width = x.shape[2], x.shape[3]
        end = (top + int(scale[0]), left + int(scale[1])) if scale else (height - bottom, width - right)
        return (x[:, :, top : end[0], left : end[1]],)


class Affine(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: alpha * x + beta."""

    def _run(self, x: Any, alpha: float = 1.0, beta: float = 0.0) -> tuple[Any]:
        return (alpha * x + beta,)


def _widened(t: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for g in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                yield from _graphs(g)


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model that computes in float64 wherever it computed in float32."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for graph in _graphs(out.graph):
        del graph.value_info[:]
        for t in graph.initializer:
            if t.data_type == TensorProto.FLOAT:
                t.CopyFrom(_widened(t))
        for value in [*graph.input, *graph.output]:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            for a in node.attribute:
                if a.type == AttributeProto.TENSOR and a.t.data_type == TensorProto.FLOAT:
                    a.t.CopyFrom(_widened(a.t))
                elif node.op_type in ("Cast", "EyeLike", "RandomNormal", "RandomUniform") and a.name in ("to", "dtype") and a.i == TensorProto.FLOAT:
                    a.i = TensorProto.DOUBLE
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name in ("value_float", "value_floats"):
                a = node.attribute[0]
                values = np.asarray(a.f if a.name == "value_float" else list(a.floats), np.float32).astype(np.float64)
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))
    return out


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """The model's outputs in float64. Raises what the reference evaluator raises for an operator it does not have. Slow: seconds a GFLOP."""
    wide = {k: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype == np.float32 else v for k, v in feeds.items()}
    return list(ReferenceEvaluator(widen(model), new_ops=[OneHot, ImageScaler, Crop, Affine]).run(None, wide))


def errors(exact: Sequence[Any], got: Sequence[Any]) -> list[float]:
    """Root mean square error of each float output against the exact one; infinite where shapes or the places of infinities differ."""
    out = []
    for a, b in zip(exact, got, strict=True):
        x, y = np.asarray(a), np.asarray(b)
        if y.dtype != np.float32:
            continue
        finite = np.isfinite(x) & (np.abs(x) < np.finfo(np.float32).max)
        same = x.shape == y.shape and bool(np.array_equal(finite, np.isfinite(y)))
        out.append(float(np.sqrt(np.mean((x[finite] - y[finite]) ** 2))) if same and finite.any() else 0.0 if same else float("inf"))
    return out
