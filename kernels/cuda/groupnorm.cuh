// Group normalisation with an activation: a block has one group of one image, or a cluster of BLOCKS blocks has it. Two passes for mean and variance, a
// third writes.

// The sum of v over the cluster's blocks, in the same order in each; v is the same in all threads of a block. `slot` may not be used again.
template <int BLOCKS> DEV float join_blocks(float v, float* slot) {
  if (BLOCKS == 1) return v;
  if (threadIdx.x == 0) *slot = v;
  cluster_arrive();
  cluster_wait();
  u32 at;
  const int lane = threadIdx.x & 31;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(slot))), "r"(lane % BLOCKS));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
#pragma unroll
  for (int o = BLOCKS / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

// f(vector of V elements within the group, values) over this block's share of a group; `at(i)` is where vector i lies.
template <int V, int BLOCKS, class At, class F> DEV void each_vector(int vectors, At at, F f) {
  const int rank = blockIdx.x % BLOCKS, end = int(i64(vectors) * (rank + 1) / BLOCKS);
#pragma unroll 4
  for (int i = int(i64(vectors) * rank / BLOCKS) + threadIdx.x; i < end; i += blockDim.x) {
    Vec<T, V> raw = load<V>(at(i));
    f(i, raw);
  }
}

template <int V, int THREADS, int BLOCKS, class At, class Finish> DEV void normalise_group(int vectors, float eps, At at, Finish finish) {
  __shared__ float shared[32], slots[2];
  const float count = float(vectors) * V;
  float total = 0.f;
  each_vector<V, BLOCKS>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += to_float(raw.v[j]);
  });
  const float mean = join_blocks<BLOCKS>(join_threads<Sum, THREADS>(total, shared), slots) / count;
  total = 0.f;
  each_vector<V, BLOCKS>(vectors, at, [&](int, const Vec<T, V>& raw) {
#pragma unroll
    for (int j = 0; j < V; j++) total += (to_float(raw.v[j]) - mean) * (to_float(raw.v[j]) - mean);
  });
  const float scale = 1.f / sqrtf(join_blocks<BLOCKS>(join_threads<Sum, THREADS>(total, shared), slots + 1) / count + eps);
  if (BLOCKS > 1) cluster_arrive_relaxed();
  each_vector<V, BLOCKS>(vectors, at, [&](int i, Vec<T, V>& raw) { finish(i, raw, mean, scale); });
  if (BLOCKS > 1) cluster_wait();  // nobody reads this block's shared memory any more
}

DEV float affine(float v, float mean, float scale, const T* gamma, const T* beta, int channel, float p0, float p1) {
  v = (v - mean) * (scale * (gamma ? to_float(gamma[channel]) : 1.f)) + (beta ? to_float(beta[channel]) : 0.f);
  return activation(v, p0, p1);
}

// [B, C, inner], C / G channels a group: the group's elements are contiguous.
template <int V, int THREADS, int BLOCKS> DEV void group_plain(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int inner, float eps, float p0, float p1) {
  const int channels = C / G, group = blockIdx.x / BLOCKS, first = group % G * channels;
  const i64 at = i64(group) * channels * inner;
  normalise_group<V, THREADS, BLOCKS>(i64(channels) * inner / V, eps, [&](int i) { return x + at + i64(i) * V; },
    [&](int i, Vec<T, V>& raw, float mean, float scale) {
#pragma unroll
      for (int j = 0; j < V; j++)
        from_float(raw.v[j], affine(to_float(raw.v[j]), mean, scale, gamma, beta, first + int((i64(i) * V + j) / inner), p0, p1));
      store<V>(y + at + i64(i) * V, raw);
    });
}

struct Plane { int W, cs; i64 rs, ns; };
// Channels-last: V divides the C / G channels of a group.
template <int V, int THREADS, int BLOCKS>
DEV void group_nhwc(const T* x, const T* gamma, const T* beta, T* y, int C, int G, int H, Plane from, Plane to, float eps, float p0, float p1) {
  const int channels = C / G, group = blockIdx.x / BLOCKS, first = group % G * channels, across = channels / V;
  const i64 image = group / G;
  auto place = [&](const Plane& g, int i) {
    const int pixel = i / across;
    return image * g.ns + i64(pixel / g.W) * g.rs + i64(pixel % g.W) * g.cs + first + i % across * V;
  };
  normalise_group<V, THREADS, BLOCKS>(H * from.W * across, eps, [&](int i) { return x + place(from, i); },
    [&](int i, Vec<T, V>& raw, float mean, float scale) {
#pragma unroll
      for (int j = 0; j < V; j++) from_float(raw.v[j], affine(to_float(raw.v[j]), mean, scale, gamma, beta, first + i % across * V + j, p0, p1));
      store<V>(y + place(to, i), raw);
    });
}
