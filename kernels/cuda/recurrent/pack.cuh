// packed[d, unit, gate, k] = r[d, gate, unit, k], zero from K to PITCH.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int GATES = 4, H = 64, K = 64, PITCH = 64;
#define PARAMETERS const T *r, T *packed, i64 count
#endif  // GENERATED
#include "common/base.cuh"

extern "C" __global__ void __launch_bounds__(256) pack_recurrent(PARAMETERS) {
  pdl_wait();
  const i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const int k = int(index % PITCH), gate = int(index / PITCH % GATES);
  const i64 row = index / PITCH / GATES, d = row / H, unit = row % H;
  from_float(packed[index], k < K ? to_float(r[((d * GATES + gate) * H + unit) * K + k]) : 0.f);
}
