"""Which quantised operators are left to ONNX Runtime.

It runs an operator with what dequantises its operands and quantises its result as one integer
kernel, but only where it has all of them. So a group is taken whole or not at all: products that no
kernel here computes in integers stay with the nodes around them, and so do light operators in a
partition that has no product in integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tracea_onnx.compiler import partitioning
from tracea_onnx.compiler.lower.op import Op, makers, readers
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.op_traits import Trait, kinds, operators
from tracea_onnx.ir.pointwise_ops import POINTWISE

_QUANTISE = operators(Trait.QUANTISE)
_PRODUCTS = kinds(Trait.CONV, Trait.DECONV, Trait.PRODUCT)
_LIGHT = {*POINTWISE, ":pointwise"}
WHY = "its operands are quantised, and ORT runs the quantised group as one integer kernel"


def left(graph: Graph, ops: Sequence[Op], refused: Collection[int]) -> dict[int, str]:
    """Ops that ONNX Runtime should run, beside those that are refused, and why."""
    found = _around(graph, ops, refused)
    kept = [k not in refused and k not in found for k in range(len(ops))]
    made = makers(ops)
    for members in partitioning.groups(ops, kept, graph):
        if not any(_is_integer_product(ops[k], made) for k in members):
            found |= {k: WHY for k in members if _is_beside(graph, ops[k])}
    return found


def _is_integer_product(op: Op, made: Mapping[str, Op]) -> bool:
    return op.kind in _PRODUCTS and any(i in made and made[i].kind in _QUANTISE for i in op.inputs)


def _is_beside(graph: Graph, op: Op) -> bool:
    """Whether the op quantises or dequantises, or sits next to one that does."""
    around = (
        *(graph.producer(i) for i in op.inputs if i),
        *(c for o in op.outputs if o for c in graph.consumers(o)),
    )
    return op.kind in _QUANTISE or any(n is not None and n.op in _QUANTISE for n in around)


def _around(graph: Graph, ops: Sequence[Op], refused: Collection[int]) -> dict[int, str]:
    """What belongs to products of quantised operands that are refused."""
    made, read = makers(ops), readers(ops)
    place = {id(op): k for k, op in enumerate(ops)}
    found: dict[int, str] = {}
    for k in refused:
        product = ops[k]
        before = [made[i] for i in product.inputs if i in made and made[i].kind in _QUANTISE]
        if product.kind not in _PRODUCTS or not before:
            continue
        why = (
            f"ONNX Runtime runs it with {product.nodes[0].op} '{product.label}' as one integer "
            "kernel"
        )
        after = _up_to_quantised(graph, product, read)
        alone = [
            b
            for b in before
            if all(place[id(r)] in refused or place[id(r)] in found for r in read[b.outputs[0]])
        ]
        found |= {place[id(op)]: why for op in (*alone, *after)}
    return {k: why for k, why in found.items() if k not in refused}


def _up_to_quantised(graph: Graph, product: Op, read: Mapping[str, list[Op]]) -> list[Op]:
    """The light ops behind a product, each the only reader of the one before it, up to the one that
    quantises the result; none where there is no such.
    """
    chain = [product]
    while True:
        value = chain[-1].outputs[0]
        following = read.get(value, [])
        if len(following) != 1 or graph.is_output(value):
            return []
        chain.append(following[0])
        if chain[-1].kind in _QUANTISE:
            return chain[1:]
        if chain[-1].kind not in _LIGHT:
            return []
