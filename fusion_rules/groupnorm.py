"""Group normalisation with any activation after it: statistics per image over groups of channels,
weights per channel.

before  Reshape [N, G, -1], InstanceNormalization (scale 1, bias 0), Reshape back, Mul, Add,
        pointwise ...; or GroupNormalization, pointwise ...
after   groupnorm(x, gamma?, beta?) with groups
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import build_match, float_type, grow_epilogue
from tracea_onnx.match.groupnorm import Grouped, channel_weights, grouped, grouped_operator
from tracea_onnx.match.spec_table import GroupNormSpec


def match(g: Graph, node: Node) -> Match:
    norm: Grouped | None = (
        grouped_operator(g, node) if node.op == "GroupNormalization" else grouped(g, node)
    )
    if norm is None:
        raise Refuse(Why.UNGROUPED, node)
    float_type(g, norm.x, node)
    channel_weights(g, norm)
    tail = grow_epilogue(g, norm.out, max_operands=0)
    spec = GroupNormSpec(groups=norm.groups, eps=norm.eps, expr=tail.expr)
    roles = [("x", norm.x), ("gamma", norm.gamma), ("beta", norm.beta)]
    return build_match(g, "groupnorm", node, [*norm.nodes, *tail.nodes], spec, roles, [tail.output])


RULE = Rule(
    "groupnorm", "GroupNorm", frozenset(("InstanceNormalization", "GroupNormalization")), match
)
