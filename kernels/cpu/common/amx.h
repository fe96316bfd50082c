// The tile registers of AMX.
#pragma once
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

#ifdef TRACEA_AMX_TILE
constexpr int64_t kAmxRows = 16, kAmxBytes = 64;  // of a tile

// What the tile registers of this thread hold, until it goes.
class AmxTiles {
 public:
  AmxTiles() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int k = 0; k < 8; k++) shapes.row_bytes[k] = kAmxBytes, shapes.rows[k] = uint8_t(kAmxRows);
    asm volatile("" ::"r"(&shapes) : "memory");  // GCC says that 8 bytes of them are read
    _tile_loadconfig(&shapes);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
};
#endif

}  // namespace TRACEA_NS
}  // namespace tracea
