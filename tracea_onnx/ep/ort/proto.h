// Writes protobuf wire format: just what a ModelProto needs.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

namespace tracea {

class Proto {
 public:
  Proto& integer(int field, int64_t v) { return tag(field, 0).varint(uint64_t(v)); }
  Proto& real(int field, float v) { return tag(field, 5).raw(&v, 4); }
  Proto& bytes(int field, const void* data, size_t n) {
    return tag(field, 2).varint(n).raw(data, n);
  }
  Proto& text(int field, const std::string& s) { return bytes(field, s.data(), s.size()); }
  Proto& message(int field, const Proto& m) { return text(field, m.out_); }
  const std::string& str() const { return out_; }

 private:
  Proto& tag(int field, int wire) { return varint(uint64_t(field) << 3 | uint64_t(wire)); }
  Proto& varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) out_ += char(v | 0x80);
    out_ += char(v);
    return *this;
  }
  Proto& raw(const void* p, size_t n) {
    out_.append(static_cast<const char*>(p), n);
    return *this;
  }
  std::string out_;
};

}  // namespace tracea
