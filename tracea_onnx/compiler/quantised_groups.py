"""Which quantised operators are left to ONNX Runtime.

ONNX Runtime runs an operator, the DequantizeLinear nodes of its operands and the QuantizeLinear of
its result as one integer kernel, but only where it has all of them. So a group is taken whole or
not at all: weighted operators (convolutions and matrix multiplications) for which the backend has
no integer kernel stay with the nodes around them. So do the light operators of a partition that has
no weighted operator in integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tracea_onnx.codegen.target import Target
from tracea_onnx.compiler import partitioning
from tracea_onnx.compiler.lower.op import Op, makers, readers
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, kinds, operators
from tracea_onnx.ir.pointwise_ops import POINTWISE

_QUANTISE = operators(Trait.QUANTISE)
_WEIGHTED = kinds(Trait.CONV, Trait.DECONV, Trait.MATMUL)
_SUMS = frozenset(("ConvInteger", "MatMulInteger"))
_INTEGER = _SUMS | {"QLinearConv", "QLinearMatMul", "com.microsoft.QGemm"}
_DYNAMIC = "DynamicQuantizeLinear"
#: Operators of integers that are worth nothing without a weighted operator beside them.
_BESIDE = operators(Trait.INTEGERS) | {_DYNAMIC}
_LIGHT = {*POINTWISE, ":pointwise"}
WHY = "its operands are quantised, and ORT runs the quantised group as one integer kernel"
_SLOWER = f"{WHY}, which was measured to be faster; claim=all takes it"


def left_to_ort(
    graph: Graph, ops: Sequence[Op], refused: Collection[int], target: Target
) -> dict[int, str]:
    """Ops that ONNX Runtime should run, beside those that are refused, and why."""
    if not target.leaves_quantised:
        return {}
    made = makers(ops)
    weighted = {k for k, op in enumerate(ops) if _is_weighted(graph, op, made)}
    integers = {k for k in weighted if _of_integers(ops[k], made)}
    slower = set() if target.faster_integers else integers
    found = dict.fromkeys(slower.difference(refused), _SLOWER)
    found |= _around(graph, ops, {*refused, *found})
    kept = [k not in refused and k not in found for k in range(len(ops))]
    for members in partitioning.groups(ops, kept, graph):
        if weighted.isdisjoint(members):
            found |= {k: WHY for k in members if _is_beside(graph, ops[k])}
    return found


def _is_weighted(graph: Graph, op: Op, made: Mapping[str, Op]) -> bool:
    """Whether the op has a quantised weight."""
    before = (made[i] for i in op.inputs if i in made)
    dequantised = any(b.kind in _QUANTISE and graph.is_const(b.input(0)) for b in before)
    return op.kind in _INTEGER or (op.kind in _WEIGHTED and dequantised)


def _of_integers(op: Op, made: Mapping[str, Op]) -> bool:
    """Whether both operands are quantised. Of a quantised weight alone, floats are multiplied."""
    return op.kind in _INTEGER or all(
        i in made and made[i].kind in _QUANTISE for i in op.inputs[:2]
    )


def _is_beside(graph: Graph, op: Op) -> bool:
    """Whether the op quantises or dequantises, or sits next to one that does."""
    around = (
        *(graph.producer(i) for i in op.inputs if i),
        *(c for o in op.outputs if o for c in graph.consumers(o)),
    )
    beside = any(n is not None and n.op in _QUANTISE for n in around)
    return beside or op.kind in _QUANTISE | _BESIDE


def _around(graph: Graph, ops: Sequence[Op], refused: Collection[int]) -> dict[int, str]:
    """The light ops around the refused weighted ops, which ONNX Runtime runs with these."""
    made, read = makers(ops), readers(ops)
    place = {id(op): k for k, op in enumerate(ops)}
    gone = set(refused)
    found: dict[int, str] = {}

    def leave(op: Op, weighted_op: Op) -> None:
        k, named = place[id(op)], f"{weighted_op.nodes[0].op} '{weighted_op.label}'"
        if k not in gone:
            gone.add(k)
            found[k] = (
                f"it belongs to {named}, which no kernel computes of integers of 16 bits"
                if any(_is_wide(graph, made[i]) for i in weighted_op.inputs if i in made)
                else f"ONNX Runtime runs it with {named} as one integer kernel"
            )

    for weighted_op in (ops[k] for k in sorted(refused)):
        before = [made[i] for i in weighted_op.inputs if i in made]
        before = [b for b in before if b.kind in _QUANTISE or b.kind == _DYNAMIC]
        if weighted_op.kind not in _INTEGER and not (weighted_op.kind in _WEIGHTED and before):
            continue
        scaled = weighted_op.kind in _SUMS
        after = _scaled(weighted_op, read) if scaled else _up_to_quantised(graph, weighted_op, read)
        for op in after:
            leave(op, weighted_op)
        for op in before if not scaled else (*before, *_scales(after, before, made)):
            if all(place[id(r)] in gone for o in op.outputs for r in read.get(o, [])):
                leave(op, weighted_op)
    return found


def _is_wide(graph: Graph, op: Op) -> bool:
    """Whether the op dequantises integers of 16 bits: ONNX Runtime, too, multiplies floats then."""
    return op.kind in _QUANTISE and graph.dtype(op.input(0)) in (DType.U16, DType.I16)


def _scaled(weighted_op: Op, read: Mapping[str, list[Op]]) -> list[Op]:
    """The ops that convert integer sums to floats, scale them, and add a bias."""
    return [op for op in _alone(weighted_op, read, 3) if op.kind in _LIGHT]


def _scales(after: Sequence[Op], before: Sequence[Op], made: Mapping[str, Op]) -> list[Op]:
    """The ops that make factors of scales of a run, for these readers."""
    of_run = {o for b in before for o in b.outputs}
    makers_of = [made[i] for op in after for i in op.inputs if i in made and op is not made[i]]
    return [op for op in makers_of if op.kind in _LIGHT and of_run.intersection(op.inputs)]


def _alone(op: Op, read: Mapping[str, list[Op]], most: int) -> Iterator[Op]:
    """The ops that follow, each the only reader of the one before it."""
    for _ in range(most):
        following = read.get(op.outputs[0], [])
        if len(following) != 1:
            return
        op = following[0]
        yield op


def _up_to_quantised(graph: Graph, weighted_op: Op, read: Mapping[str, list[Op]]) -> list[Op]:
    """The light ops after a weighted op, each the only reader of the one before it, up to the one
    that quantises the result; none where there is no such.
    """
    chain: list[Op] = []
    for op in _alone(weighted_op, read, len(read)):
        chain.append(op)
        if op.kind in _QUANTISE:
            return chain
        if op.kind not in _LIGHT or graph.is_output(op.outputs[0]):
            break
    return []
