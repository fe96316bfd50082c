"""Attention written as one operator: Attention (ONNX 23) and com.microsoft.MultiHeadAttention.

before  Attention(q, k, v, mask?) with head splits before and transposes after it
after   attention(q, k, v, mask*) that reads the projections where they lie
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.attention import Operand, Traced, finish, heads, trace
from tracea_onnx.match.masks import causal_attrs, mask_attrs
from tracea_onnx.match.operator_specs import attention_mask, attention_scale, per_head, read
from tracea_onnx.match.spec_table import AttentionSpec
from tracea_onnx.match.strided_view import Layout
from tracea_onnx.shapes.symbolic import shapes


def match(g: Graph, node: Node) -> Match:
    if node.op in _MORE:
        raise Refuse(_MORE[node.op], node)
    return _standard(g, node) if node.op == "Attention" else _contrib(g, node)


#: ONNX Runtime's operators that do more than attention.
_MORE = {
    "com.microsoft.Attention": Why.PROJECTIONS,
    "com.microsoft.QAttention": Why.PROJECTIONS,
    "com.microsoft.PackedAttention": Why.PROJECTIONS,
    "com.microsoft.PackedMultiHeadAttention": Why.UNPADDED,
    "com.microsoft.GroupQueryAttention": Why.KV_CACHE,
    "com.microsoft.DecoderMaskedMultiHeadAttention": Why.KV_CACHE,
    "com.microsoft.DecoderMaskedSelfAttention": Why.PROJECTIONS,
}


def _standard(g: Graph, node: Node) -> Match:
    spec, roles = read(g, node, AttentionSpec)
    masks = [roles["mask"]] if "mask" in roles else []
    t, counts = _flat(node), (spec.num_heads, spec.kv_heads)
    if not counts[0]:
        letters = ("b", "h", "s", "d")
        operands = [(node.input(k), letters) for k in range(3)]
        traced = trace(g, shapes(g), operands, node.outputs[0], letters, [node], masks)
        if isinstance(traced, Refuse):
            raise traced
        found = heads(traced.q, traced.k, traced.v, node)
        if isinstance(found, Refuse):
            raise found
        t, counts = traced, found
    if t.v.scale != 1.0:
        raise Refuse(Why.VALUES_SCALED, node)
    attrs = {**spec.to_json(), "scale": spec.scale * t.q.scale * t.k.scale}
    return finish(g, RULE.name, node, t, counts, masks, attrs)


def _flat(node: Node) -> Traced:
    q, k, v, out = (
        Operand(name, Layout("bsx", None, {}), 1.0, ())
        for name in (*node.inputs[:3], node.outputs[0])
    )
    return Traced(q, k, v, out, [node])


def _contrib(g: Graph, node: Node) -> Match:
    s = shapes(g)
    found: list[Dims] = [s.dims(i) or () for i in node.inputs[:3]]
    if [len(d) for d in found] != [3, 3, 3]:
        raise Refuse(Why.PACKED, node)
    for k, why in ((3, Why.PROJECTION_BIAS), (4, Why.PADDING_MASK)):
        if node.input(k):
            raise Refuse(why, node)
    if any(node.inputs[6:]) or any(node.outputs[1:]):
        raise Refuse(Why.KV_CACHE, node)
    require(node, unidirectional=0)
    count = node.attr("num_heads", 0)
    if count < 1:
        raise Refuse(Why.NO_HEADS, node)
    masks = attention_mask(g, node, node.input(5))
    scale = attention_scale(node, per_head(found[0][2], count))
    attrs = {"scale": scale, "nan_to_zero": False, **causal_attrs(None), **mask_attrs(masks)}
    return finish(g, RULE.name, node, _flat(node), (count, count), [m.value for m in masks], attrs)


RULE = Rule(
    "attention_op",
    "Attention",
    frozenset(("Attention", "com.microsoft.MultiHeadAttention", *_MORE)),
    match,
    priority=10,
)
