"""Sizes that exporters compute by way of floats: ceil(height / 2) * 2 of an image."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.sessions import assigned, session
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import find, rule_set
from tracea_onnx.shapes.environment import Whole
from tracea_onnx.shapes.symbolic import shapes

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


_SIZES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, m] x, int64[9] places, float[4, 5] w) => (y, z, u, v)
<int64 first = {0}, int64 second = {1}, int64[1] start = {0}, float most = {4.0},
    float one = {1.0}, float half = {0.5}, int64[1] axis = {0}, int64[1] at = {0}> {
  t = MatMul (x, w)
  shape = Shape (x)
  rows = Gather (shape, first)
  columns = Gather (shape, second)
  height = Cast <to = 1> (rows)
  width = Cast <to = 1> (columns)
  fewer = Min (height, most)
  end = Cast <to = 7> (fewer)
  ends = Unsqueeze (end, at)
  y = Slice (places, start, ends, axis)
  after = Add (height, one)
  z = Range (one, after, one)
  ratio = Div (height, width)
  up = Ceil (ratio)
  count = Cast <to = 7> (up)
  counts = Unsqueeze (count, at)
  u = Expand (half, counts)
  scaled = Mul (height, half)
  v = Add (t, scaled)
}"""


@pytest.mark.parametrize(("n", "m"), [(2, 4), (5, 4), (9, 4), (4, 4), (1, 4)])
def test_floats_that_hold_sizes(n: int, m: int) -> None:
    """The smaller of a size and a number, a Range of floats, and a ratio, which is no whole one."""
    model = onnx.parser.parse_model(_SIZES)
    for info in model.graph.output:
        info.type.tensor_type.elem_type = 7 if info.name == "y" else 1
    feeds = {
        "x": np.ones((n, m), np.float32),
        "places": np.arange(9),
        "w": np.ones((4, 5), np.float32),
    }
    got = session(model, provider=True).run(None, feeds)
    for a, b in zip(got, session(model).run(None, feeds), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_ranges_of_floats_are_on_the_provider() -> None:
    source = _SIZES.replace("(y, z, u, v)", "(y, z, v)")
    source = "\n".join(k for k in source.splitlines() if k.split("=")[0].strip() not in _RATIO)
    model = onnx.parser.parse_model(source)
    for info in model.graph.output:
        info.type.tensor_type.elem_type = 7 if info.name == "y" else 1
    ours, total = assigned(session(model, provider=True))
    assert ours == total


_RATIO = ("width", "ratio", "up", "count", "counts", "u", "columns")


def test_a_ratio_of_sizes_is_no_size() -> None:
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(_SIZES))
    found = shapes(Graph(model))
    assert found.content("ratio") is None and found.content("up") is None
    low = found.content("fewer")
    assert low is not None and isinstance(low.item(), Whole)
