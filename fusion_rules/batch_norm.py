"""BatchNormalization that no convolution can take in (after Concat, before activation), with its
pointwise epilogue.

    BatchNormalization → pointwise ...   ⇒   batchnorm(x, bn_scale, bn_bias, bn_mean, bn_var, e*)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.conv import match_batch_norm


def match(graph: Graph, node: Node) -> Match:
    return match_batch_norm(graph, node, rule="batch_norm")


RULE = Rule("batch_norm", "BatchNorm", frozenset({"BatchNormalization"}), match, priority=5)
