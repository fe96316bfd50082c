// A cache of rows with new ones in it, from a row on that each batch entry has.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define WORD uint4  // what moves at once
#define PARAMETERS                                                                                \
  const WORD *past, const WORD *x, const int *at, WORD *y, int H, int S, int P, int T, int words, \
      i64 x_b, i64 x_s, i64 x_h, i64 at_add, int keep, int circular, u32 *fault
#endif  // GENERATED
#include "common/base.cuh"

// y [B, H, T, words], past [B, H, P, words]; x[b, s, h] by pitches in words. Where past and y are
// the same memory, the new rows alone are written. A CTA has some words of one head.
extern "C" __global__ void __launch_bounds__(256) cache_write(PARAMETERS) {
  const int b = blockIdx.x / H, h = blockIdx.x % H;
  pdl_begin();
  const i64 given = at[b];
  const bool shared = past && past == y;
  i64 start = given + at_add > 0 ? given + at_add : 0;
  if (circular) start %= T;
  const bool fits = (circular ? S <= T : start + S <= T) && (keep || start <= P);
  if (given < 0 || given > (i64(1) << 40) || !fits || (shared && P != T)) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  const i64 total = i64(shared ? S : T) * words, step = i64(gridDim.y) * blockDim.x;
  const int held = keep ? P : int(start);
  for (i64 u = i64(blockIdx.y) * blockDim.x + threadIdx.x; u < total; u += step) {
    const int r = int(u / words), c = int(u % words);
    int t = shared ? int((start + r) % T) : r, s = shared ? r : t - int(start);
    if (circular && s < 0) s += T;
    WORD v{};
    if (s >= 0 && s < S)
      v = x[b * x_b + s * x_s + h * x_h + c];
    else if (t < held && t < P)
      v = past[(i64(blockIdx.x) * P + t) * words + c];
    y[(i64(blockIdx.x) * T + t) * words + c] = v;
  }
}
