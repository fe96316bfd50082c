"""Products of floats rounded to bfloat16 (`gemm_bf16`, `conv2d_bf16` and their packing) against
float64 products of the rounded values, on every instruction set of this machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.backend.test_conv import Case, Problem, check, problem, random_case, reference
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

Array = npt.NDArray[Any]
EPS = 2.0**-23
ISAS = isas(bf16=True)


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _rounded(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def _pack(parts: list[Array], isa: str, *, trans: bool = False, alpha: float = 1.0) -> Array:
    """The weights of several products side by side, of float32 or bfloat16."""
    k, n = parts[0].shape[:: -1 if trans else 1][0], sum(w.shape[0 if trans else 1] for w in parts)
    packed = aligned(packed_elements("pack_gemm_bf16", K=k, N_total=n), np.uint16)
    at = 0
    for w in parts:
        here = w.shape[0 if trans else 1]
        ints = {
            "K": k, "N": here, "trans": int(trans), "ldw": w.shape[1], "n0": at, "N_total": n,
            "w_dtype": int(DType.F32 if w.dtype == np.float32 else DType.BF16),
        }  # fmt: skip
        run_kernel("pack_gemm_bf16", {"w": w, "packed": packed}, ints, {"alpha": alpha}, isa=isa)
        at += here
    return packed


def _gemm(x: Array, packed: Array, n: int, isa: str, **more: Any) -> Array:
    """x is [M, K] in rows with three elements more, y's have five more: these stay as they were."""
    m, k = x.shape
    wide, y = aligned((m, k + 3)), aligned((m, n + 5))
    wide.fill(np.nan)
    y.fill(np.nan)
    wide[:, :k] = x
    operands = {"x": wide, "w": packed, "y": y, **more.pop("operands", {})}
    ints = {"M": m, "N": n, "K": k, "ldx": k + 3, "ldy": n + 5, **more.pop("ints", {})}
    floats, threads = more.pop("floats", {}), more.pop("threads", 1)
    run_kernel(
        "gemm_bf16", operands, ints, floats, more.pop("program", None), isa=isa, threads=threads
    )
    assert np.isnan(y[:, n:]).all(), "wrote past the row's end"
    return y[:, :n]


def _check(y: Array, x: Array, w: Array, more: Array | float = 0.0) -> None:
    """x and w as the kernel rounds them; sums are in any order, so the bound is the plain one."""
    want, k = x @ w + more, x.shape[1]
    bound = EPS * (4 + np.sqrt(k)) * (np.abs(x) @ np.abs(w) + np.abs(more))
    assert y.shape == want.shape
    assert (np.abs(y - want) <= bound).all()


SHAPES = [
    (1, 1, 1), (2, 3, 5), (3, 33, 7), (4, 64, 64), (5, 31, 129), (11, 16, 31), (12, 17, 32),
    (13, 128, 33), (15, 15, 97), (16, 32, 32), (17, 33, 31), (31, 16, 64), (32, 1, 65),
    (33, 97, 63), (47, 130, 40), (61, 257, 67), (128, 48, 96), (257, 17, 1031), (600, 40, 24),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_product(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    m, n, k = shape
    x, w, bias = _random(1, m, k), _random(2, k, n), _random(3, n)
    packed = _pack([w], isa)
    y = _gemm(x, packed, n, isa, operands={"bias": bias}, threads=threads)
    _check(y, _rounded(x), _rounded(w), bias)
    _check(_gemm(x, packed, n, isa, threads=threads), _rounded(x), _rounded(w))


@pytest.mark.parametrize("isa", ISAS)
def test_transposed_scaled_and_merged_weights(isa: str) -> None:
    x = _random(1, 35, 45)
    for widths in ((7, 30, 64), (32, 1), (61,)):
        parts = [_random(n, n, 45) for n in widths]
        w = np.concatenate(parts).T * np.float32(0.37)
        y = _gemm(x, _pack(parts, isa, trans=True, alpha=0.37), sum(widths), isa)
        _check(y, _rounded(x), _rounded(w))


@pytest.mark.parametrize("isa", ISAS)
def test_every_tie_and_special_value_is_rounded_as_in_ml_dtypes(isa: str) -> None:
    """A product by the unit matrix gives x, rounded; denormals may become zeros."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 40 * 32, dtype=np.uint32)
    bits[::3] &= np.uint32(0xFFFF8000)  # ties
    special = [np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1.0, 2.0**-126, 2.0**-133]
    x = bits.view(np.float32).reshape(40, 32)
    x[0, : len(special)] = special
    x[~np.isfinite(x)] = 1.0
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    y = _gemm(x, _pack([np.eye(32, dtype=np.float32)], isa), 32, isa)
    whole = np.isfinite(want).all(axis=1)  # else a sum has inf * 0
    assert whole.sum() > 30
    small = np.abs(want) < 2.0**-126
    np.testing.assert_array_equal(y[whole], np.where(small & (y == 0), 0, want)[whole])


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite(isa: str) -> None:
    x = _random(1, 20, 40)
    x[3, 5], x[4, 6], x[18, 39] = np.nan, np.inf, -np.inf
    w = np.abs(_random(2, 40, 33)) + 0.1
    y = _gemm(x, _pack([w], isa), 33, isa)
    assert np.isnan(y[3]).all() and (y[4] == np.inf).all() and (y[18] == -np.inf).all()
    assert np.isfinite(np.delete(y, [3, 4, 18], axis=0)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_empty_dimensions(isa: str) -> None:
    bias = _random(3, 40)
    y = _gemm(aligned((3, 0)), aligned(64, np.uint16), 40, isa, operands={"bias": bias})
    np.testing.assert_array_equal(y, np.broadcast_to(bias, (3, 40)))
    packed = _pack([_random(2, 5, 40)], isa)
    assert _gemm(aligned((0, 5)), packed, 40, isa).shape == (0, 40)
    empty = {"x": x, "w": packed, "y": x} if (x := aligned((0, 5))) is not None else {}
    assert kernel_tasks("gemm_bf16", empty, {"M": 0, "N": 40, "K": 5}, isa=isa) == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(5, 37, 20), (33, 50, 64)], ids=str)
def test_epilogues(isa: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x, w, bias, res = _random(1, m, k), _random(2, k, n), _random(3, n), _random(4, m, n)
    packed, plain = _pack([w], isa), _rounded(x) @ _rounded(w) + bias
    operands = {"bias": bias, "res": res}
    loose = 1e-4
    for mode, want in ((1, np.maximum(plain + res, 0)), (2, np.maximum(plain, 0) + res)):
        ints = {"act": ACTIVATIONS.index("relu"), "res_mode": mode, "ldr": n}
        y = _gemm(x, packed, n, isa, operands=operands, ints=ints, threads=2)
        np.testing.assert_allclose(y, want, loose, loose)
    ints = {"act": ACTIVATIONS.index("tanh"), "res_mode": 1, "ldr": n}
    y = _gemm(x, packed, n, isa, operands=operands, ints=ints)
    np.testing.assert_allclose(y, np.tanh(plain + res), loose, loose)
    # (acc * o0 + o1) with o0 like y, o1 one for each row
    row = _random(5, m)
    program = {
        "n_in": 3, "regs": 5, "out": 4,
        "code": [["mul", 3, 0, 1, 0, 0.0], ["add", 4, 3, 2, 0, 0.0]],
    }  # fmt: skip
    ints = {"o0_kind": 0, "o0_ld": n, "o1_kind": 2}
    y = _gemm(
        x, packed, n, isa, operands={"bias": bias, "o0": res, "o1": row}, ints=ints,
        program=program, threads=2,
    )  # fmt: skip
    np.testing.assert_allclose(y, plain * res + row[:, None], loose, loose)


def _rounded_problem(case: Case, seed: int) -> Problem:
    """Judged by the products of what the kernel rounds."""
    pr = problem(case, seed)
    factor = np.ones(case.oc, np.float32) if pr.scale is None else pr.scale
    x, w = _rounded(pr.x), _rounded(pr.w * factor[:, None, None, None])
    bias = (pr.b.astype(np.float64) * factor)[:, None, None]
    # sums are in any order
    return replace(
        pr,
        plain=reference(case, x, w) + bias,
        magnitude=2 * (reference(case, np.abs(x), np.abs(w)) + np.abs(bias)),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block", range(4))
def test_random_convolutions(isa: str, block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        case = replace(random_case("conv2d", seed), kind="conv2d_bf16")
        check(case, seed, isa, _rounded_problem(case, seed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 4])
def test_large_convolutions_in_several_blocks_and_tasks(isa: str, threads: int) -> None:
    for ic, oc, side, k in ((19, 70, 33, 3), (96, 33, 24, 1), (260, 20, 9, 3)):
        case = Case(
            kind="conv2d_bf16", n=2, ic=ic, oc=oc, h=side, w=side, k=(k, k), act="relu",
            pads=(k // 2, k // 2, k // 2, k // 2), res_mode=1, threads=threads,
        )  # fmt: skip
        check(case, 1, isa, _rounded_problem(case, 1))
