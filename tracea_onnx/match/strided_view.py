"""Reading a chain of Transpose, Reshape, Slice, Gather, Split, Squeeze, Unsqueeze and Expand as one
strided view of a value.

Attention and rotary embedding want their operands where the projections wrote them. Whatever
movement an exporter put between, the chain is followed symbolically from a source value: every
source axis is a list of factors of its dim, movements regroup, permute, split, select or
broadcast factors, and the result is compared with a small table of named layouts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes.environment import Unsupported
from tracea_onnx.shapes.operands import placed
from tracea_onnx.shapes.operators import reshape_target, slice_ranges
from tracea_onnx.shapes.symbolic import Shapes, same
from tracea_onnx.support.data_classes import dataclass

#: Layouts of an operand as the letters of each source axis: b batch, h heads, s sequence, d head
#: elements, p the parts of a packed projection (written as their number in the name: `bs3x`). x in
#: a name stands for heads x elements of one axis, hh for heads that lie in two axes.
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "bhsd": ("b", "h", "s", "d"), "bshd": ("b", "s", "h", "d"), "bhds": ("b", "h", "d", "s"),
    "sbhd": ("s", "b", "h", "d"),
    "bsx": ("b", "s", "hd"), "sbx": ("s", "b", "hd"), "bxs": ("b", "hd", "s"),
    "hsd": ("h", "s", "d"), "hds": ("h", "d", "s"),
    "bhhsd": ("b", "h", "h", "s", "d"), "bhhds": ("b", "h", "h", "d", "s"),
    "bspx": ("b", "s", "phd"), "bshpd": ("b", "s", "hpd"), "sbpx": ("s", "b", "phd"),
    "sbhpd": ("s", "b", "hpd"), "bpxs": ("b", "phd", "s"),
}  # fmt: skip
#: Layouts a result may be written in.
OUT_LAYOUTS = ("bsx", "bshd", "sbx", "sbhd", "bhsd", "hsd", "bxs", "bhds", "hds", "bhhsd")


def source_rank(layout: str) -> int:
    """The rank of what lies in this layout."""
    digits = "".join(c for c in layout if c.isdigit())
    return len(LAYOUTS[layout.replace(digits, "p") if digits else layout])


def strides(
    layout: str, shape: Sequence[DimLike], heads: int, index: int = 0
) -> tuple[dict[str, DimLike], dict[str, DimLike], DimLike]:
    """(size per letter b, h, s, d; stride per letter; element offset) of an operand over its
    contiguous source of dims `shape`.

    `heads` is the operand's own head count (key/value heads for k and v); it is read from the h
    axis where the layout has one. A letter the layout does not have has size 1 and stride 0.
    """
    digits = "".join(c for c in layout if c.isdigit())
    template = LAYOUTS[layout.replace(digits, "p") if digits else layout]
    size: dict[str, DimLike] = {"b": 1, "h": heads, "s": 1, "d": 1, "p": int(digits or 1)}
    for letters, dim in zip(template, shape, strict=True):
        size[letters[-1]] = dims.floordiv(dim, dims.product([size[c] for c in letters[:-1]]))
    stride: dict[str, DimLike] = {"b": 0, "h": 0, "s": 0, "d": 0}
    step: DimLike = 1
    offset: DimLike = 0
    for c in reversed("".join(template)):
        if c == "p":
            offset = dims.mul(step, index)
        else:
            stride[c] = step
        step = dims.mul(step, size[c])
    return {c: size[c] for c in "bhsd"}, stride, offset


class Factor:
    """A factor of a source dim, or a broadcast axis. A split factor is its two parts, outer
    first.
    """

    __slots__ = ("broadcast", "index", "parts", "size")

    def __init__(self, size: DimLike, broadcast: bool = False) -> None:
        self.size, self.broadcast = size, broadcast
        self.parts: tuple[Factor, Factor] | None = None
        self.index: int | None = None  # set when one element of the factor was selected

    def split(self, outer: DimLike, inner: DimLike) -> tuple[Factor, Factor]:
        """Make it two parts, outer first, and return them."""
        self.parts = (Factor(outer, self.broadcast), Factor(inner, self.broadcast))
        return self.parts


def leaves(factors: Iterable[Factor]) -> list[Factor]:
    """Factors after all splits, size-1 ones dropped (their stride means nothing)."""
    out: list[Factor] = []
    for a in factors:
        out += leaves(a.parts) if a.parts is not None else [] if a.size == 1 else [a]
    return out


Axes = list[list[Factor]]


@dataclass(frozen=True)
class Step:
    """One movement of a chain: `node` takes `source` to `target`; `scale` is the factor it
    multiplies by.
    """

    node: Node
    source: str
    target: str
    scale: float = 1.0


_STRIDED = operators(Trait.STRIDED)


def step_of(g: Graph, s: Shapes, node: Node, target: str) -> Step | None:
    """`node` as a movement (or a multiplication by a scalar, or a Cast that changes nothing) of one
    data input; else None.
    """
    if node.op in _STRIDED:
        return Step(node, node.input(0), target)
    if node.op == "Cast" and g.dtype(node.input(0)) == node.attr("to"):
        return Step(node, node.input(0), target)
    if node.op in ("Mul", "Div"):
        a, b = node.inputs
        for x, c in ((a, b), (b, a)) if node.op == "Mul" else ((a, b),):
            factor, shape, rank = s.scalar(c), s.dims(c), s.dims(x)
            if (
                factor is not None
                and rank is not None
                and shape is not None
                and len(shape) <= len(rank)
                and s.scalar(x) is None
            ):
                return Step(
                    node,
                    x,
                    target,
                    factor if node.op == "Mul" else 1.0 / factor if factor else float("nan"),
                )
    return None


def chain(g: Graph, s: Shapes, value: str, limit: int = 24) -> list[Step]:
    """The movements that made `value`, nearest first."""
    out: list[Step] = []
    while len(out) < limit:
        node = g.producer(value)
        step = step_of(g, s, node, value) if node is not None else None
        if step is None:
            return out
        out.append(step)
        value = step.source
    return out


def start(shape: Sequence[DimLike]) -> Axes:
    """One factor per axis."""
    return [[Factor(d)] for d in shape]


def follow(s: Shapes, view: Axes, steps: Iterable[Step]) -> Axes | None:
    """The view after `steps`; None when a movement is not expressible (a slice of unequal parts, a
    reshape across factors).
    """
    for step in steps:
        moved = _move(s, view, step)
        if moved is None:
            return None
        view = moved
    return view


def _take(pool: list[Factor], need: DimLike) -> list[Factor] | None:
    """Factors from the front of `pool` whose product is `need`, splitting the last one if it must
    be.
    """
    group: list[Factor] = []
    while need != 1:
        if not pool:
            return None
        a = pool.pop(0)
        rest = dims.quotient(need, a.size)
        if rest is not None:
            group.append(a)
            need = rest
            continue
        inner = dims.quotient(a.size, need)
        if inner is None:
            return None
        outer_atom, inner_atom = a.split(need, inner)
        group.append(outer_atom)
        pool.insert(0, inner_atom)
        need = 1
    return group


def _regroup(factors: Sequence[Factor], target: Sequence[DimLike]) -> Axes | None:
    pool, out = leaves(factors), []
    for d in target:
        group = _take(pool, d)
        if group is None:
            return None
        out.append(group)
    return None if pool else out


def _move(s: Shapes, view: Axes, step: Step) -> Axes | None:
    n, shape, result = step.node, s.dims(step.source), s.dims(step.target)
    if shape is None or result is None or len(shape) != len(view):  # a file may claim any rank
        return None
    if n.op in ("Identity", "Cast", "Mul", "Div"):
        return view if len(shape) == len(result) else None
    if n.op == "Transpose":
        perm = n.attr("perm", list(range(len(view)))[::-1])
        return [view[p] for p in perm] if sorted(perm) == list(range(len(view))) else None
    if n.op in ("Reshape", "Flatten"):
        try:
            target = _target(s, view, n, result)
        except Unsupported:
            return None
        return _regroup([a for axis in view for a in axis], target)
    if n.op in ("Squeeze", "Unsqueeze"):
        try:
            kept = placed(s, n)
        except Unsupported:
            return None
        return [[] if k is None else view[k] for k in kept] if len(kept) == len(result) else None
    if n.op == "Tile":
        times = s.content(n.input(1))
        if times is None or times.shape != (len(view),):
            return None
        return [
            axis if isinstance(t, int) and t == 1 else [Factor(t, broadcast=True), *axis]
            for axis, t in zip(view, times, strict=True)
        ]
    if n.op == "Expand":
        if len(result) < len(shape):  # a file claims so
            return None
        padded: Axes = [[] for _ in range(len(result) - len(shape))] + view
        old = (1,) * (len(result) - len(shape)) + shape
        return [
            axis if same(a, b) else [Factor(b, broadcast=True)]
            for axis, a, b in zip(padded, old, result, strict=True)
        ]
    return _select(s, view, step)


def extent(factors: Iterable[Factor]) -> DimLike:
    """The product of the sizes."""
    return dims.product([a.size for a in leaves(factors)])


def _target(s: Shapes, view: Axes, node: Node, declared: Sequence[DimLike]) -> Sequence[DimLike]:
    """What a Reshape makes of this view: `0` and `-1` are resolved against its factors, which may
    be better known than the value's dims. Raises Unsupported for a target that makes no sense.
    """
    content = s.content(node.input(1)) if node.op == "Reshape" else None
    if (
        content is None
        or content.ndim != 1
        or node.attr("allowzero", 0)
        or any(isinstance(v, float) for v in content)
    ):
        return declared
    target = reshape_target(list(content), [extent(axis) for axis in view], 0)
    unknown = [k for k, v in enumerate(target) if isinstance(v, int) and v == -1]
    if unknown:
        rest = dims.quotient(
            extent(a for axis in view for a in axis),
            dims.product([v for k, v in enumerate(target) if k not in unknown]),
        )
        if rest is None:
            return declared
        target[unknown[0]] = rest
    return target


def _select(s: Shapes, view: Axes, step: Step) -> Axes | None:
    """Gather of one index, Slice or Split: an axis loses its outer factor, of which one element is
    kept.
    """
    n, shape = step.node, s.dims(step.source)
    assert shape is not None
    if n.op != "Slice" and not -len(shape) <= n.attr("axis", 0) < len(shape):
        return None
    if n.op == "Gather":
        axis, index = n.attr("axis", 0) % len(shape), s.graph.const(n.input(1))
        if index is None or index.size != 1:
            return None
        kept = _part(view[axis], shape[axis], int(index.reshape(-1)[0]), 1)
        if kept is None:
            return None
        return [*view[:axis], *([kept] if index.ndim else []), *view[axis + 1 :]]
    if n.op == "Split":
        result = s.dims(step.target)
        axis, k = n.attr("axis", 0) % len(shape), n.outputs.index(step.target)
        sizes = [s.dims(o) for o in n.outputs]
        if (
            result is None
            or any(o is None or len(o) != len(shape) for o in sizes)
            or any(o is None or not same(o[axis], result[axis]) for o in sizes)
            or not isinstance(result[axis], int)
        ):
            return None
        kept = _part(view[axis], shape[axis], k * int(result[axis]), int(result[axis]))
        return None if kept is None else [*view[:axis], kept, *view[axis + 1 :]]
    ranges = slice_ranges(s, n)
    if ranges is None:
        return None
    out = list(view)
    for axis, begin, end, stride in ranges:
        if begin == 0 and same(end, shape[axis]) and stride == 1:
            continue
        if stride != 1 or not isinstance(begin, int) or not isinstance(end, int):
            return None
        kept = _part(out[axis], shape[axis], begin, end - begin)
        if kept is None:
            return None
        out[axis] = kept
    return out


def _part(axis: list[Factor], size: DimLike, begin: int, width: int) -> list[Factor] | None:
    if not isinstance(size, int) or width <= 0 or size % width or begin % width:
        return None
    begin %= size
    groups = _regroup(axis, (size // width, width))
    if groups is None or len(groups[0]) > 1:
        return None
    if groups[0]:
        if groups[0][0].broadcast:
            return None
        groups[0][0].index = begin // width
    return groups[1]


@dataclass(frozen=True)
class Layout:
    """A view under a layout's name.

    `sizes` per letter; `repeat` is how often each head is used (grouped-query), 1 otherwise.
    """

    layout: str
    index: int | None
    sizes: Mapping[str, DimLike]
    repeat: DimLike = 1


def match_layout(
    source: Axes, view: Axes, letters: Sequence[str], *, merge_heads: bool = False
) -> Layout | None:
    """The layout of `source` whose view has the axes `letters` (`bh` = batch and heads merged in
    one axis; a letter twice: its elements lie in two axes).

    `merge_heads` reads a merged axis as heads alone. None when no layout of the table fits.
    """
    if len(letters) != len(view):
        return None
    label: dict[int, str] = {}
    order: dict[str, list[int]] = {}
    sizes: dict[str, DimLike] = dict.fromkeys("bhsd", 1)
    repeat: DimLike = 1
    for letter, axis in zip(letters, view, strict=True):
        factors = leaves(axis)
        if "h" in letter and letters.count("h") < 2 and factors and factors[-1].broadcast:
            repeat = factors[-1].size
            factors = factors[:-1]
        if any(a.broadcast for a in factors):
            return None
        if letter == "bh":
            split = 0 if merge_heads or len(factors) < 2 else 1
            pairs = [("b", factors[:split]), ("h", factors[split:])]
        else:
            pairs = [(letter, factors)]
        for c, part in pairs:
            sizes[c] = dims.mul(sizes[c], dims.product([a.size for a in part]))
            order.setdefault(c, []).extend(id(a) for a in part)
            label.update((id(a), c) for a in part)
    index: int | None = None
    parts: DimLike = 1
    found: list[str] = []
    seen: dict[str, list[int]] = {}
    for axis in source:
        text = ""
        for a in leaves(axis):
            if a.index is not None:
                if index is not None or not isinstance(a.size, int):
                    return None
                index, parts = a.index, a.size
                text += "p"
                continue
            known = label.get(id(a))
            if known is None:
                return None
            seen.setdefault(known, []).append(id(a))
            text += known if not text.endswith(known) else ""
        found.append(text)
    runs = [c for c, _ in itertools.groupby("".join(found))]
    if any(seen.get(c, []) != ids for c, ids in order.items()) or len(set(runs)) < len(runs):
        return None
    present = set("".join(found))
    for layout, template in LAYOUTS.items():
        if len(template) != len(found) or ("p" in "".join(template)) != (index is not None):
            continue
        if all(
            text == "".join(c for c in axis if c in present)
            or (text == "" and axis == "h" and "hh" in layout)
            for text, axis in zip(found, template, strict=True)
        ):
            return Layout(
                layout.replace("p", str(parts)) if index is not None else layout,
                index,
                sizes,
                repeat,
            )
    return None
