// Loads of eight unaligned 16-bit elements by two aligned accesses of 16 bytes and funnel shifts.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

struct Piece {
  uint4 low, high;
  int shift;  // bytes of `low` before the first element
  // `count` elements from `from`; nothing outside of [first, last) is read.
  METHOD void read(const T* from, int count, const T* first, const T* last) {
    const u64 at = (u64)from & ~15ull;
    shift = (int)((u64)from & 15);
    low = high = make_uint4(0, 0, 0, 0);
    if (count <= 0) return;
    if (at >= (u64)first && at + 32 <= (u64)last) {
      low = *(const uint4*)at, high = *(const uint4*)(at + 16);
    } else {
      u32 v[8];
#pragma unroll
      for (int k = 0; k < 8; k++) v[k] = k < count ? ((const u16*)from)[k] : 0;
      low = make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
      shift = 0;
    }
  }
  // The first `count` of the elements; the rest is zero.
  METHOD uint4 elements(int count) const {
    const bool two = shift & 8, one = shift & 4;
    const u32 bits = (shift & 2) * 8;
    u32 a[6] = {two ? low.z : low.x,  two ? low.w : low.y,   two ? high.x : low.z,
                two ? high.y : low.w, two ? high.z : high.x, two ? high.w : high.y},
        r[4];
#pragma unroll
    for (int k = 0; k < 5; k++) a[k] = one ? a[k + 1] : a[k];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      r[k] = __funnelshift_r(a[k], a[k + 1], bits);
      if (count < 2 * k + 2) r[k] = count == 2 * k + 1 ? r[k] & 0xffffu : 0;
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
  }
};
