"""Which ranks the values of a graph may have: by what makes them, by what reads them, and by the
branches of an If that can be run at all.

TorchScript writes an If around what depends on a rank or on a size: `squeeze(-1)` removes the axis
where its size is 1, and returns its operand otherwise. What comes next takes one of the two ranks,
so the other branch would only end in an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tracea_onnx.ir.graph import MOST_RANK, Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators

if TYPE_CHECKING:
    from onnx import NodeProto

#: Ranks of the operands of operators that take no others.
RANKS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (3, 3, 3, 2, 1, 3, 3, 2)),
    "Gemm": (2, 2),
}
#: Bit r of a set of ranks: the value may have r axes.
_ALL = (1 << (MOST_RANK + 1)) - 1
_PASSES = 32
#: Numbers followed from a condition back to a rank, at most.
_DEEP = 12


class _Scope:
    """A graph with the sets of ranks that are known of its values. `dead`: where it runs, it
    fails. `vectors`: ONNX Runtime's Gemm takes one for its first operand, which ONNX does not say.
    """

    def __init__(self, graph: Graph, outer: _Scope | None = None, *, vectors: bool) -> None:
        self.graph, self.outer, self.dead, self.changed = graph, outer, False, False
        self.vectors = vectors
        self._sets: dict[str, int] = {}
        self.bodies = {
            n.index: [
                _Scope(
                    Graph(graph.model, g, folder=graph.folder, outer=graph), self, vectors=vectors
                )
                for g in (n.attr("then_branch"), n.attr("else_branch"))
            ]
            for n in graph.nodes
            if n.op == "If" and _has_branches(n)
        }

    def owns(self, name: str) -> bool:
        g = self.graph
        return g.producer(name) is not None or g.is_input(name) or self.outer is None

    def __getitem__(self, name: str) -> int:
        here = self._sets.get(name)
        if not self.owns(name) and self.outer is not None:
            return self.outer[name] & (_ALL if here is None else here)
        if here is None:
            # what a model says of its results is not compared with them
            shape = None if self.graph.is_output(name) else self.graph.shape(name)
            here = _ALL if shape is None else 1 << len(shape)
            self._sets[name] = here
        return here

    def narrow(self, name: str, ranks: int) -> None:
        before = self[name] if name else 0
        if name and before & ranks != before:
            self._sets[name] = before & ranks
            self.changed = True

    def captured(self) -> list[str]:
        """Values from outside of which the body says something."""
        return [name for name in self._sets if not self.owns(name)]

    def impossible(self) -> bool:
        return self.dead or any(not self[name] for name in self._sets)


def _has_branches(n: Node) -> bool:
    """Whether an If has two bodies that make as much as it does."""
    bodies = [n.attr(k) for k in ("then_branch", "else_branch")]
    return all(b is not None and len(b.output) == len(n.outputs) for b in bodies)


# --- what operators say ---------------------------------------------------------------------------
def _shifted(ranks: int, by: int) -> int:
    return (ranks << by if by >= 0 else ranks >> -by) & _ALL


def _more(s: _Scope, a: str, b: str, by: int) -> None:
    """b has so many axes more than a."""
    s.narrow(b, _shifted(s[a], by))
    s.narrow(a, _shifted(s[b], -by))


def _equal(s: _Scope, names: Sequence[str]) -> None:
    ranks = _ALL
    for name in names:
        ranks &= s[name] if name else _ALL
    for name in names:
        s.narrow(name, ranks)


def _lowest(ranks: int) -> int:
    return (ranks & -ranks).bit_length() - 1


def _highest(ranks: int) -> int:
    return ranks.bit_length() - 1


def _broadcast(s: _Scope, names: Sequence[str], out: str) -> None:
    """The result has as many axes as the operand that has most."""
    sets = [s[name] for name in names]
    if not all(sets) or not s[out]:
        return
    union = 0
    for ranks in sets:
        union |= ranks
    s.narrow(out, union & -(1 << max(map(_lowest, sets))))
    if not s[out]:
        return
    for k, name in enumerate(names):
        s.narrow(name, (1 << (_highest(s[out]) + 1)) - 1)
        if all(_highest(r) < _lowest(s[out]) for j, r in enumerate(sets) if j != k):
            s.narrow(name, s[out])


def _length(s: _Scope, n: Node, attribute: str, k: int) -> int | None:
    """Elements of a list that is an attribute, or input `k`."""
    given = n.attr(attribute)
    if given is not None:
        return len(given)
    shape = s.graph.shape(n.input(k)) if n.input(k) else None
    size = shape[0] if shape is not None and len(shape) == 1 else None
    return size if isinstance(size, int) else None


def _first(s: _Scope, n: Node) -> None:
    _equal(s, (n.input(0), n.outputs[0]))


def _all_alike(s: _Scope, n: Node) -> None:
    _equal(s, [*n.inputs, *n.outputs])


def _split(s: _Scope, n: Node) -> None:
    _equal(s, [n.input(0), *n.outputs])


def _conv(s: _Scope, n: Node) -> None:
    _equal(s, [*n.inputs[:2], n.outputs[0]])


def _squeeze(s: _Scope, n: Node) -> None:
    count = _length(s, n, "axes", 1)
    if count is not None:
        _more(s, n.input(0), n.outputs[0], count if n.op == "Unsqueeze" else -count)


def _reduce(s: _Scope, n: Node) -> None:
    if n.attr("keepdims", 1):
        _first(s, n)
    elif count := (1 if n.op.startswith("Arg") else _length(s, n, "axes", 1)):
        _more(s, n.input(0), n.outputs[0], -count)


def _gather(s: _Scope, n: Node) -> None:
    indices = s[n.input(1)]
    if indices and not indices & (indices - 1):
        _more(s, n.input(0), n.outputs[0], _lowest(indices) - 1)


def _listed(s: _Scope, n: Node) -> None:
    """Reshape, and Expand to no fewer axes than there are."""
    count = _length(s, n, "shape", 1)
    if count is None or count > MOST_RANK:
        return
    if n.op == "Reshape":
        s.narrow(n.outputs[0], 1 << count)
    else:
        s.narrow(n.outputs[0], -(1 << count) & _ALL)


def _recurrent(s: _Scope, n: Node) -> None:
    for name, rank in zip(n.outputs, (4, 3, 3), strict=False):
        s.narrow(name, 1 << rank)


def _shape(s: _Scope, n: Node) -> None:
    s.narrow(n.outputs[0], 1 << (n.op == "Shape"))


_RULES: dict[str, Callable[[_Scope, Node], None]] = {
    **dict.fromkeys(operators(Trait.SAME_SHAPE), _first),
    **dict.fromkeys(operators(Trait.POOL, Trait.GLOBAL_POOL), _first),
    **dict.fromkeys(("Transpose", "Slice", "Pad", "Tile", "TopK"), _first),
    **dict.fromkeys(operators(Trait.CONV, Trait.DECONV), _conv),
    **dict.fromkeys((f"Reduce{k}" for k in ("Max", "Mean", "Min", "Prod", "Sum")), _reduce),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "ArgMax": _reduce, "ArgMin": _reduce, "Concat": _all_alike, "Split": _split,
    "Squeeze": _squeeze, "Unsqueeze": _squeeze, "Gather": _gather, "Reshape": _listed,
    "Expand": _listed, "Shape": _shape, "Size": _shape,
}  # fmt: skip
_BROADCAST = operators(Trait.BROADCAST)


def _visit(s: _Scope) -> None:
    for n in s.graph.nodes:
        if n.unread or not n.outputs or not n.outputs[0]:
            continue
        for k, (name, rank) in enumerate(zip(n.inputs, RANKS.get(n.op, ()), strict=False)):
            s.narrow(name, 1 << rank | (s.vectors and n.op == "Gemm" and k == 0) << 1)
        if n.index in s.bodies:
            _branch(s, n)
        elif n.op in _BROADCAST:
            _broadcast(s, [i for i in n.inputs if i], n.outputs[0])
        elif n.op in _RULES:
            _RULES[n.op](s, n)


# --- branches -------------------------------------------------------------------------------------
def _branch(s: _Scope, n: Node) -> None:
    live = _live(s, n)
    for body in live:
        for made, out in zip(body.graph.outputs, n.outputs, strict=True):
            body.narrow(made, s[out] if out else _ALL)
        _visit(body)
        body.dead = body.impossible()
        s.changed |= body.changed
        body.changed = False
    live = [body for body in live if not body.dead]
    if not live:
        s.dead = True
        return
    for k, out in enumerate(n.outputs):
        s.narrow(out, _either(live, [body.graph.outputs[k] for body in live]))
    for name in dict.fromkeys(name for body in live for name in body.captured()):
        s.narrow(name, _either(live, [name] * len(live)))


def _either(bodies: Sequence[_Scope], names: Sequence[str]) -> int:
    out = 0
    for body, name in zip(bodies, names, strict=True):
        out |= body[name]
    return out


def _live(s: _Scope, n: Node) -> list[_Scope]:
    """The branches that may be taken."""
    values = _values(s, n.input(0), _DEEP)
    return [
        body
        for body, taken in zip(s.bodies[n.index], (True, False), strict=True)
        if not body.dead and (values is None or any(bool(v) is taken for v in values))
    ]


def _values(s: _Scope | None, name: str, depth: int) -> set[int] | None:
    """The numbers that a scalar may hold, where it follows from ranks; None where it does not."""
    while s is not None and not s.owns(name):
        s = s.outer
    if s is None or not depth:
        return None
    known = s.graph.scalar(name)
    if known is not None:
        return {int(known)} if float(known).is_integer() else None
    n = s.graph.producer(name)
    if n is None or n.unread:
        return None
    if n.op in ("Identity", "Cast", "Squeeze", "Unsqueeze"):
        return _values(s, n.input(0), depth - 1)
    if n.op in ("Size", "Shape"):  # of a Shape
        source = s.graph.producer(n.input(0))
        if source is None or source.op != "Shape" or {"start", "end"} & source.attrs.keys():
            return None
        ranks = s[source.input(0)]
        return {r for r in range(MOST_RANK + 1) if ranks >> r & 1}
    if n.op in _TESTS:
        found = [_values(s, i, depth - 1) for i in n.inputs]
        a, b = found[0], found[-1]
        if a is None or b is None or len(a) * len(b) > MOST_RANK * MOST_RANK:
            return None
        return {int(_TESTS[n.op](x, y)) for x in a for y in b}
    return None


_TESTS: dict[str, Callable[[int, int], bool]] = {
    "Not": lambda a, _: not a, "Equal": lambda a, b: a == b, "Less": lambda a, b: a < b,
    "Greater": lambda a, b: a > b, "And": lambda a, b: bool(a and b),
    "Or": lambda a, b: bool(a or b),
}  # fmt: skip


# --- what is found --------------------------------------------------------------------------------
def _fixpoint(graph: Graph, *, vectors: bool = False) -> _Scope:
    root = _Scope(graph, vectors=vectors)
    for _ in range(_PASSES):
        root.changed = False
        _visit(root)
        if not root.changed:
            break
    return root


def known_ranks(graph: Graph) -> dict[str, int]:
    """The ranks of the values of a graph that can have one alone."""
    root = _fixpoint(graph)
    if root.impossible():
        return {}
    names = {*graph.inputs, *(name for n in graph.nodes for name in (*n.inputs, *n.outputs))}
    found = ((name, root[name]) for name in names if name)
    return {name: _lowest(ranks) for name, ranks in found if ranks and not ranks & (ranks - 1)}


#: Ifs by the identity of their nodes, which are kept: the node, and which branch it takes.
Decided: TypeAlias = "Mapping[int, tuple[NodeProto, bool]]"


def decided_ifs(graph: Graph) -> Decided:
    """The Ifs, those of their bodies too, of which one branch alone can be run without an error."""
    if not any(n.op == "If" for n in graph.nodes):
        return {}
    root = _fixpoint(graph, vectors=True)
    found: dict[int, tuple[NodeProto, bool]] = {}

    def collect(s: _Scope) -> None:
        for n in s.graph.nodes:
            if n.index not in s.bodies:
                continue
            live = _live(s, n)
            if len(live) == 1:
                found[id(n.proto)] = n.proto, live[0] is s.bodies[n.index][0]
            for body in live:
                collect(body)

    if not root.impossible():
        collect(root)
    return found
