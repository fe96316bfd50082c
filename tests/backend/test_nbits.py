"""`gemm_nbits` and `pack_gemm_nbits` against float64, on every instruction set of this machine.

Outputs are filled with NaN before each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.nbits import Weights, weights
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
EPS = 2.0**-23


def _pack(w: Weights, isa: str, threads: int = 1) -> F32:
    """Of blobs as MatMulNBits has them."""
    kind = 0 if w.zeros is None else DType.F32 if w.zeros.dtype == np.float32 else DType.U8
    params = {"K": w.k, "N": w.n, "bits": w.bits, "block": w.block, "zero_dtype": int(kind)}
    packed = aligned(packed_elements("pack_gemm_nbits", **params))
    zero_pitch = w.blocks if kind == DType.F32 else -(-w.blocks * w.bits // 8) * 8 // w.bits
    places = {
        "w_n": w.blocks * w.block, "w_k": 1, "s_n": w.blocks, "s_k": 1, "z_n": zero_pitch, "z_k": 1,
    }  # fmt: skip
    operands: dict[str, Any] = {
        "w": w.blobs, "scale": w.scales, "zero": w.zeros, "packed": packed,
    }  # fmt: skip
    run_kernel("pack_gemm_nbits", operands, params | places, isa=isa, threads=threads)
    return packed


def _run(
    x: F32, w: Weights, isa: str, *, threads: int = 1, pad: tuple[int, int] = (0, 0), **more: Any
) -> F32:
    m = len(x)
    wide, y = aligned((m, w.k + pad[0])), aligned((m, w.n + pad[1]))
    wide.fill(np.nan)
    y.fill(np.nan)
    wide[:, : w.k] = x
    operands = {"x": wide, "w": _pack(w, isa, threads), "y": y, **more.pop("operands", {})}
    ints = {
        "M": m, "N": w.n, "K": w.k, "ldx": w.k + pad[0], "ldy": w.n + pad[1], "bits": w.bits,
        "block": w.block, "zeros": int(w.zeros is not None), **more.pop("ints", {}),
    }  # fmt: skip
    floats = {"zero": float(1 << (w.bits - 1)), **more.pop("floats", {})}
    run_kernel(
        "gemm_nbits", operands, ints, floats, more.pop("program", None), isa=isa, threads=threads
    )
    assert np.isnan(y[:, w.n :]).all(), "wrote past the row's end"
    return y[:, : w.n]


def _check(y: F32, x: F32, w: Weights, bias: F32 | None = None) -> None:
    x64 = x.astype(np.float64)
    want = x64 @ w.matrix + (0.0 if bias is None else bias.astype(np.float64))
    # what is added up: values without their zero, and zeros times the sum of a block
    size = np.abs(x64) @ w.largest + (0.0 if bias is None else np.abs(bias))
    bound = EPS / 2 * (4 + np.sqrt(min(w.k, 768)) + w.k / 768) * size
    assert y.shape == want.shape
    assert (np.abs(y - want) <= bound).all(), f"{(np.abs(y - want) / bound).max():.2f} times"


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("block", "k", "n"), [(16, 37, 70), (32, 900, 65), (128, 129, 33)])
def test_products_of_every_kind_of_weight(
    isa: str, bits: int, zeros: str, block: int, k: int, n: int
) -> None:
    w = weights(7, k, n, bits, block, zeros)
    bias = _random(3, n)
    for m in (1, 2, 3, 4, 7, 16, 17, 45):
        x = _random(m, m, k)
        for threads in (1, 3):
            more = {"operands": {"bias": bias}}
            _check(_run(x, w, isa, threads=threads, pad=(3, 5), **more), x, w, bias)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("m", [2, 300])
def test_rows_at_page_multiples_over_several_blocks_of_terms(isa: str, m: int) -> None:
    w, x = weights(5, 2048, 100, 4, 256, "none"), _random(1, m, 2048)
    _check(_run(x, w, isa, threads=2), x, w)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("res_mode", [0, 1, 2])
def test_epilogues(isa: str, m: int, res_mode: int) -> None:
    n, k = 77, 130
    w, x, bias = weights(5, k, n, 4, 32, "packed"), _random(1, m, k), _random(2, n)
    res = _random(3, m, n + 2)
    y = _run(
        x, w, isa, operands={"bias": bias, "res": res if res_mode else None},
        ints={"act": ACTIVATIONS.index("silu"), "res_mode": res_mode, "ldr": n + 2},
    )  # fmt: skip
    v, r = x.astype(np.float64) @ w.matrix + bias, res[:, :n].astype(np.float64)
    v = v + r * (res_mode == 1)
    want = v / (1 + np.exp(-v)) + r * (res_mode == 2)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-5)
    program = {"n_in": 2, "regs": 3, "out": 2, "code": [["mul", 2, 0, 1, 0, 0.0]]}
    ints = {"o0_kind": 0, "o0_ld": n + 2}
    y = _run(x, w, isa, operands={"bias": bias, "o0": res}, ints=ints, program=program)
    want = (x.astype(np.float64) @ w.matrix + bias) * res[:, :n]
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("isa", isas())
def test_empty_dimensions(isa: str) -> None:
    bias, w = _random(3, 40), weights(1, 16, 40, 4, 16, "none")
    for m in (3, 20):
        y = aligned((m, 40))
        ints = {"M": m, "N": 40, "K": 0, "ldx": 0, "ldy": 40, "bits": 4, "block": 16}
        run_kernel(
            "gemm_nbits", {"x": bias, "w": bias, "bias": bias, "y": y}, ints, {"zero": 8.0}, isa=isa
        )
        np.testing.assert_array_equal(y, np.broadcast_to(bias, (m, 40)))
    nothing = {"x": bias, "w": _pack(w, isa), "y": bias}
    ints = {"M": 0, "N": 40, "K": 16, "bits": 4, "block": 16}
    assert kernel_tasks("gemm_nbits", nothing, ints, isa=isa) == 0


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("form", "k", "n"), [("kn", 70, 37), ("nk", 70, 37), ("nk", 64, 32)])
@pytest.mark.parametrize("signed", [False, True])
def test_values_in_the_order_of_a_matrix(
    isa: str, bits: int, form: str, k: int, n: int, signed: bool
) -> None:
    """As DequantizeLinear has them, one behind the other, signed or not."""
    w = weights(9, k, n, bits, 32, "packed")
    half = (1 << (bits - 1)) * signed
    turn = slice(None, None, -1 if form == "kn" else 1)
    axes = (0, 1)[turn]
    flat: Any = (w.values[:, :k] ^ np.uint8(half)).transpose(axes).reshape(-1)
    zeros: Any = (w.zero_values ^ np.uint8(half)).transpose(axes).reshape(-1)
    packed = aligned(
        packed_elements("pack_gemm_nbits", K=k, N=n, bits=bits, block=32, zero_dtype=2)
    )
    step = (1, n) if form == "kn" else (w.blocks, 1)
    ints = {
        "K": k, "N": n, "bits": bits, "block": 32, "w_n": 1 if form == "kn" else k,
        "w_k": n if form == "kn" else 1, "s_n": step[0], "s_k": step[1], "z_n": step[0],
        "z_k": step[1], "zero_dtype": int(DType.U8), "is_signed": int(signed),
    }  # fmt: skip
    operands: dict[str, Any] = {
        "w": Weights.together(flat, bits), "zero": Weights.together(zeros, bits),
        "scale": np.ascontiguousarray(w.scales.transpose(axes)), "packed": packed,
    }  # fmt: skip
    run_kernel("pack_gemm_nbits", operands, ints, isa=isa, threads=2)
    np.testing.assert_array_equal(packed, _pack(w, isa))
