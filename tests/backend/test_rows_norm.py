"""`layernorm`, `groupnorm` and `groupnorm_nhwc` against float64, on every instruction set of this
machine.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit

from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.plan.kernel_families import channel_pitch
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _poisoned(*shape: int) -> F32:
    y = aligned(shape)
    y.fill(np.nan)
    return y


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 64, 100, 768, 2049, 5003])
def test_layernorm_sizes(isa: str, n: int) -> None:
    x, gamma, beta = _random(1, 5, n) + 3, _random(2, n), _random(3, n)
    for threads in (1, 4):
        y = _poisoned(5, n)
        run_kernel(
            "layernorm",
            {"x": x, "gamma": gamma, "beta": beta, "y": y},
            {"rows": 5, "N": n},
            {"eps": 1e-5},
            isa=isa,
            threads=threads,
        )
        v = x.astype(np.float64)
        want = (v - v.mean(1, keepdims=True)) / np.sqrt(
            v.var(1, keepdims=True) + np.float32(1e-5)
        ) * gamma + beta
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("operands", list(product([0, 1], repeat=5)), ids=str)
@pytest.mark.parametrize("rms,gamma_add", [(0, 0), (1, 0), (1, 1), (0, 1)])
def test_layernorm_operands(isa: str, operands: tuple[int, ...], rms: int, gamma_add: int) -> None:
    rows, n = 3, 83
    arrays = {
        "res": _random(2, rows, n),
        "xbias": _random(3, n),
        "gamma": _random(4, n),
        "beta": _random(5, n),
        "skip": _poisoned(rows, n),
    }
    given = {k: a for (k, a), used in zip(arrays.items(), operands, strict=True) if used}
    x, y = _random(1, rows, n), _poisoned(rows, n)
    run_kernel(
        "layernorm",
        {"x": x, "y": y, **given},
        {"rows": rows, "N": n, "rms": rms, "gamma_add": gamma_add},
        {"eps": 1e-3},
        isa=isa,
    )
    s = x.astype(np.float64) + given.get("res", 0.0) + given.get("xbias", 0.0)
    mean = 0 if rms else s.mean(1, keepdims=True)
    want = (s - mean) / np.sqrt(np.mean((s - mean) ** 2, 1, keepdims=True) + 1e-3)
    want = want * (given["gamma"] + gamma_add if "gamma" in given else 1.0) + (
        given["beta"] if "beta" in given and not rms else 0.0
    )
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=1e-5)
    if "skip" in given:
        np.testing.assert_allclose(given["skip"], s, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [1, 16, 83])
def test_layernorm_of_a_sum(isa: str, n: int) -> None:
    """Rows looked up (one index from the end), broadcast rows, and two tensors side by side along
    the inner axis.
    """
    outer, inner, cut = 2, 5, 2
    table, shared, left, right = (
        _random(1, 7, n),
        _random(2, inner, n),
        _random(3, outer, cut, n),
        _random(4, outer, inner - cut, n),
    )
    idx = np.random.default_rng(5).integers(0, 7, (outer, inner)).astype(np.int32)
    idx[1, 2] = -3
    y, skip = _poisoned(outer, inner, n), _poisoned(outer, inner, n)
    ints = {
        "outer": outer, "inner": inner, "N": n, "x0_o": inner, "x0_i": 1, "x0_ld": n, "x0_n": 7,
        "x0_hi": inner, "i0_dtype": 6, "x1_i": n, "x1_hi": inner,
        "x2_o": cut * n, "x2_i": n, "x2_hi": cut, "x3_o": (inner - cut) * n, "x3_i": n,
        "x3_lo": cut, "x3_hi": inner,
    }  # fmt: skip
    operands = {"x0": table, "i0": idx, "x1": shared, "x2": left, "x3": right, "y": y, "skip": skip}
    run_kernel("layernorm_sum", operands, ints, {"eps": 1e-5}, isa=isa, threads=2)
    s = table[idx].astype(np.float64) + shared + np.concatenate([left, right], 1)
    np.testing.assert_allclose(skip, s, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        y,
        (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5),
        rtol=1e-4,
        atol=2e-4,
    )


@pytest.mark.parametrize("isa", isas())
def test_layernorm_keeps_digits_under_a_large_mean(isa: str) -> None:
    """The one-pass formula E[x^2] - E[x]^2 would lose every digit here."""
    x = (_random(1, 4, 768) + 1000).astype(np.float32)
    y = _poisoned(4, 768)
    run_kernel("layernorm", {"x": x, "y": y}, {"rows": 4, "N": 768}, {"eps": 0.0}, isa=isa)
    v = x.astype(np.float64)
    np.testing.assert_allclose(
        y, (v - v.mean(1, keepdims=True)) / v.std(1, keepdims=True), atol=2e-4
    )


@pytest.mark.parametrize("isa", isas())
def test_layernorm_of_equal_values_is_beta(isa: str) -> None:
    """One unit in the mean's last place would be hundreds of them in the result."""
    values, n = np.float32(1) + _random(1, 40, 1) * np.float32(3), 69
    x, y = aligned((40, n)), _poisoned(40, n)
    x[:] = values
    beta = _random(2, n)
    run_kernel(
        "layernorm", {"x": x, "beta": beta, "y": y}, {"rows": 40, "N": n}, {"eps": 1e-5}, isa=isa
    )
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (40, n)))


@pytest.mark.parametrize("isa", isas())
def test_nan_stays_in_its_row(isa: str) -> None:
    x, y = _random(1, 3, 50), _poisoned(3, 50)
    x[1, 49] = np.nan
    run_kernel("layernorm", {"x": x, "y": y}, {"rows": 3, "N": 50}, {"eps": 1e-5}, isa=isa)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
    assert kernel_tasks("layernorm", {"x": x, "y": y}, {"rows": 0, "N": 50}, isa=isa) == 0


def _group_reference(
    x: F32, groups: int, gamma: F32 | None, beta: F32 | None, eps: float, silu: bool
) -> F64:
    """x [B, C, inner]."""
    b, c, inner = x.shape
    v = x.astype(np.float64).reshape(b, groups, -1)
    v = ((v - v.mean(2, keepdims=True)) / np.sqrt(v.var(2, keepdims=True) + eps)).reshape(
        b, c, inner
    )
    v = v * (1.0 if gamma is None else gamma[:, None]) + (0.0 if beta is None else beta[:, None])
    return np.asarray(v * expit(v) if silu else v)


# B, C, G, inner
GROUPS = [
    (1, 1, 1, 2),
    (2, 6, 3, 35),
    (1, 32, 32, 49),
    (3, 40, 8, 16),
    (1, 48, 1, 100),
    (2, 128, 4, 30),
    (1, 66, 2, 2501),
]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", GROUPS, ids=str)
@pytest.mark.parametrize("affine", [False, True])
def test_groupnorm(isa: str, shape: tuple[int, int, int, int], affine: bool) -> None:
    b, c, g, inner = shape
    x, gamma, beta = (
        _random(1, b, c, inner) + 2,
        _random(2, c) if affine else None,
        _random(3, c) if affine else None,
    )
    ints = {
        "B": b,
        "C": c,
        "G": g,
        "inner": inner,
        "act": ACTIVATIONS.index("silu" if affine else "none"),
    }
    for threads in (1, 5):
        y = _poisoned(b, c, inner)
        run_kernel(
            "groupnorm",
            {"x": x, "gamma": gamma, "beta": beta, "y": y},
            ints,
            {"eps": 1e-4},
            isa=isa,
            threads=threads,
        )
        np.testing.assert_allclose(
            y, _group_reference(x, g, gamma, beta, 1e-4, affine), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 2, 1),
        (2, 6, 3, 5, 7),
        (1, 32, 32, 7, 7),
        (3, 40, 8, 4, 4),
        (2, 128, 4, 6, 5),
        (1, 320, 32, 9, 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("affine", [False, True])
def test_groupnorm_channels_last(isa: str, shape: tuple[int, ...], affine: bool) -> None:
    n, c, g, h, w = shape
    cs = max(16, channel_pitch(c))
    x, gamma, beta = (
        _random(1, n, c, h * w) + 2,
        _random(2, c) if affine else None,
        _random(3, c) if affine else None,
    )
    stored = _poisoned(n, h, w + 1, cs)
    stored[:, :, :w, :c] = x.reshape(n, c, h, w).transpose(0, 2, 3, 1)
    ints = {
        "N": n,
        "C": c,
        "G": g,
        "H": h,
        "W": w,
        "act": ACTIVATIONS.index("silu" if affine else "none"),
    }
    ints |= {
        f"{t}_{p}": v
        for t in "xy"
        for p, v in (("cs", cs), ("rs", (w + 1) * cs), ("ns", h * (w + 1) * cs))
    }
    for threads in (1, 4):
        y = _poisoned(n, h, w + 1, cs)
        run_kernel(
            "groupnorm_nhwc",
            {"x": stored, "gamma": gamma, "beta": beta, "y": y},
            ints,
            {"eps": 1e-4},
            isa=isa,
            threads=threads,
        )
        want = (
            _group_reference(x, g, gamma, beta, 1e-4, affine)
            .reshape(n, c, h, w)
            .transpose(0, 2, 3, 1)
        )
        np.testing.assert_allclose(y[:, :, :w, :c], want, rtol=2e-5, atol=2e-5)
        assert np.isnan(y[:, :, w:]).all()
