"""Few rows by weights of a few bits that stream through shared memory, with norms of rows and
gates, on the host against float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, kernels_of, request, running
from tests.backend.cuda.on_host.launched import launch
from tests.support.cuda.case import poisoned, stored, value
from tests.support.cuda.nbits import packed
from tests.support.nbits import weights
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program

F16, BF16 = DType.F16, DType.BF16
ROUNDOFF = {F16: 2.0**-11, BF16: 2.0**-8}
EPS = 1e-3
#: a * sigmoid(a) * b
GATE = compile_program(
    Expr(2, (Instr("sigmoid", (0,)), Instr("mul", (0, 2)), Instr("mul", (3, 1))), 4), type="f32"
)


def _silu(v: Any) -> Any:
    return v / (1 + np.exp(-v))


def _scaled(v: Any, rms: int) -> tuple[Any, Any]:
    mean = v.mean(-1, keepdims=True) * (1 - rms)
    return mean, 1 / np.sqrt(((v - mean) ** 2).mean(-1, keepdims=True) + EPS)


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "bits", "block", "gated", "norm"),
    [
        (F16, 1, 48, 256, 4, 32, 1, "rms"), (BF16, 3, 32, 264, 4, 32, 0, "layer"),
        (F16, 2, 32, 128, 8, 128, 1, ""), (F16, 40, 32, 96, 2, 16, 1, "layer"),
    ],
)  # fmt: skip
def test_few_bits(
    dtype: DType, m: int, n: int, k: int, bits: int, block: int, gated: int, norm: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """In one kernel, and with 40 rows by launches one after the other."""
    rng, wide = np.random.default_rng(k), n * (1 + gated)
    w = weights(3, k, wide, bits, block, "packed")
    w.scales[:] = value(stored(w.scales / k**0.5, dtype), dtype)
    operands = {"x", "w", "y"} | ({"gamma"} if norm else set())
    operands |= {"beta"} if norm == "layer" else set()
    ints = {
        "M": m, "N": n, "K": k, "ldx": k, "ldy": n, "bits": bits, "block": block, "zeros": 1,
        "scale_dtype": int(dtype), "rms": int(norm == "rms"), "gamma_add": 1, "gated": gated,
    }  # fmt: skip
    program = GATE if gated else None
    r = request("gemm_nbits_norm", dtype, ints, {"eps": EPS}, program, operands)
    x, gamma, beta = (
        stored(rng.standard_normal(s) * a + b, dtype)
        for s, a, b in (((m, k), 1, 0.5), ((k,), 0.1, 0), ((k,), 0.1, 0))
    )
    rows = value(x, dtype).astype(float)
    if norm:
        mean, scale = _scaled(rows, int(norm == "rms"))
        rows = (rows - mean) * scale * (value(gamma, dtype) + 1)
        rows += value(beta, dtype) if norm == "layer" else 0
    want, size = rows @ w.matrix, abs(rows) @ np.abs(w.matrix)
    y = cuda_host.aligned(poisoned(m * n, dtype).reshape(m, n))
    given = {"x": x, "gamma": gamma, "beta": beta, "w": packed(w, dtype)}
    places: dict[str, Any] = {o: cuda_host.aligned(v) for o, v in given.items()}
    kernels = kernels_of(r)
    assert (kernels[0].symbol == "stream_rows") == (m < 9) == (len(kernels) == 1)
    launch(kernels, {**places, "y": y}, tmp_path)
    if gated:
        gate, up = want[:, :n], want[:, n:]
        size = size[:, :n] * abs(up) * 1.1 + abs(_silu(gate)) * size[:, n:]
        want = _silu(gate) * up
    # rows, and between launches weights and halves, are rounded
    bound = ROUNDOFF[dtype] * (np.abs(want) + (1 + 2 * (m > 8)) * size)
    assert (np.abs(value(y, dtype) - want) <= 1.01 * bound).all()


def test_rows_of_a_run() -> None:
    """A step of decoding is one launch, more rows are several."""
    m: DimLike = symbol("m")
    ints: dict[str, DimLike] = {
        "M": m, "N": 4096, "K": 1024, "ldx": 1024, "ldy": 4096, "bits": 4, "block": 32, "rms": 1,
        "scale_dtype": int(F16), "gated": 1,
    }  # fmt: skip
    operands = ("x", "w", "y", "gamma")
    kernels = kernels_of(
        request("gemm_nbits_norm", F16, ints, {"eps": EPS, "zero": 8.0}, GATE, operands)
    )
    for rows, count in ((0, 0), (1, 1), (8, 1), (9, 3), (100, 4)):
        found = [k.symbol for k in running(kernels, m=rows)]
        assert len(found) >= count and (found == ["stream_rows"]) == (count == 1), found
    compile_kernels(running(kernels, m=1), 90)
