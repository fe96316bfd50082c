"""Back to plain ONNX: every call of a fused op is replaced by its body.

The user's own functions stay.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from tracea_onnx.errors import ModelError
from tracea_onnx.ir import edit
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.model_io import function_calls
from tracea_onnx.rewrite import fused_calls


def inline(model: ModelProto, wanted: Callable[[NodeProto], bool] = lambda _: True) -> ModelProto:
    """Replace each `ai.tracea` call (those that are `wanted`) by the nodes it stands for, in place,
    and return the model: same outputs, bit for bit.

    The nodes get back the names the call remembers. Raises ModelError for a call without its
    function, and for damaged names.
    """
    bodies = {f.name: f for f in model.functions if f.domain == DOMAIN}
    taken = edit.all_names(model)
    for k in reversed(range(len(list(edit.graphs(model))))):
        _inline_graph(list(edit.graphs(model))[k], bodies, wanted, taken)
    for f in model.functions:
        if any(n.domain == DOMAIN for n in f.node):
            raise ModelError(
                f"function '{f.name}' calls a fused op",
                "inline works on what tracea-onnx optimize wrote",
            )
    fused_calls.drop_uncalled(model)
    called = any(f.domain == DOMAIN for f in model.functions)
    for k in reversed(range(len(model.opset_import))):
        if model.opset_import[k].domain == DOMAIN and not called:
            del model.opset_import[k]
    return model


def _inline_graph(
    graph: GraphProto,
    bodies: dict[str, FunctionProto],
    wanted: Callable[[NodeProto], bool],
    taken: set[str],
) -> None:
    if not any(n.domain == DOMAIN for n in graph.node):
        return
    names = {n.name for n in graph.node}
    nodes: list[NodeProto] = []
    for n in graph.node:
        if n.domain != DOMAIN or not wanted(n):
            nodes.append(n)
            continue
        if n.op_type not in bodies:
            raise ModelError(
                f"node '{n.name}' calls {DOMAIN}::{n.op_type}, which the model does not define",
                "optimize the original again",
            )
        for node in function_calls.expanded(n, bodies[n.op_type], taken, _names(n)):
            node.name = edit.unique(node.name, names)
            nodes.append(node)
    edit.replace_nodes(graph, nodes)


def _names(call: NodeProto) -> list[str]:
    for e in call.metadata_props:
        if e.key == fused_calls.METADATA_NODES:
            return fused_calls.read_nodes(e.value)
    return []
