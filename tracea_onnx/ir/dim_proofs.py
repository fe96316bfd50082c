"""Exact arithmetic on symbolic dims for proofs: products, equality, division and broadcasting."""

from __future__ import annotations

from tracea_onnx.ir import dims
from tracea_onnx.ir.dims import Dim, DimLike

Dims = tuple[DimLike, ...]


def same(a: DimLike, b: DimLike) -> bool:
    """Whether the two dims are equal for every value of the symbols, as far as products can show."""
    return a is b or a == b or dims.factors(a) == dims.factors(b) or dims.sub(a, b) == 0


def _clips(a: DimLike, b: DimLike) -> bool:
    """Whether a = min(b, n) with n > 1, as a table sliced to the length of a sequence: a tensor of
    `a` broadcasts with one of `b` only when a = b.
    """
    return (
        isinstance(a, Dim)
        and a.op == "min"
        and any(x is b for x in a.args)
        and all(x is b or (isinstance(x, int) and x > 1) for x in a.args)
    )


def broadcast(*shapes: Dims) -> Dims | None:
    """The broadcast shape, None where two symbols meet that are not known to be equal."""
    out: list[DimLike] = []
    for k in range(max(len(s) for s in shapes)):
        here = [s[len(s) - 1 - k] for s in shapes if k < len(s)]
        best: DimLike = 1
        for d in here:
            if isinstance(d, int) and d == 1:
                continue
            if best == 1 or isinstance(d, int) or _clips(best, d):
                best = d
            elif not isinstance(best, int) and not same(best, d) and not _clips(d, best):
                return None
        out.append(best)
    return tuple(reversed(out))
