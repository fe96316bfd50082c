// Numbers in the order of their values, with their places, as integers that sort at once.
#pragma once
#include <cstdint>
#include <cstring>

namespace tracea {
namespace TRACEA_NS {

// A number in the order of the values (NaN above all, both zeros one).
static inline uint32_t ordered(float v) {
  if (v != v) return 0xffffffffu;
  uint32_t bits;
  v = v == 0.f ? 0.f : v;
  memcpy(&bits, &v, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
static inline uint32_t ordered(int32_t v) { return uint32_t(v) ^ 0x80000000u; }

// An element and its place, below 2^32: larger for what comes first.
static inline uint64_t key_of(uint32_t value, int64_t place) {
  return uint64_t(value) << 32 | (0xffffffffu - uint64_t(place));
}
static inline int64_t place_of(uint64_t key) { return int64_t(0xffffffffu - (key & 0xffffffffu)); }

}  // namespace TRACEA_NS
}  // namespace tracea
