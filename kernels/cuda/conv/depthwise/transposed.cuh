// Depthwise transposed convolution, channels last: one thread computes one output pixel for WIDTH
// channels from the taps that meet it, every SH-th row and SW-th column of the window.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int KH = 4, KW = 4;     // filter window
constexpr int SH = 2, SW = 2;     // stride
constexpr int THREADS = 128;      // of a CTA
constexpr int weight_pitch = 64;  // from a tap to the next
#define PARAMETERS                                                                            \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, int PT, int PL, int C, \
      i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED
#include "conv/depthwise/channels.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) depthwise_transposed(PARAMETERS) {
  constexpr int HITS_H = (KH + SH - 1) / SH, HITS_W = (KW + SW - 1) / SW;
  const i64 t = (i64)blockIdx.x * THREADS + threadIdx.x;
  const int chunks = (C + WIDTH - 1) / WIDTH;
  i64 rest = t / chunks;
  const int c = (int)(t % chunks) * WIDTH, count = C - c, ow = (int)(rest % OW);
  rest /= OW;
  const int oh = (int)(rest % OH);
  const i64 n = rest / OH;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
  if (n >= N) return;
  const int kh0 = (oh + PT) % SH, kw0 = (ow + PL) % SW, ih0 = (oh + PT) / SH,
            iw0 = (ow + PL) / SW;  // the first tap, and the input that it takes
  float sum[WIDTH] = {};
#pragma unroll
  for (int j = 0; j < HITS_H; j++) {
    const int kh = kh0 + j * SH, ih = ih0 - j;
    const bool inside = kh < KH && (u32)ih < (u32)IH;
    const T* row = x + n * x_ns + ih * x_rs + c / MULTIPLE;
    Raw in[HITS_W], weight[HITS_W];
#pragma unroll
    for (int i = 0; i < HITS_W; i++) {
      const int kw = kw0 + i * SW, iw = iw0 - i;
      in[i] = weight[i] = Raw{};
      if (!inside || kw >= KW || (u32)iw >= (u32)IW) continue;
      in[i] = fetch_input(row + iw * x_cs, c, count);
      weight[i] = fetch<true>(w + (i64)(kh * KW + kw) * weight_pitch + c, WIDTH);
    }
#pragma unroll
    for (int i = 0; i < HITS_W; i++) {
      float v[WIDTH], f[WIDTH];
      widen(in[i], v), widen(weight[i], f);
#pragma unroll
      for (int k = 0; k < WIDTH; k++) sum[k] = fmaf(v[k], f[k], sum[k]);
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  finish(epilogue, sum, 0, n * r_ns + oh * r_rs + ow * r_cs, c, count);
  store(y + n * y_ns + oh * y_rs + ow * y_cs + c, sum, count);
}
