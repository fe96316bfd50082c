// Math functions with errors of a few ulp of f32: for results in f32.
#pragma once
#include "common/types.cuh"

DEV float exp_(float x) { return expf(x); }
DEV float reciprocal_(float x) { return 1.f / x; }
DEV float divide_(float a, float b) { return a / b; }
DEV float log_(float x) { return logf(x); }
DEV float tanh_(float x) { return tanhf(x); }
DEV float erf_(float x) { return erff(x); }
DEV float sigmoid_(float x) { return 1.f / (1.f + expf(-x)); }
DEV float silu_(float x, float k) { return x / (1.f + expf(-k * x)); }
DEV float softplus_(float x) { return x > 0.f ? x + log1pf(expf(-x)) : log1pf(expf(x)); }
DEV float expm1_(float x) { return expm1f(x); }
DEV float gelu_erf_(float x) { return x * normcdff(x); }
DEV float gelu_tanh_(float x) {
  return x * sigmoid_(x * (1.5957691216057308f + 0.07135481282553f * x * x));
}
DEV float mish_(float x) { return x * tanhf(softplus_(x)); }
