"""Files whose declared shapes are not those that their operators give: ONNX Runtime runs them with
a warning, and the provider runs the same.
"""

from __future__ import annotations

import numpy as np
import onnx

from tests.support.sessions import assigned, session
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes.symbolic import shapes

#: Attention over single tokens, in a file that speaks of six.
MODEL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 6, 48] x) => (float[n, 6, 16] y)
<int64[5] parts = {-1, 1, 3, 2, 8}, int64[3] joined = {-1, 6, 16}, float scale = {0.35},
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
    float[n, 6, 3, 2, 8] split, float[3, n, 2, 6, 8] stacked, float[1, n, 2, 6, 8] q3,
    float[1, n, 2, 6, 8] k3, float[1, n, 2, 6, 8] v3, float[n, 2, 6, 8] q1, float[n, 2, 6, 8] q,
    float[n, 2, 6, 8] k, float[n, 2, 6, 8] v, float[n, 2, 8, 6] kt,
    float[n, 2, 6, 6] scores, float[n, 2, 6, 6] weights, float[n, 2, 6, 8] heads,
    float[n, 6, 2, 8] tokens> {
  split = Reshape (x, parts)
  stacked = Transpose <perm = [2, 0, 3, 1, 4]> (split)
  q3 = Slice (stacked, zero, one, zero)
  q1 = Squeeze (q3, zero)
  k3 = Slice (stacked, one, two, zero)
  k = Squeeze (k3, zero)
  v3 = Slice (stacked, two, three, zero)
  v = Squeeze (v3, zero)
  q = Mul (q1, scale)
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  scores = MatMul (q, kt)
  weights = Softmax <axis = -1> (scores)
  heads = MatMul (weights, v)
  tokens = Transpose <perm = [0, 2, 1, 3]> (heads)
  y = Reshape (tokens, joined)
}"""


def test_operators_say_what_runs() -> None:
    graph = Graph(onnx.parser.parse_model(MODEL))
    found = shapes(graph)
    assert [d for d in found.dims("split") or () if isinstance(d, int)] == [1, 3, 2, 8]
    assert (found.dims("tokens") or ())[1:] == (1, 2, 8)


def test_results_are_those_of_onnx_runtime() -> None:
    model = onnx.parser.parse_model(MODEL)
    made = session(model, provider=True)
    assert assigned(made)[0]
    x = np.random.default_rng(0).standard_normal((2, 6, 48)).astype(np.float32)
    (got,), (want,) = made.run(None, {"x": x}), session(model).run(None, {"x": x})
    assert got.shape == want.shape == (2, 6, 16)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
