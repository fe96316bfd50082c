"""Matrix product with bias, residual and any pointwise epilogue.

    [Reshape →] Gemm | MatMul [→ Reshape] → [Add bias] → pointwise ...   ⇒   gemm(x, w, b?, e*)
"""

from __future__ import annotations

from tracea_onnx.core import Match, Rule
from tracea_onnx.graph import Graph, Node
from tracea_onnx.patterns_linear import LINEAR_OPS, match_linear


def match(graph: Graph, node: Node) -> Match:
    return match_linear(graph, node, rule="gemm")


RULE = Rule("gemm", "Gemm", LINEAR_OPS, match, "matrix product with bias, residual and activation", priority=10)
