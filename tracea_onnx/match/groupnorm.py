"""Group normalization: the Reshapes that make groups, and weights per channel."""

from __future__ import annotations

from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.attention import region
from tracea_onnx.match.epilogue import not_sole
from tracea_onnx.match.operator_specs import all_are, read
from tracea_onnx.match.spec_table import GroupNormSpec
from tracea_onnx.shapes.symbolic import same, shapes
from tracea_onnx.support.data_classes import dataclass


@dataclass
class Grouped:
    """A group normalization of `x` ([N, C, ...]) while it is read. `out` is the value that `nodes`
    compute so far.
    """

    x: str
    groups: int
    eps: float
    out: str
    nodes: list[Node]
    gamma: str = ""
    beta: str = ""


def grouped(g: Graph, node: Node) -> Grouped | None:
    """The group normalisation around an InstanceNormalization; None when no Reshape of the channels
    stands before it.
    """
    s, before = shapes(g), g.producer(node.input(0))
    inner = s.dims(node.input(0))
    if before is None or before.op != "Reshape" or inner is None:
        return None
    x, shape = before.input(0), s.dims(before.input(0))
    if (
        shape is None
        or len(shape) < 3
        or len(inner) < 3
        or not same(shape[0], inner[0])
        or not isinstance(shape[1], int)
    ):
        return None
    groups = inner[1]
    if not isinstance(groups, int) or groups <= 0 or shape[1] % groups:
        raise Refuse(Why.UNEQUAL_GROUPS, node, source=before, channels=shape[1])
    if not all_are(g, node.input(1), 1.0) or not all_are(g, node.input(2), 0.0):
        raise Refuse(Why.GROUP_WEIGHTS, node)
    if g.sole_consumer(before.outputs[0]) is not node:
        raise not_sole(g, before.outputs[0])
    after = g.sole_consumer(node.outputs[0])
    if after is None or after.op != "Reshape" or after.input(0) != node.outputs[0]:
        raise Refuse(Why.NOT_RESTORED, node)
    back = s.dims(after.outputs[0])
    if (
        back is None
        or len(back) != len(shape)
        or not all(same(a, b) for a, b in zip(back, shape, strict=True))
    ):
        raise Refuse(Why.RESTORED_SHAPE, after)
    nodes = region(g, [before, node, after], (x,))
    return Grouped(x, groups, float(node.attr("epsilon", 1e-5)), after.outputs[0], nodes)


def grouped_operator(g: Graph, node: Node) -> Grouped:
    """A GroupNormalization node."""
    shape = shapes(g).dims(node.input(0))
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        raise Refuse(Why.CHANNELS_UNKNOWN, node, value=node.input(0))
    require(node, stash_type=1)
    spec, roles = read(g, node, GroupNormSpec)
    weights = (roles.get(r, "") for r in ("gamma", "beta"))
    return Grouped(node.input(0), spec.groups, spec.eps, node.outputs[0], [node], *weights)


def channel_weights(g: Graph, norm: Grouped) -> None:
    """Multiplication by gamma and addition of beta, each one value per channel."""
    shape = shapes(g).dims(norm.x)
    if norm.gamma or shape is None:
        return
    for op in ("Mul", "Add"):
        user = g.sole_consumer(norm.out)
        if user is None or user.op != op or user.input(0) == user.input(1):
            continue
        other = user.input(1) if user.input(0) == norm.out else user.input(0)
        extent = shapes(g).dims(other)
        channels = len(shape) - 1  # place of the channel axis, counted from the end
        if (
            extent is None
            or not channels <= len(extent) <= len(shape)
            or any(d != 1 for k, d in enumerate(extent[::-1]) if k != channels - 1)
            or not same(extent[-channels], shape[1])
        ):
            continue
        norm.nodes.append(user)
        norm.out = user.outputs[0]
        if op == "Mul":
            norm.gamma = other
        else:
            norm.beta = other
