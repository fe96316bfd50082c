"""Attention written as one operator: Attention (ONNX 23) and com.microsoft.MultiHeadAttention.

before  Attention(q, k, v, mask?) with head splits before and transposes after it
after   attention(q, k, v, mask*) that reads the projections where they lie
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.attention import Operand, Traced, finish, heads, trace
from tracea_onnx.match.masks import Mask, causal_attrs, mask_attrs
from tracea_onnx.match.strided_view import Named
from tracea_onnx.shapes.symbolic import Shapes, same, shapes


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


def _scale(given: float | None, head_size: DimLike | None, node: Node) -> float:
    if given:
        return float(given)
    if not isinstance(head_size, int) or head_size < 1:
        raise Refuse(Why.HEAD_SIZE, node, size="unknown" if head_size is None else head_size)
    return float(head_size**-0.5)


def _standard(g: Graph, node: Node) -> Match:
    s = shapes(g)
    cap = float(node.attr("softcap", 0.0))
    require(node, qk_matmul_output_mode=0)
    if cap < 0:
        raise Refuse(Why.ATTRIBUTE, node, attribute="softcap", value=cap, wanted="0 or more")
    if any(node.inputs[4:]) or any(node.outputs[1:]):
        raise Refuse(Why.KV_CACHE, node)
    shape = s.dims(node.input(0)) or ()
    masks = _mask(g, s, node, node.input(3), shape)
    if len(shape) == 4:
        letters = ("b", "h", "s", "d")
        t = trace(
            g,
            s,
            [(node.input(k), letters) for k in range(3)],
            node.outputs[0],
            letters,
            [node],
            [m.value for m in masks],
        )
        if isinstance(t, Refuse):
            raise t
        counts = heads(t.q, t.k, t.v, node)
        if isinstance(counts, Refuse):
            raise counts
        head_size: DimLike | None = shape[3]
    elif len(shape) == 3:
        counts = (node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0))
        if min(counts) < 1:
            raise Refuse(Why.NO_HEADS, node)
        t, head_size = _flat(node), _per_head(shape[2], counts[0])
    else:
        raise Refuse(Why.QUERY_RANK, node, rank=len(shape) or "unknown")
    if t.v.scale != 1.0:
        raise Refuse(Why.VALUES_SCALED, node)
    # Upper-left alignment: the operator masks column t for row s when t > s, whatever the number of
    # keys. ONNX Runtime gives zeros for a row with nothing left to see, and takes the lowest number
    # of a mask for minus infinity.
    scale = _scale(node.attr("scale"), head_size, node) * t.q.scale * t.k.scale
    causal = causal_attrs(0 if node.attr("is_causal", 0) else None)
    attrs = {
        "scale": scale,
        **({"softcap": cap} if cap else {}),
        "nan_to_zero": "masked",
        **causal,
        **mask_attrs(masks),
    }
    return finish(g, RULE.name, node, t, counts, [m.value for m in masks], attrs)


def _mask(g: Graph, s: Shapes, node: Node, value: str, query: Sequence[DimLike]) -> list[Mask]:
    if not value:
        return []
    extent, key = s.dims(value), s.dims(node.input(1))
    if extent is None or not 2 <= len(extent) <= 4:
        raise Refuse(Why.MASK_RANK, node, value=value)
    last, keys = extent[-1], None if key is None or len(key) < 2 else key[-2]
    fixed = isinstance(last, int) and isinstance(keys, int)
    # From opset 24 on a mask may be shorter than the keys; before, one that does not broadcast is
    # not valid.
    if keys is None or (
        last != 1 and not same(last, keys) and (fixed or g.opset() >= 24 or node.op != "Attention")
    ):
        raise Refuse(Why.MASK_KEYS, node, value=value)
    return [Mask(value, "bool" if g.dtype(value) == TensorProto.BOOL else "add")]


def _flat(node: Node) -> Traced:
    q, k, v, out = (
        Operand(name, Named("bsx", None, {}), 1.0, ())
        for name in (*node.inputs[:3], node.outputs[0])
    )
    return Traced(q, k, v, out, [node])


def _per_head(width: DimLike, count: int) -> DimLike | None:
    return width // count if isinstance(width, int) and count and width % count == 0 else None


def _contrib(g: Graph, node: Node) -> Match:
    s = shapes(g)
    shape = s.dims(node.input(0))
    ranks = [len(s.dims(node.input(k)) or ()) if node.input(k) else 0 for k in range(3)]
    if shape is None or ranks != [3, 3, 3]:
        raise Refuse(Why.PACKED, node)
    for k, why in ((3, Why.PROJECTION_BIAS), (4, Why.PADDING_MASK)):
        if node.input(k):
            raise Refuse(why, node)
    if any(node.inputs[6:]) or any(node.outputs[1:]):
        raise Refuse(Why.KV_CACHE, node)
    require(node, unidirectional=0)
    count = node.attr("num_heads", 0)
    masks = _mask(g, s, node, node.input(5), shape)
    scale = _scale(node.attr("scale"), _per_head(shape[2], count), node)
    attrs = {"scale": scale, "nan_to_zero": False, **causal_attrs(None), **mask_attrs(masks)}
    return finish(g, RULE.name, node, _flat(node), (count, count), [m.value for m in masks], attrs)


RULE = Rule(
    "attention_op",
    "Attention",
    frozenset(("Attention", "com.microsoft.MultiHeadAttention", *_MORE)),
    match,
    priority=10,
)
