// Register tiles of products of bfloat16: sums, in float, of R rows of x with V vectors of columns
// of a packed panel. Terms are taken in pairs. AVX512_BF16 has an instruction for a pair, which
// takes denormals for zeros; AMX has one for 16 rows, 16 columns and 32 terms. Elsewhere each
// element becomes the float it stands for.
#pragma once
#include <algorithm>
#include <utility>

#include "common/amx.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kBf16Panel = 32;  // columns of a packed panel: [terms / 2][32][2]
constexpr int64_t kBf16Terms = 32;  // the terms of packed rows and columns are a multiple of it
#ifdef TRACEA_AVX512BF16
constexpr int kBf16Rows = 12;
#else
constexpr int kBf16Rows = 4;  // a pair's weights take two registers for each vector of columns
#endif

typedef uint32_t vwords __attribute__((vector_size(4 * TRACEA_W), aligned(4), may_alias));
typedef uint16_t vhalfs __attribute__((vector_size(2 * TRACEA_W), aligned(2), may_alias));

// W floats rounded to bfloat16, half to even, in the high halves of words; a NaN stays one.
TRACEA_INLINE vwords rounded(vf v) {
  const vwords b = vwords(bits_i(v)), nan = vwords((b & 0x7fffffffu) > 0x7f800000u);
  return ((nan & (b | 0x400000u)) | (~nan & (b + 0x7fffu + (b >> 16 & 1u)))) & 0xffff0000u;
}
// 2 W floats.
TRACEA_INLINE void store_bf16(uint16_t* to, vf low, vf high) {
#ifdef TRACEA_AVX512BF16
  const auto both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  memcpy(to, &both, sizeof both);
#else
  *(vhalfs*)to = __builtin_convertvector(rounded(low) >> 16, vhalfs);
  *(vhalfs*)(to + W) = __builtin_convertvector(rounded(high) >> 16, vhalfs);
#endif
}

#ifndef TRACEA_AVX512BF16
// The first and the second of each lane's pair.
TRACEA_INLINE vf first_of(vwords pairs) { return bits_f(vi(pairs << 16)); }
TRACEA_INLINE vf second_of(vwords pairs) { return bits_f(vi(pairs & 0xffff0000u)); }
#endif

// The gathered rows of x of a strip: terms k..k + 31 of row i, k a multiple of 32, lie at i * row +
// k / 32 * piece. For AMX a piece of all rows lies together, so that tiles are read one after the
// other: rows that are far apart leave each line of a tile waiting for L2.
#ifdef TRACEA_AMX_BF16
constexpr int64_t kBf16Strip = 2 * kAmxRows;  // rows
#else
constexpr int64_t kBf16Strip = kBf16Rows;
#endif

#ifndef TRACEA_AMX_BF16
// sums[i * 32 ..] of R rows which begin with start[..]. Terms are consecutive, rows `lda` elements
// apart.
typedef void (*Bf16Tile)(const uint16_t* a, int64_t lda, const uint16_t* w, int64_t pairs,
                         const float* start, float* sums);

template <int V, int R>
static __attribute__((noinline)) void bf16_tile(const uint16_t* a, int64_t lda, const uint16_t* w,
                                                int64_t pairs, const float* start, float* sums) {
  vf c[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) c[i][j] = load(start + j * W);
  const uint16_t* row[(R + 2) / 3];  // x86 addresses row + lda and row + 2 lda directly
#pragma GCC unroll 8
  for (int i = 0; i < R; i += 3) row[i / 3] = a + i * lda;
  for (; pairs > 0; pairs--, w += 2 * kBf16Panel) {
    vwords b[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) b[j] = *(const vwords*)(w + 2 * j * W);
#pragma GCC unroll 16
    for (int i = 0; i < R; i++) {
      uint32_t pair;
      memcpy(&pair, row[i / 3] + i % 3 * lda, 4);
      const vwords x = pair - vwords{};
#pragma GCC unroll 4
      for (int j = 0; j < V; j++)
#ifdef TRACEA_AVX512BF16
        c[i][j] = (vf)_mm512_dpbf16_ps((__m512)c[i][j], (__m512bh)x, (__m512bh)b[j]);
#else
        c[i][j] = fma(second_of(x), second_of(b[j]), fma(first_of(x), first_of(b[j]), c[i][j]));
#endif
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i += 3) row[i / 3] += 2;
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store(sums + i * kBf16Panel + j * W, c[i][j]);
}

template <int V, int... R>
static Bf16Tile bf16_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Bf16Tile table[] = {bf16_tile<V, R + 1>...};
  return table[rows - 1];
}
#endif

// What is fetched meanwhile: the panel behind this one, into L2, so many lines of 64 bytes for each
// piece.
struct Bf16Ahead {
  const uint16_t* weights;
  int64_t lines;
};

#ifdef TRACEA_AMX_BF16
constexpr int64_t kBf16Piece = kBf16Strip * kBf16Terms;  // elements of a strip
constexpr int64_t kPiecesAhead = 3;

// The same of a strip by one or both tiles of rows, with one or both of columns.
template <bool rows, bool columns>
static __attribute__((noinline)) void bf16_amx(const uint16_t* a, const uint16_t* w, int64_t pieces,
                                               const float* start, float* sums,
                                               const Bf16Ahead& ahead) {
  constexpr int64_t kStep = 4 * kBf16Panel;  // bytes from row to row of weights and of sums
  constexpr int64_t kSecond = kAmxRows * kBf16Terms, kAhead = kPiecesAhead * kBf16Piece;
  const uint16_t* next = ahead.weights;
  const int64_t lines = ahead.lines;
  asm volatile("" ::: "memory");  // GCC does not say that tiles are loaded from memory
  _tile_loadd(0, start, 0);
  if (columns) _tile_loadd(1, start + 16, 0);
  if (rows) _tile_loadd(2, start, 0);
  if (rows && columns) _tile_loadd(3, start + 16, 0);
  for (; pieces > 0; pieces--, a += kBf16Piece, w += kBf16Terms * kBf16Panel) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kAmxRows; i++) {
      __builtin_prefetch(a + kAhead + i * kBf16Terms);
      if (rows) __builtin_prefetch(a + kAhead + kSecond + i * kBf16Terms);
      __builtin_prefetch(w + kPiecesAhead * kBf16Terms * kBf16Panel + i * 2 * kBf16Panel);
      if (columns)
        __builtin_prefetch(w + kPiecesAhead * kBf16Terms * kBf16Panel + i * 2 * kBf16Panel + 32);
    }
    for (int64_t i = 0; i < lines; i++, next += 32) __builtin_prefetch(next, 0, 2);
    _tile_loadd(6, w, kStep);
    _tile_loadd(4, a, 2 * kBf16Terms);
    _tile_dpbf16ps(0, 4, 6);
    if (columns) {
      _tile_loadd(7, w + 32, kStep);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (rows) {
      _tile_loadd(5, a + kSecond, 2 * kBf16Terms);
      _tile_dpbf16ps(2, 5, 6);
      if (columns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kStep);
  if (columns) _tile_stored(1, sums + 16, kStep);
  sums += kAmxRows * kBf16Panel;
  if (rows) _tile_stored(2, sums, kStep);
  if (rows && columns) _tile_stored(3, sums + 16, kStep);
}
#endif

// sums[i * 32 ..] of a strip of rows with the first `columns` columns of a panel, which begin with
// start[..]; `terms` are a multiple of 32. Where there are fewer rows than in a strip, or in half
// of one, whatever lies behind them is multiplied, too.
static inline void bf16_sums(const uint16_t* a, int64_t pitch, const uint16_t* w, int64_t terms,
                             int64_t rows, int64_t columns, const float* start, float* sums,
                             const Bf16Ahead& ahead) {
#ifdef TRACEA_AMX_BF16
  (void)pitch;
  const int64_t pieces = terms / kBf16Terms;
  if (rows > kAmxRows)
    columns > 16 ? bf16_amx<true, true>(a, w, pieces, start, sums, ahead)
                 : bf16_amx<true, false>(a, w, pieces, start, sums, ahead);
  else
    columns > 16 ? bf16_amx<false, true>(a, w, pieces, start, sums, ahead)
                 : bf16_amx<false, false>(a, w, pieces, start, sums, ahead);
#else
  (void)ahead;
  using Rows = std::make_integer_sequence<int, kBf16Rows>;
  constexpr int V = 2;
  for (int64_t n = 0; n < columns; n += V * W) {
    const Bf16Tile tile =
        columns - n > W ? bf16_tile_of<V>(rows, Rows()) : bf16_tile_of<1>(rows, Rows());
    tile(a, pitch, w + 2 * n, terms / 2, start + n, sums + n);
  }
#endif
}

}  // namespace TRACEA_NS
}  // namespace tracea
