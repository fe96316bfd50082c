"""What operands and attributes of an operator say, in one form: axes, permutations, bounds, parts,
pads. Attributes of old opsets are inputs today. Each raises Unsupported for what ONNX does not
define, and for what only a run knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dim_proofs import Dims, same
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.shapes.environment import Operator, ShapeEnv, Unsupported, Whole


def need(s: ShapeEnv, name: str) -> Dims:
    """The dims of a value, whose rank must be known."""
    d = s.dims(name)
    if d is None:
        raise Unsupported(f"the rank of '{name}' is not known")
    return d


def integers(s: ShapeEnv, name: str, what: str) -> list[DimLike]:
    """The contents of an integer tensor, possibly symbolic."""
    found = s.content(name)
    if found is None or any(isinstance(v, (float, Whole)) for v in found.flat):
        raise Unsupported(f"{what} '{name}' is computed at run time from tensor contents")
    return [v if isinstance(v, Dim) else int(v) for v in found.flat]


def whole(v: object) -> DimLike | None:
    """An element of a content as a whole number that a float holds exactly, too; None where it is
    none.
    """
    if isinstance(v, Whole):
        return v.dim
    if isinstance(v, float) and v.is_integer() and abs(v) <= 1 << 24:
        return int(v)
    return v if isinstance(v, (int, Dim)) else None


def whole_number(s: ShapeEnv, name: str, what: str) -> DimLike:
    """The one element of an integer tensor, or of floats that are whole numbers."""
    found = s.content(name)
    number = whole(found.flat[0]) if found is not None and found.size == 1 else None
    if number is None:
        raise Unsupported(
            f"{what} '{name}' is computed at run time from tensor contents, or is no whole number"
        )
    return number


def integer(s: ShapeEnv, name: str, what: str) -> DimLike:
    """The one element of an integer tensor."""
    found = integers(s, name, what)
    if len(found) != 1:
        raise Unsupported(f"{what} '{name}' has {len(found)} elements; one is required")
    return found[0]


def constant(s: ShapeEnv, name: str, what: str) -> int:
    """The same of one that no size of an input decides."""
    found = integer(s, name, what)
    if not isinstance(found, int):
        raise Unsupported(f"{what} '{name}' must be a constant")
    return found


def given(s: ShapeEnv, n: Operator, attribute: str, k: int) -> list[DimLike] | None:
    """Value of an attribute of old opsets, or of input `k`; None where neither is there."""
    if n.attr(attribute) is not None:
        return list(n.attr(attribute))
    return integers(s, n.input(k), f"the {attribute}") if n.input(k) else None


def constants(s: ShapeEnv, n: Operator, attribute: str, k: int) -> list[int] | None:
    """The same of integers that no size of an input decides."""
    found = given(s, n, attribute, k)
    fixed = [v for v in found or () if isinstance(v, int)]
    if found is not None and len(fixed) < len(found):
        raise Unsupported(f"the {attribute} '{n.input(k)}' must be a constant")
    return None if found is None else fixed


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


def broadcast(s: ShapeEnv, *shapes: Dims) -> Dims:
    """Broadcast shape of these shapes."""
    out: list[DimLike] = []
    for k in range(max(map(len, shapes))):
        d: DimLike = 1
        for e in (shape[-1 - k] for shape in shapes if k < len(shape)):
            if e == 1 or same(d, e) or _clips(e, d):
                continue
            if d == 1 or _clips(d, e):
                d = e
            elif isinstance(d, int) and isinstance(e, int):
                raise Unsupported(f"tensors do not broadcast: their dim {e} meets {d}")
            elif isinstance(d, int) or isinstance(e, int):
                d = d if isinstance(d, int) else e  # the symbol is the number, or 1
            else:
                d = s.meet(d, e)
        out.append(d)
    return tuple(reversed(out))


def axis_of(axis: int, rank: int) -> int:
    """The axis, which counts from the end where it is negative."""
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is outside rank {rank}")
    return axis % rank


def axes(s: ShapeEnv, n: Operator, rank: int, k: int = 1) -> list[int] | None:
    """`axes`, counted from the front, each once; None where none are given."""
    found = constants(s, n, "axes", k)
    if found is None:
        return None
    out = [axis_of(a, rank) for a in found]
    if len(set(out)) < len(out):
        raise Unsupported(f"{n.op} has an axis twice")
    return out


def axes_of(s: ShapeEnv, n: Operator, rank: int) -> list[int] | None:
    """The same, and None where they are not known."""
    try:
        return axes(s, n, rank)
    except Unsupported:
        return None


def reduced(s: ShapeEnv, n: Operator, rank: int) -> list[int]:
    """The axes that a reduction runs over, in order."""
    found = axes(s, n, rank)
    if not found and n.attr("noop_with_empty_axes", 0):
        raise Unsupported(f"{n.op} reduces no axis")
    return sorted(found or range(rank))


def permutation(n: Operator, rank: int) -> list[int]:
    """The axis of the operand of a Transpose that each axis of the result is."""
    perm = list(n.attr("perm") or range(rank - 1, -1, -1))
    if sorted(perm) != list(range(rank)):
        raise Unsupported(f"perm {perm} of Transpose does not fit rank {rank}")
    return perm


def placed(s: ShapeEnv, n: Operator) -> list[int | None]:
    """The axis of the operand of a Squeeze or Unsqueeze that each axis of the result is; None for
    one of size 1 that is put in.
    """
    d = need(s, n.input(0))
    if n.op == "Unsqueeze":
        count = len(constants(s, n, "axes", 1) or ())
        put, rest = axes(s, n, len(d) + count) or (), iter(range(len(d)))
        return [None if k in put else next(rest) for k in range(len(d) + count)]
    gone = axes(s, n, len(d))
    if gone is None:
        if not D.is_static(d):
            raise Unsupported("Squeeze has no axes, and its operand has symbolic dims")
        gone = [k for k, v in enumerate(d) if v == 1]
    return [k for k in range(len(d)) if k not in gone]


def bounds(s: ShapeEnv, n: Operator, rank: int) -> list[tuple[int, DimLike, DimLike, int]]:
    """(axis, start, end, step) of a Slice, with starts and ends as they are written."""
    starts, ends = given(s, n, "starts", 1) or [], given(s, n, "ends", 2) or []
    along = axes(s, n, rank, 3) or list(range(len(starts)))
    steps = constants(s, n, "steps", 4) or [1] * len(starts)
    if 0 in steps:
        raise Unsupported("Slice has a step of 0")
    if not len(starts) == len(ends) == len(along) == len(steps) or len(along) > rank:
        raise Unsupported("starts, ends, axes and steps of Slice do not fit one another")
    return list(zip(along, starts, ends, steps, strict=True))


def parts(s: ShapeEnv, n: Operator, size: DimLike) -> Dims:
    """How much of an axis of this size each result of a Split takes."""
    count = len(n.outputs)
    found = given(s, n, "split", 1)
    if found is None and isinstance(size, int):
        each = -(-size // count)
        found = [min(each, size - each * k) for k in range(count)]
    elif found is None:
        part = D.quotient(size, count)
        if part is None:
            raise Unsupported("Split divides a symbolic dim evenly")
        found = [part] * count
    if len(found) != count:
        raise Unsupported(f"Split has {count} outputs and {len(found)} sizes")
    return tuple(found)


def pads(s: ShapeEnv, n: Operator, rank: int) -> list[DimLike]:
    """Pad amounts before each axis, then after each."""
    found = given(s, n, "pads", 1) or []
    along = axes(s, n, rank, 3)
    along = list(range(rank)) if along is None else along
    if len(found) != 2 * len(along):
        raise Unsupported(f"Pad has {len(found)} pads for {len(along)} axes")
    out: list[DimLike] = [0] * (2 * rank)
    for k, a in enumerate(along):
        out[a], out[a + rank] = found[k], found[k + len(along)]
    return out


def padded(shape: Dims, amounts: Sequence[DimLike]) -> Dims:
    """A shape with so much more before each axis, and behind each."""
    return tuple(d + (amounts[k] + amounts[k + len(shape)]) for k, d in enumerate(shape))


def times(size: DimLike, scale: float) -> DimLike:
    """A size that Resize multiplies by a scale."""
    if isinstance(size, int):
        return int(np.float32(size) * np.float32(scale))  # as ONNX Runtime multiplies
    numerator, denominator = scale.as_integer_ratio()
    if denominator > 256:  # else float32 multiplies a dim by it exactly
        raise Unsupported(f"Resize scales a symbolic dim by {scale}, which is no short fraction")
    return D.floordiv(D.mul(size, numerator), denominator)


def plain_terms(n: Operator) -> tuple[str, str, str] | None:
    """The terms of two operands and of the result of an Einsum; None with an ellipsis, a letter
    twice in a term, or no explicit result.
    """
    operands, arrow, out = n.attr("equation", "").replace(" ", "").partition("->")
    a, comma, b = operands.partition(",")
    if (
        not arrow
        or not comma
        or any(set(t) & {".", ","} or len(set(t)) < len(t) for t in (a, b, out))
    ):
        return None
    return a, b, out


def terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of every operand and of the result of an Einsum; an ellipsis becomes letters of
    its own, the same for all.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        raise Unsupported(f"Einsum '{equation}' is for {len(operands)} tensors, not {len(ranks)}")
    letters = map(chr, (*range(97, 123), *range(65, 91)))
    free = [c for c in letters if c not in equation]
    wide = [r - len(t.replace("...", "")) for t, r in zip(operands, ranks, strict=True)]
    most = max((w for t, w in zip(operands, wide, strict=True) if "..." in t), default=0)
    dots = "".join(free[:most])
    spelled = [t.replace("...", dots[most - w :]) for t, w in zip(operands, wide, strict=True)]
    if any(len(t) != r for t, r in zip(spelled, ranks, strict=True)):
        raise Unsupported(f"Einsum '{equation}' is not for tensors of rank {list(ranks)}")
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        out = ("..." if dots else "") + "".join(once)
    out = out.replace("...", dots)
    if not set(out) <= set().union(*spelled):
        raise Unsupported(f"Einsum '{equation}' makes an axis that no tensor has")
    return spelled, out
