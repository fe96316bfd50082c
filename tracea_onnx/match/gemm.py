"""A linear layer in any spelling: Gemm, MatMul (+ bias Add), FusedGemm, FusedMatMul, with or
without Reshapes around it.
"""

from __future__ import annotations

from dataclasses import field, replace

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node, Shape
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import fused_activation
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.attention import region
from tracea_onnx.match.conv import batch_norm
from tracea_onnx.match.epilogue import (
    Prelude,
    build_match,
    dims_of,
    element_type,
    float_type,
    grow_epilogue,
    refuse_quantised,
    same_shape,
)
from tracea_onnx.match.once import once
from tracea_onnx.match.spec_table import GemmSpec
from tracea_onnx.shapes.symbolic import same
from tracea_onnx.support.data_classes import dataclass

LINEAR_OPS = operators(Trait.MATMUL, Trait.FUSED_MATMUL)


@dataclass
class Linear:
    """y = alpha * op(x) @ op(w) + beta * b; `nodes` compute it, and `value` is their result."""

    node: Node
    x: str
    w: str
    b: str
    spec: GemmSpec
    value: str
    nodes: list[Node]
    # run-time target shapes of the Reshapes taken in, with their roles
    shapes: list[tuple[str, str]] = field(default_factory=list)
    prelude: Prelude | None = None
    # scale, shift, mean and variance of a BatchNormalization of the output features
    bn: tuple[str, ...] = ()
    features: int | None = None  # of the output, where w does not say

    @property
    def plain(self) -> bool:
        """x @ w (+ b) and nothing else (w may be transposed)."""
        return (
            self.spec.alpha == 1.0
            and (not self.b or self.spec.beta == 1.0)
            and not self.spec.trans_a
            and self.prelude is None
        )


def linear(graph: Graph, node: Node) -> Linear:
    """The anchor in one form; refuses integer types, vectors and attributes no kernel knows."""
    refuse_quantised(graph, node)
    return linear_of(graph, node)


def linear_of(graph: Graph, node: Node) -> Linear:
    """The same of an anchor whose operands may be dequantised."""
    for name in (node.input(0), node.input(1)):
        float_type(graph, name, node)
        dims = dims_of(graph, name)
        if dims is None:
            raise Refuse(Why.SHAPE_UNKNOWN, node, value=name)
        if len(dims) < 2:
            raise Refuse(Why.VECTOR, node, value=name)
    gemm = node.op in ("Gemm", "com.microsoft.FusedGemm")
    require(node, transBatchA=0, transBatchB=0)
    spec = GemmSpec(
        trans_a=int(node.attr("transA", 0)),
        trans_b=int(node.attr("transB", 0)),
        alpha=float(node.attr("alpha", 1.0)),
        beta=float(node.attr("beta", 1.0)) if gemm and node.input(2) else 1.0,
    )
    found = Linear(
        node,
        node.input(0),
        node.input(1),
        node.input(2) if gemm else "",
        spec,
        node.outputs[0],
        [node],
    )
    if node.op == "com.microsoft.FusedGemm":
        params = [
            float(node.attr(k, 0.0))
            for k in ("activation_alpha", "activation_beta", "activation_gamma")
            if k in node.attrs
        ]
        found.prelude = lambda code: fused_activation(code, node, -1, params)
    return found


def columns(graph: Graph, found: Linear) -> int | None:
    """Output features, when static."""
    if found.features is not None:
        return found.features
    shape = graph.shape(found.w)
    n = None if shape is None else shape[-2 if found.spec.trans_b else -1]
    return n if isinstance(n, int) else None


def take_bias(graph: Graph, found: Linear) -> None:
    """Take the Add of one number per output feature as the bias of a linear layer without one."""
    add = graph.sole_consumer(found.value)
    if (
        found.b
        or found.prelude is not None
        or add is None
        or add.op != "Add"
        or len(add.inputs) != 2
    ):
        return
    other = add.inputs[1] if add.inputs[0] == found.value else add.inputs[0]
    shape, n = graph.shape(other), columns(graph, found)
    result = dims_of(graph, found.value)
    if (
        other == found.value
        or shape is None
        or n is None
        or result is None
        or len(shape) > len(result)
    ):
        return
    if element_type(graph, other) != element_type(graph, found.value):
        return
    if shape and shape[-1] == n and all(d == 1 for d in shape[:-1]):
        found.b, found.value = other, add.outputs[0]
        found.spec = replace(found.spec, beta=1.0)
        found.nodes.append(add)


def take_reshapes(graph: Graph, found: Linear) -> None:
    """Take the Reshapes of Reshape [..., K] → [M, K], Gemm, Reshape → [..., N]: the same layer over
    the leading dims (GPT-2's Conv1D, Keras' Dense).

    The first Reshape may serve several layers. `region` decides whether it joins the match.
    """
    before, after = graph.producer(found.x), graph.sole_consumer(found.value)
    if (
        before is None
        or after is None
        or before.op != "Reshape"
        or after.op != "Reshape"
        or after.input(0) != found.value
    ):
        return
    if found.spec.trans_a or graph.rank(found.w) != 2 or graph.is_const(before.input(0)):
        return
    if found.b and not row(graph.shape(found.b)):
        return  # a bias per row would no longer broadcast
    outer, flat, restored = (
        dims_of(graph, before.input(0)),
        dims_of(graph, found.x),
        dims_of(graph, after.outputs[0]),
    )
    n = columns(graph, found)
    if outer is None or flat is None or restored is None or n is None or len(outer) < 2:
        return
    if not same(outer[-1], flat[-1]) or not same_shape(restored, (*outer[:-1], n)):
        return
    found.x, found.value = before.input(0), after.outputs[0]
    found.nodes.append(after)
    found.shapes = [
        (role, n.input(1))
        for role, n in (("flat_shape", before), ("shape", after))
        if not graph.is_const(n.input(1))
    ]


def take_batch_norm(graph: Graph, found: Linear) -> None:
    """Fold an inference BatchNormalization over the output features into weights and bias. It may
    stand between Reshapes to a matrix and back (LeViT).
    """
    n, first = columns(graph, found), graph.sole_consumer(found.value)
    if (
        n is None
        or first is None
        or found.prelude is not None
        or not graph.is_const(found.w)
        or graph.rank(found.w) != 2
    ):
        return
    if found.b and not (
        graph.is_const(found.b)
        and graph.shape(found.b) in ((n,), (1, n))
        and found.spec.beta == 1.0
    ):
        return
    nodes, shape = [first], dims_of(graph, found.value)
    if first.op in ("Reshape", "Flatten"):
        bn = graph.sole_consumer(first.outputs[0])
        back = graph.sole_consumer(bn.outputs[0]) if bn is not None else None
        if (
            bn is None
            or back is None
            or back.op != "Reshape"
            or first.input(0) != found.value
            or back.input(0) != bn.outputs[0]
        ):
            return
        nodes = [first, bn, back]
        if shape is None or not same_shape(dims_of(graph, back.outputs[0]), shape):
            return
    bn = nodes[len(nodes) // 2]
    flat = dims_of(graph, bn.input(0))
    if bn.op != "BatchNormalization" or flat is None or len(flat) != 2 or flat[1] != n:
        return
    try:
        eps = batch_norm(graph, bn, n).bn_eps
    except Refuse:
        return
    found.bn, found.value = tuple(bn.inputs[1:5]), nodes[-1].outputs[0]
    found.spec = replace(found.spec, bn_eps=eps)
    found.nodes += nodes


def row(shape: Shape | None) -> bool:
    """Whether a bias is the same for every row of the result."""
    return shape is not None and all(d == 1 for d in shape[:-1])


def read_linear(graph: Graph, node: Node) -> Linear:
    """The anchor with the Reshapes around it and its bias, before or after the second Reshape."""
    found = linear(graph, node)
    take_bias(graph, found)
    take_reshapes(graph, found)
    take_bias(graph, found)
    return found


@once
def match_linear(graph: Graph, node: Node, *, rule: str) -> Match:
    """Linear layer (+ bias Add) (+ epilogue), as a `gemm` spec; refuses when nothing beyond the
    anchor fuses.
    """
    found = read_linear(graph, node)
    take_batch_norm(graph, found)
    tail = grow_epilogue(graph, found.value, prelude=found.prelude)
    nodes = [*found.nodes, *tail.nodes]
    if len(nodes) == 1 and not node.op.startswith("com.microsoft."):
        raise Refuse(Why.NOTHING_FUSES, node, because=tail.stopped)
    roles = [
        ("x", found.x),
        ("w", found.w),
        ("b", found.b),
        *zip(("bn_scale", "bn_bias", "bn_mean", "bn_var"), found.bn, strict=False),
        *tail.roles(),
    ]
    # with the shape computations of its Reshapes
    nodes = region(graph, nodes, [v for _, v in roles])
    roles += [(r, v) for r, v in found.shapes if graph.producer(v) not in nodes]
    return build_match(
        graph, rule, node, nodes, replace(found.spec, expr=tail.expr), roles, [tail.output]
    )
