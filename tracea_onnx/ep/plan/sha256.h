// SHA-256 (FIPS 180-4): integrity of packs and identity of graph nodes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tracea {

class Sha256 {
 public:
  Sha256& add(const void* data, size_t n);
  Sha256& add_u64(uint64_t v) { return add(&v, sizeof v); }
  // Length-prefixed, so that neighbouring fields cannot run together.
  Sha256& add_text(const std::string& s) { return add_u64(s.size()).add(s.data(), s.size()); }
  std::array<uint8_t, 32> digest();
  std::string hex() { return hex(digest()); }
  static std::string hex(const std::array<uint8_t, 32>& digest);

 private:
  void block(const uint8_t* p);
  std::array<uint32_t, 8> h_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t pending_[64];
  size_t n_pending_ = 0;
  uint64_t total_ = 0;
};

}  // namespace tracea
