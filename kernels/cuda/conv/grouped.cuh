// Grouped convolutions whose tiles also multiply pixels of other groups, by zeros of the filters.
// As 0 * Inf is NaN, Inf or NaN of another group would spread: sums that are not finite are
// recomputed from the pixels and filters of their own group alone.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int OWN_TAPS = 9, OWN_KW = 3;  // taps of the window, of a row of it
constexpr int OWN_SH = 1, OWN_SW = 1;    // stride
constexpr int OWN_DH = 1, OWN_DW = 1;    // dilation
constexpr int OWN_PT = 1, OWN_PL = 1;    // padding above and at the left
constexpr int OWN_IN = 8, OWN_OUT = 8;   // input and output channels of a group
// Makes an Own from the kernel's parameters.
#define OWN_GROUP \
  Own { own_x, own_w, x_cs, x_rs, x_ns, IH, IW, OH, OW }
#endif  // GENERATED

struct Own {
  const T *x, *w;  // pixels, and filters [output channel][tap][round_up(OWN_IN, 8)]
  i64 pixel, row, image;
  int height, width, rows, columns;  // of the image, of the result

  __device__ __forceinline__ float sum(int m, int n) const {
    const int index = m / (rows * columns), p = m - index * (rows * columns);
    const int top = p / columns * OWN_SH - OWN_PT, left = p % columns * OWN_SW - OWN_PL;
    const T* by = w + (i64)n * OWN_TAPS * ((OWN_IN + 7) / 8 * 8);
    float v = 0.f;
#pragma unroll 1
    for (int tap = 0; tap < OWN_TAPS; tap++, by += (OWN_IN + 7) / 8 * 8) {
      const int h = top + tap / OWN_KW * OWN_DH, c = left + tap % OWN_KW * OWN_DW;
      const bool inside = h >= 0 && h < height && c >= 0 && c < width;
      const T* from = x + (inside ? index * image + h * row + c * pixel : 0) + n / OWN_OUT * OWN_IN;
#pragma unroll 1
      for (int k = 0; k < OWN_IN; k++)
        v = fmaf(inside ? to_float(from[k]) : 0.f, to_float(by[k]), v);
    }
    return v;
  }
};

// Recomputes those of the sums v that are not finite; `place(k, m, n)` is the row and column of the
// k-th, false: none. This is rare, so it is slow and costs the main path no registers.
template <int COUNT, class Place>
DEV void recompute_nonfinite(float (&v)[COUNT], const Own& own, const Place& place) {
  float none = 0.f;
#pragma unroll
  for (int k = 0; k < COUNT; k++) none = fmaf(v[k], 0.f, none);
  if (none == 0.f) return;
  float kept[COUNT];
#pragma unroll
  for (int k = 0; k < COUNT; k++) kept[k] = v[k];
#pragma unroll 1
  for (int k = 0; k < COUNT; k++) {
    int m, n;
    if (kept[k] * 0.f != 0.f && place(k, m, n)) kept[k] = own.sum(m, n);
  }
#pragma unroll
  for (int k = 0; k < COUNT; k++) v[k] = kept[k];
}
