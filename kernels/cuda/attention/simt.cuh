// y = softmax(scale q k^T + mask) v in f32, with FFMA. The CTA's 256 threads form a 16 x 16 grid; a
// thread has R x J scores (rows ty + 16 i, keys tx + 16 j) and R rows of the output. The keys of a
// tile are fetched during the multiplication by the values of the previous one, its values during
// its scores. Each CTA of a cluster has every CLUSTER-th tile.
#pragma once
#ifndef GENERATED
#define IS_F32 1
constexpr int R = 4;                               // rows of a thread, 1 to 8
constexpr int J = 4;                               // keys of a thread, 1 to 8
constexpr int CLUSTER = 1;                         // CTAs of a cluster that divide the keys, 1 to 8
constexpr int READ_Q = 4, READ_K = 4, READ_V = 4;  // elements of a load, up to 4
#endif                                             // GENERATED
#include "attention/rows.cuh"
#include "attention/splitkv.cuh"

constexpr int BM = 16 * R, BN = 16 * J, kD = (HEAD + 3) / 4 * 4, kDV = (HEAD_V + 63) / 64 * 64,
              kGroups = kDV / 64;
constexpr int kPitch = kD + 4 + (kD / 4 % 2 ? 4 : 0), kPitchV = kDV + 4, kPitchP = BN + 4;
struct alignas(16) Four {
  float v[4];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention(PARAMETERS) {
  Attention g = ATTENTION;
  pdl_begin();
  extern __shared__ char memory[];
  float *queries = (float*)memory, *keys = queries + BM * kPitch, *values = keys + BN * kPitch,
        *weights = values + BN * kPitchV;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int rank = blockIdx.x % CLUSTER;
  const RowTile<BM> tile(g, blockIdx.x / CLUSTER);
  const int seen = tile.seen, m0 = tile.m0, begin = tile.from / BN * BN + rank * BN;
  auto fetch_keys = [&](int t0) {
    fetch_rows<HEAD, kD, kPitch, READ_K, BN>(keys, tile.k, g.k_s, t0, g.Tk);
  };
  fetch_rows<HEAD, kD, kPitch, READ_Q, BM>(queries, tile.q, g.q_s, m0, g.S);
  if (begin < seen) fetch_keys(begin);
  const float log_scale = score_scale(g), log_fill = to_log2(g.fill);
  float out[R][kGroups * 4] = {}, row_max[R], sum[R];
#pragma unroll
  for (int i = 0; i < R; i++) row_max[i] = -INF, sum[i] = 0.f;

  for (int t0 = begin; t0 < seen; t0 += CLUSTER * BN) {
    cp_async_wait<0>();
    __syncthreads();  // the keys have arrived, and all warps have read the previous values
    fetch_rows<HEAD_V, (HEAD_V + 3) / 4 * 4, kPitchV, READ_V, BN>(values, tile.v, g.v_s, t0, g.Tk);
    float s[R][J] = {};
#pragma unroll 4
    for (int d = 0; d < kD; d += 4) {
      Four a[R], c[J];
#pragma unroll
      for (int i = 0; i < R; i++) a[i] = *(const Four*)(queries + (ty + 16 * i) * kPitch + d);
#pragma unroll
      for (int j = 0; j < J; j++) c[j] = *(const Four*)(keys + (tx + 16 * j) * kPitch + d);
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
          for (int j = 0; j < J; j++) s[i][j] = fmaf(a[i].v[e], c[j].v[e], s[i][j]);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = m0 + ty + 16 * i, see = visible_keys(g, row), first = first_key(g, row);
      const i64 mask_row = tile.mask_row(g, row);
      float best = row_max[i];
#pragma unroll
      for (int j = 0; j < J; j++) {
        const int t = t0 + tx + 16 * j;
        float x = capped(s[i][j] * log_scale);
        if (MASK && t < g.Tk) x = masked(x, g.mask, mask_row + t * g.m_k, log_fill);
        s[i][j] = t < see && t >= first ? x : -INF;
        best = fmaxf(best, s[i][j]);
      }
#pragma unroll
      for (int o = 8; o; o >>= 1) best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, o));
      const float shift = best == -INF ? 0.f : best, rescale = exp2f(row_max[i] - shift);
      row_max[i] = best;
      sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < J; j++) {
        const float p = exp2f(s[i][j] - shift);
        sum[i] += p;
        weights[(ty + 16 * i) * kPitchP + tx + 16 * j] = p;
      }
#pragma unroll
      for (int c = 0; c < kGroups * 4; c++) out[i][c] *= rescale;
    }
    cp_async_wait<0>();
    __syncthreads();  // the values have arrived, and all warps have read the keys
    if (t0 + CLUSTER * BN < seen) fetch_keys(t0 + CLUSTER * BN);
#pragma unroll 2
    for (int t = 0; t < BN; t += 4) {
      Four p[R];
#pragma unroll
      for (int i = 0; i < R; i++) p[i] = *(const Four*)(weights + (ty + 16 * i) * kPitchP + t);
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int c = 0; c < kGroups; c++) {
          const Four x = *(const Four*)(values + (t + e) * kPitchV + c * 64 + tx * 4);
#pragma unroll
          for (int i = 0; i < R; i++)
#pragma unroll
            for (int f = 0; f < 4; f++)
              out[i][c * 4 + f] = fmaf(p[i].v[e], x.v[f], out[i][c * 4 + f]);
        }
    }
  }
  cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int o = 8; o; o >>= 1) sum[i] += __shfl_xor_sync(FULL_WARP, sum[i], o);

  if (CLUSTER == 1) {
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = ty + 16 * i;
      if (m0 + row >= g.S) continue;
      const float inverse = reciprocal_of(sum[i]);
#pragma unroll
      for (int c = 0; c < kGroups * 4; c++) {
        const int column = c / 4 * 64 + tx * 4 + c % 4;
        if (column < HEAD_V) tile.y[row * g.y_s + column] = normalized(out[i][c], inverse);
      }
    }
    return;
  }
  __syncthreads();
  Partial<BM>& part = *(Partial<BM>*)memory;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = ty + 16 * i;
    if (tx == 0) part.row_max[row] = row_max[i], part.sum[row] = sum[i];
#pragma unroll
    for (int c = 0; c < kGroups * 4; c++) {
      const int column = c / 4 * 64 + tx * 4 + c % 4;
      if (column < HEAD_V) part.out[row * HEAD_V + column] = out[i][c];
    }
  }
  combine_cluster<CLUSTER, THREADS>(part, min(BM, g.S - m0), [&](int row, int column, float value) {
    tile.y[row * g.y_s + column] = value;
  });
}
