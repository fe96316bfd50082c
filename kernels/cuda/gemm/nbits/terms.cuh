// Pairs of weights, less their zeros, as two neighbouring elements of a fragment: exactly, for
// zeros that are integers.
#pragma once
#include "gemm/nbits/layout.cuh"

DEV u32 add2(half_t*, u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEV u32 fma2(half_t*, u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEV u32 fma2(bfloat_t*, u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEV constexpr u32 twice(u32 v) { return v * 0x10001u; }
// (word & KEPT) | SET in one instruction, which takes no two constants from C++.
template <u32 KEPT, u32 SET>
DEV u32 keep_and_set(u32 word) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(word), "n"(KEPT), "n"(SET));
  return r;
}

// Pair I of a word. f16: the bits are put into the mantissa of 1024, where they are worth 2^AT
// units; 1024 and the zero are taken off.
template <int I>
DEV u32 pair(half_t*, u32 word, u32 zero) {
  constexpr int AT = BITS * I % 8;
  const u32 v = keep_and_set<twice(MASK << AT), 0x64006400u>(word >> (BITS * I - AT)),
            off = twice((0x8000u | (0x6400u - 0x400u * AT)) + (zero << AT));
  return AT ? fma2((half_t*)0, v, twice(0x3c00u - 0x400u * AT), off) : add2((half_t*)0, v, off);
}
// bf16: the same with the mantissa of 128, which has room for 7 bits; 8 bits through f32.
template <int I>
DEV u32 pair(bfloat_t*, u32 word, u32 zero) {
  if constexpr (BITS == 8) {
    const float off = __uint_as_float(0x4b000000u | zero);  // 2^23 + zero
    return pack2((bfloat_t*)0, __uint_as_float(0x4b000000u | (word >> 8 * I & 255)) - off,
                 __uint_as_float(0x4b000000u | (word >> (8 * I + 16) & 255)) - off);
  } else {
    const u32 v = keep_and_set<twice(MASK), 0x43004300u>(word >> BITS * I);
    return fma2((bfloat_t*)0, v, 0x3f803f80u, twice(0xc300u | zero));
  }
}
