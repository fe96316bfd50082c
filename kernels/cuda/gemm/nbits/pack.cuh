// Weights of a few bits from how a model holds them to how kernels read them (`layout.cuh`).
#pragma once
#include "gemm/nbits/layout.cuh"

// Element `at` of values of BITS bits, one behind the other from the lowest bits on.
DEV u32 bits_at(const void* from, i64 at) {
  return u32(((const u8*)from)[at * BITS / 8]) >> (at * BITS % 8) & MASK;
}

// A thread for each lane of each piece.
extern "C" __global__ void __launch_bounds__(256)
    pack_words(const void* w, uint4* packed, int N, int K, i64 w_n, i64 w_k, int flip, i64 count) {
  pdl_begin();
  const i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const int lane = int(index & 31), g = lane >> 2, t = lane & 3;
  const int pieces = (K + DEPTH - 1) / DEPTH, piece = int((index >> 5) % pieces),
            tile = int((index >> 5) / pieces);
  u32 words[4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; s++)
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int n = 16 * tile + 8 * r + g, k = piece * DEPTH + first_term(s, t) + e;
        const u32 q = n < N && k < K ? bits_at(w, n * w_n + k * w_k) ^ flip : 0;
        words[word_of(s, r)] |= q << (BITS * (pair_of(s) + e / 2) + 16 * (e % 2));
      }
  packed[index] = make_uint4(words[0], words[1], words[2], words[3]);
}

// A thread for each column of each block.
extern "C" __global__ void __launch_bounds__(256)
    pack_scales(const S* scale, const void* zero, S* scales, void* zeros, int N, int K, i64 s_n,
                i64 s_k, i64 z_n, i64 z_k, int flip, i64 count) {
  pdl_begin();
  const i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const int blocks = blocks_of(K), block = int((index >> 4) % blocks), column = int(index & 15),
            n = int((index >> 4) / blocks) * 16 + column % 2 * 8 + column / 2;
  S v;
  from_float(v, 0.f);
  scales[index] = n < N ? scale[n * s_n + block * s_k] : v;
  const i64 at = n * z_n + block * z_k;
  if (ZEROS == 2) ((float*)zeros)[index] = n < N ? ((const float*)zero)[at] : 0.f;
  if (ZEROS == 1) ((u8*)zeros)[index] = n < N ? u8(bits_at(zero, at) ^ flip) : 0;
}
