"""`gemm` and `pack_gemm` against float64, on every instruction set of this machine.

Outputs are filled with NaN before each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf

from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
EPS = 2.0**-23


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _pack(
    w: F32,
    isa: str,
    *,
    trans: bool = False,
    scale: F32 | None = None,
    alpha: float = 1.0,
    threads: int = 1,
) -> F32:
    k, n = w.shape[::-1] if trans else w.shape
    packed = aligned(packed_elements("pack_gemm", K=k, N_total=n))
    ints = {"K": k, "N": n, "trans": int(trans), "ldw": w.shape[1], "n0": 0, "N_total": n}
    run_kernel(
        "pack_gemm",
        {"w": w, "scale": scale, "packed": packed},
        ints,
        {"alpha": alpha},
        isa=isa,
        threads=threads,
    )
    return packed


def _poisoned(*shape: int) -> F32:
    y = aligned(shape)
    y.fill(np.nan)
    return y


def _gemm(
    x: F32,
    packed: F32,
    n: int,
    isa: str,
    *,
    bias: F32 | None = None,
    threads: int = 1,
    pad: tuple[int, int] = (0, 0),
    **more: Any,
) -> F32:
    """x is [M, K]; `pad` widens the pitches of x and y; the padding of y must stay NaN."""
    m, k = x.shape
    wide = _poisoned(m, k + pad[0])
    wide[:, :k] = x
    y = _poisoned(m, n + pad[1])
    operands = {"x": wide, "w": packed, "bias": bias, "y": y, **more.pop("operands", {})}
    ints = {"M": m, "N": n, "K": k, "ldx": k + pad[0], "ldy": n + pad[1], **more.pop("ints", {})}
    run_kernel(
        "gemm",
        operands,
        ints,
        more.pop("floats", {}),
        more.pop("program", None),
        isa=isa,
        threads=threads,
    )
    assert np.isnan(y[:, n:]).all(), "wrote past the row's end"
    return y[:, :n]


def _check(y: F32, x: F32, w: F32, bias: F32 | None = None) -> None:
    x64, w64, b64 = (
        x.astype(np.float64),
        w.astype(np.float64),
        np.zeros(w.shape[1]) if bias is None else bias.astype(np.float64),
    )
    error, k = np.abs(y - (x64 @ w64 + b64)), x.shape[1]
    # Higham and Mary's probabilistic bound, sqrt(length) unit roundoffs, for sums kept in blocks of
    # 768 terms.
    bound = (
        EPS / 2 * (4 + np.sqrt(min(k, 768)) + k / 768) * (np.abs(x64) @ np.abs(w64) + np.abs(b64))
    )
    assert y.shape == error.shape
    assert (error <= bound).all(), (
        f"{(error / np.maximum(bound, 1e-300)).max():.2f} times the bound"
    )


SHAPES = [
    (1, 1, 1), (2, 3, 5), (3, 33, 7), (4, 64, 64), (5, 31, 129), (6, 16, 17), (7, 128, 3),
    (12, 96, 40), (13, 97, 31), (14, 32, 32), (15, 65, 100),
    (28, 33, 513), (29, 130, 511), (61, 257, 67), (128, 48, 96), (253, 33, 20), (257, 17, 1031),
    (300, 800, 24),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_product(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    m, n, k = shape
    x, w, bias = _random(1, m, k), _random(2, k, n), _random(3, n)
    packed = _pack(w, isa, threads=threads)
    _check(_gemm(x, packed, n, isa, bias=bias, threads=threads, pad=(3, 5)), x, w, bias)
    _check(_gemm(x, packed, n, isa, threads=threads), x, w)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_few_rows_over_many_panels(isa: str, m: int) -> None:
    x, w, bias = _random(1, m, 1100), _random(2, 1100, 419), _random(3, 419)
    for threads in (1, 2, 7):
        _check(_gemm(x, _pack(w, isa), 419, isa, bias=bias, threads=threads), x, w, bias)


@pytest.mark.parametrize("isa", isas())
def test_long_sums_of_one_sign_keep_the_bound(isa: str) -> None:
    """Without blocks in K the error of all-positive sums would be about 4 eps."""
    x, w = np.abs(_random(1, 20, 4097)), np.abs(_random(2, 4097, 37))
    want = x.astype(np.float64) @ w.astype(np.float64)
    relative = (_gemm(x, _pack(w, isa), 37, isa) - want) / want
    assert np.sqrt(np.mean(relative**2)) < 2 * EPS


@pytest.mark.parametrize("isa", isas())
def test_empty_dimensions(isa: str) -> None:
    bias = _random(3, 40)
    y = _gemm(aligned((3, 0)), aligned(64), 40, isa, bias=bias)
    np.testing.assert_array_equal(y, np.broadcast_to(bias, (3, 40)))
    y = _gemm(aligned((20, 0)), aligned(64), 40, isa)
    np.testing.assert_array_equal(y, np.zeros((20, 40)))
    assert _gemm(aligned((0, 5)), _pack(_random(2, 5, 40), isa), 40, isa).shape == (0, 40)
    assert (
        kernel_tasks("gemm", {"x": bias, "w": bias, "y": bias}, {"M": 4, "N": 0, "K": 3}, isa=isa)
        == 0
    )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("ldx", [1024, 2048])
def test_rows_at_page_multiples(isa: str, ldx: int) -> None:
    """Such rows are copied to scratch first."""
    for k in (ldx, ldx - 7):
        x, w = _random(1, 40, k), _random(2, k, 130)
        _check(_gemm(x, _pack(w, isa), 130, isa, pad=(ldx - k, 0)), x, w)


def _reference_activation(name: str, v: F64, p0: float, p1: float) -> F64:
    sigmoid = 1 / (1 + np.exp(-v))
    table = {
        "none": v,
        "relu": np.maximum(v, 0),
        "clip": np.clip(v, p0, p1),
        "silu": v * sigmoid,
        "tanh": np.tanh(v),
        "gelu_erf": v * 0.5 * (1 + erf(v / np.sqrt(2))),
        "gelu_tanh": v * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        "quick_gelu": v / (1 + np.exp(-p0 * v)),
    }
    return np.asarray(table[name])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "act", ["none", "relu", "clip", "silu", "tanh", "gelu_erf", "gelu_tanh", "quick_gelu"]
)
@pytest.mark.parametrize("res_mode", [0, 1, 2])
@pytest.mark.parametrize("m", [1, 31])
def test_activation_and_residual(isa: str, act: str, res_mode: int, m: int) -> None:
    n, k, p0, p1 = 77, 530, 0.7, 1.5
    x, w, bias, res = (
        _random(1, m, k) / np.float32(16),
        _random(2, k, n),
        _random(3, n),
        _random(4, m, n + 2),
    )
    y = _gemm(
        x, _pack(w, isa), n, isa, bias=bias, operands={"res": res if res_mode else None},
        ints={"act": ACTIVATIONS.index(act), "res_mode": res_mode, "ldr": n + 2},
        floats={"p0": p0, "p1": p1},
    )  # fmt: skip
    v, r = x.astype(np.float64) @ w.astype(np.float64) + bias, res[:, :n].astype(np.float64)
    want = _reference_activation(act, v + r * (res_mode == 1), p0, p1) + r * (res_mode == 2)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("isa", isas())
def test_program_reads_every_kind_of_operand(isa: str) -> None:
    m, n, k = 33, 70, 40
    x, w, bias = _random(1, m, k), _random(2, k, n), _random(3, n)
    full, channel, row, scalar = _random(4, m, n + 1), _random(5, n), _random(6, m), _random(7, 1)
    program = {
        "n_in": 5,
        "regs": 8,
        "out": 7,
        "code": [["fma", 5, 0, 2, 1, 0.0], ["mul", 6, 3, 4, 0, 0.0], ["add", 7, 5, 6, 0, 0.0]],
    }
    ints = {"o0_kind": 0, "o0_ld": n + 1, "o1_kind": 1, "o2_kind": 2, "o3_kind": 3}
    y = _gemm(
        x,
        _pack(w, isa),
        n,
        isa,
        bias=bias,
        operands={"o0": full, "o1": channel, "o2": row, "o3": scalar},
        ints=ints,
        program=program,
    )
    v = x.astype(np.float64) @ w.astype(np.float64) + bias
    np.testing.assert_allclose(
        y, v * channel + full[:, :n] + row[:, None] * scalar[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("isa", isas())
def test_infinity_in_one_row_stays_there(isa: str) -> None:
    x, w = _random(1, 30, 50), _random(2, 50, 45)
    x[17, 3] = np.inf
    y = _gemm(x, _pack(w, isa), 45, isa)
    np.testing.assert_array_equal(y[17], np.where(w[3] > 0, np.inf, -np.inf))
    _check(np.delete(y, 17, 0), np.delete(x, 17, 0), w)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("k,n", [(1, 1), (16, 32), (17, 33), (50, 31), (67, 130)])
def test_transposed_and_scaled_weights(isa: str, k: int, n: int) -> None:
    w, scale = _random(2, k, n), _random(3, n)
    plain = _pack(w * scale * np.float32(0.5), isa)
    np.testing.assert_allclose(_pack(w, isa, scale=scale, alpha=0.5, threads=2), plain, rtol=1e-6)
    np.testing.assert_allclose(
        _pack(np.ascontiguousarray(w.T), isa, trans=True, scale=scale, alpha=0.5), plain, rtol=1e-6
    )
    panels = plain[: -(-n // 32) * k * 32].reshape(-1, k, 32).transpose(1, 0, 2).reshape(k, -1)
    assert not panels[:, n:].any()


@pytest.mark.parametrize("isa", isas())
def test_several_sources_share_one_packed_matrix(isa: str) -> None:
    k, widths = 23, (40, 7, 50)
    parts = [_random(5 + i, k, n) for i, n in enumerate(widths)]
    packed = aligned(packed_elements("pack_gemm", K=k, N_total=sum(widths)))
    start = 0
    for w in parts:
        ints = {
            "K": k,
            "N": w.shape[1],
            "trans": 0,
            "ldw": w.shape[1],
            "n0": start,
            "N_total": sum(widths),
        }
        run_kernel("pack_gemm", {"w": w, "packed": packed}, ints, {"alpha": 1.0}, isa=isa)
        start += w.shape[1]
    x = _random(1, 19, k)
    _check(_gemm(x, packed, sum(widths), isa), x, np.concatenate(parts, axis=1))
