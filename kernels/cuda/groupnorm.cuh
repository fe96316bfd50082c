// Group normalisation with an activation: a block has one group of one image. Two passes for mean and variance, a third writes.

// f(element index within the group, value) over a group; `at(i)` is where vector i (V elements) lies.
template <int V, class At, class F> DEV void each_vector(int vectors, At at, F f) {
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    Vec<T, V> raw = load<V>(at(i));
    f(i, raw);
  }
}

template <int V, int THREADS, class At, class Finish> DEV void normalise_group(int vectors, float eps, At at, Finish finish) {
  __shared__ float shared[32];
  const float count = float(vectors) * V;
  float total = 0.f;
  each_vector<V>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += to_float(raw.v[j]);
  });
  const float mean = join_threads<Sum, THREADS>(total, shared) / count;
  total = 0.f;
  each_vector<V>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += (to_float(raw.v[j]) - mean) * (to_float(raw.v[j]) - mean);
  });
  const float scale = 1.f / sqrtf(join_threads<Sum, THREADS>(total, shared) / count + eps);
  each_vector<V>(vectors, at, [&](int i, Vec<T, V>& raw) { finish(i, raw, mean, scale); });
}

DEV float affine(float v, float mean, float scale, const T* gamma, const T* beta, int channel, float p0, float p1) {
  v = (v - mean) * (scale * (gamma ? to_float(gamma[channel]) : 1.f)) + (beta ? to_float(beta[channel]) : 0.f);
  return activation(v, p0, p1);
}

// [B, C, inner], C / G channels a group: the group's elements are contiguous.
template <int V, int THREADS> DEV void group_plain(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int inner, float eps, float p0, float p1) {
  const int channels = C / G, first = int(blockIdx.x % G) * channels;
  const i64 at = i64(blockIdx.x) * channels * inner;
  normalise_group<V, THREADS>(i64(channels) * inner / V, eps, [&](int i) { return x + at + i64(i) * V; },
    [&](int i, Vec<T, V>& raw, float mean, float scale) {
#pragma unroll
      for (int j = 0; j < V; j++)
        from_float(raw.v[j], affine(to_float(raw.v[j]), mean, scale, gamma, beta, first + int((i64(i) * V + j) / inner), p0, p1));
      store<V>(y + at + i64(i) * V, raw);
    });
}

struct Plane { int W, cs; i64 rs, ns; };
// Channels-last: V divides the C / G channels of a group.
template <int V, int THREADS>
DEV void group_nhwc(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int H, Plane from, Plane to, float eps, float p0, float p1) {
  const int channels = C / G, first = int(blockIdx.x % G) * channels, across = channels / V;
  const i64 image = blockIdx.x / G;
  auto place = [&](const Plane& g, int i) {
    const int pixel = i / across;
    return image * g.ns + i64(pixel / g.W) * g.rs + i64(pixel % g.W) * g.cs + first + i % across * V;
  };
  normalise_group<V, THREADS>(H * from.W * across, eps, [&](int i) { return x + place(from, i); },
    [&](int i, Vec<T, V>& raw, float mean, float scale) {
#pragma unroll
      for (int j = 0; j < V; j++) from_float(raw.v[j], affine(to_float(raw.v[j]), mean, scale, gamma, beta, first + i % across * V + j, p0, p1));
      store<V>(y + place(to, i), raw);
    });
}
