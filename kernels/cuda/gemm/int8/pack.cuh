// Packing of 8-bit weights, once per session. TAPS: of depthwise convolutions.
#pragma once
#ifndef GENERATED
#define IS_INT8 1
#include "common/instance.cuh"
#define PARAMETERS                                                                           \
  const T *w, T *packed, int *sums, int taps, int channels, int pitch, i64 w_row, i64 w_tap, \
      i64 w_channel
#define TAPS 0
#endif  // GENERATED
#include "common/base.cuh"

#if TAPS
// packed[tap, c] = w[c, tap], 0 behind the channels: a thread for each byte.
extern "C" __global__ void __launch_bounds__(256) pack_taps(PARAMETERS) {
  pdl_wait();
  const int k = blockIdx.x * 256 + threadIdx.x, tap = k / pitch, c = k - tap * pitch;
  if (tap < taps) packed[k] = c < channels ? w[i64(c) * taps + tap] : T(0);
}
#else
// A block for each row of `taps` x `pitch` bytes, of which `channels` of a tap are those of w; 0
// behind them. Behind all rows lie their sums.
extern "C" __global__ void __launch_bounds__(256) pack_bytes(PARAMETERS) {
  pdl_wait();
  __shared__ int shared[32];
  const T* from = w + blockIdx.x * w_row;
  T* to = packed + i64(blockIdx.x) * taps * pitch;
  int sum = 0;
  for (int k = threadIdx.x; k < taps * pitch; k += 256) {
    const int tap = k / pitch, c = k - tap * pitch;
    const T v = c < channels ? from[tap * w_tap + c * w_channel] : T(0);
    to[k] = v;
    sum += int(v);
  }
  sum = reduce_threads<Sum, 256>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
#endif
