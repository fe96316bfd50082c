"""The error of each node in a narrow type, found in one run.

The model computes in fp32, and each node that could be narrow has a narrow copy beside it, which
reads the fp32 values (`mixed_precision.narrow(beside=True)`). So what the copy's result is off by
is of that node's making, whatever the nodes before it would lose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from tracea_onnx.ir import edit
from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite.mixed_precision import Copy
from tracea_onnx.support import deadline
from tracea_onnx.verify import fp16_rounding, verification


def measure(
    reference: verification.Reference, source: model_file.Source, copies: Sequence[Copy]
) -> dict[str, float]:
    """By node, the error of its narrow copy over the value, both as root mean squares; infinite
    where the copy leaves the type's range. Nothing is known of nodes in bodies of control flow, and
    of no node where ONNX Runtime cannot run this.
    """
    made = {name for n in source.model.graph.node for name in n.output}
    seen = [c for c in copies if c.narrow in made]
    watched = model_file.Source(ModelProto(), source.folder, source.path)
    watched.model.CopyFrom(source.model)
    graph = watched.model.graph
    taken = edit.all_names(watched.model)
    del graph.output[:]
    at = {c.narrow: c for c in seen}
    nodes = []
    for n in graph.node:
        nodes.append(n)
        for c in (at[name] for name in n.output if name in at):
            nodes += _probe(c, graph.output, taken)
    edit.replace_nodes(graph, nodes)
    names = [o.name for o in graph.output]
    try:
        session = verification.session(fp16_rounding.insert_fp16_casts(watched), in_order=True)
        known = {i.name for i in [*session.get_inputs(), *session.get_overridable_initializers()]}
        fed = {k: v for k, v in reference.fed.items() if k in known}
        found = [float(v) for v in deadline.run(session, names, fed, reference.time_limit)]
    except Exception:  # whatever ONNX Runtime says of a model that nobody asked for
        return {}
    errors: dict[str, float] = {}
    for k, c in enumerate(seen):
        errors[c.node] = max(errors.get(c.node, 0.0), _error(*found[3 * k : 3 * k + 3]))
    return errors


def _probe(c: Copy, outputs: Any, taken: set[str]) -> list[NodeProto]:
    """Nodes that make three numbers: the largest value, and of what is divided by it the mean
    square of the error and of the value.
    """
    nodes: list[NodeProto] = []

    def made(op: str, *inputs: str, **attributes: Any) -> str:
        out = edit.unique(f"{c.narrow}/{op}", taken)
        nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    def mean_square(of: str) -> str:
        part = made("Div", of, largest)
        return made("ReduceMean", made("Mul", part, part), keepdims=0)

    largest = made("ReduceMax", made("Abs", c.wide), keepdims=0)
    error = made("Sub", made("Cast", c.narrow, to=TensorProto.FLOAT), c.wide)
    for name in (largest, mean_square(error), mean_square(c.wide)):
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ()))
    return nodes


def _error(largest: float, error: float, value: float) -> float:
    if largest == 0 or not math.isfinite(largest):  # the original has nothing to lose here
        return 0.0
    return math.sqrt(error / value) if math.isfinite(error) else math.inf


#: How far within its bounds a result is meant to be.
_MARGIN = 1.25


def enough(squares: Sequence[float], kept: int, excess: float) -> int:
    """How many of the worst nodes must stay fp32, more than `kept` of them, for errors that are so
    many times too large. Those beyond the range come first, and alone.
    """
    infinite = sum(map(math.isinf, squares))
    if kept < infinite:
        return infinite
    left = sum(squares[kept:])
    target = left / (_MARGIN * excess) ** 2
    count = kept
    while count < len(squares) and left > target:
        left -= squares[count]
        count += 1
    return max(count, kept + 1)
