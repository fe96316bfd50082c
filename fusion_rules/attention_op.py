"""Attention written as one operator: Attention (ONNX 23) and com.microsoft.MultiHeadAttention.

before  Attention(q, k, v, mask?) with head splits before and transposes after it
after   attention(q, k, v, mask*) that reads the projections where they lie
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from tracea_onnx.ir.contracts import Match, Refuse, Rule
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match.attention import Operand, Traced, finish, heads, trace
from tracea_onnx.match.masks import Mask, causal_attrs, mask_attrs
from tracea_onnx.match.strided_view import Named
from tracea_onnx.shapes.symbolic import Shapes, same, shapes


def match(g: Graph, node: Node) -> Match:
    if node.op in _MORE:
        raise Refuse(f"{node.op} '{node.name}' {_MORE[node.op]}", node)
    return _standard(g, node) if node.op == "Attention" else _contrib(g, node)


#: ONNX Runtime's operators that do more than attention, and what more.
_MORE = {
    "com.microsoft.Attention": "also computes the projections from packed weights, which no fused operator does",
    "com.microsoft.QAttention": "also computes the projections, from quantised weights",
    "com.microsoft.PackedAttention": "also computes the projections, of sequences without their padding",
    "com.microsoft.PackedMultiHeadAttention": "works on sequences without their padding, of which no fused operator knows the lengths",
    "com.microsoft.GroupQueryAttention": "also writes its own key/value cache, up to lengths only known at run time",
    "com.microsoft.DecoderMaskedMultiHeadAttention": "also writes its own key/value cache, up to lengths only known at run time",
    "com.microsoft.DecoderMaskedSelfAttention": "also computes the projections, and writes its own key/value cache",
}


def _scale(given: float | None, head_size: DimLike | None, node: Node) -> float:
    if given:
        return float(given)
    if not isinstance(head_size, int):
        raise Refuse("the head size, and so the default scale, is not constant", node)
    if head_size < 1:
        raise Refuse(f"the head size is {head_size}", node)
    return float(head_size**-0.5)


def _standard(g: Graph, node: Node) -> Match:
    s = shapes(g)
    cap, mode = float(node.attr("softcap", 0.0)), node.attr("qk_matmul_output_mode", 0)
    if cap < 0 or mode:
        raise Refuse(
            f"Attention has {f'qk_matmul_output_mode {mode}' if mode else f'a softcap of {cap:g}'}",
            node,
        )
    if any(node.input(k) for k in range(4, len(node.inputs))) or any(node.outputs[1:]):
        raise Refuse("Attention keeps its own key/value cache", node)
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
        counts = heads(t.q, t.k, t.v)
        if isinstance(counts, str):
            raise Refuse(counts, node)
        head_size: DimLike | None = shape[3]
    elif len(shape) == 3:
        counts = (node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0))
        if min(counts) < 1:
            raise Refuse("Attention on rank 3 has no q_num_heads or kv_num_heads", node)
        t, head_size = _flat(node), _per_head(shape[2], counts[0])
    else:
        raise Refuse(f"the query of Attention has rank {len(shape) or 'unknown'}", node)
    if t.v.scale != 1.0:
        raise Refuse("the values are scaled inside the chain", node)
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
        raise Refuse(f"the rank of mask '{value}' is not known to be 2, 3 or 4", node)
    last, keys = extent[-1], None if key is None else key[-2]
    fixed = isinstance(last, int) and isinstance(keys, int)
    # From opset 24 on a mask may be shorter than the keys; before, one that does not broadcast is
    # not valid.
    if keys is None or (
        last != 1 and not same(last, keys) and (fixed or g.opset() >= 24 or node.op != "Attention")
    ):
        raise Refuse(f"mask '{value}' is not known to cover every key", node)
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
    ranks = [len(s.dims(node.input(k)) or ()) if node.input(k) else 0 for k in range(3)]
    if ranks != [3, 3, 3]:
        raise Refuse(f"{node.op} '{node.name}' reads packed or cached keys and values", node)
    more = [
        what
        for k, what in (
            (3, "adds the bias of the projections"),
            (4, "takes a padding mask of lengths or keys"),
        )
        if node.input(k)
    ]
    more += (
        ["reads or writes its own key/value cache"]
        if any(node.input(k) for k in range(6, len(node.inputs))) or any(node.outputs[1:])
        else []
    )
    more += ["hides later keys by itself"] if node.attr("unidirectional", 0) else []
    if more:
        raise Refuse(f"{node.op} '{node.name}' also {' and '.join(more)}", node)
    count, shape = node.attr("num_heads", 0), s.dims(node.input(0)) or ()
    masks = _mask(g, s, node, node.input(5), shape)
    scale = _scale(node.attr("scale"), _per_head(shape[2], count), node)
    attrs = {"scale": scale, "nan_to_zero": False, **causal_attrs(None), **mask_attrs(masks)}
    return finish(g, RULE.name, node, _flat(node), (count, count), [m.value for m in masks], attrs)


RULE = Rule(
    "attention_op", "Attention", frozenset(("Attention", "com.microsoft.MultiHeadAttention", *_MORE)), match,
    "the Attention and MultiHeadAttention operators with the head splits and transposes around them", priority=10,
)  # fmt: skip
