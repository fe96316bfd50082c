"""`pointwise` and `pointwise_nhwc`: broadcasting, element types, exact integers, compiled programs,
against numpy.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program, evaluate
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

Array = npt.NDArray[Any]
ISAS = isas()
TYPES: dict[int, Any] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    16: ml_dtypes.bfloat16,
}
NUMBER = {np.dtype(t): n for n, t in TYPES.items()}


def _pointwise(
    program: dict[str, Any],
    inputs: list[Array],
    dtype: int,
    isa: str,
    threads: int = 1,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """The kernel with numpy broadcasting of `inputs`, whose own strides are used as they are."""
    shape = np.broadcast_shapes(*(x.shape for x in inputs)) if shape is None else shape
    count = int(np.prod(shape, dtype=np.int64))
    y = np.zeros(count + 3, TYPES[dtype])
    y.view(np.uint8)[:] = 0x5A if dtype != 9 else 1
    poison = y[count:].tobytes()
    lead = (1,) * (6 - len(shape))
    ints = {f"n{d}": n for d, n in enumerate((*lead, *shape))} | {"y_dtype": dtype}
    operands: dict[str, Any] = {"y": y}
    for k, x in enumerate(inputs):
        view = np.broadcast_to(x, shape)
        ints |= {
            f"x{k}_{d}": s // x.itemsize for d, s in enumerate((*(0,) * len(lead), *view.strides))
        } | {f"x{k}_dtype": NUMBER[x.dtype]}
        root = _root(x)
        operands[f"x{k}"] = (root, (x.ctypes.data - root.ctypes.data) // x.itemsize)
    tasks = kernel_tasks("pointwise", operands, ints, None, program, isa=isa, threads=threads)
    assert (tasks == 0) == (count == 0)
    assert tasks <= threads
    run_kernel("pointwise", operands, ints, None, program, isa=isa, threads=threads)
    assert y[count:].tobytes() == poison, "wrote past the end"
    return y[:count].reshape(shape)


def _root(x: Array) -> Array:
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root


def _random(g: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    if np.dtype(dtype) == np.bool_:
        return g.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return g.integers(0, 100, shape).astype(dtype)
    return g.standard_normal(shape).astype(dtype)


def _expr(n_in: int, *code: tuple[Any, ...]) -> Expr:
    instructions = tuple(
        Instr("const", (), c[1]) if c[0] == "const" else Instr(c[0], tuple(c[1:])) for c in code
    )
    return Expr(n_in, instructions, n_in + len(code) - 1)


ADD = compile_program(_expr(2, ("add", 0, 1)), type="f32")
SHAPES = (
    ((7,), (7,)),
    ((1,), (1,)),
    ((5, 3), (3,)),
    ((5, 3), (5, 1)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (2, 3, 1, 1)),
    ((17, 1), (1, 19)),
    ((4, 1, 6), (5, 1)),
    ((3, 1000), (1000,)),
    ((2, 5000), (2, 1)),
    ((5000,), ()),
    ((6, 15), (1, 15)),
    ((6, 16), (6, 1)),
    ((9, 17), (17,)),
    ((0, 4), (4,)),
    ((3, 0), (1,)),
    ((2, 1, 3, 1, 2, 5), (1, 4, 1, 3, 1, 5)),
    ((300, 3), (3,)),
    ((300, 3), (300, 1)),
    ((2, 70, 200), (70, 1)),
    ((1, 1), (1, 1)),
    ((3, 4097), (3, 4097)),
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("threads", [1, 3, 16])
def test_broadcasts(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], isa: str, threads: int
) -> None:
    g = np.random.default_rng(0)
    a, b = (_random(g, s) for s in shapes)
    np.testing.assert_array_equal(_pointwise(ADD, [a, b], 1, isa, threads), a + b)


@st.composite
def _broadcast_shapes(draw: Any) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    rank = draw(st.integers(1, 6))
    shape = tuple(draw(st.integers(1, 40 if d == rank - 1 else 5)) for d in range(rank))
    inputs = [
        tuple(n if draw(st.booleans()) else 1 for n in shape)
        for _ in range(draw(st.integers(1, 4)))
    ]
    return shape, [
        s[draw(st.integers(0, rank - 1)) :] if all(n == 1 for n in s) else s for s in inputs
    ]


@settings(max_examples=60)
@given(
    shapes=_broadcast_shapes(),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 2, 7]),
    isa=st.sampled_from(ISAS),
    transposed=st.booleans(),
)
def test_random_broadcasts(
    shapes: tuple[tuple[int, ...], list[tuple[int, ...]]],
    seed: int,
    threads: int,
    isa: str,
    transposed: bool,
) -> None:
    _, parts = shapes
    g = np.random.default_rng(seed)
    inputs = [_random(g, s[::-1]).T if transposed else _random(g, s) for s in parts]
    n = len(inputs)
    code: list[tuple[Any, ...]] = [("relu", 0)]
    for k in range(1, n):
        code.append(("fma", k, n + k - 1, 0))
    expr = _expr(n, *code)
    expected = evaluate(expr, inputs)
    got = _pointwise(
        compile_program(expr, type="f32"),
        inputs,
        1,
        isa,
        threads,
        shape=np.broadcast_shapes(*parts),
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", sorted(TYPES))
@pytest.mark.parametrize("target", sorted(TYPES))
def test_conversions(source: int, target: int, isa: str) -> None:
    x = _random(np.random.default_rng(source), (3, 701), TYPES[source])
    if source in (1, 10, 11, 16) and target not in (1, 10, 11, 16, 9):
        x = np.abs(x * 20).astype(TYPES[source])
    got = _pointwise(compile_program(Expr(1, (), 0), type="f32"), [x], target, isa)
    np.testing.assert_array_equal(
        got.astype(np.float64), x.astype(np.float32).astype(TYPES[target]).astype(np.float64)
    )


@pytest.mark.parametrize("isa", ISAS)
def test_half_precision_corner_cases(isa: str) -> None:
    identity = compile_program(Expr(1, (), 0), type="f32")
    every = np.arange(65536, dtype=np.uint16)
    for dtype, number in ((np.float16, 10), (ml_dtypes.bfloat16, 16)):
        x: Array = every.view(dtype)
        np.testing.assert_array_equal(_pointwise(identity, [x], 1, isa), x.astype(np.float32))
        with np.errstate(over="ignore"):
            wide = np.array(
                [
                    65504,
                    65519.9,
                    65520,
                    -65536,
                    1e-8,
                    2.98e-8,
                    5.97e-8,
                    1 + 2**-11,
                    1 + 3 * 2**-11,
                    np.inf,
                    -0.0,
                    3.39e38,
                ],
                np.float32,
            )
            np.testing.assert_array_equal(
                _pointwise(identity, [wide], number, isa).astype(np.float32),
                wide.astype(dtype).astype(np.float32),
            )
    assert np.isnan(_pointwise(identity, [np.array([np.nan], np.float32)], 10, isa))[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 4])
def test_integers_are_exact(isa: str, threads: int) -> None:
    g = np.random.default_rng(5)
    a = g.integers(-(2**62), 2**62, (3, 1, 2049))
    b = g.integers(-1000, 1000, (4, 1))
    b[b == 0] = 7
    # ((a / b) * 3 + a mod b) where a < b else a, with ONNX's division (toward zero) and Mod (the
    # divisor's sign)
    expr = _expr(
        2,
        ("div", 0, 1),
        ("const", 3.0),
        ("mul", 2, 3),
        ("mod", 0, 1),
        ("add", 4, 5),
        ("lt", 0, 1),
        ("where", 7, 6, 0),
    )
    got = _pointwise(compile_program(expr, type="i64"), [a, b], 7, isa, threads)
    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    np.testing.assert_array_equal(got, np.where(a < b, quotient * 3 + np.mod(a, b), a))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "op",
    ["add", "sub", "mul", "div", "min", "max", "mod", "fmod", "eq", "lt", "le", "and", "or", "xor"],
)
def test_integer_opcodes(op: str, isa: str) -> None:
    g = np.random.default_rng(6)
    a, b = g.integers(-9, 9, 999), g.integers(-4, 5, 999)
    reference = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "min": np.minimum(a, b),
        "max": np.maximum(a, b),
        "eq": a == b,
        "lt": a < b,
        "le": a <= b,
        "and": (a != 0) & (b != 0),
        "or": (a != 0) | (b != 0),
        "xor": (a != 0) ^ (b != 0),
    }
    if op in ("div", "mod", "fmod"):
        b[b == 0] = 3
        reference |= {"div": np.trunc(a / b), "mod": np.mod(a, b), "fmod": np.fmod(a, b)}
    got = _pointwise(compile_program(_expr(2, (op, 0, 1)), type="i64"), [a, b], 7, isa)
    np.testing.assert_array_equal(got, reference[op])


@pytest.mark.parametrize("isa", ISAS)
def test_integer_corner_cases_do_not_trap(isa: str) -> None:
    lowest = np.iinfo(np.int64).min
    a, b = np.array([lowest, 5, lowest, 0]), np.array([-1, 0, 0, -1])
    for op in ("div", "mod", "fmod"):
        got = _pointwise(compile_program(_expr(2, (op, 0, 1)), type="i64"), [a, b], 7, isa)
        np.testing.assert_array_equal(got, [lowest if op == "div" else 0, 0, 0, 0])


@pytest.mark.parametrize("isa", ISAS)
def test_one_operand_integer_opcodes(isa: str) -> None:
    a = np.random.default_rng(1).integers(-5, 5, 333).astype(np.int32)
    for op, expected in (
        ("neg", -a),
        ("abs", np.abs(a)),
        ("sign", np.sign(a)),
        ("not", a == 0),
        ("square", a * a),
        ("copy", a),
    ):
        np.testing.assert_array_equal(
            _pointwise(compile_program(_expr(1, (op, 0)), type="i64"), [a], 6, isa), expected
        )


@pytest.mark.parametrize("isa", ISAS)
def test_mixed_types(isa: str) -> None:
    g = np.random.default_rng(2)
    mask, x, k = (
        _random(g, (4, 1, 33), np.bool_),
        _random(g, (7, 33), np.float16),
        _random(g, (33,), np.int64),
    )
    got = _pointwise(
        compile_program(_expr(3, ("where", 0, 1, 2)), type="f32"), [mask, x, k], 1, isa
    )
    np.testing.assert_array_equal(got, np.where(mask, x.astype(np.float32), k.astype(np.float32)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("source", "target"), [(2, 2), (2, 3), (3, 2), (3, 3)])
@pytest.mark.parametrize("threads", [1, 4])
def test_bytes_of_bytes(source: int, target: int, threads: int, isa: str) -> None:
    """Dequantised, clamped and quantised again, with zero points of a run: every value, rows of
    whole vectors, of a remainder and apart from each other, few elements and many.
    """
    g = np.random.default_rng(source + target)
    code = (("sub", 0, 1), ("mul", 5, 2), ("relu", 6), ("div", 7, 3), ("round", 8), ("add", 9, 4))
    limits = np.iinfo(TYPES[target])
    ends = (("const", float(limits.min)), ("const", float(limits.max)), ("clip", 10, 11, 12))
    program = compile_program(_expr(5, *code, *ends), type="f32", joins=False)
    zero, scale, step = (
        np.array(v, t) for v, t in ((37, TYPES[source]), (0.05, "f4"), (0.1, "f4"))
    )
    to = np.array(11, TYPES[target])
    held = g.integers(0, 256, (5, 1501), np.uint8).view(TYPES[source])
    every = np.tile(np.arange(256, dtype=np.uint8), 24).view(TYPES[source])
    for q in (every[:-29], every[:31], held[:, 7:-13], held.T, held.reshape(5, 19, 79)):
        clamped = np.maximum((q.astype("f4") - zero.astype("f4")) * scale, np.float32(0))
        want = np.clip(np.rint(clamped / step) + to.astype("f4"), limits.min, limits.max)
        got = _pointwise(program, [q, zero, scale, step, to], target, isa, threads)
        np.testing.assert_array_equal(got, want.astype(TYPES[target]))


@pytest.mark.parametrize("isa", ISAS)
def test_integers_of_bytes(isa: str) -> None:
    """The same of a program of integers: a sum wraps."""
    x = np.tile(np.arange(256), 9).astype(np.uint8)[:2111]
    code = _expr(2, ("add", 0, 1), ("mul", 2, 2))
    got = _pointwise(compile_program(code, type="i64"), [x, np.array(7, np.int8)], 2, isa)
    np.testing.assert_array_equal(got, ((x.astype(int) + 7) ** 2 % 256).astype(np.uint8))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("regs", [40, 200])
def test_many_registers(regs: int, isa: str) -> None:
    # Every partial sum stays alive until the end, so nothing can be shared.
    code: list[tuple[Any, ...]] = []
    for k in range(regs):
        code += [("const", float(k + 1)), ("add", 0, 1 + 2 * k)]
    total = 2
    for k in range(1, regs):
        code.append(("max" if k % 2 else "min", total, 2 + 2 * k))
        total = len(code)
    expr = _expr(1, *code)
    program = compile_program(expr, type="f32")
    assert program["regs"] >= regs
    x = _random(np.random.default_rng(0), (5, 777))
    np.testing.assert_allclose(_pointwise(program, [x], 1, isa), evaluate(expr, [x]), rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("c", [1, 3, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("threads", [1, 3])
def test_channels_last(c: int, isa: str, threads: int) -> None:
    g = np.random.default_rng(c)
    n, h, w, cs = 2, 3, 5, c + 7
    x, r, y = aligned((n, h, w, cs)), aligned((n, h, w, cs)), aligned((n, h, w, cs))
    x[...], r[...] = g.standard_normal(x.shape), g.standard_normal(x.shape)
    x[..., c:] = np.nan
    y.fill(-77.0)
    gate, scalar = _random(g, (n, c)), _random(g, (1,))
    expr = _expr(4, ("mul", 0, 2), ("add", 4, 1), ("mul", 5, 3), ("silu", 6))
    full = {"cs": cs, "rs": w * cs, "ns": h * w * cs}
    ints = {
        "N": n,
        "C": c,
        "H": h,
        "W": w,
        "x0_kind": 0,
        "x1_kind": 0,
        "x2_kind": 1,
        "x2_ns": c,
        "x3_kind": 3,
    }
    ints |= {f"{o}_{k}": v for o in ("x0", "x1", "y") for k, v in full.items()}
    operands = {"x0": x, "x1": r, "x2": gate, "x3": scalar, "y": y}
    run_kernel(
        "pointwise_nhwc",
        operands,
        ints,
        None,
        compile_program(expr, type="f32"),
        isa=isa,
        threads=threads,
    )
    expected = evaluate(expr, [x[..., :c], r[..., :c], gate[:, None, None, :], scalar])
    np.testing.assert_allclose(y[..., :c], expected, rtol=1e-5, atol=1e-6)
    assert (y[..., c:] == -77.0).all()


@pytest.mark.parametrize("isa", ISAS)
def test_channels_last_dense(isa: str) -> None:
    x, y = (
        _random(np.random.default_rng(0), (2, 3, 11, 16)),
        np.full((2, 3, 11, 16), np.nan, np.float32),
    )
    pitch = {f"{o}_{k}": v for o in ("x0", "y") for k, v in (("cs", 16), ("rs", 176), ("ns", 528))}
    program = compile_program(_expr(1, ("const", 2.0), ("mul", 0, 1), ("relu", 2)), type="f32")
    run_kernel(
        "pointwise_nhwc",
        {"x0": x, "y": y},
        {"N": 2, "C": 16, "H": 3, "W": 11, **pitch},
        None,
        program,
        isa=isa,
    )
    np.testing.assert_array_equal(y, np.maximum(2 * x, 0))
