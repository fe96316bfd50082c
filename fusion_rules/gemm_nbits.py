"""Matrix multiplication by weights of 2, 4 or 8 bits, with bias, residual and any pointwise
epilogue.

MatMulNBits | DequantizeLinear → MatMul | Gemm [→ Reshape] → [Add bias] → pointwise ...
    ⇒   gemm_nbits(x, w, scale, zero?, b?, e*)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.nbits import ANCHORS, match_nbits


def match(graph: Graph, node: Node) -> Match:
    return match_nbits(graph, node, rule="gemm_nbits")


RULE = Rule("gemm_nbits", "GemmNBits", ANCHORS, match, priority=11)
