// Phases of a transposed convolution without dilation: a phase has every DECONV_SH-th row and every
// DECONV_SW-th column of the output, and at least one tap.
#pragma once
#ifndef GENERATED
#define SOURCE 1
constexpr int DECONV_KH = 4, DECONV_KW = 4;  // filter window
constexpr int DECONV_SH = 2, DECONV_SW = 2;  // stride
constexpr int DECONV_PT = 1, DECONV_PL = 1;  // padding above and at the left
// The least input row and column that any phase reads for its first output pixel.
constexpr int LOW_H = -1, LOW_W = -1;
#include "common/tma.cuh"
#endif  // GENERATED

// Along one axis: phase `at` has `taps` taps; tap t is `first + t * stride` of the window, and
// reads the input at `offset(t)` from the begin of the phase's window.
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
      : down(phase / DECONV_SW, DECONV_KH, DECONV_SH, DECONV_PT, LOW_H),
        across(phase % DECONV_SW, DECONV_KW, DECONV_SW, DECONV_PL, LOW_W) {}
  METHOD int tap(const Step& s) const {
    return (down.first + s.kh * DECONV_SH) * DECONV_KW + across.first + s.kw * DECONV_SW;
  }
  // Offsets of pixel m of this phase in y and in the full operands, with `rows` x `columns` pixels
  // per image; false if it does not exist.
  METHOD bool place(int m, int rows, int columns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs,
                    i64 r_ns, int height, int width, i64& to, i64& full) const {
    const int n = m / (rows * columns), r = m - n * (rows * columns),
              oh = r / columns * DECONV_SH + down.at, ow = r % columns * DECONV_SW + across.at;
    to = n * y_ns + oh * y_rs + ow * y_cs, full = n * r_ns + oh * r_rs + ow * r_cs;
    return oh < height && ow < width;
  }
};
