"""Masks: what a matrix of scores is masked with, read from constants, chains of Trilu and
comparisons of Range ramps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import LARGEST, DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.element_types import tensor_values
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.shapes.operands import axes_of
from tracea_onnx.shapes.operators import slice_ranges
from tracea_onnx.shapes.symbolic import Shapes, same
from tracea_onnx.support.data_classes import dataclass

# an additive mask at or below this leaves a probability of exactly 0 in every float type exporters
# use
MASKED = -1.0e4


@dataclass(frozen=True)
class BandMask:
    """A matrix over (row s, column t): `below` where t <= s + offset, `above` elsewhere.

    Uniform when both are equal.
    """

    below: Any
    above: Any
    offset: DimLike = 0

    @property
    def uniform(self) -> bool:
        """Whether all elements are equal."""
        return bool(self.below == self.above)


@dataclass(frozen=True)
class Iota:
    """A vector counting from `first` along the axis `axis` (-1 columns, -2 rows)."""

    axis: int
    first: DimLike


_COMPARE = {"LessOrEqual": (1, 0), "Less": (1, -1), "GreaterOrEqual": (-1, 0), "Greater": (-1, -1)}
_POINTWISE: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: np.float64(a) * b,
    "Div": lambda a, b: np.float64(a) / b, "Neg": lambda a: -a,
    "Equal": lambda a, b: a == b, "Less": lambda a, b: a < b, "Greater": lambda a, b: a > b,
    "Min": lambda *v: min(v), "Max": lambda *v: max(v),
    "Not": lambda a: not a, "And": lambda a, b: bool(a and b), "Or": lambda a, b: bool(a or b),
    "Where": lambda c, a, b: a if c else b,
}  # fmt: skip


def triangle(g: Graph, s: Shapes, value: str, depth: int = 16) -> BandMask | None:
    """What `value` holds when that depends only on whether the column is past the row by a fixed
    offset; else None.

    Reads constants, chains of Trilu, comparisons of Range ramps, and the arithmetic exporters put
    around them.
    """
    found = _read(g, s, value, depth, {})
    return found if isinstance(found, BandMask) else None


#: What values were read as: operators share their operands.
_Known = dict[str, BandMask | Iota | None]


def _read(g: Graph, s: Shapes, value: str, depth: int, known: _Known) -> BandMask | Iota | None:
    if value not in known:
        known[value] = _found(g, s, value, depth, known)
    return known[value]


def _found(g: Graph, s: Shapes, value: str, depth: int, known: _Known) -> BandMask | Iota | None:
    number = s.graph.scalar(value)
    if number is not None:
        return BandMask(number, number)
    array = g.const(value)
    if array is not None:
        return _of_array(array)
    node = g.producer(value)
    if node is None or depth == 0:
        return None

    def read(k: int) -> BandMask | Iota | None:
        return _read(g, s, node.input(k), depth - 1, known)

    if node.op == "Range":
        first, delta = _size(s, node.input(0)), _size(s, node.input(2))
        return Iota(-1, first) if first is not None and delta == 1 else None
    if node.op == "ConstantOfShape":
        fill = node.attr("value")
        held = np.zeros(1) if fill is None else tensor_values(fill).reshape(-1)
        usable = held.size == 1 and held.dtype.kind in "iufb"
        return BandMask(held[0].item(), held[0].item()) if usable else None
    if node.op in ("Expand", "Identity"):  # broadcasting keeps places counted from the end
        return read(0)
    if node.op == "Cast":
        inner = read(0)
        if isinstance(inner, BandMask) and node.attr("to") == 9:
            return replace(inner, below=bool(inner.below), above=bool(inner.above))
        if isinstance(inner, BandMask):
            return replace(inner, below=float(inner.below), above=float(inner.above))
        return inner
    if node.op == "Trilu":
        return _trilu(g, s, node, read(0))
    if node.op in ("Unsqueeze", "Squeeze"):
        return _axes(s, node, value, read(0))
    if node.op == "Slice":
        return _sliced(s, node, read(0))
    if node.op in _COMPARE:
        a, b = read(0), read(1)
        if isinstance(a, Iota) and isinstance(b, Iota):
            return _compare(node.op, a, b)
    if node.op in ("Add", "Sub"):
        a, b = read(0), read(1)
        if (
            isinstance(a, Iota)
            and isinstance(b, BandMask)
            and b.uniform
            and float(b.below).is_integer()
        ):
            return Iota(a.axis, dims.add(a.first, int(b.below) * (1 if node.op == "Add" else -1)))
    if node.op in _POINTWISE:
        args = [read(k) for k in range(len(node.inputs))]
        if all(isinstance(a, BandMask) for a in args):
            return _combine(_POINTWISE[node.op], [a for a in args if isinstance(a, BandMask)])
    return None


def _size(s: Shapes, value: str) -> DimLike | None:
    """The one integer that a value holds, possibly symbolic."""
    found = s.content(value)
    v = found.reshape(-1)[0] if found is not None and found.size == 1 else None
    return v if isinstance(v, (int, Dim)) else None


def _combine(f: Callable[..., Any], args: list[BandMask]) -> BandMask | None:
    offsets = [a.offset for a in args if not a.uniform]
    if any(not same(o, offsets[0]) for o in offsets):
        return None
    with np.errstate(all="ignore"):
        return BandMask(
            f(*(a.below for a in args)), f(*(a.above for a in args)), offsets[0] if offsets else 0
        )


def _compare(op: str, a: Iota, b: Iota) -> BandMask | None:
    if {a.axis, b.axis} != {-1, -2}:
        return None
    sign, shift = _COMPARE[op]
    low, high = (a, b) if sign > 0 else (b, a)  # low <= high + shift
    if low.axis == -1:  # t + low.first <= s + high.first + shift
        return BandMask(True, False, dims.add(dims.sub(high.first, low.first), shift))
    # s + low.first <= t + high.first + shift, false exactly where t <= s + low.first - high.first -
    # shift - 1
    return BandMask(False, True, dims.sub(dims.sub(low.first, high.first), shift + 1))


def _trilu(g: Graph, s: Shapes, node: Node, inner: BandMask | Iota | None) -> BandMask | None:
    shift = _size(s, node.input(1)) if node.input(1) else 0
    if not isinstance(inner, BandMask) or not inner.uniform or shift is None:
        return None
    zero: Any = False if isinstance(inner.below, bool) else 0.0
    if node.attr("upper", 1):
        return BandMask(zero, inner.below, dims.sub(shift, 1))
    return BandMask(inner.below, zero, shift)


def _axes(
    s: Shapes, node: Node, value: str, inner: BandMask | Iota | None
) -> BandMask | Iota | None:
    before, after = s.dims(node.input(0)), s.dims(value)
    if inner is None or before is None or after is None:
        return None
    longer = after if node.op == "Unsqueeze" else before
    axes = axes_of(s, node, len(longer))
    if axes is None:
        return None
    kept = [k - len(longer) for k in range(len(longer)) if k not in axes]
    if isinstance(inner, BandMask):
        return inner if inner.uniform or kept[-2:] == [-2, -1] else None
    if node.op == "Unsqueeze":
        return Iota(kept[inner.axis], inner.first) if len(kept) >= -inner.axis else None
    return Iota(kept.index(inner.axis) - len(kept), inner.first) if inner.axis in kept else None


def _sliced(s: Shapes, node: Node, inner: BandMask | Iota | None) -> BandMask | None:
    shape = s.dims(node.input(0))
    ranges = slice_ranges(s, node)
    if not isinstance(inner, BandMask) or shape is None or ranges is None:
        return None
    offset = inner.offset
    for axis, begin, _, stride in ranges:
        if stride != 1:
            return None
        if axis == len(shape) - 2:
            offset = dims.add(offset, begin)
        elif axis == len(shape) - 1:
            offset = dims.sub(offset, begin)
    return replace(inner, offset=offset)


def _of_array(array: Any) -> BandMask | None:
    if array.ndim < 2 or array.dtype.kind not in "fiubV" or array.size == 0 or array.size > 1 << 24:
        return None
    first = array.reshape(-1, *array.shape[-2:])[0]
    if array.size != first.size and not bool((array == first).all()):
        return None
    first = first.astype(np.float32) if first.dtype.kind == "V" else first  # bfloat16
    rows, columns = first.shape
    below, above = first[rows - 1, 0].item(), first[0, columns - 1].item()
    if below == above:
        return BandMask(below, above) if bool((first == below).all()) else None
    low = first == below
    offset = int(low[0].sum()) - 1
    return (
        BandMask(below, above, offset)
        if bool((first == np.where(np.tri(rows, columns, offset, dtype=bool), below, above)).all())
        else None
    )


# --- in a spec ------------------------------------------------------------------------------------
@dataclass
class Mask:
    """One mask of an attention: `add`; `bool` (true keeps a score, `fill` replaces the others) or
    `drop` (true is replaced by `fill`).

    period: 0, or the size of the mask's batch axis when row b of the batch meets row b mod period.
    merged: batch and heads are one axis of it. scale: what an `add` mask is multiplied by (scores
    that are scaled after the mask was added, a mask that is subtracted). met: the value that met
    the scores, where `value` is one from before it. past: of a mask that hides column t from row s
    exactly where t > s + past.
    """

    value: str
    kind: str
    fill: float = float("-inf")
    period: int = 0
    merged: bool = False
    scale: float = 1.0
    met: str = ""
    past: DimLike | None = None


#: A float32 at or below this swallows any score it is added to, so adding it is the same as writing
#: it.
SWALLOWS = -1.0e30


def stored_fill(fill: float, dtype: int) -> float:
    """A fill as fp16 holds it: a finite one stays finite, so that no row whose keys are all masked
    becomes NaN.
    """
    return max(fill, -LARGEST[DType.F16]) if dtype == DType.F16 and math.isfinite(fill) else fill


def simplified(
    g: Graph, s: Shapes, mask: Mask, lowest: float = float(np.finfo(np.float32).min)
) -> Mask:
    """The mask without Where(m, 0, fill) (which makes an additive mask of a boolean one), without
    Not, and from before an Expand.

    A fill below `lowest`, the least number of the scores' type, is written as minus infinity.
    """
    mask = replace(mask, met=mask.value)
    single = g.dtype(mask.value) in (DType.F32, DType.BF16)
    p = g.producer(mask.value)
    if mask.kind == "add" and p is not None and p.op == "Where":
        keep, drop = s.scalar(p.input(1)), s.scalar(p.input(2))
        for kind, kept, other in (("bool", keep, drop), ("drop", drop, keep)):
            fill = other * mask.scale if other else 0.0
            if kept == 0.0 and (fill == -np.inf or (fill <= SWALLOWS and single)):
                mask = replace(mask, value=p.input(0), kind=kind, fill=fill)
                break
    if mask.kind != "add" and mask.fill < lowest:
        mask = replace(mask, fill=float("-inf"))
    for _ in range(4):
        p = g.producer(mask.value)
        if mask.kind != "add" and p is not None and p.op == "Not":
            mask = replace(mask, value=p.input(0), kind="drop" if mask.kind == "bool" else "bool")
        elif p is not None and p.op == "Expand" and _repeats(s, p):
            mask = replace(mask, value=p.input(0))
    return mask


def _repeats(s: Shapes, expand: Node) -> bool:
    """Whether an Expand only repeats what broadcasting against the scores repeats anyway: no axis
    is added.
    """
    before, after = s.dims(expand.input(0)), s.dims(expand.outputs[0])
    return before is not None and after is not None and len(before) == len(after)


def causal_attrs(offset: DimLike | None) -> dict[str, Any]:
    """Row s sees column t iff t <= s + past; past "kv" = keys minus queries."""
    if offset is None:
        return {"causal": False}
    return {"causal": True, "past": offset if isinstance(offset, int) else "kv"}


def mask_attrs(masks: Sequence[Mask]) -> dict[str, Any]:
    """Spec attributes of the masks, in the order they are applied; JSON has no infinity, so that
    fill is the string "-inf".
    """
    out: dict[str, Any] = {"mask_kind": masks[0].kind if masks else "none"}
    for k, m in enumerate(masks):
        tail = str(k) if k else ""
        out[f"mask{tail}_kind"] = m.kind
        if m.kind == "add" and m.scale != 1.0:
            out[f"mask{tail}_scale"] = m.scale
        if m.kind != "add":
            out[f"fill{tail}"] = m.fill if np.isfinite(m.fill) else "-inf"
        if m.period:
            out[f"mask{tail}_period"] = m.period
        if m.merged:
            out[f"mask{tail}_merged"] = True
    return out
