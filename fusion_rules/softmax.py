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
from tracea_onnx.match.softmax import decomposed, operator
from tracea_onnx.match.spec_table import SoftmaxSpec
from tracea_onnx.shapes.symbolic import shapes


def match(g: Graph, anchor: Node) -> Match:
    found = decomposed(g, anchor) if anchor.op == "ReduceSum" else operator(g, anchor)
    float_type(g, found.x, anchor)
    if shapes(g).dims(found.x) is None:
        raise Refuse(Why.RANK_UNKNOWN, anchor, value=found.x)
    nodes, out, log = [*found.nodes], found.output, found.log
    user = g.sole_consumer(out)
    if anchor.op == "Softmax" and user is not None and user.op == "Log":
        nodes.append(user)
        out, log = user.outputs[0], True
    spec = SoftmaxSpec(axis=found.axis, log=log)
    return build_match(g, "softmax", anchor, nodes, spec, [("x", found.x)], [out])


RULE = Rule("softmax", "Softmax", frozenset(("Softmax", "LogSoftmax", "ReduceSum")), match)
