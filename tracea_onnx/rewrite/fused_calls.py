"""Turns each scheduled match into one call of a model-local function whose body is exactly the
nodes it replaces.

    y = Relu(BatchNormalization(Conv(x, w), ...))
        becomes   y = ai.tracea::Conv_1f2e3d4c5b6a7988(x, w, ...) <spec="{...}">

Calls with equal specs and bodies that are equal after renaming share one function; its name ends in
a hash of both. Small constants only the body needs are literals in it; anything else it needs
becomes an extra input after those the spec names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    StringStringEntryProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tracea_onnx.errors import ModelError
from tracea_onnx.ir import edit, fused_op_names
from tracea_onnx.ir.contracts import DOMAIN, DOMAIN_VERSION, SPEC_ATTRIBUTE, Match, Spec
from tracea_onnx.ir.graph import Graph, Node, domain_of, opset_versions, subgraphs

#: Model-local functions exist from this IR version on.
_FUNCTION_IR = 8
#: Constants of at most this many elements become literals of the body.
_LITERAL = 4
METADATA_RULE, METADATA_NODES = "tracea.rule", "tracea.nodes"


def spec_json(spec: Spec) -> str:
    """The `spec` attribute of a call: one line, sorted keys."""
    return json.dumps(
        {"op": spec.op, "roles": list(spec.roles), "attrs": dict(spec.attrs)},
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )


def read_nodes(text: str) -> list[str]:
    """The names of replaced nodes that a fused op's metadata holds.

    Raises ModelError for other text.
    """
    try:
        names = json.loads(text or "[]")
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) and _storable(n) for n in names):
        raise ModelError(
            "the metadata of a fused op is damaged: it lists no nodes",
            "run optimize on the original model again",
        )
    return names


def _storable(name: str) -> bool:
    """Whether a model may hold the name: JSON can spell half of a character, and NUL."""
    return "\0" not in name and not any("\ud800" <= c <= "\udfff" for c in name)


def writable(spec: Spec) -> bool:
    """Whether a model can hold the spec: JSON has no infinities."""
    try:
        spec_json(spec)
    except ValueError:
        return False
    return True


def read_spec(node: NodeProto) -> Spec | None:
    """The spec of a fused op's call node; None for any other node.

    Raises ModelError for one that cannot be read.
    """
    if node.domain != DOMAIN:
        return None
    for a in node.attribute:
        if a.name == SPEC_ATTRIBUTE:
            try:
                d = json.loads(a.s.decode())
                return Spec(str(d["op"]), tuple(map(str, d["roles"])), dict(d["attrs"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ModelError(
                    f"the description of fused op '{node.name or node.op_type}' is damaged",
                    "run optimize on the original model again",
                ) from None
    return None


@dataclass(frozen=True)
class _Call:
    match: Match
    function: FunctionProto
    node: NodeProto


def apply(
    model: ModelProto, graph: Graph, schedule: Sequence[tuple[Match, str]]
) -> list[NodeProto]:
    """Rewrite `graph` (the view of one graph of `model`) in place; `schedule` holds (match, op
    name). Returns the call nodes, in order.

    The matches must be node-disjoint and jointly convex, as a scheduling policy leaves them.
    """
    if not schedule:
        return []
    taken = {n.name for n in graph.nodes}
    calls = [_call(model, graph, match, op, taken) for match, op in schedule]
    known = {(f.domain, f.name): f.SerializeToString(deterministic=True) for f in model.functions}
    for c in calls:
        while (
            known.get(
                (c.function.domain, c.function.name),
                body := c.function.SerializeToString(deterministic=True),
            )
            != body
        ):
            c.function.name += "_"  # the model has a function of this name that is not ours
            c.node.op_type = c.function.name
        if (c.function.domain, c.function.name) not in known:
            known[c.function.domain, c.function.name] = body
            model.functions.append(c.function)
    if all(o.domain != DOMAIN for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    model.ir_version = max(model.ir_version, _FUNCTION_IR)
    _place(graph.proto, calls)
    return [c.node for c in calls]


def drop_uncalled(model: ModelProto) -> None:
    """Remove the functions of fused ops that neither a graph nor another function calls."""
    nodes = [n for g in edit.graphs(model) for n in g.node]
    nodes += [n for f in model.functions for n in edit.with_bodies(f.node)]
    called = {n.op_type for n in nodes if n.domain == DOMAIN}
    for k in reversed(range(len(model.functions))):
        if model.functions[k].domain == DOMAIN and model.functions[k].name not in called:
            del model.functions[k]


def _place(graph: GraphProto, calls: Sequence[_Call]) -> None:
    """Each call takes the place of its chain's last node; what must come later is moved."""
    gone = {n.index for c in calls for n in c.match.nodes}
    at = {max(n.index for n in c.match.nodes): c.node for c in calls}
    edit.replace_nodes(
        graph, [at.get(k, n) for k, n in enumerate(graph.node) if k in at or k not in gone]
    )
    edit.sort_nodes(graph, "the rewritten graph")


def _call(model: ModelProto, graph: Graph, match: Match, op: str, taken: set[str]) -> _Call:
    nodes = sorted(match.nodes, key=lambda n: n.index)
    inner = {o for n in nodes for o in n.outputs if o}
    needed = list(
        dict.fromkeys(
            name
            for n in nodes
            for name in [*n.inputs, *sorted(edit.captured_names(n.proto))]
            if name and name not in inner
        )
    )
    needed = [name for name in needed if name in match.inputs or _defined(graph, name)]
    literals = [name for name in needed if name not in match.inputs and _is_literal(graph, name)]
    extra = [name for name in needed if name not in match.inputs and name not in literals]
    function = _function(model, graph, match, nodes, op, literals, extra)
    name = edit.unique(f"{match.anchor.name}/{op}", taken)
    call = helper.make_node(
        function.name, [*match.inputs, *extra], list(match.outputs), name=name, domain=DOMAIN
    )
    call.attribute.append(helper.make_attribute(SPEC_ATTRIBUTE, spec_json(match.spec)))
    if match.anchor.proto.doc_string:
        call.doc_string = match.anchor.proto.doc_string
    call.metadata_props.extend(_metadata(match, nodes))
    return _Call(match, function, call)


def _metadata(match: Match, nodes: Sequence[Node]) -> list[StringStringEntryProto]:
    """Metadata of the replaced nodes (the anchor's entries win), and the origin of the call."""
    merged = {e.key: e.value for n in [*nodes, match.anchor] for e in n.proto.metadata_props}
    merged |= {METADATA_RULE: match.rule, METADATA_NODES: json.dumps([n.name for n in nodes])}
    return [StringStringEntryProto(key=k, value=v) for k, v in sorted(merged.items())]


def _defined(graph: Graph, name: str) -> bool:
    """Whether a name read inside a body is a value of this graph or one around it (and not local to
    the body).
    """
    g: Graph | None = graph
    while g is not None:
        if (
            g.is_input(name)
            or g.producer(name) is not None
            or any(t.name == name for t in g.proto.initializer)
        ):
            return True
        g = g.outer
    return False


def _is_literal(graph: Graph, name: str) -> bool:
    if not graph.is_const(name):
        return False
    shape = graph.shape(name)
    count = 1
    for d in shape if shape is not None else ():
        count *= d if isinstance(d, int) else _LITERAL + 1
    return shape is not None and count <= _LITERAL and graph.dtype(name) != TensorProto.STRING


def _function(
    model: ModelProto,
    graph: Graph,
    match: Match,
    nodes: Sequence[Node],
    op: str,
    literals: Sequence[str],
    extra: Sequence[str],
) -> FunctionProto:
    """The body with names that depend on its structure alone, so that equal chains share it."""
    new: dict[str, str] = {}
    formals: list[str] = []
    for k, (role, value) in enumerate(zip(match.spec.roles, match.inputs, strict=True)):
        formals.append(role if match.spec.roles.count(role) == 1 else f"{role}.{k}")
        new.setdefault(value, formals[-1])
    for k, value in enumerate(extra):
        formals.append(f"extra.{k}")
        new[value] = formals[-1]
    results = [f"y.{k}" for k in range(len(match.outputs))]
    new |= dict(zip(match.outputs, results, strict=True))
    new |= {value: f"c.{k}" for k, value in enumerate(literals)}
    inner = [o for n in nodes for o in n.outputs if o and o not in new]
    new |= {value: f"v.{k}" for k, value in enumerate(inner)}
    body: list[NodeProto] = []
    for value in literals:
        array = graph.const(value)
        assert array is not None
        tensor = numpy_helper.from_array(array)
        body.append(helper.make_node("Constant", [], [new[value]], value=tensor))
    opsets = opset_versions(model.opset_import)
    body += [_bare(n.proto, new, opsets.get("", 1)) for n in nodes]
    domains = sorted({domain_of(d) for d in _domains(body)} | {""})
    function = helper.make_function(
        DOMAIN,
        op,
        formals,
        results,
        body,
        [helper.make_opsetid(d, opsets.get(d, 1)) for d in domains],
        attributes=[SPEC_ATTRIBUTE],
    )
    function.name = fused_op_names.name(op, function, spec_json(match.spec))
    chain = ", ".join(n.op_type for n in body if n.op_type != "Constant")
    function.doc_string = f"Fused by tracea-onnx from {chain}; the attribute spec says what it is."
    return function


def _bare(node: NodeProto, new: dict[str, str], opset: int) -> NodeProto:
    """The node as part of a shared body: equal chains must have equal bytes, whatever their
    exporter called them.
    """
    out = edit.renamed(node, new)
    for field in ("name", "doc_string", "metadata_props"):
        out.ClearField(field)
    out.domain = domain_of(node.domain)
    own = not out.domain and (
        node.op_type == "SimplifiedLayerNormalization"
        or (node.op_type == "LayerNormalization" and opset < 17)
    )
    if own and all(a.name != "stash_type" for a in out.attribute):
        # ONNX Runtime 1.31 crashes on a body that leaves the default of its own operator out
        out.attribute.append(helper.make_attribute("stash_type", 1))
    attributes = sorted(out.attribute, key=lambda a: a.name)
    del out.attribute[:]
    out.attribute.extend(attributes)
    return out


def _domains(nodes: Sequence[NodeProto]) -> set[str]:
    out = {n.domain for n in nodes}
    for n in nodes:
        for g in subgraphs(n):
            out |= _domains(list(g.node))
    return out
