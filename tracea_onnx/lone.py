"""Products with nothing to fuse as fused ops of one node: a body of its own lets a product compute in a type that plain ONNX Runtime lacks."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto

from tracea_onnx import canonical, rewrite
from tracea_onnx.core import Match, Refuse
from tracea_onnx.graph import Graph, Node
from tracea_onnx.patterns import build_match
from tracea_onnx.patterns_conv import CONVOLUTIONS, convolution
from tracea_onnx.patterns_linear import linear

#: Operators that become fused ops, and what those are called.
_NAMES = {"Conv": "Conv", "ConvTranspose": "ConvTranspose", "MatMul": "Gemm", "Gemm": "Gemm"}


def wrap(model: ModelProto, folder: Path | None) -> None:
    """Every plain fp32 convolution and matrix product becomes a fused op, in place."""
    for k in range(len(list(canonical.scopes(model.graph)))):
        proto, outer = list(canonical.scopes(model.graph))[k]
        graph = canonical.view(model, proto, outer, folder)
        found = [(m, _NAMES[n.op]) for n in graph.nodes for m in _match(graph, n)]
        rewrite.apply(model, graph, found)


def _match(graph: Graph, node: Node) -> list[Match]:
    if node.op not in _NAMES or graph.dtype(node.outputs[0]) != TensorProto.FLOAT:
        return []
    rule = CONVOLUTIONS.get(node.op, "gemm")
    try:
        found = convolution(graph, node) if node.op in CONVOLUTIONS else linear(graph, node)
        roles = [("x", found.x), ("w", found.w), ("b", found.b)]
        return [build_match(graph, rule=rule, anchor=node, nodes=[node], op=rule, roles=roles, attrs=found.attrs, outputs=[found.value])]
    except Refuse:
        return []
