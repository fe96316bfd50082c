"""Squeeze-and-excitation: a gate per channel, computed from the channel means, multiplies the
feature map.

    x ─┬─ mean over H, W ── 1x1 Conv | Gemm ── act ── 1x1 Conv | Gemm ── act ─┐
       └───────────────────────────────────────────────────────────────────── Mul

    ⇒   squeeze_excite(x, w1, b1?, w2, b2?)
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.attention import region
from tracea_onnx.match.conv import convolution
from tracea_onnx.match.conv import take_bias as take_conv_bias
from tracea_onnx.match.epilogue import (
    Epilogue,
    build_match,
    dims_of,
    float_type,
    grow_epilogue,
    not_sole,
    same_shape,
    show,
)
from tracea_onnx.match.gemm import LINEAR_OPS, linear, row, take_bias
from tracea_onnx.match.spec_table import SqueezeExciteSpec
from tracea_onnx.shapes.operands import axes_of
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support.data_classes import dataclass

_RESHAPES = operators(Trait.RESHAPE)


@dataclass(frozen=True)
class _Layer:
    kind: str
    x: str
    w: str
    b: str
    trans_b: int
    nodes: tuple[Node, ...]
    tail: Epilogue


def match(graph: Graph, node: Node) -> Match:
    x = node.input(0)
    float_type(graph, x, node)
    _check_mean(graph, node)
    nodes: list[Node] = [node]
    value = _through_reshapes(graph, node.outputs[0], nodes)
    first = _layer(graph, value, nodes)
    value = _through_reshapes(graph, first.tail.output, nodes)
    second = _layer(graph, value, nodes)
    if first.kind != second.kind or first.trans_b != second.trans_b:
        raise Refuse(Why.LAYERS_DIFFER, first.nodes[0], other=second.nodes[0])
    value = _through_reshapes(graph, second.tail.output, nodes)
    mul = graph.sole_consumer(value)
    if mul is None:
        raise not_sole(graph, value)
    if mul.op != "Mul" or x not in mul.inputs or len(mul.inputs) != 2:
        raise Refuse(Why.NOT_GATE, mul, value=x, mean=node)
    shape, gate = dims_of(graph, x), dims_of(graph, value)
    if shape is None or not same_shape(gate, (*shape[:2], 1, 1)):
        raise Refuse(Why.PER_IMAGE, mul, value=value)
    nodes.append(mul)
    roles = [("x", x), ("w1", first.w), ("b1", first.b), ("w2", second.w), ("b2", second.b)]
    spec = SqueezeExciteSpec(
        kind=first.kind, trans_b=first.trans_b, expr1=first.tail.expr, expr2=second.tail.expr
    )
    nodes = region(graph, nodes, (x,))  # with the shape computations of its Reshapes
    return build_match(graph, "squeeze_excite", node, nodes, spec, roles, [mul.outputs[0]])


def _check_mean(graph: Graph, node: Node) -> None:
    shape = dims_of(graph, node.input(0))
    if shape is None or len(shape) != 4:
        raise Refuse(Why.NOT_IMAGES, node, shape=show(shape))
    if node.op == "GlobalAveragePool":
        return
    axes = axes_of(shapes(graph), node, 4)
    if axes is None or sorted(axes) != [2, 3]:
        raise Refuse(Why.NOT_POOLING, node, axes=axes)


def _through_reshapes(graph: Graph, value: str, nodes: list[Node]) -> str:
    """Past Reshape, Flatten, Squeeze and Unsqueeze between [N, C, 1, 1] and [N, C]."""
    while True:
        reader = graph.sole_consumer(value)
        if reader is None or reader.op not in _RESHAPES or reader.input(0) != value:
            return value
        before, after = dims_of(graph, value), dims_of(graph, reader.outputs[0])
        if (
            before is None
            or after is None
            or not same_shape(after, (*before[:2], *[1] * (len(after) - 2)))
        ):
            raise Refuse(Why.PER_IMAGE, reader, value=reader.outputs[0])
        nodes.append(reader)
        value = reader.outputs[0]


def _layer(graph: Graph, value: str, nodes: list[Node]) -> _Layer:
    """The 1x1 Conv or linear layer reading `value`, with its activation; its nodes join `nodes`."""
    node = graph.sole_consumer(value)
    if node is None:
        raise not_sole(graph, value, near=False)
    if node.op == "Conv" and node.input(0) == value:
        conv = convolution(graph, node)
        take_conv_bias(graph, conv)
        shape = graph.shape(conv.w) or ()
        if (
            len(shape) != 4
            or shape[2:] != (1, 1)
            or conv.spec.group != 1
            or conv.spec.strides != [1, 1]
            or any(conv.spec.pads)
        ):
            raise Refuse(Why.NOT_1X1, node)
        layer = _Layer(
            "conv",
            value,
            conv.w,
            conv.b,
            0,
            tuple(conv.nodes),
            grow_epilogue(graph, conv.value, max_operands=0),
        )
    elif node.op in LINEAR_OPS and node.input(0) == value:
        found = linear(graph, node)
        take_bias(graph, found)
        if (
            not found.plain
            or graph.rank(found.w) != 2
            or len(dims_of(graph, value) or ()) != 2
            or (found.b and not row(graph.shape(found.b)))
        ):
            raise Refuse(Why.NOT_LINEAR, node)
        layer = _Layer(
            "gemm",
            value,
            found.w,
            found.b,
            int(found.spec.trans_b),
            tuple(found.nodes),
            grow_epilogue(graph, found.value, max_operands=0),
        )
    else:
        raise Refuse(Why.NOT_LAYER, node)
    for name in (layer.w, layer.b):
        if name and not graph.is_const(name):
            raise Refuse(Why.NOT_CONSTANT, node, what="weight", value=name)
    nodes += [*layer.nodes, *layer.tail.nodes]
    return layer


RULE = Rule(
    "squeeze_excite",
    "SqueezeExcite",
    frozenset({"GlobalAveragePool", "ReduceMean"}),
    match,
    priority=20,
)
