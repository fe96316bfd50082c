"""Symbolic shapes for matching: the dims of every value and the contents of small shape tensors.

Exporters write one head split in a dozen ways: a constant shape, `0` and `-1`, or a tower of Shape,
Gather, Slice, Unsqueeze, Concat, Cast and arithmetic. All of them evaluate here to the same tuple
of `dims.DimLike`, so rules compare dims and never spellings.
"""

from __future__ import annotations

import weakref

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.dim_proofs import Dims, same
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Array, Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes import shape_values
from tracea_onnx.shapes.environment import Unsupported, Whole
from tracea_onnx.shapes.operators import result

__all__ = ["Dims", "Shapes", "same", "shapes"]

_BROADCAST = operators(Trait.BROADCAST)
_LONGEST = shape_values.LONGEST
#: Operators that keep every element of their first input.
_KEEPS_COUNT = operators(Trait.SAME_SHAPE, Trait.RESHAPE, Trait.PERMUTE)


class Shapes:
    """Dims and shape contents of every value of one graph, computed in one pass over its nodes."""

    def __init__(self, graph: Graph) -> None:
        # which keeps these shapes: a cycle would live until it is collected
        self.graph: Graph = weakref.proxy(graph)
        self._named = graph.symbols()
        self._dims: dict[str, Dims | None] = {}
        self._contents: dict[str, Array | None] = {}
        self._counts: dict[str, DimLike] = {}
        for node in graph.nodes:
            self._visit(node)

    def dims(self, name: str) -> Dims | None:
        """One `DimLike` per axis, None when even the rank is unknown.

        An unknown dim is a symbol of its own.
        """
        if name not in self._dims:
            self._dims[name] = self._declared(name)
        return self._dims[name]

    def content(self, name: str) -> Array | None:
        """The elements of a scalar or short vector as an object array of int, Dim, float and Whole;
        None when not known.
        """
        if name not in self._contents:
            shape = self.graph.shape(name) or () if name else ()
            # a table is not read only to see that it is one
            table = len(shape) > 1 or any(isinstance(d, int) and d > _LONGEST for d in shape)
            value = self.graph.const(name) if name and not table else None
            ok = (
                value is not None
                and value.ndim <= 1
                and value.size <= _LONGEST
                and value.dtype.kind in "iufb"
            )
            self._contents[name] = (
                np.array(value.tolist(), dtype=object) if ok and value is not None else None
            )
        return self._contents[name]

    def count(self, name: str) -> DimLike | None:
        """How many elements a value has.

        A Reshape to [n // 2, 2] says more than its dims: there are n of them.
        """
        if name in self._counts:
            return self._counts[name]
        d = self.dims(name)
        return None if d is None else dims.product(d)

    def scalar(self, name: str) -> float | None:
        """The number a value always holds: a one-element constant, or arithmetic on dims that are
        known.
        """
        direct = self.graph.scalar(name)
        if direct is not None:
            return direct
        c = self.content(name)
        if c is None or c.size != 1:
            return None
        v = c.reshape(-1)[0]
        return None if isinstance(v, (Dim, Whole)) else float(v)

    def _declared(self, name: str) -> Dims | None:
        shape = self.graph.shape(name)
        if shape is None:
            return None
        return tuple(
            d
            if isinstance(d, int)
            else dims.named(d, self._named)
            if d
            else dims.symbol(f"{name}:{k}")
            for k, d in enumerate(shape)
        )

    def _visit(self, node: Node) -> None:
        for k, out in enumerate(node.outputs):
            if not out:
                continue
            content = shape_values.content(self, node) if k == 0 else None
            if content is not None:
                self._contents[out] = content
            declared, derived = self._declared(out), self._derive(node, k)
            if declared is None or derived is None or len(declared) != len(derived):
                self._dims[out] = derived if declared is None else declared
            else:
                # where a file contradicts its operators, these are what runs
                self._dims[out] = tuple(
                    a
                    if (isinstance(a, int) and not isinstance(b, int))
                    or (isinstance(b, Dim) and b.name == f"{out}:{axis}")
                    else b
                    for axis, (a, b) in enumerate(zip(declared, derived, strict=True))
                )
            if k == 0:
                self._carry_count(node, out)

    def _carry_count(self, node: Node, out: str) -> None:
        shape = self._dims[out]
        for source in node.inputs:
            if node.op in _KEEPS_COUNT and source == node.inputs[0]:
                known = self.count(source)
            elif node.op in _BROADCAST and source in self._counts and self.dims(source) == shape:
                known = self._counts[source]
            else:
                continue
            if known is not None and shape is not None and not same(known, dims.product(shape)):
                self._counts[out] = known
            return

    def meet(self, d: DimLike, e: DimLike) -> DimLike:
        """Two symbols that broadcast may be equal, or one of them 1."""
        raise Unsupported(f"{d} and {e} are not known to be equal")

    def _derive(self, node: Node, k: int) -> Dims | None:
        try:
            return result(self, node, k)
        except Unsupported:  # its shape is left to the declaration
            return None


def shapes(graph: Graph) -> Shapes:
    """The symbolic shapes of `graph`, computed once."""
    return graph.derived(Shapes)
