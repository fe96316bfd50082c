"""Contents of shape tensors, operator by operator: a tower of Shape, Gather, Concat, ... as an
array of int, Dim, float and Whole.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracea_onnx.ir import dims
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dim_proofs import same
from tracea_onnx.ir.dims import Dim
from tracea_onnx.ir.element_types import tensor_values
from tracea_onnx.ir.graph import Array
from tracea_onnx.shapes.environment import Operator, ShapeEnv, Whole
from tracea_onnx.shapes.operands import axis_of, bounds, permutation, reduced, whole
from tracea_onnx.shapes.operators import result

#: Elements of a shape tensor: they are short, and anything longer is data.
LONGEST = 32
_INT64 = 1 << 63
#: Floats that hold sizes as they are.
_EXACT = (DType.F32, DType.F64)


def content(s: ShapeEnv, n: Operator) -> Array | None:
    """The first result of `n` when that is a few elements known up to dims; None otherwise."""
    if n.op == "Shape":
        d = s.dims(n.input(0))
        sizes = () if d is None else d[slice(n.attr("start", 0), n.attr("end"))]
        return None if d is None or len(sizes) > LONGEST else objects(sizes)
    if n.op == "Size":
        d = s.dims(n.input(0))
        return None if d is None else np.array(dims.product(d), dtype=object)
    if n.op not in OPERATORS:
        return None
    args: list[Array] = []
    for i in n.inputs:
        known = s.content(i) if i else None
        if i and known is None:
            return None
        args += [] if known is None else [known]
    try:
        found = OPERATORS[n.op](s, n, args)
    except (IndexError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None
    # an Expand may give any number of elements
    if found is None or found.size > LONGEST or dims.too_deep(map(whole, found.flat)):
        return None
    # ONNX computes these in int64, where they would overflow. Squared over and over, they would
    # fill the memory here.
    numbers = (
        i
        for v in map(whole, found.flat)
        for i in (v.args if isinstance(v, Dim) else (v,))
        if isinstance(i, int)
    )
    return found if all(-_INT64 <= i < _INT64 for i in numbers) else None


def objects(values: Sequence[Any]) -> Array:
    """A vector whose elements stay what they are."""
    out = np.empty(len(values), dtype=object)
    for k, v in enumerate(values):
        out[k] = v
    return out


def _pointwise(
    f: Callable[..., Any], floats: Callable[..., Any] | None = None
) -> Callable[[ShapeEnv, Operator, list[Array]], Array]:
    """f of numbers of one type, element by element. floats: the same of dims that floats hold."""

    def apply(_: ShapeEnv, __: Operator, args: list[Array]) -> Array:
        grid = np.broadcast_arrays(*args)
        if grid[0].size > LONGEST:
            raise ValueError("no list of sizes")
        out = np.empty(grid[0].shape, dtype=object)
        for index in np.ndindex(out.shape):
            values = [g[index] for g in grid]
            if any(isinstance(v, Whole) for v in values):
                out[index] = _of_floats(floats, values)
            elif {Dim, float} <= {type(v) for v in values}:
                raise ValueError("dims are whole")
            else:
                out[index] = f(*values)
        return out

    return apply


def _of_floats(f: Callable[..., Any] | None, values: Sequence[Any]) -> Any:
    numbers = [whole(v) for v in values]
    if f is None or any(n is None for n in numbers):
        raise ValueError("not known")
    return f(*numbers)


def _exact(f: Callable[..., Any]) -> Callable[..., Any]:
    """A float that is what f makes of whole numbers."""

    def apply(*values: Any) -> Any:
        found = f(*values)
        if found is None:
            raise ValueError("not known")
        return Whole(found) if isinstance(found, Dim) else float(found)

    return apply


def _number(f: Callable[..., Any]) -> Callable[[ShapeEnv, Operator, list[Array]], Array]:
    return _pointwise(f, _exact(f))


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    found = dims.truncdiv(a, b)
    if found is None:
        raise ValueError("not known")
    return found


def _mod(s: ShapeEnv, n: Operator, args: list[Array]) -> Array:
    """The remainder: with the sign of the divisor, or of the dividend where `fmod` says so."""
    if n.attr("fmod", 0):
        return _pointwise(_remainder)(s, n, args)
    return _pointwise(_modulus)(s, n, args)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return math.fmod(a, b)
    return dims.sub(a, dims.mul(_divide(a, b), b))


def _modulus(a: Any, b: Any) -> Any:
    if isinstance(a, Dim) and not (isinstance(b, int) and b > 0):
        raise ValueError("not known")
    return dims.mod(a, b) if isinstance(a, Dim) else a % b


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > 64 and a not in (-1, 0, 1):
        raise OverflowError
    found = a**b
    if isinstance(found, complex):
        raise ValueError("not a number")
    return found


def _equal(a: Any, b: Any) -> Any:
    return same(a, b) or dims.equal(a, b)


def _compare(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Any:
    """Numbers are compared at once; of dims a run says what does not follow."""

    def compare(a: Any, b: Any) -> Any:
        if not isinstance(a, Dim) and not isinstance(b, Dim):
            return bool(plain(a, b))
        found = symbolic(a, b)
        return found if isinstance(found, Dim) else bool(found)

    return _pointwise(compare, compare)


def _extreme(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Any:
    def extreme(*values: Any) -> Any:
        return functools.reduce(
            symbolic if any(isinstance(v, Dim) for v in values) else plain, values
        )

    return _number(extreme)


def _where(c: Any, a: Any, b: Any) -> Any:
    return dims.select(c, a, b) if isinstance(c, Dim) else a if c else b


def _chosen(s: ShapeEnv, n: Operator, args: list[Array]) -> Array:
    """Where: of numbers of one type, which a Whole among them says is that of floats."""
    floats = any(isinstance(v, Whole) for a in args[1:] for v in a.flat)
    return (_pointwise(_where, _exact(_where)) if floats else _pointwise(_where))(s, n, args)


def _cast(_: ShapeEnv, n: Operator, args: list[Array]) -> Array:
    if n.attr("to") == DType.BOOL:
        if any(isinstance(v, Dim) for v in args[0].reshape(-1)):
            raise ValueError("not known")
        return _pointwise(bool)(_, n, args)
    integer = n.attr("to") in (2, 3, 4, 5, 6, 7, 12, 13)

    def convert(v: Any) -> Any:
        if isinstance(v, Dim) and not integer and n.attr("to") not in _EXACT:
            raise ValueError("it may be rounded")
        if isinstance(v, Dim):
            return v if integer else Whole(v)
        return int(v) if integer else float(v)

    return _pointwise(convert, convert)(_, n, args)


def _fill(_: ShapeEnv, n: Operator, args: list[Array]) -> Array | None:
    """A scalar or a short vector: only those are shapes."""
    if args[0].ndim != 1 or args[0].size > 1 or any(int(length) > LONGEST for length in args[0]):
        return None
    value = n.attr("value")
    number: Any = 0.0
    if value is not None:
        held = tensor_values(value)
        if held.dtype.kind not in "iufb":
            return None
        number = held.reshape(-1)[0].item()
    return objects([number] * int(args[0][0])) if args[0].size else np.array(number, dtype=object)


def _relabelled(s: ShapeEnv, n: Operator, args: list[Array]) -> Array:
    return args[0].reshape([int(d) for d in result(s, n)])


def _gather(_: ShapeEnv, n: Operator, args: list[Array]) -> Array:
    axis = axis_of(n.attr("axis", 0), args[0].ndim)
    return np.asarray(np.take(args[0], args[1].astype(np.int64), axis), dtype=object)


def _slice(s: ShapeEnv, n: Operator, args: list[Array]) -> Array | None:
    found = args[0]
    for axis, start, end, step in bounds(s, n, found.ndim):
        if isinstance(start, Dim) or isinstance(end, Dim):
            return None
        found = found[(*[slice(None)] * axis, slice(start, end, step))]
    return found


def _reduce(f: Callable[..., Any]) -> Callable[[ShapeEnv, Operator, list[Array]], Array]:
    def apply(s: ShapeEnv, n: Operator, args: list[Array]) -> Array:
        if args[0].ndim != 1 or not reduced(s, n, 1):
            raise ValueError("no list of sizes")
        total = np.array(functools.reduce(f, args[0]), dtype=object)
        return total.reshape(1) if n.attr("keepdims", 1) else total

    return apply


OPERATORS: dict[str, Callable[[ShapeEnv, Operator, list[Array]], Array | None]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), _relabelled),
    "Gather": _gather,
    "Concat": lambda s, n, a: np.concatenate(a, axis_of(n.attr("axis", 1), a[0].ndim)),
    "Slice": _slice,
    "Transpose": lambda s, n, a: a[0].transpose(permutation(n, a[0].ndim)),
    "Identity": lambda s, n, a: a[0],
    "Cast": _cast,
    "ConstantOfShape": _fill,
    "Expand": lambda s, n, a: np.broadcast_to(a[0], tuple(int(d) for d in result(s, n))),
    "ReduceSum": _reduce(lambda a, b: a + b),
    "ReduceProd": _reduce(lambda a, b: a * b),
    "Add": _number(lambda a, b: a + b),
    "Sub": _number(lambda a, b: a - b),
    "Mul": _number(lambda a, b: a * b),
    "Div": _pointwise(_divide, _exact(dims.quotient)),
    "Mod": _mod,
    "Min": _extreme(min, dims.minimum),
    "Max": _extreme(max, dims.maximum),
    "Neg": _number(lambda a: -a if not isinstance(a, Dim) else dims.mul(a, -1)),
    "Sqrt": _pointwise(lambda a: math.sqrt(a)),
    "Reciprocal": _pointwise(lambda a: 1.0 / a),
    "Pow": _pointwise(_power),
    "Floor": _pointwise(lambda a: float(math.floor(a)), Whole),
    "Ceil": _pointwise(lambda a: float(math.ceil(a)), Whole),
    "Equal": _compare(operator.eq, _equal),
    "Less": _compare(operator.lt, dims.less),
    "Greater": _compare(operator.gt, lambda a, b: dims.less(b, a)),
    "LessOrEqual": _compare(operator.le, lambda a, b: 1 - dims.less(b, a)),
    "GreaterOrEqual": _compare(operator.ge, lambda a, b: 1 - dims.less(a, b)),
    "And": _compare(lambda a, b: a and b, dims.mul),
    "Not": _pointwise(lambda a: dims.equal(a, 0) if isinstance(a, Dim) else not a),
    "Where": _chosen,
    "Shape": lambda s, n, a: None,
    "Size": lambda s, n, a: None,
}
