// AVX-512 and AMX in C++, for machines without them: what `-include`d stands for the intrinsics of
// kernels/cpu, lane by lane as Intel's manual defines them, so that the kernels themselves run
// (`python -m tests.emulated`). GCC makes two vectors of 32 bytes of one of 64.
#pragma once
#pragma GCC diagnostic ignored "-Wignored-attributes"  // vectors as arguments of templates
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

#define EMULATED static inline __attribute__((always_inline))

// A vector as its lanes.
template <class T, class V>
struct Lanes {
  static constexpr int kCount = int(sizeof(V) / sizeof(T));
  T at[sizeof(V) / sizeof(T)];
  Lanes() = default;
  explicit Lanes(V v) { memcpy(at, &v, sizeof v); }
  V vector() const {
    V v;
    memcpy(&v, at, sizeof v);
    return v;
  }
};
template <class T, class V, class F>
EMULATED V made(F of) {
  Lanes<T, V> r;
  for (int k = 0; k < r.kCount; k++) r.at[k] = of(k);
  return r.vector();
}
template <class T, class V>
EMULATED V load(uint64_t mask, const void* p, V otherwise) {
  const Lanes<T, V> o(otherwise);
  return made<T, V>([&](int k) { return mask >> k & 1 ? ((const T*)p)[k] : o.at[k]; });
}
template <class T, class V>
EMULATED void store(void* p, uint64_t mask, V v) {
  const Lanes<T, V> from(v);
  for (int k = 0; k < from.kCount; k++)
    if (mask >> k & 1) memcpy((char*)p + k * sizeof(T), from.at + k, sizeof(T));
}
template <class F>
EMULATED __m512 floats(__m512 a, F of) {
  const Lanes<float, __m512> x(a);
  return made<float, __m512>([&](int k) { return of(x.at[k]); });
}
// The same for both halves.
template <class F>
EMULATED __m512 halves(__m512 a, __m512 b, F of) {
  const Lanes<__m256, __m512> x(a), y(b);
  return made<__m256, __m512>([&](int k) { return of(x.at[k], y.at[k]); });
}
// Of each 16 bytes of a and b the lower or higher half of the lanes, in turn.
template <class T, class V>
EMULATED V unpack(V a, V b, bool high) {
  constexpr int n = 16 / int(sizeof(T));
  const Lanes<T, V> x(a), y(b);
  return made<T, V>([&](int k) {
    const int from = k / n * n + k % n / 2 + (high ? n / 2 : 0);
    return k % 2 ? y.at[from] : x.at[from];
  });
}
EMULATED __m512 shuffle_f32x4(__m512 a, __m512 b, int how) {
  const Lanes<__m128, __m512> x(a), y(b);
  return made<__m128, __m512>([&](int k) { return (k < 2 ? x : y).at[how >> 2 * k & 3]; });
}
EMULATED float scalef(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (std::isinf(b))
    return b < 0 ? (std::isinf(a) ? NAN : std::copysign(0.f, a))
                 : (a == 0 ? NAN : std::copysign(INFINITY, a));
  return std::ldexp(a, int(std::max(-1e4f, std::min(1e4f, std::floor(b)))));
}
EMULATED __m512 scalef(uint16_t mask, __m512 a, __m512 b) {
  const Lanes<float, __m512> x(a), y(b);
  return made<float, __m512>([&](int k) { return mask >> k & 1 ? scalef(x.at[k], y.at[k]) : 0.f; });
}
// How 8: to the nearest, ties to even; 9: down.
EMULATED float roundscale(float a, int how) { return how == 8 ? std::nearbyint(a) : std::floor(a); }
EMULATED float reduce(float a, int how) { return std::isinf(a) ? 0.f : a - roundscale(a, how); }
EMULATED uint16_t compare(__m512 a, __m512 b, int how) {
  const Lanes<float, __m512> x(a), y(b);
  uint16_t r = 0;
  for (int k = 0; k < 16; k++)
    r |= uint16_t((how == _CMP_NLE_UQ ? !(x.at[k] <= y.at[k]) : !(x.at[k] < y.at[k])) << k);
  return r;
}
template <class F>
EMULATED uint16_t bits(__m512i a, F of) {
  const Lanes<int32_t, __m512i> x(a);
  uint16_t r = 0;
  for (int k = 0; k < 16; k++) r |= uint16_t(of(x.at[k]) << k);
  return r;
}
EMULATED __m128i low_bytes(__m512i a) {
  const Lanes<int32_t, __m512i> x(a);
  return made<int8_t, __m128i>([&](int k) { return int8_t(x.at[k]); });
}
template <class From>
EMULATED __m512i widened(__m128i a) {
  const Lanes<From, __m128i> x(a);
  return made<int32_t, __m512i>([&](int k) { return int32_t(x.at[k]); });
}
EMULATED __m512i shuffle_bytes(__m512i a, __m512i b) {
  const Lanes<uint8_t, __m512i> x(a), y(b);
  return made<uint8_t, __m512i>(
      [&](int k) { return y.at[k] & 0x80 ? uint8_t(0) : x.at[k / 16 * 16 + (y.at[k] & 15)]; });
}
EMULATED __m512i add_saturated(__m512i a, __m512i b) {
  const Lanes<uint8_t, __m512i> x(a), y(b);
  return made<uint8_t, __m512i>([&](int k) { return uint8_t(std::min(255, x.at[k] + y.at[k])); });
}
// Four products of U8 by I8 to each I32, which wraps.
template <class V>
EMULATED V dpbusd(V c, V a, V b) {
  const Lanes<uint32_t, V> z(c);
  const Lanes<uint8_t, V> x(a);
  const Lanes<int8_t, V> y(b);
  return made<uint32_t, V>([&](int k) {
    uint32_t sum = z.at[k];
    for (int j = 4 * k; j < 4 * k + 4; j++) sum += uint32_t(x.at[j] * y.at[j]);
    return sum;
  });
}

// Two floats of bfloat16 halves, the lower one first; denormals are zeros.
EMULATED float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.f * x : x; }
EMULATED float half(const void* p, int k) {
  uint16_t bits;
  memcpy(&bits, (const char*)p + 2 * k, 2);
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  memcpy(&x, &wide, 4);
  return flushed(x);
}
EMULATED uint16_t to_half(float x) {
  x = flushed(x);
  uint32_t b;
  memcpy(&b, &x, 4);
  return std::isnan(x) ? uint16_t(b >> 16 | 0x40) : uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
EMULATED __m512i halves_of(__m512 high, __m512 low) {
  const Lanes<float, __m512> x(low), y(high);
  return made<uint16_t, __m512i>([&](int k) { return to_half(k < 16 ? x.at[k] : y.at[k - 16]); });
}
EMULATED __m512 dpbf16(__m512 c, __m512i a, __m512i b) {
  const Lanes<float, __m512> z(c);
  return made<float, __m512>([&](int k) {
    const float second = flushed(flushed(z.at[k]) + half(&a, 2 * k + 1) * half(&b, 2 * k + 1));
    return flushed(second + half(&a, 2 * k) * half(&b, 2 * k));
  });
}

// Tile registers of AMX, with the shapes that were configured.
struct Tile {
  uint8_t at[16][64];
};
struct Tiles {
  bool configured = false;
  int rows[8], bytes[8];
  Tile tile[8];
};
EMULATED Tiles& tiles() {
  static thread_local Tiles all;
  return all;
}
[[noreturn]] static inline void refuse() { __builtin_trap(); }  // as the machine does
EMULATED void tile_config(const void* shapes) {
  const uint8_t* p = (const uint8_t*)shapes;
  if (p[0] != 1) refuse();
  for (int k = 0; k < 8; k++) {
    uint16_t bytes;
    memcpy(&bytes, p + 16 + 2 * k, 2);
    if (bytes > 64 || p[48 + k] > 16) refuse();
    tiles().bytes[k] = bytes, tiles().rows[k] = p[48 + k];
  }
  tiles().configured = true;
}
EMULATED void tile_release() { tiles().configured = false; }
EMULATED void tile_load(int k, const void* p, long step) {
  if (!tiles().configured) refuse();
  memset(&tiles().tile[k], 0, sizeof(Tile));
  for (int r = 0; r < tiles().rows[k]; r++)
    memcpy(tiles().tile[k].at[r], (const char*)p + r * step, size_t(tiles().bytes[k]));
}
EMULATED void tile_store(int k, void* p, long step) {
  if (!tiles().configured) refuse();
  for (int r = 0; r < tiles().rows[k]; r++)
    memcpy((char*)p + r * step, tiles().tile[k].at[r], size_t(tiles().bytes[k]));
}
// c[m][n] += of(a[m][k], b[k][n]) of 32 bits each.
template <class F>
EMULATED void tile_product(int c, int a, int b, F of) {
  Tiles& t = tiles();
  if (!t.configured || t.bytes[a] / 4 != t.rows[b] || t.rows[a] != t.rows[c]) refuse();
  for (int m = 0; m < t.rows[c]; m++)
    for (int k = 0; k < t.rows[b]; k++)
      for (int n = 0; n < t.bytes[c] / 4; n++)
        of(t.tile[c].at[m] + 4 * n, t.tile[a].at[m] + 4 * k, t.tile[b].at[k] + 4 * n);
}
EMULATED void tile_dpbusd(int c, int a, int b) {
  tile_product(c, a, b, [](uint8_t* sum, const uint8_t* x, const uint8_t* y) {
    uint32_t s;
    memcpy(&s, sum, 4);
    for (int j = 0; j < 4; j++) s += uint32_t(x[j] * int8_t(y[j]));
    memcpy(sum, &s, 4);
  });
}

// Products of the first and of the second of each pair are summed apart.
EMULATED void tile_dpbf16(int c, int a, int b) {
  const Tiles& t = tiles();
  static thread_local float sums[16][16][2];
  memset(sums, 0, sizeof sums);
  const uint8_t* first = t.tile[c].at[0];
  tile_product(c, a, b, [&](const uint8_t* sum, const uint8_t* x, const uint8_t* y) {
    const long at = (sum - first) / 4;
    float* s = sums[at / 16][at % 16];
    for (int j = 0; j < 2; j++) s[j] = flushed(s[j] + half(x, j) * half(y, j));
  });
  for (int m = 0; m < t.rows[c]; m++)
    for (int n = 0; n < t.bytes[c] / 4; n++) {
      float v;
      memcpy(&v, t.tile[c].at[m] + 4 * n, 4);
      v = flushed(flushed(v) + flushed(sums[m][n][0] + sums[m][n][1]));
      memcpy(tiles().tile[c].at[m] + 4 * n, &v, 4);
    }
}

}  // namespace emulated

#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#define _tile_loadconfig(p) emulated::tile_config(p)
#define _tile_release() emulated::tile_release()
#define _tile_loadd(k, p, step) emulated::tile_load(k, p, step)
#define _tile_stored(k, p, step) emulated::tile_store(k, p, step)
#define _tile_dpbusd(c, a, b) emulated::tile_dpbusd(c, a, b)
#define _tile_dpbf16ps(c, a, b) emulated::tile_dpbf16(c, a, b)
#define _mm512_fmadd_ps(a, b, c) ((a) * (b) + (c))  // one operation: -ffp-contract=fast
#define _mm512_max_ps(a, b) \
  emulated::halves(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); })
#define _mm512_min_ps(a, b) \
  emulated::halves(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); })
#define _mm512_sqrt_ps(a) emulated::floats(a, [](float x) { return std::sqrt(x); })
#define _mm512_roundscale_ps(a, how) \
  emulated::floats(a, [](float x) { return emulated::roundscale(x, how); })
#define _mm512_reduce_ps(a, how) \
  emulated::floats(a, [](float x) { return emulated::reduce(x, how); })
#define _mm512_scalef_ps(a, b) emulated::scalef(uint16_t(~0), a, b)
#define _mm512_maskz_scalef_ps(m, a, b) emulated::scalef(m, a, b)
#define _mm512_setzero_ps() \
  __m512 {}
#define _mm512_set1_ps(x) ((x) - __m512{})
#define _mm512_set1_epi8(x) emulated::made<int8_t, __m512i>([&](int) { return int8_t(x); })
#define _mm512_set1_epi32(x) emulated::made<int32_t, __m512i>([&](int) { return int32_t(x); })
#define _mm512_loadu_ps(p) emulated::load<float, __m512>(~0ull, p, __m512{})
#define _mm512_storeu_ps(p, v) emulated::store<float, __m512>(p, ~0ull, v)
#define _mm512_maskz_loadu_ps(m, p) emulated::load<float, __m512>(m, p, __m512{})
#define _mm512_mask_loadu_ps(o, m, p) emulated::load<float, __m512>(m, p, o)
#define _mm512_mask_storeu_ps(p, m, v) emulated::store<float, __m512>(p, m, v)
#define _mm512_maskz_loadu_epi8(m, p) emulated::load<uint8_t, __m512i>(m, p, __m512i{})
#define _mm256_maskz_loadu_epi8(m, p) emulated::load<uint8_t, __m256i>(m, p, __m256i{})
#define _mm_maskz_loadu_epi8(m, p) emulated::load<uint8_t, __m128i>(m, p, __m128i{})
#define _mm_mask_storeu_epi8(p, m, v) emulated::store<uint8_t, __m128i>(p, m, v)
#define _mm512_castps_pd(a) ((__m512d)(a))
#define _mm512_castpd_ps(a) ((__m512)(a))
#define _mm512_unpacklo_ps(a, b) emulated::unpack<float, __m512>(a, b, false)
#define _mm512_unpackhi_ps(a, b) emulated::unpack<float, __m512>(a, b, true)
#define _mm512_unpacklo_pd(a, b) emulated::unpack<double, __m512d>(a, b, false)
#define _mm512_unpackhi_pd(a, b) emulated::unpack<double, __m512d>(a, b, true)
#define _mm512_shuffle_f32x4(a, b, how) emulated::shuffle_f32x4(a, b, how)
#define _mm512_cmp_ps_mask(a, b, how) emulated::compare(a, b, how)
#define _mm512_movepi32_mask(a) emulated::bits(a, [](int32_t x) { return x < 0; })
#define _mm512_testn_epi32_mask(a, b) \
  emulated::bits((__m512i)((a) & (b)), [](int32_t x) { return x == 0; })
#define _mm512_cvtepi32_epi8(a) emulated::low_bytes(a)
#define _mm512_cvtepu8_epi32(a) emulated::widened<uint8_t>(a)
#define _mm512_cvtepi8_epi32(a) emulated::widened<int8_t>(a)
#define _mm512_broadcast_i32x4(a) emulated::made<__m128i, __m512i>([&](int) { return __m128i(a); })
#define _mm512_xor_si512(a, b) ((a) ^ (b))
#define _mm512_shuffle_epi8(a, b) emulated::shuffle_bytes(a, b)
#define _mm512_adds_epu8(a, b) emulated::add_saturated(a, b)
#define _mm512_dpbusd_epi32(c, a, b) emulated::dpbusd(c, a, b)
#define _mm256_dpbusd_avx_epi32(c, a, b) emulated::dpbusd(c, a, b)
#define _mm512_cvtne2ps_pbh(high, low) emulated::halves_of(high, low)
#define _mm512_dpbf16_ps(c, a, b) emulated::dpbf16(c, (__m512i)(a), (__m512i)(b))
