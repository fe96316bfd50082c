// Images of 8-bit integers: floats quantised into them, and means of their pixels.
#pragma once
#ifndef GENERATED
#define IS_INT8 1
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/base.cuh"
#include "common/quantise.cuh"

struct Planes {
  int N, H, W, top, left, rows, columns;
  i64 x_n, x_c, x_h, x_w;
};
// A thread has ALONG neighbouring pixels of P bytes of y: the zero point outside of x.
template <int P, int C, int ALONG, class X>
DEV void quantise_image(const X* x, const float* scale, const T* zero, T* y, const Planes& g) {
  constexpr int BYTES = P * ALONG, POWER = BYTES & -BYTES,
                V = POWER < 16 ? POWER : 16;  // bytes of a store
  const Quantiser<T> by(scale, zero);
  const int across = g.columns / ALONG;
  const i64 total = i64(g.N) * g.rows * across;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const u32 line = total < 1ll << 31 ? u32(u) / across : u32(u / across);
    const int n = int(line / g.rows), h = int(line % g.rows) - g.top,
              w = int(u - i64(line) * across) * ALONG - g.left;
    const bool inside = u32(h) < u32(g.H);
    const X* from = x + n * g.x_n + h * g.x_h + w * g.x_w;
    float v[ALONG][C];
#pragma unroll
    for (int p = 0; p < C; p++, from += g.x_c)
#pragma unroll
      for (int k = 0; k < ALONG; k++)
        v[k][p] = inside && u32(w + k) < u32(g.W) ? to_float(from[k * g.x_w]) : 0.f;
    Vec<T, V> out[BYTES / V];
#pragma unroll
    for (int k = 0; k < ALONG; k++)
#pragma unroll
      for (int p = 0; p < P; p++)
        out[(k * P + p) / V].v[(k * P + p) % V] =
            inside && u32(w + k) < u32(g.W) && p < C ? by.of(v[k][min(p, C - 1)]) : T(by.zero);
#pragma unroll
    for (int b = 0; b < BYTES; b += V) store<V>(y + u * BYTES + b, out[b / V]);
  }
}

struct Pixels {
  int N, C, H, W;
  i64 x_cs, x_rs, x_ns, y_ns;
};
DEV void store_mean(float* y, float v, const float*, const float*) { *y = v; }
template <class Y>
DEV void store_mean(Y* y, float v, const float* scale, const Y* zero) {
  *y = Quantiser<Y>(scale, zero).of(v);
}
// A warp has V channels a lane; the warps of a block divide the pixels.
template <int V, int WARPS, class Y>
DEV void mean_of_bytes(const T* x, const float* x_scale, const T* x_zero, const float* y_scale,
                       const Y* y_zero, Y* y, const Pixels& g) {
  __shared__ int sums[WARPS][32 * V];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
            across = (g.C + 32 * V - 1) / (32 * V), n = blockIdx.x / across,
            c = (blockIdx.x % across * 32 + lane) * V, pixels = g.H * g.W;
  int sum[V] = {};
  if (c < g.C)
#pragma unroll 4
    for (int p = warp; p < pixels; p += WARPS) {
      const int h = p / g.W, w = p - h * g.W;
      const Vec<T, V> v = load<V>(x + n * g.x_ns + h * g.x_rs + w * g.x_cs + c);
#pragma unroll
      for (int k = 0; k < V; k++) sum[k] += int(v.v[k]);
    }
#pragma unroll
  for (int k = 0; k < V; k++) sums[warp][lane * V + k] = sum[k];
  __syncthreads();
  const float step = x_scale ? *x_scale : 1.f;
  const int z = x_zero ? int(*x_zero) : 0;
  for (int k = threadIdx.x; k < 32 * V; k += 32 * WARPS) {
    const int channel = blockIdx.x % across * 32 * V + k;
    if (channel >= g.C) break;
    int all = -pixels * z;
#pragma unroll
    for (int j = 0; j < WARPS; j++) all += sums[j][k];
    store_mean(y + n * g.y_ns + channel, __fdiv_rn(__fmul_rn(float(all), step), float(pixels)),
               y_scale, y_zero);
  }
}
