"""Products by weights of 2, 4 or 8 bits, and the packing of these, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gpu.cases.small_gemms import ACTIVATIONS, bounded, drawn, filled
from tests.support.cuda import check as K
from tests.support.cuda.case import ROUNDOFF, Array, Case, Output, plain, stored, value
from tests.support.cuda.nbits import packed
from tests.support.cuda.nbits import packing as packing_of
from tests.support.nbits import Weights, weights
from tracea_onnx.ir.abi import DType

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
Rng = np.random.Generator
#: Rows up to which weights are read as they are; more are multiplied by rounded weights.
_FEW = 32
_EPS = 1e-5


def _rounded(w: Weights, dtype: DType) -> Array:
    """[k, n], as they are dequantised."""
    v = w.values.reshape(w.n, w.blocks, w.block) - w.zero_values[..., None].astype(np.float32)
    whole = (v * w.scales[..., None]).reshape(w.n, -1)[:, : w.k].T
    return value(stored(whole, dtype), dtype)


def product(
    rng: Rng, dtype: DType, m: int, n: int, k: int, bits: int, block: int, zeros: str = "packed",
    *, act: str = "none", res_mode: int = 0, pad: int = 0, bias: bool = True, early: bool = True,
) -> Case:  # fmt: skip
    scale = dtype if block != 64 else F32
    w = weights(int(rng.integers(1 << 30)), k, n, bits, block, zeros)
    w.scales[:] = value(stored(w.scales / np.sqrt(k), scale), scale)
    x, vx = drawn(rng, (m, k), dtype)
    b = rng.standard_normal(-(-n // 32) * 32).astype(np.float32)
    matrix = w.matrix if m <= _FEW and zeros != "float" else _rounded(w, dtype)
    pre, size = vx @ matrix, np.abs(vx) @ np.abs(matrix)
    operands = {"x": filled((m, k + pad), k, x, dtype), "w": packed(w, scale)}
    if bias:
        operands["bias"], pre, size = b, pre + b[:n], size + np.abs(b[:n])
    want = ACTIVATIONS[act](pre)
    if res_mode:
        res, v = drawn(rng, (m, n), dtype)
        operands["res"] = filled((m, n + pad), n, res, dtype)
        want = ACTIVATIONS[act](pre + v) if res_mode == 1 else want + v
        size = size + np.abs(v)
    bound = bounded(want, size, dtype, act == "silu")
    out = Output(dtype, m * (n + pad), (m, n), [n + pad, 1], want, bound)
    ints = {
        "M": m, "N": n, "K": k, "ldx": k + pad, "ldr": n + pad, "ldy": n + pad,
        "act": K.act_index(act), "res_mode": res_mode, "bits": bits, "block": block,
        "zeros": ("none", "packed", "float").index(zeros), "scale_dtype": int(scale),
    }  # fmt: skip
    name = f"nbits {m}x{n}x{k} {bits} bits in {block} {zeros} {act} res{res_mode} pad{pad}"
    constant = frozenset({"w", "bias"} if early else ())
    floats = {"zero": float(1 << (bits - 1)), "p0": 0.0, "p1": 0.0}
    return Case(name, "gemm_nbits", dtype, ints, operands, {"y": out}, floats, constant=constant)


def products(rng: Rng) -> Iterator[Case]:
    for dtype in (F16, BF16, F32):
        for bits in (2, 4, 8):
            for m, n, k, block, zeros in (
                (1, 1, 16, 16, "none"), (1, 131, 67, 16, "packed"), (2, 17, 129, 32, "packed"),
                (7, 64, 1024, 128, "none"), (8, 4096, 2048, 32, "packed"),
                (1, 1000, 4096, 128, "packed"), (9, 33, 640, 64, "packed"),
                (16, 15, 256, 256, "none"), (17, 4500, 520, 32, "none"),
                (31, 130, 96, 32, "packed"), (1, 40, 8192, 32, "none"), (33, 67, 200, 32, "packed"),
                (129, 65, 131, 16, "none"), (0, 65, 128, 32, "none"), (3, 65, 100, 32, "float"),
            ):  # fmt: skip
                yield product(rng, dtype, m, n, k, bits, block, zeros, bias=k % 2 == 0)
        for m in (1, 5, 20, 70):
            yield product(rng, dtype, m, 77, 192, 4, 32, act="silu", res_mode=1, pad=3)
            yield product(rng, dtype, m, 80, 192, 8, 64, act="relu", res_mode=2, early=False)


def normed(rng: Rng) -> Iterator[Case]:
    """Of normalised rows, with and without a gate: one launch for few rows, several for more."""
    for dtype, m, n, k, bits, block, norm, gate in (
        (F16, 1, 2112, 2048, 4, 32, "rms", True), (F16, 1, 3000, 4096, 4, 32, "rms", False),
        (BF16, 1, 4112, 1032, 4, 128, "layer", False), (BF16, 1, 48, 8192, 8, 32, "layer", True),
        (F16, 5, 2128, 1024, 4, 32, "rms", True), (BF16, 8, 160, 512, 2, 16, "", True),
        (F16, 9, 96, 1024, 4, 32, "rms", True), (BF16, 70, 112, 640, 8, 64, "layer", True),
        (F16, 0, 96, 256, 4, 32, "rms", True), (F16, 3, 33, 100, 4, 32, "layer", False),
    ):  # fmt: skip
        wide = n * (1 + gate)
        w = weights(int(rng.integers(1 << 30)), k, wide, bits, block, "packed")
        w.scales[:] = value(stored(w.scales / np.sqrt(k), dtype), dtype)
        (x, rows), (gamma, g), (beta, b) = (drawn(rng, s, dtype, 0.5) for s in ((m, k), (k,), (k,)))
        operands = {
            "x": x,
            "w": packed(w, dtype),
            "bias": np.zeros(-(-wide // 32) * 32, np.float32),
        }
        operands["bias"][:wide] = rng.standard_normal(wide)
        if norm:
            mean = rows.mean(-1, keepdims=True) * (norm == "layer")
            variance = ((rows - mean) ** 2).mean(-1, keepdims=True) if m else 1.0
            rows = (rows - mean) / np.sqrt(variance + _EPS) * (g + 1) + b * (norm == "layer")
            operands |= {"gamma": gamma} | ({"beta": beta} if norm == "layer" else {})
        want = rows @ w.matrix + operands["bias"][:wide]
        size = np.abs(rows) @ np.abs(w.matrix) + np.abs(operands["bias"][:wide])
        if gate:
            own, up = ACTIVATIONS["silu"](want[:, :n]), want[:, n:]
            size = 1.1 * size[:, :n] * np.abs(up) + np.abs(own) * size[:, n:]
            want = own * up
        # rows and, between launches, halves and weights are rounded
        bound = bounded(want, size, dtype, gate) + ROUNDOFF[dtype] * (1 + 2 * (m > 8)) * size
        ints = {
            "M": m, "N": n, "K": k, "ldx": k, "ldy": n, "bits": bits, "block": block, "zeros": 1,
            "scale_dtype": int(dtype), "rms": int(norm == "rms"), "gamma_add": 1,
            "gated": int(gate),
        }  # fmt: skip
        name = f"nbits {m}x{n}x{k} {bits} bits in {block} {norm} {'gated' * gate}"
        out = {"y": Output(dtype, m * n, (m, n), [n, 1], want, bound)}
        constant = frozenset({"w", "bias", "gamma", "beta"})
        floats = {"zero": 0.0, "eps": _EPS}
        program = K.GATE if gate else None
        family = "gemm_nbits_norm"
        yield Case(name, family, dtype, ints, operands, out, floats, program, constant=constant)


def packing(rng: Rng) -> Iterator[Case]:
    for bits in (2, 4, 8):
        for k, n, block in ((16, 1, 16), (67, 131, 16), (130, 33, 32), (520, 16, 128)):
            for zeros in ("none", "packed", "float"):
                w = weights(int(rng.integers(1 << 30)), k, n, bits, block, zeros)
                ints, given = packing_of(w, F16)
                want = {"packed": plain(DType.U8, packed(w, F16), None)}
                name = f"pack {n}x{k} {bits} bits in {block} {zeros}"
                fixed = frozenset(given)
                yield Case(name, "pack_gemm_nbits", F32, ints, given, want, constant=fixed)


FAMILIES = {"nbits": products, "nbits norm": normed, "pack nbits": packing}
