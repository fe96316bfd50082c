// Norms of rows, folded into the products around them. A product whose rows are normalised next
// leaves, for every 64 columns of a row, their mean and the sum of their squared distances from it.
// The products that read those rows take them as they are, with weights that include gamma, and
// finish
//   y[m, n] = rstd[m] * (sum_k x[m, k] w[n, k] - mean[m] * sum_k w[n, k]) + bias[n],   bias
//   including sum_k beta[k] w[n, k];
// a residual that is such rows is normalised when it is added.
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

// A row's PANELS statistics, divided among LANES neighbouring lanes.
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
  // RMS: no mean is taken off. unscale: what the weights must be multiplied with.
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

// Statistics of 64 neighbouring columns of a row, COUNT of them in each of 64 / COUNT neighbouring
// lanes.
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
