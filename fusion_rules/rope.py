"""Rotary position embedding: pairs of elements of each head are rotated by the angle of their
position.

before  x * cos + concat(-x2, x1) * sin with x1, x2 = halves of x (rotate_half); or
        concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin); or the same over even and odd elements
        (interleaved); or RotaryEmbedding of ONNX 23 or com.microsoft, with or without position ids
after   rope(x, cos, sin, pos?) with layout, interleaved and the number of rotated elements
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.attention import region
from tracea_onnx.match.epilogue import build_match, float_type
from tracea_onnx.match.operator_specs import read
from tracea_onnx.match.rope import Pair, halves, layout_of, partial, product_with, stacked
from tracea_onnx.match.spec_table import RopeSpec
from tracea_onnx.shapes.symbolic import shapes


def match(g: Graph, anchor: Node) -> Match:
    if anchor.op != "Concat":
        return _operator(g, anchor)
    pair = stacked(g, anchor)
    if pair is None:
        raise Refuse(Why.NOT_JOINED, anchor)
    first, second = g.producer(pair.first), g.producer(pair.second)
    if first is not None and first.op == "Neg":
        return _rotate_half(g, anchor, pair, first)
    if first is not None and second is not None and first.op == "Sub" and second.op == "Add":
        return _two_products(g, anchor, pair, first, second)
    raise Refuse(Why.NOT_NEGATED, anchor)


def _rotate_half(g: Graph, anchor: Node, pair: Pair, neg: Node) -> Match:
    """x * cos + rotated * sin."""
    source = halves(g, neg.input(0), pair.second)
    if (
        source is None
        or source.interleaved != pair.interleaved
        or (source.low, source.high) != (pair.second, neg.input(0))
    ):
        raise Refuse(Why.NOT_HALVES, anchor, near=source is not None)
    mul = g.sole_consumer(pair.out)
    add = g.sole_consumer(mul.outputs[0]) if mul is not None and mul.op == "Mul" else None
    if mul is None or add is None or add.op != "Add":
        raise Refuse(Why.NOT_ROTATED, anchor, value=pair.out)
    sin = mul.input(1) if mul.input(0) == pair.out else mul.input(0)
    other = add.input(1) if add.input(0) == mul.outputs[0] else add.input(0)
    straight = product_with(g, other, source.x)
    if straight is None:
        raise Refuse(Why.NO_COSINE, add)
    cos, straight_node = straight
    nodes = [*pair.nodes, *source.nodes, neg, mul, straight_node, add]
    return _finish(
        g,
        anchor,
        nodes,
        source.x,
        cos,
        sin,
        add.outputs[0],
        full=True,
        interleaved=pair.interleaved,
    )


def _two_products(g: Graph, anchor: Node, pair: Pair, sub: Node, add: Node) -> Match:
    """x1 * cos - x2 * sin beside x2 * cos + x1 * sin."""
    products = [g.producer(i) for i in (*sub.inputs, *add.inputs)]
    if any(p is None or p.op != "Mul" for p in products):
        raise Refuse(Why.FOUR_PRODUCTS, add, other=sub)
    a, b, c, d = (p for p in products if p is not None)
    for x1 in a.inputs:
        cos = a.input(1) if a.input(0) == x1 else a.input(0)
        for x2 in b.inputs:
            sin = b.input(1) if b.input(0) == x2 else b.input(0)
            if {tuple(sorted(c.inputs)), tuple(sorted(d.inputs))} != {
                tuple(sorted((x2, cos))),
                tuple(sorted((x1, sin))),
            }:
                continue
            source = halves(g, x2, x1)
            if (
                source is not None
                and (source.low, source.high) == (x1, x2)
                and source.interleaved == pair.interleaved
            ):
                nodes = [*pair.nodes, *source.nodes, a, b, c, d, sub, add]
                return _finish(
                    g,
                    anchor,
                    nodes,
                    source.x,
                    cos,
                    sin,
                    pair.out,
                    full=False,
                    interleaved=pair.interleaved,
                )
    raise Refuse(Why.NO_ROTATION, add, other=sub)


def _finish(
    g: Graph,
    anchor: Node,
    nodes: list[Node],
    x: str,
    cos: str,
    sin: str,
    out: str,
    *,
    full: bool,
    interleaved: bool,
) -> Match:
    s = shapes(g)
    float_type(g, x, anchor)
    shape, extent = s.dims(x), s.dims(cos)
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        raise Refuse(Why.ROPE_SHAPE, anchor, value=x)
    if extent is None or extent != s.dims(sin) or len(extent) < 2:
        raise Refuse(Why.TABLE_SHAPES, anchor)
    rot = shape[3]
    width = rot if full else rot // 2
    if extent[-1] != width:
        raise Refuse(Why.TABLE_WIDTH, anchor, given=extent[-1], count=rot, wanted=width)
    layout = layout_of(extent, shape)
    if layout is None:
        raise Refuse(Why.TABLE_ROWS, anchor)
    whole = partial(g, x, out, rot)
    if whole is not None:
        x, out, extra = whole
        nodes = [*nodes, *extra]
    spec = RopeSpec(layout=layout, interleaved=interleaved, rot=rot)
    roles = [("x", x), ("cos", cos), ("sin", sin)]
    return build_match(g, "rope", anchor, region(g, nodes, (x, cos, sin)), spec, roles, [out])


def _operator(g: Graph, node: Node) -> Match:
    float_type(g, node.input(0), node)
    spec, roles = read(g, node, RopeSpec)
    s = shapes(g)
    cos, sin, pos = (s.dims(roles.get(r, "")) for r in ("cos", "sin", "pos"))
    wanted = 2 if "pos" in roles else 3
    if cos is None or cos != sin or len(cos) != wanted or cos[-1] != spec.rot // 2:
        raise Refuse(Why.HALF_TABLES, node)
    if "pos" in roles and (pos is None or len(pos) != 2):
        raise Refuse(Why.POSITIONS, node)
    ordered = [(r, roles.get(r, "")) for r in ("x", "cos", "sin", "pos")]
    return build_match(g, "rope", node, [node], spec, ordered, [node.outputs[0]])


RULE = Rule(
    "rope",
    "RotaryEmbedding",
    frozenset(("Concat", "RotaryEmbedding", "com.microsoft.RotaryEmbedding")),
    match,
    priority=5,
)
