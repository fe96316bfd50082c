"""The depthwise CUDA templates, compiled by the host's compiler and run thread by thread: every
division of outputs among threads, odd sizes, edges.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.cuda_requests import request
from tests.cpp import library
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")

#: What the kernels' texts need of CUDA and of the generator, for f32.
_HOST = """
#include <string.h>
typedef unsigned u32; typedef long long i64; typedef float T;
#define DEV static inline
#define __global__
#define __launch_bounds__(...)
#define IS_F32 1
static inline float fmaf(float a, float b, float c) { return a * b + c; }
static inline int min(int a, int b) { return a < b ? a : b; }
struct float4 { float x, y, z, w; };
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static struct { i64 x; } blockIdx, threadIdx;
DEV void from_float(float& to, float v) { to = v; }
struct Epilogue { int none; };
template <int WIDTH> DEV void finish(const Epilogue&, float (&)[WIDTH], int, i64, int, int) {}
#define EPILOGUE_ARGUMENTS 0
#define BIAS(k) 0.f
#define PARAMETERS const T* x, const T* w, T* y, int N, \\
    int IH, int IW, int OH, int OW, int PT, int PL, \\
    int weight_pitch, int CHANNELS, i64 x_cs, i64 x_rs, i64 x_ns, \\
  i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
"""
_RUN = """
extern "C" void run(PARAMETERS) {
  const i64 bands = (OH + LINES - 1) / LINES, strips = (OW + COLUMNS - 1) / COLUMNS,
      threads = N * bands * strips * ((C + WIDTH - 1) / WIDTH);
  for (i64 t = 0; t < (threads + THREADS - 1) / THREADS * THREADS; t++) {
    blockIdx.x = t / THREADS, threadIdx.x = t % THREADS;
    SYMBOL(x, w, y, N, IH, IW, OH, OW, PT, PL, weight_pitch, CHANNELS, x_cs, x_rs, x_ns, y_cs,
        y_rs, y_ns, r_cs, r_rs, r_ns);
  }
}
"""
_SHAPES = ((2, 7, 9), (1, 6, 5), (3, 15, 14), (1, 1, 3), (2, 8, 8))


def _compiled(
    tmp_path: Path, constants: dict[str, int], flags: dict[str, int], width: int, header: str
) -> Any:
    sizes, truths = (", ".join(f"{k} = {v}" for k, v in d.items()) for d in (constants, flags))
    run = _RUN.replace("SYMBOL", f"conv_depthwise_{header}")
    text = (
        f"{_HOST}constexpr int {sizes}, THREADS = 128, WIDTH = {width};\n"
        f"constexpr bool {truths};\n{cuda.template(f'conv/depthwise/{header}')}{run}"
    )
    return library(tmp_path, "depthwise", text).run


def _check(
    run: Any,
    n: int,
    c: int,
    h: int,
    w: int,
    kernel: int,
    stride: int,
    dilation: int,
    multiple: int = 1,
) -> None:
    rng, pad = np.random.default_rng(0), kernel // 2 * dilation
    oh, ow = ((d + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for d in (h, w))
    pitch, channels = -(-c // 8) * 8, c // multiple
    x = np.full((n, h, w, pitch), 7, np.float32)  # pad channels hold anything
    x[..., :channels] = rng.standard_normal((n, h, w, channels))
    weights = np.zeros((kernel * kernel, pitch), np.float32)
    weights[:, :c] = rng.standard_normal((kernel * kernel, c))
    y = np.full((n, oh, ow, pitch), np.nan, np.float32)
    ints = [ctypes.c_int(v) for v in (n, h, w, oh, ow, pad, pad, pitch, c)]
    longs = [
        ctypes.c_longlong(v)
        for v in (pitch, w * pitch, h * w * pitch, pitch, ow * pitch, oh * ow * pitch, 0, 0, 0)
    ]
    run(*(ctypes.c_void_p(a.ctypes.data) for a in (x, weights, y)), *ints, *longs)
    padded = np.pad(
        x[..., :channels].astype(np.float64).repeat(multiple, -1),
        ((0, 0), (pad, pad), (pad, pad), (0, 0)),
    )
    taps = [
        (i, j, padded[:, i * dilation :: stride, j * dilation :: stride][:, :oh, :ow])
        for i in range(kernel)
        for j in range(kernel)
    ]
    want = sum(part * weights[i * kernel + j, :c] for i, j, part in taps)
    np.testing.assert_allclose(y[..., :c], want, atol=1e-4)
    assert np.isnan(y[..., c:]).all()


def _window(kernel: int, stride: int, dilation: int) -> dict[str, int]:
    return {"KH": kernel, "KW": kernel, "SH": stride, "SW": stride, "DH": dilation, "DW": dilation}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 1, 1), (5, 1, 1), (3, 2, 1), (3, 1, 2)]
)
@pytest.mark.parametrize(("columns", "lines"), [(1, 1), (2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize(
    ("vector", "width", "multiple"),
    [(1, 8, 1), (0, 8, 1), (1, 4, 1), (1, 2, 1), (0, 2, 1), (1, 8, 2), (1, 2, 3)],
)
def test_every_output_once(
    tmp_path: Path,
    kernel: int,
    stride: int,
    dilation: int,
    columns: int,
    lines: int,
    vector: int,
    width: int,
    multiple: int,
) -> None:
    sizes = {
        **_window(kernel, stride, dilation),
        "MULTIPLE": multiple,
        "COLUMNS": columns,
        "LINES": lines,
        "LARGE": 16,
    }
    for c in (24, 5 * multiple):
        flags = {"X_VECTOR": vector, "Y_VECTOR": vector, "EARLY": 0, "TRANSPOSED": 0}
        run = _compiled(tmp_path / str(c), {**sizes, "C": c}, flags, width, "direct")
        for n, h, w in _SHAPES:
            _check(run, n, c, h, w, kernel, stride, dilation, multiple)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "slots"),
    [
        (3, 1, 1, 3),
        (5, 1, 1, 5),
        (3, 2, 1, 2),
        (5, 2, 1, 3),
        (3, 1, 2, 5),
        (1, 3, 1, 1),
        (3, 4, 1, 1),
        (3, 1, 16, 1),
    ],
)
@pytest.mark.parametrize(("columns", "lines"), [(7, 7), (4, 3), (3, 20)])
@pytest.mark.parametrize(
    ("vector", "c", "multiple"), [(1, 24, 1), (0, 5, 1), (1, 24, 2), (1, 15, 3)]
)
def test_strips(
    tmp_path: Path,
    kernel: int,
    stride: int,
    dilation: int,
    slots: int,
    columns: int,
    lines: int,
    vector: int,
    c: int,
    multiple: int,
) -> None:
    """Each output row and column once, whether rows move through the registers or names go round;
    strips of more columns than a word has bits.
    """
    for ahead in {1, slots}:  # the last of these has 33, too many for names
        sizes = {
            **_window(kernel, stride, dilation),
            "MULTIPLE": multiple,
            "COLUMNS": columns,
            "LINES": lines,
            "lines": lines,
            "C": c,
            "AHEAD": ahead,
            "MIN_CTAS": 1,
        }
        flags = {"X_VECTOR": vector, "Y_VECTOR": vector, "EARLY": 0, "RAGGED": 1}
        run = _compiled(tmp_path / str(ahead), sizes, flags, 2, "strips")
        for n, h, w in (*_SHAPES, (1, 2, 50)):
            _check(run, n, c, h, w, kernel, stride, dilation, multiple)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "extra"),
    [(2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (2, 3, 0, 0), (5, 3, 2, 2)],
)
@pytest.mark.parametrize(
    ("vector", "width", "multiple", "c"), [(1, 8, 1, 24), (0, 2, 1, 5), (1, 4, 2, 6)]
)
def test_transposed(
    tmp_path: Path,
    kernel: int,
    stride: int,
    pad: int,
    extra: int,
    vector: int,
    width: int,
    multiple: int,
    c: int,
) -> None:
    """Phases that every tap or no tap meets, what lies outside of the image."""
    sizes = {**_window(kernel, stride, 1), "MULTIPLE": multiple, "COLUMNS": 1, "LINES": 1, "C": c}
    flags = {"X_VECTOR": vector, "Y_VECTOR": vector, "EARLY": 0, "TRANSPOSED": 1}
    run = _compiled(tmp_path, {**sizes, "LARGE": 121}, flags, width, "direct")
    rng, pitch, channels = np.random.default_rng(1), -(-c // 8) * 8, c // multiple
    for n, h, w in _SHAPES:
        oh, ow = ((d - 1) * stride + kernel - 2 * pad + extra for d in (h, w))
        x, weights = (
            np.full((n, h, w, pitch), 7, np.float32),
            np.zeros((kernel * kernel, pitch), np.float32),
        )
        x[..., :channels], weights[:, :c] = (
            rng.standard_normal((n, h, w, channels)),
            rng.standard_normal((kernel * kernel, c)),
        )
        y = np.full((n, oh, ow, pitch), np.nan, np.float32)
        longs = (pitch, w * pitch, h * w * pitch, pitch, ow * pitch, oh * ow * pitch, 0, 0, 0)
        ints = (n, h, w, oh, ow, pad, pad, pitch, c)
        run(
            *(ctypes.c_void_p(a.ctypes.data) for a in (x, weights, y)),
            *map(ctypes.c_int, ints),
            *map(ctypes.c_longlong, longs),
        )
        whole = np.zeros(
            (n, (h - 1) * stride + kernel + extra, (w - 1) * stride + kernel + extra, c)
        )
        source = x[..., :channels].astype(np.float64).repeat(multiple, -1)
        for i in range(kernel):
            for j in range(kernel):
                whole[
                    :, i : i + (h - 1) * stride + 1 : stride, j : j + (w - 1) * stride + 1 : stride
                ] += source * weights[i * kernel + j, :c]
        np.testing.assert_allclose(y[..., :c], whole[:, pad : pad + oh, pad : pad + ow], atol=1e-4)
        assert np.isnan(y[..., c:]).all()


def _request(n: DimLike, c: int, h: int, kernel: int, dtype: DType = DType.F16) -> Request:
    pitch = -(-c // 8) * 8
    ints: dict[str, DimLike] = {
        **_window(kernel, 1, 1),
        "N": n,
        "IC": c,
        "OC": c,
        "G": c,
        "IH": h,
        "IW": h,
        "OH": h,
        "OW": h,
        "PT": kernel // 2,
        "PL": kernel // 2,
    }
    ints |= {
        f"{s}_{p}": v
        for s in "xyr"
        for p, v in (("cs", pitch), ("rs", h * pitch), ("ns", h * h * pitch))
    }
    return request("conv2d_dw", dtype, ints, operands=("x", "w", "bias", "y"), arch=90)


@pytest.mark.parametrize(
    ("c", "h", "kernel"), [(672, 14, 5), (144, 56, 3), (5, 7, 3), (96, 31, 31)]
)
def test_one_kernel_runs_for_each_batch(c: int, h: int, kernel: int) -> None:
    kernels = cuda.emit(_request(symbol("N"), c, h, kernel))
    for n in (1, 2, 7, 8, 33, 400):
        launched = [k for k in kernels if evaluate(k.grid[0], {"N": n}) > 0]
        assert len(launched) == 1
        assert [k.symbol for k in cuda.emit(_request(n, c, h, kernel))] == [launched[0].symbol]
    assert not any(evaluate(k.grid[0], {"N": 0}) for k in kernels)


def test_strips_where_there_is_much_to_do() -> None:
    assert [k.symbol for k in cuda.emit(_request(64, 144, 56, 3))] == ["conv_depthwise_strips"]
    assert [k.symbol for k in cuda.emit(_request(1, 144, 56, 3))] == ["conv_depthwise_direct"]
    # such a window fits into no thread's registers
    assert [k.symbol for k in cuda.emit(_request(64, 96, 64, 31))] == ["conv_depthwise_direct"]


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
def test_a_division_covers_the_image(dtype: DType) -> None:
    part = discovery.module("kernels", "cuda.conv.depthwise.emit")
    for n, c, h, kernel in ((1, 3, 1, 3), (32, 672, 14, 5), (9, 13, 113, 3), (2, 96, 56, 7)):
        tile = part.choose(_request(n, c, h, kernel, dtype), n)
        assert 1 <= tile.columns <= 8 and 1 <= tile.lines <= h and tile.min_ctas >= 1
