// Depthwise convolution, channels last: one thread computes COLUMNS neighbouring outputs of LINES
// neighbouring rows for WIDTH channels, and reads every input once for all of them. Neighbouring
// threads have neighbouring channels. Loads are not in branches: pixels outside of the image are
// zero, and all loads of a thread are in flight together.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3;          // filter window
constexpr int SH = 1, SW = 1;          // stride
constexpr int DH = 1, DW = 1;          // dilation
constexpr bool TRANSPOSED = false;     // a transposed convolution, COLUMNS = LINES = 1
constexpr int COLUMNS = 2, LINES = 2;  // neighbouring outputs of a thread
constexpr int LARGE = 121;             // taps beyond which a thread processes rows one by one
constexpr int THREADS = 128;           // of a CTA
constexpr int weight_pitch = 64;       // from a tap to the next; negative: read from the end
constexpr bool EARLY = false;          // weights are read into registers before
                                       // griddepcontrol.wait
#define PARAMETERS                                                                            \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, int PT, int PL, int C, \
      i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED
#include "conv/depthwise/channels.cuh"

constexpr int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1,
              DEPTH = (LINES - 1) * SH + (KH - 1) * DH + 1;  // input columns and rows of a thread
constexpr int UNROLLED = KH * KW <= LARGE ? DEPTH : 1;

extern "C" __global__ void __launch_bounds__(THREADS) conv_depthwise_direct(PARAMETERS) {
  const i64 t = (i64)blockIdx.x * THREADS + threadIdx.x;
  const int chunks = (C + WIDTH - 1) / WIDTH, strips = (OW + COLUMNS - 1) / COLUMNS;
  i64 rest = t / chunks;
  const int c = (int)(t % chunks) * WIDTH, count = C - c;
  const int ow0 = (int)(rest % strips) * COLUMNS;
  rest /= strips;
  const int bands = (OH + LINES - 1) / LINES, oh0 = (int)(rest % bands) * LINES;
  const i64 n = rest / bands;
  Raw early[EARLY ? KH * KW : 1];
  if (EARLY)
#pragma unroll
    for (int k = 0; k < KH * KW; k++) early[k] = fetch<true>(w + (i64)k * weight_pitch + c, WIDTH);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
  if (n >= N) return;
  float sum[LINES][COLUMNS][WIDTH] = {};
  if constexpr (TRANSPOSED) {  // taps of the output: every SH-th row and SW-th column
    constexpr int HITS = (KW + SW - 1) / SW;
    const int kh0 = (oh0 + PT) % SH, kw0 = (ow0 + PL) % SW, ih0 = (oh0 + PT) / SH,
              iw0 = (ow0 + PL) / SW;  // the first tap, and its input
#pragma unroll
    for (int j = 0; j < (KH + SH - 1) / SH; j++) {
      const int kh = kh0 + j * SH, ih = ih0 - j;
      const bool inside = kh < KH && (u32)ih < (u32)IH;
      const T* row = x + n * x_ns + ih * x_rs + c / MULTIPLE;
      Raw in[HITS], weight[HITS];
#pragma unroll
      for (int i = 0; i < HITS; i++) {
        const int kw = kw0 + i * SW, iw = iw0 - i;
        in[i] = weight[i] = Raw{};
        if (!inside || kw >= KW || (u32)iw >= (u32)IW) continue;
        in[i] = fetch_input(row + iw * x_cs, c, count);
        weight[i] = fetch<true>(w + (i64)(kh * KW + kw) * weight_pitch + c, WIDTH);
      }
#pragma unroll
      for (int i = 0; i < HITS; i++) {
        float v[WIDTH], f[WIDTH];
        widen(in[i], v), widen(weight[i], f);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) sum[0][0][k] = fmaf(v[k], f[k], sum[0][0][k]);
      }
    }
  } else {
    const int iw0 = ow0 * SW - PL;
#pragma unroll UNROLLED
    for (int d = 0; d < DEPTH; d++) {
      bool read = false;
#pragma unroll
      for (int line = 0; line < LINES; line++)
        read |= d >= line * SH && (d - line * SH) % DH == 0 && (d - line * SH) / DH < KH;
      if (!read) continue;
      const int ih = oh0 * SH - PT + d;
      const bool inside = (u32)ih < (u32)IH;
      if (UNROLLED == 1 && !inside) continue;
      const T* row = x + n * x_ns + ih * x_rs + c / MULTIPLE;
      Raw in[SPAN];
#pragma unroll
      for (int s = 0; s < SPAN; s++) {
        in[s] = Raw{};
        if (inside && (u32)(iw0 + s) < (u32)IW)
          in[s] = fetch_input(row + (iw0 + s) * x_cs, c, count);
      }
#pragma unroll
      for (int line = 0; line < LINES; line++) {
        const int kh = (d - line * SH) / DH;
        if (d < line * SH || (d - line * SH) % DH || kh >= KH) continue;
        float weight[KW][WIDTH];
#pragma unroll
        for (int kw = 0; kw < KW; kw++)
          widen(EARLY ? early[EARLY ? kh * KW + kw : 0]
                      : fetch<true>(w + (i64)(kh * KW + kw) * weight_pitch + c, WIDTH),
                weight[kw]);
#pragma unroll
        for (int s = 0; s < SPAN; s++) {
          bool used = false;
#pragma unroll
          for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int kw = 0; kw < KW; kw++) used |= j * SW + kw * DW == s;
          if (!used) continue;
          float v[WIDTH];
          widen(in[s], v);
#pragma unroll
          for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int kw = 0; kw < KW; kw++)
              if (j * SW + kw * DW == s)
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                  sum[line][j][k] = fmaf(v[k], weight[kw][k], sum[line][j][k]);
        }
      }
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll
  for (int line = 0; line < LINES; line++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const int oh = oh0 + line;
      if (ow0 + j >= OW || oh >= OH) continue;
      const i64 to = n * y_ns + oh * y_rs + (ow0 + j) * y_cs + c,
                full = n * r_ns + oh * r_rs + (ow0 + j) * r_cs;
      finish(epilogue, sum[line][j], 0, full, c, count);
      store(y + to, sum[line][j], count);
    }
}
