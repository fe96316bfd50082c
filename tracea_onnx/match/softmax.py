"""Softmax as one operator or spelled out: exp(x - max(x)) / sum(exp(x - max(x))), and its
logarithm.
"""

from __future__ import annotations

from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.operator_specs import read
from tracea_onnx.match.spec_table import SoftmaxSpec
from tracea_onnx.shapes.operands import axes_of
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class Softmax:
    """softmax(x) along `axis` (counted from the end), made by `nodes`; `log`: its logarithm."""

    anchor: Node
    x: str
    axis: int
    nodes: tuple[Node, ...]
    output: str
    log: bool = False


def operator(g: Graph, node: Node) -> Softmax:
    """Softmax or LogSoftmax as one operator."""
    spec, _ = read(g, node, SoftmaxSpec)
    return Softmax(node, node.input(0), spec.axis, (node,), node.outputs[0], spec.log)


def decomposed(g: Graph, total: Node) -> Softmax:
    """The softmax whose exponentials the ReduceSum `total` adds."""
    exp = g.producer(total.input(0))
    if exp is None or exp.op != "Exp":
        raise Refuse(Why.NOT_SOFTMAX, total)
    sub = g.producer(exp.input(0))
    top = g.producer(sub.input(1)) if sub is not None and sub.op == "Sub" else None
    if sub is None or top is None or top.op != "ReduceMax" or top.input(0) != sub.input(0):
        if sub is not None and any(
            (m := g.producer(i)) is not None and m.op == "ReduceMax" for i in sub.inputs
        ):
            raise Refuse(Why.NOT_SOFTMAX, total)
        near = any(
            n.op == "Div" and n.inputs == (exp.outputs[0], total.outputs[0])
            for n in g.consumers(total.outputs[0])
        )
        raise Refuse(Why.NO_MAXIMUM, total, near=near)
    tail, log = _normalised(g, total, exp, sub)
    shape = shapes(g).dims(sub.input(0))
    if shape is None:
        raise Refuse(Why.RANK_UNKNOWN, total, value=sub.input(0))
    axes = [axes_of(shapes(g), n, len(shape)) for n in (top, total)]
    if axes[0] is None or axes[0] != axes[1] or len(axes[0]) != 1:
        raise Refuse(Why.SOFTMAX_AXES, total, other=top)
    if not top.attr("keepdims", 1) or not total.attr("keepdims", 1):
        raise Refuse(Why.KEEPDIMS, total)
    return Softmax(
        total,
        sub.input(0),
        axes[0][0] - len(shape),
        (top, sub, exp, total, *tail),
        tail[-1].outputs[0],
        log,
    )


def _normalised(g: Graph, total: Node, exp: Node, sub: Node) -> tuple[list[Node], bool]:
    """e / sum, e * (1 / sum) or x - max - log(sum): the nodes after the sum, and whether they make
    a logarithm.
    """
    first = g.sole_consumer(total.outputs[0])
    if (
        first is not None
        and first.op == "Div"
        and first.inputs == (exp.outputs[0], total.outputs[0])
    ):
        return [first], False
    last = (
        g.sole_consumer(first.outputs[0])
        if first is not None and first.op in ("Reciprocal", "Log")
        else None
    )
    if first is not None and last is not None:
        if (
            first.op == "Reciprocal"
            and last.op == "Mul"
            and set(last.inputs) == {exp.outputs[0], first.outputs[0]}
        ):
            return [first, last], False
        if (
            first.op == "Log"
            and last.op == "Sub"
            and last.inputs == (sub.outputs[0], first.outputs[0])
        ):
            return [first, last], True
    raise Refuse(Why.NOT_DIVIDED, total)
