// Register tiles of 8-bit products: sums of R rows of x with V vectors of columns of a packed
// panel.
#pragma once
#include <utility>

#include "int8/dot.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kInt8Panel = 32;  // columns of a packed panel: [groups][32][kGroup]
constexpr int kInt8Rows = W == 16 ? 14 : 6, kInt8Vectors = 2;

// sums[i * 32 ..] of rows i, `lda` bytes apart, which begin with start[..].
typedef void (*Int8Tile)(const uint8_t* a, int64_t lda, const int8_t* w, int64_t groups,
                         const int32_t* start, int32_t* sums);

template <int V, int R>
static __attribute__((noinline)) void int8_tile(const uint8_t* a, int64_t lda, const int8_t* w,
                                                int64_t groups, const int32_t* start,
                                                int32_t* sums) {
  vi c[R][V];
  const uint8_t* row[(R + 2) / 3];  // x86 addresses row + lda and row + 2 lda directly
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) c[i][j] = load_i(start + j * W);
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
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store_i(sums + i * kInt8Panel + j * W, c[i][j]);
}

template <int V, int... R>
static Int8Tile int8_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Int8Tile table[] = {int8_tile<V, R + 1>...};
  return table[rows - 1];
}

// The sums of `rows` rows with the first `columns` columns of a panel.
static inline void int8_sums(const uint8_t* a, int64_t lda, const int8_t* w, int64_t groups,
                             int64_t rows, int64_t columns, const int32_t* start, int32_t* sums) {
  using Rows = std::make_integer_sequence<int, kInt8Rows>;
  for (int64_t n = 0; n < columns; n += kInt8Vectors * W) {
    const Int8Tile tile =
        columns - n > W ? int8_tile_of<kInt8Vectors>(rows, Rows()) : int8_tile_of<1>(rows, Rows());
    tile(a, lda, w + n * kGroup, groups, start + n, sums + n);
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
