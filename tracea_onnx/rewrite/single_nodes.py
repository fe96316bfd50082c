"""GEMMs and norms with nothing to fuse as fused ops of one node: a body of its own lets one
compute in a type that plain ONNX Runtime lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto, TensorProto

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse
from tracea_onnx.match.conv import CONVOLUTIONS, convolution
from tracea_onnx.match.epilogue import build_match
from tracea_onnx.match.gemm import linear
from tracea_onnx.match.norm import operator
from tracea_onnx.rewrite import fused_calls

Read = Callable[[Graph, Node], Match]


def outline(model: ModelProto, folder: Path | None) -> None:
    """Every plain fp32 convolution, GEMM and layer normalisation becomes a fused op, in
    place, if its spec can be written.
    """
    for graph in canonical_form.views(model, folder):
        found = [(m, _KINDS[n.op][0]) for n in graph.nodes for m in _match(graph, n)]
        fused_calls.apply(
            model, graph, [(m, op) for m, op in found if fused_calls.writable(m.spec)]
        )


def _match(graph: Graph, node: Node) -> list[Match]:
    if node.op not in _KINDS or graph.dtype(node.outputs[0]) != TensorProto.FLOAT:
        return []
    try:
        return [_KINDS[node.op][1](graph, node)]
    except Refuse:
        return []


def _convolution(graph: Graph, node: Node) -> Match:
    found, kind = convolution(graph, node), CONVOLUTIONS[node.op]
    roles = [("x", found.x), ("w", found.w), ("b", found.b)]
    return build_match(graph, kind, node, [node], found.spec, roles, [found.value])


def _gemm(graph: Graph, node: Node) -> Match:
    found = linear(graph, node)
    roles = [("x", found.x), ("w", found.w), ("b", found.b)]
    return build_match(graph, "gemm", node, [node], found.spec, roles, [found.value])


def _norm(graph: Graph, node: Node) -> Match:
    found = operator(graph, node)
    return build_match(graph, "layernorm", node, [node], found.spec(), found.roles(), [found.out])


#: Operators that become fused ops: what those are called, and how they are read.
_KINDS: dict[str, tuple[str, Read]] = {
    "Conv": ("Conv", _convolution),
    "ConvTranspose": ("ConvTranspose", _convolution),
    "MatMul": ("Gemm", _gemm),
    "Gemm": ("Gemm", _gemm),
    "LayerNormalization": ("LayerNorm", _norm),
    "RMSNormalization": ("RMSNorm", _norm),
}
