"""Compiling pointwise expressions, and telling activations by their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracea_onnx.ir.abi import OPCODES
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import (
    EpilogueForm,
    classify_activation,
    classify_epilogue,
    compile_program,
    evaluate,
    simplify,
)


def _f(value: float) -> float:
    return float(np.float32(value))


def _expr(n_in: int, *code: tuple[Any, ...]) -> Expr:
    """Instructions by name; a float argument is a constant, an int the index of an earlier value
    (n_in + position).
    """
    out: list[Instr] = []
    place = list(range(n_in))
    for op, *args in code:
        ids = []
        for a in args:
            if isinstance(a, float):
                out.append(Instr("const", (), a))
                ids.append(n_in + len(out) - 1)
            else:
                ids.append(place[a])
        out.append(Instr(op, tuple(ids)))
        place.append(n_in + len(out) - 1)
    return Expr(n_in, tuple(out), place[-1])


def _gelu(divisor: float) -> Expr:
    return _expr(
        1, ("div", 0, divisor), ("erf", 1), ("add", 2, 1.0), ("mul", 0, 3), ("mul", 4, 0.5)
    )


def _gelu_tanh(cubic: float) -> Expr:
    return _expr(
        1,
        ("pow", 0, 3.0),
        ("mul", 1, _f(cubic)),
        ("add", 0, 2),
        ("mul", 3, _f((2 / np.pi) ** 0.5)),
        ("tanh", 4),
        ("add", 5, 1.0),
        ("mul", 0, 6),
        ("mul", 7, 0.5),
    )


KNOWN: list[tuple[Expr, tuple[str, float, float]]] = [
    (_gelu(_f(2**0.5)), ("gelu_erf", 0.0, 0.0)),
    (
        _expr(
            1, ("mul", 0, _f(0.5**0.5)), ("erf", 1), ("mul", 0, 0.5), ("mul", 2, 3), ("add", 4, 3)
        ),
        ("gelu_erf", 0.0, 0.0),
    ),
    (_gelu_tanh(0.044715), ("gelu_tanh", 0.0, 0.0)),
    (_expr(1, ("sigmoid", 0), ("mul", 1, 0)), ("silu", 0.0, 0.0)),
    (_expr(1, ("neg", 0), ("exp", 1), ("add", 2, 1.0), ("div", 0, 3)), ("silu", 0.0, 0.0)),
    (
        _expr(1, ("mul", 0, _f(1.702)), ("sigmoid", 1), ("mul", 0, 2)),
        ("quick_gelu", _f(1.702), 0.0),
    ),
    (_expr(1, ("mul", 0, _f(1.7)), ("sigmoid", 1), ("mul", 0, 2)), ("quick_gelu", _f(1.7), 0.0)),
    (
        _expr(1, ("add", 0, 3.0), ("clip", 1, 0.0, 6.0), ("mul", 0, 2), ("div", 3, 6.0)),
        ("hard_swish", 0.0, 0.0),
    ),
    (_expr(1, ("hard_sigmoid", 0, _f(1 / 6), 0.5), ("mul", 0, 1)), ("hard_swish", 0.0, 0.0)),
    (_expr(1, ("softplus", 0), ("tanh", 1), ("mul", 0, 2)), ("mish", 0.0, 0.0)),
    (_expr(1, ("max", 0, 0.0)), ("relu", 0.0, 0.0)),
    (_expr(1, ("max", 0, 0.0), ("min", 1, 6.0)), ("clip", 0.0, 6.0)),
    (_expr(1, ("min", 0, 6.0)), ("clip", -np.inf, 6.0)),
    (_expr(1, ("mul", 0, _f(0.01)), ("max", 0, 1)), ("leaky_relu", _f(0.01), 0.0)),
    (
        _expr(1, ("mul", 0, _f(0.2)), ("add", 1, 0.5), ("clip", 2, 0.0, 1.0)),
        ("hard_sigmoid", _f(0.2), 0.5),
    ),
    (_expr(1, ("elu", 0, _f(1.67))), ("elu", _f(1.67), 0.0)),
    (_expr(1, ("neg", 0), ("neg", 1)), ("none", 0.0, 0.0)),
    (_expr(1, ("exp", 0)), ("exp", 0.0, 0.0)),
    (_expr(1, ("tanh", 0)), ("tanh", 0.0, 0.0)),
    (
        _expr(1, ("mul", 0, 0.5), ("tanh", 1), ("add", 2, 1.0), ("mul", 3, 0.5)),
        ("sigmoid", 0.0, 0.0),
    ),
]


@pytest.mark.parametrize(("expr", "expected"), KNOWN)
def test_known_activations(expr: Expr, expected: tuple[str, float, float]) -> None:
    assert classify_activation(expr) == expected


@pytest.mark.parametrize(
    "expr",
    [
        _gelu(1.4142),
        _gelu_tanh(0.0447),
        _gelu_tanh(0.04472),
        _expr(1, ("add", 0, 1e-12)),
        _expr(1, ("exp", 0), ("add", 1, 1e-16)),
        _expr(1, ("exp", 0), ("add", 1, 1.0), ("log", 2)),  # overflows where Softplus does not
        _expr(1, ("add", 0, 1e8), ("sub", 1, 1e8), ("add", 2, 0.5)),
        _expr(1, ("relu", 0), ("square", 1)),
        _expr(1, ("lt", 0, 1e-4), ("where", 1, 0.0, 0)),  # ThresholdedRelu
        _expr(1, ("add", 0, 3.0), ("clip", 1, 0.0, 6.0), ("mul", 0, 2), ("div", 3, _f(6.001))),
        _expr(1, ("selu", 0, _f(1.6732632), _f(1.0507010))),
        _expr(2, ("mul", 0, 1)),
        _expr(1, ("sqrt", 0)),
    ],
)
def test_near_misses_are_not_activations(expr: Expr) -> None:
    assert classify_activation(expr) is None


@settings(max_examples=60)
@given(alpha=st.floats(2.0**-7, 3.0, width=32), off=st.sampled_from([1e-5, -3e-5, 1e-3]))
def test_parameters_are_the_expressions_own(alpha: float, off: float) -> None:
    slope = alpha * (1 + off)
    # a constant within float32 rounding of 1 is 1
    assume(min(abs(alpha - 1), abs(slope - 1)) > 1e-6)
    quick = classify_activation(_expr(1, ("mul", 0, alpha), ("sigmoid", 1), ("mul", 0, 2)))
    assert quick == ("quick_gelu", alpha, 0.0)
    leaky = classify_activation(_expr(1, ("leaky_relu", 0, slope)))
    assert leaky is not None
    assert leaky[0] == "leaky_relu"
    assert leaky[1] == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (_expr(2, ("add", 0, 1), ("relu", 2)), EpilogueForm("relu", 0.0, 0.0, 1, 1)),
        (
            _expr(2, ("add", 1, 0), ("sigmoid", 2), ("mul", 2, 3)),
            EpilogueForm("silu", 0.0, 0.0, 1, 1),
        ),
        (_expr(2, ("relu", 0), ("add", 1, 2)), EpilogueForm("relu", 0.0, 0.0, 2, 1)),
        (
            _expr(3, ("add", 0, 2), ("leaky_relu", 3, _f(0.1))),
            EpilogueForm("leaky_relu", _f(0.1), 0.0, 1, 2),
        ),
        (_expr(2, ("add", 0, 1)), EpilogueForm("none", 0.0, 0.0, 1, 1)),
        (_expr(1, ("relu", 0)), EpilogueForm("relu", 0.0, 0.0, 0, None)),
        (_expr(2, ("relu", 0)), EpilogueForm("relu", 0.0, 0.0, 0, None)),
        (_expr(2, ("sub", 0, 1), ("relu", 2)), None),
        (_expr(2, ("mul", 1, 0.5), ("add", 0, 2)), None),
        (_expr(2, ("mul", 0, 1)), None),
        (_expr(3, ("add", 0, 1), ("add", 3, 2)), None),
        (_expr(2, ("relu", 0), ("add", 2, 1), ("relu", 3)), None),
        (_expr(2, ("relu", 1), ("add", 2, 0)), None),
        (_expr(2, ("relu", 1)), None),
    ],
)
def test_epilogue_forms(expr: Expr, expected: EpilogueForm | None) -> None:
    assert classify_epilogue(expr) == expected


def _ops(program: dict[str, Any]) -> list[str]:
    return [OPCODES[row[0]] for row in program["code"]]


def test_programs_are_short() -> None:
    assert _ops(compile_program(_gelu(_f(2**0.5)), type="f32")) == ["gelu_erf"]
    inner = _expr(3, ("add", 0, 1), ("sigmoid", 3), ("mul", 3, 4), ("mul", 5, 2), ("add", 6, 0))
    assert _ops(compile_program(inner, type="f32")) == ["add", "silu", "fma"]
    assert _ops(
        compile_program(
            _expr(2, ("mul", 0, 1), ("mul", 1, 0), ("sub", 2, 3), ("add", 0, 4)), type="f32"
        )
    ) == ["mul", "sub", "add"]
    assert _ops(compile_program(_expr(1, ("pow", 0, 2.0)), type="f32")) == ["square"]
    assert _ops(compile_program(_expr(1, ("div", 0, 8.0)), type="f32")) == ["const", "mul"]
    assert _ops(compile_program(_expr(1, ("div", 0, 3.0)), type="f32")) == ["const", "div"]
    assert _ops(compile_program(_expr(1, ("add", 0, 1e-12)), type="f32")) == ["const", "add"]
    folded = _expr(1, ("mul", 2.0, 3.0), ("add", 0, 1))
    assert _ops(compile_program(folded, type="f32")) == ["const", "add"]
    assert compile_program(folded, type="i64")["code"][0][-1] == 6.0


def test_an_activation_whose_inside_is_needed_is_not_replaced() -> None:
    expr = _expr(1, ("sigmoid", 0), ("mul", 0, 1), ("sub", 2, 1))
    assert _ops(compile_program(expr, type="f32")) == ["sigmoid", "mul", "sub"]


def test_identity_and_constants() -> None:
    assert compile_program(Expr(2, (), 1), type="f32") == {
        "type": 0,
        "n_in": 2,
        "regs": 2,
        "out": 1,
        "code": [],
    }
    constant = compile_program(Expr(1, (Instr("const", (), 2.5),), 1), type="f32")
    assert constant["code"] == [[0, constant["out"], 0, 0, 0, 2.5]]


@pytest.mark.parametrize(
    "expr",
    [
        _expr(1, ("exp", 0)),
        *(_expr(1, ("add", 0, n)) for n in (0.5, float(2**24), float("inf"), float("nan"))),
    ],
)
def test_integer_programs_refuse_what_they_cannot_do_exactly(expr: Expr) -> None:
    with pytest.raises(ValueError, match="integer"):
        compile_program(expr, type="i64")


def _interpret(program: dict[str, Any], inputs: list[Any]) -> Any:
    """A register machine of its own: checks allocation, not arithmetic."""
    regs: dict[int, Any] = dict(enumerate(inputs))
    for op, dst, *args, imm in program["code"]:
        name = OPCODES[op]
        arity = 3 if name in ("fma", "clip", "hard_sigmoid") else 1 if name in _UNARY else 2
        value = (
            imm
            if name == "const"
            else evaluate(
                Expr(arity, (Instr(name, tuple(range(arity))),), arity),
                [regs[a] for a in args[:arity]],
            )
        )
        regs[dst] = value
        assert dst < program["regs"]
    return regs[program["out"]]


_UNARY = (
    "tanh",
    "abs",
    "square",
    "sigmoid",
    "relu",
    "silu",
    "neg",
    "gelu_erf",
    "exp",
    "softplus",
    "mish",
)
_DRAWN = ("add", "mul", "max", "sub", "tanh", "abs", "sigmoid", "relu", "square", "const")


@settings(max_examples=150)
@given(data=st.data(), n_in=st.integers(1, 4), length=st.integers(0, 25))
def test_compiled_programs_compute_the_expression(data: Any, n_in: int, length: int) -> None:
    code: list[Instr] = []
    for k in range(length):
        op = data.draw(st.sampled_from(_DRAWN))
        arity = 0 if op == "const" else 1 if op in _UNARY else 2
        args = tuple(data.draw(st.integers(0, n_in + k - 1)) for _ in range(arity))
        code.append(
            Instr(
                op,
                args,
                data.draw(st.sampled_from([0.5, -2.0, 1.0, 3.0])) if op == "const" else 0.0,
            )
        )
    expr = Expr(n_in, tuple(code), data.draw(st.integers(0, n_in + length - 1)))
    inputs = [np.random.default_rng(k).uniform(-1, 1, 7) for k in range(n_in)]
    expected = evaluate(expr, inputs)
    np.testing.assert_allclose(
        evaluate(simplify(expr), inputs), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max()
    )
    np.testing.assert_allclose(
        np.broadcast_to(_interpret(compile_program(expr, type="f32"), inputs), (7,)),
        expected,
        rtol=1e-6,
        atol=1e-6 * np.abs(expected).max(),
    )
