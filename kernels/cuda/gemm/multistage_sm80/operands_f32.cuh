// Operands of f32 in shared memory, for FFMA (`gemm/multistage_sm80/mainloop_simt.cuh`) and tensor
// cores (`gemm/multistage_sm80/mainloop_tf32.cuh`).
//
// An operand that is contiguous along k has rows of 128 bytes as in
// `gemm/multistage_sm80/loads.cuh`. A transposed one (TRANS) has lines of k; for tensor cores
// element r of line k is at r ^ (k % 4 * 8), so that 8 elements of 4 lines are in different banks.
#pragma once
#ifndef GENERATED
#define IS_F32 1
#endif  // GENERATED
#include "gemm/multistage_sm80/loads.cuh"

// An operand of `rows` by `k`: element (r, k) at base + r * row_step + k * k_step.
template <int ROWS, int BYTES, bool TRANS, bool GATHER>
struct Matrix {
  // Copies of less than 16 bytes go to neighbouring threads, so that a warp copies what is
  // contiguous.
  static constexpr int COPY = GATHER ? 16 : BYTES, E = COPY / 4, ACROSS = (TRANS ? ROWS : BK) / E,
                       COPIES = ROWS * BK / E, COUNT = (COPIES + THREADS - 1) / THREADS;
  // Copies of a thread are DOWN lines apart; where a line has more copies than the CTA threads,
  // STEPS of them make a line.
  static constexpr int DOWN = THREADS / ACROSS, STEPS = DOWN ? 1 : ACROSS / THREADS;
  static_assert(THREADS % ACROSS == 0 || ACROSS % THREADS == 0, "copies of a thread lie alike");
  const T* base;
  i64 row_step, k_step;
  int rows, k;  // rows from the tile's first one on; all of k
  static_assert(!TERMS || !TRANS || ROWS % 32 == 0, "swizzled within a line");
  DEV u32 swizzle(int line) { return TERMS ? (line & 3) << 5 : 0; }
  METHOD void load(u32 to, int k0) const {
    if (GATHER)
      gather(to, k0);
    else if (rows >= ROWS && k0 + BK <= k)
      load<true>(to, k0);
    else
      load<false>(to, k0);
  }
  template <bool WHOLE>
  METHOD void load(u32 to, int k0) const {
    const int t = threadIdx.x, line0 = DOWN ? t / (DOWN ? ACROSS : 1) : 0,
              piece0 = DOWN ? t % ACROSS : t;
    const i64 step = TRANS ? k_step : row_step;
    const T* from = TRANS ? base + (k0 + line0) * k_step + piece0 * E
                          : base + line0 * row_step + k0 + piece0 * E;
    const u32 mine =
        TRANS ? (to + t * COPY) ^ swizzle(line0)
              : to + line0 * 128 + (((piece0 * E / 4) ^ (line0 & 7)) << 4) + piece0 * E % 4 * 4;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (COPIES % THREADS != 0 && t + i * THREADS >= COPIES) break;
      const int line = i / STEPS * (DOWN ? DOWN : 1),
                piece = i % STEPS * THREADS;  // relative to the first copy
      const u32 at = TRANS ? (mine ^ swizzle(line)) + i * THREADS * COPY
                           : (mine ^ ((line & 7) << 4)) + line * 128;
      const T* p = from + line * step + piece * E;
      if (WHOLE) {
        if (COPY == 16)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
        else
          asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(p),
                       "n"(COPY < 16 ? COPY : 8)
                       : "memory");
      } else {
        const int r = TRANS ? (piece0 + piece) * E : line0 + line,
                  kk = TRANS ? k0 + line0 + line : k0 + piece0 * E;
        const int count = TRANS ? (kk < k ? rows - r : 0) : r < rows ? k - kk : 0;
        const int bytes = max(0, min(count, E)) * 4;
        const T* const real = count > 0 ? p : base;
        COPY == 16  ? cp_async<16>(at, real, bytes)
        : COPY == 8 ? cp_async<8>(at, real, bytes)
                    : cp_async<4>(at, real, bytes);
      }
    }
  }
  // Element by element; neighbouring threads have neighbouring rows.
  METHOD void gather(u32 to, int k0) const {
#pragma unroll
    for (int i = 0; i < ROWS * 8 / THREADS + (ROWS * 8 % THREADS != 0); i++) {
      const int c = threadIdx.x + i * THREADS, r = c % ROWS, chunk = c / ROWS,
                kk = k0 + chunk * CHUNK;
      if (ROWS * 8 % THREADS == 0 || c < ROWS * 8)
        copy_chunk<4, true>(to + r * 128 + ((chunk ^ (r & 7)) << 4),
                            base + r * row_step + kk * k_step, r < rows ? k - kk : 0, k_step);
    }
  }
};

// Adds the staged accumulators of the WARPS_K groups of warps.
DEV void join_groups(float* to) {
  __syncthreads();
  for (int t = threadIdx.x; t < BM * PITCH / 4; t += THREADS) {
    float4 sum = ((const float4*)to)[t];
#pragma unroll
    for (int g = 1; g < WARPS_K; g++) {
      const float4 other = ((const float4*)(to + g * (BM * PITCH)))[t];
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    ((float4*)to)[t] = sum;
  }
}
