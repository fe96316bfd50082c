// Softmax over n of [outer, n, inner]: y = e^(x - max) / sum(e^(x - max)), or its logarithm (LOG).
// A NaN, +inf, or only -inf in a column makes the whole column NaN. Online softmax: threads (and
// where columns are few and long, the BLOCKS CTAs of a cluster) have a maximum and a sum each,
// which are combined.
#pragma once
#include "common/base.cuh"
#include "common/ragged_rows.cuh"
#include "common/cluster.cuh"

// e^x of x <= 0 with an error of at most |x| + 2 ulp; 0 where the result is below 2^-126.
DEV float exp_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// Online softmax: the maximum of the values so far, and the sum of e^(v - top).
struct SoftmaxState {
  float top, sum;
};
DEV SoftmaxState empty() { return {-INF, 0.f}; }
// The shift in e^(v - shift): 0 while all values are -inf, where -inf - -inf would give NaN.
DEV float shift_of(float top) { return top == -INF ? 0.f : top; }
DEV SoftmaxState combine(SoftmaxState a, SoftmaxState b) {
  const float top = fmaxf(a.top, b.top), shift = shift_of(top);
  return {top, a.sum * exp_of(a.top - shift) + b.sum * exp_of(b.top - shift)};
}
template <int COUNT>
DEV void accumulate(SoftmaxState& t, const float (&v)[COUNT]) {
  float top = t.top, sum = 0.f;
#pragma unroll
  for (int j = 0; j < COUNT; j++) top = fmaxf(top, v[j]);
  const float shift = shift_of(top);
#pragma unroll
  for (int j = 0; j < COUNT; j++) sum += exp_of(v[j] - shift);
  t = {top, t.sum * exp_of(t.top - shift) + sum};
}
template <int LANES>
DEV float largest(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, o));
  return v;
}
template <int LANES>
DEV SoftmaxState reduce_lanes(SoftmaxState t) {
  const float top = largest<LANES>(t.top);
  t.sum *= exp_of(t.top - shift_of(top));
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) t.sum += __shfl_xor_sync(FULL_WARP, t.sum, o);
  return {top, t.sum};
}
// Combines the states of the cluster's CTAs; each has stored its own at `mine`.
template <int BLOCKS>
DEV SoftmaxState reduce_cluster(const SoftmaxState* mine) {
  SoftmaxState t = empty();
#pragma unroll
  for (int b = 0; b < BLOCKS; b++)
    t = combine(t, {load_dsmem(&mine->top, b), load_dsmem(&mine->sum, b)});
  return t;
}
// Combines the states of a row over the LANES threads that share it, and over the cluster.
// shared: room for 33 states.
template <int LANES, int BLOCKS>
DEV SoftmaxState reduce_row(SoftmaxState t, SoftmaxState* shared) {
  if (LANES <= 32) return t;
  const int lane = threadIdx.x & 31;
  if (lane == 0) shared[threadIdx.x >> 5] = t;
  __syncthreads();
  t = reduce_lanes<32>(lane < LANES / 32 ? shared[lane] : empty());
  if (BLOCKS == 1) return t;
  if (threadIdx.x == 0) shared[32] = t;
  cluster_arrive();
  cluster_wait();
  t = empty();
  if (lane < BLOCKS) t = {load_dsmem(&shared[32].top, lane), load_dsmem(&shared[32].sum, lane)};
  t = reduce_lanes<32>(t);
  cluster_arrive_relaxed();
  return t;
}

// Maps values to results, given the state of the whole column.
template <bool LOG>
struct Normalize {
  float shift, scale;
  __device__ __forceinline__ Normalize(SoftmaxState t)
      : shift(LOG ? t.top : shift_of(t.top)), scale(LOG ? -logf(t.sum) : 1.f / t.sum) {}
  METHOD float operator()(float v) const {
    return LOG ? v - shift + scale : exp_of(v - shift) * scale;
  }
};

// A row in registers: K vectors per lane and, with EDGES, one element outside the aligned vectors.
// late: calls `pdl_launch_dependents` only after the loads. Earlier, CTAs of the next kernel would
// crowd the SMs that finish first, and their loads would be unevenly spread.
template <int V, int K, int LANES, int BLOCKS, bool LOG, bool EDGES>
DEV void softmax_registers(const T* x, T* y, int n, int lane, bool live, bool late,
                           SoftmaxState* shared) {
  const Span<V> s(x, n);
  const int edge = EDGES ? s.edge(lane) : -1;
  constexpr int STEP = LANES * BLOCKS;
  x += s.head, y += s.head;
  Vec<T, V> raw[K];
  float v[K * V + 1], top = -INF, sum = 0.f;
  pdl_wait_after(x + lane * V, s.vectors, edge);
#pragma unroll
  for (int k = 0; k < K; k++)
    if (k * STEP + lane < s.vectors) raw[k] = load<V>(x + (k * STEP + lane) * V);
  v[K * V] = edge >= 0 ? to_float(x[edge - s.head]) : -INF;
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int j = 0; j < V; j++)
      v[k * V + j] = k * STEP + lane < s.vectors ? to_float(raw[k].v[j]) : -INF;
#pragma unroll
  for (int k = 0; k < K * V + EDGES; k++) top = fmaxf(top, v[k]);
  if (late) pdl_launch_dependents();
  top = largest<(LANES < 32 ? LANES : 32)>(top);
  const float shift = shift_of(top);
#pragma unroll
  for (int k = 0; k < K * V + EDGES; k++) {
    const float e = exp_of(v[k] - shift);
    sum += e;
    if (!LOG) v[k] = e;
  }
#pragma unroll
  for (int o = (LANES < 32 ? LANES : 32) / 2; o; o >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, o);
  const SoftmaxState all = reduce_row<LANES, BLOCKS>({top, sum}, shared);
  const Normalize<LOG> normalize(all);
  const float scale = LOG          ? normalize.scale
                      : LANES > 32 ? exp_of(top - normalize.shift) * normalize.scale
                                   : normalize.scale;
  if (live) {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (k * STEP + lane < s.vectors) {
        Vec<T, V> out;
#pragma unroll
        for (int j = 0; j < V; j++)
          from_float(out.v[j], LOG ? v[k * V + j] - normalize.shift + scale : v[k * V + j] * scale);
        store_vector<V>(y + (k * STEP + lane) * V, out);
      }
    if (edge >= 0)
      from_float(y[edge - s.head], LOG ? v[K * V] - normalize.shift + scale : v[K * V] * scale);
  }
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}

// Reads a row twice: maximum and sum, then results.
template <int V, int LANES, int BLOCKS, bool LOG>
DEV void softmax_two_pass(const T* x, T* y, int n, int lane, bool live, SoftmaxState* shared) {
  const Span<V> s(x, n);
  const int edge = s.edge(lane);
  constexpr int STEP = LANES * BLOCKS;
  SoftmaxState t = empty();
  pdl_wait_after(x + s.head, s.vectors, edge);
  over_vectors<V, STEP, 4>(x + s.head, s.vectors, lane, [&](int, const Vec<T, V>& raw) {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = to_float(raw.v[j]);
    accumulate(t, v);
  });
  if (edge >= 0) accumulate(t, {to_float(x[edge])});
  const Normalize<LOG> normalize(
      reduce_row<LANES, BLOCKS>(reduce_lanes<(LANES < 32 ? LANES : 32)>(t), shared));
  if (live) {
    if (edge >= 0) from_float(y[edge], normalize(to_float(x[edge])));
    over_vectors<V, STEP, 4>(x + s.head, s.vectors, lane, [&](int i, const Vec<T, V>& raw) {
      Vec<T, V> out;
#pragma unroll
      for (int j = 0; j < V; j++) from_float(out.v[j], normalize(to_float(raw.v[j])));
      store_vector<V>(y + s.head + i * V, out);
    });
  }
  if (BLOCKS > 1) cluster_wait();
}

// Least bytes of all rows for `late`: loading them takes longer than starting the next kernel.
constexpr i64 LATE = 1 << 20;
// Contiguous rows. K = 0: too long for registers, or of symbolic length. EDGES: rows may be
// misaligned, which needs LANES >= 2 V - 2.
template <int V, int K, int LANES, int BLOCKS, int THREADS, bool LOG, bool EDGES>
DEV void softmax_rows(const T* x, T* y, int rows, int n) {
  __shared__ SoftmaxState shared[33];
  const i64 index = i64(blockIdx.x / BLOCKS) * (THREADS / LANES) + threadIdx.x / LANES,
            row = min(index, i64(rows) - 1);
  const int lane = blockIdx.x % BLOCKS * LANES + threadIdx.x % LANES;
  const bool live = index < rows;  // others only take part in exchanges
  const bool late = K > 0 && LANES <= 32 && i64(rows) * n * int(sizeof(T)) >= LATE;
  if (!late) pdl_launch_dependents();
  x += row * n, y += row * n;
  if (!same_misalignment<V>(x, y) || !(EDGES || aligned(x, V * sizeof(T))))
    softmax_two_pass<1, LANES, BLOCKS, LOG>(x, y, n, lane, live, shared);
  else if (K == 0)
    softmax_two_pass<V, LANES, BLOCKS, LOG>(x, y, n, lane, live, shared);
  else
    softmax_registers<V, K ? K : 1, LANES, BLOCKS, LOG, EDGES>(x, y, n, lane, live, late, shared);
}

// Staged matrices [n, inner], `each` per CTA. LANES lanes share a column, with PER elements each in
// registers (0: n is symbolic).
template <int BYTES, int LANES, int PER, int THREADS, bool LOG>
DEV void softmax_staged(const T* x, T* y, int outer, int n, int inner, int each) {
  __shared__ alignas(16) T room[BYTES / sizeof(T) + 16 / sizeof(T)];
  const i64 first = i64(blockIdx.x) * each, at = first * n * inner;
  const int count = int(min(i64(each), outer - first)), columns = count * inner,
            lane = threadIdx.x % LANES;
  Staged<THREADS, T> staged;
  staged.load_rows(room, x + at, count * n * inner);
  for (int c = threadIdx.x / LANES; c - int(threadIdx.x / LANES) < columns; c += THREADS / LANES) {
    const int column = min(c, columns - 1), end = c < columns ? n : 0;
    T* top = staged.data + column / inner * n * inner + column % inner;
    float v[PER + 1];
    SoftmaxState t = empty();
#pragma unroll
    for (int k = 0; k < PER; k++) {
      v[k] = k * LANES + lane < end ? to_float(top[(k * LANES + lane) * inner]) : -INF;
      t.top = fmaxf(t.top, v[k]);
    }
    if (!PER)
      for (int j = lane; j < end; j += LANES) t.top = fmaxf(t.top, to_float(top[j * inner]));
    t.top = largest<LANES>(t.top);
    const float shift = shift_of(t.top);
#pragma unroll
    for (int k = 0; k < PER; k++) {
      const float e = exp_of(v[k] - shift);
      t.sum += e;
      if (!LOG) v[k] = e;
    }
    if (!PER)
      for (int j = lane; j < end; j += LANES) t.sum += exp_of(to_float(top[j * inner]) - shift);
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1) t.sum += __shfl_xor_sync(FULL_WARP, t.sum, o);
    const Normalize<LOG> normalize(t);
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (k * LANES + lane < end)
        from_float(top[(k * LANES + lane) * inner], LOG ? normalize(v[k]) : v[k] * normalize.scale);
    if (!PER)
      for (int j = lane; j < end; j += LANES)
        from_float(top[j * inner], normalize(to_float(top[j * inner])));
  }
  staged.store_rows(y + at, count * n * inner);
}

// Flat layout: a thread has W columns of N elements in registers. Neighbouring threads have
// neighbouring columns, across the ends of [inner].
template <int W, int N, int THREADS, bool LOG>
DEV void softmax_flat(const T* x, T* y, int outer, int inner) {
  const int across = inner / W;  // W divides inner
  const auto run = [&](auto zero) {
    typedef decltype(zero) I;
    const I unit = I(blockIdx.x) * THREADS + threadIdx.x, o = unit / I(across);
    const i64 at = i64(o) * N * inner + i64(unit - o * I(across)) * W;
    pdl_wait_after(at);
    if (o >= I(outer)) return;
    Vec<T, W> raw[N];
#pragma unroll
    for (int k = 0; k < N; k++) raw[k] = load<W>(x + at + i64(k) * inner);
#pragma unroll
    for (int w = 0; w < W; w++) {
      float v[N];
      SoftmaxState t = empty();
#pragma unroll
      for (int k = 0; k < N; k++) v[k] = to_float(raw[k].v[w]);
      accumulate(t, v);
      const Normalize<LOG> normalize(t);
#pragma unroll
      for (int k = 0; k < N; k++) from_float(raw[k].v[w], normalize(v[k]));
    }
#pragma unroll
    for (int k = 0; k < N; k++) store<W>(y + at + i64(k) * inner, raw[k]);
  };
  if (i64(outer) * across >> 31)
    run(u64(0));
  else
    run(u32(0));
}

// Column layout: a thread has W columns; ACROSS threads are neighbours along inner, the CTA's and
// the cluster's other threads share n. KEPT: a thread has at most DEPTH elements of a column, which
// stay in registers.
template <int W, int ACROSS, int THREADS, int BLOCKS, bool LOG, bool KEPT>
DEV void softmax_columns(const T* x, T* y, int n, int inner) {
  constexpr int DOWN = THREADS / ACROSS, STEP = DOWN * BLOCKS, DEPTH = 8;
  __shared__ SoftmaxState shared[W][THREADS];
  const int tiles = (inner + ACROSS * W - 1) / (ACROSS * W), side = threadIdx.x % ACROSS,
            down = threadIdx.x / ACROSS;
  const int unit = blockIdx.x / BLOCKS, column = (unit % tiles * ACROSS + side) * W,
            from = blockIdx.x % BLOCKS * DOWN + down;
  const bool real = column < inner;  // W divides inner
  const int end = real ? n : 0;
  const i64 at = i64(unit / tiles) * n * inner + column;
  x += at, y += at;
  pdl_wait_after(x + i64(from) * inner, end);
  Vec<T, W> raw[DEPTH];
  auto fetch = [&](int j) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (j + k * STEP < end) raw[k] = load<W>(x + i64(j + k * STEP) * inner);
  };
  SoftmaxState t[W];
#pragma unroll
  for (int w = 0; w < W; w++) t[w] = empty();
  for (int j = from; j < end; j += DEPTH * STEP) {
    fetch(j);
#pragma unroll
    for (int w = 0; w < W; w++) {
      float v[DEPTH];
#pragma unroll
      for (int k = 0; k < DEPTH; k++) v[k] = j + k * STEP < end ? to_float(raw[k].v[w]) : -INF;
      accumulate(t[w], v);
    }
    if (KEPT) break;
  }
#pragma unroll
  for (int half = DOWN / 2; half; half >>= 1) {
    if (down >= half && down < 2 * half)
#pragma unroll
      for (int w = 0; w < W; w++) shared[w][threadIdx.x - half * ACROSS] = t[w];
    __syncthreads();
    if (down < half)
#pragma unroll
      for (int w = 0; w < W; w++) t[w] = combine(t[w], shared[w][threadIdx.x]);
    __syncthreads();
  }
  if (down == 0)
#pragma unroll
    for (int w = 0; w < W; w++) shared[w][side] = t[w];
  if (BLOCKS > 1) {
    cluster_arrive();
    cluster_wait();
    if (down == 0)
#pragma unroll
      for (int w = 0; w < W; w++)
        shared[w][ACROSS + side] = reduce_cluster<BLOCKS>(&shared[w][side]);
  }
  __syncthreads();
  if (BLOCKS > 1) cluster_arrive_relaxed();
#pragma unroll
  for (int w = 0; w < W; w++) t[w] = shared[w][(BLOCKS > 1 ? ACROSS : 0) + side];
  for (int j = from; j < end; j += DEPTH * STEP) {
    if (!KEPT) fetch(j);
#pragma unroll
    for (int w = 0; w < W; w++) {
      const Normalize<LOG> normalize(t[w]);
#pragma unroll
      for (int k = 0; k < DEPTH; k++) from_float(raw[k].v[w], normalize(to_float(raw[k].v[w])));
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (j + k * STEP < end) store<W>(y + i64(j + k * STEP) * inner, raw[k]);
    if (KEPT) break;
  }
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}
