"""Every opcode of the f32 program interpreter against float64, on every instruction set of this
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.floating_point import needs_flags, no_underflow
from tracea_onnx.ir.abi import F32_OPCODES, OPCODE
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import evaluate
from tracea_onnx.runtime.native_library import isas, run_kernel

F32 = npt.NDArray[np.float32]
ISAS = isas()

#: Opcodes with a bound on the relative error in units of 2^-23 over `_inputs`, and what is allowed
#: absolutely beside it (cancellation that the function's own formula has, as in ONNX Runtime).
ULPS: dict[str, tuple[float, float]] = {
    "exp": (1.5, 1e-38),
    "log": (1.5, 0),
    "erf": (4, 0),
    "tanh": (4, 0),
    "sigmoid": (2.5, 2e-38),
    "silu": (3, 1e-36),
    "gelu_tanh": (8, 2e-7),
    "gelu_erf": (5, 1e-6),
    "softplus": (3, 1e-38),
    "mish": (4, 1e-35),
    "sin": (1.5, 1e-7),
    "cos": (1.5, 1e-7),
    "hard_swish": (2, 5e-7),
    "sqrt": (0.6, 0),
    "rsqrt": (1.1, 0),
    "reciprocal": (0.6, 0),
    "tan": (4, 0),
    "atan": (2, 0),
    "asin": (2, 0),
    "acos": (2, 0),
    "sinh": (2, 0),
    "cosh": (2, 0),
    "acosh": (2, 0),
    "asinh": (2, 0),
    "atanh": (2, 0),
    "pow": (1, 0),
    "softsign": (1.1, 0),
    "div": (0.6, 0),
    "add": (0.6, 0),
    "sub": (0.6, 0),
    "mul": (0.6, 0),
    "square": (0.6, 0),
    "fma": (1.1, 1e-5),
    "elu": (2, 0),
    "selu": (3, 0),
    "celu": (3, 0),
    "hard_sigmoid": (1.1, 1e-7),
    "quick_gelu": (80, 1e-36),
    "leaky_relu": (0.6, 0),
    "prelu": (0.6, 0),
}
EXACT = (
    "copy",
    "min",
    "max",
    "neg",
    "abs",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "eq",
    "lt",
    "le",
    "and",
    "or",
    "not",
    "xor",
    "where",
    "isnan",
    "isinf",
    "relu",
    "clip",
)


def _run(op: str, inputs: list[F32], isa: str, *, scalars: tuple[int, ...] = ()) -> F32:
    """The kernel on equally long inputs; those in `scalars` are broadcast from their first
    element.
    """
    n = max(x.size for x in inputs)
    y = np.full(n + 1, np.nan, np.float32)
    code = [[op, len(inputs), *range(len(inputs)), *[0] * (3 - len(inputs)), 0.0]]
    ints = {f"n{d}": n if d == 5 else 1 for d in range(6)} | {"y_dtype": 1}
    for k in range(len(inputs)):
        ints |= {f"x{k}_5": int(k not in scalars), f"x{k}_dtype": 1}
    program = {
        "type": 0,
        "n_in": len(inputs),
        "regs": len(inputs) + 1,
        "out": len(inputs),
        "code": code,
    }
    run_kernel(
        "pointwise",
        {**{f"x{k}": x for k, x in enumerate(inputs)}, "y": y},
        ints,
        None,
        program,
        isa=isa,
    )
    assert np.isnan(y[n]), "wrote past the end"
    return y[:n]


def _reference(op: str, inputs: Sequence[F32]) -> npt.NDArray[np.float64]:
    return evaluate(Expr(len(inputs), (Instr(op, tuple(range(len(inputs)))),), len(inputs)), inputs)


def _inputs(op: str, seed: int = 0, n: int = 6007) -> list[F32]:
    g = np.random.default_rng(seed)
    x = np.concatenate(
        [g.uniform(-20, 20, n), g.standard_normal(n), g.normal(0, 1e-4, n), g.uniform(-87, 88, n)]
    ).astype(np.float32)
    size = x.size
    if op in ("log", "sqrt", "rsqrt"):
        x = np.exp(g.uniform(-100, 88, size)).astype(np.float32)
    elif op == "acosh":
        x = (1 + np.exp(g.uniform(-12, 80, size))).astype(np.float32)
    elif op in ("asin", "acos", "atanh"):
        x = g.uniform(-1, 1, size).astype(np.float32)
    elif op in ("sin", "cos"):
        x = g.uniform(-8000, 8000, size).astype(np.float32)
    elif op in ("round", "floor", "ceil", "trunc"):
        x[: size // 2] = np.round(x[: size // 2] * 2) / 2
    elif op == "pow":
        x = np.abs(x[np.abs(x) < 20])
    size = x.size
    rest: list[F32] = [
        g.standard_normal(size).astype(np.float32) for _ in range(OPCODE[op].arity - 1)
    ]
    if op in ("eq", "lt", "le", "and", "or", "xor", "where", "min", "max", "not"):
        x = np.round(g.standard_normal(size)).astype(np.float32)
        rest = [np.round(r) for r in rest]
    if op in ("clip", "elu", "selu", "celu", "quick_gelu", "leaky_relu", "hard_sigmoid"):
        rest = [
            np.full(size, v, np.float32)
            for v in {
                "clip": (-1.5, 2.5),
                "hard_sigmoid": (0.2, 0.5),
                "quick_gelu": (1.702,),
                "selu": (1.67, 1.05),
            }.get(op, (0.7,))
        ]
    if op == "not":
        rest = []
    return [x, *rest]


def test_every_opcode_is_covered() -> None:
    assert set(ULPS) | set(EXACT) | {"const", "mod", "fmod"} == F32_OPCODES


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", sorted(ULPS))
def test_error_is_a_few_ulps(op: str, isa: str) -> None:
    inputs = _inputs(op)
    with np.errstate(over="ignore", under="ignore"):
        expected = _reference(op, inputs)
        inside = np.abs(expected) < 3.4e38
        got = _run(op, inputs, isa)
        ulps, absolute = ULPS[op]
        error = np.abs(got.astype(np.float64) - expected)
        bound = ulps * 2.0**-23 * np.abs(expected) + absolute + 1.5e-45
    bad = np.flatnonzero(inside & ~(error <= bound))
    assert bad.size == 0, (
        f"{op}({[float(x[bad[0]]) for x in inputs]}) = {got[bad[0]]}, expected {expected[bad[0]]}"
    )
    assert np.array_equal(np.isinf(got), ~inside)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", sorted(EXACT))
def test_exact_opcodes(op: str, isa: str) -> None:
    inputs = _inputs(op)
    np.testing.assert_array_equal(_run(op, inputs, isa), _reference(op, inputs).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["mod", "fmod"])
def test_remainders(op: str, isa: str) -> None:
    g = np.random.default_rng(3)
    a, b = ((np.round(g.uniform(-50, 50, 4001) * 4) / 4).astype(np.float32) for _ in range(2))
    b[b == 0] = 3
    np.testing.assert_array_equal(_run(op, [a, b], isa), _reference(op, [a, b]).astype(np.float32))


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-40, -1e-40, 100.0, -100.0], np.float32
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "op",
    [
        "exp",
        "log",
        "erf",
        "tanh",
        "sigmoid",
        "softplus",
        "sin",
        "cos",
        "relu",
        "sqrt",
        "abs",
        "neg",
        "floor",
        "sign",
        "round",
        "trunc",
        "square",
        "isnan",
        "isinf",
    ],
)
def test_special_values(op: str, isa: str) -> None:
    with np.errstate(all="ignore"):
        expected = _reference(op, [SPECIAL]).astype(np.float32)
    np.testing.assert_allclose(_run(op, [SPECIAL], isa), expected, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "op",
    [
        "silu",
        "gelu_erf",
        "gelu_tanh",
        "quick_gelu",
        "mish",
        "hard_swish",
        "elu",
        "leaky_relu",
        "selu",
        "celu",
        "clip",
        "hard_sigmoid",
        "min",
        "max",
    ],
)
def test_nan_comes_out_and_plus_infinity_stays(op: str, isa: str) -> None:
    x = np.array([np.nan, np.inf, 50.0, 3e38], np.float32)
    rest = [
        np.full(4, v, np.float32) for v in {2: (0.5,), 3: (0.25, 0.5)}.get(OPCODE[op].arity, ())
    ]
    got = _run(op, [x, *rest], isa)
    with np.errstate(all="ignore"):
        expected = _reference(op, [x, *rest]).astype(np.float32)
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:], expected[1:], rtol=1e-6)
    if op in ("min", "max"):
        assert np.isnan(_run(op, [rest[0], x], isa)[0])


@pytest.mark.parametrize("isa", ISAS)
def test_large_angles(isa: str) -> None:
    x = np.array([8191.0, 8193.0, 1e5, -3e7, 2.0**100, 0.5], np.float32)
    np.testing.assert_allclose(_run("sin", [x], isa), np.sin(x.astype(np.float64)), atol=1e-7)
    np.testing.assert_allclose(_run("cos", [x], isa), np.cos(x.astype(np.float64)), atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
def test_halves_round_to_even(isa: str) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, 8388609.0], np.float32)
    np.testing.assert_array_equal(_run("round", [x], isa), np.rint(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "op", [o for o in sorted(OPCODE) if OPCODE[o].arity == 2 and o not in ("mod", "fmod")]
)
def test_scalar_operand(op: str, isa: str) -> None:
    a, b = _inputs(op, n=100)
    b[:] = b[0]
    whole = _run(op, [a, b], isa)
    np.testing.assert_array_equal(_run(op, [a, b[:1]], isa, scalars=(1,)), whole)


@needs_flags
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "op", ["sigmoid", "silu", "gelu_erf", "gelu_tanh", "quick_gelu", "softplus", "mish", "tanh"]
)
def test_large_operands_make_no_denormals(op: str, isa: str) -> None:
    """Many processors take 150 clocks for a product that is one. Whole vectors: behind others lies
    what an earlier launch left.
    """
    x = np.concatenate([np.linspace(-4, 4, 96), 10.0 ** np.linspace(2, 30, 96)]).astype(np.float32)
    x = np.concatenate([x, -x[96:]])
    inputs = [x, np.full(x.size, 1.702, np.float32)][: OPCODE[op].arity]
    with np.errstate(all="ignore"):
        expected = _reference(op, inputs)
    with no_underflow():
        got = _run(op, inputs, isa)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def _rmse(got: F32, expected: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((got - expected) ** 2)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("op", "node"),
    [
        ("erf", "Erf"),
        ("tanh", "Tanh"),
        ("sigmoid", "Sigmoid"),
        ("exp", "Exp"),
        ("log", "Log"),
        ("softplus", "Softplus"),
        ("gelu_erf", "Gelu"),
        ("elu", "Elu"),
    ],
)
def test_no_worse_than_onnx_runtime(op: str, node: str, isa: str) -> None:
    from onnx import TensorProto, helper

    ort = pytest.importorskip("onnxruntime")
    attributes: dict[str, Any] = {"alpha": 0.7} if op == "elu" else {}
    x = np.random.default_rng(1).uniform(-10, 10, 20011).astype(np.float32)
    x = np.exp(x) if op == "log" else x
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [x.size]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(node, ["x"], ["y"], **attributes)], "g", info[:1], info[1:]
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    theirs = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"x": x})[0]
    inputs = [x, np.full(x.size, 0.7, np.float32)] if op == "elu" else [x]
    expected = _reference(op, inputs)
    assert _rmse(_run(op, inputs, isa), expected) <= 2 * _rmse(theirs, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", [*ULPS, *EXACT])
def test_neighbours_change_nothing(op: str, isa: str) -> None:
    """Not a bit of an element, whatever the elements beside it are: a vector's last lanes may hold
    what lies behind the tensor.
    """
    inputs = [x[:96].copy() for x in _inputs(op)]
    want = _run(op, inputs, isa)
    for k, odd in enumerate((1e6, -3e38, np.inf, np.nan)):
        inputs[0][k + 1 :: 8] = odd
    kept = np.arange(96) % 8 == 0
    np.testing.assert_array_equal(
        _run(op, inputs, isa)[kept].view(np.int32), want[kept].view(np.int32)
    )
