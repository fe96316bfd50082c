// FlashAttention-2: y = softmax(scale q k^T + mask) v for 16-bit operands, with mma.sync. A CTA has
// WARPS * 16 query rows of one head. Tiles of BN keys are double-buffered in shared memory
// (cp.async); scores and outputs stay in registers. Head sizes are zero-padded to multiples of 16.
#pragma once
#ifndef GENERATED
constexpr int WARPS = 8;                           // THREADS / 32
constexpr int BN = 64;                             // keys of a tile, a multiple of 16
constexpr int READ_Q = 8, READ_K = 8, READ_V = 8;  // elements of a load, up to 8
#endif                                             // GENERATED
#include "attention/online_softmax.cuh"
#include "attention/rows.cuh"

constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, BM = WARPS * 16;
constexpr int kPitch = kD * 2 + 16,
              kPitchV =
                  kDV * 2 + 16;  // bytes; an odd number of 16-byte units avoids bank conflicts
constexpr int kKeys = BN * kPitch, kStage = kKeys + BN * kPitchV, kQueries = BM * kPitch;
constexpr bool kQueryRegisters = kD <= 128;

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention(PARAMETERS) {
  Attention g = ATTENTION;
  pdl_begin();
  extern __shared__ char memory[];
  const u32 base = smem_address(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const RowTile<BM> tile(g, blockIdx.x);
  const int begin = tile.from / BN, steps = (tile.seen + BN - 1) / BN;
  auto load_tile = [&](int step) {
    char* const to = memory + kQueries + step % 2 * kStage;
    fetch_rows<HEAD, kD, kPitch / 2, READ_K, BN>((T*)to, tile.k, g.k_s, step * BN, g.Tk);
    fetch_rows<HEAD_V, kDV, kPitchV / 2, READ_V, BN>((T*)(to + kKeys), tile.v, g.v_s, step * BN,
                                                     g.Tk);
  };
  fetch_rows<HEAD, kD, kPitch / 2, READ_Q, BM>((T*)memory, tile.q, g.q_s, tile.m0, g.S);
  if (begin < steps) load_tile(begin);

  // This thread's rows are s0 and s0 + 8; its columns of a tile of 8 are column and column + 1.
  const int s0 = tile.m0 + warp * 16 + lane / 4, column = lane % 4 * 2;
  const RowPair rows(g, tile, s0, tile.m0 + warp * 16);
  const u32 query =
      base + (warp * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * kPitch + (lane >> 4) * 16;
  const u32 key = ((lane & 7) + (lane >> 4) * 8) * kPitch + (lane >> 3 & 1) * 16,
            value = ((lane & 7) + (lane >> 3 & 1) * 8) * kPitchV + (lane >> 4) * 16;
  u32 a[kQueryRegisters ? kD / 16 : 1][4];
  float out[kDV / 8][4] = {}, row_max[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};

  for (int step = begin; step < steps; step++) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all warps have read the previous one
    if (step + 1 < steps) load_tile(step + 1);
    const u32 stage = base + kQueries + step % 2 * kStage;
    if (kQueryRegisters && step == begin)
#pragma unroll
      for (int d = 0; d < kD / 16; d++) ldmatrix_x4(a[kQueryRegisters ? d : 0], query + d * 32);

    float s[BN / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kD / 16; d++) {
      if (!kQueryRegisters) ldmatrix_x4(a[0], query + d * 32);
#pragma unroll
      for (int n = 0; n < BN / 16; n++) {
        u32 r[4];
        ldmatrix_x4(r, stage + key + n * 16 * kPitch + d * 32);
        multiply(s[2 * n], a[kQueryRegisters ? d : 0], r[0], r[1], (T*)nullptr);
        multiply(s[2 * n + 1], a[kQueryRegisters ? d : 0], r[2], r[3], (T*)nullptr);
      }
    }
    rows.scale_and_mask(g, s, step * BN + column, (step + 1) * BN);
    float best[2] = {row_max[0], row_max[1]};
    reduce_max(s, best);
    softmax_step(s, out, row_max, sum, best);
#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
      const u32 p[4] = {pack2((T*)nullptr, s[2 * n][0], s[2 * n][1]),
                        pack2((T*)nullptr, s[2 * n][2], s[2 * n][3]),
                        pack2((T*)nullptr, s[2 * n + 1][0], s[2 * n + 1][1]),
                        pack2((T*)nullptr, s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDV / 16; d++) {
        u32 r[4];
        ldmatrix_x4_trans(r, stage + kKeys + value + n * 16 * kPitchV + d * 32);
        multiply(out[2 * d], p, r[0], r[1], (T*)nullptr);
        multiply(out[2 * d + 1], p, r[2], r[3], (T*)nullptr);
      }
    }
  }
  cp_async_wait<0>();
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const float inverse = reciprocal_of(quad_allreduce_sum(sum[e]));
    const int row = warp * 16 + lane / 4 + e * 8;
    if (tile.m0 + row >= g.S) continue;
    T* y = tile.y + row * g.y_s;
    const bool pairs = HEAD_V % 2 == 0 && aligned(y, 4);
#pragma unroll
    for (int d = 0; d < kDV / 8; d++) {
      const int c = d * 8 + column;
      if (pairs && c < HEAD_V)
        *(u32*)(y + c) = pack2((T*)nullptr, normalized(out[d][2 * e], inverse),
                               normalized(out[d][2 * e + 1], inverse));
      else if (!pairs) {
        if (c < HEAD_V) from_float(y[c], normalized(out[d][2 * e], inverse));
        if (c + 1 < HEAD_V) from_float(y[c + 1], normalized(out[d][2 * e + 1], inverse));
      }
    }
  }
}
