"""Sizes that exporters compute by way of floats: ceil(height / 2) * 2 of an image."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.sessions import assigned, session
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import find, rule_set

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 3, 9, 8] x, float[5, 3, 1, 1] w) => (float[a, b, c] y)
<int64 two = {2}, float half = {2.0}, int64[1] at = {0}, int64[1] one = {1},
    int64[1] rest = {-1}> {
  image = Conv <pads = [0, 0, 1, 0]> (x, w)
  shape = Shape (image)
  height = Gather (shape, two)
  exact = Cast <to = 1> (height)
  halves = Div (exact, half)
  whole = Ceil (halves)
  even = Mul (whole, half)
  rows = Cast <to = 7> (even)
  row = Unsqueeze (rows, at)
  batch = Slice (shape, at, one)
  target = Concat <axis = 0> (batch, row, rest)
  y = Reshape (image, target)
}"""


def _model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        MODEL.replace("int64[1] rest", "int64[1] one = {1}, int64[1] rest")
    )
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.arange(15, dtype=np.float32).reshape(5, 3, 1, 1), "w")
    )
    return model


def test_no_kernel_computes_them() -> None:
    model = onnx.shape_inference.infer_shapes(_model())
    matches, refused = find.find(Graph(model), rules=rule_set.rules())
    assert not any(m.spec.op == "pointwise" for m in matches)
    assert any("sizes that are known" in r.reason for r in refused)


@pytest.mark.parametrize("n", [1, 3])
def test_all_nodes_are_on_the_provider(n: int) -> None:
    model = _model()
    made = session(model, provider=True)
    ours, total = assigned(made)
    assert ours == total
    x = np.random.default_rng(0).standard_normal((n, 3, 9, 8)).astype(np.float32)
    (got,), (want,) = made.run(None, {"x": x}), session(model).run(None, {"x": x})
    assert got.shape == (n, 10, 40)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
