// Four bytes of a word at a time.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

// The larger ones of four bytes of type B: the first of two bytes decides, as a part of 16 bits.
template <class B>
DEV u32 larger_bytes(u32 a, u32 b) {
  constexpr bool SIGNED = B(-1) < B(0);
  const u32 high = SIGNED ? __vmaxs2(a, b) : __vmaxu2(a, b),
            low = SIGNED ? __vmaxs2(a << 8, b << 8) : __vmaxu2(a << 8, b << 8);
  return __byte_perm(high, low, 0x3715);
}
