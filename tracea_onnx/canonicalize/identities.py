"""Nodes that give back their input, bit for bit, are removed: the value keeps the name a graph
output needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracea_onnx.ir import edit
from tracea_onnx.ir.abi import FLOATS
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.shapes.environment import Unsupported
from tracea_onnx.shapes.operands import bounds
from tracea_onnx.shapes.symbolic import shapes

_FAR = 1 << 31  # exporters write "to the end" as INT32_MAX, INT64_MAX or thereabouts


def remove_no_ops(graph: Graph, protected: set[str]) -> int:
    """Let the readers of each no-op read its input; returns how many nodes went.

    `protected` names keep their producer.
    """
    inner = edit.body_names(graph.proto)
    made = {o for n in graph.nodes for o in n.outputs if o}
    new: dict[str, str] = {}
    gone: set[int] = set()
    for n in graph.nodes:
        test = _NO_OPS.get(n.op)
        if test is None or not n.input(0) or not test(graph, n):
            continue
        source, target = new.get(n.input(0), n.input(0)), n.outputs[0]
        if source in inner or target in inner:
            continue
        if target not in protected:
            new[target] = source
        elif (
            graph.is_output(target)
            and source in made - protected - new.keys() - set(new.values())
            and source == n.input(0)
        ):
            # The output keeps its name: what makes the source makes the output instead.
            _rename_producer(graph, source, target)
            new[source] = target
        else:
            continue
        gone.add(n.index)
    edit.rename_uses(graph.proto.node, edit.resolve(new))
    edit.keep_nodes(graph.proto, set(range(len(graph.nodes))) - gone)
    return len(gone)


def _rename_producer(graph: Graph, old: str, new: str) -> None:
    producer = graph.producer(old)
    assert producer is not None
    for k, name in enumerate(producer.proto.output):
        if name == old:
            producer.proto.output[k] = new


def _dropout(g: Graph, n: Node) -> bool:
    if any(n.outputs[1:]) or g.opset() < 7:  # before opset 7 the attribute is_test decides
        return False
    training = n.input(2)
    return not training or g.scalar(training) == 0


def _cast(g: Graph, n: Node) -> bool:
    return g.dtype(n.input(0)) is not None and g.dtype(n.input(0)) == n.attr("to")


def _reshape(g: Graph, n: Node) -> bool:
    shape, target = g.shape(n.input(0)), g.ints(n.input(1))
    if shape is None or target is None or len(shape) != len(target) or n.attr("allowzero", 0):
        return False
    free = [k for k, t in enumerate(target) if t != 0 and t != shape[k]]
    return not free or (len(free) == 1 and target[free[0]] == -1 and all(d != 0 for d in shape))


def _transpose(g: Graph, n: Node) -> bool:
    perm = n.attr("perm")
    if perm is None:
        return g.rank(n.input(0)) in (0, 1)
    return list(perm) == list(range(len(perm)))


def _slice(g: Graph, n: Node) -> bool:
    shape = g.shape(n.input(0)) or ()
    try:
        found = bounds(shapes(g), n, len(shape))
    except Unsupported:
        return False
    return all(
        (start, step) == (0, 1)
        and isinstance(end, int)
        and (end >= _FAR - 1 or (isinstance(d := shape[axis], int) and end >= d))
        for axis, start, end, step in found
    )


def _concat(_: Graph, n: Node) -> bool:
    return len(n.inputs) == 1


def _one(g: Graph, n: Node) -> bool:
    """x * 1 and x / 1, exactly one and of no higher rank: no other constant leaves every float's
    bits alone.
    """
    rank = g.rank(n.input(0))
    other = n.input(1)
    other_rank = g.rank(other)
    return (
        g.dtype(n.input(0)) in FLOATS
        and rank is not None
        and other_rank is not None
        and other_rank <= rank
        and g.scalar(other) == 1.0
    )


def _yes(*_: Any) -> bool:
    return True


_NO_OPS: dict[str, Callable[[Graph, Node], bool]] = {
    "Identity": _yes,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _concat,
    "Mul": _one,
    "Div": _one,
}
