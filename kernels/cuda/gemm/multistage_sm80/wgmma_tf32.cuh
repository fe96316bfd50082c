// 3xTF32 of `gemm/multistage_sm80/mainloop_tf32.cuh` by wgmma: a warpgroup has 64 rows and all
// columns, with A from registers and B from shared memory in rows of 128 bytes along k.
//
// An element is split into the nearest TF32 number and a remainder. A B that is contiguous along k
// is read in place, as tensor cores truncate it to TF32, and only its remainders are written, next
// to the stage. Of a transposed B both are written, contiguous along k. Tensor cores add the 32 k
// of a stage from zero, remainders first; FADD adds this to the accumulators.
#pragma once
#ifndef GENERATED
#define IS_F32 1
#define USE_WGMMA 1
#define MMA_TYPE "tf32"
#define WGMMA_SIZES WGMMA(64)
#endif  // GENERATED
#include "common/wgmma.cuh"
#include "gemm/multistage_sm80/mainloop_tf32.cuh"

constexpr int PART_BYTES = BN * 128, PARTS_BYTES = (B_TRANS ? 2 : 1) * PART_BYTES;
static_assert(WM == 16 && WARPS_N == 1 && WARPS_K == 1 && WARPS_M % 4 == 0 && TERMS == 3,
              "warpgroups of 64 rows");

DEV u32 less(u32 bits, u32 part) {
  return __float_as_uint(__uint_as_float(bits) - __uint_as_float(part));
}
DEV u32 nearest(u32 bits) { return (bits + 0x1000) & TF32_BITS; }
// Rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
DEV u64 lines(u32 address) {
  return (u64)(address >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
DEV u32 load1(u32 from) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
DEV void load4(u32 (&v)[4], u32 from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}
DEV void store4(u32 to, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

struct Accumulator : WarpSums {
  float part[BN / 2];
  METHOD void clear() {
    WarpSums::clear();
#pragma unroll
    for (int k = 0; k < BN / 2; k++) part[k] = 0.f;
  }
  METHOD void split(u32 b, u32 parts) const {
    constexpr int CHUNKS = BN * 8,
                  AT_ONCE = B_TRANS && !A_TRANS && THREADS == 256 && BN == 64
                                ? 1
                                : 8;  // with two resident CTAs, registers suffice for no more
#pragma unroll AT_ONCE
    for (int i = 0; i < (CHUNKS + THREADS - 1) / THREADS; i++) {
      const int c = threadIdx.x + i * THREADS;
      if (CHUNKS % THREADS != 0 && c >= CHUNKS) break;
      u32 v[4], low[4], to;
      if (B_TRANS) {
        const int n = c % BN, q = c / BN;
        to = parts + n * 128 + ((q ^ (n & 7)) << 4);
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = load1(b + ((q * 4 + e) * BN + (n ^ (e * 8))) * 4);
        u32 high[4];
#pragma unroll
        for (int e = 0; e < 4; e++) high[e] = nearest(v[e]), low[e] = less(v[e], high[e]);
        store4(to + PART_BYTES, high);
      } else {
        to = parts + c * 16;
        load4(v, b + c * 16);
#pragma unroll
        for (int e = 0; e < 4; e++)
          low[e] = less(v[e], v[e] & TF32_BITS) + 0x1000;  // tensor cores truncate it
      }
      store4(to, low);
    }
  }
  // Waits for the MMAs of the step before and adds their sums.
  METHOD void finish() {
    wgmma_wait<0>();
#pragma unroll
    for (int k = 0; k < BN / 2; k++) v[0][k / 4][k % 4] += part[k];
  }
  METHOD void multiply(u32 a, u32 b, u32 parts) {
    split(b, parts);  // while tensor cores multiply the step before
    u32 high[4][1][4], low[4][4];
    finish();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      read_a(high[kk], a, kk);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const u32 whole = high[kk][0][e];
        high[kk][0][e] = nearest(whole), low[kk][e] = less(whole, high[kk][0][e]);
      }
    }
    fence_proxy_async();
    __syncthreads();
    const u64 rest = lines(parts), whole = lines(B_TRANS ? parts + PART_BYTES : b);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma(part, low[kk], whole + kk * 2, kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma(part, high[kk][0], rest + kk * 2, 1);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma(part, high[kk][0], whole + kk * 2, 1);
    wgmma_commit();
  }
};
