"""Softmax and its logarithm along one axis.

before  Softmax, LogSoftmax, Log(Softmax(x)), exp(x - max(x)) / sum(exp(x - max(x))), or x - max(x) - log(sum(exp(x - max(x))))
after   softmax(x) with axis and log
"""

from __future__ import annotations

from tracea_onnx.core import Match, Refuse, Rule
from tracea_onnx.graph import Graph, Node
from tracea_onnx.patterns import build_match, float_type, label
from tracea_onnx.patterns_shape import axes_of, shapes


def match(g: Graph, anchor: Node) -> Match:
    if anchor.op == "ReduceSum":
        return _decomposed(g, anchor)
    x, shape = anchor.input(0), shapes(g).dims(anchor.input(0))
    float_type(g, x, anchor)
    if shape is None:
        raise Refuse(f"the rank of '{x}' is not known", anchor)
    axis = anchor.attr("axis", 1 if g.opset() < 13 else -1) % len(shape)
    if g.opset() < 13 and any(d != 1 for d in shape[axis + 1 :]):
        raise Refuse(f"{label(anchor)} of opset {g.opset()} flattens the axes after {axis} into one", anchor)
    nodes, out, log = [anchor], anchor.outputs[0], anchor.op == "LogSoftmax"
    user = g.sole_consumer(out)
    if user is not None and user.op == "Log" and not log:
        nodes.append(user)
        out, log = user.outputs[0], True
    return build_match(
        g, rule="softmax", anchor=anchor, nodes=nodes, op="softmax", roles=[("x", x)], attrs={"axis": axis - len(shape), "log": log}, outputs=[out]
    )


def _decomposed(g: Graph, total: Node) -> Match:
    exp = g.producer(total.input(0))
    sub = g.producer(exp.input(0)) if exp is not None and exp.op == "Exp" else None
    top = g.producer(sub.input(1)) if sub is not None and sub.op == "Sub" else None
    if exp is None or sub is None or top is None or top.op != "ReduceMax" or top.input(0) != sub.input(0):
        raise Refuse(f"{label(total)} does not sum exp(x - max(x))", total, near=False)
    tail, log = _normalised(g, total, exp, sub)
    shape = shapes(g).dims(sub.input(0))
    if shape is None:
        raise Refuse(f"the rank of '{sub.input(0)}' is not known", total)
    axes = [axes_of(shapes(g), n, len(shape)) for n in (top, total)]
    if axes[0] is None or axes[0] != axes[1] or len(axes[0]) != 1:
        raise Refuse(f"{label(top)} and {label(total)} do not reduce the same single axis", total)
    if not top.attr("keepdims", 1) or not total.attr("keepdims", 1):
        raise Refuse(f"{label(total)} drops the reduced axis (keepdims = 0)", total)
    float_type(g, sub.input(0), total)
    return build_match(
        g, rule="softmax", anchor=total, nodes=[top, sub, exp, total, *tail], op="softmax", roles=[("x", sub.input(0))],
        attrs={"axis": axes[0][0] - len(shape), "log": log}, outputs=[tail[-1].outputs[0]],
    )  # fmt: skip


def _normalised(g: Graph, total: Node, exp: Node, sub: Node) -> tuple[list[Node], bool]:
    """e / sum, e * (1 / sum) or x - max - log(sum): the nodes after the sum, and whether they make a logarithm."""
    first = g.sole_consumer(total.outputs[0])
    if first is not None and first.op == "Div" and first.inputs == (exp.outputs[0], total.outputs[0]):
        return [first], False
    last = g.sole_consumer(first.outputs[0]) if first is not None and first.op in ("Reciprocal", "Log") else None
    if first is not None and last is not None:
        if first.op == "Reciprocal" and last.op == "Mul" and set(last.inputs) == {exp.outputs[0], first.outputs[0]}:
            return [first, last], False
        if first.op == "Log" and last.op == "Sub" and last.inputs == (sub.outputs[0], first.outputs[0]):
            return [first, last], True
    raise Refuse(f"the sum of {label(total)} does not divide the exponentials it adds", total)


RULE = Rule("softmax", "Softmax", frozenset(("Softmax", "LogSoftmax", "ReduceSum")), match, "softmax or log-softmax along one axis")
