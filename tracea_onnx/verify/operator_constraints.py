"""What each operator asks of the sizes it takes, for `size_constraints`, and dims of results that
the rules do not need (`shapes.symbolic`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Array, Graph, Node, subgraphs
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes.environment import Whole
from tracea_onnx.shapes.operands import axes, axis_of, constants, need, pads, terms
from tracea_onnx.shapes.operators import DIMS, slice_ranges
from tracea_onnx.shapes.symbolic import Dims, Shapes
from tracea_onnx.verify.size_constraints import Facts

_SPATIAL = operators(Trait.POOL, Trait.CONV, Trait.DECONV)
_BROADCAST = operators(Trait.BROADCAST)
#: Values that count positions come from these, through these.
_COUNTING = frozenset({"Range", "CumSum"})
_CARRIES = operators(Trait.RESHAPE, Trait.AXES) | {"Add", "Cast", "Mul", "Sub", "Where"}


# --- what operators ask ---------------------------------------------------------------------------
def ask(s: Follower, n: Node) -> None:
    """Note the sizes that the operator demands of its inputs."""
    if n.op in _BROADCAST or n.op in ("PRelu", "Expand"):
        shapes = [s.dims(i) for i in n.inputs]
        if n.op == "Expand":
            target = s.content(n.input(1))
            shapes = [shapes[0], None if target is None else tuple(target)]
        _meet(s, [d for d in shapes if d is not None])
    elif n.op in ASKS:
        ASKS[n.op](s, n)
    if n.op in _SPATIAL:
        _windows(s, n)


def _meet(s: Follower, shapes: Sequence[Dims]) -> None:
    for k in range(max((len(d) for d in shapes), default=0)):
        here = [d[-1 - k] for d in shapes if k < len(d) and d[-1 - k] != 1]
        here.sort(key=lambda d: not isinstance(d, int))
        for d in here[1:]:
            s.facts.same(here[0], d)


def _windows(s: Follower, n: Node) -> None:
    s.facts.images |= len(n.attr("kernel_shape") or s.dims(n.input(1)) or ()) in (2, 4)
    x = need(s, n.input(0))
    if len(x) == 4:
        s.facts.spatial.update(name for d in x[2:] for name in dims.symbols(d))
    for d in (s._derive(n, 0) or ())[2:]:
        if isinstance(d, Dim):
            s.facts.least.append((d, 1))


def _conv(data: int, weight: int) -> Callable[[Follower, Node], None]:
    def look(s: Follower, n: Node) -> None:
        x, w = need(s, n.input(data)), need(s, n.input(weight))
        if len(x) == len(w):
            s.facts.same(
                x[1], w[0] if n.op == "ConvTranspose" else dims.mul(w[1], int(n.attr("group", 1)))
            )
        count = len(w) - 2
        for k, size in enumerate(
            (n.attr("output_shape") or [])[-count:] if n.op == "ConvTranspose" else ()
        ):
            stride, dilation, extra = (
                (n.attr(a) or [d] * count)[k]
                for a, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
            )
            s.facts.same(
                x[k + 2],
                dims.floordiv(
                    dims.sub(size - extra - 1, dims.mul(dilation, dims.sub(w[k + 2], 1))), stride
                )
                + 1,
            )

    return look


def _scaled(s: Follower, n: Node) -> None:
    s.facts.same(need(s, n.input(0))[1], len(n.attr("bias")))


def _channels(s: Follower, n: Node) -> None:
    s.facts.same(need(s, n.input(0))[1], need(s, n.input(1))[0])


def _normalised(s: Follower, n: Node) -> None:
    x = need(s, n.input(0))
    skip = "Skip" in n.op
    _meet(s, [x] + [d for i in n.inputs[1:] for d in (s.dims(i),) if d is not None])
    if skip and n.input(1):
        _meet(s, [x, need(s, n.input(1))])


def _matmul(left: int, right: int) -> Callable[[Follower, Node], None]:
    def look(s: Follower, n: Node) -> None:
        a, b = need(s, n.input(left)), need(s, n.input(right))
        inner = a[-2 if n.attr("transA", 0) and len(a) > 1 else -1]
        s.facts.same(inner, b[-1 if n.attr("transB", 0) or len(b) == 1 else -2])
        _meet(s, [a[:-2], b[:-2]])

    return look


def _gemm(s: Follower, n: Node) -> None:
    a, b = need(s, n.input(0)), need(s, n.input(1))
    s.facts.same(a[0 if n.attr("transA", 0) else 1], b[1 if n.attr("transB", 0) else 0])


def _recurrent(s: Follower, n: Node) -> None:
    x, w, r = (need(s, i) for i in n.inputs[:3])
    if len(x) != 3:  # the result of the other branch of an If
        return
    batch = x[0 if n.attr("layout", 0) else 1]
    s.facts.same(x[2], w[2])
    for i in (n.input(5), n.input(6)):
        state = s.dims(i) if i else None
        if state is not None:
            parts = (batch, w[0], r[2]) if n.attr("layout", 0) else (w[0], batch, r[2])
            for have, want in zip(state, parts, strict=True):
                s.facts.same(have, want)
    lengths = s.dims(n.input(4)) if n.input(4) else None
    if lengths is not None:
        s.facts.same(lengths[0], batch)


def _concat(s: Follower, n: Node) -> None:
    parts = [d for d in map(s.dims, n.inputs) if d is not None]
    axis = axis_of(n.attr("axis", 1), len(parts[0]))
    for p in parts[1:]:
        for k in range(len(p)):
            if k != axis:
                s.facts.same(parts[0][k], p[k])


def _reshape(s: Follower, n: Node) -> None:
    source, shape = s.count(n.input(0)), s._derive(n, 0)
    if source is None or shape is None:
        return
    for have, want in zip(need(s, n.input(0))[:1], shape, strict=False):
        if (
            isinstance(have, Dim)
            and isinstance(want, Dim)
            and have.op == want.op == "sym"
            and have.name in s.facts.own
        ):
            s.facts.same(have, want)  # what both begin with is the batch
    s.facts.same(source, dims.product(shape))


def _squeeze(s: Follower, n: Node) -> None:
    d = need(s, n.input(0))
    for a in axes(s, n, len(d)) or ():
        s.facts.same(d[a], 1)


def _split(s: Follower, n: Node) -> None:
    d = need(s, n.input(0))
    size = d[axis_of(n.attr("axis", 0), len(d))]
    given = constants(s, n, "split", 1)
    s.facts.same(
        size, sum(given) if given else dims.mul(dims.symbol(f"{n.outputs[0]}:part"), len(n.outputs))
    )


def _einsum(s: Follower, n: Node) -> None:
    found = [need(s, i) for i in n.inputs]
    size: dict[str, DimLike] = {}
    for term, sizes in zip(
        terms(n.attr("equation"), [len(d) for d in found])[0], found, strict=True
    ):
        for letter, d in zip(term, sizes, strict=True):
            if d != 1:
                s.facts.same(size.setdefault(letter, d), d)


def _gather(s: Follower, n: Node) -> None:
    d = need(s, n.input(0))
    size, taken = d[axis_of(n.attr("axis", 0), len(d))], s.content(n.input(1))
    if isinstance(size, Dim) and taken is not None:
        s.facts.least += [
            (size, int(v) + 1 if v >= 0 else -int(v))
            for v in taken.reshape(-1)
            if isinstance(v, int)
        ]
    if taken is None and size != 1 and _counts_positions(s, n.input(1)):
        places = need(s, n.input(1))
        if isinstance(size, int):
            s.facts.most += [(e, size) for e in places[-1:] if isinstance(e, Dim)]
        else:  # as many as there are positions, of which none repeats
            s.facts.same(size, dims.product(places))


def _counts_positions(s: Follower, name: str) -> bool:
    stack, seen = [name], set()
    while stack:
        name = stack.pop()
        producer = s.graph.producer(name)
        if producer is None or name in seen:
            continue
        seen.add(name)
        if producer.op in _COUNTING:
            return True
        if producer.op in _CARRIES:
            stack += [i for i in producer.inputs if i]
    return False


def _slice(s: Follower, n: Node) -> None:
    d = need(s, n.input(0))
    for axis, start, _stop, _step in slice_ranges(s, n) or ():
        if isinstance(start, int) and start > 0 and isinstance(d[axis], Dim):
            s.facts.least.append((d[axis], start + 1))


def _pad(s: Follower, n: Node) -> None:
    """Reflection takes as many elements as it adds, and one more."""
    d = need(s, n.input(0))
    if n.attr("mode", "constant") == "reflect":
        added = enumerate(pads(s, n, len(d)))
        s.facts.least += [(d[k % len(d)], p + 1) for k, p in added if isinstance(p, int) and p > 0]


def _embedding(s: Follower, n: Node) -> None:
    ids = need(s, n.input(0))
    for i in (n.input(1), n.input(7)):
        _meet(s, [d for d in (ids, s.dims(i) if i else None) if d is not None])


def _packed_attention(s: Follower, n: Node) -> None:
    s.facts.same(need(s, n.input(0))[2], need(s, n.input(1))[0])


def _control(s: Follower, n: Node) -> None:
    bodies = list(s.bodies(n))
    known = s.content(n.input(0)) if n.op == "If" else None
    if known is not None and known.size == 1 and not isinstance(known.reshape(-1)[0], Dim):
        name = "then_branch" if known.reshape(-1)[0] else "else_branch"
        bodies = [(a.g, {}) for a in n.proto.attribute if a.name == name]
    elif n.op == "If":
        bodies = [
            (a.g, {})
            for a in sorted(n.proto.attribute, key=lambda a: a.name, reverse=not s.flipped)
        ]
    for body, seeds in bodies:
        inner = type(s)(
            Graph(s.graph.model, body, folder=s.graph.folder, outer=s.graph),
            s.facts,
            seeds,
            s,
            flipped=s.flipped,
        )
        if n.op == "If":
            for out, made in zip(n.outputs, body.output, strict=True):
                found = inner.dims(made.name)
                if s._dims.get(out) is None and found is not None:
                    s._dims[out] = found


ASKS: dict[str, Callable[[Follower, Node], None]] = {
    "Conv": _conv(0, 1), "com.microsoft.FusedConv": _conv(0, 1), "ConvTranspose": _conv(0, 1),
    "ConvInteger": _conv(0, 1), "QLinearConv": _conv(0, 3),
    "BatchNormalization": _channels, "InstanceNormalization": _channels,
    "LayerNormalization": _normalised, "RMSNormalization": _normalised,
    "SimplifiedLayerNormalization": _normalised,
    "com.microsoft.SkipLayerNormalization": _normalised,
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalised,
    "com.microsoft.BiasGelu": _normalised, "com.microsoft.FastGelu": _normalised,
    "MatMul": _matmul(0, 1), "com.microsoft.FusedMatMul": _matmul(0, 1),
    "MatMulInteger": _matmul(0, 1), "QLinearMatMul": _matmul(0, 3), "Gemm": _gemm,
    "com.microsoft.FusedGemm": _gemm, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
    "Concat": _concat, "Reshape": _reshape,
    "Squeeze": _squeeze, "Split": _split, "Einsum": _einsum, "Gather": _gather, "Slice": _slice,
    "Pad": _pad, "ImageScaler": _scaled,
    "com.microsoft.EmbedLayerNormalization": _embedding,
    "com.microsoft.Attention": _packed_attention, "If": _control, "Loop": _control,
    "Scan": _control,
}  # fmt: skip


# --- dims that rules do not ask for ---------------------------------------------------------------
def _slice_dims(s: Follower, n: Node, k: int) -> Dims | None:
    """As the rules have it; a part with ends that are numbers is as long as they say, or as its
    source allows.
    """
    found, source = DIMS["Slice"](s, n, k), need(s, n.input(0))
    if found is None:
        return None
    out = list(found)
    for axis, start, stop, step in slice_ranges(s, n) or ():
        if (
            isinstance(start, int)
            and isinstance(stop, int)
            and 0 <= start < stop
            and step == 1
            and isinstance(source[axis], Dim)
        ):
            out[axis] = dims.sub(dims.minimum(source[axis], stop), start)
        elif isinstance(start, int) and start >= 0 and stop is source[axis] and step == 1:
            out[axis] = dims.sub(stop, start)
    return tuple(out)


def _control_dims(s: Follower, n: Node, k: int) -> Dims | None:
    return s._dims.get(n.outputs[k])


_RULES: dict[str, Callable[[Follower, Node, int], Dims | None]] = {
    "Slice": _slice_dims, "If": _control_dims,
}  # fmt: skip


class Follower(Shapes):
    """The dims of one graph's values, with what their operators ask noted in `facts` on the way.

    `seeds` are the dims of the graph's inputs, `parent` follows the enclosing graph. With
    `flipped`, else branches come before then branches: where the two contradict each other, the
    first counts.
    """

    def __init__(
        self,
        graph: Graph,
        facts: Facts,
        seeds: Mapping[str, Dims | None],
        parent: Follower | None = None,
        *,
        flipped: bool = False,
    ) -> None:
        self.graph, self.facts, self.parent, self.flipped = graph, facts, parent, flipped
        self._named = facts.own
        self._dims = dict(seeds)
        self._contents: dict[str, Array | None] = {}
        self._counts: dict[str, DimLike] = {}
        self._here = {
            *graph.inputs,
            *(t.name for t in graph.proto.initializer),
            *(o for n in graph.nodes for o in n.outputs),
        }
        fed = set(seeds)
        for node in graph.nodes:
            # a malformed node asks for nothing that can be told
            with contextlib.suppress(
                IndexError, TypeError, ValueError, ArithmeticError, RecursionError
            ):
                ask(self, node)
            self._visit(node)
            if parent is not None or not fed.isdisjoint(node.inputs):
                fed.update(node.outputs)
        for name in fed & self._here:
            shape = self.dims(name)
            if shape is not None:
                facts.counts.add(dims.product(shape))

    def dims(self, name: str) -> Dims | None:
        """The dims of a value in the new symbols; None when not known."""
        if self.parent is not None and name not in self._here:
            return self.parent.dims(name)
        found = super().dims(name)
        return None if found is None else tuple(map(self.facts.now, found))

    def content(self, name: str) -> Array | None:
        """The elements of a shape tensor in the new symbols; None when not known."""
        if self.parent is not None and name not in self._here:
            return self.parent.content(name)
        found = super().content(name)
        if found is None or not any(isinstance(v, (Dim, Whole)) for v in found.reshape(-1)):
            return found
        out = np.empty(found.shape, dtype=object)
        for index in np.ndindex(found.shape):
            out[index] = self._now(found[index])
        return out

    def _now(self, v: Any) -> Any:
        """An element of a shape tensor in the new symbols."""
        if isinstance(v, Whole):
            d = self.facts.now(v.dim)
            return Whole(d) if isinstance(d, Dim) else float(d)
        return self.facts.now(v) if isinstance(v, Dim) else v

    def _derive(self, node: Node, k: int) -> Dims | None:
        try:
            if node.op in _RULES:
                return _RULES[node.op](self, node, k)
        except (IndexError, TypeError, ValueError, ArithmeticError):
            return None
        return super()._derive(node, k)

    def meet(self, d: DimLike, e: DimLike) -> DimLike:
        """Sizes that meet were noted to be equal: where they are not known to be, one stands for
        both.
        """
        return e

    def bodies(self, node: Node) -> Iterator[tuple[GraphProto, dict[str, Dims | None]]]:
        """The bodies of a node with the dims of their inputs."""
        for body in subgraphs(node.proto):
            given: list[Dims | None] = []
            if node.op == "Loop":
                given = [(), (), *map(self.dims, node.inputs[2:])]
            elif node.op == "Scan":
                states = len(node.inputs) - int(node.attr("num_scan_inputs", 0))
                given = [
                    d if k < states or d is None else d[1:]
                    for k, d in enumerate(map(self.dims, node.inputs))
                ]
            yield body, {i.name: d for i, d in zip(body.input, given, strict=False)}
