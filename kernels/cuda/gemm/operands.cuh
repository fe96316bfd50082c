// Parameters of GEMM kernels that read their operands without tensor maps:
//   y[m * ldy + n] = epilogue(sum_k a[m * a_m + k * a_k] * b[n * b_n + k * b_k]);
// of batches, matrix (blockIdx.z, blockIdx.y) of an operand is at blockIdx.z * a_0 + blockIdx.y *
// a_1 (b_0, ...). Strides are in elements.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define BATCHED 1  // whether there are several matrices
#define PARAMETERS                                                                              \
  const T *a, const T *b, T *y, const T *res, int M, int N, int K, i64 a_0, i64 a_1, i64 a_m,   \
      i64 a_k, i64 b_0, i64 b_1, i64 b_k, i64 b_n, i64 y_0, i64 y_1, i64 ldy, i64 r_0, i64 r_1, \
      i64 ldr
#endif  // GENERATED

#if BATCHED
#define TO_BATCH                            \
  a += blockIdx.z * a_0 + blockIdx.y * a_1; \
  b += blockIdx.z * b_0 + blockIdx.y * b_1; \
  y += blockIdx.z * y_0 + blockIdx.y * y_1; \
  if (res) res += blockIdx.z * r_0 + blockIdx.y * r_1
#else
#define TO_BATCH
#endif
