"""Attention over heads that lie in two axes, such as heads and windows (Hiera)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.sessions import assigned, session
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import find

HEAD = '<ir_version: 9, opset_import: ["" : 17]>\ng ({inputs}) => (float y) <float scale = {{0.5}}>'
#: Packed projections [b, tokens, windows, 3, heads, d], as Hiera has them.
PACKED = """{
  turned = Transpose <perm = [3, 0, 4, 2, 1, 5]> (x)
  a, c, e = Split <axis = 0> (turned)
  q = Squeeze (a, zero) k = Squeeze (c, zero) v = Squeeze (e, zero)
  s = Mul (q, scale)
  kt = Transpose <perm = [0, 1, 2, 4, 3]> (k)
  scores = MatMul (s, kt)
  p = Softmax <axis = -1> (scores)
  u = MatMul (p, v)
  y = Transpose <perm = [0, 3, 2, 1, 4]> (u)
}"""
#: Operands of their own; keys come transposed.
APART = """{
  scores = MatMul (q, k)
  scaled = Mul (scores, scale)
  p = Softmax <axis = -1> (scaled)
  y = MatMul (p, v)
}"""


def _attended(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("bhusd,bhutd->bhust", *(a.astype(np.float64) for a in (q, k))) * 0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhust,bhutd->bhusd", e / e.sum(-1, keepdims=True), v.astype(np.float64))


def _model(body: str, shapes: dict[str, list[Any]], packed: bool = False) -> onnx.ModelProto:
    inputs = ", ".join(f"float[{', '.join(map(str, s))}] {k}" for k, s in shapes.items())
    m = onnx.parser.parse_model(HEAD.format(inputs=inputs) + body)
    m.graph.output[0].type.tensor_type.ClearField("shape")
    if packed:
        m.graph.initializer.append(helper.make_tensor("zero", 7, [1], [0]))
    return m


def _fused(m: onnx.ModelProto) -> bool:
    found, _ = find.find(Graph(onnx.shape_inference.infer_shapes(m, data_prop=True)))
    return any(f.spec.op == "attention" for f in found)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("b", "h", "u", "s", "d"),
    [(2, 3, 4, 5, 8), (1, 1, 4, 16, 32), (3, 8, 1, 7, 4), (2, 1, 1, 9, 16), (1, 2, 9, 1, 3)],
)
def test_packed_windows(b: int, h: int, u: int, s: int, d: int, known: bool) -> None:
    m = _model(PACKED, {"x": [b if known else "b", s, u, 3, h, d]}, packed=True)
    assert _fused(m)
    x = np.random.default_rng(s).standard_normal((b, s, u, 3, h, d)).astype(np.float32)
    made = session(m, provider=True)
    ours, total = assigned(made)
    assert ours == total
    got = made.run(None, {"x": x})[0]
    q, k, v = x.transpose(3, 0, 4, 2, 1, 5)
    np.testing.assert_allclose(
        got, _attended(q, k, v).transpose(0, 3, 2, 1, 4), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("b", "h", "u", "s", "t", "d", "dv"),
    [(2, 3, 4, 5, 6, 8, 8), (1, 1, 3, 4, 17, 16, 5), (2, 2, 2, 1, 33, 64, 32)],
)
def test_queries_and_keys_of_several_lengths(
    b: int, h: int, u: int, s: int, t: int, d: int, dv: int
) -> None:
    shapes: dict[str, list[Any]] = {
        "q": ["b", h, u, "s", d], "k": ["b", h, u, d, "t"], "v": ["b", h, u, "t", dv],
    }  # fmt: skip
    m = _model(APART, shapes)
    assert _fused(m)
    rng = np.random.default_rng(t)
    sizes = {"q": (b, h, u, s, d), "k": (b, h, u, d, t), "v": (b, h, u, t, dv)}
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in sizes.items()}
    made = session(m, provider=True)
    assert assigned(made)[0] >= 3
    got = made.run(None, feeds)[0]
    want = _attended(feeds["q"], feeds["k"].transpose(0, 1, 2, 4, 3), feeds["v"])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_masked_windows_are_left() -> None:
    """Which axis a mask repeats along, the spec does not say."""
    body = APART.replace("Softmax <axis = -1> (scaled)", "Softmax <axis = -1> (hidden)").replace(
        "  p =", "  hidden = Add (scaled, m)\n  p ="
    )
    shapes: dict[str, list[Any]] = {
        "q": [2, 3, 4, 5, 8], "k": [2, 3, 4, 8, 5], "v": [2, 3, 4, 5, 8], "m": [4, 5, 5],
    }  # fmt: skip
    m = _model(body, shapes)
    assert not _fused(m)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    got, want = (session(m, provider=p).run(None, feeds)[0] for p in (True, False))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_windows_of_more_axes_are_left() -> None:
    shapes = {n: ["b", 2, 2, 2, *last] for n, last in (("q", (5, 8)), ("k", (8, 5)), ("v", (5, 8)))}
    assert not _fused(_model(APART, shapes))
