// Sums of 8-bit products in the tile registers of AMX: 16 or up to 32 rows of x with the 32 columns
// of a panel, 64 terms at a time. Rows of weights lie in a packed panel as the tiles read them.
#pragma once
#include "common/amx.h"
#include "int8/int8_tile.h"

namespace tracea {
namespace TRACEA_NS {

#ifdef TRACEA_AMX_INT8
constexpr int64_t kAmxTerms = kAmxBytes;
constexpr int64_t kStripRows = 2 * kAmxRows;

// sums[i * 32 ..] of 16 to 32 rows, `lda` bytes apart, which begin with start[..]; `pieces` of 64
// terms. Where there are fewer than 32 rows the second tile of them overlaps the first.
static __attribute__((noinline)) void amx_sums(const uint8_t* a, int64_t lda, const int8_t* w,
                                               int64_t pieces, int64_t rows, const int32_t* start,
                                               int32_t* sums) {
  const uint8_t* b = a + (rows - kAmxRows) * lda;
  const bool both = rows > kAmxRows;
  asm volatile("" ::: "memory");  // GCC does not say that tiles are loaded from memory
  _tile_loadd(0, start, 0);
  _tile_loadd(1, start + 16, 0);
  _tile_loadd(2, start, 0);
  _tile_loadd(3, start + 16, 0);
  for (; pieces > 0; pieces--, a += kAmxTerms, b += kAmxTerms, w += kAmxTerms * kInt8Panel) {
    _tile_loadd(6, w, 4 * kInt8Panel);
    _tile_loadd(7, w + 64, 4 * kInt8Panel);
    _tile_loadd(4, a, lda);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    if (!both) continue;
    _tile_loadd(5, b, lda);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  constexpr int64_t kStep = 4 * kInt8Panel;
  _tile_stored(0, sums, kStep);
  _tile_stored(1, sums + 16, kStep);
  if (!both) return;
  sums += (rows - kAmxRows) * kInt8Panel;
  _tile_stored(2, sums, kStep);
  _tile_stored(3, sums + 16, kStep);
}
#else
constexpr int64_t kStripRows = kInt8Rows;
#endif

}  // namespace TRACEA_NS
}  // namespace tracea
