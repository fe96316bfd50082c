"""What the shape function of an operator may ask of the graph around it."""

from __future__ import annotations

from typing import Protocol

from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Array, Graph


class ShapeEnv(Protocol):
    """Dims and short contents of the values of one graph (`symbolic.Shapes`)."""

    graph: Graph

    def dims(self, name: str) -> Dims | None:
        """One `DimLike` per axis; None when even the rank is unknown."""

    def content(self, name: str) -> Array | None:
        """The elements of a scalar or short vector as an object array of int, Dim and float; None
        when not known.
        """

    def count(self, name: str) -> DimLike | None:
        """How many elements the value has."""

    def scalar(self, name: str) -> float | None:
        """The number that the value always holds."""
