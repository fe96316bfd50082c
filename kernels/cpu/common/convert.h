// Strided reads of any element type into f32 or i64, and contiguous writes back.
#pragma once
#include <type_traits>

#include "common/bytes.h"

namespace tracea {
namespace TRACEA_NS {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

static inline uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
static inline float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = uint32_t(h & 0x7fff) << 13;
  if (magnitude >= 0x7c00u << 13)
    return bits_float(sign | magnitude | 0x7f800000u);  // infinity, NaN
  return bits_float(
      sign | float_bits(bits_float(magnitude) *
                        5.192296858534828e+33f));  // * 2^112 moves the exponent, denormals included
}
static inline uint16_t float_to_half(float x) {  // to nearest even
  const uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (a < 0x38800000u)
    return uint16_t(sign | (float_bits(bits_float(a) + 0.5f) -
                            0x3f000000u));  // denormal: 0.5 has the ulp 2^-24
  return uint16_t(sign | ((a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13));
}
static inline uint16_t float_to_bfloat(float x) {  // to nearest even
  const uint32_t u = float_bits(x);
  return uint16_t((u & 0x7fffffff) > 0x7f800000u ? (u >> 16 | 0x40)
                                                 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

template <class To, class From>
TRACEA_INLINE To convert(From x) {
  if constexpr (std::is_same_v<From, Half>)
    return To(half_to_float(x.bits));
  else if constexpr (std::is_same_v<From, Bfloat>)
    return To(bits_float(uint32_t(x.bits) << 16));
  else if constexpr (std::is_same_v<To, Half>)
    return {float_to_half(float(x))};
  else if constexpr (std::is_same_v<To, Bfloat>)
    return {float_to_bfloat(float(x))};
  else if constexpr (std::is_same_v<To, bool>)
    return x != From{};
  else if constexpr (std::is_same_v<From, float> &&
                     (sizeof(To) < 4 || std::is_same_v<To, uint32_t>))
    return To(int64_t(x));  // so that a value out of range wraps instead of being undefined
  else
    return To(x);
}

// to[n] = x[n]; 8 bits from and to floats in vectors.
template <class To, class From>
TRACEA_INLINE void convert_row(const From* x, int64_t n, To* to) {
  for (int64_t k = 0; k < n; k++) to[k] = convert<To, From>(x[k]);
}
TRACEA_INLINE void floats_of_bytes(const uint8_t* x, int64_t n, float* to, bool is_signed) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store(to + k, load_bytes(x + k, W, is_signed));
  if (k < n) store_n(to + k, load_bytes(x + k, int(n - k), is_signed), int(n - k));
}
TRACEA_INLINE void convert_row(const uint8_t* x, int64_t n, float* to) {
  floats_of_bytes(x, n, to, false);
}
TRACEA_INLINE void convert_row(const int8_t* x, int64_t n, float* to) {
  floats_of_bytes((const uint8_t*)x, n, to, true);
}
#if defined(__x86_64__)
// What I32 does not hold has the low byte 0 on the way through I64, too: it is a multiple of 256,
// or becomes 0x80000000.
TRACEA_INLINE void convert_row(const float* x, int64_t n, uint8_t* to) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store_bytes(to + k, to_int(load(x + k)) & 255, W);
  if (k < n) store_bytes(to + k, to_int(load_n(x + k, int(n - k))) & 255, int(n - k));
}
TRACEA_INLINE void convert_row(const float* x, int64_t n, int8_t* to) {
  convert_row(x, n, (uint8_t*)to);
}
#endif

// Calls f with a value of the C++ type of `dtype`; false when there is none.
template <class F>
TRACEA_INLINE bool with_type(int64_t dtype, F f) {
  switch (dtype) {
    case kF32: f(float{}); return true;
    case kF64: f(double{}); return true;
    case kF16: f(Half{}); return true;
    case kBF16: f(Bfloat{}); return true;
    case kI64: f(int64_t{}); return true;
    case kI32: f(int32_t{}); return true;
    case kI16: f(int16_t{}); return true;
    case kI8: f(int8_t{}); return true;
    case kU64: f(uint64_t{}); return true;
    case kU32: f(uint32_t{}); return true;
    case kU16: f(uint16_t{}); return true;
    case kU8: f(uint8_t{}); return true;
    case kBool: f(bool{}); return true;
    default: return false;
  }
}

// out[m * columns + n] = x[offset + m * row + n * col] for a block; strides in elements of `dtype`.
template <class To>
inline __attribute__((noinline)) void gather_block(int64_t dtype, const void* x, int64_t offset,
                                                   int64_t row, int64_t col, int64_t rows,
                                                   int64_t columns, To* out) {
  with_type(dtype, [&](auto type) {
    using From = decltype(type);
    for (int64_t m = 0; m < rows; m++) {
      const From* p = (const From*)x + offset + m * row;
      To* o = out + m * columns;
      if (col == 1)
        convert_row(p, columns, o);
      else
        for (int64_t n = 0; n < columns; n++) o[n] = convert<To, From>(p[n * col]);
    }
  });
}

// y[offset + n] = x[n] for n < count, y of type `dtype`.
template <class From>
inline __attribute__((noinline)) void write_as(int64_t dtype, void* y, int64_t offset,
                                               const From* x, int64_t count) {
  with_type(dtype, [&](auto type) {
    using To = decltype(type);
    To* p = (To*)y + offset;
    convert_row(x, count, p);
  });
}

}  // namespace TRACEA_NS
}  // namespace tracea
