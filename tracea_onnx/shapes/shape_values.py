"""Contents of shape tensors, operator by operator: a tower of Shape, Gather, Concat, ... as an
array of int, Dim and float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tracea_onnx.ir import dims
from tracea_onnx.ir.dim_proofs import same
from tracea_onnx.ir.dims import Dim
from tracea_onnx.ir.graph import Array, Node
from tracea_onnx.shapes.environment import ShapeEnv

#: Elements of a shape tensor: they are short, and anything longer is data.
LONGEST = 32
_INT64 = 1 << 63


def content(s: ShapeEnv, n: Node) -> Array | None:
    """What node `n` computes when that is a short vector or scalar known up to dims; None
    otherwise.
    """
    if n.op == "Shape":
        d = s.dims(n.input(0))
        sizes = () if d is None else d[slice(n.attr("start", 0), n.attr("end"))]
        return None if d is None or len(sizes) > LONGEST else objects(sizes)
    if n.op == "Size":
        d = s.dims(n.input(0))
        return None if d is None else np.array(dims.product(d), dtype=object)
    args = [s.content(i) for i in n.inputs if i]
    if any(a is None for a in args):
        return None
    try:
        found = OPERATORS[n.op](s, n, [a for a in args if a is not None])
    except (IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    # an Expand may give any number of elements
    if found is None or found.ndim > 1 or found.size > LONGEST:
        return None
    # ONNX computes these in int64, where they would overflow. Squared over and over, they would
    # fill the memory here.
    numbers = (
        i
        for v in found.flat
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


def _pointwise(f: Callable[..., Any]) -> Callable[[ShapeEnv, Node, list[Array]], Array]:
    def apply(_: ShapeEnv, __: Node, args: list[Array]) -> Array:
        grid = np.broadcast_arrays(*args)
        out = np.empty(grid[0].shape, dtype=object)
        for index in np.ndindex(out.shape):
            values = [g[index] for g in grid]
            if any(isinstance(v, Dim) for v in values) and any(
                isinstance(v, float) for v in values
            ):
                raise ValueError("dims are whole")
            out[index] = f(*values)
        return out

    return apply


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    found = dims.truncdiv(a, b)
    if found is None:
        raise ValueError("not known")
    return found


def _mod(s: ShapeEnv, n: Node, args: list[Array]) -> Array:
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
    return a**b


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return bool(a == b)
    if same(a, b):
        return True
    if (isinstance(a, int) and a < 0 and dims.never_negative(b)) or (
        isinstance(b, int) and b < 0 and dims.never_negative(a)
    ):
        return False
    raise ValueError("not known")


def _cast(_: ShapeEnv, n: Node, args: list[Array]) -> Array:
    if n.attr("to") == TensorProto.BOOL:
        if any(isinstance(v, Dim) for v in args[0].reshape(-1)):
            raise ValueError("not known")
        return _pointwise(bool)(_, n, args)
    whole = n.attr("to") in (2, 3, 4, 5, 6, 7, 12, 13)
    return _pointwise(lambda v: v if isinstance(v, Dim) else int(v) if whole else float(v))(
        _, n, args
    )


def _fill(_: ShapeEnv, n: Node, args: list[Array]) -> Array | None:
    """A scalar or a short vector: only those are shapes."""
    if args[0].ndim != 1 or args[0].size > 1 or any(int(length) > LONGEST for length in args[0]):
        return None
    value = n.attr("value")
    number: Any = 0.0
    if value is not None:
        number = numpy_helper.to_array(value).reshape(-1)[0].item()
    return objects([number] * int(args[0][0])) if args[0].size else np.array(number, dtype=object)


def _axes(n: Node, args: list[Array]) -> list[int] | None:
    """`axes` of Squeeze and Unsqueeze, as attribute or input; None when there are none."""
    if n.attr("axes") is not None:
        return list(n.attr("axes"))
    return [int(a) for a in args[1].reshape(-1)] if len(args) > 1 else None


def _unsqueeze(_: ShapeEnv, n: Node, args: list[Array]) -> Array | None:
    axes = _axes(n, args)
    return args[0].reshape(1) if args[0].ndim == 0 and axes is not None and len(axes) == 1 else None


def _squeeze(_: ShapeEnv, n: Node, args: list[Array]) -> Array | None:
    axes = _axes(n, args)
    if args[0].ndim == 1 and args[0].size == 1 and (axes is None or len(axes) == 1):
        return args[0].reshape(())
    return args[0] if axes is None else None


def _slice(_: ShapeEnv, n: Node, args: list[Array]) -> Array | None:
    if n.attr("starts") is not None:
        bounds = [n.attr("starts"), n.attr("ends"), [1]]
    else:
        if n.input(4) and not n.input(3):
            return None
        bounds = [list(a.reshape(-1)) for a in args[1:3]] + [
            list(args[4].reshape(-1)) if len(args) > 4 else [1]
        ]
    if (
        args[0].ndim != 1
        or any(len(b) != 1 or not isinstance(b[0], int) for b in bounds)
        or bounds[2][0] <= 0
    ):
        return None
    return args[0][slice(*(b[0] for b in bounds))]


OPERATORS: dict[str, Callable[[ShapeEnv, Node, list[Array]], Array | None]] = {
    "Gather": lambda s, n, a: (
        np.asarray(a[0][a[1].astype(np.int64)], dtype=object) if n.attr("axis", 0) == 0 else None
    ),
    "Concat": lambda s, n, a: np.concatenate(a),
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": lambda s, n, a: a[0].reshape(tuple(int(v) for v in a[1].reshape(-1))),
    "Identity": lambda s, n, a: a[0],
    "Cast": _cast,
    "ConstantOfShape": _fill,
    "Expand": lambda s, n, a: np.broadcast_to(a[0], tuple(int(v) for v in a[1].reshape(-1))),
    "Add": _pointwise(lambda a, b: a + b),
    "Sub": _pointwise(lambda a, b: a - b),
    "Mul": _pointwise(lambda a, b: a * b),
    "Div": _pointwise(_divide),
    "Mod": _mod,
    "Neg": _pointwise(lambda a: -a if not isinstance(a, Dim) else dims.mul(a, -1)),
    "Sqrt": _pointwise(lambda a: math.sqrt(a)),
    "Reciprocal": _pointwise(lambda a: 1.0 / a),
    "Pow": _pointwise(_power),
    "Floor": _pointwise(lambda a: a if isinstance(a, Dim) else float(math.floor(a))),
    "Equal": _pointwise(_equal),
    "Where": _pointwise(lambda c, a, b: a if c else b),
    "Shape": lambda s, n, a: None,
    "Size": lambda s, n, a: None,
}
