// Register tiles of 8-bit products: sums of R rows of x with V vectors of columns of a packed
// panel.
#pragma once
#include <utility>

#include "int8/dot.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kInt8Panel = 32;  // columns of a packed panel: [groups][32][kGroup]
// Sums, weights and what makes bytes of them fit the register file.
constexpr int kInt8Rows = W == 16 ? 12 : 6, kInt8Vectors = 2;

// From sums to bytes in few steps: sum * scale + bias is the result in units of y's scale, and
// `magic` more shifts its integer part to where the low byte is the result, rounded, unless it may
// lie at a tie: then the twelve bits below are zero. With `again` that result, shifted by nothing,
// is multiplied by `ratio`, clamped and shifted once more, which is exact for all of them.
struct Quick {
  const float *scale, *bias;  // of the panel's columns
  float lo, hi, magic;
  uint8_t* y;
  bool again;
  float ratio, again_lo, again_hi, again_magic;
};
constexpr int kFractionBits = 12;
constexpr float kQuickShift = float(3 << (22 - kFractionBits)) + 0.5f;  // `magic` of a zero point 0
TRACEA_INLINE vi again_bits(vf v, const Quick& q) {
  return bits_i(vmin(vmax(v * q.ratio, splat(q.again_lo)), splat(q.again_hi)) + q.again_magic);
}
// `ties` are the bits in which a tie shows.
TRACEA_INLINE vi quick_bits(vi sum, vf scale, vf bias, const Quick& q, vi* ties) {
  const vf v = vmin(vmax(fma(to_float(sum), scale, bias), splat(q.lo)), splat(q.hi));
  *ties = bits_i(v + q.magic);
  return q.again ? again_bits(vround(v), q) : *ties;
}
TRACEA_INLINE uint32_t quick_ties(vi bits) {
#if TRACEA_W == 16
  return _mm512_testn_epi32_mask((__m512i)bits, _mm512_set1_epi32((1 << kFractionBits) - 1));
#else
  return lane_bits((bits & ((1 << kFractionBits) - 1)) == 0);
#endif
}

#if TRACEA_W >= 8
// The low bytes of one or two vectors.
TRACEA_INLINE void store_low_bytes(uint8_t* y, const vi* v, int vectors) {
#if TRACEA_W == 16
  for (int j = 0; j < vectors; j++)
    _mm_storeu_si128((__m128i*)(y + j * W), _mm512_cvtepi32_epi8((__m512i)v[j]));
#else
  const __m256i low = _mm256_set1_epi32(255), a = _mm256_and_si256((__m256i)v[0], low),
                b = vectors == 2 ? _mm256_and_si256((__m256i)v[1], low) : a;
  const __m256i words = _mm256_packs_epi32(a, b), bytes = _mm256_packus_epi16(words, words);
  const __m128i both =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  if (vectors == 2)
    _mm_storeu_si128((__m128i*)y, both);
  else
    _mm_storel_epi64((__m128i*)y, both);
#endif
}
#endif

// sums[i * 32 ..] of rows i, `lda` bytes apart, which begin with start[i * start_step ..]; `sums`
// may be `start`. With `quick`, bytes are stored instead, y_at[i] elements from quick->y, and the
// result has bit i set for rows that may have a tie; their sums are there.
typedef uint32_t (*Int8Tile)(const uint8_t* a, int64_t lda, const int8_t* w, int64_t groups,
                             const int32_t* start, int64_t start_step, int32_t* sums,
                             const Quick* quick, const int64_t* y_at);

template <int V, int R>
static __attribute__((noinline)) uint32_t int8_tile(const uint8_t* a, int64_t lda, const int8_t* w,
                                                    int64_t groups, const int32_t* start,
                                                    int64_t start_step, int32_t* sums,
                                                    const Quick* quick, const int64_t* y_at) {
  vi c[R][V];
  const uint8_t* row[(R + 2) / 3];  // x86 addresses row + lda and row + 2 lda directly
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) c[i][j] = load_i(start + i * start_step + j * W);
#pragma GCC unroll 8
  for (int i = 0; i < R; i += 3) row[i / 3] = a + i * lda;
  for (; groups > 0; groups--) {
    vi b[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) b[j] = load_weights(w + j * kWeights);
    w += kInt8Panel * kGroup;
#pragma GCC unroll 16
    for (int i = 0; i < R; i++) {
      const vi x = splat_group(row[i / 3] + i % 3 * lda);
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) c[i][j] = dot(c[i][j], x, b[j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i += 3) row[i / 3] += 4;
  }
  uint32_t left = ~0u;
#if TRACEA_W >= 8
  if (quick) {
    left = 0;
    const Quick q = *quick;  // a copy: what is stored could change the original
    vf scale[V], bias[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) scale[j] = load(q.scale + j * W), bias[j] = load(q.bias + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < R; i++) {
      vi bits[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) {
        vi ties;
        bits[j] = quick_bits(c[i][j], scale[j], bias[j], q, &ties) >> kFractionBits;
        left |= uint32_t(quick_ties(ties) != 0) << i;
      }
      store_low_bytes(q.y + y_at[i], bits, V);
    }
    // Another tile of these rows may have a tie, which is finished for the whole panel.
    if (!left && V * W == kInt8Panel) return 0;
  }
#else
  (void)quick, (void)y_at;
#endif
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store_i(sums + i * kInt8Panel + j * W, c[i][j]);
  return left;
}

template <int V, int... R>
static Int8Tile int8_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Int8Tile table[] = {int8_tile<V, R + 1>...};
  return table[rows - 1];
}

// The sums of `rows` rows with the first `columns` columns of a panel, or what `quick` makes of
// them; the bits of the rows that are left to finish.
static inline uint32_t int8_sums(const uint8_t* a, int64_t lda, const int8_t* w, int64_t groups,
                                 int64_t rows, int64_t columns, const int32_t* start,
                                 int64_t start_step, int32_t* sums, const Quick* quick,
                                 const int64_t* y_at) {
  using Rows = std::make_integer_sequence<int, kInt8Rows>;
  uint32_t left = 0;
  for (int64_t n = 0; n < columns; n += kInt8Vectors * W) {
    const Int8Tile tile =
        columns - n > W ? int8_tile_of<kInt8Vectors>(rows, Rows()) : int8_tile_of<1>(rows, Rows());
    Quick here{};
    if (quick) here = *quick, here.scale += n, here.bias += n, here.y += n;
    left |= tile(a, lda, w + n * kGroup, groups, start + n, start_step, sums + n,
                 quick ? &here : nullptr, y_at);
  }
  return left;
}

}  // namespace TRACEA_NS
}  // namespace tracea
