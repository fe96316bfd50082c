// Vector basics for one instruction set, chosen by TRACEA_W (floats per vector: 16 avx512, 8 avx2,
// 4 base) and TRACEA_NS (namespace). Built on GCC/Clang vector extensions so that one source serves
// x86 and NEON; intrinsics only where the compilers need them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wmaybe-uninitialized"  // GCC's own AVX-512 intrinsics start from an undefined vector
#endif
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wuninitialized"  // GCC 12's own AVX-512 header initialises a variable with itself
#endif
#include <immintrin.h>
#endif
#include "cpu/kernel.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int W = TRACEA_W;
typedef float vf __attribute__((vector_size(4 * TRACEA_W), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * TRACEA_W), aligned(4), may_alias));
#define TRACEA_INLINE static inline __attribute__((always_inline))

TRACEA_INLINE vf load(const float* p) { return *(const vf*)p; }
TRACEA_INLINE void store(float* p, vf v) { *(vf*)p = v; }
TRACEA_INLINE vf splat(float x) { return x - vf{}; }
TRACEA_INLINE vi splat_i(int32_t x) { return x - vi{}; }
TRACEA_INLINE vf bits_f(vi v) {
  vf r;
  memcpy(&r, &v, sizeof r);
  return r;
}
TRACEA_INLINE vi bits_i(vf v) {
  vi r;
  memcpy(&r, &v, sizeof r);
  return r;
}
// Comparisons give all-ones lanes; select(m, a, b) takes a where m is set.
TRACEA_INLINE vf select(vi m, vf a, vf b) { return bits_f((m & bits_i(a)) | (~m & bits_i(b))); }
TRACEA_INLINE vi to_int(vf v) { return __builtin_convertvector(v, vi); }  // truncates
TRACEA_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }

#if TRACEA_W == 16
TRACEA_INLINE vf fma(vf a, vf b, vf c) {
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
TRACEA_INLINE vf vmax(vf a, vf b) {
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}  // b where either is NaN
TRACEA_INLINE vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
TRACEA_INLINE vf vsqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
TRACEA_INLINE vf vround(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8); }  // half to even
TRACEA_INLINE vf vfloor(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 9); }
#elif TRACEA_W == 8
TRACEA_INLINE vf fma(vf a, vf b, vf c) {
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
TRACEA_INLINE vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
TRACEA_INLINE vf vmin(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
TRACEA_INLINE vf vsqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
TRACEA_INLINE vf vround(vf a) { return (vf)_mm256_round_ps((__m256)a, 8); }
TRACEA_INLINE vf vfloor(vf a) { return (vf)_mm256_round_ps((__m256)a, 9); }
#else
TRACEA_INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
TRACEA_INLINE vf vmax(vf a, vf b) { return select(a > b, a, b); }
TRACEA_INLINE vf vmin(vf a, vf b) { return select(a < b, a, b); }
TRACEA_INLINE vf vsqrt(vf a) {
  for (int k = 0; k < W; k++) a[k] = __builtin_sqrtf(a[k]);
  return a;
}
TRACEA_INLINE vf vround(vf a) {
#if defined(__x86_64__)  // SSE2 has no instruction for it: 2^23 more leaves no room for fractions
  const vf size = bits_f(bits_i(a) & 0x7fffffff), near = (size + 8388608.f) - 8388608.f;
  const vi sign = bits_i(a) & int32_t(0x80000000);
  return bits_f(bits_i(select(size < 8388608.f, near, size)) | sign);
#else
  for (int k = 0; k < W; k++) a[k] = __builtin_rintf(a[k]);
  return a;
#endif
}
TRACEA_INLINE vf vfloor(vf a) {
  for (int k = 0; k < W; k++) a[k] = __builtin_floorf(a[k]);
  return a;
}
#endif
// Horner's rule: the coefficient of the highest power of x comes first.
template <class... Rest>
TRACEA_INLINE vf polynomial(vf x, float first, Rest... rest) {
  vf p = splat(first);
  ((p = fma(p, x, splat(rest))), ...);
  return p;
}
// Bit k is set where lane k is.
TRACEA_INLINE uint32_t lane_bits(vi mask) {
#if TRACEA_W == 16
  return _mm512_movepi32_mask((__m512i)mask);
#elif TRACEA_W == 8
  return uint32_t(_mm256_movemask_ps((__m256)mask));
#else
  uint32_t bits = 0;
  for (int k = 0; k < W; k++) bits |= uint32_t(mask[k] & 1) << k;
  return bits;
#endif
}
TRACEA_INLINE vf vabs(vf a) { return bits_f(bits_i(a) & 0x7fffffff); }
// First n lanes (0 < n <= W) from memory, the rest `fill`; and the store of the first n lanes.
#if TRACEA_W == 16
TRACEA_INLINE vf load_n(const float* p, int n, float fill = 0.f) {
  return (vf)_mm512_mask_loadu_ps((__m512)splat(fill), __mmask16((1u << n) - 1), p);
}
TRACEA_INLINE void store_n(float* p, vf v, int n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), (__m512)v);
}
#elif TRACEA_W == 8
TRACEA_INLINE vi first_lanes(int n) { return vi{0, 1, 2, 3, 4, 5, 6, 7} < n; }
TRACEA_INLINE vf load_n(const float* p, int n, float fill = 0.f) {
  return select(first_lanes(n), (vf)_mm256_maskload_ps(p, (__m256i)first_lanes(n)), splat(fill));
}
TRACEA_INLINE void store_n(float* p, vf v, int n) {
  _mm256_maskstore_ps(p, (__m256i)first_lanes(n), (__m256)v);
}
#else
// Sizes the compiler knows: a variable memcpy would be a call.
TRACEA_INLINE vf load_n(const float* p, int n, float fill = 0.f) {
  vf v = splat(fill);
  if (n >= W) return load(p);
  if (n & 2) memcpy(&v, p, 8);
  if (n & 1) v[n - 1] = p[n - 1];
  return v;
}
TRACEA_INLINE void store_n(float* p, vf v, int n) {
  if (n >= W) return store(p, v);
  if (n & 2) memcpy(p, &v, 8);
  if (n & 1) p[n - 1] = v[n - 1];
}
#endif

}  // namespace TRACEA_NS
}  // namespace tracea
