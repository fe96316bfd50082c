"""`reduce` and `argmax` against numpy, on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import logsumexp

from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

Array = npt.NDArray[Any]

KINDS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda v: v.sum(1),
    "mean": lambda v: v.mean(1),
    "max": lambda v: v.max(1),
    "min": lambda v: v.min(1),
    "prod": lambda v: v.prod(1),
    "l1": lambda v: np.abs(v).sum(1),
    "l2": lambda v: np.sqrt((v * v).sum(1)),
    "sum_square": lambda v: (v * v).sum(1),
    "log_sum": lambda v: np.log(v.sum(1)),
    "log_sum_exp": lambda v: np.asarray(logsumexp(v, axis=1)),
}
SHAPES = [
    (1, 1, 1),
    (7, 3, 1),
    (3, 17, 1),
    (4, 64, 1),
    (2, 5000, 1),
    (2, 7, 3),
    (3, 5, 16),
    (2, 300, 37),
    (1, 33, 130),
]


def _reduce(kind: str, x: Array, isa: str, threads: int = 1) -> Array:
    y = aligned((x.shape[0], x.shape[2]), x.dtype)
    y.fill(np.nan if x.dtype == np.float32 else 77)
    dtype = {np.dtype("f4"): DType.F32, np.dtype("i8"): DType.I64, np.dtype("i4"): DType.I32}[
        x.dtype
    ]
    ints = {
        "kind": list(KINDS).index(kind),
        "outer": x.shape[0],
        "n": x.shape[1],
        "inner": x.shape[2],
        "dtype": int(dtype),
    }
    run_kernel("reduce", {"x": x, "y": y}, ints, isa=isa, threads=threads)
    return y


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_floats(isa: str, kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    # a product of many factors near 1 stays in range
    spread = 3.0 / np.sqrt(shape[1]) if kind == "prod" else 2.0
    x = (
        1 + spread * rng.uniform(-0.5, 0.5, shape)
        if kind in ("prod", "log_sum")
        else rng.standard_normal(shape)
    ).astype(np.float32)
    v = x.astype(np.float64)
    scale = np.maximum(np.abs(v).sum(1), 1) if kind in ("sum", "mean") else 1.0
    rtol = 1e-6 * (1 + np.sqrt(shape[1])) if kind == "prod" else 3e-6
    for threads in (1, 3):
        y, want = _reduce(kind, x, isa, threads), KINDS[kind](v)
        assert (np.abs(y - want) <= rtol * np.abs(want) + 2e-7 * scale).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["i8", "i4"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers_are_exact(isa: str, dtype: str, kind: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(-1000, 1000, shape).astype(dtype)
    for threads in (1, 3):
        np.testing.assert_array_equal(
            _reduce(kind, x, isa, threads),
            getattr(np, kind)(x, axis=1, dtype=dtype)
            if kind in ("sum", "prod")
            else KINDS[kind](x),
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("inner", [1, 16, 5])
def test_long_sums_keep_their_digits(isa: str, inner: int) -> None:
    """One chain of float additions over 300 000 equal terms would be off by 1e-3."""
    x = np.full((1, 300_000, inner), 0.1, np.float32)
    np.testing.assert_allclose(
        _reduce("sum", x, isa), 300_000 * np.float64(np.float32(0.1)), rtol=2e-6
    )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("inner", [1, 3, 16])
def test_nan_and_infinities(isa: str, inner: int) -> None:
    x = np.random.default_rng(1).standard_normal((5, 70, inner)).astype(np.float32)
    x[0, 3], x[1, 69], x[2, 7], x[3] = np.nan, np.inf, -np.inf, -np.inf
    for kind in ("sum", "max", "min", "log_sum_exp", "l1"):
        with np.errstate(invalid="ignore"):
            want = KINDS[kind](x.astype(np.float64))
        np.testing.assert_allclose(_reduce(kind, x, isa), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", isas())
def test_nothing_to_reduce(isa: str) -> None:
    x = np.zeros((3, 0, 4), np.float32)
    np.testing.assert_array_equal(_reduce("sum", x, isa), np.zeros((3, 4)))
    np.testing.assert_array_equal(_reduce("prod", x, isa), np.ones((3, 4)))
    np.testing.assert_array_equal(_reduce("max", x, isa), np.full((3, 4), -np.inf))
    assert (
        kernel_tasks(
            "reduce", {"x": x, "y": x}, {"outer": 0, "n": 3, "inner": 4, "dtype": 1}, isa=isa
        )
        == 0
    )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [*SHAPES, (3, 1000, 1)], ids=str)
@pytest.mark.parametrize("use_min", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_argmax(isa: str, shape: tuple[int, ...], use_min: int, last: int, dtype: str) -> None:
    x = np.random.default_rng(1).integers(-5, 5, shape).astype(dtype)  # few values: many ties
    v = -x if use_min else x
    want = shape[1] - 1 - v[:, ::-1].argmax(1) if last else v.argmax(1)
    for threads in (1, 3):
        y = aligned((shape[0], shape[2]), np.int64)
        y.fill(-1)
        ints = {
            "outer": shape[0],
            "n": shape[1],
            "inner": shape[2],
            "min": use_min,
            "last": last,
            "dtype": 1 if dtype == "f4" else 7,
        }
        run_kernel("argmax", {"x": x, "y": y}, ints, isa=isa, threads=threads)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [5, 200])
def test_argmax_passes_over_nan(isa: str, n: int) -> None:
    x = np.arange(n, dtype=np.float32).reshape(1, n, 1)
    x[0, [1, n - 1]] = np.nan
    y = aligned((1, 1), np.int64)
    run_kernel("argmax", {"x": x, "y": y}, {"outer": 1, "n": n, "inner": 1, "dtype": 1}, isa=isa)
    assert y[0, 0] == n - 2
