// y = softmax(scale q k^T + mask) v in f32, with tensor cores (3xTF32). An element is split into
// two of 11 bits each; of the four products of two elements, that of both low parts is omitted.
// Tensor cores truncate when they add, so sixteen k are summed from zero and added by FADD.
//
// A CTA has WARPS * 16 query rows of one head; tiles have BN keys. The keys of a tile are fetched
// during the multiplication by the values of the previous one, its values during its scores. Each
// of GROUPS groups of warps has all rows, its share of the keys of a tile for scores, and its share
// of the columns for outputs; the weights are exchanged through shared memory. Each CTA of a
// cluster has every CLUSTER-th tile.
//
// Splitting infinity, or a value that rounds to infinity, gives NaN. A CTA whose results are not
// finite starts again with CAREFUL splitting.
#pragma once
#ifndef GENERATED
#define IS_F32 1
constexpr int WARPS = 4;        // of 16 rows each
constexpr int GROUPS = 2;       // of WARPS warps, THREADS / (32 * WARPS)
constexpr int BN = 64;          // keys of a tile, a multiple of 16 * GROUPS
constexpr int CLUSTER = 1;      // CTAs of a cluster that divide the keys, 1 to 8
constexpr int CTAS_PER_SM = 1;  // that registers must permit
constexpr int READ_Q = 4, READ_K = 4, READ_V = 4,
              WRITE = 4;  // elements of a load or store, up to 4
#endif                    // GENERATED
#include "attention/online_softmax.cuh"
#include "attention/rows.cuh"
#include "attention/splitkv.cuh"

constexpr int BM = WARPS * 16, kKeys = BN / GROUPS, kD = (HEAD + 15) / 16 * 16;
constexpr int kColumns = (HEAD_V + 16 * GROUPS - 1) / (16 * GROUPS) * 16, kDV = kColumns * GROUPS,
              kWide = kColumns / 32, kTail = kColumns / 16 % 2;  // of a group, of all
constexpr int kPitch = kD + (kD % 32 ? 0 : 16), kPitchV = kDV + 4,
              kPitchP = BN + 8;  // floats; loads of four have no bank conflicts
constexpr int kAtOnce =
    kColumns > 128 || (GROUPS > 1 && kColumns > 64) ? 1
    : GROUPS > 1                                    ? 2
                 : kKeys / 16;  // fragments of weights whose products are spelled out: those of
                                // wide heads are more instructions than the caches hold
constexpr int kTogether = kKeys % 32 ? 2 : 4;  // fragments of keys
static_assert(kKeys % 16 == 0, "two fragments at a time");

// Splits into high + low, 11 bits each. CAREFUL: of a non-finite element, low is 0, and the low
// parts that it multiplies are replaced by finite values.
template <bool CAREFUL>
struct Split {
  u32 high, low;
  METHOD void split(float v) {
    if (CAREFUL) {
      const bool finite = fabsf(v) < INF;
      high = finite ? __float_as_uint(v) & 0xffffe000 : v != v ? 0x7fffffff : __float_as_uint(v);
      low = finite ? __float_as_uint(v - __uint_as_float(high)) : 0;
    } else {
      high = (__float_as_uint(v) + 0x1000) & 0xffffe000;
      low = __float_as_uint(v - __uint_as_float(high));
    }
  }
  METHOD u32 finite() const { return CAREFUL && (high & 0x7f800000) == 0x7f800000 ? 0 : high; }
};
template <bool B>
struct Careful {
  static constexpr bool value = B;
};
// d += a b: 16 x 8 += 16 x 8 by 8 x 8
DEV void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The left operand of sixteen k: [h] has eight of them, for rows g and g + 8 of one k, then of the
// next.
template <bool CAREFUL>
struct Left {
  Split<CAREFUL> v[2][4];
};
// to[j] += left * right. right[j] has elements of sixteen k of column g: two of the first eight,
// two of the others.
template <bool CAREFUL, int N>
DEV void add_products(float (*to)[4], const Left<CAREFUL>& left, const float (&right)[N][4]) {
  float sum[N][4] = {};
  Split<CAREFUL> r[N][4];
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) r[j][e].split(right[j][e]);
#pragma unroll
  for (int term = 0; term < 3; term++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        const Split<CAREFUL>(&l)[4] = left.v[h];
        const Split<CAREFUL>&x = r[j][2 * h], &y = r[j][2 * h + 1];
        if (term == 0)
          multiply_add(sum[j], l[0].low, l[1].low, l[2].low, l[3].low, x.finite(), y.finite());
        if (term == 1)
          multiply_add(sum[j], l[0].finite(), l[1].finite(), l[2].finite(), l[3].finite(), x.low,
                       y.low);
        if (term == 2)
          multiply_add(sum[j], l[0].high, l[1].high, l[2].high, l[3].high, x.high, y.high);
      }
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) to[j][e] += sum[j][e];
}

// Barrier among the warps that have the same rows.
DEV void sync_rows(int warp) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + warp), "n"(32 * GROUPS) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) attention(PARAMETERS) {
  Attention g = ATTENTION;
  pdl_begin();
  extern __shared__ __align__(16) char memory[];
  float *queries = (float*)memory, *keys = queries + BM * kPitch, *values = keys + BN * kPitch,
        *weights = values + BN * kPitchV, *row_maxima = weights + BM * kPitchP;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS,
            group = threadIdx.x / (32 * WARPS), row = lane / 4, quad = lane % 4;
  const int rank = blockIdx.x % CLUSTER;
  const RowTile<BM> tile(g, blockIdx.x / CLUSTER);
  const int seen = tile.seen, m0 = tile.m0;
  auto fetch_keys = [&](int t0) {
    fetch_rows<HEAD, kD, kPitch, READ_K, BN>(keys, tile.k, g.k_s, t0, g.Tk);
  };
  fetch_rows<HEAD, kD, kPitch, READ_Q, BM>(queries, tile.q, g.q_s, m0, g.S);

  // This thread's rows are s0 and s0 + 8; its keys of a fragment are 2 * quad and the next one.
  const int s0 = m0 + warp * 16 + row;
  const RowPair rows(g, tile, s0, m0 + warp * 16);
  const float *query = queries + (warp * 16 + row) * kPitch + 4 * quad,
              *key = keys + (group * kKeys + row) * kPitch + 4 * quad,
              *value = values + 2 * quad * kPitchV + group * kColumns;
  float *const weight = weights + (warp * 16 + row) * kPitchP + 2 * quad, *const of_rows =
                                                                              row_maxima +
                                                                              warp * 16 + row;
  float out[kColumns / 8][4], row_max[2], sum[2];
  // Calls put(column, v) with neighbouring elements of row s0 + 8 * e.
  auto each = [&](int e, auto put) {
#pragma unroll
    for (int d = 0; d < kWide * 4; d += 4)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float r[4] = {out[d][2 * e + c], out[d + 1][2 * e + c], out[d + 2][2 * e + c],
                            out[d + 3][2 * e + c]};
        put(group * kColumns + d * 8 + quad * 8 + c * 4, r);
      }
    if constexpr (kTail) {
      const float r[4] = {out[kWide * 4][2 * e], out[kWide * 4 + 1][2 * e],
                          out[kWide * 4][2 * e + 1], out[kWide * 4 + 1][2 * e + 1]};
      put(group * kColumns + kWide * 32 + quad * 4, r);
    }
  };
  auto attempt = [&](auto careful) {  // returns whether all results of this thread are finite
    constexpr bool CAREFUL = decltype(careful)::value;
    const int begin = tile.from / BN * BN + rank * BN;
    if (begin < seen) fetch_keys(begin);
#pragma unroll
    for (int d = 0; d < kColumns / 8; d++) out[d][0] = out[d][1] = out[d][2] = out[d][3] = 0.f;
    row_max[0] = row_max[1] = -INF, sum[0] = sum[1] = 0.f;
    for (int t0 = begin; t0 < seen; t0 += CLUSTER * BN) {
      cp_async_wait<0>();
      __syncthreads();  // the keys are there, and every warp is done with the values before
      fetch_rows<HEAD_V, (HEAD_V + 3) / 4 * 4, kPitchV, READ_V, BN>(values, tile.v, g.v_s, t0,
                                                                    g.Tk);
      float s[kKeys / 8][4] = {};
      if (GROUPS == 1 || CLUSTER > 1 ||
          t0 + group * kKeys < seen)  // some row sees some of the group's keys
#pragma unroll(4 / kTogether)
        for (int d = 0; d < kD; d += 16) {
          Left<CAREFUL> q;
          const float4 low = *(const float4*)(query + d),
                       high = *(const float4*)(query + 8 * kPitch + d);
          q.v[0][0].split(low.x), q.v[0][1].split(high.x), q.v[0][2].split(low.y),
              q.v[0][3].split(high.y);
          q.v[1][0].split(low.z), q.v[1][1].split(high.z), q.v[1][2].split(low.w),
              q.v[1][3].split(high.w);
#pragma unroll
          for (int n = 0; n < kKeys / 8; n += kTogether) {
            float right[kTogether][4];
#pragma unroll
            for (int j = 0; j < kTogether; j++)
              *(float4*)right[j] = *(const float4*)(key + (n + j) * 8 * kPitch + d);
            add_products<CAREFUL>(s + n, q, right);
          }
        }
      rows.scale_and_mask(g, s, t0 + group * kKeys + 2 * quad, t0 + BN);
      float best[2] = {row_max[0], row_max[1]};
      reduce_max(s, best);
      if constexpr (GROUPS > 1) {
        if (quad == 0) of_rows[group * BM] = best[0], of_rows[group * BM + 8] = best[1];
        sync_rows(warp);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
          best[0] = fmaxf(best[0], of_rows[g * BM]), best[1] = fmaxf(best[1], of_rows[g * BM + 8]);
      }
      softmax_step(s, out, row_max, sum, best);
      if constexpr (GROUPS > 1)
#pragma unroll
        for (int n = 0; n < kKeys / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++)
            *(float2*)(weight + 8 * e * kPitchP + group * kKeys + n * 8) =
                make_float2(s[n][2 * e], s[n][2 * e + 1]);
      cp_async_wait<0>();
      __syncthreads();  // the values and all weights are there, and every warp is done with the
                        // keys
      if (t0 + CLUSTER * BN < seen) fetch_keys(t0 + CLUSTER * BN);
      const int fragments = (GROUPS > 1 || kAtOnce == 1 ? min(BN, seen - t0 + 15 & -16) : BN) /
                            8;  // those that some row sees, where they are not spelled out
#pragma unroll kAtOnce
      for (int n = 0; n < fragments;
           n += 2) {  // a thread's keys of a fragment are the ones whose scores it would have
        Left<CAREFUL> p;
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            p.v[f][e].split(GROUPS > 1 ? weight[e % 2 * 8 * kPitchP + (n + f) * 8 + e / 2]
                                       : s[kAtOnce > 1 ? n + f : f][e % 2 * 2 + e / 2]);
        if (GROUPS == 1 && kAtOnce == 1)
#pragma unroll
          for (int j = 0; j < kKeys / 8 - 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = s[j + 2][e];
        const float* x = value + n * 8 * kPitchV;  // columns that one thread reads together are of
                                                   // fragments next to each other
#pragma unroll
        for (int c = 0; c < kWide; c++) {
          float right[4][4];
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const float4 r = *(const float4*)(x + (e / 2 * 8 + e % 2) * kPitchV + c * 32 + row * 4);
            right[0][e] = r.x, right[1][e] = r.y, right[2][e] = r.z, right[3][e] = r.w;
          }
          add_products<CAREFUL>(out + c * 4, p, right);
        }
        if constexpr (kTail) {
          float right[2][4];
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const float2 r =
                *(const float2*)(x + (e / 2 * 8 + e % 2) * kPitchV + kWide * 32 + row * 2);
            right[0][e] = r.x, right[1][e] = r.y;
          }
          add_products<CAREFUL>(out + kWide * 4, p, right);
        }
      }
    }
    cp_async_wait<0>();
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 2; e++)
      each(e, [&](int column, const float (&r)[4]) {
#pragma unroll
        for (int f = 0; f < 4; f++)
          if (column + f < HEAD_V) finite &= fabsf(r[f]) < INF;
      });
    return finite;
  };
  if (__syncthreads_or(!attempt(Careful<false>{}))) attempt(Careful<true>{});
#pragma unroll
  for (int e = 0; e < 2; e++) sum[e] = quad_allreduce_sum(sum[e]);
  if constexpr (GROUPS > 1) {
    if (quad == 0) of_rows[group * BM] = sum[0], of_rows[group * BM + 8] = sum[1];
    sync_rows(warp);
    sum[0] = sum[1] = 0.f;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) sum[0] += of_rows[g * BM], sum[1] += of_rows[g * BM + 8];
  }
  if (CLUSTER == 1) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (s0 + 8 * e >= g.S) continue;
      const float inverse = reciprocal_of(sum[e]);
      T* to = tile.y + (warp * 16 + row + 8 * e) * g.y_s;
      each(e, [&](int column, const float (&r)[4]) {
        if (WRITE == 4) {
          if (column < HEAD_V)
            *(float4*)(to + column) =
                make_float4(normalized(r[0], inverse), normalized(r[1], inverse),
                            normalized(r[2], inverse), normalized(r[3], inverse));
          return;
        }
#pragma unroll
        for (int f = 0; f < 4; f++)
          if (column + f < HEAD_V) to[column + f] = normalized(r[f], inverse);
      });
    }
    return;
  }
  __syncthreads();
  Partial<BM>& part = *(Partial<BM>*)memory;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int at_row = warp * 16 + row + 8 * e;
    if (quad == 0 && group == 0) part.row_max[at_row] = row_max[e], part.sum[at_row] = sum[e];
    each(e, [&](int column, const float (&r)[4]) {
#pragma unroll
      for (int f = 0; f < 4; f++)
        if (column + f < HEAD_V) part.out[at_row * HEAD_V + column + f] = r[f];
    });
  }
  combine_cluster<CLUSTER, THREADS>(part, min(BM, g.S - m0), [&](int row, int column, float value) {
    tile.y[row * g.y_s + column] = value;
  });
}
