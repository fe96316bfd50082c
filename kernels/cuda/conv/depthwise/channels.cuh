// Loads and stores of neighbouring channels of a pixel, for depthwise convolutions.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int MULTIPLE = 1;                       // output channels per input channel
constexpr bool X_VECTOR = true, Y_VECTOR = true;  // pixels are aligned to 16 bytes

#endif  // GENERATED

// WIDTH channels in their memory format.
#if IS_F32
struct alignas(WIDTH < 4 ? 8 : 16) Raw {
  float v[WIDTH];
};
DEV void widen(const Raw& r, float (&v)[WIDTH]) {
#pragma unroll
  for (int k = 0; k < WIDTH; k++) v[k] = r.v[k];
}
DEV Raw narrow(const float (&v)[WIDTH]) {
  Raw r;
#pragma unroll
  for (int k = 0; k < WIDTH; k++) r.v[k] = v[k];
  return r;
}
#else
struct alignas(2 * WIDTH) Raw {
  u32 v[WIDTH / 2];
};
DEV void widen(const Raw& r, float (&v)[WIDTH]) {
#pragma unroll
  for (int k = 0; k < WIDTH; k += 2) unpack2((T*)0, r.v[k / 2], v[k], v[k + 1]);
}
DEV Raw narrow(const float (&v)[WIDTH]) {
  Raw r;
#pragma unroll
  for (int k = 0; k < WIDTH; k += 2) r.v[k / 2] = pack2((T*)0, v[k], v[k + 1]);
  return r;
}
#endif
// The following functions access `count` channels, at least one.
template <bool VECTOR>
DEV Raw fetch(const T* p, int count) {
  if (VECTOR && sizeof(Raw) <= 16) return *(const Raw*)p;
  Raw r = {};
  if (VECTOR) {  // a pitch may be an odd multiple of 4 channels
    *(float4*)&r = *(const float4*)p;
    if (count > 4) *((float4*)&r + 1) = *((const float4*)p + 1);
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      if (k == 0 || k < count) ((T*)&r)[k] = p[k];
  }
  return r;
}
// The input channels that output channels c... read. Padding channels are readable, and affect
// padding results only.
DEV Raw fetch_input(const T* p, int c, int count) {
  if (MULTIPLE == 1) return fetch<X_VECTOR>(p, count);
  Raw r = {};
#pragma unroll
  for (int k = 0; k < WIDTH; k++)
    if (k == 0 || k < count) ((T*)&r)[k] = p[(c + k) / MULTIPLE - c / MULTIPLE];
  return r;
}

DEV void store(T* y, const float (&v)[WIDTH], int count) {
  if (Y_VECTOR && count >= WIDTH) {
    *(Raw*)y = narrow(v);
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      if (k == 0 || k < count) from_float(y[k], v[k]);
  }
}
