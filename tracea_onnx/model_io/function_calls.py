"""Calls of model-local functions replaced by the nodes they stand for: how the user's own functions
are searched, and how fused ops turn back.

    y = mine.Block <alpha = 0.3> (x)        ->      t = LeakyRelu <alpha = 0.3> (x)   y = Add (t, x)

ONNX Runtime does the same when it loads a model. A call none of whose nodes changed is put back, so
a function in which nothing fuses stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, helper

from tracea_onnx.errors import ModelError
from tracea_onnx.ir import edit
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import domain_of, opset_versions, subgraphs

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Expansion:
    """One call that was replaced: the call, and the nodes in its place as they were then."""

    call: NodeProto
    nodes: tuple[NodeProto, ...]


def key(f: FunctionProto | NodeProto) -> Key:
    """Domain, name and overload: what a call names its function by."""
    name = f.name if isinstance(f, FunctionProto) else f.op_type
    return (domain_of(f.domain), name, f.overload)


def expanded(
    call: NodeProto, function: FunctionProto, taken: set[str], names: Sequence[str] = ()
) -> list[NodeProto]:
    """The nodes of `function` with the call's operands and attributes in place of its own.

    Values inside get new names not in `taken` (which they join). `names` are names for the nodes
    that are not constants; the others are called after the call. Raises ModelError where the call
    has more operands or results than the function.
    """
    for what, given, formal in (
        ("inputs", call.input, function.input),
        ("outputs", call.output, function.output),
    ):
        if len(given) > len(formal):
            raise ModelError(
                f"node '{call.name}' calls function '{function.name}' with {len(given)} {what}; "
                f"it has {len(formal)}",
                "export the model again",
            )
    new = dict(
        zip(
            function.input,
            [*call.input, *([""] * (len(function.input) - len(call.input)))],
            strict=True,
        )
    )
    actual = [*call.output, *([""] * (len(function.output) - len(call.output)))]
    passed: list[tuple[str, str]] = []
    for formal, value in zip(function.output, actual, strict=True):
        if formal not in new:
            new[formal] = value or edit.unique(f"{call.name}/{formal}", taken)
        elif value:  # an input handed through, or one value under two names
            passed.append((formal, value))
    attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in call.attribute}
    remembered = list(names)
    out: list[NodeProto] = []
    for n in function.node:
        node = NodeProto()
        node.CopyFrom(n)
        _bind(node, attributes)
        node.name = (
            remembered.pop(0)
            if remembered and n.op_type != "Constant"
            else f"{call.name}/{n.name or len(out)}"
        )
        out.append(node)
    _rename(out, new, call.name, taken)
    out += [helper.make_node("Identity", [new[f]], [v], name=f"{call.name}/{v}") for f, v in passed]
    return out


def _bind(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    """Attributes that refer to one of the function's take its value; without a value they fall back
    to the operator's default.
    """
    bound: list[AttributeProto] = []
    for a in node.attribute:
        if not a.ref_attr_name:
            bound.append(a)
        elif a.ref_attr_name in attributes:
            value = AttributeProto()
            value.CopyFrom(attributes[a.ref_attr_name])
            value.name = a.name
            bound.append(value)
    if len(bound) != len(node.attribute) or any(a.ref_attr_name for a in node.attribute):
        fresh = NodeProto()
        fresh.attribute.extend(bound)
        del node.attribute[:]
        node.attribute.extend(fresh.attribute)
    for g in subgraphs(node):
        for n in g.node:
            _bind(n, attributes)


def _rename(nodes: Iterable[NodeProto], new: dict[str, str], prefix: str, taken: set[str]) -> None:
    """Rename in place what the nodes read and make, bodies included; every value without a name in
    `new` gets one of its own.
    """
    for n in nodes:
        n.input[:] = [new.get(i, i) for i in n.input]
        for g in subgraphs(n):
            local = dict(new)
            own = [*g.input, *g.initializer, *(s.values for s in g.sparse_initializer)]
            local |= {v.name: edit.unique(f"{prefix}/{v.name}", taken) for v in own}
            for v in own:
                v.name = local[v.name]
            _rename(g.node, local, prefix, taken)
            for o in [*g.output, *g.value_info]:
                o.name = local.get(o.name, o.name)
        for o in n.output:
            if o and o not in new:
                new[o] = edit.unique(f"{prefix}/{o}", taken)
        n.output[:] = [new.get(o, o) for o in n.output]


# --- the user's functions -------------------------------------------------------------------------
def expand(model: ModelProto, notes: list[str]) -> list[Expansion]:
    """Replace every call of the user's functions, in place, and return what was replaced; `notes`
    receives why a function was not expanded.

    `limits.check` has bounded how many nodes that makes.
    """
    safe: dict[Key, FunctionProto] = {}
    called = {key(n) for g in edit.graphs(model) for n in g.node}
    for f in model.functions:
        if f.domain == DOMAIN or _is_operator(model, f):
            continue
        reason = _unsafe(model, f)
        if not reason:
            safe[key(f)] = f
        elif key(f) in called:
            notes.append(f"the function {f.domain}.{f.name} was not searched: {reason}")
    out: list[Expansion] = []
    taken = edit.all_names(model)
    for k in reversed(range(len(list(edit.graphs(model))))):
        out += _expand_graph(list(edit.graphs(model))[k], safe, taken)
    if out:
        known = opset_versions(model.opset_import)
        needed = {domain_of(o.domain): o for f in safe.values() for o in f.opset_import}
        model.opset_import.extend(o for d, o in sorted(needed.items()) if d not in known)
    return out


def _expand_graph(
    graph: GraphProto, functions: Mapping[Key, FunctionProto], taken: set[str]
) -> list[Expansion]:
    if not any(key(n) in functions for n in graph.node):
        return []
    edit.name_nodes(graph)
    names = {n.name for n in graph.node}
    out: list[Expansion] = []

    def leaves(call: NodeProto) -> list[NodeProto]:
        made: list[NodeProto] = []
        for n in expanded(call, functions[key(call)], taken):
            n.name = edit.unique(n.name, names)
            made += leaves(n) if key(n) in functions else [n]
        return made

    nodes: list[NodeProto] = []
    for n in graph.node:
        if key(n) not in functions:
            nodes.append(n)
            continue
        kept = NodeProto()
        kept.CopyFrom(n)
        made = leaves(n)
        for m in made:
            for g in subgraphs(m):
                _expand_graph(g, functions, taken)
        copies = tuple(NodeProto.FromString(m.SerializeToString()) for m in made)
        out.append(Expansion(kept, copies))
        nodes += made
    edit.replace_nodes(graph, nodes)
    return out


def restore(model: ModelProto, expansions: Sequence[Expansion]) -> list[Expansion]:
    """Put back each call whose nodes are all still there and unchanged; returns the expansions that
    stay. Functions nothing calls any more go.
    """
    left = list(expansions)
    for g in list(edit.graphs(model)):
        before = -1
        # a call that is put back may have been what kept another from it
        while left and len(left) != before:
            before = len(left)
            left = _put_back(g, left, edit.protected_names(model, g))
    gone = _called(model, [e.call for e in left]) - _called(
        model, [n for g in edit.graphs(model) for n in g.node]
    )
    for k in reversed(range(len(model.functions))):
        if key(model.functions[k]) in gone:
            del model.functions[k]
    return left


def _put_back(
    graph: GraphProto, expansions: Sequence[Expansion], protected: set[str]
) -> list[Expansion]:
    """Put back calls in one graph; returns the others."""
    nodes: list[NodeProto | None] = list(graph.node)
    place = {n.name: k for k, n in enumerate(graph.node)}
    readers = Counter(name for n in graph.node for name in edit.used_names([n]))
    left: list[Expansion] = []
    for e in expansions:
        work = [n for n in e.nodes if n.op_type != "Constant"]  # constants have become initializers
        if not work or any(n.name not in place or nodes[place[n.name]] != n for n in work):
            left.append(e)
            continue
        inner = {o for n in work for o in n.output} - set(e.call.output)
        within = Counter(name for n in work for name in edit.used_names([n]))
        # An equal node elsewhere may have been merged into one of these, and an operand the body
        # ignores may be gone.
        if any(readers[name] > within[name] for name in inner) or {
            i for i in e.call.input if i
        } - set(within):
            left.append(e)
            continue
        readers.subtract(within)
        readers.update(edit.used_names([e.call]))
        at = {place.pop(n.name) for n in work}
        for k in at:
            nodes[k] = e.call if k == max(at) else None
    if len(left) < len(expansions):
        edit.replace_nodes(graph, [n for n in nodes if n is not None])
        edit.sort_nodes(graph, "the graph")
        edit.drop_dead(graph, protected)
    return left


def _called(model: ModelProto, nodes: Iterable[NodeProto]) -> set[Key]:
    """Functions the nodes call, directly or through other functions."""
    by_key = {key(f): f for f in model.functions}
    out: set[Key] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        stack += [m for g in subgraphs(n) for m in g.node]
        if key(n) in by_key and key(n) not in out:
            out.add(key(n))
            stack += by_key[key(n)].node
    return out


def _unsafe(model: ModelProto, f: FunctionProto) -> str:
    """Why a function's calls must not be replaced by its nodes, or ""."""
    ours, theirs = opset_versions(model.opset_import), opset_versions(f.opset_import)
    for n in edit.with_bodies(f.node):
        d = domain_of(n.domain)
        if (
            d in ours
            and d in theirs
            and ours[d] != theirs[d]
            and not _same_operator(n.op_type, d, ours[d], theirs[d])
        ):
            return (
                f"{n.op_type} means something else in its operator set ({theirs[d]}) than in "
                f"the model's ({ours[d]})"
            )
    return ""


def _is_operator(model: ModelProto, f: FunctionProto) -> bool:
    """Whether ONNX has an operator of this name in the model's operator set: that is what ONNX
    Runtime runs, not the function.
    """
    try:
        return not domain_of(f.domain) and bool(
            onnx.defs.get_schema(f.name, opset_versions(model.opset_import).get("", 0), "")
        )
    except onnx.defs.SchemaError:
        return False


def _same_operator(op: str, domain: str, a: int, b: int) -> bool:
    try:
        return bool(
            onnx.defs.get_schema(op, a, domain).since_version
            == onnx.defs.get_schema(op, b, domain).since_version
        )
    except (
        Exception
    ):  # onnx.defs.SchemaError: not a standard operator, so nothing is known about its versions
        return False
