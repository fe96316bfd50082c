"""A convolution with what its kernel takes in before any epilogue: padding, a bias written as Add,
an inference BatchNormalization.
"""

from __future__ import annotations

from dataclasses import field, replace

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import (
    Prelude,
    broadcasts_into,
    build_match,
    constant_scalar,
    dims_of,
    element_type,
    float_type,
    grow_epilogue,
    needed_outside,
    refuse_quantised,
)
from tracea_onnx.match.once import once
from tracea_onnx.match.operator_specs import fused_conv, read
from tracea_onnx.match.spec_table import BatchNormSpec, ConvSpec, ConvTransposeSpec
from tracea_onnx.shapes.environment import Unsupported
from tracea_onnx.shapes.operands import axes_of, pads
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support.data_classes import dataclass

#: Convolution operators and the spec (and rule) of each.
CONVOLUTIONS = {
    "Conv": "conv",
    "com.microsoft.FusedConv": "conv",
    "ConvTranspose": "conv_transpose",
}


@dataclass
class Convolution:
    """A Conv or ConvTranspose with the nodes already taken in; `value` is what they compute."""

    node: Node
    x: str
    w: str
    b: str
    channels: int
    spec: ConvSpec
    value: str
    nodes: list[Node]
    bn: tuple[str, ...] = ()
    note: Refuse | None = None  # why BatchNormalization was left out
    prelude: Prelude | None = None
    residual: str = ""
    roles: list[tuple[str, str]] = field(default_factory=list)


_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def convolution(graph: Graph, node: Node) -> Convolution:
    """The anchor's attributes in one form (ONNX defaults filled in); refuses ranks and attributes
    the kernels do not know.
    """
    transposed = node.op == "ConvTranspose"
    float_type(graph, node.input(0), node)
    refuse_quantised(graph, node)
    shape = graph.shape(node.input(1))
    if shape is None or any(not isinstance(d, int) for d in shape):
        raise Refuse(Why.SHAPE_UNKNOWN, node, value=node.input(1))
    dims = [int(d) for d in shape if isinstance(d, int)]
    spatial = len(dims) - 2
    if spatial not in (1, 2):
        raise Refuse(Why.SPATIAL, node, count=spatial)
    kernel = node.attr("kernel_shape") or dims[2:]
    if list(kernel) != dims[2:]:
        raise Refuse(Why.KERNEL_SHAPE, node, given=list(kernel), shape=dims[2:])
    auto_pad = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in _AUTO_PADS:
        raise Refuse(
            Why.ATTRIBUTE, node, attribute="auto_pad", value=auto_pad, wanted=", ".join(_AUTO_PADS)
        )
    spec, _ = read(graph, node, ConvSpec)
    none = [0] * (2 * spatial)
    spec = replace(
        spec,
        strides=spec.strides or [1] * spatial,
        dilations=spec.dilations or [1] * spatial,
        pads=(spec.pads if auto_pad == "NOTSET" else ()) or none,
        auto_pad=auto_pad,
        expr=None,
    )
    if isinstance(spec, ConvTransposeSpec):
        spec = replace(spec, output_padding=spec.output_padding or [0] * spatial)
    channels = dims[1] * spec.group if transposed else dims[0]
    found = Convolution(
        node, node.input(0), node.input(1), node.input(2), channels, spec, node.outputs[0], [node]
    )
    if node.op == "com.microsoft.FusedConv":
        found.residual = node.input(3)
        found.prelude = lambda code: fused_conv(node, code)
    return found


def take_pad(graph: Graph, found: Convolution) -> None:
    """Merge a zero Pad of the spatial axes that only the convolution reads into its own padding
    (Keras, TensorFlow).
    """
    pad = graph.producer(found.x)
    if (
        pad is None
        or pad.op != "Pad"
        or found.node.op != "Conv"
        or graph.sole_consumer(found.x) is not found.node
    ):
        return
    spatial = len(found.spec.strides)
    value = constant_scalar(graph, pad.input(2)) if pad.input(2) else float(pad.attr("value", 0.0))
    if (
        pad.attr("mode", "constant") != "constant"
        or value != 0.0
        or pad.input(3)
        or found.spec.auto_pad not in ("NOTSET", "VALID")
    ):
        return
    try:
        amounts = [
            p for p in pads(shapes(graph), pad, spatial + 2) if isinstance(p, int) and p >= 0
        ]
    except Unsupported:
        return
    begin, end = amounts[: spatial + 2], amounts[spatial + 2 :]
    if len(begin) != len(end) or any((*begin[:2], *end[:2])):
        return
    own = zip([*begin[2:], *end[2:]], found.spec.pads, strict=True)
    found.spec = replace(found.spec, pads=[int(a + b) for a, b in own], auto_pad="NOTSET")
    found.x = pad.input(0)
    found.nodes.insert(0, pad)


def take_unsqueeze(graph: Graph, found: Convolution) -> Node | None:
    """The Unsqueeze that makes a line an image of height 1 for a 2-d convolution, where the result
    has height 1, too; else None.
    """
    before, dims = graph.producer(found.x), dims_of(graph, found.node.outputs[0])
    if (
        before is None
        or before.op != "Unsqueeze"
        or graph.sole_consumer(found.x) is not found.node
        or dims is None
        or len(dims) != 4
        or dims[2] != 1
    ):
        return None
    return before if axes_of(shapes(graph), before, 4) == [2] else None


def take_squeeze(graph: Graph, value: str) -> Node | None:
    """The Squeeze of axis 2 that alone reads `value`, an image of height 1; else None."""
    after = graph.sole_consumer(value)
    return (
        after
        if after is not None and after.op == "Squeeze" and axes_of(shapes(graph), after, 4) == [2]
        else None
    )


def take_bias(graph: Graph, found: Convolution) -> None:
    """Take the Add of one constant per channel as the bias of a convolution without one."""
    add = graph.sole_consumer(found.value)
    if found.b or add is None or add.op != "Add" or len(add.inputs) != 2:
        return
    other = add.inputs[1] if add.inputs[0] == found.value else add.inputs[0]
    spatial = len(found.spec.strides)
    shape = graph.shape(other)
    per_channel = (found.channels, *[1] * spatial)
    if (
        other == found.value
        or not graph.is_const(other)
        or shape not in (per_channel, (1, *per_channel))
    ):
        return
    if graph.dtype(other) != element_type(graph, found.value):
        return
    found.b, found.value = other, add.outputs[0]
    found.nodes.append(add)


def take_batch_norm(graph: Graph, found: Convolution) -> None:
    """Fold an inference BatchNormalization that alone reads the result. Otherwise `note` says why
    not.
    """
    readers = graph.consumers(found.value)
    bn = next(
        (c for c in readers if c.op == "BatchNormalization" and c.input(0) == found.value), None
    )
    if bn is None:
        return
    if graph.sole_consumer(found.value) is None:
        found.note = needed_outside(graph, found.value, [*found.nodes, bn])
    elif not graph.is_const(found.w):
        found.note = Refuse(Why.NOT_CONSTANT, found.node, what="weight", value=found.w)
    elif found.b and not graph.is_const(found.b):
        found.note = Refuse(Why.NOT_CONSTANT, found.node, what="bias", value=found.b)
    if found.note is not None:
        return
    try:
        eps = batch_norm(graph, bn, found.channels).bn_eps
    except Refuse as why:
        found.note = why
        return
    found.bn = tuple(bn.inputs[1:5])
    found.spec = replace(found.spec, bn_eps=eps)
    found.value = bn.outputs[0]
    found.nodes.append(bn)


def batch_norm(graph: Graph, bn: Node, channels: int) -> BatchNormSpec:
    """A BatchNormalization that is a constant scale and shift per channel. Refuses any other."""
    spec, _ = read(graph, bn, BatchNormSpec)
    for name in bn.inputs[1:5]:
        why = None
        if not graph.is_const(name):
            why = Why.NOT_CONSTANT
        elif graph.shape(name) != (channels,):
            why = Why.PER_CHANNEL
        elif graph.dtype(name) != element_type(graph, bn.input(0)):
            why = Why.PARAMETER_TYPE
        if why is not None:
            raise Refuse(why, bn, what="parameter", value=name)
    return spec


@once
def match_convolution(graph: Graph, node: Node, *, rule: str, op: str) -> Match:
    """(Pad +) convolution (+ bias Add) (+ BatchNormalization) (+ epilogue), as a spec of `op`;
    refuses when nothing beyond the anchor fuses.
    """
    found = convolution(graph, node)
    take_pad(graph, found)
    if found.prelude is None:
        take_bias(graph, found)
        take_batch_norm(graph, found)
    if found.residual and not broadcasts_into(
        dims_of(graph, found.residual), dims_of(graph, found.value)
    ):
        raise Refuse(Why.RESIDUAL, node, value=found.residual)
    line = take_unsqueeze(graph, found)
    squeeze = take_squeeze(graph, found.value) if line is not None else None
    if squeeze is not None and found.prelude is None:
        found.value = squeeze.outputs[0]
    tail = grow_epilogue(graph, found.value, prelude=found.prelude)
    nodes = [*found.nodes, *tail.nodes]
    output = tail.output
    if line is not None and squeeze is None and not tail.operands:
        squeeze = take_squeeze(graph, output)
        output = squeeze.outputs[0] if squeeze is not None else output
    if line is not None and squeeze is not None:
        found.x = line.input(0)
        nodes += [line, squeeze]
    if len(nodes) == 1 and found.prelude is None:
        raise Refuse(
            Why.NOTHING_FUSES, node, near=found.note is not None, because=found.note or tail.stopped
        )
    bn = zip(("bn_scale", "bn_bias", "bn_mean", "bn_var"), found.bn, strict=False)
    roles = [("x", found.x), ("w", found.w), ("b", found.b), *bn, *tail.roles()]
    return build_match(
        graph, rule, node, nodes, replace(found.spec, expr=tail.expr), roles, [output]
    )


@once
def match_batch_norm(graph: Graph, node: Node, *, rule: str) -> Match:
    """BatchNormalization + epilogue, where no convolution folds it. Refuses when nothing after it
    fuses.
    """
    float_type(graph, node.input(0), node)
    refuse_quantised(graph, node)
    before = graph.producer(node.input(0))
    if before is not None and before.op in CONVOLUTIONS and _takes(graph, before, node):
        raise Refuse(Why.FOLDED, node, owner=before)
    dims = dims_of(graph, node.input(0))
    if dims is None or len(dims) < 2 or not isinstance(dims[1], int):
        raise Refuse(Why.CHANNELS_UNKNOWN, node, value=node.input(0))
    spec = batch_norm(graph, node, dims[1])
    tail = grow_epilogue(graph, node.outputs[0])
    if not tail.nodes:
        raise Refuse(Why.NOTHING_FUSES, node, because=tail.stopped)
    roles = [
        *zip(("x", "bn_scale", "bn_bias", "bn_mean", "bn_var"), node.inputs[:5], strict=True),
        *tail.roles(),
    ]
    spec = replace(spec, expr=tail.expr)
    return build_match(graph, rule, node, [node, *tail.nodes], spec, roles, [tail.output])


def _takes(graph: Graph, conv: Node, bn: Node) -> bool:
    try:
        kind = CONVOLUTIONS[conv.op]
        found = match_convolution(graph, conv, rule=kind, op=kind)
    except Refuse:
        return False
    return any(n is bn for n in found.nodes)
