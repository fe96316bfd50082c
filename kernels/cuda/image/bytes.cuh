// Images of 8-bit integers: floats quantised into them, and means of their pixels.
#pragma once
#ifndef GENERATED
#define IS_INT8 1
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/base.cuh"

// As QuantizeLinear, by a scale that is positive and whose reciprocal is a normal number, too:
// rounded half to even, saturated. A quotient is a product by the reciprocal, corrected once.
template <class Q>
struct Quantiser {
  float scale, inverse, least, most;  // numbers a step beyond what saturates
  int zero;
  static constexpr bool SIGNED = Q(-1) < Q(0);
  static constexpr int LO = SIGNED ? -128 : 0, HI = SIGNED ? 127 : 255;
  static constexpr float SHIFT = 12582912.f;  // 1.5 * 2^23: floats around it are integers
  __device__ __forceinline__ Quantiser(const float* step, const Q* z)
      : scale(step ? *step : 1.f), inverse(__fdiv_rn(1.f, scale)), zero(z ? int(*z) : 0) {
    least = scale * float(LO - zero - 1), most = scale * float(HI - zero + 1);
  }
  METHOD Q of(float v) const {
    v = fminf(fmaxf(v, least), most);
    float q = __fmul_rn(v, inverse);
    q = __fmaf_rn(__fmaf_rn(-q, scale, v), inverse, q);
    const int n = __float_as_int(__fadd_rn(q, SHIFT)) - __float_as_int(SHIFT) + zero;
    return Q(min(max(n, LO), HI));
  }
};

struct Planes {
  int N, H, W, top, left, rows, columns;
  i64 x_n, x_c, x_h, x_w;
};
// A thread has AHEAD pixels of P bytes of y in flight: the zero point outside of x.
template <int P, int C>
DEV void quantise_image(const float* x, const float* scale, const T* zero, T* y, const Planes& g) {
  constexpr int AHEAD = 4, V = P & -P;  // bytes of a store
  const Quantiser<T> by(scale, zero);
  const i64 total = i64(g.N) * g.rows * g.columns, block = i64(AHEAD) * blockDim.x;
  for (i64 first = blockIdx.x * block + threadIdx.x; first < total; first += gridDim.x * block) {
    float v[AHEAD][C];
    bool there[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const i64 u = first + k * i64(blockDim.x);
      const u32 line = total < 1ll << 31 ? u32(u) / g.columns : u32(u / g.columns);
      const int column = int(u - i64(line) * g.columns), n = int(line / g.rows),
                h = int(line % g.rows) - g.top, w = column - g.left;
      there[k] = u < total && u32(h) < u32(g.H) && u32(w) < u32(g.W);
      const float* from = x + n * g.x_n + h * g.x_h + w * g.x_w;
#pragma unroll
      for (int p = 0; p < C; p++, from += g.x_c) v[k][p] = there[k] ? *from : 0.f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const i64 u = first + k * i64(blockDim.x);
      if (u >= total) break;
      Vec<T, V> out[P / V];
#pragma unroll
      for (int p = 0; p < P; p++)
        out[p / V].v[p % V] = there[k] && p < C ? by.of(v[k][min(p, C - 1)]) : T(by.zero);
#pragma unroll
      for (int p = 0; p < P; p += V) store<V>(y + u * P + p, out[p / V]);
    }
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
