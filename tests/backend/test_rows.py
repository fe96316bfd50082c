"""`softmax` and `rope` against float64, on every instruction set of this machine.

Outputs are filled with NaN before each run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.floating_point import needs_flags, no_underflow
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _softmax(x: F32, log: bool, isa: str, threads: int = 1) -> F32:
    """Over axis 1 of x [outer, n, inner]."""
    y = aligned(x.shape)
    y.fill(np.nan)
    run_kernel(
        "softmax",
        {"x": x, "y": y},
        dict(zip(("outer", "n", "inner", "log"), (*x.shape, int(log)), strict=True)),
        isa=isa,
        threads=threads,
    )
    return y


def _reference(x: F32, log: bool) -> F64:
    v = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        v = v - v.max(1, keepdims=True)
        total = np.exp(v).sum(1, keepdims=True)
        return np.asarray(v - np.log(total) if log else np.exp(v) / total)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (7, 3, 1),
        (5, 16, 1),
        (9, 17, 1),
        (4, 31, 1),
        (3, 128, 1),
        (2, 1000, 1),
        (2, 5, 3),
        (3, 7, 16),
        (2, 33, 37),
        (1, 300, 64),
    ],
    ids=str,
)
def test_softmax(isa: str, log: bool, shape: tuple[int, ...]) -> None:
    x = 5 * _random(1, *shape)
    for threads in (1, 3):
        np.testing.assert_allclose(
            _softmax(x, log, isa, threads),
            _reference(x, log),
            rtol=3e-6,
            atol=2e-6 if log else 1e-7,
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("inner", [1, 5, 16])
def test_softmax_of_extremes(isa: str, inner: int) -> None:
    """Large values do not overflow, -inf gives 0; rows with NaN, with +inf or only -inf are NaN."""
    x = _random(1, 6, 40, inner)
    x[0] += 1e4
    x[1, :30] = -np.inf
    x[2] = -np.inf
    x[3, 7] = np.nan
    x[4, 39] = np.inf
    x[5, 3:9] = np.finfo(np.float32).min
    for log in (False, True):
        y, want = _softmax(x, log, isa), _reference(x, log)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
        np.testing.assert_allclose(y, want, rtol=3e-6, atol=2e-6)
    assert (_softmax(x, False, isa)[1, :30] == 0).all()


@needs_flags
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("inner", [1, 5, 16])
def test_softmax_of_masked_and_far_elements_makes_no_denormals(isa: str, inner: int) -> None:
    """Many processors take 150 clocks for a product that is one."""
    x = _random(1, 4, 133, inner)
    x[0] *= 60
    x[1, 5:] -= 1e4
    x[2, :9] = -np.inf
    x[3] = np.linspace(0, -120, 133, dtype=np.float32)[:, None]
    with no_underflow():
        y = _softmax(x, False, isa)
    np.testing.assert_allclose(y, _reference(x, False), rtol=3e-5, atol=1e-7)


@pytest.mark.parametrize("isa", isas())
def test_softmax_of_nothing(isa: str) -> None:
    empty = aligned(1)
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
        ints: dict[str, int] = dict(zip(("outer", "n", "inner"), shape, strict=True))
        assert kernel_tasks("softmax", {"x": empty, "y": empty}, ints, isa=isa) == 0


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("d,rot", [(64, 64), (40, 26), (7, 4), (2, 2)])
def test_rope(isa: str, interleaved: int, full: int, d: int, rot: int) -> None:
    b, s, h, half = 2, 5, 3, rot // 2
    x = _random(1, b, s, h + 1, d)
    cos, sin = _random(2, b, s, rot if full else half), _random(3, b, s, rot if full else half)
    y = aligned((b, h, s, d))
    y.fill(np.nan)
    row = cos.shape[-1]
    ints = {"c_b": s * row, "c_s": row, "interleaved": interleaved, "full": full}
    ints |= {
        "B": b,
        "S": s,
        "H": h,
        "D": d,
        "rot": rot,
        "x_b": s * (h + 1) * d,
        "x_s": (h + 1) * d,
        "x_h": d,
        "y_b": h * s * d,
        "y_s": d,
        "y_h": s * d,
    }
    for threads in (1, 2):
        run_kernel("rope", {"x": x, "cos": cos, "sin": sin, "y": y}, ints, isa=isa, threads=threads)
        x64 = x[:, :, :h].transpose(0, 2, 1, 3).astype(np.float64)
        first, second = (
            (slice(0, rot, 2), slice(1, rot, 2))
            if interleaved
            else (slice(0, half), slice(half, rot))
        )
        c, sn = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
        other = slice(half, rot) if full else slice(0, half)
        want = x64.copy()
        want[..., first] = x64[..., first] * c[..., :half] - x64[..., second] * sn[..., :half]
        want[..., second] = x64[..., second] * c[..., other] + x64[..., first] * sn[..., other]
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", isas())
def test_rope_with_shared_positions(isa: str) -> None:
    x, cos, sin = _random(1, 3, 4, 1, 8), _random(2, 4, 4), _random(3, 4, 4)
    y = aligned(x.shape)
    ints = {
        "B": 3,
        "S": 4,
        "H": 1,
        "D": 8,
        "rot": 8,
        "x_b": 32,
        "x_s": 8,
        "x_h": 8,
        "y_b": 32,
        "y_s": 8,
        "y_h": 8,
        "c_b": 0,
        "c_s": 4,
    }
    run_kernel("rope", {"x": x, "cos": cos, "sin": sin, "y": y}, ints, isa=isa)
    c, s = cos[None, :, None], sin[None, :, None]
    want = np.concatenate([x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c + x[..., :4] * s], -1)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
