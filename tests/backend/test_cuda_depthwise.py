"""The depthwise CUDA template, compiled by the host's compiler and run thread by thread: every division of outputs among threads, odd sizes, edges."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tracea_onnx import registry

#: What the kernel's text needs of CUDA and of the generator, for f32.
_HOST = """
typedef unsigned u32; typedef long long i64; typedef float T;
#define DEV static inline
#define __global__
#define __launch_bounds__(threads)
#define IS_F32 1
static inline float fmaf(float a, float b, float c) { return a * b + c; }
struct float4 { float x, y, z, w; };
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static struct { i64 x; } blockIdx, threadIdx;
template <bool VECTOR> DEV void load_columns(const T* p, int count, float (&v)[8]) {
  for (int k = 0; k < 8; k++) v[k] = VECTOR || k < count ? p[k] : 0.f;
}
DEV void from_float(float& to, float v) { to = v; }
struct Epilogue { int none; };
DEV void finish(const Epilogue&, float (&)[8], int, i64, int, int) {}
#define EPILOGUE_ARGUMENTS 0
#define PARAMETERS const T* x, const T* w, T* y, int N, int IH, int IW, int OH, int OW, int PT, int PL, int C, int weight_pitch, i64 x_cs, i64 x_rs, i64 x_ns, \
  i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
"""
_RUN = """
extern "C" void run(PARAMETERS) {
  const i64 bands = (OH + LINES - 1) / LINES, strips = (OW + COLUMNS - 1) / COLUMNS, threads = N * bands * strips * ((C + 7) / 8);
  for (i64 t = 0; t < (threads + THREADS - 1) / THREADS * THREADS; t++) {
    blockIdx.x = t / THREADS, threadIdx.x = t % THREADS;
    depthwise(x, w, y, N, IH, IW, OH, OW, PT, PL, C, weight_pitch, x_cs, x_rs, x_ns, y_cs, y_rs, y_ns, r_cs, r_rs, r_ns);
  }
}
"""
_SHAPES = ((2, 24, 7, 9), (1, 5, 6, 5), (3, 8, 15, 14), (1, 16, 1, 3), (2, 40, 8, 8))


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (5, 1, 1), (3, 2, 1), (3, 1, 2)])
@pytest.mark.parametrize(("columns", "lines"), [(1, 1), (2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("vector", [1, 0])
def test_every_output_once(tmp_path: Path, kernel: int, stride: int, dilation: int, columns: int, lines: int, vector: int) -> None:
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    sizes = f"KH = {kernel}, KW = {kernel}, SH = {stride}, SW = {stride}, DH = {dilation}, DW = {dilation}, COLUMNS = {columns}, LINES = {lines}, THREADS = 128"
    flags = f"X_VECTOR = {vector}, Y_VECTOR = {vector}, EARLY = 0"
    text = f"{_HOST}constexpr int {sizes};\nconstexpr bool {flags};\n{registry.module('kernels', 'cuda').template('depthwise')}{_RUN}"
    source, library = tmp_path / "depthwise.cc", tmp_path / "depthwise.so"
    source.write_text(text)
    subprocess.run([compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    run = ctypes.CDLL(str(library)).run
    rng, pad = np.random.default_rng(0), kernel // 2 * dilation
    for n, c, h, w in _SHAPES:
        oh, ow = ((d + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for d in (h, w))
        pitch = -(-c // 8) * 8
        x = np.full((n, h, w, pitch), 7, np.float32)  # pad channels hold anything
        x[..., :c] = rng.standard_normal((n, h, w, c))
        weights = np.zeros((kernel * kernel, pitch), np.float32)
        weights[:, :c] = rng.standard_normal((kernel * kernel, c))
        y = np.full((n, oh, ow, pitch), np.nan, np.float32)
        ints = [ctypes.c_int(v) for v in (n, h, w, oh, ow, pad, pad, c, pitch)]
        longs = [ctypes.c_longlong(v) for v in (pitch, w * pitch, h * w * pitch, pitch, ow * pitch, oh * ow * pitch, 0, 0, 0)]
        run(*(ctypes.c_void_p(a.ctypes.data) for a in (x, weights, y)), *ints, *longs)
        padded = np.pad(x[..., :c].astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        taps = [(i, j, padded[:, i * dilation :: stride, j * dilation :: stride][:, :oh, :ow]) for i in range(kernel) for j in range(kernel)]
        want = sum(part * weights[i * kernel + j, :c] for i, j, part in taps)
        np.testing.assert_allclose(y[..., :c], want, atol=1e-4)
