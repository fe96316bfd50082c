"""Softmax and its logarithm along one axis.

before  Softmax, LogSoftmax, Log(Softmax(x)), exp(x - max(x)) / sum(exp(x - max(x))), or
        x - max(x) - log(sum(exp(x - max(x))))
after   softmax(x) with axis and log
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import build_match, float_type
from tracea_onnx.match.softmax import decomposed
from tracea_onnx.match.spec_table import SoftmaxSpec
from tracea_onnx.shapes.symbolic import shapes


def match(g: Graph, anchor: Node) -> Match:
    if anchor.op == "ReduceSum":
        found = decomposed(g, anchor)
        assert found.axis is not None
        float_type(g, found.x, anchor)
        spec = SoftmaxSpec(axis=found.axis, log=found.log)
        roles = [("x", found.x)]
        return build_match(g, "softmax", anchor, found.nodes, spec, roles, [found.output])
    x, shape = anchor.input(0), shapes(g).dims(anchor.input(0))
    float_type(g, x, anchor)
    if shape is None:
        raise Refuse(Why.RANK_UNKNOWN, anchor, value=x)
    axis = anchor.attr("axis", 1 if g.opset() < 13 else -1)
    if not -len(shape) <= axis < len(shape):
        raise Refuse(Why.AXIS, anchor, axis=axis, rank=len(shape))
    axis %= len(shape)
    if g.opset() < 13 and any(d != 1 for d in shape[axis + 1 :]):
        raise Refuse(Why.FLATTENS, anchor, opset=g.opset(), axis=axis)
    nodes, out, log = [anchor], anchor.outputs[0], anchor.op == "LogSoftmax"
    user = g.sole_consumer(out)
    if user is not None and user.op == "Log" and not log:
        nodes.append(user)
        out, log = user.outputs[0], True
    spec = SoftmaxSpec(axis=axis - len(shape), log=log)
    return build_match(g, "softmax", anchor, nodes, spec, [("x", x)], [out])


RULE = Rule("softmax", "Softmax", frozenset(("Softmax", "LogSoftmax", "ReduceSum")), match)
