// Decoding with mma.sync, without shared memory for keys. WARPS warps take turns at the CTA's keys,
// KEYS at a time. Keys and values are loaded directly into the operand registers of tensor cores,
// 16 bytes of a row per thread: the order of k within an MMA is free as long as both operands
// agree. For scores, keys are the right operand; results are transposed, and values are their left
// operand.
#pragma once
#ifndef GENERATED
#define COMPUTE STREAM
constexpr int SETS = 1;  // of 16 keys per warp and iteration, 1 or 2
#define CACHING ""       // of global loads: "" or ".L1::no_allocate"
#endif                   // GENERATED
#include "attention/decode/work.cuh"

constexpr int KEYS = 16 * SETS, kTiles = (ROWS + 7) / 8, kChunks = (HEAD + 31) / 32,
              kChunksV = (HEAD_V + 63) / 64;
constexpr float kRescaleThreshold =
    8.f;  // weights may reach 2^kRescaleThreshold without loss of precision
struct Words {
  u32 v[4];
};

// Loads 16 bytes; unless `real`, r keeps its value.
DEV void load_words(Words& r, const char* from, bool real) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0;\n@p ld.global" CACHING
               ".v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(r.v[0]), "+r"(r.v[1]), "+r"(r.v[2]), "+r"(r.v[3])
               : "l"(from), "r"(int(real))
               : "memory");
}

DEV void compute_attention(const Attention& g) {
  pdl_wait();
  __shared__ Partial<ROWS> held[WARPS + (WARPS > 1 && CLUSTER > 1)];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, across = lane / 4, quad = lane % 4;
  Work<1, true> w(g);
  w.share_keys(g);
  const int to = w.to, last = max(to - 1, 0);
  const char *const keys = (const char*)(w.k + quad * 8), *const values =
                                                              (const char*)(w.v + across * 8);
  const int k_step = int(g.k_s * sizeof(T)), v_step = int(g.v_s * sizeof(T));
  Words k[SETS][2][kChunks] = {}, v[SETS][4][kChunksV] = {}, q[2][kChunks] = {};
  auto load_keys = [&](int t) {
#pragma unroll
    for (int i = 0; i < SETS * 2; i++) {
      const char* row = keys + i64(min(t + i * 8 + across, last)) * k_step;
#pragma unroll
      for (int c = 0; c < kChunks; c++)
        load_words(k[i / 2][i % 2][c], row + c * 64,
                   c * 4 + 4 <= HEAD / 8 || c * 4 + quad < HEAD / 8);
    }
  };
  auto load_values = [&](int t) {
#pragma unroll
    for (int i = 0; i < SETS * 4; i++) {
      const char* row = values + i64(min(t + i / 2 * 8 + i % 2 + quad * 2, last)) * v_step;
#pragma unroll
      for (int c = 0; c < kChunksV; c++)
        load_words(v[i / 4][i % 4][c], row + c * 128,
                   c * 8 + 8 <= HEAD_V / 8 || c * 8 + across < HEAD_V / 8);
    }
  };
  const int first = w.from + warp * KEYS;
  if (first < to) load_keys(first), load_values(first);
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int row = n * 8 + across, column = c * 32 + quad * 8;
      // S is ROWS here: the compiler would rematerialise zeros that it knows.
      load_words(q[n][c], (const char*)(w.query(g, row) + column), row < g.S && column < HEAD);
    }
  float out[kTiles][kChunksV * 4][4] = {}, row_max[kTiles], sum[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; n++) row_max[n] = -INF, sum[n] = 0.f;
  const float scale = score_scale(g);

  for (int t = first; t < to; t += WARPS * KEYS) {
    const int next = t + WARPS * KEYS, seen = to - t;
    float s[SETS][2][4] = {};
#pragma unroll
    for (int i = 0; i < SETS * 2; i++)
#pragma unroll
      for (int c = 0; c < kChunks; c++)
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const u32 rows[4] = {q[0][c].v[w], q[1][c].v[w], q[0][c].v[w + 1], q[1][c].v[w + 1]};
          multiply(s[i / 2][i % 2], rows, k[i / 2][i % 2][c].v[w], k[i / 2][i % 2][c].v[w + 1],
                   (T*)nullptr);
        }
    if (next < to) load_keys(next);
    bool higher = false;
    float best[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      best[n] = -INF;
#pragma unroll
      for (int i = 0; i < SETS * 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = s[i / 2][i % 2][2 * n + e];
          x = i * 8 + quad * 2 + e < seen ? capped(x * scale) : -INF;
          best[n] = fmaxf(best[n], x);
        }
      higher |= best[n] > row_max[n] + kRescaleThreshold;
    }
    if (__any_sync(FULL_WARP, higher))
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        float x = fmaxf(row_max[n], best[n]);
#pragma unroll
        for (int o = 1; o < 4; o <<= 1) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, o));
        const float rescale = x == row_max[n] ? 1.f : exp2_approximate(row_max[n] - x);
        row_max[n] = x, sum[n] *= rescale;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float mine = __shfl_sync(FULL_WARP, rescale, (quad * 2 + e) * 4);
#pragma unroll
          for (int d = 0; d < kChunksV * 4; d++) out[n][d][e] *= mine, out[n][d][2 + e] *= mine;
        }
      }
    u32 p[SETS][2][kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const float shift = row_max[n] == -INF ? 0.f : row_max[n];
#pragma unroll
      for (int i = 0; i < SETS * 2; i++) {
        const float x = exp2_approximate(s[i / 2][i % 2][2 * n] - shift),
                    y = exp2_approximate(s[i / 2][i % 2][2 * n + 1] - shift);
        sum[n] += x + y, p[i / 2][i % 2][n] = pack2((T*)nullptr, x, y);
      }
    }
    if (seen < KEYS)  // weights of nothing are zero, of what is no number none
#pragma unroll
      for (int i = 0; i < SETS * 4; i++)
        if (i / 2 * 8 + i % 2 + quad * 2 >= seen)
#pragma unroll
          for (int c = 0; c < kChunksV; c++) v[i / 4][i % 4][c] = Words{};
#pragma unroll
    for (int i = 0; i < SETS; i++)
#pragma unroll
      for (int d = 0; d < kChunksV * 4; d++) {
        u32 x[4];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const u32 even = v[i][2 * e][d / 4].v[d % 4], odd = v[i][2 * e + 1][d / 4].v[d % 4];
          x[2 * e] = __byte_perm(even, odd, 0x5410), x[2 * e + 1] = __byte_perm(even, odd, 0x7632);
        }
#pragma unroll
        for (int n = 0; n < kTiles; n++)
          multiply(out[n][d], x, p[i][0][n], p[i][1][n], (T*)nullptr);
      }
    if (next < to) load_values(next);
  }

  pdl_launch_dependents();  // earlier, CTAs of the next launch would share SMs
  Partial<ROWS>& mine = held[warp];
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
#pragma unroll
    for (int o = 1; o < 4; o <<= 1) sum[n] += __shfl_xor_sync(FULL_WARP, sum[n], o);
    if (quad == 0 && n * 8 + across < ROWS)
      mine.row_max[n * 8 + across] = row_max[n], mine.sum[n * 8 + across] = sum[n];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int c = 0; c < kChunksV; c++) {
        const int row = n * 8 + quad * 2 + e, column = (c * 8 + across) * 8;
        if (row < ROWS && column < HEAD_V)
#pragma unroll
          for (int d = 0; d < 4; d += 2) {
            const float (&x)[4] = out[n][c * 4 + d], (&y)[4] = out[n][c * 4 + d + 1];
            store<4>(mine.out + row * HEAD_V + column + 2 * d,
                     Vec<float, 4>{x[e], x[2 + e], y[e], y[2 + e]});
          }
      }
  }
  if (WARPS > 1 || CLUSTER == 1) __syncthreads();
  w.finish(g, held, held[WARPS > 1 && CLUSTER > 1 ? WARPS : 0]);
}
