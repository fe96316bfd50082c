"""What the pipeline tests share: models written as text, throw-away rules, and a run on ONNX
Runtime with optimisations off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from tracea_onnx.ir.contracts import Match, Rule, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why

Array = npt.NDArray[Any]


def parse(
    text: str, *, opset: int = 17, ir: int = 8, extra: str = "", **initializers: Any
) -> ModelProto:
    """A model from ONNX's text form; `initializers` are added by name."""
    model: ModelProto = onnx.parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : {opset}{extra}]> {text}'
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v, order="C"), k) for k, v in initializers.items()
    )
    return model


def run(model: ModelProto, feeds: dict[str, Array], *, optimise: bool = False) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    results: list[Any] = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    return results


def ops(model: ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def same_bits(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )


def _then_relu(graph: Graph, node: Node, rule: str, spec: Spec) -> Match:
    reader = graph.sole_consumer(node.outputs[0])
    if reader is None or reader.op != "Relu":
        raise Refuse(Why.ALONE, node, near=reader is not None)
    return Match(
        rule, node, (node, reader), tuple(i for i in node.inputs if i), reader.outputs, spec
    )


def _add_relu(graph: Graph, node: Node) -> Match:
    return _then_relu(graph, node, "add_relu", Spec("pointwise", ("x0", "x1"), {}))


def _conv_relu(graph: Graph, node: Node) -> Match:
    return _then_relu(
        graph, node, "conv_relu", Spec("conv", ("x", "w", "b")[: len(node.inputs)], {})
    )


ADD_RELU = Rule("add_relu", "Pointwise", frozenset({"Add"}), _add_relu)
CONV_RELU = Rule("conv_relu", "Conv", frozenset({"Conv"}), _conv_relu)
RULES = (ADD_RELU, CONV_RELU)


def copy(model: ModelProto) -> ModelProto:
    out = ModelProto()
    out.CopyFrom(model)
    return out


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small_cnn() -> ModelProto:
    """Two convolutions with activations, a residual, and a head; dynamic batch."""
    text = """
    cnn (float[batch, 3, 8, 8] image) => (float[batch, 5] scores)
    {
      a = Conv <pads = [1, 1, 1, 1]> (image, w1, b1)
      r = Relu (a)
      c = Conv <pads = [1, 1, 1, 1]> (r, w2)
      s = Add (c, r)
      t = Relu (s)
      g = GlobalAveragePool (t)
      f = Flatten (g)
      scores = Gemm <transB = 1> (f, w3, b3)
    }
    """
    return parse(
        text,
        w1=normal(7, 3, 3, 3, seed=1),
        b1=normal(7, seed=2),
        w2=normal(7, 7, 3, 3, seed=3),
        w3=normal(5, 7, seed=4),
        b3=normal(5, seed=5),
    )


def leaving() -> ModelProto:
    """A fused convolution, and two nodes that no kernel computes."""
    return parse(
        """
        g (float[1, 3, 8, 8] x, int64[4, 5] i) => (float[1, 4, 8, 8] y, float[4, 5] h, float[1, 4,
            8, 8] d)
        {
          a = Conv <pads = [1, 1, 1, 1]> (x, w)
          y = Relu (a)
          h = RandomUniformLike <dtype = 1> (i)
          d = Det2 (y)
        }
        """.replace("Det2", "com.microsoft.Unheard"),
        extra=', "com.microsoft" : 1',
        w=normal(4, 3, 3, 3),
    )
