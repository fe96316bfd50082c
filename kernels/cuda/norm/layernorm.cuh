// LayerNorm and RMSNorm over contiguous rows, and rotary embedding.
//
// Short rows: LANES lanes of a warp per row. Longer rows: a warp, a CTA or a cluster per row. A row
// of known length stays in registers (K vectors of V elements per thread); another one is read
// again, from cache, by each pass.
#pragma once
#include "common/base.cuh"
#include "common/cluster.cuh"
#include "common/quantise.cuh"
#include "common/ragged_rows.cuh"

template <int THREADS, int BLOCKS>
struct Row {
  int lane, index;
  __device__ Row()
      : lane(blockIdx.x % BLOCKS * THREADS + threadIdx.x % THREADS),
        index(blockIdx.x / BLOCKS * (blockDim.x / THREADS) + threadIdx.x / THREADS) {}
};

// s = sum of TERMS rows; skip = s; y = (s - mean) / sqrt(variance + eps) * (gamma + plus) + beta;
// q = y / step rounded half to even, plus zero, saturated. Absent operands are null. The kernel
// passes literal nulls, so the compiler drops their code. SOME: a term may have no row at this
// index (null). MADE: y is there.
template <int TERMS, bool SOME, bool MADE = true, class Q = u8>
struct Norm {
  const T *x[TERMS], *gamma, *beta;
  T *y, *skip;
  int n;
  bool rms;
  float plus, eps;
  Q* q;
  float step;
  int zero;
  // WHOLE: all operands are aligned to vectors.
  template <int V, bool WHOLE = true>
  METHOD Vec<T, V> get(const T* p) const {
    return WHOLE ? load<V>(p) : load_unaligned<V>(p);
  }
  template <int V, bool WHOLE = true>
  METHOD void sum(int i, float* s) const {
    Vec<T, V> v[TERMS];
#pragma unroll
    for (int k = 0; k < TERMS; k++)
      if (!SOME || x[k]) v[k] = get<V, WHOLE>(x[k] + i);
#pragma unroll
    for (int j = 0; j < V; j++) s[j] = 0.f;
#pragma unroll
    for (int k = 0; k < TERMS; k++)
      if (!SOME || x[k])
#pragma unroll
        for (int j = 0; j < V; j++)
          s[j] = SOME || k ? s[j] + to_float(v[k].v[j]) : to_float(v[k].v[j]);
  }
  template <int V, bool WHOLE = true>
  METHOD void weights(int i, Vec<T, V>& g, Vec<T, V>& b) const {
    if (gamma) g = get<V, WHOLE>(gamma + i);
    if (beta) b = get<V, WHOLE>(beta + i);
  }
  template <int V, bool WHOLE = true>
  METHOD void finish(int i, const float* s, float mean, float scale, const Vec<T, V>& g,
                     const Vec<T, V>& b) const {
    Vec<T, V> out;
    if (skip) {
#pragma unroll
      for (int j = 0; j < V; j++) from_float(out.v[j], s[j]);
      if (WHOLE)
        store<V>(skip + i, out);
      else
        store_unaligned<V>(skip + i, out);
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
      float v = (s[j] - mean) * scale;
      if (gamma) v *= plus ? to_float(g.v[j]) + plus : to_float(g.v[j]);
      if (beta) v += to_float(b.v[j]);
      from_float(out.v[j], v);
    }
    if (MADE) store<V>(y + i, out);
    if (q) {
      const Quantiser<Q> by(step, zero);
      Vec<Q, V> bytes;
#pragma unroll
      for (int j = 0; j < V; j++) bytes.v[j] = by.of(to_float(out.v[j]));
      if (WHOLE)
        store<V>(q + i, bytes);
      else
        store_unaligned<V>(q + i, bytes);
    }
  }
  // Moves what is written by so many elements.
  METHOD void advance(i64 at) {
    if (MADE) y += at;
    if (skip) skip += at;
    if (q) q += at;
  }
};

// Mean and sum of squared deviations of the N elements of a row, N a multiple of 32 * V. Threads
// compute their own in two passes; Chan's formula combines pairs. So the CTA exchanges once, and a
// large mean loses no digits. Every warp has whole vectors or none.
struct Moments {
  float mean, squares;
};
template <int V, int K, int THREADS, int N>
DEV Moments moments_at_once(const float (&s)[K * V], Moments* shared) {
  const auto held = [](int warp) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < K; k++) n += k * THREADS + warp * 32 < N / V;
    return n;
  };
  const int warp = threadIdx.x % THREADS / 32;
  float count = float(held(warp) * V), total = 0.f;
  const float inverse = count ? 1.f / count : 0.f;
#pragma unroll
  for (int k = 0; k < K * V; k++) total += s[k];
  Moments m{total * inverse, 0.f};
#pragma unroll
  for (int k = 0; k < K * V; k++)
    if (k / V * THREADS + warp * 32 < N / V) m.squares += (s[k] - m.mean) * (s[k] - m.mean);
#pragma unroll
  for (int o = 16; o; o >>= 1, count *= 2.f) {
    const float mean = __shfl_xor_sync(FULL_WARP, m.mean, o),
                squares = __shfl_xor_sync(FULL_WARP, m.squares, o), d = mean - m.mean;
    m.squares += squares + d * d * (count * 0.5f);
    m.mean = (m.mean + mean) * 0.5f;
  }
  if (THREADS == 32) return m;
  if ((threadIdx.x & 31) == 0) shared[warp] = m;
  __syncthreads();
  m = shared[0];
  float n = float(held(0));
#pragma unroll
  for (int w = 1; w < THREADS / 32; w++) {
    const float more = float(held(w)), d = shared[w].mean - m.mean;
    if (more == 0.f) continue;
    m.mean += d * (more / (n + more));
    m.squares += shared[w].squares + d * d * (n * more / (n + more) * (32 * V));
    n += more;
  }
  return m;
}

// N: the length of a row if it is a compile-time constant, else 0.
template <int V, int K, int THREADS, int N, class Norm>
DEV void norm_registers(const Norm& l, const Vec<T, V> (&g)[K], const Vec<T, V> (&b)[K], int lane,
                        float* shared) {
  float s[K * V], total = 0.f, mean = 0.f;
#pragma unroll
  for (int k = 0; k < K; k++) {
#pragma unroll
    for (int j = 0; j < V; j++) s[k * V + j] = 0.f;
    if ((k * THREADS + lane) * V < l.n) l.template sum<V>((k * THREADS + lane) * V, s + k * V);
  }
  if (N && N % (32 * V) == 0 && !l.rms) {
    const Moments m = moments_at_once<V, K, THREADS, N>(s, (Moments*)shared);
    mean = m.mean, total = m.squares;
  } else {
    if (!l.rms) {
#pragma unroll
      for (int k = 0; k < K * V; k++) total += s[k];
      mean = reduce_threads<Sum, THREADS>(total, shared) / float(l.n);
    }
    total = 0.f;
#pragma unroll
    for (int k = 0; k < K; k++)
      if ((k * THREADS + lane) * V < l.n)
#pragma unroll
        for (int j = 0; j < V; j++) total += (s[k * V + j] - mean) * (s[k * V + j] - mean);
    total = reduce_threads<Sum, THREADS>(total, shared);
  }
  const float scale = 1.f / sqrtf(total / float(l.n) + l.eps);
#pragma unroll
  for (int k = 0; k < K; k++)
    if ((k * THREADS + lane) * V < l.n)
      l.template finish<V>((k * THREADS + lane) * V, s + k * V, mean, scale, g[k], b[k]);
}

// Each pass reads the row again. The BLOCKS CTAs of a cluster share it.
template <int V, int THREADS, int BLOCKS, class Norm>
DEV void norm_multi_pass(const Norm& l, int lane, float* shared) {
  constexpr int STEP = THREADS * BLOCKS;
  const Span<V> span(l.y, l.n);
  const int edge = span.edge(lane);
  float s[V], rest = 0.f, total = 0.f, mean = 0.f;
  if (edge >= 0) l.template sum<1>(edge, &rest);
  if (!l.rms) {
    total = rest;
#pragma unroll 2
    for (int i = lane; i < span.vectors; i += STEP) {
      l.template sum<V, false>(span.head + i * V, s);
#pragma unroll
      for (int j = 0; j < V; j++) total += s[j];
    }
    mean =
        cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), shared + 32) / float(l.n);
  }
  total = edge >= 0 ? (rest - mean) * (rest - mean) : 0.f;
#pragma unroll 2
  for (int i = lane; i < span.vectors; i += STEP) {
    l.template sum<V, false>(span.head + i * V, s);
#pragma unroll
    for (int j = 0; j < V; j++) total += (s[j] - mean) * (s[j] - mean);
  }
  const float scale =
      1.f / sqrtf(cluster_sum<BLOCKS>(reduce_threads<Sum, THREADS>(total, shared), shared + 33) /
                      float(l.n) +
                  l.eps);
  if (BLOCKS > 1) cluster_arrive_relaxed();
  if (edge >= 0) {
    Vec<T, 1> g{}, b{};
    l.template weights<1>(edge, g, b);
    l.template finish<1>(edge, &rest, mean, scale, g, b);
  }
#pragma unroll 2
  for (int i = lane; i < span.vectors; i += STEP) {
    const int at = span.head + i * V;
    Vec<T, V> g{}, b{};
    l.template sum<V, false>(at, s);
    l.template weights<V, false>(at, g, b);
    l.template finish<V, false>(at, s, mean, scale, g, b);
  }
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}

// Row index[at] of a table of n rows; null, with the fault word set, if it is out of range.
template <class I>
DEV const T* table_row(const T* table, const I* index, i64 at, int n, i64 pitch, u32* fault) {
  i64 row = index[at];
  if (row < 0) row += n;
  if (row >= 0 && row < n) return table + row * pitch;
  *fault = 1;
  return nullptr;
}

// place(l, row) sets the terms of a row. EARLY: gamma and beta are constants, and are read before
// `pdl_wait`.
template <int V, int K, int THREADS, int BLOCKS, int N, bool EARLY, class Norm, class Place>
DEV void norm_rows(Norm l, int rows, Place place) {
  __shared__ float shared[64];
  const Row<THREADS, BLOCKS> row;
  constexpr int bytes = V * sizeof(T);
  const bool even = l.n % V == 0 && aligned(l.gamma, bytes) && aligned(l.beta, bytes);
  constexpr int PARTS = K ? K : 1;
  Vec<T, V> g[PARTS] = {}, b[PARTS] = {};
  auto weights = [&] {
#pragma unroll
    for (int k = 0; k < PARTS; k++)
      if ((k * THREADS + row.lane) * V < l.n)
        l.template weights<V>((k * THREADS + row.lane) * V, g[k], b[k]);
  };
  if (EARLY && K > 0 && even) weights();
  pdl_launch_dependents();
  const i64 at = i64(row.index) * l.n;
  pdl_wait_after(at, row.lane);
  if (row.index >= rows) return;
  if (!EARLY && K > 0 && even) weights();
  place(l, row.index);
  l.advance(at);
  bool whole = even && aligned(l.y, bytes) && aligned(l.skip, bytes) && aligned(l.q, V);
  for (const T* x : l.x) whole = whole && aligned(x, bytes);
  if (K > 0 && whole)
    norm_registers<V, PARTS, THREADS, N>(l, g, b, row.lane, shared);
  else
    norm_multi_pass<16 / sizeof(T), THREADS, BLOCKS>(l, row.lane, shared);
}

// Sum over each LANES neighbouring lanes of a warp.
template <int LANES>
DEV float reduce_lanes(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

// A short row of N elements in LANES neighbouring lanes: K vectors of V elements each.
template <int V, int K, int LANES, int N>
struct SubwarpRow {
  int lane;
  Vec<T, V> g[K], b[K];
  // First element of vector k, and whether the row has that vector.
  METHOD int at(int k) const { return (k * LANES + lane) * V; }
  METHOD bool has(int k) const { return K * LANES * V == N || at(k) < N; }
  template <class Norm>
  METHOD void weights(const Norm& l) {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (has(k)) l.template weights<V>(at(k), g[k], b[k]);
  }
  // Normalises `row` if it is below `rows`. All lanes of a warp must call this.
  template <class Norm, class Place>
  METHOD void row(Norm l, int row, int rows, Place place) const {
    float s[K * V] = {}, mean = 0.f, squares = 0.f;
    if (row < rows) {
      place(l, row);
#pragma unroll
      for (int k = 0; k < K; k++)
        if (has(k)) l.template sum<V>(at(k), s + k * V);
    }
    if (!l.rms) {
#pragma unroll
      for (int j = 0; j < K * V; j++) mean += s[j];
      mean = reduce_lanes<LANES>(mean) * (1.f / N);
    }
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int j = 0; j < V; j++)
        if (has(k)) squares += (s[k * V + j] - mean) * (s[k * V + j] - mean);
    const float scale = rsqrtf(reduce_lanes<LANES>(squares) * (1.f / N) + l.eps);
    if (row >= rows) return;
    l.advance(i64(row) * N);
#pragma unroll
    for (int k = 0; k < K; k++)
      if (has(k)) l.template finish<V>(at(k), s + k * V, mean, scale, g[k], b[k]);
  }
};

// Short rows, aligned to vectors. EARLY: as in `norm_rows`.
template <int V, int K, int LANES, int THREADS, int N, bool EARLY, class Norm, class Place>
DEV void norm_subwarp(const Norm& l, int rows, Place place) {
  SubwarpRow<V, K, LANES, N> lanes{int(threadIdx.x % LANES)};
  if (EARLY) lanes.weights(l);
  pdl_begin();
  if (!EARLY) lanes.weights(l);
  lanes.row(l, blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, rows, place);
}

// Short rows at any address: a CTA stages `each` of them (at most BYTES bytes) in shared memory.
// The first STAGED terms are such rows; the others are one row for all. ROOMS: buffers, one for
// each staged term, or each result where these are more.
template <int K, int LANES, int STAGED, int ROOMS, int BYTES, int THREADS, int N, bool EARLY,
          class Norm>
DEV void norm_staged(const Norm& l, int rows, int each) {
  __shared__ alignas(16) T room[ROOMS][BYTES / sizeof(T) + 16 / sizeof(T)];
  SubwarpRow<1, K, LANES, N> lanes{int(threadIdx.x % LANES)};
  if (EARLY) lanes.weights(l);
  pdl_begin();
  if (!EARLY) lanes.weights(l);
  const i64 at = i64(blockIdx.x) * each * N;
  const int count = min(each, rows - int(blockIdx.x) * each);
  Staged<THREADS, T> staged[ROOMS];
  staged[ROOMS - 1].data = room[ROOMS - 1];
#pragma unroll
  for (int k = 0; k < STAGED; k++) staged[k].load_rows(room[k], l.x[k] + at, count * N);
  Norm of = l;
  of.y = staged[0].data;
  if (l.skip) of.skip = staged[ROOMS - 1].data;
  for (int row = 0; row < count; row += THREADS / LANES)
    lanes.row(of, row + threadIdx.x / LANES, count, [&](auto& m, int r) {
#pragma unroll
      for (int k = 0; k < STAGED; k++) m.x[k] = staged[k].data + r * N;
    });
  staged[0].store_rows(l.y + at, count * N);
  if (l.skip) staged[ROOMS - 1].store_rows(l.skip + at, count * N);
}

// x[b, s, h, :rot] rotated by pairs; W consecutive pairs a thread (they lie apart by `half`, or
// next to each other when interleaved).
struct Rope {
  int S, H, D, rot;
  i64 x_b, x_s, x_h, y_b, y_s, y_h, c_b, c_s;
};
template <bool INTERLEAVED, bool WHOLE>
DEV void rope_pairs(const T* x, const T* cosines, const T* sines, T* y, int B, Rope r) {
  const int half = r.rot / 2, rest = r.D - 2 * half, work = half + rest;
  const i64 total = i64(B) * r.S * r.H * work;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const int i = int(u % work);
    i64 row = u / work;
    const i64 h = row % r.H;
    row /= r.H;
    const i64 s = row % r.S, b = row / r.S;
    const T* px = x + b * r.x_b + s * r.x_s + h * r.x_h;
    T* py = y + b * r.y_b + s * r.y_s + h * r.y_h;
    if (i >= half) {
      py[half + i] = px[half + i];
      continue;
    }
    const i64 at = b * r.c_b + s * r.c_s + i;
    const int first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? 2 * i + 1 : i + half,
              other = WHOLE ? half : 0;
    const float v = to_float(px[first]), w = to_float(px[second]);
    from_float(py[first], v * to_float(cosines[at]) - w * to_float(sines[at]));
    from_float(py[second], w * to_float(cosines[at + other]) + v * to_float(sines[at + other]));
  }
}
