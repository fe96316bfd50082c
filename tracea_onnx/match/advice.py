"""What a user can do about a refusal: mostly one option of the exporter.

Where nothing but the rule could change, there is no advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tracea_onnx.ir.contracts import Refusal
from tracea_onnx.ir.graph import Graph, Node

Advice = str | Callable[[Graph, Refusal], str]


def remedy(graph: Graph, refusal: Refusal) -> str:
    """One sentence that would lift the refusal, or ""."""
    for pattern, advice in _REMEDIES:
        if re.search(pattern, refusal.reason):
            said = advice if isinstance(advice, str) else advice(graph, refusal)
            if said:
                return said
    return ""


def _place(graph: Graph, refusal: Refusal) -> list[str]:
    """Values a refusal is about: those it names, then the operands of its node."""
    named = [
        v
        for v in re.findall(r"'([^']*)'", refusal.reason)
        if graph.producer(v) is not None or graph.is_input(v)
    ]
    nodes = [n for n in graph.nodes if n.name in (refusal.node, refusal.anchor)]
    return list(dict.fromkeys([*named, *(i for n in nodes for i in n.inputs if i)]))


def _not_constant(graph: Graph, refusal: Refusal) -> str:
    """Why an operand that ought to be constant is not: every exporter has an option for it."""
    named: list[str] = re.findall(r"'([^']*)'", refusal.reason)
    operands = [
        i
        for n in graph.nodes
        if n.name in (refusal.node, refusal.anchor)
        for i in n.inputs[1:]
        if i
    ]
    stored = {t.name for t in graph.proto.initializer}
    for value in dict.fromkeys([*named, *operands]):
        if graph.is_input(value) and value in stored:
            return (
                f"'{value}' is a graph input with a default that callers may override: leave out --keep-initializer-inputs, "
                "or re-export with keep_initializers_as_inputs=False"
            )
        if graph.is_input(value):
            return f"the exporter wrote '{value}' as a graph input: re-export with it as a constant (export_params=True)"
        made = graph.producer(value)
        if made is not None and value in named and not graph.is_const(value):
            return f"{made.op} '{made.name}' computes '{value}' at run time: re-export with do_constant_folding=True"
    return ""


def _unknown(graph: Graph, refusal: Refusal) -> str:
    """Where on the way to the refused node types or shapes were lost."""
    for value in _place(graph, refusal):
        origin = _lost(graph, value)
        if isinstance(origin, Node):
            return (
                f"types and shapes are lost at {origin.op} '{origin.name}': re-export with fixed shapes there, "
                "or write them into the file first with python -m onnxruntime.tools.symbolic_shape_infer"
            )
        if origin:
            return f"input '{origin}' has no shape in the file: re-export with example inputs, which exporters record"
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
    value = next((v for v in _place(graph, refusal) if graph.is_output(v)), None)
    if value is None:
        nodes = [n for n in graph.nodes if n.name in (refusal.node, refusal.anchor)]
        value = next((o for n in nodes for o in n.outputs if graph.is_output(o)), None)
        # The end of a model is an output by nature; only a value that something else reads, too, is
        # one by accident.
        value = value if value is not None and graph.consumers(value) else None
    return (
        ""
        if value is None
        else f"'{value}' is an output of the model: if nobody needs it, re-export without it (for attention: output_attentions=False)"
    )


_REMEDIES: tuple[tuple[str, Advice], ...] = (
    (r"com\.microsoft\.Fused|reads com\.microsoft|com\.microsoft\.\w+ '[^']*' (follows|reads|also|works)|no rule starts at com\.microsoft",
     "the file was optimised for ONNX Runtime before: optimize the exporter's own file"),
    (r"quantised", ""),
    (r"training (mode|statistics)", "re-export after model.eval(), with training=torch.onnx.TrainingMode.EVAL"),
    (r"not constant|not a constant scalar|computed at run time|may override", _not_constant),
    (r"is not known|unknown", _unknown),
    (r"graph output|output of the graph|graph's output", _kept),
    (r"flattens the axes", "re-export with opset 13 or later"),
    (r"per group in opset", "re-export with opset 21 or later"),
    (r"without the maximum of x subtracted", "write softmax(x) instead of exp(x) / sum(exp(x)) and export again"),
    (r"keepdims = 0", "write the reduction with keepdim=True and export again"),
    (r"mixes floating-point types|narrower type", "re-export in one floating-point type, without autocast"),
    (r"may enlarge|may not have the shape|known to have the same shape|does not broadcast",
     "give equal dimensions the same name in dynamic_axes (dynamic_shapes), or fix them, and export again"),
)  # fmt: skip
