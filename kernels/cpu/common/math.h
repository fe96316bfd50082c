// Elementary functions on vectors: exp, log, erf, tanh, sin, cos and the activations built from
// them. Errors are a few float32 ulps; NaN goes in and comes out, infinities and overflow behave as
// the C library's. Polynomials and rationals are minimax fits in relative error over the reduced
// range. Every formula also holds without a fused multiply-add (the base instruction set).
#pragma once
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

// vmax/vmin give their second operand where either is NaN, so the value comes second and NaN
// survives.
TRACEA_INLINE vf clamp(vf x, vf lo, vf hi) { return vmin(hi, vmax(lo, x)); }
// ONNX Max/Min of two values that may each be NaN.
TRACEA_INLINE vf vmax_nan(vf a, vf b) { return a != a ? a : vmax(a, b); }
TRACEA_INLINE vf vmin_nan(vf a, vf b) { return a != a ? a : vmin(a, b); }
TRACEA_INLINE vf copysign(vf magnitude, vf sign) {
  return bits_f((bits_i(magnitude) & 0x7fffffff) | (bits_i(sign) & INT32_MIN));
}
TRACEA_INLINE bool any(vi mask) { return lane_bits(mask) != 0; }

// Applies a scalar function to every lane: for functions too rare to deserve a vector form.
template <class F>
TRACEA_INLINE vf per_lane(vf x, F f) {
  float v[W];
  memcpy(v, &x, sizeof v);
  for (int k = 0; k < W; k++) v[k] = f(v[k]);
  return load(v);
}
template <class F>
TRACEA_INLINE vf per_lane(vf x, vf y, F f) {
  float v[W], w[W];
  memcpy(v, &x, sizeof v);
  memcpy(w, &y, sizeof w);
  for (int k = 0; k < W; k++) v[k] = f(v[k], w[k]);
  return load(v);
}

// p * 2^n for -252 <= n <= 254, rounding into the denormals and overflowing to infinity.
TRACEA_INLINE vf scale_by_power(vf p, vf n, vi ni) {
#if TRACEA_W == 16
  (void)ni;
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  (void)n;
  const vi half = ni >> 1;
  return p * bits_f((half + 127) << 23) * bits_f((ni - half + 127) << 23);
#endif
}

// x = n ln 2 + r with |r| <= ln 2 / 2, x already within +-150; ni holds n as an integer.
TRACEA_INLINE vf reduce_exp(vf x, vf* n, vi* ni) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, which then
                                       // sits in the low mantissa bits
  const vf t = fma(x, splat(1.44269504f), magic);
  *ni = bits_i(t) - bits_i(magic);
  *n = t - magic;
  return fma(
      *n, splat(2.12194440e-4f),
      fma(*n, splat(-0.693359375f), x));  // ln 2 = 0.693359375 (short, exact products) - 2.12e-4
}
// (exp(r) - 1 - r) / r^2
TRACEA_INLINE vf exp_tail(vf r) {
  return polynomial(r, 1.3901282800361514e-3f, 8.363144472241402e-3f, 0.04166685417294502f,
                    0.16666577756404877f, 0.5f);
}

// exp(max(x, lowest))
TRACEA_INLINE vf exp_from(vf x, float lowest) {
  vf n;
  vi ni;
  const vf r = reduce_exp(clamp(x, splat(lowest), splat(89.f)), &n, &ni);
  return scale_by_power(fma(exp_tail(r) * r, r, r) + 1.f, n, ni);
}
TRACEA_INLINE vf vexp(vf x) { return exp_from(x, -105.f); }

// A product that is no normal number takes many Intel cores an assist of about 150 clocks, so where
// denormals make no difference none arise: from here on exp(x) is normal.
constexpr float kNormalExp = -87.3f;
// exp(x), 0 where that is no normal number.
TRACEA_INLINE vf exp_or_zero(vf x) {
  return select(x < splat(kNormalExp), vf{}, exp_from(x, kNormalExp));
}
TRACEA_INLINE vf exp_plus_one(vf x) { return exp_from(x, kNormalExp) + 1.f; }

// exp(x) - 1 without cancellation, for x <= 0 (larger x are taken as they come up to 87).
TRACEA_INLINE vf vexpm1(vf x) {
  vf n;
  vi ni;
  const vf r = reduce_exp(clamp(x, splat(-30.f), splat(87.f)), &n, &ni);
  const vf p = bits_f((ni + 127) << 23);
  return fma(fma(exp_tail(r) * r, r, r), p, p - 1.f);
}

TRACEA_INLINE vf vlog(vf x) {
  const vf tiny = splat(1.17549435e-38f);
  const vi denormal = x < tiny;
  const vf scaled = select(denormal, x * 8388608.f, x);
  // Exponent relative to sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2)).
  const vi bits = bits_i(scaled) - 0x3f3504f3;
  const vf e = to_float(bits >> 23) - select(denormal, splat(23.f), vf{});
  const vf f = bits_f((bits & 0x007fffff) + 0x3f3504f3) - 1.f;
  const vf p = polynomial(f, 0.07037658989429474f, -0.11514664441347122f, 0.11677034199237823f,
                          -0.12420137226581573f, 0.14249318838119507f, -0.16668057441711426f,
                          0.20000715553760529f, -0.24999994039535522f, 0.3333333134651184f);
  const vf f2 = f * f;
  vf y = fma(e, splat(-2.12194440e-4f), p * f * f2);
  y = fma(f2, splat(-0.5f), y) + f;
  y = fma(e, splat(0.693359375f), y);
  const vf inf = splat(INFINITY);
  y = select(x < inf, y, x);  // +inf and NaN
  y = select(x == vf{}, -inf, y);
  return select(x < vf{}, splat(NAN), y);
}

// log(1 + e) for e in [0, 1], accurate for small e.
TRACEA_INLINE vf vlog1p_unit(vf e) {
  const vf p = polynomial(e, -3.243980696424842e-3f, 0.019851261749863625f, -0.056959159672260284f,
                          0.10603617131710052f, -0.15305569767951965f, 0.19675931334495544f,
                          -0.24954132735729218f, 0.3332996368408203f, -0.4999990165233612f);
  return fma(p * e, e, e);
}

// x + x P(x^2) up to 0.8, beyond it 1 - exp(-P(|x|)), which keeps the last bit right where erf is
// near 1; 1 in float32 from 4 on.
TRACEA_INLINE vf verf(vf x) {
  const vf t = vmin(splat(4.f), vabs(x)), s = t * t;
  const vf p = polynomial(s, -6.477514398284256e-4f, 5.073504988104105e-3f, -0.02681254781782627f,
                          0.11282869428396225f, -0.3761257529258728f, 0.12837916612625122f);
  const vf h = polynomial(t, 2.0745332585647702e-4f, -3.1536039896309376e-3f, 0.02265615202486515f,
                          -0.10479864478111267f, -0.6362220048904419f, -1.1282289028167725f,
                          -6.598463369300589e-5f);
  vf n;
  vi ni;
  const vf r = reduce_exp(h, &n, &ni);  // h lies in [-18, -1.3]: no clamping, no denormals
  const vf e = (fma(exp_tail(r) * r, r, r) + 1.f) * bits_f((ni + 127) << 23);
  return copysign(select(t > splat(0.8f), 1.f - e, fma(p, t, t)), x);
}

// Odd rational x P(x^2) / Q(x^2), within a few ulps of tanh; at most one ulp beyond 1.
struct Ratio {
  vf p, q;
};
TRACEA_INLINE Ratio tanh_ratio(vf x) {
  const vf t = clamp(x, splat(-9.02f), splat(9.02f)), s = t * t;
  const vf p = polynomial(s, 1.331932342196751e-8f, 2.0583702280418947e-5f, 3.4940498881042004e-3f,
                          0.1337973177433014f, 1.f);
  const vf q = polynomial(s, 7.762133691358031e-7f, 3.2831166754476726e-4f, 0.02587113343179226f,
                          0.46713048219680786f, 1.f);
  return {t * p, q};
}
// Beyond the fitted range tanh is 1 in float32.
TRACEA_INLINE vf vtanh(vf x) {
  const Ratio r = tanh_ratio(x);
  return select(vabs(x) > splat(9.01f), copysign(splat(1.f), x),
                clamp(r.p / r.q, splat(-1.f), splat(1.f)));
}

// sin(x + quadrant * pi/2). Arguments beyond 8192 lose the cheap reduction's accuracy and go to the
// C library.
TRACEA_INLINE vf sin_quadrant(vf x, int quadrant) {
  const vi far = ~(vabs(x) <= splat(8192.f));
  const vf n = vround(x * 0.636619772f);
  const vi q = to_int(n) + quadrant;
  vf r = fma(n, splat(-1.5703125f),
             x);  // pi/2 in three parts, the first two short enough for exact products
  r = fma(n, splat(-4.837512969970703125e-4f), r);
  r = fma(n, splat(-7.54978995489188216e-8f), r);
  const vf s = r * r;
  const vf sine = fma(fma(fma(splat(-1.9587298447731882e-4f), s, splat(8.332745172083378e-3f)), s,
                          splat(-0.166666641831398f)) *
                          s,
                      r, r);
  const vf c4 = fma(fma(splat(2.4547545763198286e-5f), s, splat(-1.3888300163671374e-3f)), s,
                    splat(0.0416666641831398f));
  const vf cosine = fma(c4 * s, s, fma(s, splat(-0.5f), splat(1.f)));
  const vf y = select((q & 1) != 0, cosine, sine);
  const vf near = bits_f(bits_i(y) ^ ((q & 2) << 30));
  if (__builtin_expect(!any(far), 1)) return near;
  // Only those lanes: what a neighbour holds, or what lies behind the last element, must not change
  // a bit of the others.
  return select(far,
                quadrant ? per_lane(x, [](float v) { return cosf(v); })
                         : per_lane(x, [](float v) { return sinf(v); }),
                near);
}
TRACEA_INLINE vf vsin(vf x) { return sin_quadrant(x, 0); }
TRACEA_INLINE vf vcos(vf x) { return sin_quadrant(x, 1); }

TRACEA_INLINE vf vpow(vf x, vf y) {
  return per_lane(x, y, [](float a, float b) { return powf(a, b); });
}

TRACEA_INLINE vf vsigmoid(vf x) { return 1.f / exp_plus_one(-x); }
TRACEA_INLINE vf vsilu(vf x) { return x / exp_plus_one(-x); }
TRACEA_INLINE vf vquick_gelu(vf x, vf alpha) { return x / exp_plus_one(-alpha * x); }
TRACEA_INLINE vf vgelu_erf(vf x) {
  const vf h = x * 0.5f;
  return fma(h, verf(x * 0.707106781f), h);
}
// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for
// negative x.
TRACEA_INLINE vf vgelu_tanh(vf x) {
  return x / exp_plus_one(x * fma(x * x, splat(-0.0713548163f), splat(-1.59576912f)));
}
TRACEA_INLINE vf vrelu(vf x) { return vmax(vf{}, x); }
TRACEA_INLINE vf vleaky_relu(vf x, vf alpha) { return select(x < vf{}, x * alpha, x); }
TRACEA_INLINE vf vhard_sigmoid(vf x, vf alpha, vf beta) {
  return clamp(fma(x, alpha, beta), vf{}, splat(1.f));
}
TRACEA_INLINE vf vhard_swish(vf x) { return x * vhard_sigmoid(x, splat(1.f / 6.f), splat(0.5f)); }
TRACEA_INLINE vf velu(vf x, vf alpha) { return select(x < vf{}, alpha * vexpm1(vmin(vf{}, x)), x); }
TRACEA_INLINE vf vsoftplus(vf x) { return vmax(vf{}, x) + vlog1p_unit(exp_or_zero(-vabs(x))); }
// x tanh(log(1 + e^x)) = x (e^2 + 2e) / (e^2 + 2e + 2); beyond 20 the ratio is 1.
TRACEA_INLINE vf vmish(vf x) {
  const vf e = exp_or_zero(vmin(splat(20.f), x)), t = e * (e + 2.f);
  return x * (t / (t + 2.f));
}

}  // namespace TRACEA_NS
}  // namespace tracea
