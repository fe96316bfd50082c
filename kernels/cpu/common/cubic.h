// Keys' cubic: the weights of four neighbours of a place between the second and the third.
#pragma once
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

// t: how far the place is from the second, a: the coefficient.
static inline void cubic_weights(float t, float a, float* weight) {
  const float u = 1.f - t;
  weight[0] = ((a * (t + 1.f) - 5.f * a) * (t + 1.f) + 8.f * a) * (t + 1.f) - 4.f * a;
  weight[1] = ((a + 2.f) * t - (a + 3.f)) * t * t + 1.f;
  weight[2] = ((a + 2.f) * u - (a + 3.f)) * u * u + 1.f;
  weight[3] = ((a * (u + 1.f) - 5.f * a) * (u + 1.f) + 8.f * a) * (u + 1.f) - 4.f * a;
}

}  // namespace TRACEA_NS
}  // namespace tracea
