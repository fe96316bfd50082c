"""Scaled dot-product attention, softmax(scale * q k^T + masks) v, with the head splits and
transposes around it: eager and SDPA exports, causal and other masks, packed projections, grouped
queries.

before  MatMul, Mul/Div, Tanh (a cap), Add/Where (masks), Softmax, Cast, Where(IsNaN), MatMul and
        the head splits and transposes around them;
after   attention(q, k, v, masks*) that reads the projections where they lie
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import LARGEST, DType
from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.attention import (
    MATMUL_OPS,
    Axes,
    Operand,
    finish,
    heads,
    probabilities,
    query_key,
    trace,
    with_values,
)
from tracea_onnx.match.epilogue import FLOATS, narrower
from tracea_onnx.match.masks import (
    MASKED,
    BandMask,
    Mask,
    causal_attrs,
    mask_attrs,
    simplified,
    triangle,
)
from tracea_onnx.match.softmax import Softmax, decomposed, operator
from tracea_onnx.match.spec_table import MASKS
from tracea_onnx.shapes.symbolic import Shapes, same, shapes
from tracea_onnx.support.data_classes import dataclass

_LOWEST: dict[int, float] = {dtype: -most for dtype, most in LARGEST.items()}
_REGROUPS = ("Reshape", "Unsqueeze", "Squeeze")


@dataclass
class _Scores:
    """The chain between q k^T and the softmax. `masks` and `nodes` start at the softmax.

    floor: the lower bound that Max or Clip puts on the scores. cap: the softcap, 0 without one;
    `scale` is then the factor inside Tanh. per_head: constant factors [..., heads, 1, 1] of the
    scores; masks come after them.
    """

    matmul: Node
    scale: float = 1.0
    cap: float = 0.0
    per_head: str = ""
    floor: float = float("-inf")
    masks: list[Mask] = field(default_factory=list)
    causal: DimLike | None = None
    nodes: list[Node] = field(default_factory=list)  # outermost first
    # the scores each mask meets, for its broadcasting
    frames: list[str] = field(default_factory=list)

    def unmasked(self, frame: str) -> str:
        """The scores of `frame` before any mask of unknown size. Masks broadcast to the scores and
        do not enlarge them, so both have the same shape.
        """
        at = next(k for k, n in enumerate(self.nodes) if n.outputs[0] == frame)
        return next(
            n.outputs[0] for n in self.nodes[at:] if n.op in MATMUL_OPS or n.op in _REGROUPS
        )


def match(g: Graph, anchor: Node) -> Match:
    s = shapes(g)
    soft = decomposed(g, anchor) if anchor.op == "ReduceSum" else operator(g, anchor)
    scores = _scores(g, s, soft)
    if soft.axis != -1 or soft.log:
        axis = None if soft.axis is None else soft.axis + len(s.dims(soft.x) or ())
        raise Refuse(Why.LOGARITHM if soft.log else Why.SOFTMAX_AXIS, anchor, axis=axis)
    after, matmul, transposed, nan_to_zero = probabilities(
        g, soft, lambda where, value, before: _cleared(g, where, value, scores, before)
    )
    _simplify_masks(g, s, scores, anchor)
    core = [*scores.nodes, *soft.nodes, *after, matmul]
    rank = len(s.dims(scores.matmul.outputs[0]) or ())
    if rank not in (3, 4) and (rank != 5 or scores.masks or scores.causal is not None):
        raise Refuse(Why.SCORES_RANK, scores.matmul, rank=rank or "unknown")
    if len(s.dims(matmul.outputs[0]) or ()) != rank:
        raise Refuse(Why.VALUES_RANK, matmul)
    _same_rows(s, scores, after, transposed)
    lead = ("bh",) if rank == 3 else ("b", *["h"] * (rank - 3))
    qk, v = (
        query_key(scores.matmul, lead),
        with_values(matmul, after[-1].outputs[0] if after else soft.output, lead, transposed),
    )
    if qk is None or v is None:
        raise Refuse(Why.EINSUM, scores.matmul if qk is None else matmul)
    operands = (*qk, v[0])
    tries = [(False, False), (False, True), *([(True, False)] if rank == 3 else [])]
    refused: Refuse | None = None
    for merge, keep in tries:
        found = _build(
            g,
            s,
            anchor,
            scores,
            core,
            matmul,
            operands,
            v[1],
            nan_to_zero,
            merge_heads=merge,
            keep_views=keep,
        )
        if not isinstance(found, Refuse):
            return found
        refused = refused or found
    assert refused is not None
    raise refused


def _is_matmul(g: Graph, value: str, depth: int = 12) -> bool:
    """Whether `value` multiplies two run-time matrices, up to scaling and masking."""
    node = g.producer(value)
    if node is None or depth == 0:
        return False
    if node.op in MATMUL_OPS:
        # Learned queries may be constant, one matrix per head; a constant matrix is the weight of a
        # layer.
        return (
            len(node.inputs) == 2
            and not all(map(g.is_const, node.inputs))
            and not any(g.is_const(i) and (g.rank(i) or 0) < 3 for i in node.inputs)
        )
    if node.op in (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Clip",
        "Tanh",
        "Where",
        "Cast",
        "Identity",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
    ):
        data = (
            node.inputs
            if node.op in ("Add", "Mul", "Max")
            else node.inputs[1:]
            if node.op == "Where"
            else node.inputs[:1]
        )
        return any(_is_matmul(g, i, depth - 1) for i in data)
    return False


def _scores(g: Graph, s: Shapes, soft: Softmax) -> _Scores:
    value = soft.x
    if not _is_matmul(g, value):
        raise Refuse(Why.NOT_ATTENTION, soft.anchor)
    out = _Scores(soft.anchor)
    while True:
        node = g.producer(value)
        assert node is not None  # _is_matmul
        out.nodes.append(node)
        if node.op in MATMUL_OPS:
            out.matmul = node
            if node.op == "com.microsoft.FusedMatMul":
                out.scale *= node.attr("alpha", 1.0)
                require(node, transA=0, transBatchA=0, transBatchB=0)
            return out
        if node.op == "Cast":
            _keep_precision(g, node)
            value = node.input(0)
        elif node.op in ("Identity", "Reshape", "Unsqueeze", "Squeeze"):
            a, b = s.dims(node.input(0)), s.dims(node.outputs[0])
            if not a or not b or not same(a[-1], b[-1]):
                raise Refuse(Why.COLUMNS, node)
            value = node.input(0)
        elif node.op in ("Mul", "Div"):
            value = _scaled(g, s, node, out)
        elif node.op == "Tanh":
            value = _capped(node, out)
        elif node.op == "Add":
            inner = next(i for i in node.inputs if _is_matmul(g, i))
            other = node.inputs[1 - node.inputs.index(inner)]
            value = _added(g, s, node, inner, out, other, 1.0)
        elif node.op in ("Max", "Clip"):
            value = _floored(g, s, node, out)
        elif node.op == "Where":
            value = _where(g, s, node, out)
        elif node.op == "Sub":
            value = _added(g, s, node, node.input(0), out, node.input(1), -1.0)
        else:
            raise Refuse(Why.SCORES_OPERATOR, node)


def _same_rows(s: Shapes, scores: _Scores, after: Sequence[Node], transposed: bool) -> None:
    """Refuse Reshapes between the two matrix multiplications that leave other rows than they
    found. They may merge the rows with leading axes for Softmax.
    """
    moved = [n for n in (*scores.nodes, *after) if n.op in _REGROUPS and not _keeps_rows(s, n)]
    if not moved:
        return
    a, b = (
        s.dims(scores.matmul.outputs[0]),
        s.dims(after[-1].outputs[0] if after else moved[0].outputs[0]),
    )
    if (
        a is None
        or b is None
        or min(len(a), len(b)) < 2
        or not same(a[-2], b[-1 if transposed else -2])
    ):
        raise Refuse(Why.ROWS, moved[-1])


def _keeps_rows(s: Shapes, node: Node) -> bool:
    a, b = s.dims(node.input(0)), s.dims(node.outputs[0])
    return a is not None and b is not None and len(a) > 1 and len(b) > 1 and same(a[-2], b[-2])


def _keep_precision(g: Graph, cast: Node) -> None:
    old, new = g.dtype(cast.input(0)), cast.attr("to")
    if new not in FLOATS:
        raise Refuse(Why.INTEGER_CAST, cast)
    if old in FLOATS and narrower(new, old):
        raise Refuse(Why.ROUNDED, cast)


def _scaled(g: Graph, s: Shapes, node: Node, out: _Scores) -> str:
    a, b = node.inputs
    for x, c in ((a, b), (b, a)) if node.op == "Mul" else ((a, b),):
        factor = s.scalar(c)
        if factor is not None and _is_matmul(g, x):
            if node.op == "Div" and factor == 0:
                raise Refuse(Why.ZERO_DIVISOR, node)
            out.scale *= factor if node.op == "Mul" else 1.0 / factor
            return x
        factors = g.const(c)
        if (
            node.op == "Mul"
            and factors is not None
            and not out.per_head
            and factors.ndim > 2
            and factors.size == factors.shape[-3]
            and _is_matmul(g, x)
        ):
            out.per_head = c
            return x
    raise Refuse(Why.FACTOR, node)


def _capped(node: Node, out: _Scores) -> str:
    """cap * tanh(scores / cap), as in Gemma 2. Every mask must come after it."""
    if out.cap or out.per_head:
        raise Refuse(Why.CAPPED_TWICE if out.cap else Why.BEFORE_FACTORS, node)
    if not 0 < out.scale < np.inf:
        raise Refuse(Why.CAP, node, scale=out.scale)
    out.cap, out.scale = out.scale, 1.0
    return node.input(0)


def _masked(
    g: Graph, s: Shapes, node: Node, scores: str, out: _Scores, mask: Mask, shape: BandMask | None
) -> None:
    """Record a mask; its triangle says whether it is causal."""
    if out.cap or out.per_head:
        raise Refuse(Why.BEFORE_CAP if out.cap else Why.BEFORE_FACTORS, node)
    if shape is not None and not shape.uniform:
        if mask.kind == "add":
            hides = shape.below == 0 and shape.above * out.scale <= MASKED
        else:
            hides = bool(shape.below) == (mask.kind == "bool")
        frame, extent = s.dims(scores), s.dims(mask.value)
        if (
            hides
            and frame is not None
            and extent is not None
            and _covers(extent, frame)
            and _aligned(shape.offset, frame)
        ):
            mask.past = shape.offset
            if mask.kind == "add":
                mask.fill = shape.above
    mask.fill *= out.scale
    mask.scale *= out.scale
    out.masks.append(mask)
    out.frames.append(scores)


def _covers(extent: Sequence[DimLike], frame: Sequence[DimLike]) -> bool:
    """Whether a causal matrix has the rows and columns of the scores, and no axis that would
    enlarge them. An unknown extent must match them, or it would not broadcast.
    """
    if not 2 <= len(extent) <= len(frame) or any(
        m != 1 and f == 1 for m, f in zip(extent[::-1], frame[::-1], strict=False)
    ):
        return False
    return not any(m == 1 and f != 1 for m, f in zip(extent[-2:], frame[-2:], strict=True))


def _aligned(offset: DimLike, frame: Sequence[DimLike]) -> bool:
    return offset >= 0 if isinstance(offset, int) else same(offset, frame[-1] - frame[-2])


def _where(g: Graph, s: Shapes, node: Node, out: _Scores) -> str:
    keep = _is_matmul(g, node.inputs[1])
    inner, other = (node.inputs[1], node.inputs[2]) if keep else (node.inputs[2], node.inputs[1])
    fill = triangle(g, s, other)
    if fill is None or not fill.uniform:
        raise Refuse(Why.FILL_VARIES, node)
    if not fill.below <= MASKED:
        raise Refuse(Why.FILL_HIGH, node, fill=fill.below, limit=MASKED)
    _masked(
        g,
        s,
        node,
        inner,
        out,
        Mask(node.inputs[0], "bool" if keep else "drop", float(fill.below)),
        triangle(g, s, node.inputs[0]),
    )
    return inner


def _added(
    g: Graph, s: Shapes, node: Node, inner: str, out: _Scores, other: str, sign: float
) -> str:
    """scores + mask, scores - mask, or scores * b - 10000 * (1 - b) with b lower triangular, which
    is how early GPT exports write a causal mask.
    """
    shape = triangle(g, s, other)
    if shape is not None:
        shape = replace(shape, below=sign * shape.below, above=sign * shape.above)
    product = g.producer(inner)
    if product is not None and product.op == "Mul" and shape is not None and not shape.uniform:
        for x, b in (product.inputs, product.inputs[::-1]):
            kept = triangle(g, s, b)
            if (
                kept is not None
                and (kept.below, kept.above) == (1.0, 0.0)
                and same(kept.offset, shape.offset)
            ):
                out.nodes.append(product)
                _masked(g, s, node, x, out, Mask(other, "add", scale=sign), shape)
                if out.masks[-1].past is None:
                    raise Refuse(Why.TRIANGLE_ADDED, node)
                out.masks[-1].kind = "mul"
                return x
    _masked(g, s, node, inner, out, Mask(other, "add", scale=sign), shape)
    return inner


def _floored(g: Graph, s: Shapes, node: Node, out: _Scores) -> str:
    """max(scores, lowest). Only what a mask wrote below `lowest` changes."""
    values = [s.scalar(i) if i else None for i in node.inputs]
    inner, floor = (
        (node.input(0), values[1] if len(values) > 1 else None)
        if node.op == "Clip" or values[0] is None
        else (node.input(1), values[0])
    )
    ceiling = (
        node.attr("max", values[2] if len(values) > 2 else None) if node.op == "Clip" else None
    )
    floor = node.attr("min", floor)
    if (
        len(node.inputs) > (3 if node.op == "Clip" else 2)
        or floor is None
        or not floor <= MASKED
        or (ceiling is not None and not ceiling >= -MASKED)
    ):
        raise Refuse(Why.BOUNDS, node, limit=MASKED)
    if out.masks or out.cap or out.per_head:
        later = Why.BEFORE_CAP if out.cap else Why.BEFORE_FACTORS
        raise Refuse(Why.BETWEEN_MASKS if out.masks else later, node)
    out.floor = max(out.floor, floor * out.scale)
    return inner


def _simplify_masks(g: Graph, s: Shapes, scores: _Scores, softmax: Node) -> None:
    """Give each mask its simplest form. The result of a row that is masked completely must not
    change.

    A causal mask alone masks no row completely, so it becomes the flag `causal`. Beside another
    mask it becomes the flag only if it writes minus infinity and nothing overwrites that. A mask
    that adds its fill may write it instead only where the fill swallows a score; it does not
    swallow another fill.
    """
    masks, lifted = scores.masks, scores.floor > -np.inf
    lowest = _LOWEST.get(g.dtype(scores.matmul.outputs[0]) or 0, _LOWEST[DType.F32])
    for k, m in enumerate(masks):
        final = not lifted and m.fill == -np.inf and all(o.kind == "add" for o in masks[:k])
        if m.past is not None and (final or len(masks) == 1):
            scores.causal = m.past
            del masks[k], scores.frames[k]
            break
    if any(m.kind == "mul" for m in masks):
        raise Refuse(Why.TRIANGLE, softmax)
    if len(masks) > len(MASKS):
        raise Refuse(Why.MASKS, softmax)
    for k, m in enumerate(masks):
        simple = simplified(g, s, m, lowest)
        if simple.kind == "add" and lifted:
            raise Refuse(Why.LIFTED, softmax, floor=scores.floor, value=m.value)
        if simple.kind == m.kind or lifted or k == len(masks) - 1 or simple.fill == -np.inf:
            masks[k] = replace(simple, fill=max(simple.fill, scores.floor))
        else:
            masks[k] = replace(m, met=m.value)


def _cleared(g: Graph, where: Node, value: str, scores: _Scores, before: Sequence[Node]) -> None:
    """Check a Where that writes 0 over probabilities that its mask hid from Softmax already
    (DeBERTa).

    It changes only rows that are masked completely: they become 0. This equals a mask that writes
    minus infinity, with the NaN that Softmax makes of such a row replaced by 0.
    """
    kind = "bool" if where.inputs[1] == value else "drop"
    mask = scores.masks[0] if len(scores.masks) == 1 else None
    lowest = _LOWEST.get(g.dtype(scores.matmul.outputs[0]) or 0, -np.inf)
    alike = (
        mask is not None
        and mask.kind == kind
        and mask.value == where.inputs[0]
        and mask.fill <= lowest
        and scores.floor == -np.inf
    )
    if (
        not alike
        or mask is None
        or g.scalar(where.inputs[2 if kind == "bool" else 1]) != 0.0
        or any(n.op in ("Reshape", "Transpose") for n in before)
    ):
        raise Refuse(Why.CLEARED, where)
    mask.fill = -np.inf


def _build(
    g: Graph,
    s: Shapes,
    softmax: Node,
    scores: _Scores,
    core: list[Node],
    matmul: Node,
    operands: Sequence[Axes],
    out_axes: Sequence[str],
    nan_to_zero: bool | str,
    *,
    merge_heads: bool,
    keep_views: bool,
) -> Match | Refuse:
    masks = [replace(m) for m in scores.masks[::-1]]
    t = trace(
        g,
        s,
        operands,
        matmul.outputs[0],
        out_axes,
        core,
        [m.value for m in masks],
        merge_heads=merge_heads,
        keep_views=keep_views,
    )
    if isinstance(t, Refuse):
        return t
    counts = heads(t.q, t.k, t.v, scores.matmul)
    if isinstance(counts, Refuse):
        return counts
    for m, frame in zip(masks, scores.frames[::-1], strict=True):
        if not _fits(s, m, scores.unmasked(frame), t.q, t.k):
            return Refuse(Why.MASK_SHAPE, scores.matmul, value=m.value)
    if t.v.scale != 1.0:
        return Refuse(Why.VALUES_SCALED, matmul)
    if scores.per_head and not _one_each(g, s, scores, t.q):
        return Refuse(Why.HEAD_SCALES, scores.matmul, value=scores.per_head)
    scale = scores.scale * t.q.scale * t.k.scale
    attrs = {
        "scale": scale,
        "nan_to_zero": nan_to_zero,
        **causal_attrs(scores.causal),
        **mask_attrs(masks),
    }
    if scores.cap:
        attrs |= {"scale": scale * scores.cap, "softcap": scores.cap}
    return finish(
        g,
        "attention",
        softmax,
        t,
        counts,
        [m.value for m in masks],
        attrs,
        head_scale=scores.per_head,
    )


def _one_each(g: Graph, s: Shapes, scores: _Scores, q: Operand) -> bool:
    factors, frame = g.const(scores.per_head), s.dims(scores.matmul.outputs[0])
    if factors is None or frame is None or len(frame) != 4 or factors.ndim > 4:
        return False
    return factors.size == q.view.sizes["h"] and g.dtype(scores.per_head) == g.dtype(q.value)


def _fits(s: Shapes, mask: Mask, frame: str, q: Operand, k: Operand) -> bool:
    """Whether a mask met the scores as [batch, heads, queries, keys]; sets `merged` when as [batch
    * heads, ...], and `period` when as [batch / windows, windows, heads, queries, keys].
    """
    extent, scores = s.dims(mask.value), s.dims(frame)
    met = s.dims(mask.met)
    if (
        extent is None
        or met is None
        or scores is None
        or max(len(extent), len(met)) > len(scores)
        or len(scores) > 5
    ):
        return False
    if any(m != 1 and f == 1 for m, f in zip(met[::-1], scores[::-1], strict=False)):
        return False  # it would enlarge the scores
    if len(scores) == 3 and len(extent) == 3 and extent[0] != 1 and q.view.sizes["b"] != 1:
        if not same(extent[0], dims.mul(q.view.sizes["b"], q.view.sizes["h"])):
            return False
        mask.merged, extent = True, extent[1:]
    if len(scores) < 2 or not same(scores[-2], q.view.sizes["s"]):
        return False
    if len(scores) == 4 and not (
        same(scores[0], q.view.sizes["b"]) and same(scores[1], q.view.sizes["h"])
    ):
        return False
    want: list[DimLike] = [
        q.view.sizes["b"],
        q.view.sizes["h"],
        q.view.sizes["s"],
        k.view.sizes["s"],
    ]
    # shifted windows: the reshapes around keep heads, rows and columns, so axis 0 is batch /
    # windows
    if len(scores) == 5:
        if not same(scores[2], want[1]) or (len(extent) == 5 and extent[0] != 1):
            return False
        want[0] = scores[1]
        period = extent[-4] if len(extent) > 3 else 0
        if not isinstance(period, int):
            return False
        mask.period, extent = period, extent[-4:]
    return not any(w == 1 and e != 1 for e, w in zip(extent[::-1], want[::-1], strict=False))


RULE = Rule("attention", "Attention", frozenset(("Softmax", "ReduceSum")), match, priority=10)
