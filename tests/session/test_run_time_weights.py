"""Convolutions whose weights and biases are values of a run, or defaults that a caller may replace,
against float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import double
from tests.support.sessions import assigned, session

RNG = np.random.default_rng(0)

CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (2, 3, 11, 9), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 32, 7, 8), (17, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (2, 6, 8, 7), (4, 3, 1, 2), {"group": 2, "strides": [2, 1]}),
    ("Conv", (1, 19, 6, 5), (19, 1, 3, 3), {"group": 19}),
    ("Conv", (2, 8, 21), (7, 8, 5), {"dilations": [2]}),
    ("ConvTranspose", (1, 5, 6, 7), (5, 3, 3, 2), {"strides": [2, 1]}),
]


def _model(
    op: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], stored: Any
) -> Any:
    """Weight and bias are inputs; `stored`: their defaults. The weight is scaled, too, so that it
    is what a node makes.
    """
    channels = w[1] if op == "ConvTranspose" else w[0]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *x[1:]]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, w),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, (channels,)),
    ]
    nodes = [
        helper.make_node("Mul", ["w", "two"], ["w2"]),
        helper.make_node(op, ["x", "w2" if not stored else "w", "b"], ["c"], **attrs),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    kept = [numpy_helper.from_array(np.array(2, np.float32), "two")]
    kept += [numpy_helper.from_array(v, k) for k, v in stored.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes[1 if stored else 0 :], "g", inputs, [out], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(("op", "x", "w", "attrs"), CASES)
def test_against_float64(op: str, x: Any, w: Any, attrs: dict[str, Any], default: bool) -> None:
    feeds = {
        "x": RNG.standard_normal(x).astype(np.float32),
        "w": RNG.standard_normal(w).astype(np.float32),
        "b": RNG.standard_normal(w[1] if op == "ConvTranspose" else w[0]).astype(np.float32),
    }
    stored = {k: np.zeros_like(feeds[k]) for k in "wb"} if default else {}
    model = _model(op, x, w, attrs, stored)
    made = session(model, provider=True)
    ours, total = assigned(made)
    assert ours == total
    for _ in range(2):  # another weight in every run
        got = made.run(None, feeds)[0]
        want = np.asarray(double.run(model, feeds)[0])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        feeds["w"] = feeds["w"][::-1].copy()
    if default:
        np.testing.assert_array_equal(made.run(None, {"x": feeds["x"]})[0], 0.0)
