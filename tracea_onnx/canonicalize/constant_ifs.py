"""An If whose condition is constant, or of which one branch would only end in an error
(`shapes/ranks.py`), is replaced by the branch it takes: TorchScript writes one around every squeeze
and every traced comparison of sizes.
"""

from __future__ import annotations

from onnx import GraphProto, NodeProto, TensorProto, helper

from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph
from tracea_onnx.shapes.ranks import Decided


def fold_constant_ifs(graph: Graph, names: edit.Names, decided: Decided) -> int:
    """Put the nodes of the branches that are always taken in place of their If; returns how many
    went. decided: as `ranks.decided_ifs` of the whole model.
    """
    replaced: dict[int, GraphProto] = {}
    for n in graph.nodes:
        # Exactly one element: anything else ONNX Runtime refuses when it runs the model.
        condition = graph.const(n.input(0)) if n.op == "If" else None
        truth: bool | None = None
        if condition is not None and condition.size == 1:
            truth = bool(condition.reshape(-1)[0])
        elif id(n.proto) in decided:
            truth = decided[id(n.proto)][1]
        if truth is not None:
            taken_branch = n.attr("then_branch" if truth else "else_branch")
            # ONNX Runtime says what is wrong with others
            if (
                taken_branch is not None
                and len(taken_branch.output) == len(n.outputs)
                and not taken_branch.sparse_initializer
            ):
                replaced[n.index] = taken_branch
    if not replaced:
        return 0
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []
    for k, n in enumerate(graph.proto.node):
        if k in replaced:
            nodes += _spliced(n, replaced[k], names, weights)
        else:
            nodes.append(n)
    edit.replace_nodes(graph.proto, nodes)
    graph.proto.initializer.extend(weights)
    edit.name_nodes(graph.proto)
    return len(replaced)


def _spliced(
    call: NodeProto, body: GraphProto, names: edit.Names, weights: list[TensorProto]
) -> list[NodeProto]:
    """The nodes of `body` under names of their own, writing the outputs of `call`; `weights`
    receives the body's initializers.
    """
    made = {o for n in body.node for o in n.output if o}
    new = {name: names.new(name) for name in sorted(made | {t.name for t in body.initializer})}
    copies: list[NodeProto] = []
    for value, target in zip(body.output, call.output, strict=True):
        if not target:
            continue
        if value.name in made:
            made.remove(value.name)
            new[value.name] = target
        else:  # a captured value, a weight, or a value given out twice
            copies.append(helper.make_node("Identity", [value.name], [target]))
    for t in body.initializer:
        weights.append(TensorProto())
        weights[-1].CopyFrom(t)
        weights[-1].name = new[t.name]
    copies = [
        helper.make_node("Identity", [new.get(c.input[0], c.input[0])], c.output) for c in copies
    ]
    return [*(edit.renamed(n, new) for n in body.node), *copies]
