"""Edits of a graph in place that keep it correct: names across bodies, order, dead values.

Lossless by construction: the protobuf the exporter wrote is changed only where asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.graph import subgraphs
from tracea_onnx.ir.messages import AttributeKind

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every control-flow body, outer before inner."""
    stack = [model.graph]
    while stack:
        g = stack.pop()
        yield g
        stack += [s for n in g.node for s in subgraphs(n)]


def with_bodies(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of the control-flow bodies in them at any depth."""
    stack = list(nodes)
    while stack:
        n = stack.pop()
        yield n
        stack += [m for g in subgraphs(n) for m in g.node]


def unreadable(model: ModelProto) -> str:
    """What no reader of the graph could make sense of, or "": a name that is no text, a graph's
    node that takes its attribute from a function.
    """
    texts: list[object] = [
        *(o.domain for m in (model, *model.functions) for o in m.opset_import),
        *(t for f in model.functions for t in (f.name, f.domain, *f.input, *f.output)),
    ]
    texts += _names(model.graph)
    for nodes, inside in [(model.graph.node, False), *((f.node, True) for f in model.functions)]:
        for n in with_bodies(nodes):
            texts += [
                n.name,
                n.op_type,
                n.domain,
                *n.input,
                *n.output,
                *(e for p in n.metadata_props for e in (p.key, p.value)),
            ]
            texts += [t for a in n.attribute for t in (a.name, a.ref_attr_name)]
            texts += [t for g in subgraphs(n) for t in _names(g)]
            if not isinstance(n.doc_string, str):
                return "a name in it is not valid text"
            if not inside and any(a.ref_attr_name for a in n.attribute):
                return f"node '{n.name}' takes an attribute from a function, and is in none"
    # Protobuf hands over bytes where a name is not valid UTF-8, and who reads names in C reads them
    # up to a NUL.
    return (
        ""
        if all(isinstance(t, str) and "\0" not in t for t in texts)
        else "a name in it is not valid text"
    )


def in_order(graph: GraphProto) -> bool:
    """Whether nodes define every value once, and before the nodes that read it."""
    later = {o for n in graph.node for o in n.output if o}
    for n in graph.node:
        made = {o for o in n.output if o}
        if not later.isdisjoint(n.input) or not made <= later:
            return False
        later -= made
    return True


def _names(graph: GraphProto) -> list[object]:
    """The graph's name, and those of its values and their dims; not of what its nodes make."""
    values = [*graph.input, *graph.output, *graph.value_info]
    types = {id(t): t for t in [v.type for v in values]}.values()  # of a request equal ones are one
    return [
        graph.name,
        *(v.name for v in [*values, *graph.initializer]),
        *(d.dim_param for t in types for d in t.tensor_type.shape.dim),
    ]


def body_names(graph: GraphProto) -> set[str]:
    """Every name that is defined inside a control-flow body of `graph`, at any depth."""
    out: set[str] = set()
    for n in graph.node:
        for g in subgraphs(n):
            out |= defined_names(g) | body_names(g)
    return out


def defined_names(graph: GraphProto) -> set[str]:
    """Names this graph itself defines: inputs, initializers, node outputs."""
    out = (
        {i.name for i in graph.input}
        | {t.name for t in graph.initializer}
        | {s.values.name for s in graph.sparse_initializer}
    )
    return out | {o for n in graph.node for o in n.output if o}


def used_names(nodes: Iterable[NodeProto]) -> set[str]:
    """Every name some node, or a body inside it, reads.

    Names local to a body are included (never too few).
    """
    out: set[str] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        out.update(n.input)
        for g in subgraphs(n):
            out.update(o.name for o in g.output)
            stack += g.node
    out.discard("")
    return out


def protected_names(model: ModelProto, graph: GraphProto) -> set[str]:
    """Names that something besides nodes refers to: they must survive with their meaning."""
    out = {o.name for o in graph.output} | {i.name for i in graph.input}
    for q in graph.quantization_annotation:
        out.add(q.tensor_name)
        out.update(e.value for e in q.quant_parameter_tensor_names)
    for t in model.training_info:
        out.update(e.key for e in chain(t.initialization_binding, t.update_binding))
        out.update(e.value for e in chain(t.initialization_binding, t.update_binding))
    return out


def all_names(model: ModelProto) -> set[str]:
    """Every name that a graph of the model defines or reads: a new name is unlike them all, since a
    body may not define what a graph around it does.
    """
    return used_names(model.graph.node).union(*(defined_names(g) for g in graphs(model)))


class Names:
    """The names of `model` that are taken, read once: who makes names while this is in use asks
    `new` for each.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._taken: set[str] | None = None

    def new(self, name: str) -> str:
        """`name`, numbered if it is taken; the result is taken from then on."""
        if self._taken is None:
            self._taken = all_names(self._model)
        return unique(name, self._taken)


def rename_uses(nodes: Iterable[NodeProto], new: Mapping[str, str]) -> None:
    """Let every reader of `old` read `new[old]`, in bodies too.

    The caller has made sure that no body defines either name.
    """
    if not new:
        return
    stack = list(nodes)
    while stack:
        n = stack.pop()
        for k, name in enumerate(n.input):
            if name in new:
                n.input[k] = new[name]
        for g in subgraphs(n):
            stack += g.node


def renamed(node: NodeProto, new: Mapping[str, str]) -> NodeProto:
    """A copy of the node whose inputs, outputs and captured values bear new names."""
    out = type(node)()
    out.CopyFrom(node)
    out.input[:] = [new.get(i, i) for i in node.input]
    out.output[:] = [new.get(o, o) for o in node.output]
    stack = list(subgraphs(out))
    while stack:
        g = stack.pop()
        for o in g.output:
            o.name = new.get(o.name, o.name)
        for n in g.node:
            n.input[:] = [new.get(i, i) for i in n.input]
            n.output[:] = [new.get(o, o) for o in n.output]
            stack += subgraphs(n)
    return out


def unique(name: str, taken: set[str]) -> str:
    """`name`, numbered if it is taken; the result is taken from then on."""
    if name not in taken:
        taken.add(name)
        return name
    # numbers are taken in order, so that the first free one is found by halves: all nodes of a
    # file may have one name
    free = 1
    while f"{name}_{free}" in taken:
        free *= 2
    used = free // 2
    while free - used > 1:
        middle = (used + free) // 2
        used, free = (middle, free) if f"{name}_{middle}" in taken else (used, middle)
    taken.add(f"{name}_{free}")
    return f"{name}_{free}"


def resolve(new: dict[str, str]) -> dict[str, str]:
    """Follow chains of renames to their end."""
    out: dict[str, str] = {}
    for old in new:
        name = old
        while name in new:
            name = new[name]
        out[old] = name
    return out


def keep_nodes(graph: GraphProto, keep: Collection[int]) -> None:
    """Keep only the nodes at these positions, in order."""
    kept = [n for k, n in enumerate(graph.node) if k in keep]
    if len(kept) != len(graph.node):
        replace_nodes(graph, kept)


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Let the graph have these nodes, in this order."""
    # Copies first: clearing the field invalidates the messages in it.
    fresh = []
    for n in nodes:
        copy = type(n)()
        copy.CopyFrom(n)
        fresh.append(copy)
    del graph.node[:]
    graph.node.extend(fresh)


def captured_names(node: NodeProto) -> set[str]:
    """Outer values the bodies of a node read (and, harmlessly, names its bodies define)."""
    return (
        used_names([node]) - set(node.input)
        if any(a.type in (AttributeKind.GRAPH, AttributeKind.GRAPHS) for a in node.attribute)
        else set()
    )


def sort_nodes(graph: GraphProto, where: str) -> bool:
    """Put nodes in topological order, moving as few as possible; True when something moved.

    Raises ModelError for a cycle.
    """
    producer = {o: k for k, n in enumerate(graph.node) for o in n.output if o}
    readers: list[list[int]] = [[] for _ in graph.node]
    waits = [0] * len(graph.node)
    for k, n in enumerate(graph.node):
        for p in {producer[name] for name in {*n.input, *captured_names(n)} if name in producer}:
            # A body may define a name of its own that is also the node's output; only a direct
            # input makes a node wait for itself.
            if p != k or any(o in n.input for o in n.output if o):
                readers[p].append(k)
                waits[k] += 1
    ready = [k for k, w in enumerate(waits) if not w]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for r in readers[k]:
            waits[r] -= 1
            if not waits[r]:
                heapq.heappush(ready, r)
    if len(order) < len(graph.node):
        stuck = next(n for k, n in enumerate(graph.node) if waits[k])
        label = stuck.name or "".join(stuck.output[:1])
        raise ModelError(
            f"{where} has a cycle through node '{label}' ({stuck.op_type})", "export it again"
        )
    if order == sorted(order):
        return False
    nodes = [graph.node[k] for k in order]
    replace_nodes(graph, nodes)
    return True


def drop_dead(graph: GraphProto, protected: Collection[str]) -> int:
    """Remove nodes and initializers nothing reads; returns how many nodes went."""
    alive = set(protected) | {o.name for o in graph.output}
    keep: set[int] = set()
    for k in range(len(graph.node) - 1, -1, -1):
        n = graph.node[k]
        if not n.output or any(o in alive for o in n.output if o):
            keep.add(k)
            alive |= used_names([n])
    gone = len(graph.node) - len(keep)
    keep_nodes(graph, keep)
    dead = [t.name for t in graph.initializer if t.name not in alive]
    if dead:
        _drop_initializers(graph, frozenset(dead))
    return gone


def _drop_initializers(graph: GraphProto, names: frozenset[str]) -> None:
    for k in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[k].name in names:
            del graph.initializer[k]


def drop_value_info(graph: GraphProto) -> None:
    """Forget types of values that no longer exist."""
    alive = defined_names(graph)
    for k in range(len(graph.value_info) - 1, -1, -1):
        if graph.value_info[k].name not in alive:
            del graph.value_info[k]


def without_claims(model: ModelProto) -> ModelProto:
    """A copy that leaves the types of its values, and the dims of its outputs, to be inferred.

    ONNX Runtime infers them when it loads a model and each time it has changed the graph, and only
    the first time wrong claims can hide an error from it: such a model loads as long as nothing
    changes the graph.
    """
    bare = type(model)()
    bare.CopyFrom(model)
    for g in graphs(bare):
        del g.value_info[:]
        for o in g.output:
            if o.type.HasField("tensor_type"):
                o.type.tensor_type.ClearField("shape")
    return bare


def name_nodes(graph: GraphProto) -> None:
    """Give every nameless node a name that depends only on the graph, and make duplicates
    unique.
    """
    taken = {n.name for n in graph.node if n.name}
    seen: set[str] = set()
    for n in graph.node:
        if n.name and n.name not in seen:
            seen.add(n.name)
            continue
        n.name = unique(n.name or f"{n.op_type}_{next((o for o in n.output if o), 'none')}", taken)
        seen.add(n.name)
