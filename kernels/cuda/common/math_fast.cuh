// Math functions with errors within 2^-11 of the largest value involved: for results in f16 or
// bf16.
#pragma once
#include "common/types.cuh"

DEV float exp2_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float reciprocal_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float exp_(float x) { return exp2_ftz(1.4426950408889634f * x); }
DEV float reciprocal_(float x) { return __frcp_rn(x); }
DEV float divide_(float a, float b) { return a / b; }
DEV float log_(float x) { return logf(x); }
DEV float tanh_(float x) {
  return fabsf(x) < 0.25f ? x * (1.f + x * x * (-0.33333126f + x * x * 0.13240588f))
                          : tanh_approximate(x);
}
DEV float erf_(float x) { return erff(x); }
// Two special functions; flushing subnormals to zero does not change 1 + e^-x.
DEV float sigmoid_(float x) { return reciprocal_ftz(1.f + exp2_ftz(-1.4426950408889634f * x)); }
DEV float silu_(float x, float k) { return x * sigmoid_(k * x); }
DEV float softplus_(float x) { return x > 8.f ? x + __expf(-x) : log1pf(__expf(x)); }
DEV float expm1_(float x) {
  return fabsf(x) < 0.0625f ? x * (1.f + x * (0.5f + x * (1.f / 6.f))) : __expf(x) - 1.f;
}
// erf(x / sqrt 2) as tanh of an odd polynomial; the absolute error of the result is below 6e-5.
DEV float gelu_erf_(float x) {
  const float u = fminf(x * x, 40.f),
              p = fmaf(fmaf(-0.00035159877727742163f, u, 0.03700603479108432f), u,
                       0.7975075399400715f),
              h = 0.5f * x;
  return fmaf(h, tanh_approximate(x * p), h);
}
DEV float gelu_tanh_(float x) {
  const float p = x * fmaf(0.03567740814f, x * x, 0.7978845608f), h = 0.5f * x;
  return fmaf(h, tanh_approximate(p), h);
}
// tanh(log(1 + e^x)) = (n^2 + 2n) / (n^2 + 2n + 2) with n = e^x.
DEV float mish_(float x) {
  const float n = __expf(keep_min(x, 20.f)), m = n * (n + 2.f);
  return x * __fdividef(m, m + 2.f);
}
