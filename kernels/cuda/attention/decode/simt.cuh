// Decoding with FFMA. A unit of LANES threads has one key at a time: each thread has CHUNKS vectors
// of VECTOR elements. A unit copies its keys to shared memory by itself, AT_ONCE keys per stage.
// Each unit has its own maximum scores, sums and weighted sums, which are combined at the end.
#pragma once
#ifndef GENERATED
constexpr int LANES = 8;                           // threads per key, a power of two up to 32
constexpr int CHUNKS = 1;                          // 16-byte vectors of a key per thread
constexpr int AT_ONCE = 4;                         // keys of a unit in a stage
constexpr int STAGES = 3;                          // of keys in flight, 2 or more
constexpr int READ_Q = 8, READ_K = 8, READ_V = 8;  // elements of a load, up to 16 bytes
#endif                                             // GENERATED
#include "attention/decode/work.cuh"

constexpr int VECTOR = 16 / sizeof(T), kUnits = THREADS / LANES, kElements = CHUNKS * VECTOR,
              kScores = ROWS * AT_ONCE, kHeld = kScores > LANES ? kScores / LANES : 1;
typedef Vec<T, VECTOR> Piece;

// Copies the elements from `column` on of the row at `row`, zeros past its end, READ at a time. The
// pieces of a thread are THREADS apart.
template <int SIZE, int READ>
DEV void load_piece(Piece* to, const T* row, int column, bool real) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int e = 0; e < VECTOR; e += READ) {
      const int at = column + c * LANES * VECTOR + e;
      const bool there = real && at < SIZE;
      fetch<READ>(smem_address(to + c * THREADS) + e * sizeof(T), row, at, there);
    }
}
// Sums COUNT values over a unit's LANES threads. Each thread keeps its share, from value `lane %
// LANES * COUNT / LANES` on.
template <int COUNT, int APART>
DEV void share_sums(float (&x)[kScores]) {
  if constexpr (APART > 0) {
    constexpr int kept = COUNT > 1 ? COUNT / 2 : 1;
    const bool upper = threadIdx.x & APART;
#pragma unroll
    for (int j = 0; j < kept; j++) {
      const float mine = COUNT > 1 && upper ? x[j + COUNT / 2] : x[j],
                  other = COUNT > 1 && !upper ? x[j + COUNT / 2] : x[j];
      x[j] = mine + __shfl_xor_sync(FULL_WARP, other, APART);
    }
    share_sums<kept, APART / 2>(x);
  }
}

DEV void compute_attention(const Attention& g) {
  pdl_begin();
  extern __shared__ __align__(16) char memory[];
  __shared__ Partial<ROWS> whole;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, unit = threadIdx.x / LANES,
            column = lane % LANES * VECTOR;
  Work<1, false> w(g);
  w.share_keys(g);
  const int to = w.to;
  const T *const k = w.k, *const v = w.v;
  const float log_fill = to_log2(g.fill);

  Piece* const pieces = (Piece*)memory + threadIdx.x;
  auto piece = [&](int stage, int n, int which) {
    return pieces + ((stage * AT_ONCE + n) * 2 + which) * CHUNKS * THREADS;
  };
  auto load_stage = [&](int stage, int t0) {
    if (t0 < to)
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        const int t = t0 + n * kUnits + unit;
        load_piece<HEAD, READ_K>(piece(stage, n, 0), k + t * g.k_s, column, t < to);
        load_piece<HEAD_V, READ_V>(piece(stage, n, 1), v + t * g.v_s, column, t < to);
      }
    cp_async_commit();
  };
  constexpr int step = AT_ONCE * kUnits;
  // The loads of the first keys start before anything waits for queries.
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) load_stage(stage, w.from + stage * step);

  float q[ROWS][kElements], out[ROWS][kElements], row_max[ROWS], sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const T* from = w.query(g, min(i, w.count - 1));
#pragma unroll
    for (int e = 0; e < kElements; e += READ_Q) {
      const int at = column + e / VECTOR * LANES * VECTOR + e % VECTOR;
      Vec<T, READ_Q> part{};
      if (at < HEAD) part = load<READ_Q>(from + at);
#pragma unroll
      for (int j = 0; j < READ_Q; j++)
        q[i][e + j] = to_float(part.v[j]) * score_scale(g), out[i][e + j] = 0.f;
    }
    row_max[i] = -INF, sum[i] = 0.f;
  }
  // For the scores that this thread keeps: the visible keys of their rows, the first of these, and
  // the offsets of their masks.
  int see[kHeld], first[kHeld];
  i64 mask_row[kHeld];
  const int held = lane % LANES * kScores / LANES;
#pragma unroll
  for (int j = 0; j < kHeld; j++) {
    const int i = min((held + j) / AT_ONCE, w.count - 1);
    const int s = w.row(g, i).s;
    see[j] = visible_keys(g, s), first[j] = first_key(g, s), mask_row[j] = w.mask_row(g, i);
  }
  for (int t0 = w.from, stage = 0; t0 < to;
       t0 += step, stage = stage == STAGES - 1 ? 0 : stage + 1) {
    load_stage(stage == 0 ? STAGES - 1 : stage - 1, t0 + (STAGES - 1) * step);
    cp_async_wait<STAGES - 1>();
    float x[kScores];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
#pragma unroll
      for (int i = 0; i < ROWS; i++) x[i * AT_ONCE + n] = 0.f;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const Piece p = piece(stage, n, 0)[c * THREADS];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
          const float key = to_float(p.v[e]);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            x[i * AT_ONCE + n] = fmaf(q[i][c * VECTOR + e], key, x[i * AT_ONCE + n]);
        }
      }
    }
    share_sums<kScores, LANES / 2>(x);
    float mine[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; j++) {
      const int t = t0 + (held + j) % AT_ONCE * kUnits + unit;
      mine[j] = capped(x[j]);
      if (MASK && t < to) mine[j] = masked(mine[j], g.mask, mask_row[j] + t * g.m_k, log_fill);
      if (t >= min(to, see[j]) || t < first[j]) mine[j] = -INF;
    }
#pragma unroll
    for (int m = 0; m < kScores; m++)
      x[m] = __shfl_sync(FULL_WARP, mine[m % kHeld], m * LANES / kScores, LANES);
    float rescale[ROWS];
    bool rescales = false;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float best = row_max[i];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) best = fmaxf(best, x[i * AT_ONCE + n]);
      const float shift = best == -INF ? 0.f : best;
      rescale[i] = exp2_approximate(row_max[i] - shift), rescales |= best != row_max[i];
      row_max[i] = best, sum[i] *= rescale[i];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++)
        sum[i] += x[i * AT_ONCE + n] = exp2_approximate(x[i * AT_ONCE + n] - shift);
    }
    if (__any_sync(FULL_WARP, rescales))
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int e = 0; e < kElements; e++) out[i][e] *= rescale[i];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const Piece p = piece(stage, n, 1)[c * THREADS];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
          const float value = to_float(p.v[e]);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            out[i][c * VECTOR + e] = fmaf(x[i * AT_ONCE + n], value, out[i][c * VECTOR + e]);
        }
      }
  }

  cp_async_wait<0>();
  __syncthreads();  // all are done with what they fetched, in whose place is now what the warps
                    // have
  Partial<ROWS>* const of_warps = (Partial<ROWS>*)memory;
  Partial<ROWS>& mine = of_warps[warp];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int o = LANES; o < 32; o <<= 1) {
      const float other = __shfl_xor_sync(FULL_WARP, row_max[i], o),
                  best = fmaxf(row_max[i], other), a = rescale_factor(row_max[i], best),
                  c = rescale_factor(other, best);
      row_max[i] = best, sum[i] = sum[i] * a + __shfl_xor_sync(FULL_WARP, sum[i], o) * c;
#pragma unroll
      for (int e = 0; e < kElements; e++)
        out[i][e] = out[i][e] * a + __shfl_xor_sync(FULL_WARP, out[i][e], o) * c;
    }
    if (lane == 0) mine.row_max[i] = row_max[i], mine.sum[i] = sum[i];
    if (lane < LANES)
#pragma unroll
      for (int e = 0; e < kElements; e++) {
        const int at = column + e / VECTOR * LANES * VECTOR + e % VECTOR;
        if (at < HEAD_V) mine.out[i * HEAD_V + at] = out[i][e];
      }
  }
  __syncthreads();
  w.finish(g, of_warps, whole);
}
