// Transposition of a matrix of 4-byte elements in register tiles: y[c * ldy + r] = x[r * ldx + c].
#pragma once
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));

TRACEA_INLINE void transpose_4x4(v4& a, v4& b, v4& c, v4& d) {
  const v4 t0 = {a[0], b[0], a[1], b[1]}, t1 = {a[2], b[2], a[3], b[3]},
           t2 = {c[0], d[0], c[1], d[1]}, t3 = {c[2], d[2], c[3], d[3]};
  a = v4{t0[0], t0[1], t2[0], t2[1]};
  b = v4{t0[2], t0[3], t2[2], t2[3]};
  c = v4{t1[0], t1[1], t3[0], t3[1]};
  d = v4{t1[2], t1[3], t3[2], t3[3]};
}

// One W x W tile, or with kPartial its first rows and columns: exact reads and writes.
#if TRACEA_W == 16
template <bool kPartial>
TRACEA_INLINE void transpose_tile(const float* x, int64_t ldx, float* y, int64_t ldy, int rows = 16,
                                  int columns = 16) {
  __m512 r[16], t[16];
  const __mmask16 in = __mmask16((1u << columns) - 1), out = __mmask16((1u << rows) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    r[i] = !kPartial  ? _mm512_loadu_ps(x + i * ldx)
           : i < rows ? _mm512_maskz_loadu_ps(in, x + i * ldx)
                      : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2)
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 16
    for (int k = 0; k < 2; k++) {
      const __m512d lo = _mm512_castps_pd(t[i + k]), hi = _mm512_castps_pd(t[i + 2 + k]);
      r[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
      r[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
    }
#pragma GCC unroll 16
  for (int k = 0; k < 4; k++) {  // 128-bit lane L of r[4i + k] holds rows 4i..4i+3 of column 4L + k
    const __m512 even_lo = _mm512_shuffle_f32x4(r[k], r[4 + k], 0x88),
                 even_hi = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0x88);
    const __m512 odd_lo = _mm512_shuffle_f32x4(r[k], r[4 + k], 0xdd),
                 odd_hi = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0xdd);
    t[k] = _mm512_shuffle_f32x4(even_lo, even_hi, 0x88),
    t[4 + k] = _mm512_shuffle_f32x4(odd_lo, odd_hi, 0x88);
    t[8 + k] = _mm512_shuffle_f32x4(even_lo, even_hi, 0xdd),
          t[12 + k] = _mm512_shuffle_f32x4(odd_lo, odd_hi, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    if (!kPartial)
      _mm512_storeu_ps(y + i * ldy, t[i]);
    else if (i < columns)
      _mm512_mask_storeu_ps(y + i * ldy, out, t[i]);
  }
}
#elif TRACEA_W == 8
template <bool kPartial>
TRACEA_INLINE void transpose_tile(const float* x, int64_t ldx, float* y, int64_t ldy, int rows = 8,
                                  int columns = 8) {
  __m256 r[8], t[8];
  const __m256i in = (__m256i)first_lanes(columns), out = (__m256i)first_lanes(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 8; i++)
    r[i] = !kPartial  ? _mm256_loadu_ps(x + i * ldx)
           : i < rows ? _mm256_maskload_ps(x + i * ldx, in)
                      : _mm256_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < 8; i += 2)
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
#pragma GCC unroll 16
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 16
    for (int k = 0; k < 2; k++) {
      const __m256d lo = _mm256_castps_pd(t[i + k]), hi = _mm256_castps_pd(t[i + 2 + k]);
      r[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi));
      r[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi));
    }
#pragma GCC unroll 16
  for (int k = 0; k < 4; k++)
    t[k] = _mm256_permute2f128_ps(r[k], r[4 + k], 0x20),
    t[4 + k] = _mm256_permute2f128_ps(r[k], r[4 + k], 0x31);
#pragma GCC unroll 16
  for (int i = 0; i < 8; i++) {
    if (!kPartial)
      _mm256_storeu_ps(y + i * ldy, t[i]);
    else if (i < columns)
      _mm256_maskstore_ps(y + i * ldy, out, t[i]);
  }
}
#else
template <bool kPartial>
TRACEA_INLINE void transpose_tile(const float* x, int64_t ldx, float* y, int64_t ldy, int rows = 4,
                                  int columns = 4) {
  v4 r[4];
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++)
    r[i] = !kPartial ? *(const v4*)(x + i * ldx) : i < rows ? load_n(x + i * ldx, columns) : v4{};
  transpose_4x4(r[0], r[1], r[2], r[3]);
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++) {
    if (!kPartial)
      *(v4*)(y + i * ldy) = r[i];
    else if (i < columns)
      store_n(y + i * ldy, r[i], rows);
  }
}
#endif

TRACEA_INLINE void store_v4(float* p, v4 v, int64_t n) {
  if (n >= 4)
    *(v4*)p = v;
  else if (n == 3)
    memcpy(p, &v, 12);
  else if (n == 2)
    memcpy(p, &v, 8);
  else if (n == 1)
    memcpy(p, &v, 4);
}

// Columns <= 4 (interleaved channels taken apart). A row is read as four floats: rows must overlap
// or follow closely enough that this stays within the next row, hence never the last one.
static inline void transpose_few_columns(const float* x, int64_t ldx, float* y, int64_t ldy,
                                         int64_t rows, int64_t columns) {
  int64_t r = 0;
  for (; ldx + columns >= 4 && r + 5 <= rows; r += 4) {
    v4 a = *(const v4*)(x + r * ldx), b = *(const v4*)(x + (r + 1) * ldx),
       c = *(const v4*)(x + (r + 2) * ldx), d = *(const v4*)(x + (r + 3) * ldx);
    transpose_4x4(a, b, c, d);
    *(v4*)(y + r) = a;
    if (columns > 1) *(v4*)(y + ldy + r) = b;
    if (columns > 2) *(v4*)(y + 2 * ldy + r) = c;
    if (columns > 3) *(v4*)(y + 3 * ldy + r) = d;
  }
  for (; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) y[c * ldy + r] = x[r * ldx + c];
}

// Rows <= 4 (planes interleaved). Where the results are dense a store may run into the next one,
// which follows at once: never the last.
static inline void transpose_few_rows(const float* x, int64_t ldx, float* y, int64_t ldy,
                                      int64_t rows, int64_t columns) {
  int64_t c = 0;
  for (; c + 5 <= columns; c += 4) {
    v4 p = *(const v4*)(x + c), q{}, r{}, s{};
    if (rows > 1) q = *(const v4*)(x + ldx + c);
    if (rows > 2) r = *(const v4*)(x + 2 * ldx + c);
    if (rows > 3) s = *(const v4*)(x + 3 * ldx + c);
    transpose_4x4(p, q, r, s);
    float* o = y + c * ldy;
    if (ldy == rows && rows >= 3)
      *(v4*)o = p, *(v4*)(o + ldy) = q, *(v4*)(o + 2 * ldy) = r, *(v4*)(o + 3 * ldy) = s;
    else
      store_v4(o, p, rows), store_v4(o + ldy, q, rows), store_v4(o + 2 * ldy, r, rows),
          store_v4(o + 3 * ldy, s, rows);
  }
  for (; c < columns; c++)
    for (int64_t r = 0; r < rows; r++) y[c * ldy + r] = x[r * ldx + c];
}

// Any size. Best called on blocks of about 64 columns. Both sides are strided streams that no
// hardware prefetcher follows across pages: prefetching them into the second-level cache (the first
// would suffer from equal strides) triples the speed of large transpositions.
inline __attribute__((noinline)) void transpose_block(const float* x, int64_t ldx, float* y,
                                                      int64_t ldy, int64_t rows, int64_t columns) {
  constexpr int64_t line = 16, ahead_x = 2 * line, ahead_y = 4 * line;
  if (columns <= 4) return transpose_few_columns(x, ldx, y, ldy, rows, columns);
  if (rows <= 4) return transpose_few_rows(x, ldx, y, ldy, rows, columns);
  int64_t c = 0;
  for (; c + W <= columns; c += W) {
    int64_t r = 0;
    for (; r + W <= rows; r += W) {
      const float* const from = x + r * ldx + c;
      float* const to = y + c * ldy + r;
      if (c % line == 0)
        for (int i = 0; i < W; i++) __builtin_prefetch(from + i * ldx + ahead_x, 0, 2);
      if (r % line == 0)
        for (int i = 0; i < W; i++) __builtin_prefetch(to + i * ldy + ahead_y, 1, 2);
      transpose_tile<false>(from, ldx, to, ldy);
    }
    if (r < rows)
      transpose_tile<true>(x + r * ldx + c, ldx, y + c * ldy + r, ldy, int(rows - r), W);
  }
  for (int64_t r = 0; c < columns && r < rows; r += W)
    transpose_tile<true>(x + r * ldx + c, ldx, y + c * ldy + r, ldy,
                         rows - r < W ? int(rows - r) : W, int(columns - c));
}

}  // namespace TRACEA_NS
}  // namespace tracea
