"""Operators with bodies: which of their nodes the provider takes, and that ONNX Runtime accepts
it.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import parser

from tracea_onnx.provider import assigned_nodes, create_session

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def test_a_body_that_becomes_a_function_is_left_alone() -> None:
    """ONNX Runtime replaces SequenceMap by a function, and rejects nodes of another provider in
    what comes out of it.
    """
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 4] x) => (float[3, 8] y)
        {
          r = Relu (x)
          s = SplitToSequence <axis = 0> (r)
          m = SequenceMap (s) <body = b (float[1, 4] i) => (float[1, 8] o) { e = Exp (i)
              t = Tanh (e)  o = Concat <axis = 1> (e, t) }>
          y = ConcatFromSequence <axis = 0> (m)
        }
        """
    ).SerializeToString()
    session = create_session(model, {"claim": "all"})
    assert "Relu" in assigned_nodes(session)
    (want,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-5, atol=1e-6)


def test_a_body_of_a_loop_runs_on_the_provider() -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 4] x, int64 n) => (float[3, 4] y)
        {
          yes = Constant <value = bool {1}> ()
          y = Loop (n, yes, x) <body = b (int64 i, bool c, float[3, 4] v) => (bool d, float[3,
              4] w) { d = Identity (c)  t = Tanh (v)  e = Exp (t)  w = Mul (e, t) }>
        }
        """
    ).SerializeToString()
    session = create_session(model, {"claim": "all"})
    assert {"Tanh", "Exp", "Mul"} <= set(assigned_nodes(session))
    feeds = {"x": X, "n": np.array(5)}
    (want,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-5, atol=1e-6)
