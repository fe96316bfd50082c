// Sums of products of 8-bit integers, in I32. Terms are taken in groups of four bytes of x as they
// are stored for the tiles: four U8 where the machine multiplies these with I8 (VNNI), else two I16
// from which the zero point has been taken, so that nothing saturates.
#pragma once
#include <algorithm>

#include "common/bytes.h"

namespace tracea {
namespace TRACEA_NS {

#if defined(TRACEA_AVX512VNNI) || defined(TRACEA_AVXVNNI)
#define TRACEA_VNNI 1
#endif
#ifdef TRACEA_VNNI
constexpr int kGroup = 4;  // terms
typedef uint8_t Stored;
#else
constexpr int kGroup = 2;
typedef int16_t Stored;
#endif
constexpr int kVectorBytes = 4 * W, kWeights = kGroup * W;  // weights of a vector of columns

typedef int16_t vshorts __attribute__((vector_size(4 * TRACEA_W), aligned(1), may_alias));
typedef int8_t vhalf_i8 __attribute__((vector_size(2 * TRACEA_W), aligned(1), may_alias));
typedef uint8_t vhalf_u8 __attribute__((vector_size(2 * TRACEA_W), aligned(1), may_alias));

// Sums wrap, as ONNX Runtime's do.
typedef uint32_t vu __attribute__((vector_size(4 * TRACEA_W), aligned(4), may_alias));
TRACEA_INLINE vi plus(vi a, vi b) { return vi(vu(a) + vu(b)); }
TRACEA_INLINE vi minus(vi a, vi b) { return vi(vu(a) - vu(b)); }
TRACEA_INLINE vi times(vi a, vi b) { return vi(vu(a) * vu(b)); }
TRACEA_INLINE vi load_i(const void* p) { return *(const vi*)p; }
TRACEA_INLINE void store_i(void* p, vi v) { *(vi*)p = v; }
// One group of x, for every column.
TRACEA_INLINE vi splat_group(const uint8_t* p) {
  int32_t group;
  memcpy(&group, p, 4);
  return splat_i(group);
}
// 2 W values as I16. GCC 12 makes six instructions of these conversions for AVX2.
TRACEA_INLINE vshorts widen(vhalf_u8 b) {
#if TRACEA_W == 8
  return (vshorts)_mm256_cvtepu8_epi16((__m128i)b);
#else
  return __builtin_convertvector(b, vshorts);
#endif
}
TRACEA_INLINE vshorts widen_signed(vhalf_i8 b) {
#if TRACEA_W == 8
  return (vshorts)_mm256_cvtepi8_epi16((__m128i)b);
#else
  return __builtin_convertvector(b, vshorts);
#endif
}
// W columns of packed weights.
TRACEA_INLINE vi load_weights(const int8_t* p) {
  return kGroup == 4 ? load_i(p) : (vi)widen_signed(*(const vhalf_i8*)p);
}

// c + the products of the groups in each lane.
TRACEA_INLINE vi dot(vi c, vi x, vi w) {
#if defined(TRACEA_AVX512VNNI)
  return (vi)_mm512_dpbusd_epi32((__m512i)c, (__m512i)x, (__m512i)w);
#elif defined(TRACEA_AVXVNNI)
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)c, (__m256i)x, (__m256i)w);
#elif TRACEA_W == 8
  return plus(c, (vi)_mm256_madd_epi16((__m256i)x, (__m256i)w));
#elif TRACEA_W == 4 && defined(__x86_64__)
  return plus(c, (vi)_mm_madd_epi16((__m128i)x, (__m128i)w));
#else
  const auto low = [](vi v) { return vi(vu(v) << 16) >> 16; };
  return plus(c, plus(times(low(x), low(w)), times(x >> 16, w >> 16)));
#endif
}

// How values of x are read: I8 becomes U8 by a flip of the sign, and so does the zero point.
struct Values {
  uint8_t flip, zero;
  // What is left to take from a stored value: the zero point, where it is stored with the values.
  int32_t offset() const { return kGroup == 4 ? zero : 0; }
  Stored outside() const { return Stored(offset()); }  // of a tap outside of the image
};

// So many bytes, then zeros.
TRACEA_INLINE vbytes load_some(const uint8_t* p, int64_t n) {
#if TRACEA_W == 16
  return (vbytes)_mm512_maskz_loadu_epi8(n >= 64 ? ~0ull : (1ull << n) - 1, p);
#else
  vbytes v{};
  if (n >= kVectorBytes) return *(const vbytes*)p;
  memcpy(&v, p, size_t(n));
  return v;
#endif
}

// Rows of n values, `step` apart, as they are stored, one behind the other; writes whole vectors.
static inline void store_values(Stored* to, const uint8_t* x, int64_t n, int64_t rows, int64_t step,
                                Values v) {
#ifdef TRACEA_VNNI
  const int64_t whole = n / kVectorBytes * kVectorBytes;
  for (; rows > 0; rows--, x += step, to += n) {
    for (int64_t k = 0; k < whole; k += kVectorBytes)
      *(vbytes*)(to + k) = *(const vbytes*)(x + k) ^ v.flip;
    if (whole < n) *(vbytes*)(to + whole) = load_some(x + whole, n - whole) ^ v.flip;
  }
#else
  for (; rows > 0; rows--, x += step, to += n) {
    const auto stored = [&](vhalf_u8 b) { return widen(b ^ v.flip) - int16_t(v.zero); };
    int64_t k = 0;
    for (; k + 2 * W <= n; k += 2 * W) *(vshorts*)(to + k) = stored(*(const vhalf_u8*)(x + k));
    if (k == n) continue;
    vhalf_u8 rest{};
    memcpy(&rest, x + k, size_t(n - k));
    *(vshorts*)(to + k) = stored(rest);
  }
#endif
}

static inline void fill_values(Stored* to, int64_t n, Values v) {
  for (int64_t k = 0; k < n; k++) to[k] = v.outside();
}

// The sum of n stored values.
static inline int32_t sum_values(const Stored* x, int64_t n) {
  vi sum{};
#ifdef TRACEA_VNNI
  for (; n > 0; n -= kVectorBytes, x += kVectorBytes)
    sum = dot(sum, (vi)load_some(x, n), (vi)(vbytes{} + 1));
#else
  for (; n >= 2 * W; n -= 2 * W, x += 2 * W) sum = dot(sum, load_i(x), (vi)(vshorts{} + 1));
  for (; n > 0; n--, x++) sum[0] = int32_t(uint32_t(sum[0]) + uint32_t(*x));
#endif
  uint32_t total = 0;
  for (int k = 0; k < W; k++) total += uint32_t(sum[k]);
  return int32_t(total);
}

}  // namespace TRACEA_NS
}  // namespace tracea
