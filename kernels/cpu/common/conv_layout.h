// Sizes shared by the convolution kernels and their packing.
#pragma once
#include <algorithm>

#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kConvPanel =
    32;  // output channels of a packed panel; the last panel of a group has 16 when that suffices

static inline int64_t conv_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t conv_round_up(int64_t a, int64_t b) { return conv_div_up(a, b) * b; }
// First of the elements 0..n that part `i` of `parts` near-equal parts holds.
static inline int64_t conv_part(int64_t n, int64_t parts, int64_t i) {
  return n / parts * i + std::min(i, n % parts);
}

// Exactly n floats, by vectors.
static inline void copy_channels(float* to, const float* from, int64_t n) {
  for (int64_t k = 0; k < n; k += W)
    store_n(to + k, load(from + k), int(std::min<int64_t>(W, n - k)));
}

}  // namespace TRACEA_NS
}  // namespace tracea
