"""A linear layer that is spelled as Einsum, with its bias and any pointwise epilogue.

before  Einsum(x, w) of "...k,kn->...n" or "...k,nk->...n" → [Add bias] → pointwise ...
after   gemm(x, w, b?, e*)
"""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import build_match, dims_of, float_type, grow_epilogue
from tracea_onnx.match.gemm import Linear, take_bias
from tracea_onnx.match.spec_table import GemmSpec
from tracea_onnx.shapes.operands import plain_terms
from tracea_onnx.shapes.symbolic import same


def match(graph: Graph, node: Node) -> Match:
    transposed = _transposed(node)
    if transposed is None or len(node.inputs) != 2:
        raise Refuse(Why.NOT_LINEAR, node)
    for name in node.inputs:
        float_type(graph, name, node)
    x, w = (dims_of(graph, name) for name in node.inputs)
    if x is None or w is None:
        raise Refuse(Why.RANK_UNKNOWN, node, value=node.input(int(x is not None)))
    # Einsum would broadcast a size of 1
    if not x or len(w) != 2 or not same(x[-1], w[1 if transposed else 0]):
        raise Refuse(Why.NOT_LINEAR, node)
    spec = GemmSpec(trans_b=int(transposed))
    found = Linear(node, *node.inputs, "", spec, node.outputs[0], [node])
    take_bias(graph, found)
    tail = grow_epilogue(graph, found.value)
    nodes = [*found.nodes, *tail.nodes]
    if len(nodes) == 1:
        raise Refuse(Why.NOTHING_FUSES, node, because=tail.stopped)
    roles = [("x", found.x), ("w", found.w), ("b", found.b), *tail.roles()]
    spec = replace(found.spec, expr=tail.expr)
    return build_match(graph, "einsum_linear", node, nodes, spec, roles, [tail.output])


def _transposed(node: Node) -> bool | None:
    """Whether the weight of a linear layer is [n, k]; None where the equation is no such layer."""
    x, w, y = plain_terms(node) or ("", "", "")
    if len(x) < 2 or len(w) != 2 or y[:-1] != x[:-1] or y[-1:] in x:
        return None
    return {f"{x[-1]}{y[-1]}": False, f"{y[-1]}{x[-1]}": True}.get(w)


RULE = Rule("einsum_linear", "Gemm", frozenset({"Einsum"}), match, priority=10)
