// Depthwise convolutions of 8-bit integers: a thread has PIXELS neighbouring results of a row and
// WIDTH channels. Zero points are taken from elements and weights before they are multiplied; taps
// outside of the image count nothing.
//
// Packed weights: [taps, round_up(channels, 16)].
#pragma once
#ifndef GENERATED
#include "gemm/int8/requantise.cuh"
#define PARAMETERS                                                                            \
  const T *x, const Weight *w, Result *y, const T *zero_x, const Weight *zero_w, int zeros_w, \
      int N, int C, int IH, int IW, int OH, int OW, int KH, int KW, int SH, int SW, int DH,   \
      int DW, int PT, int PL, int pitch, i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs,    \
      i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#define EPILOGUE_ARGUMENTS
constexpr int PIXELS = 4;
constexpr bool X_VECTOR = true, Y_VECTOR = true;  // pixels of both are aligned for whole vectors
#endif                                            // GENERATED
#include "common/base.cuh"

extern "C" __global__ void __launch_bounds__(128) conv_depthwise_bytes(PARAMETERS) {
  pdl_begin();
  const int vectors = (C + WIDTH - 1) / WIDTH, across = (OW + PIXELS - 1) / PIXELS;
  const i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (u >= i64(N) * OH * across * vectors) return;
  const int c = int(u % vectors) * WIDTH, left_channels = C - c;
  i64 rest = u / vectors;
  const int ow = int(rest % across) * PIXELS;
  rest /= across;
  const int oh = int(rest % OH), n = int(rest / OH);
  const int x_zero = zero_x ? int(*zero_x) : 0;
  alignas(16) Weight w_zero[WIDTH];
#pragma unroll
  for (int k = 0; k < WIDTH; k++)
    w_zero[k] = zero_w && k < left_channels ? zero_w[zeros_w == 1 ? 0 : c + k] : Weight(0);
  int found[PIXELS][WIDTH] = {};
  const T* const image = x + n * x_ns + c;
  for (int i = 0; i < KH; i++) {
    const int h = oh * SH - PT + i * DH;
    if (u32(h) >= u32(IH)) continue;
    for (int j = 0; j < KW; j++) {
      alignas(16) Weight taps[WIDTH];
      load_neighbours<true>(w + i64(i * KW + j) * pitch + c, WIDTH, taps);
#pragma unroll
      for (int p = 0; p < PIXELS; p++) {
        const int at = (ow + p) * SW - PL + j * DW;
        if (u32(at) >= u32(IW)) continue;
        alignas(16) T v[WIDTH];
        load_neighbours<X_VECTOR>(image + h * x_rs + at * x_cs, left_channels, v);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
          found[p][k] += (int(v[k]) - x_zero) * (int(taps[k]) - int(w_zero[k]));
      }
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const Columns columns = columns_at(epilogue, c, C);
#pragma unroll
  for (int p = 0; p < PIXELS; p++) {
    if (ow + p >= OW) break;
    const int m = (n * OH + oh) * OW + ow + p;
    finish(epilogue, columns, found[p], m, n * r_ns + oh * r_rs + (ow + p) * r_cs, c,
           left_channels);
    store_results<Y_VECTOR>(y + (n * y_ns + oh * y_rs + (ow + p) * y_cs + c), found[p],
                            left_channels);
  }
}
