"""Convolution with bias, folded BatchNormalization, residual and any pointwise epilogue.

[Pad →] Conv → [Add bias] → [BatchNormalization] → pointwise ...   ⇒   conv(x, w, b?, bn_*?, e*)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.conv import match_convolution


def match(graph: Graph, node: Node) -> Match:
    return match_convolution(graph, node, rule="conv", op="conv")


RULE = Rule("conv", "Conv", frozenset({"Conv", "com.microsoft.FusedConv"}), match, priority=10)
