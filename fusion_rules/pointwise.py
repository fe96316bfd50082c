"""Chains of pointwise operators, with broadcasting, that no convolution, matrix
multiplication or BatchNormalization takes as its epilogue.

    a ── Add ── Relu ── Mul ──    ⇒   pointwise(a, b, c) with expr = mul(relu(add(in0, in1)), in2)
    b ───┘       c ──────┘
"""

from __future__ import annotations

import heapq

from tracea_onnx.ir.contracts import Match, Rule
from tracea_onnx.ir.dims import Dim
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.conv import CONVOLUTIONS, match_batch_norm, match_convolution
from tracea_onnx.match.epilogue import (
    POINTWISE,
    Region,
    build_match,
    dims_of,
    float_type,
    label,
    refuse_quantised,
    same_shape,
)
from tracea_onnx.match.gemm import LINEAR_OPS, match_linear
from tracea_onnx.match.nbits import ANCHORS as NBITS_ANCHORS
from tracea_onnx.match.nbits import match_nbits
from tracea_onnx.match.spec_table import PointwiseSpec
from tracea_onnx.shapes.symbolic import shapes

_MAX_INPUTS = 6


def match(graph: Graph, node: Node) -> Match:
    # the chains of a graph depend on each other: a node belongs to one
    found = graph.derived(_all_chains)[id(node)]
    if isinstance(found, Refuse):
        raise found.copy()
    if isinstance(found, Exception):
        raise found
    return found


def _all_chains(graph: Graph) -> dict[int, Match | Exception]:
    """For each pointwise node the chain that ends at it, or why none does.

    Later nodes choose first, so chains reach as far towards the outputs as possible.
    """
    taken = _claimed(graph)
    out: dict[int, Match | Exception] = {}
    for node in reversed(graph.nodes):
        if node.op not in POINTWISE or id(node) in out:
            continue
        if id(node) in taken:
            out[id(node)] = Refuse(Why.EPILOGUE_OF, node, owner=taken[id(node)])
            continue
        try:
            if not _producers(graph, node):
                raise Refuse(Why.NO_PRODUCER, node)
            if _is_size(graph, node.outputs[0]):
                raise Refuse(Why.SIZE, node)
            refuse_quantised(graph, node)
            chain, region = _grow(graph, node, taken, out)
            out[id(node)] = _match(graph, node, chain, region)
        except Refuse as why:
            # one that was raised refers to every frame it passed through
            out[id(node)] = why.copy()
            continue
        except MemoryError:
            raise
        except Exception as e:
            out[id(node)] = e.with_traceback(None)  # which refers to this graph
            continue
        for member in chain:
            out.setdefault(id(member), Refuse(Why.CHAIN_OF, member, last=node))
    return out


def _is_size(graph: Graph, value: str) -> bool:
    """Whether its elements follow from sizes that are known: lowering computes nothing then."""
    found = shapes(graph).content(value)
    return found is not None and not any(isinstance(v, Dim) for v in found.flat)


def _claimed(graph: Graph) -> dict[int, str]:
    """Nodes that a convolution, GEMM or BatchNormalization takes into its kernel, with the label of
    that node.
    """
    out: dict[int, str] = {}
    for node in graph.nodes:
        try:
            if node.op in LINEAR_OPS | NBITS_ANCHORS:
                found = _product(graph, node)
            elif node.op in CONVOLUTIONS:
                kind = CONVOLUTIONS[node.op]
                found = match_convolution(graph, node, rule=kind, op=kind)
            elif node.op == "BatchNormalization":
                found = match_batch_norm(graph, node, rule="batch_norm")
            else:
                continue
        except MemoryError:
            raise
        except (
            Exception
        ):  # a Refuse, or a defect of the other rule, which is reported where that rule runs
            continue
        out.update({id(n): label(node) for n in found.nodes})
    return out


def _product(graph: Graph, node: Node) -> Match:
    try:
        return match_nbits(graph, node, rule="gemm_nbits")
    except Refuse:
        return match_linear(graph, node, rule="gemm")


def _grow(
    graph: Graph, last: Node, taken: dict[int, str], done: dict[int, Match | Exception]
) -> tuple[list[Node], Region]:
    """The nodes of the chain ending in `last`: producers of the same shape whose every reader is in
    the chain, nearest first.
    """
    target = last.outputs[0]
    dtype, shape = float_type(graph, target, last), dims_of(graph, target)
    chain: list[Node] = [last]
    region = _compile(graph, chain, target, dtype)
    heap = [(-p.index, p) for p in _producers(graph, last)]
    heapq.heapify(heap)
    seen = {id(p) for _, p in heap}
    while heap:
        node = heapq.heappop(heap)[1]
        inside = {id(n) for n in chain}
        value = node.outputs[0]
        if (
            id(node) in taken
            or id(node) in done
            or graph.is_output(value)
            or any(id(c) not in inside for c in graph.consumers(value))
        ):
            continue
        if not same_shape(dims_of(graph, value), shape):
            continue
        try:
            refuse_quantised(graph, node)
            region = _compile(graph, [node, *chain], target, dtype)
        except Refuse:
            continue
        chain.insert(0, node)
        for p in _producers(graph, node):
            if id(p) not in seen:
                seen.add(id(p))
                heapq.heappush(heap, (-p.index, p))
    return chain, region


def _producers(graph: Graph, node: Node) -> list[Node]:
    found = {
        id(p): p
        for i in node.inputs
        if i and (p := graph.producer(i)) is not None and p.op in POINTWISE
    }
    return list(found.values())


def _compile(graph: Graph, chain: list[Node], target: str, dtype: int) -> Region:
    region = Region(graph, dims_of(graph, target), dtype, max_operands=_MAX_INPUTS)
    for node in sorted(chain, key=lambda n: n.index):
        region.absorb(node)
    return region


def _match(graph: Graph, last: Node, chain: list[Node], region: Region) -> Match:
    if len(chain) < 2:
        raise Refuse(Why.ALONE, last)
    if not region.code.operands:
        raise Refuse(Why.NO_TENSOR, last)
    if all(
        len(dims_of(graph, name) or ()) != len(region.shape or ()) for name in region.code.operands
    ):
        raise Refuse(Why.CONSTANT_RANK, last, value=last.outputs[0])
    expr: Expr = region.code.finish(region.inside[last.outputs[0]][0])
    roles = [(f"x{k}", name) for k, name in enumerate(region.code.operands)]
    spec = PointwiseSpec(expr=expr)
    return build_match(graph, "pointwise", last, chain, spec, roles, [last.outputs[0]])


RULE = Rule("pointwise", "Pointwise", frozenset(POINTWISE) - {"Identity"}, match, priority=-1)
