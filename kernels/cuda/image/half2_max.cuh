// The larger of two pairs of 16-bit numbers, where NaN stays, and the pair that is never larger.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

DEV u32 pair_max(half_t*, u32 a, u32 b) {
  u32 r;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEV u32 pair_max(bfloat_t*, u32 a, u32 b) {
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEV u32 lowest_pair(half_t*) { return 0xfc00fc00u; }
DEV u32 lowest_pair(bfloat_t*) { return 0xff80ff80u; }
