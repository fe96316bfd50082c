"""What nodes of a float32 model compute in float64, by ONNX's reference implementation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

Arrays = dict[str, Any]
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Unknown(Exception):
    """A value cannot be computed in float64; the reason."""


def _widened(t: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name)


def wide(value: Any, dtype: int = TensorProto.UNDEFINED) -> Any:
    """An array in float64 where it is one of floats. dtype: of bfloat16, whose bits it may hold."""
    if dtype == TensorProto.BFLOAT16:
        value = value.view(bfloat16)
    narrow = isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == bfloat16)
    return value.astype(np.float64) if narrow else value


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for g in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                yield from _graphs(g)


def widen(model: onnx.ModelProto, kinds: Sequence[int] = (TensorProto.FLOAT,)) -> onnx.ModelProto:
    """A copy of the model that computes in float64 wherever it computed in these types."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for graph in _graphs(out.graph):
        del graph.value_info[:]
        for t in graph.initializer:
            if t.data_type in kinds:
                t.CopyFrom(_widened(t))
        for value in [*graph.input, *graph.output]:
            if value.type.tensor_type.elem_type in kinds:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            for a in node.attribute:
                if a.type == AttributeProto.TENSOR and a.t.data_type in kinds:
                    a.t.CopyFrom(_widened(a.t))
                elif (
                    node.op_type in ("Cast", "EyeLike", "RandomNormal", "RandomUniform")
                    and a.name in ("to", "dtype")
                    and a.i in kinds
                ):
                    a.i = TensorProto.DOUBLE
            if (
                node.op_type == "Constant"
                and node.attribute
                and node.attribute[0].name in ("value_float", "value_floats")
            ):
                a = node.attribute[0]
                values = np.asarray(
                    a.f if a.name == "value_float" else list(a.floats), np.float32
                ).astype(np.float64)
                del node.attribute[:]
                node.attribute.append(
                    onnx.helper.make_attribute("value", numpy_helper.from_array(values))
                )
    return out


def evaluate(
    nodes: Sequence[NodeProto],
    opsets: Mapping[str, int],
    values: Arrays,
    wanted: Sequence[str],
    end: float,
) -> list[Any]:
    """Values of `wanted`. nodes: in their order, what they read among `values`, which they add to,
    and which lose what no later node reads. end: of `time.monotonic`. Raises Unknown: an operator
    that the evaluator does not have, or too late.
    """
    from onnx.reference import ReferenceEvaluator  # which takes long to import

    from tracea_onnx.verify.float64_operators import OPERATORS

    last = {name: k for k, n in enumerate(nodes) for name in n.input}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    for k, node in enumerate(nodes):
        if time.monotonic() > end:
            raise Unknown("float64 takes too long")
        read = {name: values[name] for name in node.input if name}
        inputs, outputs = (
            [onnx.ValueInfoProto(name=n) for n in names if n] for names in (read, node.output)
        )
        one = helper.make_model(
            helper.make_graph([node], "one", inputs, outputs), opset_imports=imports, ir_version=10
        )
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(widen(one, _NARROW), new_ops=list(OPERATORS)).run(
                    None, read
                )
        except Exception as e:
            said = " ".join(str(e).split())[:100]
            raise Unknown(f"{node.op_type} in float64: {type(e).__name__}: {said}") from None
        assert isinstance(results, list)
        values.update(zip((name for name in node.output if name), results, strict=True))
        for name in read:
            if last[name] == k and name not in wanted:
                del values[name]
    return [values[name] for name in wanted]
