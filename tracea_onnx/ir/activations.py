"""Which activation an expression computes, decided by evaluating it: any spelling of GELU, SiLU,
HardSwish, ... is the same function.

The expression is evaluated in float64 at fixed sample points and compared with every built-in
activation, whose parameters are fitted first. The allowed difference is what rounding the
expression's own constants to float32 (and its intermediate values to float64) can cause, so a chain
with 0.0447 in place of 0.044715 is not GELU. No absolute tolerance is involved anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_onnx.ir.abi import ACTIVATIONS, OPCODE, DType
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.support.data_classes import dataclass

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EpilogueForm:
    """`act(acc + r)` (res_mode 1), `act(acc) + r` (res_mode 2) or `act(acc)` (res_mode 0, residual
    None); `residual` is r's input index.
    """

    act: str
    p0: float
    p1: float
    res_mode: int
    residual: int | None


#: Of float64, element by element: numpy has neither, and scipy takes as long to import as the rest.
_erf, _erfc = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))


def _sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _elu(x: F64, alpha: Any) -> F64:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


@cache
def _reference(name: str) -> Callable[..., Any]:
    """An opcode on float64: what the kernels are tested against."""
    opcode = OPCODE[name]
    text = f"lambda {', '.join('abc'[: opcode.arity])}: {opcode.numpy}"
    names = {"np": np, "erf": _erf, "erfc": _erfc, "sigmoid": _sigmoid, "elu": _elu}
    value: Callable[..., Any] = eval(text, names)
    return lambda *args: np.asarray(value(*args), np.float64)


def evaluate(
    expr: Expr, inputs: Sequence[npt.ArrayLike], *, scale: tuple[int, float] | None = None
) -> F64:
    """The value of `expr` on `inputs` (broadcast against each other), computed in float64.

    `scale` = (k, s) multiplies the value of instruction k by s: how sensitive the result is to an
    error made there.
    """
    values: list[Any] = [np.asarray(x, np.float64) for x in inputs]
    if len(values) != expr.n_in:
        raise ValueError(f"an expression of {expr.n_in} inputs got {len(values)}")
    with np.errstate(all="ignore"):
        for k, ins in enumerate(expr.code):
            value = (
                np.float64(ins.imm)
                if ins.op == "const"
                else _reference(ins.op)(*(values[a] for a in ins.args))
            )
            values.append(value * scale[1] if scale is not None and scale[0] == k else value)
    shape = np.broadcast_shapes(*(np.shape(v) for v in values[: expr.n_in])) if expr.n_in else ()
    return np.array(np.broadcast_to(values[expr.out], shape), np.float64)


def _points() -> F64:
    grid = np.linspace(-20, 20, 161) + 0.0137
    small = np.power(10.0, np.arange(-8.0, 5.0), dtype=np.float64)
    kinks = np.array([0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 50.0, 80.0])
    near = np.concatenate([kinks, kinks + 1e-3, kinks - 1e-3, kinks * (1 + 1e-5)])
    return np.concatenate([grid, small, -small, near, -near])


_X = _points()
_X.flags.writeable = False
_SLOPE_STEP = 1e-3
_PROBES = np.array([-1e30, -1e4, -1.0, -_SLOPE_STEP, 0.0, _SLOPE_STEP, 1.0, 1e30])
_PROBES.flags.writeable = False
#: Relative error of a constant written as float32, of a value computed in float64 (with room), and
#: the most any of that may explain.
_CONSTANT_ERROR, _VALUE_ERROR, _MOST = 2.0**-23, 1e-14, 1e-4


def _act(name: str, x: F64, p0: float, p1: float) -> F64:
    if name == "none":
        return x
    with np.errstate(all="ignore"):
        return np.asarray(_reference(name)(x, *(p0, p1)[: OPCODE[name].arity - 1]))


def _fit(name: str, probe: F64) -> tuple[float, float] | None:
    """Parameters the activation must have to give `probe` at `_PROBES`; None when it cannot."""
    lowest, low, minus, before, zero, after, plus, highest = (float(v) for v in probe)
    with np.errstate(all="ignore"):
        if name == "leaky_relu":
            return -minus, 0.0
        if name == "clip":
            return (
                ((-np.inf if lowest <= -1e29 else lowest), (np.inf if highest >= 1e29 else highest))
                if lowest < highest
                else None
            )
        if name == "hard_sigmoid":
            return ((after - before) / (2 * _SLOPE_STEP), zero) if 0 < zero < 1 else None
        if name == "elu":
            return -low, 0.0
        if name == "quick_gelu":
            return math.log(plus / (1 - plus)) if 0 < plus < 1 else math.nan, 0.0
    return 0.0, 0.0


def _close(f: F64, g: F64, relative: float) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.all((f == g) | (np.abs(f - g) <= relative * (np.abs(f) + np.abs(g)) + 1e-9)))


def _agrees(expr: Expr, inputs: Sequence[F64], f: F64, g: F64) -> bool:
    """Whether f = expr(inputs) equals g up to the rounding of the expression's constants and of
    float64 arithmetic.
    """
    allowed, noise = np.zeros_like(f), np.abs(f) * _VALUE_ERROR
    with np.errstate(all="ignore"):
        for k, ins in enumerate(expr.code):
            # a larger step, scaled down: the difference itself is rounded
            error = _CONSTANT_ERROR if ins.op == "const" else 1e-11
            # NaN: powers need an integer
            change = np.nan_to_num(
                np.abs(evaluate(expr, inputs, scale=(k, 1 + error)) - f), nan=0.0, posinf=0.0
            )
            if ins.op == "const":
                allowed += change
            else:
                noise += change * (_VALUE_ERROR / error)
        near = np.abs(f - g) <= np.minimum(allowed, _MOST * np.abs(g)) + noise
    return bool(np.all((f == g) | (np.isfinite(f) & np.isfinite(g) & near)))


def single(value: float) -> float:
    """`value` rounded to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _candidates(f: F64, probe: F64) -> Iterator[tuple[str, float, float]]:
    for name in ACTIVATIONS:
        fitted = _fit(name, probe)
        if fitted is None or np.isnan(fitted).any():
            continue
        p0, p1 = (single(p) for p in fitted)
        if _close(f, _act(name, _X, p0, p1), 1e-3):
            yield name, *fitted


@lru_cache(maxsize=4096)
def classify_activation(expr: Expr) -> tuple[str, float, float] | None:
    """(name in `abi.ACTIVATIONS`, p0, p1) of the activation a one-input expression computes, or
    None.

    Parameters are those the expression itself has, rounded to float32. An expression that overflows
    where the activation does not (the naive log(1 + exp(x))) is not that activation.
    """
    if expr.n_in != 1:
        return None
    f, probe = evaluate(expr, [_X]), evaluate(expr, [_PROBES])
    if np.isnan(f).any():
        return None
    for name, p0, p1 in _candidates(f, probe):
        if _agrees(expr, [_X], f, _act(name, _X, p0, p1)):
            return name, single(p0), single(p1)
    return None


#: Constants of spelled-out activations that 16-bit formats cannot hold.
_NAMED = (
    0.5**0.5,
    2.0**0.5,
    (2 / np.pi) ** 0.5,
    2 * (2 / np.pi) ** 0.5,
    0.044715,
    0.044715 * (2 / np.pi) ** 0.5,
    1.702,
    1 / 6,
    1 / 3,
)


@lru_cache(maxsize=4096)
def unrounded(expr: Expr, dtype: DType) -> Expr:
    """`expr` of a model in a 16-bit type with its activations' constants as they were before they
    were rounded to that type.

    Such a model means GELU when it divides by 1.4140625; the difference is below what rounding the
    result to the type makes.
    """
    if dtype not in (DType.F16, DType.BF16):
        return expr
    from ml_dtypes import bfloat16

    narrow = np.float16 if dtype == DType.F16 else bfloat16
    meant = {float(narrow(c)): c for c in _NAMED}
    meant |= {-k: -c for k, c in meant.items()}
    code = tuple(
        replace(i, imm=meant[i.imm]) if i.op == "const" and i.imm in meant else i for i in expr.code
    )
    return replace(expr, code=code)


def inputs_used(expr: Expr) -> set[int]:
    """Inputs that the result depends on."""
    needed, stack = set[int](), [expr.out]
    while stack:
        k = stack.pop()
        if k not in needed:
            needed.add(k)
            if k >= expr.n_in:
                stack.extend(expr.code[k - expr.n_in].args)
    return {k for k in needed if k < expr.n_in}


def _with_zero(expr: Expr, residual: int) -> Expr:
    """The one-input expression of the accumulator (input 0) when the residual is zero; no other
    input is used.
    """

    def moved(a: int) -> int:
        return 0 if a == 0 else 1 if a < expr.n_in else a - expr.n_in + 2

    code = (
        Instr("const", (), 0.0),
        *(replace(i, args=tuple(moved(a) for a in i.args)) for i in expr.code),
    )
    return Expr(1, code, moved(expr.out))


@lru_cache(maxsize=4096)
def classify_epilogue(expr: Expr) -> EpilogueForm | None:
    """The built-in form of an epilogue of (acc, residual), or None: it then runs as a general
    program.

    Only forms whose residual enters with factor one are built in; a per-channel scale or bias left
    over makes a program.
    """
    used = inputs_used(expr)
    if used == {0}:
        alone = (
            classify_activation(_with_zero(expr, 0)) if expr.n_in > 1 else classify_activation(expr)
        )
        return EpilogueForm(*alone, 0, None) if alone is not None else None
    if len(used) != 2 or 0 not in used:
        return None
    residual = max(used)
    known = classify_activation(_with_zero(expr, residual))
    if known is None:
        return None
    acc, r = (
        v.ravel() for v in np.meshgrid(_X[::3], np.array([-7.3, -1.1, -1e-3, 0.0, 0.4, 2.9, 11.0]))
    )
    inputs = [acc if k == 0 else r for k in range(expr.n_in)]
    f = evaluate(expr, inputs)
    for mode, expected in (
        (1, _act(known[0], acc + r, known[1], known[2])),
        (2, _act(known[0], acc, known[1], known[2]) + r),
    ):
        if _agrees(expr, inputs, f, expected):
            return EpilogueForm(*known, mode, residual)
    return None
