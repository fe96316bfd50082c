"""What a user can do about a refusal: mostly one option of the exporter.

Where nothing but the rule could change, there is no advice.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Advice, Reason, Refusal


def remedy(graph: Graph, refusal: Refusal) -> str:
    """One sentence that would lift the refusal, or ""."""
    reasons = list(_reasons(refusal.because))
    for reason in reasons:
        advice = reason.why.advice
        look = _IN_GRAPH.get(advice)
        if said := advice.value if look is None else look(graph, refusal):
            return said
    # labels of nodes start with the operator
    if any(str(o).startswith("com.microsoft.") for r in reasons for o in r.operands.values()):
        return "the file was optimized for ONNX Runtime before: optimize the exporter's own file"
    return ""


def _reasons(reason: Reason) -> Iterator[Reason]:
    """A reason and those inside it."""
    yield reason
    inner = reason.operands.get("because")
    if isinstance(inner, Reason):
        yield from _reasons(inner)


def _nodes(graph: Graph, refusal: Refusal) -> list[Node]:
    return [n for n in graph.nodes if n.name in (refusal.node, refusal.anchor)]


def _values(graph: Graph, refusal: Refusal) -> list[str]:
    """Values that the sentence of a refusal names."""
    operands = [o for r in _reasons(refusal.because) for o in r.operands.values()]
    return [
        o
        for o in operands
        if isinstance(o, str) and (graph.producer(o) is not None or graph.is_input(o))
    ]


def _not_constant(graph: Graph, refusal: Refusal) -> str:
    """Why an operand that ought to be constant is not: every exporter has an option for it."""
    named = _values(graph, refusal)
    operands = [i for n in _nodes(graph, refusal) for i in n.inputs[1:] if i]
    stored = {t.name for t in graph.proto.initializer}
    for value in dict.fromkeys([*named, *operands]):
        if graph.is_input(value) and value in stored:
            return (
                f"'{value}' is a graph input with a default that callers may override: leave out"
                " --keep-initializer-inputs, or re-export with keep_initializers_as_inputs=False"
            )
        if graph.is_input(value):
            return (
                f"the exporter wrote '{value}' as a graph input: re-export with it as a constant"
                " (export_params=True)"
            )
        made = graph.producer(value)
        if made is not None and value in named and not graph.is_const(value):
            return (
                f"{made.op} '{made.name}' computes '{value}' at run time: re-export with"
                " do_constant_folding=True"
            )
    return ""


def _unknown(graph: Graph, refusal: Refusal) -> str:
    """Where on the way to the refused node types or shapes were lost."""
    operands = [i for n in _nodes(graph, refusal) for i in n.inputs if i]
    for value in dict.fromkeys([*_values(graph, refusal), *operands]):
        origin = _lost(graph, value)
        if isinstance(origin, Node):
            return (
                f"types and shapes are lost at {origin.op} '{origin.name}': re-export with fixed"
                " shapes there, or write them into the file first with"
                " python -m onnxruntime.tools.symbolic_shape_infer"
            )
        if origin:
            return (
                f"input '{origin}' has no shape in the file: re-export with example inputs,"
                " which exporters record"
            )
    return ""


def _lost(graph: Graph, value: str) -> Node | str | None:
    seen: set[str] = set()
    while _is_unknown(graph, value) and value not in seen:
        seen.add(value)
        made = graph.producer(value)
        if made is None:
            return value if graph.is_input(value) else None
        before = next((i for i in made.inputs if i and _is_unknown(graph, i)), None)
        if before is None:
            return made
        value = before
    return None


def _is_unknown(graph: Graph, value: str) -> bool:
    shape = graph.shape(value)
    return shape is None or None in shape or graph.dtype(value) is None


def _kept(graph: Graph, refusal: Refusal) -> str:
    nodes = _nodes(graph, refusal)
    named = [*_values(graph, refusal), *(i for n in nodes for i in n.inputs if i)]
    value = next((v for v in named if graph.is_output(v)), None)
    if value is None:
        # The end of a model is an output by nature; only a value that something else reads, too, is
        # one by accident.
        value = next((o for n in nodes for o in n.outputs if graph.is_output(o)), None)
        value = value if value is not None and graph.consumers(value) else None
    if value is None:
        return ""
    return (
        f"'{value}' is an output of the model: if nobody needs it, re-export without it"
        " (for attention: output_attentions=False)"
    )


_IN_GRAPH = {Advice.CONSTANT: _not_constant, Advice.SHAPES: _unknown, Advice.OUTPUT: _kept}
