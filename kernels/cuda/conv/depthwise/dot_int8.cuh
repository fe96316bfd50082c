// Depthwise convolutions of 8-bit integers: a thread has COLUMNS neighbouring results in ROWS rows,
// of four channels. The bytes of four pixels are turned into four channels of four pixels, so that
// one instruction adds up four taps of a row. Windows have no dilation along rows, and weights no
// zero points. Outside of the image x is its zero point, which is taken off with the weights' sums.
//
// Packed weights: [taps, pitch].
#pragma once
#ifndef GENERATED
#define WIDTH 4
#include "gemm/int8/requantise.cuh"
#define PARAMETERS                                                                                \
  const T *x, const Weight *w, Result *y, const T *zero_x, int N, int IH, int IW, int OH, int OW, \
      int PT, int PL, i64 x_rs, i64 x_ns, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#define EPILOGUE_ARGUMENTS
#define DOT_TYPES "u32.s32"  // of x and of weights
constexpr int KH = 3, KW = 3, SH = 1, SW = 1, DH = 1, C = 64, PITCH = 64;
constexpr int COLUMNS = 4, ROWS = 2, X_CS = 64, Y_CS = 64;
constexpr bool EARLY = true;     // weights are read before griddepcontrol.wait
constexpr bool Y_VECTOR = true;  // pixels of y are aligned for four channels
#endif                           // GENERATED
#include "common/base.cuh"

constexpr int SPAN = (COLUMNS - 1) * SW + KW;                                  // pixels of a row
constexpr int WORDS = (KW + 3) / 4, GROUPS = (SPAN + 3 + 4 * WORDS - KW) / 4;  // of four pixels
constexpr int SEEN = (ROWS - 1) * SH + (KH - 1) * DH + 1;                      // rows

DEV int dot(u32 a, u32 b, int c) {
  int d;
  asm("dp4a." DOT_TYPES " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Bytes of four words, each of four channels, as four words of a channel each.
DEV void transpose(const u32 (&v)[4], u32 (&to)[4]) {
  const u32 low[2] = {__byte_perm(v[0], v[1], 0x5140), __byte_perm(v[2], v[3], 0x5140)},
            high[2] = {__byte_perm(v[0], v[1], 0x7362), __byte_perm(v[2], v[3], 0x7362)};
  to[0] = __byte_perm(low[0], low[1], 0x5410), to[1] = __byte_perm(low[0], low[1], 0x7632);
  to[2] = __byte_perm(high[0], high[1], 0x5410), to[3] = __byte_perm(high[0], high[1], 0x7632);
}

extern "C" __global__ void __launch_bounds__(128) conv_depthwise_dots(PARAMETERS) {
  constexpr int CHUNKS = C / 4;
  const u32 t = blockIdx.x * 128 + threadIdx.x, strips = (OW + COLUMNS - 1) / COLUMNS,
            bands = (OH + ROWS - 1) / ROWS;
  const int c = int(t % CHUNKS) * 4;
  u32 rest = t / CHUNKS;
  const int ow = int(rest % strips) * COLUMNS;
  rest /= strips;
  const int oh = int(rest % bands) * ROWS, n = int(rest / bands);
  pdl_launch_dependents();
  if (!EARLY) pdl_wait();
  u32 weight[KH][WORDS][4];
  int total[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < KH; i++)
#pragma unroll
    for (int q = 0; q < WORDS; q++) {
      u32 taps[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        taps[k] = 4 * q + k < KW ? *(const u32*)(w + (i * KW + 4 * q + k) * PITCH + c) : 0u;
      transpose(taps, weight[i][q]);
    }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  Columns columns = {};
  if (FIXED) columns = columns_at(epilogue, c, C);
  if (EARLY) pdl_wait();
  if (n >= N) return;
  const int zero = zero_x ? int(*zero_x) : 0;
  const u32 outside = u32(zero & 255) * 0x01010101u;
#pragma unroll
  for (int i = 0; i < KH; i++)
#pragma unroll
    for (int q = 0; q < WORDS; q++)
#pragma unroll
      for (int k = 0; k < 4; k++) total[k] = dot(outside, weight[i][q][k], total[k]);
  int sum[ROWS][COLUMNS][4];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sum[r][j][k] = -total[k];
  const int top = oh * SH - PT, left = ow * SW - PL;
  const T* row = x + n * x_ns + top * x_rs + left * X_CS + c;
#pragma unroll
  for (int h = 0; h < SEEN; h++, row += x_rs) {
    bool read = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      read |= h >= r * SH && (h - r * SH) % DH == 0 && (h - r * SH) / DH < KH;
    if (!read) continue;
    const bool there = u32(top + h) < u32(IH);
    u32 pixels[4 * GROUPS], channels[GROUPS][4];
#pragma unroll
    for (int p = 0; p < 4 * GROUPS; p++)
      pixels[p] =
          p < SPAN && there && u32(left + p) < u32(IW) ? *(const u32*)(row + p * X_CS) : outside;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
      transpose({pixels[4 * g], pixels[4 * g + 1], pixels[4 * g + 2], pixels[4 * g + 3]},
                channels[g]);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int q = 0; q < WORDS; q++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
          constexpr u32 SHIFTED[4] = {0x3210, 0x4321, 0x5432, 0x6543};
          const int at = j * SW + 4 * q, g = at / 4;
          const u32 four = at % 4 ? __byte_perm(channels[g][k], channels[min(g + 1, GROUPS - 1)][k],
                                                SHIFTED[at % 4])
                                  : channels[g][k];
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            const int i = h - r * SH;
            if (i >= 0 && i % DH == 0 && i / DH < KH)
              sum[r][j][k] = dot(four, weight[i / DH][q][k], sum[r][j][k]);
          }
        }
  }
  if (!FIXED) columns = columns_at(epilogue, c, C);
  Result* const to = y + n * y_ns + oh * y_rs + ow * Y_CS + c;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      if (oh + r >= OH || ow + j >= OW) continue;
      const int m = (n * OH + oh + r) * OW + ow + j;
      finish(epilogue, columns, sum[r][j], m, n * r_ns + (oh + r) * r_rs + (ow + j) * r_cs, c, 4);
      store_results<Y_VECTOR>(to + r * y_rs + j * Y_CS, sum[r][j], 4);
    }
}
