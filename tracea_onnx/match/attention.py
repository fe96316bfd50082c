"""Attention: operands and result as strided views of the projections, and the nodes that a match
may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.contracts import Match, Spec
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node, type_name
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match import strided_view
from tracea_onnx.match.epilogue import FLOATS, narrower, needed_outside, not_sole, refuse_inside
from tracea_onnx.match.softmax import Softmax
from tracea_onnx.match.spec_table import AttentionSpec
from tracea_onnx.match.strided_view import Layout, Step
from tracea_onnx.shapes.operands import plain_terms
from tracea_onnx.shapes.shape_values import OPERATORS
from tracea_onnx.shapes.symbolic import Shapes, same, shapes
from tracea_onnx.support.data_classes import dataclass


# --- operands -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Operand:
    """A source value, how to read it, the factor applied on the way, and the nodes between source
    and use.
    """

    value: str
    view: Layout
    scale: float
    nodes: tuple[Node, ...]

    def layout(self) -> dict[str, Any]:
        """The operand's entry in the spec."""
        return (
            {"layout": self.view.layout}
            if self.view.index is None
            else {"layout": self.view.layout, "index": self.view.index}
        )


def operand(
    g: Graph,
    s: Shapes,
    value: str,
    letters: Sequence[str],
    usable: Callable[[str], bool],
    *,
    merge_heads: bool = False,
) -> Operand | None:
    """`value`, whose axes are `letters`, as a view of the farthest source with a named layout.

    `usable(v)` tells whether an intermediate value may vanish into the match. Repeated key/value
    heads are folded into `view.repeat`.
    """
    steps = strided_view.chain(g, s, value)
    reach = 0
    while reach < len(steps) and usable(steps[reach].target):
        reach += 1
    for far in range(reach, -1, -1):
        root = steps[far - 1].source if far else value
        shape = s.dims(root)
        if shape is None:
            continue
        source = strided_view.start(shape)
        path = steps[:far][::-1]
        view = strided_view.follow(s, source, path)
        found = (
            strided_view.match_layout(source, view, letters, merge_heads=merge_heads)
            if view is not None and len(view) == len(letters)
            else None
        )
        if found is not None and ("hh" in found.layout) == (letters.count("h") > 1):
            scale = float(np.prod([p.scale for p in path])) if path else 1.0
            return Operand(root, found, scale, tuple(p.node for p in path))
    return None


def result(
    g: Graph,
    s: Shapes,
    value: str,
    letters: Sequence[str],
    sizes: dict[str, DimLike],
    usable: Callable[[str], bool],
    *,
    merge_heads: bool = False,
) -> Operand:
    """The farthest value downstream of `value` that holds `value` in a named layout. sizes: of each
    letter.

    A Shape that reads the value, too, does not stop the search: `region` takes it into the match,
    or `usable` keeps the value.
    """
    shape = [dims.mul(sizes["b"], sizes["h"]) if c == "bh" else sizes[c] for c in letters]
    best = Operand(
        value, Layout("".join("h" if c == "bh" else c for c in letters), None, sizes), 1.0, ()
    )
    if letters.count("h") > 1:  # which part of them each axis has, its operands do not say
        return best
    path: list[Step] = []
    current = value
    while len(path) < 8 and usable(current) and not g.is_output(current):
        users = [u for u in g.consumers(current) if u.op != "Shape"]
        user = users[0] if len(users) == 1 else None
        step = (
            strided_view.step_of(g, s, user, user.outputs[0])
            if user is not None
            and user.outputs
            and user.op not in ("Expand", "Tile", "Gather", "Slice", "Split")
            else None
        )
        if step is None or step.source != current or step.scale != 1.0:
            return best
        path.append(step)
        current = step.target
        source = strided_view.start(shape)
        if "bh" in letters and not merge_heads and sizes["b"] != 1 and sizes["h"] != 1:
            source[letters.index("bh")][0].split(sizes["b"], sizes["h"])
        view = strided_view.follow(s, source, path)
        if view is None:
            return best
        # The result is the *target* of the movements, so its axes are named by the letters of the
        # source's atoms.
        found = strided_view.match_layout(view, source, letters, merge_heads=merge_heads)
        if found is None or (found.sizes["b"] != 1 and not same(found.sizes["b"], sizes["b"])):
            continue  # batches that the operands do not have
        if found.layout in strided_view.OUT_LAYOUTS:
            best = Operand(current, replace(found, sizes=sizes), 1.0, tuple(p.node for p in path))
    return best


# --- matrix multiplications -----------------------------------------------------------------------
MATMUL_OPS = operators(Trait.BATCHED)
#: A value and the letter of each of its axes.
Axes = tuple[str, tuple[str, ...]]


def query_key(node: Node, lead: tuple[str, ...]) -> tuple[Axes, Axes] | None:
    """q and k of a MatMul whose result is [*lead, queries, keys]."""
    if node.op != "Einsum":
        return (node.input(0), (*lead, "s", "d")), (
            node.input(1),
            (*lead, *(("s", "d") if node.attr("transB", 0) else ("d", "s"))),
        )
    terms = plain_terms(node)
    if terms is None or len(terms[2]) != len(lead) + 2:
        return None
    first, second, out = terms
    rows, columns = out[-2], out[-1]
    q, k = ((first, node.input(0)), (second, node.input(1)))
    if columns in q[0]:
        q, k = k, q
    inner = set(q[0]) & set(k[0]) - set(out)
    if (
        rows not in q[0]
        or columns not in k[0]
        or rows in k[0]
        or columns in q[0]
        or len(inner) != 1
        or set(q[0]) | set(k[0]) != set(out) | inner
    ):
        return None
    letter = dict(zip(out, (*lead, "s", "s"), strict=True)) | {inner.pop(): "d"}
    return (q[1], tuple(letter[c] for c in q[0])), (k[1], tuple(letter[c] for c in k[0]))


def with_values(
    node: Node, probabilities: str, lead: tuple[str, ...], transposed: bool
) -> tuple[Axes, tuple[str, ...]] | None:
    """(v, axes of the result) of the MatMul of [*lead, queries, keys] (or its transpose) with the
    values.
    """
    if node.op != "Einsum":
        axes = (*lead, *(("d", "s") if transposed else ("s", "d")))
        return (node.input(0 if transposed else 1), axes), axes
    terms = plain_terms(node)
    if terms is None or transposed or node.inputs.count(probabilities) != 1:
        return None
    place = node.inputs.index(probabilities)
    p, v, out = terms[place], terms[1 - place], terms[2]
    if len(p) != len(lead) + 2:
        return None
    rows, columns = p[-2], p[-1]
    fresh = set(v) - set(p)
    if (
        rows in v
        or columns not in v
        or columns in out
        or len(fresh) != 1
        or set(out) != (set(p) | fresh) - {columns}
    ):
        return None
    letter = dict(zip(p[:-1], (*lead, "s"), strict=True)) | {fresh.pop(): "d"}
    return (node.input(1 - place), tuple("s" if c == columns else letter[c] for c in v)), tuple(
        letter[c] for c in out
    )


# --- probabilities --------------------------------------------------------------------------------
def probabilities(
    g: Graph, soft: Softmax, cleared: Callable[[Node, str, Sequence[Node]], None]
) -> tuple[list[Node], Node, bool, bool | str]:
    """From Softmax to the MatMul with the values: (nodes between, MatMul, whether the
    probabilities are transposed, whether NaN is cleared).

    cleared(where, value, before) refuses a Where that overwrites probabilities other than masked
    ones.
    """
    nodes: list[Node] = []
    value, transposed, softmax = soft.output, False, soft.anchor
    nan_to_zero: bool | str = False
    while True:
        # the target of a Reshape, computed from what it reshapes
        uses = [c for c in g.consumers(value) if c.op != "Shape"]
        if g.is_output(value):
            raise Refuse(Why.GRAPH_OUTPUT, softmax, value=value)
        if (
            len(uses) == 2
            and uses[0].op == "IsNaN"
            and uses[1].op == "Where"
            and uses[1].inputs[0] == uses[0].outputs[0]
            and uses[1].inputs[2] == value
        ):
            if (
                g.scalar(uses[1].inputs[1]) != 0.0
                or g.sole_consumer(uses[0].outputs[0]) is not uses[1]
            ):
                raise Refuse(Why.NAN_VALUE, uses[1])
            nodes += uses
            value, nan_to_zero = uses[1].outputs[0], True
            continue
        if len(uses) != 1:
            raise not_sole(g, value, near=len(uses) > 1)
        node = uses[0]
        if node.op in MATMUL_OPS:
            require(node, transA=0, transB=0, transBatchA=0, transBatchB=0, alpha=1.0)
            if node.op != "Einsum" and node.inputs[1 if transposed else 0] != value:
                raise Refuse(Why.LEFT_OPERAND, node)
            kind = g.dtype(value)
            for n in nodes:
                if n.op == "Cast" and kind in FLOATS and narrower(n.attr("to"), kind):
                    raise Refuse(Why.ROUNDED, n)
            return nodes, node, transposed, nan_to_zero
        perm = node.attr("perm", [])
        if (
            node.op == "Transpose"
            and not transposed
            and perm[:-2] == list(range(len(perm) - 2))
            and perm[-2:] == [len(perm) - 1, len(perm) - 2]
        ):
            transposed = True
        elif node.op == "Dropout":
            if (node.input(2) and g.scalar(node.input(2)) != 0.0) or len(
                [o for o in node.outputs if o]
            ) > 1:
                raise Refuse(Why.TRAINING, node)
        elif node.op == "Where":
            cleared(node, value, nodes)
            nan_to_zero = nan_to_zero or "masked"
        elif node.op not in ("Cast", "Identity", "Reshape"):
            raise Refuse(Why.PROBABILITIES_OPERATOR, node, near=node.op != "ReduceSum")
        elif node.op == "Cast" and node.attr("to") not in FLOATS:
            raise Refuse(Why.INTEGER_CAST, node)
        elif node.op == "Reshape":
            a, b = shapes(g).dims(node.input(0)), shapes(g).dims(node.outputs[0])
            if not a or not b or not same(a[-1], b[-1]):
                raise Refuse(Why.COLUMNS, node)
        nodes.append(node)
        value = node.outputs[0]


# --- regions --------------------------------------------------------------------------------------
#: Operators of shape computations and of masks made from shapes. Such nodes move into a match
#: when only the match reads them.
_SHAPE_OPS = operators(Trait.BOOLEAN) | (
    {*OPERATORS, "Constant", "Range", "Trilu"} - {"Transpose", "ReduceSum", "ReduceProd"}
)


def region(g: Graph, core: Sequence[Node], operands: Iterable[str]) -> list[Node]:
    """`core`, and the shape computations behind its inputs (other than `operands`) that only the
    region reads, in graph order.

    A shape computation is followed up to Shape, whose input is data. It stops at any operator that
    is not arithmetic on shapes.
    """
    inside: dict[int, Node] = {id(n): n for n in core}
    extra: dict[int, Node] = {}
    stop = set(operands)
    stack = [i for n in core for i in n.inputs if i not in stop]
    while stack:
        node = g.producer(stack.pop())
        if (
            node is None
            or id(node) in inside
            or id(node) in extra
            or node.op not in _SHAPE_OPS
            or node.op == "Constant"
        ):
            continue
        extra[id(node)] = node
        if node.op not in ("Shape", "Size"):
            stack += [i for i in node.inputs if i not in stop]
            continue
        # a movement of an inner value that is made only to read its shape
        moved = g.producer(node.input(0))
        source = (
            g.producer(moved.input(0))
            if moved is not None and moved.op in ("Transpose", "Reshape")
            else None
        )
        if (
            moved is not None
            and source is not None
            and id(source) in inside
            and id(moved) not in inside
        ):
            extra[id(moved)] = moved
    changed = True
    while changed:
        changed = False
        for key, node in list(extra.items()):
            users = [c for o in node.outputs if o for c in g.consumers(o)]
            if (
                any(g.is_output(o) for o in node.outputs)
                or not users
                or any(id(u) not in inside and id(u) not in extra for u in users)
            ):
                del extra[key]
                changed = True
    return sorted({**inside, **extra}.values(), key=lambda n: n.index)


# --- the whole match ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Traced:
    """q, k, v and the result where they lie, and every node between."""

    q: Operand
    k: Operand
    v: Operand
    out: Operand
    nodes: list[Node]


def trace(
    g: Graph,
    s: Shapes,
    operands: Sequence[Axes],
    matmul: str,
    out_letters: Sequence[str],
    core: Sequence[Node],
    masks: Sequence[str],
    *,
    merge_heads: bool = False,
    keep_views: bool = False,
) -> Traced | Refuse:
    """Extend `core` over the Transposes and Reshapes around it, as far as nothing else reads a
    value in between.

    operands: (value, letter per axis) of q, k and v as the core reads them. matmul: the result of
    the core, with the axes `out_letters`. A view of an operand that has other readers becomes the
    operand; with `keep_views` the view stays, and the operand is read from before it.
    """
    blocked: set[str] = set()
    kept: set[int] = set()

    def usable(name: str) -> bool:
        return name not in blocked

    while True:
        found: list[Operand] = []
        for what, (value, letters) in zip(("query", "key", "value"), operands, strict=True):
            op = operand(g, s, value, letters, usable, merge_heads=merge_heads)
            if op is None:
                return Refuse(Why.LAYOUT, g.producer(matmul), what=what, value=value)
            found.append(op)
        q, k, v = found
        # only one of them could be folded: take both as they were repeated
        if not same(k.view.repeat, v.view.repeat):
            blocked.update(
                o
                for op in (k, v)
                for n in op.nodes
                if n.op in ("Expand", "Tile")
                for o in n.outputs
            )
            continue
        out = result(
            g,
            s,
            matmul,
            out_letters,
            {**q.view.sizes, "d": v.view.sizes["d"]},
            usable,
            merge_heads=merge_heads,
        )
        moves = [n for o in (*found, out) for n in o.nodes if id(n) not in kept]
        nodes = region(
            g,
            [*core, *moves],
            {
                *masks,
                q.value,
                k.value,
                v.value,
                *(o for op in found for n in op.nodes if id(n) in kept for o in n.outputs),
            },
        )
        left = [e for e in g.escapes(nodes) if e != out.value]
        if not left and out.view.layout not in strided_view.OUT_LAYOUTS:
            return Refuse(Why.RESULT_LAYOUT, g.producer(matmul), layout=out.view.layout)
        if not left:
            return Traced(q, k, v, out, nodes)
        shown = (
            {
                id(n)
                for op in found
                for k, n in enumerate(op.nodes)
                if any(e in left for m in op.nodes[k:] for e in m.outputs)
            }
            if keep_views
            else set()
        )
        if shown - kept:
            kept |= shown
            continue
        movable = {e for o in (*found, out) for n in o.nodes for e in n.outputs} | {matmul}
        stay = {o for e in left if e in movable for o in _siblings(g, e)}
        if stay <= blocked:
            return needed_outside(g, left[0], nodes)
        blocked |= stay


def _siblings(g: Graph, value: str) -> tuple[str, ...]:
    """All outputs of the node that makes `value`. If one of them must be stored, the node stays."""
    node = g.producer(value)
    return node.outputs if node is not None else (value,)


def heads(q: Operand, k: Operand, v: Operand, node: Node) -> tuple[int, int] | Refuse:
    """(query heads, key/value heads), 0 = as many as the operands' h axis has; or why they do not
    fit at `node`.
    """
    for one, two, what in (
        (q, k, "queries and keys"),
        (q, v, "queries and values"),
        (k, v, "keys and values"),
    ):
        a, b = one.view.sizes["b"], two.view.sizes["b"]
        if a != b and ((isinstance(a, int) and isinstance(b, int)) or 1 in (a, b)):
            return Refuse(Why.BATCH_SIZES, node, what=what)
    h, kv, repeat = q.view.sizes["h"], k.view.sizes["h"], k.view.repeat
    if not same(kv, v.view.sizes["h"]):
        return Refuse(Why.HEAD_COUNTS, node)
    if isinstance(h, int) and isinstance(kv, int):
        fit = kv > 0 and h % kv == 0 and (repeat == 1 or same(h, kv * repeat))
        return (h, kv) if fit else Refuse(Why.HEADS_MULTIPLE, node)
    explicit = all("h" in o.view.layout for o in (q, k, v))
    return (0, 0) if explicit and same(h, kv) and repeat == 1 else Refuse(Why.HEADS_UNKNOWN, node)


def finish(
    g: Graph,
    rule: str,
    anchor: Node,
    t: Traced,
    counts: tuple[int, int],
    masks: Sequence[str],
    attrs: dict[str, Any],
    *,
    head_scale: str = "",
) -> Match:
    """The match of a traced attention; raises `Refuse` when fusing it would make a cycle.
    head_scale: a factor of the scores for each head.
    """
    if not g.is_convex(t.nodes):
        raise Refuse(Why.CYCLE, anchor)
    ends = (t.q.value, t.k.value, t.v.value, t.out.value)
    if len({g.dtype(v) for v in ends} - {None}) > 1:
        kinds = ", ".join(f"'{v}' is {type_name(g.dtype(v) or 0)}" for v in ends)
        raise Refuse(Why.ELEMENT_TYPES, anchor, kinds=kinds)
    inputs = [t.q.value, t.k.value, t.v.value, *masks, *([head_scale] if head_scale else [])]
    refuse_inside(t.nodes, inputs, anchor)
    roles = (
        "q",
        "k",
        "v",
        *("mask" if n == 0 else f"mask{n}" for n in range(len(masks))),
        *(["head_scale"] if head_scale else []),
    )
    lies = {r: o.layout() for r, o in (("q", t.q), ("k", t.k), ("v", t.v))}
    where = {**lies, "out": {"layout": t.out.view.layout}}
    made_of = AttentionSpec(**{**attrs, **where, "num_heads": counts[0], "kv_heads": counts[1]})
    spec = Spec(made_of.op, roles, made_of.to_json())
    return Match(rule, anchor, tuple(t.nodes), tuple(inputs), (t.out.value,), spec)
