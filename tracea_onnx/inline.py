"""Back to plain ONNX: every call of a fused op is replaced by its body. The user's own functions stay."""

from __future__ import annotations

from collections.abc import Callable

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from tracea_onnx import functions, rewrite, surgery
from tracea_onnx.core import DOMAIN
from tracea_onnx.errors import ModelError


def inline(model: ModelProto, wanted: Callable[[NodeProto], bool] = lambda _: True) -> ModelProto:
    """Replace each `ai.tracea` call (those that are `wanted`) by the nodes it stands for, in place, and return the model: same outputs, bit for bit.

    The nodes get back the names the call remembers. Raises ModelError for a call without its function, and for damaged names.
    """
    bodies = {f.name: f for f in model.functions if f.domain == DOMAIN}
    taken = surgery.all_names(model)
    for k in reversed(range(len(list(surgery.graphs(model))))):
        _inline_graph(list(surgery.graphs(model))[k], bodies, wanted, taken)
    for f in model.functions:
        if any(n.domain == DOMAIN for n in f.node):
            raise ModelError(f"function '{f.name}' calls a fused op", "inline works on what tracea-onnx optimize wrote")
    called = {n.op_type for g in surgery.graphs(model) for n in g.node if n.domain == DOMAIN}
    for k in reversed(range(len(model.functions))):
        if model.functions[k].domain == DOMAIN and model.functions[k].name not in called:
            del model.functions[k]
    for k in reversed(range(len(model.opset_import))):
        if model.opset_import[k].domain == DOMAIN and not called:
            del model.opset_import[k]
    return model


def _inline_graph(graph: GraphProto, bodies: dict[str, FunctionProto], wanted: Callable[[NodeProto], bool], taken: set[str]) -> None:
    if not any(n.domain == DOMAIN for n in graph.node):
        return
    names = {n.name for n in graph.node}
    nodes: list[NodeProto] = []
    for n in graph.node:
        if n.domain != DOMAIN or not wanted(n):
            nodes.append(n)
            continue
        if n.op_type not in bodies:
            raise ModelError(f"node '{n.name}' calls {DOMAIN}::{n.op_type}, which the model does not define", "optimize the original again")
        for node in functions.expanded(n, bodies[n.op_type], taken, _names(n)):
            node.name = surgery.unique(node.name, names)
            nodes.append(node)
    surgery.replace_nodes(graph, nodes)


def _names(call: NodeProto) -> list[str]:
    for e in call.metadata_props:
        if e.key == rewrite.METADATA_NODES:
            return rewrite.read_nodes(e.value)
    return []
