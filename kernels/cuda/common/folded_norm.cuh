// LayerNorm and RMSNorm of rows, folded into the GEMMs around them.
//
// The GEMM that computes the rows also stores statistics: for every 64 columns (a panel) of a row,
// their mean and the sum of squared deviations from it. A GEMM that reads the rows uses weights
// that include gamma, and computes
//   y[m, n] = rstd[m] * (sum_k x[m, k] w[n, k] - mean[m] * sum_k w[n, k]) + bias[n],
// where bias includes sum_k beta[k] w[n, k]. Residual rows are normalised when they are added.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

struct RowNorm {
  float scale, shift;
};  // normalised = x * scale + shift
struct Norms {
  RowNorm x, residual;
};

// Statistics of a row of PANELS panels, divided among LANES neighbouring lanes.
template <int PANELS, int LANES>
struct Statistics {
  static constexpr int EACH = (PANELS + LANES - 1) / LANES;
  float2 part[EACH];
  METHOD void load(const float2* row, int lane) {
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int at = j * LANES + (lane & (LANES - 1));
      part[j] = at < PANELS ? row[at] : make_float2(0.f, 0.f);
    }
  }
  // Combines the panels (Chan et al.). RMS: the mean is not subtracted. unscale: undoes the scale
  // of the packed weights.
  template <bool RMS>
  METHOD RowNorm norm(int lane, float eps, float unscale) const {
    float mean = 0.f, squares = 0.f;
#pragma unroll
    for (int j = 0; j < EACH; j++) mean += part[j].x;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) mean += __shfl_xor_sync(0xffffffffu, mean, step);
    mean *= 1.f / PANELS;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const float off = part[j].x - mean;
      if (j * LANES + (lane & (LANES - 1)) < PANELS) squares += fmaf(64.f * off, off, part[j].y);
    }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const float variance = squares * (1.f / (64 * PANELS)),
                inverse = rsqrtf((RMS ? variance + mean * mean : variance) + eps);
    return {inverse * unscale, RMS ? 0.f : -mean * inverse};
  }
};

// (mean, sum of squared deviations) of a panel; each of 64 / COUNT neighbouring lanes has COUNT
// columns.
template <int COUNT>
DEV float2 panel_statistics(const float (&v)[COUNT], u32 mask) {
  float sum = 0.f, squares = 0.f;
#pragma unroll
  for (int k = 0; k < COUNT; k++) sum += v[k];
#pragma unroll
  for (int step = 1; step < 64 / COUNT; step *= 2) sum += __shfl_xor_sync(mask, sum, step);
  const float mean = sum * (1.f / 64);
#pragma unroll
  for (int k = 0; k < COUNT; k++) squares = fmaf(v[k] - mean, v[k] - mean, squares);
#pragma unroll
  for (int step = 1; step < 64 / COUNT; step *= 2) squares += __shfl_xor_sync(mask, squares, step);
  return make_float2(mean, squares);
}
