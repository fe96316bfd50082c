"""Gated linear unit: act(x·Wg + bg) * (x·Wu + bu), as two matrix multiplications that
share x or as one packed matrix multiplication.

    x ─┬─ MatMul(Wg) ── act ─┐                 x ── MatMul(W) ── Split ─┬─ act ─┐
       └─ MatMul(Wu) ─────── Mul       and                              └────── Mul     ⇒   swiglu
"""

from __future__ import annotations

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.attention import region
from tracea_onnx.match.epilogue import Epilogue, build_match, dims_of, grow_epilogue, same_shape
from tracea_onnx.match.gemm import LINEAR_OPS, Linear, columns, read_linear
from tracea_onnx.match.spec_table import SwigluSpec
from tracea_onnx.shapes.operators import slice_ranges
from tracea_onnx.shapes.symbolic import shapes
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class _Halves:
    """Two values that are the halves of one packed GEMM, and the nodes that cut it."""

    values: tuple[str, str]
    nodes: tuple[Node, ...]


def match(graph: Graph, node: Node) -> Match:
    first = _branch(graph, node)
    halves = _halves(graph, first)
    if halves is not None:
        return _packed(graph, first, halves)
    shared = node.input(0)
    partners = [
        c
        for c in graph.consumers(shared)
        if c is not node and c.op in LINEAR_OPS and c.input(0) == shared
    ]
    if not partners:
        raise Refuse(Why.NO_PARTNER, node, value=shared)
    refused: Refuse | None = None
    for other in partners:
        try:
            second = _branch(graph, other)
        except Refuse:
            continue
        if (
            second.x != first.x
            or not same_shape(dims_of(graph, first.value), dims_of(graph, second.value))
            or first.spec.trans_b != second.spec.trans_b
        ):
            continue
        tail = grow_epilogue(graph, first.value, also=(second.value,), max_operands=0)
        if tail.expr is None:
            refused = refused or Refuse(Why.NOT_MEETING, node, other=other, because=tail.stopped)
            continue
        if other.index < node.index:
            raise Refuse(Why.SECOND_BRANCH, node, other=other)
        return _pair(graph, first, second, tail)
    raise refused or Refuse(Why.NO_PARTNER, node, value=shared)


def _branch(graph: Graph, node: Node) -> Linear:
    found = read_linear(graph, node)
    if not found.plain or graph.rank(found.w) != 2:
        raise Refuse(Why.NOT_LINEAR, node)
    n = columns(graph, found)
    if found.b and (graph.shape(found.b) or (None,))[-1] != n:
        raise Refuse(Why.NOT_LINEAR, node)
    return found


def _pair(graph: Graph, first: Linear, second: Linear, tail: Epilogue) -> Match:
    """Input 0 of the expression becomes the gate: the branch that goes through the activation."""
    assert tail.expr is not None
    swapped = _is_plain_factor(tail.expr, 0)
    gate, up = (second, first) if swapped else (first, second)
    expr = _swap(tail.expr) if swapped else tail.expr
    roles = [("x", first.x), ("w_gate", gate.w), ("w_up", up.w), ("b_gate", gate.b), ("b_up", up.b)]
    nodes = region(graph, [*first.nodes, *second.nodes, *tail.nodes], [v for _, v in roles])
    spec = SwigluSpec(trans_b=first.spec.trans_b, expr=expr)
    return build_match(graph, "swiglu", first.node, nodes, spec, roles, [tail.output])


def _packed(graph: Graph, found: Linear, halves: _Halves) -> Match:
    tail = grow_epilogue(graph, halves.values[0], also=(halves.values[1],), max_operands=0)
    if tail.expr is None:
        raise Refuse(Why.HALVES_APART, found.node, because=tail.stopped)
    split = int(_is_plain_factor(tail.expr, 0))  # which half is the gate
    expr = _swap(tail.expr) if split else tail.expr
    roles = [("x", found.x), ("w", found.w), ("b", found.b)]
    nodes = region(graph, [*found.nodes, *halves.nodes, *tail.nodes], [v for _, v in roles])
    spec = SwigluSpec(trans_b=found.spec.trans_b, expr=expr, split=split)
    return build_match(graph, "swiglu", found.node, nodes, spec, roles, [tail.output])


def _is_plain_factor(expr: Expr, k: int) -> bool:
    """Whether the result is input `k` itself times (or plus) something."""
    last = expr.code[-1] if expr.code else None
    return last is not None and expr.out == expr.n_in + len(expr.code) - 1 and k in last.args


def _swap(expr: Expr) -> Expr:
    """The same expression with inputs 0 and 1 exchanged."""
    new = {0: 1, 1: 0}
    code = tuple(type(i)(i.op, tuple(new.get(a, a) for a in i.args), i.imm) for i in expr.code)
    return Expr(expr.n_in, code, new.get(expr.out, expr.out))


def _halves(graph: Graph, found: Linear) -> _Halves | None:
    """Split in two, or two Slices, of the last axis."""
    s, readers, n = shapes(graph), graph.consumers(found.value), columns(graph, found)
    last = len(s.dims(found.value) or ()) - 1
    if graph.is_output(found.value) or n is None or n % 2 or last < 0:
        return None
    if [c.op for c in readers] == ["Split"]:
        split = readers[0]
        sizes = [(s.dims(o) or (0,))[-1] for o in split.outputs]
        if split.attr("axis", 0) not in (-1, last) or sizes != [n // 2, n // 2]:
            return None
        return _Halves((split.outputs[0], split.outputs[1]), (split,))
    if [c.op for c in readers] == ["Slice", "Slice"]:
        cuts = [slice_ranges(s, c) for c in readers]
        halves = [[(last, 0, n // 2, 1)], [(last, n // 2, n, 1)]]
        if cuts not in (halves, halves[::-1]):
            return None
        first, second = readers if cuts == halves else readers[::-1]
        return _Halves((first.outputs[0], second.outputs[0]), tuple(readers))
    return None


RULE = Rule("swiglu", "SwiGLU", LINEAR_OPS, match, priority=20)
