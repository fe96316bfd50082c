"""`gemm_int8`, `conv2d_int8` and `conv2d_int8_dw` with their packing, against exact integers and
float64, on every instruction set of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support import int8_cases
from tests.support.int8_cases import F32, I8, I32, U8, Array, Case, gemm, sizes, some_bytes
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.kernel_families import packed_elements
from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel


def check(case: Case, isa: str, seed: int = 0) -> None:
    run = partial(run_kernel, isa=isa, threads=case.threads)
    int8_cases.check(case, run, packed_elements, seed)


SHAPES = [
    (1, 1, 1), (2, 3, 5), (3, 33, 7), (4, 64, 64), (5, 31, 129), (6, 16, 17), (7, 128, 3),
    (13, 97, 31), (14, 32, 32), (15, 65, 100), (28, 33, 513), (29, 130, 511), (61, 257, 67),
    (257, 17, 1031), (600, 40, 300), (16, 31, 64), (17, 32, 128), (33, 40, 191),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas(int8=True))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_product(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    for seed, (x, w, y, zero) in enumerate([
        (U8, I8, U8, "none"), (I8, I8, I8, "none"), (U8, U8, U8, "each"), (I8, U8, I8, "same"),
        (U8, I8, F32, "same"), (I8, I8, I32, "each"), (U8, U8, I32, "none"),
    ]):  # fmt: skip
        case = gemm(*shape, x=x, wt=w, y=y, w_zero=zero, spread=seed % 3, threads=threads,
                    each_scale=bool(seed % 2), bias=seed != 3, x_zero=seed != 2)  # fmt: skip
        check(case, isa, seed)
        check(replace(case, exact=False), isa, seed)


@pytest.mark.parametrize("isa", isas(int8=True))
@pytest.mark.parametrize("y", [U8, I8, F32])
@pytest.mark.parametrize("m", [1, 31])
def test_activation_and_residual(isa: str, y: DType, m: int) -> None:
    seed = 0
    for act in ("none", "relu", "clip", "silu", "gelu_erf"):
        for res, mode in ((None, 0), (F32, 1), (U8, 1), (I8, 2), (F32, 2)):
            for middle in (None, U8, I8):
                seed += 1
                case = gemm(m, 77, 130, y=y, act=act, res=res, mode=mode, middle=middle, spread=1)
                check(case, isa, seed)


CONVOLUTIONS = [
    Case("conv2d_int8", h=31, w=33, ic=3, oc=64, k=(7, 7), s=(2, 2), pads=(3, 3, 3, 3), act="relu"),
    Case("conv2d_int8", n=2, h=9, w=7, ic=64, oc=70, k=(3, 3), pads=(1, 1, 1, 1), x=I8, y=I8),
    Case("conv2d_int8", n=2, h=9, w=7, ic=16, oc=33, x=I8, spread=1, threads=3),
    Case("conv2d_int8", n=3, h=5, w=6, ic=20, oc=40, wt=U8, w_zero="each", threads=3),
    Case("conv2d_int8", h=14, w=14, ic=64, oc=96, res=U8, mode=1, act="relu", middle=U8),
    Case("conv2d_int8", h=14, w=13, ic=17, oc=5, k=(3, 2), s=(2, 1), d=(1, 2), pads=(1, 2, 0, 1)),
    Case("conv2d_int8", h=9, w=9, ic=24, oc=40, g=8, k=(3, 3), pads=(1, 1, 1, 1), spread=2),
    Case("conv2d_int8", h=8, w=9, ic=24, oc=8, g=2, x=I8, wt=U8, w_zero="same", y=I32),
    Case("conv2d_int8", h=2, w=2, ic=8, oc=8, k=(5, 5), pads=(4, 4, 4, 4), y=F32, res=F32, mode=2),
    Case("conv2d_int8", h=7, w=7, ic=300, oc=130, k=(3, 3), pads=(1, 1, 1, 1), threads=4),
    Case("conv2d_int8", h=1, w=1, ic=5, oc=3, k=(3, 3), s=(9, 9), pads=(1, 1, 1, 1)),
    Case(
        "conv2d_int8", n=2, h=8, w=8, ic=48, oc=24, s=(2, 2), res=I8, mode=1, act="silu", spread=3
    ),
    Case("conv2d_int8", h=12, w=700, ic=32, oc=16, k=(3, 3), pads=(1, 1, 1, 1), threads=3),
]


@pytest.mark.parametrize("isa", isas(int8=True))
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: Case, isa: str) -> None:
    check(case, isa)
    check(replace(case, exact=False, x=I8 if case.x == U8 else U8), isa, 1)


DEPTHWISE = [
    Case("conv2d_int8_dw", h=14, w=14, ic=32, k=(3, 3), pads=(1, 1, 1, 1), act="relu"),
    Case("conv2d_int8_dw", n=2, h=15, w=13, ic=96, k=(3, 3), s=(2, 2), pads=(1, 1, 1, 1), x=I8),
    Case("conv2d_int8_dw", h=9, w=20, ic=37, k=(5, 5), pads=(2, 2, 2, 2), wt=U8, w_zero="each"),
    Case("conv2d_int8_dw", h=9, w=7, ic=7, k=(5, 5), s=(2, 2), pads=(1, 1, 2, 2), y=I32, threads=3),
    Case("conv2d_int8_dw", h=9, w=11, ic=40, k=(3, 1), d=(2, 1), x=I8, wt=U8, w_zero="same"),
    Case("conv2d_int8_dw", h=7, w=7, ic=65, k=(7, 7), pads=(3, 3, 3, 3), y=I8, res=U8, mode=1),
    Case("conv2d_int8_dw", h=4, w=4, ic=130, k=(4, 4), s=(4, 4), y=F32, spread=3, act="silu"),
    Case("conv2d_int8_dw", h=12, w=1, ic=64, k=(1, 3), pads=(0, 1, 0, 1), wt=U8, threads=3),
    Case("conv2d_int8_dw", h=112, w=112, ic=32, k=(3, 3), pads=(1, 1, 1, 1), threads=3),
]


@pytest.mark.parametrize("isa", isas(int8=True))
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise(case: Case, isa: str) -> None:
    case = replace(case, oc=case.ic, g=case.ic)
    check(case, isa)
    check(replace(case, exact=False, x=I8 if case.x == U8 else U8), isa, 1)


def _plain(isa: str, x: Array, w: Array, y: Array, more: Mapping[str, Any], **ints: int) -> None:
    m, k = x.shape
    n = w.shape[1]
    packed = aligned(packed_elements("pack_gemm_int8", K=k, N_total=n), np.int8)
    shape = {"K": k, "N": n, "ldw": n, "N_total": n, "w_dtype": I8}
    run_kernel("pack_gemm_int8", {"w": w, "packed": packed}, shape, isa=isa)
    sizes = {"M": m, "N": n, "K": k, "ldx": k, "ldy": n, "ldr": n, "w_scales": 1, "w_zeros": 1}
    types = {"x_dtype": U8 if x.dtype == np.uint8 else I8, "w_dtype": I8}
    operands = {"x": x, "w": packed, "y": y, **more}
    program = operands.pop("program", None)
    run_kernel("gemm_int8", operands, {**sizes, **types, **ints}, program=program, isa=isa)


@pytest.mark.parametrize("isa", isas(int8=True))
def test_sums_do_not_saturate(isa: str) -> None:
    """Pairs of the largest products do not fit I16."""
    for x in (np.full((5, 515), 255, np.uint8), np.full((5, 515), -128, np.int8)):
        for value in (-128, 127):
            y = aligned((5, 40), np.int32)
            _plain(isa, x, np.full((515, 40), value, np.int8), y, {}, y_dtype=I32)
            np.testing.assert_array_equal(y, int(x[0, 0]) * value * 515)


@pytest.mark.parametrize("isa", isas(int8=True))
def test_ties_go_to_even_and_ends_saturate(isa: str) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(256, 1)
    y = aligned((256, 1), np.int8)
    scales = {"y_scale": np.array([2.0], np.float32), "y_zero": np.array([3], np.int8)}
    _plain(isa, x, np.array([[1]], np.int8), y, scales, y_dtype=I8)
    want = np.clip(np.rint(np.arange(256) / 2) + 3, -128, 127)
    np.testing.assert_array_equal(y[:, 0], want)
    assert want[1] == 3 and want[3] == 5 and want[-1] == 127
    _plain(isa, x, np.array([[-128]], np.int8), y, {}, y_dtype=I8)
    np.testing.assert_array_equal(y[:, 0], np.maximum(np.arange(256) * -128, -128))


@pytest.mark.parametrize("isa", isas(int8=True))
def test_results_that_are_no_numbers_are_the_smallest(isa: str) -> None:
    x = np.ones((3, 4), np.uint8)
    y = aligned((3, 20), np.int8)
    bias = np.full(20, np.nan, np.float32)
    _plain(isa, x, np.ones((4, 20), np.int8), y, {"bias": bias}, y_dtype=I8)
    np.testing.assert_array_equal(y, -128)


@pytest.mark.parametrize("isa", isas(int8=True))
def test_program_reads_every_kind_of_operand(isa: str) -> None:
    rng = np.random.default_rng(5)
    m, n, k = 33, 70, 40
    x, w = some_bytes(rng, U8, m, k), some_bytes(rng, I8, k, n)
    full, channel, row, scalar = (
        rng.standard_normal(s).astype(np.float32) for s in ((m, n), (n,), (m,), (1,))
    )
    code = [["fma", 5, 0, 2, 1, 0.0], ["mul", 6, 3, 4, 0, 0.0], ["add", 7, 5, 6, 0, 0.0]]
    program = {"n_in": 5, "regs": 8, "out": 7, "code": code}
    more = {
        "o0": full, "o1": channel, "o2": row, "o3": scalar, "program": program,
        "x_scale": np.array([2**-10], np.float32),
    }  # fmt: skip
    kinds = {"o0_kind": 0, "o0_ld": n, "o1_kind": 1, "o2_kind": 2, "o3_kind": 3}
    y = aligned((m, n))
    _plain(isa, x, w, y, more, y_dtype=F32, **kinds)
    v = x.astype(np.int64) @ w.astype(np.int64) / 1024
    np.testing.assert_allclose(y, v * channel + full + row[:, None] * scalar, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", isas(int8=True))
def test_several_sources_share_one_packed_matrix(isa: str) -> None:
    rng = np.random.default_rng(6)
    k, widths = 23, (40, 7, 50)
    parts = [some_bytes(rng, I8, k, n) for n in widths]
    total, start = sum(widths), 0
    packed = aligned(packed_elements("pack_gemm_int8", K=k, N_total=total), np.int8)
    for w in parts:
        shape = {"K": k, "N": w.shape[1], "ldw": w.shape[1], "n0": start, "N_total": total}
        run_kernel("pack_gemm_int8", {"w": w, "packed": packed}, {**shape, "w_dtype": I8}, isa=isa)
        start += w.shape[1]
    x, y = some_bytes(rng, I8, 19, k), aligned((19, total), np.int32)
    ints = {"M": 19, "N": total, "K": k, "ldx": k, "ldy": total, "x_dtype": I8, "w_dtype": I8,
            "y_dtype": I32, "w_scales": 1, "w_zeros": 1}  # fmt: skip
    zero = np.array([7], np.int8)
    run_kernel("gemm_int8", {"x": x, "w": packed, "x_zero": zero, "y": y}, ints, isa=isa)
    whole = np.concatenate(parts, axis=1).astype(np.int64)
    np.testing.assert_array_equal(y, (x.astype(np.int64) - 7) @ whole)


@pytest.mark.parametrize("isa", isas(int8=True))
def test_empty_dimensions(isa: str) -> None:
    y = aligned((3, 40), np.int32)
    y.fill(9)
    _plain(isa, np.zeros((3, 0), np.uint8), np.zeros((0, 40), np.int8), y, {}, y_dtype=I32)
    assert not y.any()
    for m, n in ((0, 5), (4, 0)):
        buffers = {"x": y, "w": y, "y": y}
        assert kernel_tasks("gemm_int8", buffers, {"M": m, "N": n, "K": 3}, isa=isa) == 0
    for kind in ("conv2d_int8", "conv2d_int8_dw"):
        given = sizes(Case(kind, h=3, w=3, ic=4, oc=4, g=4, k=(3, 3)))
        assert kernel_tasks(kind, {"x": y, "w": y, "y": y}, {**given, "N": 0}, isa=isa) == 0


@pytest.mark.parametrize("isa", isas(int8=True))
@pytest.mark.parametrize("n", [0, 1, 15, 17, 1023, 1024, 70001])
def test_dynamic_quantisation(n: int, isa: str) -> None:
    rng = np.random.default_rng(n)
    draws = rng.standard_normal(n).astype(np.float32)
    ties = np.arange(n, dtype=np.float32) % 511 / 2  # of a scale of 1
    for x in (draws, draws + 9, -np.abs(draws), draws * np.float32(1e-39), draws * 0, ties):
        zero = np.float32(0)
        low, high = np.minimum(zero, x.min(initial=0)), np.maximum(zero, x.max(initial=0))
        scale = np.float32(1) if low == high else (high - low) / np.float32(255)
        at = np.rint(np.clip(zero - low / scale, 0, 255))
        want = np.clip(np.rint(x / scale) + at, 0, 255)
        threads, ints = n % 3 + 1, {"n": n, "pieces": 64}
        held, ends = aligned(max(n, 1)), aligned((2, 64))
        held[:n] = x
        y, made = aligned(n + 1, np.uint8), {"scale": aligned(1), "zero": aligned(1, np.uint8)}
        y.fill(7)
        run_kernel("ends", {"x": held, "y": ends}, ints, isa=isa, threads=threads)
        operands = {"x": held, "ends": ends, "y": y, **made}
        run_kernel("quantise_dynamic", operands, ints, isa=isa, threads=threads)
        np.testing.assert_array_equal(y[:n], want)
        assert (made["scale"][0], made["zero"][0], y[n]) == (scale, at, 7)
