// Multiplies a stage of f32 by tensor cores in TF32 (significands of 11 bits). TERMS 1: elements
// are rounded to TF32. TERMS 3 (3xTF32): an element is split into a TF32 number and a remainder,
// and of the four cross terms only remainder * remainder, at most 2^-22 of the whole, is dropped.
// Tensor cores truncate sums: they add eight k from zero, and FADD adds this to the accumulators,
// so that errors do not grow with k.
#pragma once
#include "gemm/multistage_sm80/operands_f32.cuh"

constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
// Elements of a transposed operand that a thread reads at a time: they are the same row of as many
// fragments, and rows of the accumulator are permuted accordingly.
constexpr int A_WIDE = MT % 2 ? 2 : 4, B_WIDE = USE_WGMMA ? 1 : NT % 4 ? 2 : 4;
static_assert(WM % 16 == 0 && WN % 16 == 0 && 4 % WARPS_K == 0, "whole fragments");

// Tensor cores truncate f32 to TF32. Multiplied by NEAREST before, an element becomes the nearest
// TF32 number or the next one; exact elements stay exact.
constexpr float NEAREST = 1.f + 0.72f / 2048;
constexpr u32 TF32_BITS = 0xffffe000, EXPONENT_BITS = 0x7f800000;

// An element split for 3xTF32. CAREFUL: also for infinity, NaN and numbers that round to infinity.
// `cross`, the factor of the other element's remainder, is `high` if that is finite, else 0.
template <bool CAREFUL>
struct Parts {
  u32 high, low, cross;
  METHOD void split(u32 bits) {
    const float a = __uint_as_float(bits);
    if (TERMS == 1) {
      high = __float_as_uint(a * NEAREST);
      return;
    }
    high = (bits + 0x1000) & TF32_BITS;
    if (CAREFUL && (high & EXPONENT_BITS) == EXPONENT_BITS) high = bits & TF32_BITS;
    const bool special = CAREFUL && (bits & EXPONENT_BITS) == EXPONENT_BITS;
    low = special ? 0 : __float_as_uint(a - __uint_as_float(high));
    cross = special ? 0 : high;
    if (special && a != a) high = 0x7fc00000;
  }
};
// sum (from zero if FIRST) + a * b of 16 x 8 and 8 x 8.
template <bool FIRST>
DEV void multiply_add(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (FIRST)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <int WIDE>
DEV void read_line(u32 (&r)[WIDE], u32 from) {
  if constexpr (WIDE == 4)
    asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  else if constexpr (WIDE == 2)
    asm volatile("ld.volatile.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(r[0]) : "r"(from) : "memory");
}

struct WarpSums {
  float v[MT][NT][4];
  bool careful = false;
  struct Fragments {
    u32 a[MT][4], b[NT][2];
  };
  // First row and column of this thread's warp, and the index of its group of warps along k.
  METHOD int row0() const { return threadIdx.x / 32 % (WARPS_M * WARPS_N) / WARPS_N * WM; }
  METHOD int column0() const { return threadIdx.x / 32 % WARPS_N * WN; }
  METHOD int group() const { return threadIdx.x / (32 * WARPS_M * WARPS_N); }
  // Row of a[i][half] of fragments and columns of b[j]: `at` is 0..7.
  METHOD int row(int i, int half, int at) const {
    return A_TRANS ? i / (A_WIDE / 2) * (8 * A_WIDE) + at * A_WIDE + i % (A_WIDE / 2) * 2 + half
                   : i * 16 + half * 8 + at;
  }
  METHOD int column(int j, int at) const {
    return B_TRANS ? j / B_WIDE * (8 * B_WIDE) + at * B_WIDE + j % B_WIDE : j * 8 + at;
  }
  // Eight k of a stage, of which step `kk` has those from 8 * kk on.
  METHOD void read(Fragments& f, u32 a, u32 b, int kk) const {
    read_a(f.a, a, kk);
    read_b(f.b, b, kk);
  }
  METHOD void read_a(u32 (&fa)[MT][4], u32 a, int kk) const {
    const int lane = threadIdx.x % 32, at = lane / 4, k = kk * 8 + lane % 4, swizzle = lane % 4 * 8;
    if (A_TRANS) {
#pragma unroll
      for (int i = 0; i < MT * 2 / A_WIDE; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          u32 r[A_WIDE];
          read_line(r, a + ((k + h * 4) * BM + ((row0() + (i * 8 + at) * A_WIDE) ^ swizzle)) * 4);
#pragma unroll
          for (int e = 0; e < A_WIDE; e++) fa[i * (A_WIDE / 2) + e / 2][h * 2 + e % 2] = r[e];
        }
    } else {
#pragma unroll
      for (int i = 0; i < MT; i++) {
        const int r = row0() + i * 16 + lane % 16, c = kk * 2 + lane / 16;
        ldmatrix_x4(fa[i], a + r * 128 + ((c ^ (r & 7)) << 4));
      }
    }
  }
  METHOD void read_b(u32 (&fb)[NT][2], u32 b, int kk) const {
    const int lane = threadIdx.x % 32, at = lane / 4, k = kk * 8 + lane % 4, swizzle = lane % 4 * 8;
    if (B_TRANS) {
#pragma unroll
      for (int j = 0; j < NT / B_WIDE; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          u32 r[B_WIDE];
          read_line(r,
                    b + ((k + h * 4) * BN + ((column0() + (j * 8 + at) * B_WIDE) ^ swizzle)) * 4);
#pragma unroll
          for (int e = 0; e < B_WIDE; e++) fb[j * B_WIDE + e][h] = r[e];
        }
    } else {
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        const int r = column0() + j * 8 + lane / 16 * 8 + lane % 8, c = kk * 2 + lane / 8 % 2;
        u32 q[4];
        ldmatrix_x4(q, b + r * 128 + ((c ^ (r & 7)) << 4));
        fb[j][0] = q[0], fb[j][1] = q[1], fb[j + 1][0] = q[2], fb[j + 1][1] = q[3];
      }
    }
  }
  template <bool CAREFUL>
  METHOD void add(const Fragments& f) {
    using Element = Parts<CAREFUL>;
    Element a[MT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) a[i][e].split(f.a[i][e]);
    constexpr int INTERLEAVED = MT < 4 ? 2 : 1;  // independent MMAs
#pragma unroll
    for (int j0 = 0; j0 < NT; j0 += INTERLEAVED) {
      Element b[INTERLEAVED][2];
      float sum[INTERLEAVED][MT][4];
#pragma unroll
      for (int j = 0; j < INTERLEAVED; j++)
        b[j][0].split(f.b[j0 + j][0]), b[j][1].split(f.b[j0 + j][1]);
#pragma unroll
      for (int term = 3 - TERMS; term < 3; term++)
#pragma unroll
        for (int j = 0; j < INTERLEAVED; j++)
#pragma unroll
          for (int i = 0; i < MT; i++) {
            const Element(&p)[4] = a[i], (&q)[2] = b[j];
            if (TERMS == 1)
              multiply_add<false>(v[i][j0 + j], p[0].high, p[1].high, p[2].high, p[3].high,
                                  q[0].high, q[1].high);
            else if (term == 0)
              multiply_add<true>(sum[j][i], p[0].low, p[1].low, p[2].low, p[3].low, q[0].cross,
                                 q[1].cross);
            else if (term == 1)
              multiply_add<false>(sum[j][i], p[0].cross, p[1].cross, p[2].cross, p[3].cross,
                                  q[0].low, q[1].low);
            else
              multiply_add<false>(sum[j][i], p[0].high, p[1].high, p[2].high, p[3].high, q[0].high,
                                  q[1].high);
          }
      if (TERMS == 1) continue;
#pragma unroll
      for (int j = 0; j < INTERLEAVED; j++)
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int e = 0; e < 4; e++) v[i][j0 + j][e] += sum[j][i][e];
    }
  }
  METHOD void multiply(u32 a, u32 b) {
    constexpr int STEPS = 4 / WARPS_K;
    if (USE_WGMMA || careful) {
#pragma unroll 1
      for (int s = 0; s < STEPS; s++) {
        Fragments f;
        read(f, a, b, s * WARPS_K + group());
        add<true>(f);
      }
      return;
    }
    constexpr int AHEAD = MT * NT < 32 ? 1 : 0;  // else registers do not suffice
    Fragments f[AHEAD + 1];
    if (AHEAD) read(f[0], a, b, group());
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int next = s + AHEAD;
      if (next < STEPS) read(f[next % (AHEAD + 1)], a, b, next * WARPS_K + group());
      add<false>(f[s % (AHEAD + 1)]);
    }
  }
  // Whether a result is infinite or NaN. Splitting of elements that are infinite, or nearly, may be
  // the cause: then all of k is summed again with CAREFUL.
  METHOD bool again() {
    if (TERMS == 1 || careful) return false;
    float zero = 0.f;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) zero = fmaf(v[i][j][e], 0.f, zero);
    return careful = __syncthreads_or(zero != 0.f);
  }
  METHOD void clear() {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) v[i][j][0] = v[i][j][1] = v[i][j][2] = v[i][j][3] = 0.f;
  }
  METHOD void stage(float* to) const {
    const int lane = threadIdx.x % 32;
    float* const mine = to + group() * (BM * PITCH) + row0() * PITCH + column0();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          mine[row(i, e / 2, lane / 4) * PITCH + column(j, lane % 4 * 2 + e % 2)] = v[i][j][e];
    if (WARPS_K > 1) join_groups(to);
  }
};
#if !USE_WGMMA
using Accumulator = WarpSums;
#endif
