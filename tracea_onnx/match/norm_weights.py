"""What surrounds a normalization: gamma and beta after it, the residual sum before it."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.epilogue import broadcasts_into, same_shape
from tracea_onnx.match.norm import (
    Norm,
    build,
    decomposed,
    is_weight,
    operator,
    scalar_operand,
    through_casts,
)
from tracea_onnx.match.operator_specs import OPERATORS
from tracea_onnx.match.spec_table import LayerNormSpec
from tracea_onnx.shapes.symbolic import shapes


def absorb_weights(g: Graph, norm: Norm) -> None:
    """Multiplication by gamma (or 1 + gamma), addition of beta (not for RMS) and Casts back to the
    input's type.
    """
    kind = g.dtype(norm.x)
    while True:
        user = g.sole_consumer(norm.out)
        if user is None:
            return
        if user.op == "Cast" and user.attr("to") in (kind, g.dtype(norm.out)):
            norm.nodes.append(user)
        elif (
            user.op == "Mul" and not norm.gamma and not norm.beta and user.input(0) != user.input(1)
        ):
            other = user.input(1) if user.input(0) == norm.out else user.input(0)
            weight, casts = through_casts(g, other)
            extra = casts if _sole(g, casts) else []
            weight = weight if extra or not casts else other
            if not is_weight(g, weight, norm):
                return
            norm.nodes += [user, *extra]
            norm.gamma = weight
            _one_plus(g, norm)
        elif user.op == "Add" and not norm.rms and not norm.beta and user.input(0) != user.input(1):
            other = user.input(1) if user.input(0) == norm.out else user.input(0)
            if not is_weight(g, other, norm):
                return
            norm.nodes.append(user)
            norm.beta = other
        else:
            return
        norm.out = user.outputs[0]


def _sole(g: Graph, nodes: Sequence[Node]) -> bool:
    return all(g.sole_consumer(n.outputs[0]) is not None for n in nodes)


def _one_plus(g: Graph, norm: Norm) -> None:
    """Gamma = 1 + w with a run-time w: read w and set `gamma_add`."""
    p = g.producer(norm.gamma)
    if p is None or p.op != "Add" or g.sole_consumer(norm.gamma) is None:
        return
    found = scalar_operand(g, p)
    if found is not None and found[1] == 1.0 and is_weight(g, found[0], norm):
        norm.nodes.append(p)
        norm.gamma, norm.gamma_add = found[0], True


def absorb_residual(g: Graph, norm: Norm) -> bool:
    """Take in x = a + b. b may broadcast, and either side may be a sum with a bias vector. `skip`
    is set when the sum has other readers.
    """
    add = g.producer(norm.x)
    if add is None or add.op != "Add" or add.input(0) == add.input(1):
        return False
    total, sum_ = shapes(g).dims(norm.x), norm.x
    a, b = (
        add.inputs
        if same_shape(shapes(g).dims(add.inputs[0]), total) and not g.is_const(add.inputs[0])
        else add.inputs[::-1]
    )
    if (
        g.is_const(a)
        or not same_shape(shapes(g).dims(a), total)
        or not broadcasts_into(shapes(g).dims(b), total)
        or is_weight(g, b, norm)
    ):
        return False
    norm.nodes.append(add)
    norm.x, norm.res = a, b
    for x, res in ((a, b), (b, a)):
        inner = g.producer(x)
        if inner is None or inner.op != "Add" or g.sole_consumer(x) is None:
            continue
        c, d = inner.inputs
        value, bias = (c, d) if is_weight(g, d, norm) else (d, c)
        if (
            is_weight(g, bias, norm)
            and g.is_const(bias)
            and same_shape(shapes(g).dims(value), total)
        ):
            norm.x, norm.res, norm.xbias = value, res, bias
            norm.nodes.append(inner)
            break
    inside = {id(n) for n in norm.nodes}
    if g.is_output(sum_) or any(id(c) not in inside for c in g.consumers(sum_)):
        norm.skip = sum_
    return True


def norm_rules(name: str, op: str, *, rms: bool) -> tuple[Rule, Rule]:
    """The rule of a layer or RMS normalization, and that of one of a residual sum."""

    def read(g: Graph, anchor: Node) -> Norm:
        if anchor.op != "ReduceMean":
            return operator(g, anchor)
        norm = decomposed(g, anchor)
        if norm.rms != rms:
            raise Refuse(Why.IS_RMS if norm.rms else Why.IS_LAYER_NORM, anchor)
        absorb_weights(g, norm)
        return norm

    def match(g: Graph, anchor: Node) -> Match:
        return build(g, name, anchor, read(g, anchor))

    def match_skip(g: Graph, anchor: Node) -> Match:
        norm = read(g, anchor)
        if not norm.res and not absorb_residual(g, norm):
            raise Refuse(Why.NO_RESIDUAL, anchor, value=norm.x)
        return build(g, f"skip_{name}", anchor, norm)

    operators = {
        o: roles
        for o, (spec, roles, given) in OPERATORS.items()
        if spec is LayerNormSpec and given.get("rms", False) == rms
    }
    alone = {o for o, roles in operators.items() if "res" not in roles}
    return (
        Rule(name, op, frozenset({"ReduceMean", *alone}), match),
        Rule(f"skip_{name}", f"Skip{op}", frozenset({"ReduceMean", *operators}), match_skip, 1),
    )
