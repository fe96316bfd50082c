// Integers of a few bits with a scale for each block, dequantised: rows that indices pick, or all.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define BITS 4
#define SIGNED 0
#define INDEXED 1
#define ZEROS 1
#define INDEX i64
#define SCALE float
#define RESULT float
#define PARAMETERS                                                                                \
  const u8 *x, const INDEX *idx, const SCALE *scale, const u8 *zero, RESULT *y, i64 total, i64 n, \
      i64 inner, i64 count, i64 span, i64 within, i64 block, i64 zero_row, i64 middle
#endif  // GENERATED
#include "common/base.cuh"

// Element `at`; a sign makes the least one 0.
DEV i32 bits_at(const u8* src, i64 at) {
  constexpr u32 sign = SIGNED ? 1u << (BITS - 1) : 0;
  constexpr i64 per = 8 / BITS;
  return i32((u32(src[at / per]) >> (at % per * BITS) & ((1u << BITS) - 1)) ^ sign);
}

// A thread has some elements of the result. Rows of indices that are out of range are zeros.
extern "C" __global__ void __launch_bounds__(256) dequantise_blocks(PARAMETERS) {
  constexpr i64 per = 8 / BITS;
  const i64 blocks = (span + block - 1) / block, step = i64(gridDim.x) * blockDim.x,
            pitch = (zero_row + per - 1) / per * per;
  pdl_begin();
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += step) {
    const i64 row = u / inner, j = row % count;
    i64 at = INDEXED ? i64(idx[j]) : j;
    if (at < 0) at += n;
    float v = 0.f;
    if (at >= 0 && at < n) {
      const i64 e = (row / count * n + at) * inner + (u - row * inner), line = e / within;
      const i64 k = (line / span * blocks + line % span / block) * within + e % within;
      const i32 z = ZEROS ? bits_at(zero, k / zero_row * pitch + k % zero_row) : i32(middle);
      v = float(bits_at(x, e) - z) * to_float(scale[k]);
    }
    from_float(y[u], v);
  }
}
