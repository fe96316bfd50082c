"""Axes of loops and of broadcast operands: what shapes become together, and with which strides each
is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.value import Dims, Unsupported, View
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import PlanBuilder

#: The largest size of an axis.
_MOST = 2**31 - 1


def around(shape: Dims, axis: int, last: int | None = None) -> dict[str, DimLike]:
    """Elements before an axis (or axes up to `last`), along it, and behind, as parameters."""
    end = (axis if last is None else last) + 1
    return {
        "outer": D.product(shape[:axis]),
        "n": D.product(shape[axis:end]),
        "inner": D.product(shape[end:]),
    }


def merge_dims(
    shape: Sequence[DimLike], strides: Sequence[Sequence[DimLike]]
) -> list[tuple[DimLike, list[DimLike]]]:
    """Collapse a loop nest: dims of 1 go, neighbours whose strides chain in every operand become
    one, of a size that kernels count to.
    """
    rows: list[tuple[DimLike, list[DimLike]]] = []
    for k, n in enumerate(shape):
        if n == 1:
            continue
        s = [st[k] for st in strides]
        if rows:
            m, outer = rows[-1]
            whole = D.mul(m, n)
            if all(o == D.mul(n, i) for o, i in zip(outer, s, strict=True)) and not (
                isinstance(whole, int) and whole > _MOST
            ):
                rows[-1] = (whole, s)
                continue
        rows.append((n, s))
    return rows


def pad_rows(
    rows: list[tuple[DimLike, list[DimLike]]], count: int, operands: int
) -> list[tuple[DimLike, list[DimLike]]]:
    """Leading loops of one iteration, up to the number of loops a kernel has."""
    once: tuple[DimLike, list[DimLike]] = (1, [0] * operands)
    return [*[once] * (count - len(rows)), *rows]


def broadcast_strides(plan: PlanBuilder, v: View, shape: Dims, out: Dims) -> Dims:
    """Strides that read `v` of `shape` as if expanded to `out`; the plan checks at run time what
    the symbols do not show.

    Raises Unsupported where no run could show it.
    """
    if len(shape) > len(out):
        raise Unsupported(f"shape {list(shape)} does not broadcast to {list(out)}")
    pad = len(out) - len(shape)
    strides: list[DimLike] = [0] * pad
    for d, s, o in zip(shape, v.strides, out[pad:], strict=True):
        if d == 1 and o != 1:
            strides.append(0)
        elif d == o or d == 1:
            strides.append(s)
        else:
            if not plan.require(D.select(D.equal(d, 1), o, d), o, "the sizes of a broadcast"):
                raise Unsupported(f"dim {d} does not broadcast to {o}")
            strides.append(D.select(D.equal(d, 1), 0, s))
    return tuple(strides)
