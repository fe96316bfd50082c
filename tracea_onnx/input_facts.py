"""What the operators of a model ask of the sizes of its inputs.

One pass over the nodes follows the dims of every value as expressions over the inputs' dims (`patterns_shape`), also through the
bodies of If, Loop and Scan, and notes what each operator asks of them: sizes that are equal (channels of a convolution, rows of a
product, states of a recurrent network, what broadcasts), least sizes (windows that fit, elements that are taken), most (tables).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto

from tracea_onnx import dims, input_asks
from tracea_onnx.dims import Dim, DimLike
from tracea_onnx.graph import Array, Graph, Node, subgraphs
from tracea_onnx.patterns_shape import _BROADCAST, Dims, Shapes

#: Length of an expression that is not looked into.
_LONG = 1000


class Facts:
    """Sizes by symbol (`bound`), and what else was asked. `own` are the symbols of the inputs; others stand for what is not followed."""

    def __init__(self, own: frozenset[str]) -> None:
        self.own = own
        self.bound: dict[str, DimLike] = {}
        self.equal: list[tuple[DimLike, DimLike]] = []
        self.least: list[tuple[DimLike, int]] = []
        self.most: list[tuple[DimLike, int]] = []
        #: Symbols of heights and widths of images, and whether the model takes images at all.
        self.spatial: set[str] = set()
        self.images = False
        #: How many elements the values have that depend on inputs.
        self.counts: set[DimLike] = set()
        #: Symbols of first axes: of batches, where a total is fixed.
        self.leading: set[str] = set()

    def now(self, d: DimLike) -> DimLike:
        """`d` with what is known of its symbols."""
        while isinstance(d, Dim) and any(s in self.bound for s in d.symbols):
            d = dims.replaced(d, self.bound)
        return d

    def same(self, a: DimLike, b: DimLike) -> None:
        """Note that the two are equal. What contradicts something noted before is left out: it was of another branch, or broadcasts."""
        a, b = _without_common(self.now(a), self.now(b))
        if (isinstance(a, int) and isinstance(b, int)) or a is b:
            return
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Dim) and x.op == "min" and any(e is y for e in x.args):
                self.most += [(y, e) for e in x.args if isinstance(e, int)]
                return
        ways = [(x.name, y) for x, y in ((a, b), (b, a)) if isinstance(x, Dim) and x.op == "sym" and self._may_be(x.name, y)]
        ways.sort(key=lambda w: w[0] in self.own)
        ways = ways or self._linear(dims.sub(a, b))
        if ways:
            name, value = ways[0]
            if not isinstance(value, int) or value > 0:
                self.bound[name] = value
        else:
            self.equal.append((a, b))

    def again(self) -> None:
        """Look at the equations once more, until they tell nothing new."""
        known = -1
        while known < len(self.bound):
            known, equal = len(self.bound), self.equal
            self.equal = []
            for a, b in equal:
                self.same(a, b)

    def _linear(self, d: DimLike) -> list[tuple[str, DimLike]]:
        """A symbol and its value where `d`, which is 0, is a multiple of the symbol plus what depends on others."""
        out: list[tuple[str, DimLike]] = []
        for name in dims.symbols(d):
            rest = dims.replaced(d, {name: 0}) if _divides_by_none(d) else d
            slope = dims.sub(dims.replaced(d, {name: 1}), rest) if rest is not d else 0
            if isinstance(slope, int) and slope and dims.sub(d, dims.mul(dims.symbol(name), slope)) == rest:
                value = dims.quotient(dims.mul(rest, -1 if slope > 0 else 1), abs(slope))
                if value is not None and dims.never_negative(value) and self._may_be(name, value):
                    out.append((name, value))
        return out

    def _may_be(self, name: str, value: DimLike) -> bool:
        used = dims.symbols(value)
        return name not in used and (name not in self.own or all(s in self.own for s in used))


def _without_common(a: DimLike, b: DimLike) -> tuple[DimLike, DimLike]:
    """The two sides of an equation without the factors they share."""
    (ka, fa), (kb, fb) = dims.factors(a), dims.factors(b)
    common, whole = fa & fb, math.gcd(ka, kb)
    if not whole or (not common and whole == 1):
        return a, b
    return tuple(dims.mul(dims.product(sorted((f - common).elements(), key=repr)), k // whole) for k, f in ((ka, fa), (kb, fb)))  # type: ignore[return-value]


def _divides_by_none(d: DimLike) -> bool:
    """Whether no symbol is a divisor, so that any may be 0."""
    if isinstance(d, Dim) and d.length > _LONG:
        return False
    return isinstance(d, int) or ((d.op not in ("floordiv", "mod") or isinstance(d.args[1], int)) and all(map(_divides_by_none, d.args)))


class Follower(Shapes):
    """The dims of one graph's values, with what their operators ask noted in `facts` on the way.

    `seeds` are the dims of the graph's inputs, `parent` follows the enclosing graph. With `flipped`, else branches come before
    then branches: where the two contradict each other, the first counts.
    """

    def __init__(self, graph: Graph, facts: Facts, seeds: Mapping[str, Dims | None], parent: Follower | None = None, *, flipped: bool = False) -> None:
        self.graph, self.facts, self.parent, self.flipped = graph, facts, parent, flipped
        self._named = facts.own
        self._dims = dict(seeds)
        self._contents: dict[str, Array | None] = {}
        self._counts: dict[str, DimLike] = {}
        self._here = {*graph.inputs, *(t.name for t in graph.proto.initializer), *(o for n in graph.nodes for o in n.outputs)}
        fed = set(seeds)
        for node in graph.nodes:
            with contextlib.suppress(IndexError, TypeError, ValueError, ArithmeticError, RecursionError):  # a malformed node asks for nothing that can be told
                input_asks.ask(self, node)
            self._visit(node)
            if parent is not None or not fed.isdisjoint(node.inputs):
                fed.update(node.outputs)
        for name in fed & self._here:
            shape = self.dims(name)
            if shape is not None:
                facts.counts.add(dims.product(shape))

    def dims(self, name: str) -> Dims | None:
        if self.parent is not None and name not in self._here:
            return self.parent.dims(name)
        found = super().dims(name)
        return None if found is None else tuple(map(self.facts.now, found))

    def content(self, name: str) -> Array | None:
        if self.parent is not None and name not in self._here:
            return self.parent.content(name)
        found = super().content(name)
        if found is None or not any(isinstance(v, Dim) for v in found.reshape(-1)):
            return found
        out = np.empty(found.shape, dtype=object)
        for index in np.ndindex(found.shape):
            v: Any = found[index]
            out[index] = self.facts.now(v) if isinstance(v, Dim) else v
        return out

    def _derive(self, node: Node, k: int) -> Dims | None:
        try:
            if node.op in input_asks.DIMS:
                return input_asks.DIMS[node.op](self, node, k)
        except (IndexError, TypeError, ValueError, ArithmeticError):
            return None
        if node.op in _BROADCAST:
            return self._broadcast(node)
        return super()._derive(node, k)

    def _broadcast(self, node: Node) -> Dims | None:
        """Sizes that meet were noted to be equal: where they are not known to be, one stands for both."""
        known = [self.dims(i) for i in node.inputs]
        shapes = [d for d in known if d is not None]
        if not shapes or len(shapes) < len(known):
            return None
        meeting = [[d for d in reversed([s[-1 - k] for s in shapes if k < len(s)]) if d != 1] for k in range(max(map(len, shapes)))]
        return tuple(next((d for d in here if isinstance(d, int)), here[0] if here else 1) for here in reversed(meeting))

    def bodies(self, node: Node) -> Iterator[tuple[GraphProto, dict[str, Dims | None]]]:
        """The bodies of a node with the dims of their inputs."""
        for body in subgraphs(node.proto):
            given: list[Dims | None] = []
            if node.op == "Loop":
                given = [(), (), *map(self.dims, node.inputs[2:])]
            elif node.op == "Scan":
                states = len(node.inputs) - int(node.attr("num_scan_inputs", 0))
                given = [d if k < states or d is None else d[1:] for k, d in enumerate(map(self.dims, node.inputs))]
            yield body, {i.name: d for i, d in zip(body.input, given, strict=False)}
