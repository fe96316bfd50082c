"""Runs the text of CUDA kernels of f32 on the host: the host's compiler, a thread for each thread
of a block, one block after the other. Of tensor cores m16n8k16 is emulated; clusters are not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.cpp import library
from tracea_onnx.codegen.kernel_request import (
    FaultWord,
    Float32,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Words,
)
from tracea_onnx.ir.dims import evaluate
from tracea_onnx.support import discovery

Array = npt.NDArray[Any]
_templates = discovery.module("kernels", "cuda.common.templates")
_HOST = """
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's functions alone: what C++ adds takes long to read
#include <math.h>
#include <pthread.h>
#include <string.h>
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900
struct float4 { float x, y, z, w; } __attribute__((may_alias));
struct float2 { float x, y; } __attribute__((may_alias));
static struct { unsigned x, y, z; } blockIdx, gridDim, blockDim;
static thread_local struct { unsigned x; } threadIdx;
static pthread_barrier_t barrier, warps[32];
static unsigned long long told[1024];
static void __syncthreads() { pthread_barrier_wait(&barrier); }
static void __syncwarp() { pthread_barrier_wait(&warps[threadIdx.x / 32]); }
// What the threads of a warp see of each other: `seen(v of a lane)` for all of them.
template <class A, class F> static A among(A v, F seen) {
  pthread_barrier_t* const b = &warps[threadIdx.x / 32];
  memcpy(&told[threadIdx.x], &v, sizeof v);
  pthread_barrier_wait(b);
  v = seen([](unsigned lane) { A r; memcpy(&r, &told[threadIdx.x / 32 * 32 + lane], sizeof r);
      return r; });
  pthread_barrier_wait(b);
  return v;
}
template <class A> static A __shfl_xor_sync(unsigned, A v, int apart) { return among(v,
    [&](auto of) { return of(threadIdx.x % 32 ^ apart); }); }
template <class A> static A __shfl_sync(unsigned, A v, int from, int width = 32) {
  return among(v, [&](auto of) { return of(threadIdx.x % 32 / width * width + from % width); });
}
static int __any_sync(unsigned, bool v) {
  return among(v, [](auto of) {
    bool r = false;
    for (int lane = 0; lane < 32; lane++) r |= of(lane);
    return r;
  });
}
template <class A> static A __shfl_down_sync(unsigned, A v, unsigned far) {
  const unsigned lane = threadIdx.x % 32;
  return among(v, [&](auto of) { return of(lane + far < 32 ? lane + far : lane); });
}
static unsigned __reduce_max_sync(unsigned, unsigned v) {
  return among(v, [](auto of) {
    unsigned r = of(0);
    for (int lane = 1; lane < 32; lane++) r = r < of(lane) ? of(lane) : r;
    return r;
  });
}
static int __clz(unsigned v) { return __builtin_clz(v); }
static int __popc(unsigned v) { return __builtin_popcount(v); }
static unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v,
    __ATOMIC_RELAXED); }
static unsigned atomicCAS(unsigned* p, unsigned was, unsigned v) {
  __atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return was;
}
static void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static float __uint_as_float(unsigned v) { float r; memcpy(&r, &v, 4); return r; }
static unsigned __float_as_uint(float v) { unsigned r; memcpy(&r, &v, 4); return r; }
static float __int_as_float(int v) { return __uint_as_float(v); }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return ((unsigned long long)high << 32 | low) >> (by & 31);
}
static float __frcp_rn(float x) { return 1.f / x; }
static float __fdividef(float a, float b) { return a / b; }
static float normcdff(float x) { return 0.5f * erfcf(-0.70710678f * x); }
template <class A> static A __ldg(const A* p) { return *p; }
template <class A> static A __ldcg(const A* p) { return *p; }
template <class A> static A min(A a, A b) { return a < b ? a : b; }
template <class A> static A max(A a, A b) { return a > b ? a : b; }
static unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
struct uint4 { unsigned x, y, z, w; } __attribute__((may_alias));
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
// Elements of 16 bits: KIND 0 is f16, 1 bf16.
template <int KIND> static float value16(unsigned short b) {
  if (KIND) return __uint_as_float((unsigned)b << 16);
  const int e = b >> 10 & 31, m = b & 1023;
  const float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
  return b >> 15 ? -v : v;
}
template <int KIND> static unsigned short bits16(float v) {
  const unsigned b = __float_as_uint(v);
  if (KIND) return v != v ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
  int e;
  frexpf(v, &e);
  const float unit = ldexpf(1.f, (e < -13 ? -13 : e) - 11), r = rintf(fabsf(v) / unit) * unit;
  if (v != v) return 0x7e00;
  const unsigned sign = b >> 16 & 0x8000;
  if (r >= 65520.f) return sign | 0x7c00;
  if (r < 6.103515625e-5f) return sign | (unsigned)ldexpf(r, 24);
  frexpf(r, &e);
  return sign | (e + 14) << 10 | ((unsigned)ldexpf(r, 11 - e) & 1023);
}
template <int KIND> static unsigned pair16(float low, float high) {
  return bits16<KIND>(low) | (unsigned)bits16<KIND>(high) << 16;
}
// One rounding, of what f32 holds.
template <int KIND> static unsigned fma16(unsigned a, unsigned b, unsigned c) {
  return pair16<KIND>(value16<KIND>(a) * value16<KIND>(b) + value16<KIND>(c),
      value16<KIND>(a >> 16) * value16<KIND>(b >> 16) + value16<KIND>(c >> 16));
}
"""
#: In place of templates whose functions are single instructions: copies are done at once.
_TEMPLATES = {
    "common/async_copy": """
#define smem_address(p) ((char*)(p))
template <int BYTES = 16> static void cp_async(void* to, const void* from, int read) {
  memset(to, 0, BYTES), memcpy(to, from, read);
}
static void cp_async_commit() {}
template <int LEFT> static void cp_async_wait() {}
static void cp_async_wait_all() {}
""",
    "common/mma": """
static u32 fragments[32][32][6];
template <int KIND> static void multiply_kind(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32(*const told)[6] = fragments[warp];
  for (int j = 0; j < 4; j++) told[lane][j] = a[j];
  told[lane][4] = b0, told[lane][5] = b1;
  __syncwarp();
  for (int j = 0; j < 4; j++)
    for (int k = 0; k < 16; k++) {
      const int row = lane / 4 + j / 2 * 8, column = lane % 4 * 2 + j % 2, pair = k % 8 / 2;
      d[j] += value16<KIND>(told[row % 8 * 4 + pair][row / 8 + k / 8 * 2] >> 16 * (k % 2)) *
              value16<KIND>(told[column * 4 + pair][4 + k / 8] >> 16 * (k % 2));
    }
  __syncwarp();
}
static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, half_t*) {
  multiply_kind<0>(d, a, b0, b1);
}
static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bfloat_t*) {
  multiply_kind<1>(d, a, b0, b1);
}
""",
    "attention/fetch": """
template <int READ> static void fetch(char* to, const T* from, long at, bool real) {
  real ? memcpy(to, from + at, READ * sizeof(T)) : memset(to, 0, READ * sizeof(T));
}
""",
}
#: Single instructions, and what they do.
_INSTRUCTIONS = {
    'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));': "y = exp2f(x);",
    'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));': "y = 1.f / x;",
    'asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));': "r = a != a || a < b ? a : b;",
    'asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));': "r = a != a || a > b ? a : b;",
    'asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));': "r = value16<0>(v.bits);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));': "to.bits = bits16<0>(v);",
    'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));': "to.bits = bits16<1>(v);",
    'asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b));': "r = pair16<0>(a, b);",
    'asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b));': "r = pair16<1>(a, b);",
    'asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));': (
        "r = fma16<0>(a, 0x3c003c00, b);"
    ),
    'asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));': (
        "r = fma16<0>(a, b, c);"
    ),
    'asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));': (
        "r = fma16<1>(a, b, c);"
    ),
}
_RUN = """
static void** arguments;
static void* thread_main(void* p) {
  threadIdx.x = (unsigned)(size_t)p;
  for (unsigned b = 0; b < gridDim.x * gridDim.y * gridDim.z; b++) {
    if (!threadIdx.x) {
      blockIdx.x = b % gridDim.x, blockIdx.y = b / gridDim.x % gridDim.y;
      blockIdx.z = b / gridDim.x / gridDim.y;
    }
    __syncthreads();
    CALL;
    __syncthreads();
  }
  return 0;
}
extern "C" void run(void** given, unsigned across, unsigned down, unsigned deep) {
  arguments = given, blockDim.x = BLOCK;
  gridDim.x = across, gridDim.y = down, gridDim.z = deep;
  pthread_barrier_init(&barrier, 0, BLOCK);
  for (int w = 0; w < BLOCK / 32; w++) pthread_barrier_init(&warps[w], 0, 32);
  pthread_t threads[BLOCK];
  for (size_t t = 0; t < BLOCK; t++) pthread_create(&threads[t], 0, thread_main, (void*)t);
  for (int t = 0; t < BLOCK; t++) pthread_join(threads[t], 0);
}
"""


def aligned(a: Array) -> Array:
    """A copy that begins at a multiple of 64 bytes."""
    raw = np.empty(a.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out: Array = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def run(kernel: Kernel, places: Mapping[str, Array], folder: Path) -> bool:
    """places: what operands are; null where not named. Returns whether the kernel met a fault."""
    quoted = r'"(?:[^"\\]|\\.)*"'
    text = kernel.source
    for name, of_host in _TEMPLATES.items():
        own = re.split("#include .*\n", _templates.text(name))[-1]  # behind what it includes
        text = text.replace(own, of_host)
    for instruction, of_host in _INSTRUCTIONS.items():
        text = text.replace(instruction, of_host)
    text = re.sub(rf'asm(?: volatile)?\((?:[^()"]|{quoted}|\([^()]*\))*\);', ";", text)
    declared = re.search(r"#define PARAMETERS (.*)", text) or re.search(
        rf"__global__[^;{{]*\b{kernel.symbol}\(([^)]*)\) \{{", text
    )
    assert declared is not None
    parameters = [
        re.fullmatch(r"\s*(.*?)(\w+)\s*", p.replace("__restrict__", ""), re.DOTALL)
        for p in declared.group(1).split(",")
    ]
    call = ", ".join(f"*({p.group(1)}*)arguments[{j}]" for j, p in enumerate(parameters) if p)
    host = library(
        folder,
        kernel.symbol,
        "\n".join(
            [
                _HOST,
                text,
                f"#define BLOCK {kernel.block}",
                _RUN.replace("CALL", f"{kernel.symbol}({call})"),
            ]
        ),
    )
    fault = ctypes.c_uint32(0)
    values: list[Any] = []
    for a in kernel.args:
        if isinstance(a, Int32):
            values.append(ctypes.c_int32(evaluate(a.value, {})))
        elif isinstance(a, Int64):
            values.append(ctypes.c_int64(evaluate(a.value, {})))
        elif isinstance(a, Float32):
            values.append(ctypes.c_float(a.value))
        elif isinstance(a, FaultWord):
            values.append(ctypes.c_uint64(ctypes.addressof(fault)))
        elif isinstance(a, Words):
            words = (ctypes.c_uint32 * a.count)()
            values.append(ctypes.c_uint64(ctypes.addressof(words)))
        else:
            assert isinstance(a, Pointer)
            at = (
                places[a.operand].ctypes.data + evaluate(a.offset, {}) if a.operand in places else 0
            )
            values.append(ctypes.c_uint64(at))
    assert len(values) == len(parameters)
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
    host.run(pointers, *(ctypes.c_uint(evaluate(d, {})) for d in kernel.grid))
    return bool(fault.value)
