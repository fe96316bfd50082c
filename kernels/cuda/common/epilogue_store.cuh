// Stores of wgmma accumulators, in chunks of 8 columns.
//
// The generator defines T, WHOLE_CHUNKS (bool: the number of columns is a multiple of 8) and
// Y_VECTOR (0 or 1: chunks of y are aligned to 16 bytes).
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr bool WHOLE_CHUNKS = false;
#define Y_VECTOR 1
#endif  // GENERATED

// Transposes 4 x 4 words of a quad of lanes. Before: o[k] of lane l has columns 2 l and 2 l + 1 of
// chunk k. After: lane l has all of chunk l.
DEV void gather_chunks(u32 (&o)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const u32 other = __shfl_xor_sync(0xffffffffu, odd ? o[k] : o[k + 1], 1);
    if (odd)
      o[k] = other;
    else
      o[k + 1] = other;
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const u32 other = __shfl_xor_sync(0xffffffffu, high ? o[k] : o[k + 2], 2);
    if (high)
      o[k] = other;
    else
      o[k + 2] = other;
  }
}
#if !IS_INT8
DEV void store8(T* y, const u32 (&o)[4], int count) {
  if (Y_VECTOR && (WHOLE_CHUNKS || count >= 8)) {
    *(uint4*)y = make_uint4(o[0], o[1], o[2], o[3]);
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) y[k].bits = (u16)(o[k / 2] >> (k % 2 * 16));
  }
}
#endif
