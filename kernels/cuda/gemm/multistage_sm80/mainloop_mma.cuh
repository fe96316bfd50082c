// MMAs of a stage of 16-bit or 8-bit elements by mma.sync: a warp has a tile of WM x WN results.
// Fragments of both are rows of 32 bytes of k.
#pragma once
#ifndef GENERATED
#define MMA_TYPE "f16"  // or "bf16"
#ifndef ROW_SUMS
#define ROW_SUMS 0  // 8 bits: whether rows of A are added up, too, into column BN of what is staged
#endif
#endif  // GENERATED
#include "gemm/multistage_sm80/loads.cuh"
#if IS_INT8
#include "gemm/int8/mma.cuh"
#endif

constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
struct Accumulator {
  Partial v[MT][NT][4];
#if ROW_SUMS
  int rows[MT][4];
#endif
  METHOD void multiply(u32 a, u32 b) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = (warp / WARPS_N) * WM,
              wn = (warp % WARPS_N) * WN;
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      u32 fa[MT][4], fb[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; i++) {
        if (A_TRANS) {
          const int k = kk * 16 + (lane >> 4) * 8 + (lane & 7),
                    c = (wm + i * 16) / 8 + ((lane >> 3) & 1);
          ldmatrix_x4_trans(fa[i], a + (c / 8) * (BK * 128) + k * 128 + (((c & 7) ^ (k & 7)) << 4));
        } else {
          const int r = wm + i * 16 + (lane & 15), c = kk * 2 + (lane >> 4);
          ldmatrix_x4(fa[i], a + r * 128 + ((c ^ (r & 7)) << 4));
        }
      }
#pragma unroll
      for (int j = 0; j < NT / 2; j++) {
        if (B_TRANS) {
          const int k = kk * 16 + ((lane >> 3) & 1) * 8 + (lane & 7),
                    c = (wn + j * 16) / 8 + (lane >> 4);
          ldmatrix_x4_trans(fb[j], b + (c / 8) * (BK * 128) + k * 128 + (((c & 7) ^ (k & 7)) << 4));
        } else {
          const int r = wn + j * 16 + (lane >> 4) * 8 + (lane & 7), c = kk * 2 + ((lane >> 3) & 1);
          ldmatrix_x4(fb[j], b + r * 128 + ((c ^ (r & 7)) << 4));
        }
      }
#if ROW_SUMS
      if (warp % WARPS_N == 0)
#pragma unroll
        for (int i = 0; i < MT; i++)
          ::multiply(rows[i], fa[i], 0x01010101u, 0x01010101u, (T*)0, (T*)0);
#endif
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#if IS_INT8
          ::multiply(v[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1], (T*)0,
                     (Weight*)0);
#else
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
                       ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                       : "+f"(v[i][j][0]), "+f"(v[i][j][1]), "+f"(v[i][j][2]), "+f"(v[i][j][3])
                       : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]),
                         "r"(fb[j / 2][j % 2 * 2]), "r"(fb[j / 2][j % 2 * 2 + 1]));
#endif
    }
  }
  METHOD void clear() {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) v[i][j][0] = v[i][j][1] = v[i][j][2] = v[i][j][3] = 0;
#if ROW_SUMS
#pragma unroll
    for (int i = 0; i < MT; i++) rows[i][0] = rows[i][1] = rows[i][2] = rows[i][3] = 0;
#endif
  }
  METHOD void stage(Partial* to) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = (warp / WARPS_N) * WM,
              wn = (warp % WARPS_N) * WN;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) {
        Partial* p = to + (wm + i * 16 + (lane >> 2)) * PITCH + wn + j * 8 + (lane & 3) * 2;
#if IS_INT8
        *(int2*)p = make_int2(v[i][j][0], v[i][j][1]);
        *(int2*)(p + 8 * PITCH) = make_int2(v[i][j][2], v[i][j][3]);
#else
        *(float2*)p = make_float2(v[i][j][0], v[i][j][1]);
        *(float2*)(p + 8 * PITCH) = make_float2(v[i][j][2], v[i][j][3]);
#endif
      }
#if ROW_SUMS
    if (wn == 0 && (lane & 3) == 0)
#pragma unroll
      for (int i = 0; i < MT; i++) {
        int* p = to + (wm + i * 16 + (lane >> 2)) * PITCH + BN;
        p[0] = rows[i][0], p[8 * PITCH] = rows[i][2];
      }
#endif
  }
};
