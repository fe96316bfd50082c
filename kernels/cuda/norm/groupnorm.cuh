// GroupNorm with an activation: y = act((x - mean) / sqrt(variance + eps) * gamma + beta), with
// mean and variance over a group of channels of one image. A CTA, or a cluster of BLOCKS CTAs, has
// one group. Three passes: mean, variance, results. A plain group of known, moderate size stays in
// registers between passes.
#pragma once
#ifndef GENERATED
// activation(x, p0, p1)
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/base.cuh"
#include "common/cluster.cuh"
#include "common/ragged_rows.cuh"

// Calls f(i, vector i of the group) for this CTA's share of a group; at(i): address of vector i.
template <int V, int BLOCKS, class At, class F>
DEV void each_vector(int vectors, At at, F f) {
  const int rank = blockIdx.x % BLOCKS, end = int(i64(vectors) * (rank + 1) / BLOCKS);
#pragma unroll 4
  for (int i = int(i64(vectors) * rank / BLOCKS) + threadIdx.x; i < end; i += blockDim.x) {
    Vec<T, V> raw = load<V>(at(i));
    f(i, raw);
  }
}

template <int V, int THREADS, int BLOCKS, class At, class Finish>
DEV void normalise_group(int vectors, float eps, At at, Finish finish) {
  __shared__ float shared[32], slots[2];
  const float count = float(vectors) * V;
  float total = 0.f;
  each_vector<V, BLOCKS>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += to_float(raw.v[j]);
  });
  const float mean =
      cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), slots) / count;
  total = 0.f;
  each_vector<V, BLOCKS>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += (to_float(raw.v[j]) - mean) * (to_float(raw.v[j]) - mean);
  });
  const float scale =
      1.f /
      sqrtf(cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), slots + 1) / count +
            eps);
  if (BLOCKS > 1) cluster_arrive_relaxed();
  each_vector<V, BLOCKS>(vectors, at, [&](int i, Vec<T, V>& raw) { finish(i, raw, mean, scale); });
  if (BLOCKS > 1) cluster_wait();  // no CTA reads this one's shared memory any more
}

DEV float affine(float v, float mean, float scale, const T* gamma, const T* beta, int channel,
                 float p0, float p1) {
  v = (v - mean) * (scale * (gamma ? to_float(gamma[channel]) : 1.f)) +
      (beta ? to_float(beta[channel]) : 0.f);
  return activation(v, p0, p1);
}

// [B, C, inner] with C / G channels per group: a group is contiguous. K vectors per thread stay in
// registers; K = 0: each pass reads the group again.
template <int V, int K, int THREADS, int BLOCKS>
DEV void group_plain(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int inner,
                     float eps, float p0, float p1) {
  __shared__ float shared[32], slots[2];
  constexpr int STEP = THREADS * BLOCKS;
  const int channels = C / G, group = blockIdx.x / BLOCKS, n = channels * inner,
            lane = blockIdx.x % BLOCKS * THREADS + threadIdx.x;
  x += i64(group) * n, y += i64(group) * n;
  if (gamma) gamma += group % G * channels;
  if (beta) beta += group % G * channels;
  const Span<V> s(x, n);
  const int edge = s.edge(lane);
  Vec<T, V> raw[K ? K : 1];
  Vec<T, 1> rest;
#pragma unroll
  for (int k = 0; k < K; k++)
    if (k * STEP + lane < s.vectors) raw[k] = load<V>(x + s.head + (k * STEP + lane) * V);
  if (edge >= 0) rest = load<1>(x + edge);
  auto pass = [&](auto f) {  // f(values, where they lie)
    if (K) {
#pragma unroll
      for (int k = 0; k < K; k++)
        if (k * STEP + lane < s.vectors) f(raw[k], s.head + (k * STEP + lane) * V);
    } else {
#pragma unroll 4
      for (int i = lane; i < s.vectors; i += STEP) f(load<V>(x + s.head + i * V), s.head + i * V);
    }
    if (edge >= 0) f(rest, edge);
  };
  float total = 0.f;
  pass([&](auto v, int) {
#pragma unroll
    for (int j = 0; j < int(sizeof(v) / sizeof(T)); j++) total += to_float(v.v[j]);
  });
  const float mean =
      cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), slots) / float(n);
  total = 0.f;
  pass([&](auto v, int) {
#pragma unroll
    for (int j = 0; j < int(sizeof(v) / sizeof(T)); j++)
      total += (to_float(v.v[j]) - mean) * (to_float(v.v[j]) - mean);
  });
  const float scale =
      1.f /
      sqrtf(cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), slots + 1) / float(n) +
            eps);
  if (BLOCKS > 1) cluster_arrive_relaxed();
  pass([&](auto v, int at) {
    constexpr int COUNT = sizeof(v) / sizeof(T);
    int channel = at / inner, left = (channel + 1) * inner - at;
    float g = gamma ? scale * to_float(gamma[channel]) : scale,
          b = beta ? to_float(beta[channel]) : 0.f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      if (j >= left) {  // the next channel
        channel++, left += inner;
        if (gamma) g = scale * to_float(gamma[channel]);
        if (beta) b = to_float(beta[channel]);
      }
      from_float(v.v[j], activation((to_float(v.v[j]) - mean) * g + b, p0, p1));
    }
    store_unaligned<COUNT>(y + at, v);
  });
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}

struct Plane {
  int W, cs;
  i64 rs, ns;
};
// Channels-last: V divides the C / G channels of a group.
template <int V, int THREADS, int BLOCKS>
DEV void group_vectors(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int H,
                       Plane from, Plane to, float eps, float p0, float p1) {
  const int channels = C / G, group = blockIdx.x / BLOCKS, first = group % G * channels,
            across = channels / V;
  const i64 image = group / G;
  auto place = [&](const Plane& g, int i) {
    const int pixel = i / across;
    return image * g.ns + i64(pixel / g.W) * g.rs + i64(pixel % g.W) * g.cs + first +
           i % across * V;
  };
  normalise_group<V, THREADS, BLOCKS>(
      H * from.W * across, eps, [&](int i) { return x + place(from, i); },
      [&](int i, Vec<T, V>& raw, float mean, float scale) {
#pragma unroll
        for (int j = 0; j < V; j++)
          from_float(raw.v[j], affine(to_float(raw.v[j]), mean, scale, gamma, beta,
                                      first + i % across * V + j, p0, p1));
        store<V>(y + place(to, i), raw);
      });
}
// The same for any alignment.
template <int V, int THREADS, int BLOCKS>
DEV void group_nhwc(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int H,
                    Plane from, Plane to, float eps, float p0, float p1) {
  const bool whole = aligned(x, V * sizeof(T)) && aligned(y, V * sizeof(T));
  if (whole && ((from.cs | from.rs | from.ns | to.cs | to.rs | to.ns) & (V - 1)) == 0)
    group_vectors<V, THREADS, BLOCKS>(x, gamma, beta, y, C, G, H, from, to, eps, p0, p1);
  else
    group_vectors<1, THREADS, BLOCKS>(x, gamma, beta, y, C, G, H, from, to, eps, p0, p1);
}
