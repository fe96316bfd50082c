"""Ranks by what makes values and by what reads them; Ifs of which one branch alone can be run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from tests.support.sessions import assigned, session
from tracea_onnx.canonicalize.canonical_form import canonicalise
from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes.ranks import decided_ifs, known_ranks

HEAD = """<ir_version: 9, opset_import: ["" : 17]>
g (float[b, c, t] x{inputs}) => (float{shape} y)
<int64[1] last = {{-1}}, int64[1] first = {{0}}, int64 two = {{2}}, int64[1] axis = {{2}},
    int64[1] alone = {{1}}{more}> {{
  shape = Shape (x)
  size = Gather (shape, axis)
  one = Equal (size, alone)
  s = If (one) <then_branch = then_graph () => (float[n, m] v) {{ v = Squeeze (x, last) }},
      else_branch = else_graph () => (float[n, m, k] v) {{ v = Identity (x) }}>
"""


def model(
    body: str, *, inputs: str = "", shape: str = "[d]", more: str = "", **stored: Any
) -> ModelProto:
    """A squeeze as TorchScript writes it, and what comes next."""
    made = onnx.parser.parse_model(HEAD.format(inputs=inputs, shape=shape, more=more) + body + "}")
    if shape == "":
        made.graph.output[0].type.tensor_type.ClearField("shape")
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items())
    return made


def ifs(m: ModelProto) -> int:
    return sum(n.op_type == "If" for g in edit.graphs(m) for n in g.node)


def folded(m: ModelProto) -> int:
    """How many Ifs are left in canonical form."""
    return ifs(canonicalise(ModelProto.FromString(m.SerializeToString())))


WEIGHT = np.ones((4, 3, 1), np.float32)
RECURRENT: dict[str, Any] = {
    "w": np.full((1, 8, 5), 0.1, np.float32), "r": np.full((1, 8, 2), 0.1, np.float32),
}  # fmt: skip
#: What takes one rank alone, through whatever lies between.
TAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution": ("u = Relu (s)\n p = Unsqueeze (u, last)\n y = Conv (p, w)", {"w": WEIGHT}),
    "recurrent": ("p = Unsqueeze (s, first)\n y = LSTM <hidden_size = 2> (p, w, r)", RECURRENT),
    "gemm": ("n = Neg (s)\n y = Gemm (n, k)", {"k": np.ones((5, 2), np.float32)}),
    "concat": ("y = Concat <axis = 0> (s, k)", {"k": np.ones((2, 5), np.float32)}),
    "list": ("p = Concat <axis = 0> (s, q)\n q = Reshape (x, to)\n y = Neg (p)",
             {"to": np.array([-1, 5])}),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKES)
def test_what_reads_it_decides(name: str) -> None:
    body, stored = TAKES[name]
    m = model(body, shape="", **stored)
    edit.sort_nodes(m.graph, "")
    assert ifs(m) == 1 and folded(m) == 0
    assert known_ranks(Graph(onnx.shape_inference.infer_shapes(m)))["s"] == 2


def test_a_gemm_of_a_vector_is_none_that_fails() -> None:
    """ONNX Runtime multiplies it."""
    body = "f = ReduceSum <keepdims = 0> (s, first)\n y = Gemm (f, k)"
    assert folded(model(body, shape="", k=np.ones((5, 2), np.float32))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu (s)",
        "y = ReduceSum <keepdims = 0> (s)",
        "p = Shape (s)\n q = Cast <to = 1> (p)\n y = Neg (q)",
        "y = Add (s, x)",  # of either rank
        "y = MatMul (s, x)",
    ],
)
def test_what_takes_either_rank_decides_nothing(body: str) -> None:
    assert folded(model(body, shape="")) == 1


def test_what_a_model_says_of_its_results_decides_nothing() -> None:
    assert folded(model("y = Identity (s)", shape="[n, m]")) == 1


def test_a_broadcast_to_more_axes_decides() -> None:
    """Of two operands the result has the axes of the one with more."""
    body = "p = Add (s, k)\n q = Unsqueeze (p, last)\n y = Conv (q, w)"
    assert folded(model(body, shape="", k=np.ones((1, 1), np.float32), w=WEIGHT)) == 0
    assert folded(model(body, shape="", k=np.ones((1, 1, 1), np.float32), w=WEIGHT)) == 1


NESTED = """
  dims = Shape (s)
  rank = Size (dims)
  is_two = Equal (rank, two)
  other = Not (is_two)
  u = If (other) <then_branch = a () => (float[n, m, k] v) { v = Unsqueeze (s, first) },
      else_branch = b () => (float[n, m] v) { v = Identity (s) }>
  p = Unsqueeze (u, first)
  y, h = LSTM <hidden_size = 2> (p, w, r)
"""


def test_conditions_on_a_rank_follow() -> None:
    assert folded(model(NESTED, shape="", **RECURRENT)) == 0


def test_a_branch_that_may_not_run_decides_nothing_outside() -> None:
    body = """
  y = If (given) <then_branch = a () => (float v) {{ p = Unsqueeze (s, last) q = Conv (p, w)
        v = ReduceSum <keepdims = 0> (q) }},
      else_branch = b () => (float v) {{ v = ReduceSum <keepdims = 0> (s) }}>
"""
    given = ", bool given"
    undecided = model(body.format(), inputs=given, shape="", w=WEIGHT)
    assert folded(undecided) == 2
    # where both branches ask for it, it is asked
    both = body.replace(
        "v = ReduceSum <keepdims = 0> (s)", "p = Unsqueeze (s, last) v = Conv (p, w)"
    )
    assert folded(model(both.format(), inputs=given, shape="", w=WEIGHT)) == 1


def test_a_body_of_a_loop_decides_nothing_outside() -> None:
    """It may run no times."""
    body = """
  y = Loop (count, , zero) <body = a (int64 i, bool go, float[k] had) => (bool more, float[k] v) {
        more = Identity (go) p = Unsqueeze (s, last) q = Conv (p, w)
        v = ReduceSum <keepdims = 0> (q) }>
"""
    stored: dict[str, Any] = {"w": WEIGHT, "zero": np.zeros((), np.float32)}
    assert folded(model(body, inputs=", int64 count", shape="", **stored)) == 1


def test_where_nothing_can_run_all_stays() -> None:
    """The error is ONNX Runtime's."""
    m = model("p = Unsqueeze (s, last)\n q = Unsqueeze (p, last)\n r = Unsqueeze (q, last)\n"
              "y = Conv (r, w)", shape="", w=WEIGHT)  # fmt: skip
    assert decided_ifs(Graph(m)) == {} and folded(m) == 1
    assert known_ranks(Graph(m)) == {}


@pytest.mark.parametrize("t", [1, 2])
def test_the_results_and_errors_stay(t: int) -> None:
    body, stored = TAKES["recurrent"]
    m = model(body, shape="", **stored)
    short = canonicalise(ModelProto.FromString(m.SerializeToString()))
    x = np.random.default_rng(t).standard_normal((3, 5, t)).astype(np.float32)
    # stock, folded, and the provider behind an If
    made = session(m, provider=True, everything=True)
    ours, total = assigned(made)
    assert ours >= 2
    sessions = [session(m), session(short), session(short, provider=True, everything=True), made]
    if t == 1:
        want = sessions[0].run(None, {"x": x})[0]
        for s in sessions[1:]:
            np.testing.assert_allclose(s.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-6)
    else:
        for s in sessions:
            with pytest.raises(Exception, match=r"rank|Squeeze|removes|[Dd]imension|dims"):
                s.run(None, {"x": x})
    assert total > ours
