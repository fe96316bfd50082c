"""Transposed convolution with bias, folded BatchNormalization and any pointwise epilogue.

ConvTranspose → [Add bias] → [BatchNormalization] → pointwise ...
    ⇒   conv_transpose(x, w, b?, bn_*?, e*)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.conv import match_convolution


def match(graph: Graph, node: Node) -> Match:
    return match_convolution(graph, node, rule="conv_transpose", op="conv_transpose")


RULE = Rule("conv_transpose", "ConvTranspose", frozenset({"ConvTranspose"}), match, priority=10)
