// Decoding with mma.sync, 16 rows per tile. A step has WARPS * KEYS keys of the CTA, copied to
// shared memory STAGES - 1 steps ahead. Each warp computes the scores of its KEYS keys; then, with
// the weights of all warps in shared memory, the weighted sums of all values for some columns of
// the result.
#pragma once
#ifndef GENERATED
#define COMPUTE MMA
constexpr int STAGES = 3;  // of keys in flight, 2 or more
#endif                     // GENERATED
#include "attention/decode/work.cuh"

constexpr int KEYS = 8;  // of a warp in a stage
constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, kPitch = kD * 2 + 16,
              kPitchV = kDV * 2 + 16;  // an odd number of 16-byte units avoids bank conflicts
constexpr int kAll = WARPS * KEYS, kPitchP = kAll * 2 + 16, kValues = kAll * kPitch,
              kStage = kAll * (kPitch + kPitchV);
constexpr int kTiles = (kDV / 8 + WARPS - 1) / WARPS;  // of 8 columns, per warp
static_assert(kAll % 32 == 0, "fragments");

// Copies the warp's rows (of `count` keys or values) to its part of a stage.
template <int SIZE, int PADDED, int PITCH>
DEV void load_rows(u32 to, const T* from, i64 stride, int count) {
  constexpr int chunks = PADDED / 8;
#pragma unroll
  for (int u = 0; u < KEYS * chunks; u += 32) {
    const int at = u + (threadIdx.x & 31), r = at / chunks, c = at % chunks;
    const bool real = r < count && c * 8 < SIZE;
    if (KEYS * chunks % 32 == 0 || r < KEYS)
      cp_async(to + r * PITCH + c * 16, real ? from + r * stride + c * 8 : from, real ? 16 : 0);
  }
}
DEV void sync_warp() {
#ifdef RACECHECK
  __syncthreads();  // it does not know what __syncwarp orders
#else
  __syncwarp();
#endif
}

DEV void compute_attention(const Attention& g) {
  pdl_launch_dependents();
  extern __shared__ __align__(16) char memory[];
  __shared__ __align__(16) char shared_weights[ROWS * kPitchP];
  __shared__ float of_warps[WARPS][ROWS];  // maximum scores of a step; at the end, sums of weights
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column = lane % 4 * 2;
  Work<KEYS, false> w(g);
  pdl_wait_after(w.k, w.v, w.count);
  w.share_keys(g);
  const int to = w.to;
  const int steps = (max(to - w.from, 0) + kAll - 1) / kAll;
  const u32 ring = smem_address(memory), weights = smem_address(shared_weights);
  auto load_step = [&](int step) {  // two cp.async groups
    const int t = w.from + step * kAll + warp * KEYS;
    const u32 at = ring + step % STAGES * kStage;
    if (step < steps)
      load_rows<HEAD, kD, kPitch>(at + warp * KEYS * kPitch, w.k + min(t, to - 1) * g.k_s, g.k_s,
                                  to - t);
    cp_async_commit();
    if (step < steps)
      load_rows<HEAD_V, kDV, kPitchV>(at + kValues + warp * KEYS * kPitchV,
                                      w.v + min(t, to - 1) * g.v_s, g.v_s, to - t);
    cp_async_commit();
  };
  // The loads of the first keys start before anything waits for queries.
#pragma unroll 1
  for (int step = 0; step < STAGES - 1; step++) load_step(step);

  // This thread's rows are lane / 4 and lane / 4 + 8; its columns of a tile of 8 are column and
  // column + 1.
  u32 a[kD / 16][4];
  int see[2];
  i64 mask_row[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int i = min(lane / 4 + 8 * e, w.count - 1);
    const T* q = w.query(g, i) + column;
    see[e] = min(to, visible_keys(g, w.row(g, i).s)), mask_row[e] = w.mask_row(g, i);
#pragma unroll
    for (int d = 0; d < kD / 8; d++)
      a[d / 2][e + d % 2 * 2] = d * 8 < HEAD ? *(const u32*)(q + d * 8) : 0;
  }
  const float log_scale = score_scale(g), log_fill = to_log2(g.fill);
  const u32 key = (warp * KEYS + (lane & 7)) * kPitch + (lane >> 3) * 16,
            value = kValues + lane * kPitchV;
  const u32 last_key =
      key - (lane >> 4) * 32;  // of the last 16 elements of odd many: twice, and nothing behind the
                               // row, where another warp's may be on their way
  const u32 weight = weights + (lane & 15) * kPitchP + (lane >> 4) * 16;
  const int row = lane / 4;
  float out[kTiles][4] = {}, row_max[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
  for (int step = 0; step < steps; step++) {
    cp_async_wait<2 * STAGES - 3>();
    sync_warp();
    const u32 stage = ring + step % STAGES * kStage;
    float x[4] = {}, y[4] = {};
#pragma unroll
    for (int d = 0; d < kD / 16; d += 2) {
      u32 r[4];
      ldmatrix_x4(r, stage + (d + 1 < kD / 16 ? key : last_key) + d * 32);
      multiply(x, a[d], r[0], r[1], (T*)nullptr);
      if (d + 1 < kD / 16) multiply(y, a[d + 1], r[2], r[3], (T*)nullptr);
    }
    const int t0 = w.from + step * kAll + warp * KEYS + column;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int t = t0 + (c & 1), e = c >> 1;
      x[c] = capped((x[c] + y[c]) * log_scale);
      if (MASK && t < to) x[c] = masked(x[c], g.mask, mask_row[e] + t * g.m_k, log_fill);
      if (t >= see[e]) x[c] = -INF;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float best = fmaxf(x[2 * e], x[2 * e + 1]);
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
      if (lane % 4 == 0) of_warps[warp][row + 8 * e] = best;
    }
    cp_async_wait<2 * STAGES - 4>();
    __syncthreads();  // all values have arrived, and all warps have read those of the previous step
    load_step(step + STAGES - 1);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float best = row_max[e];
#pragma unroll
      for (int w = 0; w < WARPS; w++) best = fmaxf(best, of_warps[w][row + 8 * e]);
      const float shift = best == -INF ? 0.f : best, rescale = exp2_approximate(row_max[e] - shift);
      row_max[e] = best, sum[e] *= rescale;
#pragma unroll
      for (int d = 0; d < kTiles; d++) out[d][2 * e] *= rescale, out[d][2 * e + 1] *= rescale;
      const float u = exp2_approximate(x[2 * e] - shift),
                  v = exp2_approximate(x[2 * e + 1] - shift);
      sum[e] += u + v;
      *(u32*)(shared_weights + (row + 8 * e) * kPitchP + (warp * KEYS + column) * 2) =
          pack2((T*)nullptr, u, v);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kAll / 32; n++) {
      u32 p[2][4];
      ldmatrix_x4(p[0], weight + n * 64);
      ldmatrix_x4(p[1], weight + n * 64 + 32);
#pragma unroll
      for (int d = 0; d < kTiles; d++) {
        if (kDV / 8 % WARPS != 0 && warp + d * WARPS >= kDV / 8) continue;
        u32 r[4];
        ldmatrix_x4_trans(r, stage + value + n * 32 * kPitchV + (warp + d * WARPS) * 16);
        multiply(out[d], p[0], r[0], r[1], (T*)nullptr);
        multiply(out[d], p[1], r[2], r[3], (T*)nullptr);
      }
    }
  }

  cp_async_wait<0>();
  Partial<ROWS>& whole = w.partial(g);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
    if (lane % 4 == 0) of_warps[warp][row + 8 * e] = sum[e];
    if (warp == 0 && lane % 4 == 0) whole.row_max[row + 8 * e] = row_max[e];
#pragma unroll
    for (int d = 0; d < kTiles; d++) {
      const int at = (warp + d * WARPS) * 8 + column;
      if (at < HEAD_V)
        *(float2*)&whole.out[(row + 8 * e) * HEAD_V + at] =
            make_float2(out[d][2 * e], out[d][2 * e + 1]);
    }
  }
  __syncthreads();
  if (threadIdx.x < ROWS) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += of_warps[w][threadIdx.x];
    whole.sum[threadIdx.x] = total;
  }
}
