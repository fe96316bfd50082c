// Phases of a transposed convolution whose windows have no dilation: output pixels every TURN_SH-th
// row and TURN_SW-th column. Every phase has a tap.
#pragma once
#ifndef GENERATED
#define SOURCE 1
constexpr int TURN_KH = 4, TURN_KW = 4;  // filter window
constexpr int TURN_SH = 2, TURN_SW = 2;  // stride
constexpr int TURN_PT = 1, TURN_PL = 1;  // padding above and at the left
// The first input row and column that any phase reads for its first output pixel.
constexpr int LOW_H = -1, LOW_W = -1;
#include "common/tma.cuh"
#endif  // GENERATED

// Along one axis: `taps` of them meet output `at` of a phase, tap t being `first + t * stride` of
// the window; it takes input `offset(t)` beyond the window's begin.
struct PhaseAxis {
  int at, first, taps, last;
  __device__ __forceinline__ PhaseAxis(int phase, int kernel, int stride, int pad, int low)
      : at(phase),
        first((phase + pad) % stride),
        taps((kernel - first + stride - 1) / stride),
        last((phase + pad) / stride - low) {}
  METHOD int offset(int t) const { return last - t; }
};
struct Phase {
  PhaseAxis down, across;
  __device__ __forceinline__ Phase(int phase)
      : down(phase / TURN_SW, TURN_KH, TURN_SH, TURN_PT, LOW_H),
        across(phase % TURN_SW, TURN_KW, TURN_SW, TURN_PL, LOW_W) {}
  METHOD int tap(const Step& s) const {
    return (down.first + s.kh * TURN_SH) * TURN_KW + across.first + s.kw * TURN_SW;
  }
  // Where pixel m of this phase lies, `rows` x `columns` of them in an image.
  METHOD bool place(int m, int rows, int columns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs,
                    i64 r_ns, int height, int width, i64& to, i64& full) const {
    const int n = m / (rows * columns), r = m - n * (rows * columns),
              oh = r / columns * TURN_SH + down.at, ow = r % columns * TURN_SW + across.at;
    to = n * y_ns + oh * y_rs + ow * y_cs, full = n * r_ns + oh * r_rs + ow * r_cs;
    return oh < height && ow < width;
  }
};
