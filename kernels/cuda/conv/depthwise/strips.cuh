// Depthwise convolution, channels last, of large launches: a thread processes a strip of COLUMNS
// output columns from top to bottom for 2 channels; neighbouring threads have neighbouring
// channels. Weights stay in registers; every input is read and converted once, and is added to the
// sums of all output rows that read it, of which SLOTS are open at a time. Loads are prefetched
// AHEAD steps (of SH input rows).
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3;     // filter window
constexpr int SH = 1, SW = 1;     // stride
constexpr int DH = 1, DW = 1;     // dilation
constexpr int COLUMNS = 2;        // output columns of a strip
constexpr int C = 64;             // channels
constexpr int AHEAD = 1;          // prefetch distance in steps: 1 or SLOTS
constexpr int THREADS = 128;      // of a CTA
constexpr int MIN_CTAS = 4;       // resident CTAs per SM
constexpr int weight_pitch = 64;  // from a tap to the next; negative: read from the end
constexpr bool EARLY = true;      // weights are read before griddepcontrol.wait
constexpr bool RAGGED = true;     // the last strip is narrower
#define BIAS(k) 0.f               // of channel c + k, as f32
#define PARAMETERS                                                                                \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, int PT, int PL, int lines, \
      i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED
#include "conv/depthwise/channels.cuh"

constexpr int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1,
              DEPTH = (KH - 1) * DH + 1;  // input columns of a strip, input rows of a window

constexpr bool column_used(int s) {
  for (int j = 0; j < COLUMNS; j++)
    if (s >= j * SW && (s - j * SW) % DW == 0 && (s - j * SW) / DW < KW) return true;
  return false;
}
// Whether windows read input row `row`, counted from the top of a window.
constexpr bool row_used(int row) {
  for (int kh = 0; kh < KH; kh++)
    if (kh * DH % SH == row % SH) return true;
  return false;
}
constexpr int SLOTS = (DEPTH - 1) / SH + 1, CHUNKS = (C + 1) / 2;
constexpr bool ROTATE = AHEAD == SLOTS;
static_assert(ROTATE || AHEAD == 1, "rows are where they were after SLOTS steps, or move");

// The row of the window that output row `behind` steps back reads in input row `p` of a step; -1:
// none.
constexpr int window_row(int behind, int p) {
  const int d = behind * SH + p;
  return d % DH == 0 && d / DH < KH ? d / DH : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) conv_depthwise_strips(PARAMETERS) {
  const u32 t = blockIdx.x * THREADS + threadIdx.x, strips = (OW + COLUMNS - 1) / COLUMNS,
            bands = (OH + lines - 1) / lines;
  const int c = int(t % CHUNKS) * 2, count = C % 2 ? min(C - c, 2) : 2;
  u32 rest = t / CHUNKS;
  const int ow0 = int(rest % strips) * COLUMNS;
  rest /= strips;
  const int oh0 = int(rest % bands) * lines, n = int(rest / bands);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  float weight[KH][KW][2];
#pragma unroll
  for (int k = 0; k < KH * KW; k++)
    widen(fetch<true>(w + (i64)k * weight_pitch + c, 2), weight[k / KW][k % KW]);
  const float start[2] = {BIAS(0), count > 1 ? BIAS(1) : 0.f};
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (n >= N) return;
  const int rows = min(lines, OH - oh0), top = oh0 * SH - PT, left = ow0 * SW - PL;
  const T* corner = x + n * (i64)x_ns + c / MULTIPLE + (i64)top * x_rs + (i64)left * x_cs;
  T* to = y + n * (i64)y_ns + c + (i64)oh0 * y_rs + (i64)ow0 * y_cs;
  i64 full = n * (i64)r_ns + (i64)oh0 * r_rs + (i64)ow0 * r_cs;
  u32 columns = 0;  // bit s: column s of the strip is inside the image; columns of wider
                    // strips are tested at each read
#pragma unroll
  for (int s = 0; s < SPAN && SPAN <= 32; s++) columns |= u32((u32)(left + s) < (u32)IW) << s;
  asm("" : "+r"(columns));  // keeps the compiler from computing the bits again
  Raw in[AHEAD][SH][SPAN] = {};
  const auto load = [&](int step, Raw(&to)[SH][SPAN], int p) {
    if (!row_used(p) || (u32)(top + step * SH + p) >= (u32)IH) return;
    const T* row = corner + (i64)(step * SH + p) * x_rs;
#pragma unroll
    for (int s = 0; s < SPAN; s++)
      if (column_used(s) && (SPAN <= 32 ? columns >> s % 32 & 1 : (u32)(left + s) < (u32)IW))
        to[p][s] =
            fetch_input(row + (i64)s * x_cs, c, count);  // pixels outside of the image stay zero
  };
#pragma unroll
  for (int u = 0; u < AHEAD; u++)
#pragma unroll
    for (int p = 0; p < SH; p++) load(u, in[u], p);
  float sum[SLOTS][COLUMNS][2];
#pragma unroll
  for (int k = 0; k < SLOTS * COLUMNS; k++)
    sum[k / COLUMNS][k % COLUMNS][0] = start[0], sum[k / COLUMNS][k % COLUMNS][1] = start[1];
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll 1
  for (int first = 0; first < rows + SLOTS - 1; first += AHEAD) {
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int step = first + u,
                done = step - (SLOTS - 1);  // the output row that is complete after this step
#pragma unroll
      for (int p = 0; p < SH; p++) {
        const bool inside = (u32)(top + step * SH + p) < (u32)IH, last = p == SH - 1;
        float v[SPAN][2];
        if (row_used(p)) {
#pragma unroll
          for (int s = 0; s < SPAN; s++) widen(in[u][p][s], v[s]);
          load(step + AHEAD, in[u], p);
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
          // The oldest row is in slot 0. Rows move by a slot each step; where SLOTS steps are
          // unrolled, only their names do.
          const int from = (slot + (ROTATE ? u : 0)) % SLOTS,
                    onto = last && slot && !ROTATE ? from - 1 : from,
                    kh = window_row(SLOTS - 1 - slot, p);
          if (onto != from)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
              sum[onto][j][0] = sum[from][j][0], sum[onto][j][1] = sum[from][j][1];
          if (kh >= 0 && inside && (u32)(done + slot) < (u32)rows)
#pragma unroll
            for (int kw = 0; kw < KW; kw++)
#pragma unroll
              for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                  sum[onto][j][k] =
                      fmaf(v[j * SW + kw * DW][k], weight[kh][kw][k], sum[onto][j][k]);
          if (slot || !last || (u32)done >= (u32)rows) continue;
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) {
            if (RAGGED && ow0 + j >= OW) break;
            finish(epilogue, sum[from][j], 0, full + (i64)j * r_cs, c, count);
            store(to + (i64)j * y_cs, sum[from][j], count);
          }
          to += y_rs, full += r_rs;
        }
      }
      const int newest = ROTATE ? u : SLOTS - 1;
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) sum[newest][j][0] = start[0], sum[newest][j][1] = start[1];
    }
  }
}
