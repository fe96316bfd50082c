"""Rotary embedding: splitting a value in two halves, joining two halves, and tables per
position.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.shapes.operands import axes_of
from tracea_onnx.shapes.operators import slice_ranges
from tracea_onnx.shapes.symbolic import same, shapes
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Halves:
    """`x` taken apart along its last axis: first and second half, or (interleaved) even and odd
    elements.
    """

    x: str
    low: str
    high: str
    interleaved: bool
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Pair:
    """Two halves put together along the last axis, one after the other or (interleaved) element by
    element.
    """

    first: str
    second: str
    out: str
    interleaved: bool
    nodes: tuple[Node, ...]


def _part(g: Graph, value: str) -> tuple[str, int, int, bool] | None:
    """(source, start, step, whole half) of a value that is half of another's last axis."""
    s, node = shapes(g), g.producer(value)
    if node is None or node.op != "Slice":
        return None
    shape = s.dims(node.input(0))
    ranges = slice_ranges(s, node) if shape is not None else None
    if (
        shape is None
        or ranges is None
        or len(ranges) != 1
        or ranges[0][0] != len(shape) - 1
        or not isinstance(shape[-1], int)
        or shape[-1] % 2
    ):
        return None
    _, start, stop, step = ranges[0]
    if not isinstance(start, int) or not isinstance(stop, int):
        return None
    half = shape[-1] // 2
    taken = list(range(start, stop, step))
    if step == 1 and taken in (list(range(half)), list(range(half, 2 * half))):
        return node.input(0), 0 if start == 0 else 1, 1, True
    if step == 2 and taken in (list(range(0, 2 * half, 2)), list(range(1, 2 * half, 2))):
        return node.input(0), start, 2, True
    return None


def halves(g: Graph, one: str, two: str) -> Halves | None:
    """`one` and `two` as the two parts of a value (Split, Slices with step 1 or 2); None when they
    are not.
    """
    p, q = g.producer(one), g.producer(two)
    if p is None or q is None:
        return None
    if p is q and p.op == "Split" and len(p.outputs) == 2:
        shape, parts = shapes(g).dims(p.input(0)), [shapes(g).dims(o) for o in p.outputs]
        if shape is None or p.attr("axis", 0) not in (-1, len(shape) - 1):
            return None
        if not all(d and parts[0] and same(d[-1], parts[0][-1]) for d in parts):
            return None
        return Halves(p.input(0), p.outputs[0], p.outputs[1], False, (p,))
    a, b = _part(g, one), _part(g, two)
    if a is None or b is None or a[0] != b[0] or a[2] != b[2] or {a[1], b[1]} != {0, 1}:
        return None
    low, high = (one, two) if a[1] == 0 else (two, one)
    return Halves(a[0], low, high, a[2] == 2, (p, q))


def stacked(g: Graph, concat: Node) -> Pair | None:
    """Two values joined by `concat` along the last axis: one after the other, or as Unsqueeze,
    Concat, Reshape (interleaved).
    """
    s, shape = shapes(g), shapes(g).dims(concat.outputs[0])
    if (
        len(concat.inputs) != 2
        or shape is None
        or concat.attr("axis", 0) not in (-1, len(shape) - 1)
    ):
        return None
    first, second = concat.inputs
    a, b = g.producer(first), g.producer(second)
    if a is not None and b is not None and a.op == b.op == "Unsqueeze":
        if axes_of(s, a, len(shape)) != [len(shape) - 1] or axes_of(s, b, len(shape)) != [
            len(shape) - 1
        ]:
            return None
        # A Shape that reads the joined value only computes the target of its Reshape.
        readers = [c for c in g.consumers(concat.outputs[0]) if c.op != "Shape"]
        flat = readers[0] if len(readers) == 1 and not g.is_output(concat.outputs[0]) else None
        result = s.dims(flat.outputs[0]) if flat is not None and flat.op == "Reshape" else None
        if (
            flat is None
            or result is None
            or len(result) != len(shape) - 1
            or not all(same(x, y) for x, y in zip(result[:-1], shape[:-2], strict=True))
        ):
            return None
        return Pair(a.input(0), b.input(0), flat.outputs[0], True, (a, b, concat, flat))
    x, y = s.dims(first), s.dims(second)
    return (
        Pair(first, second, concat.outputs[0], False, (concat,))
        if x and y and same(x[-1], y[-1])
        else None
    )


def product_with(g: Graph, value: str, x: str) -> tuple[str, Node] | None:
    """(table, node) when `value` = x * table."""
    node = g.producer(value)
    if node is None or node.op != "Mul" or x not in node.inputs or node.input(0) == node.input(1):
        return None
    return (node.input(1) if node.input(0) == x else node.input(0)), node


def layout_of(table: Sequence[DimLike], x: Sequence[DimLike]) -> str | None:
    """`bhsd` or `bshd`: the axis of x that the position axis of the table meets. None when the
    table does not hold one row per position.
    """

    def fits(row: DimLike, position: DimLike) -> bool:
        return row == 1 or same(row, position)

    if len(table) == 2:
        return "bhsd" if fits(table[0], x[2]) else None
    if len(table) == 3 and table[0] == 1:
        return "bhsd" if fits(table[1], x[2]) else None
    if len(table) != 4 or not fits(table[0], x[0]):
        return None
    if table[1] == 1 and fits(table[2], x[2]):
        return "bhsd"
    return "bshd" if table[2] == 1 and fits(table[1], x[1]) else None


def partial(g: Graph, x: str, out: str, rot: int) -> tuple[str, str, list[Node]] | None:
    """(whole value, whole result, nodes) when only the first `rot` elements of each head are
    rotated and the rest is joined again.
    """
    s, head, join = shapes(g), g.producer(x), g.sole_consumer(out)
    shape = s.dims(join.outputs[0]) if join is not None else None
    if (
        head is None
        or join is None
        or join.op != "Concat"
        or len(join.inputs) != 2
        or join.input(0) != out
        or shape is None
    ):
        return None
    if join.attr("axis", 0) not in (-1, len(shape) - 1):
        return None
    tail = g.producer(join.input(1))
    if tail is None:
        return None
    if (
        head is tail
        and head.op == "Split"
        and len(head.outputs) == 2
        and head.outputs == (x, join.input(1))
    ):
        return (
            (head.input(0), join.outputs[0], [head, join])
            if head.attr("axis", 0) in (-1, len(shape) - 1)
            else None
        )
    if head.op != "Slice" or tail.op != "Slice" or head.input(0) != tail.input(0):
        return None
    source = s.dims(head.input(0))
    one, two = slice_ranges(s, head), slice_ranges(s, tail)
    if (
        source is None
        or one != [(len(shape) - 1, 0, rot, 1)]
        or two != [(len(shape) - 1, rot, source[-1], 1)]
    ):
        return None
    return head.input(0), join.outputs[0], [head, tail, join]
