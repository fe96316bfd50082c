// Operations across the lanes of one vector: sums, extrema, transposition of W vectors.
#pragma once
#include <utility>

#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

template <int S, int... I>
TRACEA_INLINE vf lanes_xor(vf v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ S)...);
}
// Lane i of the result is lane i ^ S of v.
template <int S>
TRACEA_INLINE vf lanes_xor(vf v) {
  return lanes_xor<S>(v, std::make_integer_sequence<int, W>());
}

// log2(W) steps, each combining lanes whose numbers differ in one bit.
template <class F>
TRACEA_INLINE float fold_lanes(vf v, F f) {
  if (W > 8) v = f(v, lanes_xor<(W > 8 ? 8 : 0)>(v));
  if (W > 4) v = f(v, lanes_xor<(W > 4 ? 4 : 0)>(v));
  v = f(v, lanes_xor<2>(v));
  v = f(v, lanes_xor<1>(v));
  return v[0];
}
TRACEA_INLINE float sum_lanes(vf v) {
  return fold_lanes(v, [](vf a, vf b) { return a + b; });
}
TRACEA_INLINE float max_lanes(vf v) {
  return fold_lanes(v, [](vf a, vf b) { return vmax(a, b); });
}  // NaN in, any lane out

// e^x for x <= 0, as softmax needs it: the argument is reduced in one step, so that the error is at
// most 1.2e-7 * (1 + |x|) of the value and below 1e-7 absolutely. exp(-inf) is 0, results below
// 2e-38 are 0 (see kNormalExp), NaN stays.
TRACEA_INLINE vf vexp_down(vf x) {
  const vf t = vmax(splat(-160.f), x * 1.44269504f), n = vround(t), f = t - n;
  const vf p = polynomial(f, 0.0013225903967395425f, 0.009675673209130764f, 0.05550861731171608f,
                          0.240221306681633f, 0.6931469440460205f, 1.f);
#if TRACEA_W == 16
  const __mmask16 kept = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-125.f), _CMP_NLT_UQ);
  return (vf)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
  return select(n < -125.f, select(n == n, vf{}, p),
                p * bits_f((to_int(vmax(splat(-125.f), n)) + 127) << 23));
#endif
}

static inline vf lane_numbers() {
  vf v{};
  for (int k = 0; k < W; k++) v[k] = float(k);
  return v;
}

// One W x W block, dst[j*ldd + i] = src[i*lds + j] * scale: log2(W) rounds that swap off-diagonal
// sub-blocks.
template <int S, int... I>
TRACEA_INLINE void swap_lanes(vf& a, vf& b, std::integer_sequence<int, I...>) {
  const vf lo = __builtin_shufflevector(a, b, (I & S ? W + (I ^ S) : I)...),
           hi = __builtin_shufflevector(a, b, (I & S ? W + I : I ^ S)...);
  a = lo, b = hi;
}
template <int S>
TRACEA_INLINE void transpose_round(vf* r) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    if (!(i & S)) swap_lanes<S>(r[i], r[i | S], std::make_integer_sequence<int, W>());
}
template <int S>
TRACEA_INLINE void fold_round(vf* r) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i += 2 * S) {
    swap_lanes<S>(r[i], r[i | S], std::make_integer_sequence<int, W>());
    r[i] += r[i | S];
  }
}
// Lane j of the result is the sum of the lanes of r[j], for all W vectors.
TRACEA_INLINE vf sum_each(vf* r) {
  fold_round<1>(r);
  fold_round<2>(r);
  if (W > 4) fold_round<(W > 4 ? 4 : 1)>(r);
  if (W > 8) fold_round<(W > 8 ? 8 : 1)>(r);
  return r[0];
}
static inline __attribute__((noinline)) void transpose_block(const float* src, int64_t lds,
                                                             float* dst, int64_t ldd, float scale) {
  vf r[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) r[i] = load(src + i * lds) * scale;
  transpose_round<1>(r);
  transpose_round<2>(r);
  if (W > 4) transpose_round<(W > 4 ? 4 : 1)>(r);
  if (W > 8) transpose_round<(W > 8 ? 8 : 1)>(r);
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(dst + i * ldd, r[i]);
}

}  // namespace TRACEA_NS
}  // namespace tracea
