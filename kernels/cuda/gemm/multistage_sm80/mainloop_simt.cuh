// Multiplies a stage of f32 by FFMA.
#pragma once
#ifndef GENERATED
#define TERMS 0
constexpr bool AHEAD = true;  // operands are prefetched from shared memory
#endif                        // GENERATED
#include "gemm/multistage_sm80/operands_f32.cuh"

// A thread has every TY-th row and every TX-th column of the tile; of a transposed operand every
// TY-th (TX-th) vector of four. A group of warps has every WARPS_K-th chunk of four k of a stage.
constexpr int TX = 8 * WARPS_N, TY = 4 * WARPS_M, TM = BM / TY, TN = BN / TX;
struct alignas(16) Four {
  float v[4];
};
struct Accumulator {
  float v[TM][TN];
  // Lanes are arranged so that of 16 lanes, which one shared memory access serves, two read
  // different rows and eight read different columns.
  METHOD int across() const { return threadIdx.x / 2 % 8 + threadIdx.x / 32 % WARPS_N * 8; }
  METHOD int down() const {
    return threadIdx.x % 2 + threadIdx.x % 32 / 16 * 2 + threadIdx.x / (32 * WARPS_N) % WARPS_M * 4;
  }
  METHOD int group() const { return threadIdx.x / (32 * WARPS_M * WARPS_N); }
  METHOD int row(int i) const {
    return A_TRANS ? (i / 4 * TY + down()) * 4 + i % 4 : down() + i * TY;
  }
  METHOD int column(int j) const {
    return B_TRANS ? (j / 4 * TX + across()) * 4 + j % 4 : across() + j * TX;
  }
  // Volatile, so that the compiler does not move prefetches behind their use.
  DEV void read(Four& to, u32 from) {
    if (AHEAD)
      asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(to.v[0]), "=f"(to.v[1]), "=f"(to.v[2]), "=f"(to.v[3])
                   : "r"(from)
                   : "memory");
    else
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(to.v[0]), "=f"(to.v[1]), "=f"(to.v[2]), "=f"(to.v[3])
                   : "r"(from)
                   : "memory");
  }
  // Address of vector n of four elements, of the COUNT that a thread has at chunk c of k: four k of
  // row n, or, of a transposed operand, vectors of rows for one k after another.
  template <bool TRANS, int SIZE, int COUNT, int STEP>
  DEV u32 four(u32 base, int own, int n, int c) {
    if (TRANS)
      return base + own * 16 + (c * 4 + n / (COUNT / 4)) * (SIZE * 4) +
             n % (COUNT / 4) * (STEP * 16);
    return base + own * 128 + ((c ^ (own & 7) ^ (n * STEP & 7)) << 4) + n * STEP * 128;
  }
  // Multiplies vector n of the right operand by those of the left operand with the same k.
  METHOD void multiply_four(const Four (&l)[TM], const Four& r, int n) {
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
      for (int m = 0; m < TM; m++) {
        // e counts k, or columns of a transposed B
        const int i = AHEAD && e % 2 ? TM - 1 - m : m, k = B_TRANS ? n / (TN / 4) : e,
                  j = B_TRANS ? n % (TN / 4) * 4 + e : n;
        v[i][j] = fmaf(A_TRANS ? l[k * (TM / 4) + i / 4].v[i % 4] : l[i].v[k], r.v[e], v[i][j]);
      }
  }
  METHOD void multiply(u32 a, u32 b) {
    constexpr int Q = 8 / WARPS_K, PAIR = AHEAD && Q > 1 ? 2 : 1;
    const int tx = across(), ty = down(), g = group();
    Four l[AHEAD ? 2 : 1][TM], r[2];
    auto left = [&](int half, int n, int q) {
      read(l[half][n], four<A_TRANS, BM, TM, TY>(a, ty, n, q * WARPS_K + g));
    };
    auto right = [&](int n, int q) {
      read(r[n % 2], four<B_TRANS, BN, TN, TX>(b, tx, n, q * WARPS_K + g));
    };  // TN is even
    if constexpr (!AHEAD) {
#pragma unroll 2
      for (int q = 0; q < Q; q++) {
#pragma unroll
        for (int n = 0; n < TM; n++) left(0, n, q);
#pragma unroll
        for (int n = 0; n < TN; n++) {
          right(n, q);
          multiply_four(l[0], r[n % 2], n);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < TM; n++) left(0, n, 0);
      right(0, 0);
#pragma unroll 1
      for (int q = 0; q < Q; q += PAIR)
#pragma unroll
        for (int half = 0; half < PAIR; half++) {
          const bool more = Q > PAIR && half == PAIR - 1 ? q + PAIR < Q : half < PAIR - 1;
#pragma unroll
          for (int n = 0; n < TN; n++) {
            if (n + 1 < TN)
              right(n + 1, q + half);
            else if (more)
              right(0, q + half + 1);
#pragma unroll
            for (int i = n * TM / TN; i < (n + 1) * TM / TN; i++)
              if (more) left(half ^ 1, i, q + half + 1);
            multiply_four(l[half], r[n % 2], n);
          }
        }
    }
  }
  METHOD bool again() const { return false; }
  METHOD void clear() {
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TN; j++) v[i][j] = 0.f;
  }
  METHOD void stage(float* to) const {
    float* const mine = to + group() * (BM * PITCH);
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TN; j++) mine[row(i) * PITCH + column(j)] = v[i][j];
    if (WARPS_K > 1) join_groups(to);
  }
};
