"""Exact arithmetic on symbolic dims for proofs: products, equality and division."""

from __future__ import annotations

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import DimLike

Dims = tuple[DimLike, ...]


def same(a: DimLike, b: DimLike) -> bool:
    """Whether the two dims are equal for every value of the symbols, as far as products can
    show.
    """
    if a is b or a == b:
        return True
    if _single(a) and _single(b):
        return False
    return dims.factors(a) == dims.factors(b) or dims.sub(a, b) == 0


def _single(d: DimLike) -> bool:
    return isinstance(d, int) or d.op == "sym"
