"""Symbolic shapes for matching: the dims of every value and the contents of small shape tensors.

Exporters write one head split in a dozen ways: a constant shape, `0` and `-1`, or a tower of Shape,
Gather, Slice, Unsqueeze, Concat, Cast and arithmetic. All of them evaluate here to the same tuple
of `dims.DimLike`, so rules compare dims and never spellings."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.dim_proofs import Dims, broadcast, same
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Array, Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes import shape_values
from tracea_onnx.shapes.spatial import SPATIAL

__all__ = ["Dims", "Shapes", "axes_of", "broadcast", "same", "shapes", "slice_ranges"]

_SAME, _BROADCAST = operators(Trait.SAME_SHAPE), operators(Trait.BROADCAST)
#: Operators that keep every element of their first input.
_KEEPS_COUNT = operators(Trait.SAME_SHAPE, Trait.RESHAPE, Trait.PERMUTE)


class Shapes:
    """Dims and shape contents of every value of one graph, computed in one pass over its nodes."""

    def __init__(self, graph: Graph) -> None:
        # which keeps these shapes: a cycle would live until it is collected
        self.graph: Graph = weakref.proxy(graph)
        self._named = graph.symbols()
        self._dims: dict[str, Dims | None] = {}
        self._contents: dict[str, Array | None] = {}
        self._counts: dict[str, DimLike] = {}
        for node in graph.nodes:
            self._visit(node)

    def dims(self, name: str) -> Dims | None:
        """One `DimLike` per axis, None when even the rank is unknown.

        An unknown dim is a symbol of its own.
        """
        if name not in self._dims:
            self._dims[name] = self._declared(name)
        return self._dims[name]

    def content(self, name: str) -> Array | None:
        """The elements of a scalar or short vector as an object array of int, Dim and float; None
        when not known.
        """
        if name not in self._contents:
            value = self.graph.const(name) if name else None
            ok = (
                value is not None
                and value.ndim <= 1
                and value.size <= shape_values.LONGEST
                and value.dtype.kind in "iufb"
            )
            self._contents[name] = (
                np.array(value.tolist(), dtype=object) if ok and value is not None else None
            )
        return self._contents[name]

    def count(self, name: str) -> DimLike | None:
        """How many elements a value has.

        A Reshape to [n // 2, 2] says more than its dims: there are n of them.
        """
        if name in self._counts:
            return self._counts[name]
        d = self.dims(name)
        return None if d is None else dims.product(d)

    def scalar(self, name: str) -> float | None:
        """The number a value always holds: a one-element constant, or arithmetic on dims that are
        known.
        """
        direct = self.graph.scalar(name)
        if direct is not None:
            return direct
        c = self.content(name)
        if c is None or c.size != 1:
            return None
        v = c.reshape(-1)[0]
        return None if isinstance(v, Dim) else float(v)

    def unknown(self, name: str, axis: int, rank: int) -> DimLike:
        """A dim of a value that no rule derives: as declared, else a symbol of its own."""
        declared = self._declared(name)
        return (
            declared[axis]
            if declared is not None and len(declared) == rank
            else dims.symbol(f"{name}:{axis}")
        )

    def _declared(self, name: str) -> Dims | None:
        shape = self.graph.shape(name)
        if shape is None:
            return None
        return tuple(
            d
            if isinstance(d, int)
            else dims.named(d, self._named)
            if d
            else dims.symbol(f"{name}:{k}")
            for k, d in enumerate(shape)
        )

    def _visit(self, node: Node) -> None:
        for k, out in enumerate(node.outputs):
            if not out:
                continue
            content = (
                shape_values.content(self, node)
                if k == 0 and node.op in shape_values.OPERATORS
                else None
            )
            if content is not None:
                self._contents[out] = content
            declared, derived = self._declared(out), self._derive(node, k)
            if declared is None or derived is None or len(declared) != len(derived):
                self._dims[out] = derived if declared is None else declared
            else:
                self._dims[out] = tuple(
                    a if isinstance(a, int) else b for a, b in zip(declared, derived, strict=True)
                )
            if k == 0:
                self._carry_count(node, out)

    def _carry_count(self, node: Node, out: str) -> None:
        shape = self._dims[out]
        for source in node.inputs:
            if node.op in _KEEPS_COUNT and source == node.inputs[0]:
                known = self.count(source)
            elif node.op in _BROADCAST and source in self._counts and self.dims(source) == shape:
                known = self._counts[source]
            else:
                continue
            if known is not None and shape is not None and not same(known, dims.product(shape)):
                self._counts[out] = known
            return

    def _derive(self, node: Node, k: int) -> Dims | None:
        try:
            if node.op in _SAME:
                return self.dims(node.input(0)) if k == 0 else None
            if node.op in _BROADCAST:
                parts = [self.dims(i) for i in node.inputs]
                known = [p for p in parts if p is not None]
                return broadcast(*known) if known and len(known) == len(parts) else None
            rule = _DIMS.get(node.op)
            return rule(self, node, k) if rule is not None else None
        except (
            IndexError,
            TypeError,
            ValueError,
            ArithmeticError,
        ):  # a malformed node: leave its shape to the declaration
            return None


def shapes(graph: Graph) -> Shapes:
    """The symbolic shapes of `graph`, computed once."""
    return graph.derived(Shapes)


def axes_of(s: Shapes, node: Node, rank: int) -> list[int] | None:
    """Normalised `axes` of Squeeze, Unsqueeze or a reduction, as attribute or input; None when they
    are not constant.
    """
    axes = node.attr("axes")
    if axes is None and node.input(1):
        axes = s.graph.ints(node.input(1))
        if axes is None:
            return None
    return (
        None
        if axes is None or any(not -rank <= a < rank for a in axes)
        else [a % rank for a in axes]
    )


def axis_of(node: Node, rank: int, default: int = 0) -> int:
    """The node's axis, counted from the front. Raises ValueError when there is none."""
    axis = int(node.attr("axis", default))
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of rank {rank}")
    return axis % rank


# --- dims, by operator ------------------------------------------------------------------------------------------------
def _need(s: Shapes, name: str) -> Dims:
    d = s.dims(name)
    if d is None:
        raise ValueError(name)
    return d


def _vector(s: Shapes, name: str) -> list[DimLike]:
    c = s.content(name)
    if c is None or any(isinstance(v, float) for v in c.reshape(-1)):
        raise ValueError(name)
    return [v if isinstance(v, Dim) else int(v) for v in c.reshape(-1)]


def _reshape(s: Shapes, n: Node, _: int) -> Dims | None:
    source, target = _need(s, n.input(0)), _vector(s, n.input(1))
    if not n.attr("allowzero", 0):
        target = [source[k] if isinstance(d, int) and d == 0 else d for k, d in enumerate(target)]
    if -1 not in [d for d in target if isinstance(d, int)]:
        return tuple(target)
    known = dims.product([d for d in target if not (isinstance(d, int) and d == -1)])
    total = s.count(n.input(0))
    rest = dims.quotient(dims.product(source) if total is None else total, known)
    if rest is None:
        rest = dims.symbol(f"{n.outputs[0]}:-1")
    return tuple(rest if isinstance(d, int) and d == -1 else d for d in target)


def _transpose(s: Shapes, n: Node, _: int) -> Dims:
    d = _need(s, n.input(0))
    return tuple(d[p] for p in n.attr("perm", list(range(len(d)))[::-1]))


def _unsqueeze(s: Shapes, n: Node, _: int) -> Dims | None:
    d = _need(s, n.input(0))
    axes = n.attr("axes") if n.attr("axes") is not None else s.graph.ints(n.input(1))
    if axes is None:
        return None
    rank = len(d) + len(axes)
    places = {a % rank for a in axes if -rank <= a < rank}
    if len(places) < len(axes):
        return None
    rest = iter(d)
    return tuple(1 if k in places else next(rest) for k in range(rank))


def _squeeze(s: Shapes, n: Node, _: int) -> Dims | None:
    d = _need(s, n.input(0))
    axes = axes_of(s, n, len(d))
    if axes is None:
        return (
            None
            if n.input(1) or any(not isinstance(v, int) for v in d)
            else tuple(v for v in d if v != 1)
        )
    return tuple(v for k, v in enumerate(d) if k not in axes)


def _gather(s: Shapes, n: Node, _: int) -> Dims:
    d, index = _need(s, n.input(0)), _need(s, n.input(1))
    axis = axis_of(n, len(d))
    return (*d[:axis], *index, *d[axis + 1 :])


def _concat(s: Shapes, n: Node, _: int) -> Dims:
    parts = [_need(s, i) for i in n.inputs]
    axis = axis_of(n, len(parts[0]))
    total: DimLike = 0
    for p in parts:
        total = dims.add(total, p[axis])
    return tuple(total if k == axis else v for k, v in enumerate(parts[0]))


def slice_ranges(s: Shapes, n: Node) -> list[tuple[int, DimLike, DimLike, int]] | None:
    """(axis, start, stop, step) per sliced axis with ends resolved against the dims; None when they
    are not known.
    """
    try:
        d = _need(s, n.input(0))
        starts, ends = (
            (n.attr("starts"), n.attr("ends"))
            if n.attr("starts") is not None
            else (_vector(s, n.input(1)), _vector(s, n.input(2)))
        )
    except ValueError:
        return None
    if n.attr("starts") is not None:
        axes, steps = n.attr("axes"), None
    else:
        axes = s.graph.ints(n.input(3)) if n.input(3) else None
        steps = s.graph.ints(n.input(4)) if n.input(4) else None
        if (n.input(3) and axes is None) or (n.input(4) and steps is None):
            return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(axes) if steps is None else steps
    if (
        not len(axes) == len(starts) == len(ends) == len(steps)
        or 0 in steps
        or any(not -len(d) <= a < len(d) for a in axes)
    ):
        return None
    axes = [a % len(d) for a in axes]

    def place(v: DimLike, size: DimLike) -> DimLike:
        if isinstance(v, int) and isinstance(size, int):
            return max(0, min(size, v + size if v < 0 else v))
        if isinstance(v, int) and v >= 2**31 - 1:
            return size
        if isinstance(v, int) and v <= -(2**31) + 1:
            return 0
        if isinstance(v, int) and v < 0:
            return dims.add(size, v)
        # counted from the end by a size: only all of it is known
        back = v if isinstance(v, int) or dims.never_negative(v) else dims.add(size, v)
        return 0 if isinstance(back, int) and back == 0 else v

    return [
        (a, place(b, d[a]), place(e, d[a]), t)
        for a, b, e, t in zip(axes, starts, ends, steps, strict=True)
    ]


def _slice(s: Shapes, n: Node, k: int) -> Dims | None:
    d, ranges = list(_need(s, n.input(0))), slice_ranges(s, n)
    if ranges is None:
        return None
    for axis, start, stop, step in ranges:
        size, rest = d[axis], dims.sub(d[axis], start)
        if isinstance(start, int) and isinstance(stop, int) and isinstance(size, int) and step > 0:
            d[axis] = len(range(start, stop, step))
        elif step == 1 and start == 0 and dims.never_negative(stop):
            d[axis] = size if same(stop, size) else dims.minimum(stop, size)
        elif (
            step == 1
            and same(stop, size)
            and dims.never_negative(start)
            and dims.never_negative(rest)
        ):
            d[axis] = rest
        else:
            d[axis] = s.unknown(n.outputs[k], axis, len(d))
    return tuple(d)


def _split(s: Shapes, n: Node, k: int) -> Dims | None:
    d = list(_need(s, n.input(0)))
    axis = axis_of(n, len(d))
    sizes = (
        n.attr("split")
        if n.attr("split") is not None
        else _vector(s, n.input(1))
        if n.input(1)
        else None
    )
    part = sizes[k] if sizes is not None else dims.quotient(d[axis], len(n.outputs))
    if part is None:
        return None
    d[axis] = part
    return tuple(d)


def _matmul(s: Shapes, n: Node, _: int) -> Dims | None:
    a, b = _need(s, n.input(0)), _need(s, n.input(1))
    if len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast(a[:-2], b[:-2]) if len(a) + len(b) > 4 else ()
    return None if batch is None else (*batch, a[-2], b[-1])


def _fused_matmul(s: Shapes, n: Node, _: int) -> Dims | None:
    a, b = _need(s, n.input(0)), _need(s, n.input(1))
    if len(a) < 2 or len(b) < 2 or n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        return None
    batch = broadcast(a[:-2], b[:-2]) if len(a) + len(b) > 4 else ()
    return (
        None
        if batch is None
        else (*batch, a[-1 if n.attr("transA", 0) else -2], b[-2 if n.attr("transB", 0) else -1])
    )


def _merged_heads(s: Shapes, n: Node, _: int) -> Dims | None:
    q, v = _need(s, n.input(0)), _need(s, n.input(2))
    return (*q[:2], v[2]) if len(q) == len(v) == 3 else None


def _einsum(s: Shapes, n: Node, _: int) -> Dims | None:
    inputs, arrow, out = n.attr("equation").replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        return None
    size = {
        c: d
        for term, i in zip(inputs.split(","), n.inputs, strict=True)
        for c, d in zip(term, _need(s, i), strict=True)
        if d != 1
    }
    return tuple(size.get(c, 1) for c in out)


def _gemm(s: Shapes, n: Node, _: int) -> Dims:
    a, b = _need(s, n.input(0)), _need(s, n.input(1))
    return (a[1] if n.attr("transA", 0) else a[0], b[0] if n.attr("transB", 0) else b[1])


def _reduce(s: Shapes, n: Node, _: int) -> Dims | None:
    d = _need(s, n.input(0))
    axes = axes_of(s, n, len(d))
    if axes is None:
        return None
    return tuple(
        1 if k in axes else v for k, v in enumerate(d) if n.attr("keepdims", 1) or k not in axes
    )


def _range(s: Shapes, n: Node, _: int) -> Dims | None:
    start, limit, delta = (_vector(s, i)[0] for i in n.inputs)
    return (dims.sub(limit, start),) if delta == 1 else None


_DIMS: dict[str, Callable[[Shapes, Node, int], Dims | None]] = {
    **SPATIAL,
    "Reshape": _reshape, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Gather": _gather, "Concat": _concat,
    "Slice": _slice, "Split": _split, "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _fused_matmul, "com.microsoft.MultiHeadAttention": _merged_heads,
    "ReduceMean": _reduce, "ReduceSum": _reduce, "ReduceMax": _reduce,
    "Range": _range, "GatherElements": lambda s, n, _: _need(s, n.input(1)),
    "Expand": lambda s, n, _: broadcast(_need(s, n.input(0)), tuple(_vector(s, n.input(1)))),
    "ConstantOfShape": lambda s, n, _: tuple(_vector(s, n.input(0))),
    "Tile": lambda s, n, _: tuple(dims.mul(a, b) for a, b in zip(_need(s, n.input(0)), _vector(s, n.input(1)), strict=True)),
    "Shape": lambda s, n, _: (len(_need(s, n.input(0))[slice(n.attr("start", 0), n.attr("end"))]),),
}  # fmt: skip
