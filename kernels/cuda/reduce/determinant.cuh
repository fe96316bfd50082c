// Determinants, by elimination with the largest pivots in double precision: a block has a matrix,
// and n * n numbers of `work`.
#pragma once
#include "common/base.cuh"

template <int THREADS>
DEV void determinants(const T* x, T* y, double* work, i64 count, int n) {
  __shared__ double most[THREADS];
  __shared__ int place[THREADS];
  const int lane = int(threadIdx.x);
  const i64 size = i64(n) * n;
  double* const a = work + i64(blockIdx.x) * size;
  for (i64 m = blockIdx.x; m < count; m += gridDim.x) {
    for (i64 e = lane; e < size; e += THREADS) a[e] = double(to_float(x[m * size + e]));
    double found = 1.;
    __syncthreads();
    for (int k = 0; k < n; k++) {
      most[lane] = -1.;
      place[lane] = k;
      for (int r = k + lane; r < n; r += THREADS) {
        const double v = fabs(a[i64(r) * n + k]);
        if (!(v <= most[lane])) most[lane] = v, place[lane] = r;
      }
      __syncthreads();
      for (int half = THREADS / 2; half; half /= 2) {
        if (lane < half && !(most[lane + half] <= most[lane]))
          most[lane] = most[lane + half], place[lane] = place[lane + half];
        __syncthreads();
      }
      const int pivot = place[0];
      if (pivot != k) {
        for (int c = k + lane; c < n; c += THREADS) {
          const double held = a[i64(k) * n + c];
          a[i64(k) * n + c] = a[i64(pivot) * n + c];
          a[i64(pivot) * n + c] = held;
        }
        found = -found;
      }
      __syncthreads();
      const double head = a[i64(k) * n + k];
      found *= head;
      if (head != 0.)
        for (int r = k + 1 + lane; r < n; r += THREADS) {
          const double part = a[i64(r) * n + k] / head;
          for (int c = k + 1; c < n; c++) a[i64(r) * n + c] -= part * a[i64(k) * n + c];
        }
      __syncthreads();
    }
    if (lane == 0) from_float(y[m], float(found));
    __syncthreads();
  }
}
