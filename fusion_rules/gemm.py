"""Matrix multiplication with bias, folded BatchNormalization, residual and any pointwise
epilogue.

[Reshape →] Gemm | MatMul [→ Reshape] → [Add bias]
    → [[Reshape →] BatchNormalization [→ Reshape]] → pointwise ...
    ⇒   gemm(x, w, b?, bn_*?, e*)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.gemm import LINEAR_OPS, match_linear


def match(graph: Graph, node: Node) -> Match:
    return match_linear(graph, node, rule="gemm")


RULE = Rule("gemm", "Gemm", LINEAR_OPS, match, priority=10)
