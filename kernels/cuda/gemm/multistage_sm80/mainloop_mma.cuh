// MMAs of a stage of 16-bit elements by mma.sync: a warp has a tile of WM x WN results.
#pragma once
#ifndef GENERATED
#define MMA_TYPE "f16"  // or "bf16"
#endif                  // GENERATED
#include "gemm/multistage_sm80/loads.cuh"

constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
struct Accumulator {
  float v[MT][NT][4];
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
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
                       ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                       : "+f"(v[i][j][0]), "+f"(v[i][j][1]), "+f"(v[i][j][2]), "+f"(v[i][j][3])
                       : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]),
                         "r"(fb[j / 2][j % 2 * 2]), "r"(fb[j / 2][j % 2 * 2 + 1]));
    }
  }
  METHOD void clear() {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) v[i][j][0] = v[i][j][1] = v[i][j][2] = v[i][j][3] = 0.f;
  }
  METHOD void stage(float* to) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = (warp / WARPS_N) * WM,
              wn = (warp % WARPS_N) * WN;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) {
        float* p = to + (wm + i * 16 + (lane >> 2)) * PITCH + wn + j * 8 + (lane & 3) * 2;
        *(float2*)p = make_float2(v[i][j][0], v[i][j][1]);
        *(float2*)(p + 8 * PITCH) = make_float2(v[i][j][2], v[i][j][3]);
      }
  }
};
