"""What the shape function of an operator may ask of it and of the graph around it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Array
from tracea_onnx.support.data_classes import dataclass


class Unsupported(ValueError):
    """A node that ONNX does not define, or that the provider does not run; the sentence says why.
    ONNX Runtime's own provider keeps it.
    """


@dataclass(frozen=True)
class Whole:
    """A float that holds a symbolic dim, which is a whole number."""

    dim: Dim


class Operator(Protocol):
    """An ONNX node, or an op of the lowering."""

    @property
    @abstractmethod
    def op(self) -> str:
        """The operator, with its domain where that is not ONNX's."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Names of inputs; "" for absent ones."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of outputs."""

    @abstractmethod
    def input(self, k: int) -> str:
        """The name of input k; "" where it is absent."""

    @abstractmethod
    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute of that name, or `default`."""


class ShapeEnv(Protocol):
    """Dims and short contents of the values of one graph (`symbolic.Shapes`)."""

    @abstractmethod
    def dims(self, name: str) -> Dims | None:
        """One `DimLike` per axis; None when even the rank is unknown."""

    @abstractmethod
    def content(self, name: str) -> Array | None:
        """The elements of a scalar or short vector as an object array of int, Dim, float and Whole;
        None when not known.
        """

    @abstractmethod
    def meet(self, d: DimLike, e: DimLike) -> DimLike:
        """Result of broadcasting two symbols that are not known to be equal. Raises Unsupported
        where that does not follow.
        """

    @abstractmethod
    def count(self, name: str) -> DimLike | None:
        """How many elements the value has."""
