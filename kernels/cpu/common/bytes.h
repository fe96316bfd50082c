// Vectors of 8-bit values: as integers and floats and back, and through a table.
#pragma once
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

// Element `at` of values of so many bits, one behind the other from the lowest bits on.
static inline uint32_t bits_at(const void* src, int64_t at, int64_t bits) {
  const int64_t bit = at * bits;
  return uint32_t(((const uint8_t*)src)[bit / 8]) >> (bit % 8) & ((1u << bits) - 1);
}

typedef uint8_t vbytes __attribute__((vector_size(4 * TRACEA_W), aligned(1), may_alias));
typedef int8_t vlanes_i8 __attribute__((vector_size(TRACEA_W), aligned(1), may_alias));
typedef uint8_t vlanes_u8 __attribute__((vector_size(TRACEA_W), aligned(1), may_alias));

// W bytes as integers. GCC 12 makes scalar code of these conversions.
TRACEA_INLINE vi lanes(vlanes_u8 b) {
#if TRACEA_W == 16
  return (vi)_mm512_cvtepu8_epi32((__m128i)b);
#elif TRACEA_W == 8
  return (vi)_mm256_cvtepu8_epi32(_mm_set1_epi64x((long long)b));
#else
  return __builtin_convertvector(b, vi);
#endif
}
TRACEA_INLINE vi lanes_signed(vlanes_i8 b) {
#if TRACEA_W == 16
  return (vi)_mm512_cvtepi8_epi32((__m128i)b);
#elif TRACEA_W == 8
  return (vi)_mm256_cvtepi8_epi32(_mm_set1_epi64x((long long)b));
#else
  return __builtin_convertvector(b, vi);
#endif
}
// n 8-bit values as floats.
TRACEA_INLINE vf load_bytes(const uint8_t* p, int n, bool is_signed) {
#if TRACEA_W == 16
  const vlanes_u8 b = (vlanes_u8)(n >= W ? _mm_loadu_si128((const __m128i*)p)
                                         : _mm_maskz_loadu_epi8(__mmask16((1u << n) - 1), p));
#else
  vlanes_u8 b{};
  if (n >= W)
    b = *(const vlanes_u8*)p;
  else
    for (int k = 0; k < n; k++) b[k] = p[k];
#endif
  return to_float(is_signed ? lanes_signed((vlanes_i8)b) : lanes(b));
}
// The low bytes of n lanes, of -128 to 255.
TRACEA_INLINE void store_bytes(uint8_t* p, vi v, int n) {
#if TRACEA_W == 16
  const __m128i b = _mm512_cvtepi32_epi8((__m512i)v);
  if (n >= W)
    _mm_storeu_si128((__m128i*)p, b);
  else
    _mm_mask_storeu_epi8(p, __mmask16((1u << n) - 1), b);
#elif defined(__x86_64__)
#if TRACEA_W == 8
  const __m128i low = _mm256_castsi256_si128((__m256i)v),
                high = _mm256_extracti128_si256((__m256i)v, 1);
#else
  const __m128i low = (__m128i)v, high = low;
#endif
  const __m128i s = _mm_and_si128(_mm_packs_epi32(low, high), _mm_set1_epi16(255));
  const __m128i b = _mm_packus_epi16(s, s);
  memcpy(p, &b, size_t(n >= W ? W : n));
#else
  const vlanes_i8 b = __builtin_convertvector(v, vlanes_i8);
  memcpy(p, &b, size_t(n >= W ? W : n));
#endif
}

#if TRACEA_W >= 8
// Of bytes 16 k to 16 k + 15 the entries of these sixteen; of other bytes the index becomes 128 and
// more, which gives 0.
TRACEA_INLINE vbytes entries_of(const uint8_t* sixteen, vbytes x, int k) {
  const vbytes flipped = x ^ uint8_t(16 * k);
  const __m128i part = _mm_loadu_si128((const __m128i*)sixteen);
#if TRACEA_W == 16
  const __m512i at = _mm512_adds_epu8((__m512i)flipped, _mm512_set1_epi8(0x70));
  return (vbytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(part), at);
#else
  const __m256i at = _mm256_adds_epu8((__m256i)flipped, _mm256_set1_epi8(0x70));
  return (vbytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part), at);
#endif
}
#endif

// y[i] = table[x[i]]; y may be x.
static inline __attribute__((noinline)) void map_bytes(const uint8_t* table, const uint8_t* x,
                                                       uint8_t* y, int64_t n) {
  int64_t i = 0;
#if TRACEA_W >= 8
  constexpr int64_t kBytes = 4 * W;
  for (; i + 2 * kBytes <= n; i += 2 * kBytes) {
    const vbytes a = *(const vbytes*)(x + i), b = *(const vbytes*)(x + i + kBytes);
    vbytes of_a{}, of_b{};
    for (int k = 0; k < 16; k++) {
      of_a |= entries_of(table + 16 * k, a, k), of_b |= entries_of(table + 16 * k, b, k);
    }
    *(vbytes*)(y + i) = of_a, *(vbytes*)(y + i + kBytes) = of_b;
  }
#endif
  for (; i < n; i++) y[i] = table[x[i]];
}

}  // namespace TRACEA_NS
}  // namespace tracea
