// Fragments of mma.sync of a piece: weights become fragments A in registers, as integers less their
// zeros, which is exact; rows are fragments B. f32 is the sum of three bf16, so that products are
// exact (a row that holds an infinity gives NaN).
#pragma once
#include "common/mma.cuh"
#include "gemm/nbits/terms.cuh"

#if IS_F32
typedef bfloat_t F;
constexpr int PARTS = 3;
#else
typedef T F;
constexpr int PARTS = 1;
#endif
constexpr int SUBS = BLOCK && BLOCK < DEPTH ? DEPTH / BLOCK : 1;   // blocks of a piece
constexpr int SUB_STEPS = STEPS / SUBS, RUNS = DEPTH / (4 * RUN);  // steps of a block, runs

// Fragments B of 8 rows of a piece: of each run the pairs, as PARTS numbers that add up.
struct Rows {
  u32 b[RUNS][PARTS][RUN / 2];
};
struct alignas(RUN * sizeof(T) < 16 ? 8 : 16) Run {
  T v[RUN];
};

DEV void split(const Run& run, u32 (&b)[PARTS][RUN / 2]) {
#if IS_F32
#pragma unroll
  for (int j = 0; j < RUN / 2; j++) {
    float u = run.v[2 * j], v = run.v[2 * j + 1];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      float a, c;
      b[p][j] = pack2((F*)0, u, v);
      unpack2((F*)0, b[p][j], a, c);
      u -= a, v -= c;
    }
  }
#else
#pragma unroll
  for (int j = 0; j < RUN / 2; j++) b[0][j] = ((const u32*)run.v)[j];
#endif
}

template <int STEP>
DEV void fragment(u32 (&a)[4], const u32 (&words)[4], u32 zero, u32 other) {
  a[0] = pair<pair_of(STEP)>((F*)0, words[word_of(STEP, 0)], zero);
  a[1] = pair<pair_of(STEP)>((F*)0, words[word_of(STEP, 1)], other);
  a[2] = pair<pair_of(STEP) + 1>((F*)0, words[word_of(STEP, 0)], zero);
  a[3] = pair<pair_of(STEP) + 1>((F*)0, words[word_of(STEP, 1)], other);
}
// part += steps STEP.. of a block of one tile, of which COUNT are left, by ROW_TILES times 8 rows.
template <int STEP, int COUNT, int ROW_TILES>
DEV void add_steps(float (&part)[ROW_TILES][4], const u32 (&words)[4], u32 zero, u32 other,
                   const Rows (&x)[ROW_TILES]) {
  if constexpr (COUNT > 0) {
    constexpr int R = RUN == 8 ? STEP / 2 : STEP, AT = RUN == 8 ? STEP % 2 * 2 : 0;
    u32 a[4];
    fragment<STEP>(a, words, zero, other);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
      for (int p = 0; p < PARTS; p++)
        multiply(part[r], a, x[r].b[R][p][AT], x[r].b[R][p][AT + 1], (F*)0);
    add_steps<STEP + 1, COUNT - 1>(part, words, zero, other, x);
  }
}
