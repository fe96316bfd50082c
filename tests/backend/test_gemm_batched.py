"""`matmul`: two run-time operands with arbitrary strides, against float64, on every instruction set
of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf

from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
EPS = 2.0**-23


def _strides(array: npt.NDArray[Any]) -> tuple[int, ...]:
    return tuple(s // 4 for s in array.strides)


def _matmul(
    a: F32, b: F32, isa: str, *, threads: int = 1, alpha: float = 1.0, pad: int = 3, **more: Any
) -> F32:
    """a [B0, B1, M, K], b [B0, B1, K, N] are views (broadcast or transposed axes allowed) of
    contiguous bases.
    """
    b0, b1, m, k = a.shape
    n = b.shape[-1]
    y = aligned((b0, b1, m, n + pad))
    y.fill(np.nan)
    names = ("a_0", "a_1", "a_m", "a_k", "b_0", "b_1", "b_k", "b_n")
    ints = dict(zip(names, (*_strides(a), *_strides(b)), strict=True))
    ints |= {
        "B0": b0,
        "B1": b1,
        "M": m,
        "N": n,
        "K": k,
        "y_0": b1 * m * (n + pad),
        "y_1": m * (n + pad),
        "ldy": n + pad,
        **more.pop("ints", {}),
    }
    operands = {"a": _base(a), "b": _base(b), "y": y, **more.pop("operands", {})}
    run_kernel(
        "matmul",
        operands,
        ints,
        {"alpha": alpha, **more.pop("floats", {})},
        isa=isa,
        threads=threads,
    )
    assert np.isnan(y[..., n:]).all(), "wrote past the row's end"
    return y[..., :n]


def _base(view: F32) -> F32:
    base = view if view.base is None else view.base
    while not (
        isinstance(base, np.ndarray)
        and base.flags.c_contiguous
        and base.ctypes.data == view.ctypes.data
    ):
        assert isinstance(base, np.ndarray) and base.base is not None
        base = base.base
    return base


def _check(y: F32, a: F32, b: F32, alpha: float = 1.0) -> None:
    a64, b64, k = a.astype(np.float64), b.astype(np.float64), a.shape[-1]
    bound = abs(alpha) * EPS / 2 * (5 + np.sqrt(k)) * (np.abs(a64) @ np.abs(b64))
    error = np.abs(y - alpha * (a64 @ b64))
    assert y.shape == error.shape
    assert (error <= bound).all(), (
        f"{(error / np.maximum(bound, 1e-300)).max():.2f} times the bound"
    )


def _operand(seed: int, b0: int, b1: int, rows: int, cols: int, order: str) -> F32:
    """A logical [b0, b1, rows, cols] operand stored as plain, transposed, head-interleaved, spread
    (no unit stride) or broadcast over the batch.
    """
    x = np.random.default_rng(seed)

    def fresh(*shape: int) -> F32:
        return x.standard_normal(shape).astype(np.float32)

    views: dict[str, Callable[[], F32]] = {
        "plain": lambda: fresh(b0, b1, rows, cols),
        "transposed": lambda: fresh(b0, b1, cols, rows).swapaxes(2, 3),
        "heads": lambda: fresh(b0, rows, b1, cols).swapaxes(1, 2),
        "spread": lambda: fresh(b0, b1, rows, cols, 2)[..., 0],
        "broadcast": lambda: np.broadcast_to(fresh(rows, cols), (b0, b1, rows, cols)),
    }
    return views[order]()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("a_order", ["plain", "transposed", "heads", "spread", "broadcast"])
@pytest.mark.parametrize("b_order", ["plain", "transposed", "heads", "spread", "broadcast"])
@pytest.mark.parametrize("shape", [(1, 7, 5), (2, 40, 33), (15, 33, 67)], ids=str)
def test_strides(isa: str, a_order: str, b_order: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = _operand(1, 2, 3, m, k, a_order), _operand(2, 2, 3, k, n, b_order)
    for threads in (1, 4):
        _check(_matmul(a, b, isa, threads=threads, alpha=0.25), a, b, 0.25)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (3, 1, 2),
        (1, 300, 70),
        (1, 611, 29),
        (2, 1030, 40),
        (260, 200, 30),
        (30, 420, 800),
        (128, 128, 64),
        (53, 31, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 5])
def test_one_product_in_parts(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    m, n, k = shape
    for order in ("plain", "transposed"):
        a, b = _operand(1, 1, 1, m, k, order), _operand(2, 1, 1, k, n, order)
        _check(_matmul(a, b, isa, threads=threads), a, b)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [3, 200])
@pytest.mark.parametrize("batch", [1, 3])
def test_parts_of_rows_and_terms_before_an_incomplete_panel(isa: str, n: int, batch: int) -> None:
    a, b = _operand(1, 1, batch, 511, 513, "plain"), _operand(2, 1, batch, 513, n, "plain")
    for threads in (1, 2):
        _check(_matmul(a, b, isa, threads=threads), a, b)


@pytest.mark.parametrize("isa", isas())
def test_rows_at_page_multiples(isa: str) -> None:
    a, b = _operand(1, 1, 2, 20, 1024, "plain"), _operand(2, 1, 2, 1024, 40, "plain")
    _check(_matmul(a, b, isa), a, b)


@pytest.mark.parametrize("isa", isas())
def test_empty_dimensions(isa: str) -> None:
    for m in (2, 30):
        y = _matmul(
            aligned((2, 1, m, 0)),
            aligned((2, 1, 0, 40)),
            isa,
            operands={"bias": np.arange(40, dtype=np.float32)},
        )
        np.testing.assert_array_equal(y, np.broadcast_to(np.arange(40), (2, 1, m, 40)))
    empty = aligned(1)
    for axis in ("B0", "B1", "M", "N"):
        ints = {"B0": 2, "B1": 2, "M": 3, "N": 3, "K": 3, axis: 0}
        assert (
            kernel_tasks(
                "matmul",
                {"a": empty, "b": empty, "y": empty},
                ints,
                {"alpha": 1.0},
                isa=isa,
                threads=2,
            )
            == 0
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("m", [1, 3, 37])
@pytest.mark.parametrize("res_mode", [0, 1, 2])
@pytest.mark.parametrize("own_strides", [False, True])
def test_bias_residual_and_activation(isa: str, m: int, res_mode: int, own_strides: bool) -> None:
    n, k = 43, 21
    a, b = _operand(1, 2, 2, m, k, "plain"), _operand(2, 2, 2, k, n, "plain")
    bias = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    res = (
        np.random.default_rng(4)
        .standard_normal((2, 1, m, n) if own_strides else (2, 2, m, n + 3))
        .astype(np.float32)
    )
    ints = {"act": ACTIVATIONS.index("gelu_erf"), "res_mode": res_mode} | (
        {"r_0": m * n, "r_1": 0, "ldr": n} if own_strides else {}
    )
    y = _matmul(a, b, isa, operands={"bias": bias, "res": res if res_mode else None}, ints=ints)
    r = res[..., :n].astype(np.float64)
    v = a.astype(np.float64) @ b.astype(np.float64) + bias + r * (res_mode == 1)
    np.testing.assert_allclose(
        y, v * 0.5 * (1 + erf(v / np.sqrt(2))) + r * (res_mode == 2), rtol=1e-5, atol=2e-5
    )
