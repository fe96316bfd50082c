// Weights of a few bits as elements [N, pitch] for a GEMM, zero from K on: (value - zero) * scale,
// rounded once. A thread has a lane's part of a piece.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define PARAMETERS \
  const uint4 *w, const S *scales, const void *zeros, T *to, int N, int K, int pitch, i64 count
#endif  // GENERATED
#include "gemm/nbits/layout.cuh"

extern "C" __global__ void __launch_bounds__(256) dequantise(PARAMETERS) {
  pdl_begin();
  const i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const int lane = int(index & 31), g = lane >> 2, t = lane & 3;
  const int pieces = (K + DEPTH - 1) / DEPTH, wide = (pitch + DEPTH - 1) / DEPTH,
            blocks = blocks_of(K);
  const int tile = int((index >> 5) / wide), piece = int((index >> 5) % wide);
  uint4 v = {};
  if (piece < pieces) v = w[(i64(tile) * pieces + piece) * 32 + lane];
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int s = 0; s < STEPS; s++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = 16 * tile + 8 * r + g, k = piece * DEPTH + first_term(s, t);
      if (n >= N || k >= pitch) continue;
      const i64 at = ((i64(tile) * blocks + min(blocks_before(k), blocks - 1)) * 8 + g) * 2 + r;
      const float scale = to_float(scales[at]), zero = ZEROS == 2   ? ((const float*)zeros)[at]
                                                       : ZEROS == 1 ? float(((const u8*)zeros)[at])
                                                                    : float(ZERO);
      Vec<T, 4> out;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const u32 q = words[word_of(s, r)] >> (BITS * (pair_of(s) + e / 2) + 16 * (e % 2)) & MASK;
        from_float(out.v[e], k + e < K ? (float(q) - zero) * scale : 0.f);
      }
      store<4>(to + i64(n) * pitch + k, out);
    }
}
