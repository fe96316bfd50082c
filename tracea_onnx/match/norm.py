"""Layer and RMS normalization: one reading of mean, square, epsilon, reciprocal root, weights,
Casts and residual sums.
"""

from __future__ import annotations

from dataclasses import field

from tracea_onnx.ir.abi import FLOATS
from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.epilogue import build_match, narrower, not_sole, same_shape
from tracea_onnx.match.operator_specs import read
from tracea_onnx.match.spec_table import LayerNormSpec
from tracea_onnx.shapes import operands
from tracea_onnx.shapes.environment import Unsupported
from tracea_onnx.shapes.symbolic import same, shapes
from tracea_onnx.support.data_classes import dataclass

#: `Norm.axes` of a norm over axis 1 of a tensor with axes behind it.
CHANNELS = 0


@dataclass
class Norm:
    """A layer or RMS normalization of `x` while it is read. `out` is the value that `nodes` compute
    so far.

    axes: how many last axes it runs over; CHANNELS when it runs over axis 1 alone (an image's
    channels).
    """

    x: str
    axes: int
    eps: float
    rms: bool
    out: str
    nodes: list[Node] = field(default_factory=list)
    gamma: str = ""
    beta: str = ""
    gamma_add: bool = False
    res: str = ""
    xbias: str = ""
    skip: str = ""

    def spec(self) -> LayerNormSpec:
        """The attributes of the fused op."""
        axis = 1 if self.axes == CHANNELS else -self.axes
        return LayerNormSpec(axis=axis, eps=self.eps, rms=self.rms, gamma_add=self.gamma_add)

    def roles(self) -> list[tuple[str, str]]:
        """The roles of the inputs and their values."""
        return [(r, getattr(self, r)) for r in ("x", "res", "xbias", "gamma", "beta")]


# --- small readers --------------------------------------------------------------------------------
def through_casts(g: Graph, value: str) -> tuple[str, list[Node]]:
    """The value before any Casts between floating-point types, and those Casts."""
    nodes: list[Node] = []
    while True:
        p = g.producer(value)
        if (
            p is None
            or p.op not in ("Cast", "Identity")
            or g.dtype(p.input(0)) not in FLOATS
            or g.dtype(value) not in FLOATS
        ):
            return value, nodes
        nodes.append(p)
        value = p.input(0)


def scalar_operand(g: Graph, node: Node) -> tuple[str, float] | None:
    """(other input, number) of a commutative node with one constant scalar."""
    a, b = node.inputs[:2]
    for x, c in ((a, b), (b, a)):
        number = shapes(g).scalar(c)
        if number is not None and shapes(g).scalar(x) is None:
            return x, number
    return None


def squared(g: Graph, value: str) -> tuple[str, Node] | None:
    """v when `value` = v * v, and the node that squares."""
    p = g.producer(value)
    if p is not None and p.op == "Pow" and shapes(g).scalar(p.input(1)) == 2.0:
        return p.input(0), p
    if p is not None and p.op == "Mul" and p.input(0) == p.input(1):
        return p.input(0), p
    return None


def reduced(g: Graph, reduce: Node) -> int:
    """How many last axes a reduction covers, or CHANNELS; refuses other axes."""
    shape = shapes(g).dims(reduce.input(0))
    if shape is None:
        raise Refuse(Why.RANK_UNKNOWN, reduce, value=reduce.input(0))
    try:
        axes = operands.reduced(shapes(g), reduce, len(shape))
    except Unsupported as e:
        raise Refuse(Why.UNREAD, reduce, fault=e) from None
    if axes == [1] and len(shape) > 2:
        return CHANNELS
    if axes != list(range(len(shape) - len(axes), len(shape))):
        raise Refuse(Why.NORM_AXES, reduce, axes=axes)
    return len(axes)


def kept_axes(g: Graph, reduce: Node) -> tuple[str, list[Node]]:
    """The reduction with its reduced axes kept as 1, and the node that puts them back where it
    drops them (torch.var of the dynamo exporter).
    """
    out = reduce.outputs[0]
    if reduce.attr("keepdims", 1):
        return out, []
    user, shape = g.sole_consumer(out), shapes(g).dims(reduce.input(0))
    if (
        user is not None
        and shape is not None
        and user.op in ("Reshape", "Unsqueeze")
        and user.input(0) == out
    ):
        axes = operands.axes_of(shapes(g), reduce, len(shape))
        if axes is not None and same_shape(
            shapes(g).dims(user.outputs[0]),
            tuple(1 if k in axes else d for k, d in enumerate(shape)),
        ):
            return user.outputs[0], [user]
    raise Refuse(Why.KEEPDIMS, reduce)


def only_reader(g: Graph, value: str) -> Node:
    """The node that alone reads an inner value. Refuses a value with other readers."""
    uses = g.consumers(value)
    if g.is_output(value) or len(uses) != 1:
        raise not_sole(g, value)
    return uses[0]


# --- the decomposed forms -------------------------------------------------------------------------
def decomposed(g: Graph, reduce: Node) -> Norm:
    """The norm whose mean of squares `reduce` computes, from its input to the division (weights not
    yet read).
    """
    square = squared(g, reduce.input(0))
    if square is None:
        raise Refuse(Why.NOT_SQUARES, reduce)
    centred, squarer = square
    nodes = [squarer, reduce]
    axes = reduced(g, reduce)
    variance, restored = kept_axes(g, reduce)
    value, eps, root, nodes_ = _inverse_root(g, variance)
    nodes += [*restored, *nodes_]
    numerator = _numerator(g, root, value)
    gamma, scaler, numerator, early = _early_weight(
        g, root, numerator, Norm(centred, axes, eps, False, "")
    )
    nodes += early
    base, casts = through_casts(g, centred)
    sub = g.producer(base)
    if sub is not None and sub.op == "Sub" and _is_mean(g, sub.input(1), sub.input(0)):
        mean = g.producer(sub.input(1))
        assert mean is not None
        if reduced(g, mean) != axes or not mean.attr("keepdims", 1):
            raise Refuse(Why.AXES_DIFFER, reduce)
        other, other_casts = through_casts(g, numerator)
        twin = g.producer(other)
        if (
            numerator != centred
            and other != base
            and is_weight(g, numerator, Norm(sub.input(0), axes, eps, False, ""))
        ):
            return _affine(
                g,
                Norm(
                    sub.input(0),
                    axes,
                    eps,
                    False,
                    "",
                    [*nodes, *casts, sub, mean, scaler],
                    numerator,
                ),
                scaler,
                sub.input(1),
            )
        x, x_casts = through_casts(g, sub.input(0))
        means = (
            [mean]
            if twin is not None and twin.inputs == sub.inputs
            else [mean, *_second_mean(g, twin, sub.input(0), axes)]
        )
        if twin is None or twin.op != "Sub" or (len(means) == 1 and twin.inputs != sub.inputs):
            raise Refuse(Why.NOT_NORMALIZED, scaler)
        norm = Norm(
            x,
            axes,
            eps,
            False,
            scaler.outputs[0],
            [*nodes, *casts, *other_casts, sub, *means, twin, scaler],
            gamma,
        )
        return _operand_before_casts(g, norm, sub.input(0), x_casts)
    other, other_casts = through_casts(g, numerator)
    if other != base:
        raise Refuse(Why.NOT_NORMALIZED, scaler)
    norm = Norm(base, axes, eps, True, scaler.outputs[0], [*nodes, scaler], gamma)
    return _operand_before_casts(
        g,
        norm,
        centred if centred == numerator else base,
        [*casts, *(c for c in other_casts if c not in casts)],
    )


def _second_mean(g: Graph, twin: Node | None, x: str, axes: int) -> list[Node]:
    """A second node that computes the mean that `twin` subtracts from `x`; empty when there is
    none.
    """
    if (
        twin is None
        or twin.op != "Sub"
        or through_casts(g, twin.input(0))[0] != through_casts(g, x)[0]
        or not _is_mean(g, twin.input(1), x)
    ):
        return []
    mean = g.producer(twin.input(1))
    return (
        [mean] if mean is not None and reduced(g, mean) == axes and mean.attr("keepdims", 1) else []
    )


def _early_weight(
    g: Graph, scaler: Node, numerator: str, norm: Norm
) -> tuple[str, Node, str, list[Node]]:
    """Gamma multiplied into the reciprocal root, or into the input, before the two meet: (gamma,
    the node where they meet, numerator, nodes).
    """
    if is_weight(g, norm.x, norm):  # one row: a weight could not be told from the input
        return "", scaler, numerator, []
    if scaler.op == "Mul" and is_weight(g, numerator, norm):
        user = g.sole_consumer(scaler.outputs[0])
        if user is not None and user.op == "Mul":
            return numerator, user, _numerator(g, user, scaler.outputs[0]), [scaler]
        return "", scaler, numerator, []
    weighted = g.producer(numerator)
    if weighted is not None and weighted.op == "Mul" and g.sole_consumer(numerator) is scaler:
        for x, w in (weighted.inputs, weighted.inputs[::-1]):
            if is_weight(g, w, norm) and not is_weight(g, x, norm):
                return w, scaler, x, [weighted]
    return "", scaler, numerator, []


def _affine(g: Graph, norm: Norm, scaler: Node, mean: str) -> Norm:
    """x * s + (beta - mean * s) with s = gamma / sqrt(var + eps), as Keras writes it."""
    s = scaler.outputs[0]
    users = g.consumers(s)
    straight = next((u for u in users if u.op == "Mul" and set(u.inputs) == {s, norm.x}), None)
    shifted = next((u for u in users if u.op == "Mul" and set(u.inputs) == {s, mean}), None)
    sub = g.sole_consumer(shifted.outputs[0]) if shifted is not None else None
    add = g.sole_consumer(straight.outputs[0]) if straight is not None else None
    if (
        straight is None
        or shifted is None
        or sub is None
        or add is None
        or sub.op != "Sub"
        or sub.input(1) != shifted.outputs[0]
    ):
        raise Refuse(Why.AFFINE_SCALE, scaler)
    if (
        add.op != "Add"
        or set(add.inputs) != {straight.outputs[0], sub.outputs[0]}
        or not is_weight(g, sub.input(0), norm)
    ):
        raise Refuse(Why.AFFINE_SHIFT, add)
    norm.nodes += [straight, shifted, sub, add]
    norm.beta, norm.out = sub.input(0), add.outputs[0]
    return norm


def _operand_before_casts(g: Graph, norm: Norm, wide: str, casts: list[Node]) -> Norm:
    """Choose the operand of a norm with widening Casts before it: the value before them when the
    result is cast back to its type, else the value after them.
    """
    narrow, before = g.dtype(norm.x), norm.x
    if not casts or narrow == g.dtype(wide):
        norm.x = wide
        return norm
    if g.dtype(norm.out) == narrow:  # only the variance was widened
        norm.nodes += casts
        return norm
    user = g.sole_consumer(norm.out)
    if user is not None and user.op == "Cast" and user.attr("to") == narrow:
        norm.nodes += [*casts, user]
        norm.out = user.outputs[0]
        return norm
    if _cast_after_weights(g, norm.out, narrow):
        norm.nodes += casts
        norm.x = before
        return norm
    norm.x = wide
    return norm


def _cast_after_weights(g: Graph, value: str, to: int | None) -> bool:
    for _ in range(3):
        user = g.sole_consumer(value)
        if user is None or user.op not in ("Mul", "Add", "Cast"):
            return False
        if user.op == "Cast":
            return bool(user.attr("to") == to)
        value = user.outputs[0]
    return False


def _is_mean(g: Graph, mean: str, of: str) -> bool:
    p = g.producer(mean)
    return (
        p is not None
        and p.op == "ReduceMean"
        and through_casts(g, p.input(0))[0] == through_casts(g, of)[0]
    )


def _inverse_root(g: Graph, variance: str) -> tuple[str, float, Node, list[Node]]:
    """From the variance to the node that applies 1/sqrt(variance + eps): (the factor it reads, eps,
    that node, nodes before it).
    """
    nodes: list[Node] = []
    value, eps = variance, 0.0
    node = only_reader(g, value)
    while node.op in ("Cast", "Identity"):
        nodes.append(node)
        value = node.outputs[0]
        node = only_reader(g, value)
    if node.op == "Add":
        found = scalar_operand(g, node)
        if found is None:
            raise Refuse(Why.EPSILON, node)
        eps = found[1]
        nodes.append(node)
        value = node.outputs[0]
        node = only_reader(g, value)
    power = shapes(g).scalar(node.input(1)) if node.op == "Pow" and node.input(0) == value else None
    if node.op != "Sqrt" and power not in (0.5, -0.5):
        raise Refuse(Why.NO_ROOT, node, near=node.op in ("Sqrt", "Pow", "Max", "Clip"))
    nodes.append(node)
    value = node.outputs[0]
    inverted = power == -0.5
    node = only_reader(g, value)
    while True:
        if node.op in ("Cast", "Identity"):
            pass
        elif node.op == "Reciprocal" or (
            node.op == "Div" and node.input(1) == value and shapes(g).scalar(node.input(0)) == 1.0
        ):
            if inverted:
                raise Refuse(Why.INVERTED_TWICE, node)
            inverted = True
        elif node.op == "Add" and not inverted:
            raise Refuse(Why.EPSILON_LATE, node)
        else:
            break
        nodes.append(node)
        value = node.outputs[0]
        node = only_reader(g, value)
    if node.op != ("Mul" if inverted else "Div") or (not inverted and node.input(1) != value):
        raise Refuse(Why.NOT_APPLIED, node)
    return value, eps, node, nodes


def _numerator(g: Graph, scaler: Node, factor: str) -> str:
    if scaler.op == "Div":
        return scaler.input(0)
    return scaler.input(1) if scaler.input(0) == factor else scaler.input(0)


# --- weights --------------------------------------------------------------------------------------
def is_weight(g: Graph, value: str, norm: Norm) -> bool:
    """Whether `value` has the normalized dims, and 1s elsewhere."""
    shape, x = shapes(g).dims(value), shapes(g).dims(norm.x)
    if shape is None or x is None or len(shape) > len(x) or len(shape) < norm.axes:
        return False
    if norm.axes == CHANNELS:
        behind = len(x) - 2
        return (
            len(shape) > behind
            and all(d == 1 for d in (*shape[len(shape) - behind :], *shape[: -behind - 1]))
            and same(shape[-behind - 1], x[1])
        )
    tail, lead = shape[len(shape) - norm.axes :], shape[: len(shape) - norm.axes]
    return all(d == 1 for d in lead) and all(
        same(a, b) for a, b in zip(tail, x[len(x) - norm.axes :], strict=True)
    )


def between_transposes(g: Graph, norm: Norm) -> None:
    """Transpose [N, C, ...] to channels last, norm over C, Transpose back: a norm over the
    channels.
    """
    before, after = g.producer(norm.x), g.sole_consumer(norm.out)
    if (
        norm.axes != 1
        or norm.res
        or before is None
        or after is None
        or before.op != "Transpose"
        or after.op != "Transpose"
    ):
        return
    there, back = list(before.attr("perm", [])), list(after.attr("perm", []))
    rank = len(there)
    if rank < 3 or there != [0, *range(2, rank), 1] or back != [0, rank - 1, *range(1, rank - 1)]:
        return
    inside = {id(n) for n in norm.nodes}
    if g.is_output(norm.x) or any(id(c) not in inside for c in g.consumers(norm.x)):
        return
    norm.nodes += [before, after]
    norm.x, norm.out, norm.axes = before.input(0), after.outputs[0], CHANNELS


def build(g: Graph, rule: str, anchor: Node, norm: Norm) -> Match:
    """The match of a norm that was read. Refuses mixed types and a result of another rank."""
    between_transposes(g, norm)
    kind, out = g.dtype(norm.x), g.dtype(norm.out)
    if kind not in FLOATS or (out is not None and out != kind):
        raise Refuse(Why.NORM_TYPES, anchor, value=norm.x, output=norm.out)
    if (
        (before := shapes(g).dims(norm.x)) is not None
        and (after := shapes(g).dims(norm.out)) is not None
        and len(before) != len(after)
    ):
        raise Refuse(Why.NORM_RANK, anchor, value=norm.x, output=norm.out)
    for n in norm.nodes:
        if n.op == "Cast" and narrower(int(n.attr("to")), kind):
            raise Refuse(Why.ROUNDED, n)
    outputs = [norm.out, *([norm.skip] if norm.skip else [])]
    return build_match(g, rule, anchor, norm.nodes, norm.spec(), norm.roles(), outputs)


def operator(g: Graph, node: Node) -> Norm:
    """A layer or RMS normalization, of a sum or not, that is one operator."""
    spec, roles = read(g, node, LayerNormSpec)
    require(node, stash_type=1)
    x, res = shapes(g).dims(node.input(0)), roles.get("res", "")
    if x is None:
        raise Refuse(Why.RANK_UNKNOWN, node, value=node.input(0))
    if res and not same_shape(x, shapes(g).dims(res)):
        raise Refuse(Why.SUMMANDS, node)
    norm = Norm(node.input(0), -spec.axis, spec.eps, spec.rms, node.outputs[0], [node], res=res)
    norm.gamma, norm.beta, norm.xbias = (roles.get(r, "") for r in ("gamma", "beta", "xbias"))
    for weight in (norm.gamma, norm.beta, norm.xbias):
        if weight and not is_weight(g, weight, norm):
            raise Refuse(Why.NORM_WEIGHT, node, value=weight)
    norm.skip = node.outputs[3] if len(node.outputs) > 3 else ""
    return norm
