"""Instance normalisation with any activation after it: (x - mean) / sqrt(var + eps) * gamma + beta
per image and channel.

before  InstanceNormalization, pointwise ...
after   groupnorm(x, gamma, beta) with groups = -1
"""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import build_match, float_type, grow_epilogue
from tracea_onnx.match.groupnorm import grouped
from tracea_onnx.match.operator_specs import read
from tracea_onnx.match.spec_table import GroupNormSpec


def match(g: Graph, node: Node) -> Match:
    float_type(g, node.input(0), node)
    try:
        inner = grouped(g, node)
    except Refuse:
        inner = None
    if inner is not None:
        raise Refuse(Why.GROUPED, node)
    tail = grow_epilogue(g, node.outputs[0], max_operands=0)
    spec, roles = read(g, node, GroupNormSpec)
    return build_match(
        g,
        "instancenorm",
        node,
        [node, *tail.nodes],
        replace(spec, expr=tail.expr),
        [*roles.items()],
        [tail.output],
    )


RULE = Rule("instancenorm", "InstanceNorm", frozenset(("InstanceNormalization",)), match)
