// Softmax over n of [outer, n, inner]: y = e^(x - max) / sum, or x - max - log(sum); NaN, +inf, or
// nothing but -inf makes all of it NaN. A column is shared by threads, and where there are few long
// ones by the BLOCKS CTAs of a cluster: each has its own maximum and sum, and these are joined.
#pragma once
#include "common/base.cuh"
#include "common/ragged_rows.cuh"
#include "common/cluster.cuh"

// exp of 0 or less, off by |x| + 2 units of f32 at most; 0 below 2^-126.
DEV float exp_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// The largest value seen, and the sum of e^(v - top) of all.
struct Tally {
  float top, sum;
};
DEV Tally nothing() { return {-INF, 0.f}; }
// What e^(v - ...) is taken of: nothing but -inf so far must not make NaN.
DEV float shift_of(float top) { return top == -INF ? 0.f : top; }
DEV Tally joined(Tally a, Tally b) {
  const float top = fmaxf(a.top, b.top), shift = shift_of(top);
  return {top, a.sum * exp_of(a.top - shift) + b.sum * exp_of(b.top - shift)};
}
template <int COUNT>
DEV void take(Tally& t, const float (&v)[COUNT]) {
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
DEV Tally join_lanes(Tally t) {
  const float top = largest<LANES>(t.top);
  t.sum *= exp_of(t.top - shift_of(top));
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) t.sum += __shfl_xor_sync(FULL_WARP, t.sum, o);
  return {top, t.sum};
}
// The tallies of the cluster's CTAs; each has left its own at `mine`.
template <int BLOCKS>
DEV Tally join_cluster(const Tally* mine) {
  Tally t = nothing();
#pragma unroll
  for (int b = 0; b < BLOCKS; b++)
    t = joined(t, {of_block(&mine->top, b), of_block(&mine->sum, b)});
  return t;
}
// The tally of a row whose warps (its part of one where LANES < 32) hold `t`. `shared`: 33 tallies.
template <int LANES, int BLOCKS>
DEV Tally join_row(Tally t, Tally* shared) {
  if (LANES <= 32) return t;
  const int lane = threadIdx.x & 31;
  if (lane == 0) shared[threadIdx.x >> 5] = t;
  __syncthreads();
  t = join_lanes<32>(lane < LANES / 32 ? shared[lane] : nothing());
  if (BLOCKS == 1) return t;
  if (threadIdx.x == 0) shared[32] = t;
  cluster_arrive();
  cluster_wait();
  t = nothing();
  if (lane < BLOCKS) t = {of_block(&shared[32].top, lane), of_block(&shared[32].sum, lane)};
  t = join_lanes<32>(t);
  cluster_arrive_relaxed();
  return t;
}

// From the whole column's tally to its results.
template <bool LOG>
struct Change {
  float shift, scale;
  __device__ __forceinline__ Change(Tally t)
      : shift(LOG ? t.top : shift_of(t.top)), scale(LOG ? -logf(t.sum) : 1.f / t.sum) {}
  METHOD float operator()(float v) const {
    return LOG ? v - shift + scale : exp_of(v - shift) * scale;
  }
};

// The vectors of a row in registers: K for each lane, of EDGES rows one element before or after
// them, too. `late`: the next kernel may start once they are there; its CTAs come sooner
// otherwise, where others are done first, and so many together that some SMs have much
// to read and others little.
template <int V, int K, int LANES, int BLOCKS, bool LOG, bool EDGES>
DEV void softmax_registers(const T* x, T* y, int n, int lane, bool live, bool late, Tally* shared) {
  const Span<V> s(x, n);
  const int edge = EDGES ? s.edge(lane) : -1;
  constexpr int STEP = LANES * BLOCKS;
  x += s.head, y += s.head;
  Vec<T, V> raw[K];
  float v[K * V + 1], top = -INF, sum = 0.f;
  wait_with(x + lane * V, s.vectors, edge);
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
  if (late) next_may_start();
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
  const Tally all = join_row<LANES, BLOCKS>({top, sum}, shared);
  const Change<LOG> change(all);
  const float scale = LOG          ? change.scale
                      : LANES > 32 ? exp_of(top - change.shift) * change.scale
                                   : change.scale;
  if (live) {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (k * STEP + lane < s.vectors) {
        Vec<T, V> out;
#pragma unroll
        for (int j = 0; j < V; j++)
          from_float(out.v[j], LOG ? v[k * V + j] - change.shift + scale : v[k * V + j] * scale);
        store_whole<V>(y + (k * STEP + lane) * V, out);
      }
    if (edge >= 0)
      from_float(y[edge - s.head], LOG ? v[K * V] - change.shift + scale : v[K * V] * scale);
  }
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}

// A row that is read twice.
template <int V, int LANES, int BLOCKS, bool LOG>
DEV void softmax_again(const T* x, T* y, int n, int lane, bool live, Tally* shared) {
  const Span<V> s(x, n);
  const int edge = s.edge(lane);
  constexpr int STEP = LANES * BLOCKS;
  Tally t = nothing();
  wait_with(x + s.head, s.vectors, edge);
  over_vectors<V, STEP, 4>(x + s.head, s.vectors, lane, [&](int, const Vec<T, V>& raw) {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = to_float(raw.v[j]);
    take(t, v);
  });
  if (edge >= 0) take(t, {to_float(x[edge])});
  const Change<LOG> change(
      join_row<LANES, BLOCKS>(join_lanes<(LANES < 32 ? LANES : 32)>(t), shared));
  if (live) {
    if (edge >= 0) from_float(y[edge], change(to_float(x[edge])));
    over_vectors<V, STEP, 4>(x + s.head, s.vectors, lane, [&](int i, const Vec<T, V>& raw) {
      Vec<T, V> out;
#pragma unroll
      for (int j = 0; j < V; j++) from_float(out.v[j], change(to_float(raw.v[j])));
      store_whole<V>(y + s.head + i * V, out);
    });
  }
  if (BLOCKS > 1) cluster_wait();
}

// Bytes of rows from which on what they hold takes longer to come than the next kernel.
constexpr i64 LATE = 1 << 20;
// Contiguous rows. K = 0: too long for registers, or of unknown length. LANES < 2 V - 2 only where
// every row is whole vectors (EDGES is false).
template <int V, int K, int LANES, int BLOCKS, int THREADS, bool LOG, bool EDGES>
DEV void softmax_rows(const T* x, T* y, int rows, int n) {
  __shared__ Tally shared[33];
  const i64 index = i64(blockIdx.x / BLOCKS) * (THREADS / LANES) + threadIdx.x / LANES,
            row = min(index, i64(rows) - 1);
  const int lane = blockIdx.x % BLOCKS * LANES + threadIdx.x % LANES;
  const bool live = index < rows;  // others go along for the exchanges
  const bool late = K > 0 && LANES <= 32 && i64(rows) * n * int(sizeof(T)) >= LATE;
  if (!late) next_may_start();
  x += row * n, y += row * n;
  if (!together<V>(x, y) || !(EDGES || aligned(x, V * sizeof(T))))
    softmax_again<1, LANES, BLOCKS, LOG>(x, y, n, lane, live, shared);
  else if (K == 0)
    softmax_again<V, LANES, BLOCKS, LOG>(x, y, n, lane, live, shared);
  else
    softmax_registers<V, K ? K : 1, LANES, BLOCKS, LOG, EDGES>(x, y, n, lane, live, late, shared);
}

// Small slabs [n, inner], so many a CTA; LANES lanes have a column, PER elements each in
// registers (0: n is not known).
template <int BYTES, int LANES, int PER, int THREADS, bool LOG>
DEV void softmax_slabs(const T* x, T* y, int outer, int n, int inner, int each) {
  __shared__ alignas(16) T room[BYTES / sizeof(T) + 16 / sizeof(T)];
  const i64 first = i64(blockIdx.x) * each, at = first * n * inner;
  const int count = int(min(i64(each), outer - first)), columns = count * inner,
            lane = threadIdx.x % LANES;
  Slabs<THREADS, T> slabs;
  slabs.bring(room, x + at, count * n * inner);
  for (int c = threadIdx.x / LANES; c - int(threadIdx.x / LANES) < columns; c += THREADS / LANES) {
    const int column = min(c, columns - 1), end = c < columns ? n : 0;
    T* top = slabs.slab + column / inner * n * inner + column % inner;
    float v[PER + 1];
    Tally t = nothing();
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
    const Change<LOG> change(t);
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (k * LANES + lane < end)
        from_float(top[(k * LANES + lane) * inner], LOG ? change(v[k]) : v[k] * change.scale);
    if (!PER)
      for (int j = lane; j < end; j += LANES)
        from_float(top[j * inner], change(to_float(top[j * inner])));
  }
  slabs.take_back(y + at, count * n * inner);
}

// W columns of N elements a thread, all in registers: threads next to each other have what follows,
// in the next row of columns where one ends.
template <int W, int N, int THREADS, bool LOG>
DEV void softmax_flat(const T* x, T* y, int outer, int inner) {
  const int across = inner / W;  // W divides inner
  const auto run = [&](auto zero) {
    typedef decltype(zero) I;
    const I unit = I(blockIdx.x) * THREADS + threadIdx.x, o = unit / I(across);
    const i64 at = i64(o) * N * inner + i64(unit - o * I(across)) * W;
    wait_with(at);
    if (o >= I(outer)) return;
    Vec<T, W> raw[N];
#pragma unroll
    for (int k = 0; k < N; k++) raw[k] = load<W>(x + at + i64(k) * inner);
#pragma unroll
    for (int w = 0; w < W; w++) {
      float v[N];
      Tally t = nothing();
#pragma unroll
      for (int k = 0; k < N; k++) v[k] = to_float(raw[k].v[w]);
      take(t, v);
      const Change<LOG> change(t);
#pragma unroll
      for (int k = 0; k < N; k++) from_float(raw[k].v[w], change(v[k]));
    }
#pragma unroll
    for (int k = 0; k < N; k++) store<W>(y + at + i64(k) * inner, raw[k]);
  };
  if (i64(outer) * across >> 31)
    run(u64(0));
  else
    run(u32(0));
}

// W columns a thread, ACROSS threads next to each other, the CTA's and the cluster's others
// below. KEPT: a thread has at most DEPTH elements of a column.
template <int W, int ACROSS, int THREADS, int BLOCKS, bool LOG, bool KEPT>
DEV void softmax_columns(const T* x, T* y, int n, int inner) {
  constexpr int DOWN = THREADS / ACROSS, STEP = DOWN * BLOCKS, DEPTH = 8;
  __shared__ Tally shared[W][THREADS];
  const int tiles = (inner + ACROSS * W - 1) / (ACROSS * W), side = threadIdx.x % ACROSS,
            down = threadIdx.x / ACROSS;
  const int unit = blockIdx.x / BLOCKS, column = (unit % tiles * ACROSS + side) * W,
            from = blockIdx.x % BLOCKS * DOWN + down;
  const bool real = column < inner;  // W divides inner
  const int end = real ? n : 0;
  const i64 at = i64(unit / tiles) * n * inner + column;
  x += at, y += at;
  wait_with(x + i64(from) * inner, end);
  Vec<T, W> raw[DEPTH];
  auto bring = [&](int j) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (j + k * STEP < end) raw[k] = load<W>(x + i64(j + k * STEP) * inner);
  };
  Tally t[W];
#pragma unroll
  for (int w = 0; w < W; w++) t[w] = nothing();
  for (int j = from; j < end; j += DEPTH * STEP) {
    bring(j);
#pragma unroll
    for (int w = 0; w < W; w++) {
      float v[DEPTH];
#pragma unroll
      for (int k = 0; k < DEPTH; k++) v[k] = j + k * STEP < end ? to_float(raw[k].v[w]) : -INF;
      take(t[w], v);
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
      for (int w = 0; w < W; w++) t[w] = joined(t[w], shared[w][threadIdx.x]);
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
      for (int w = 0; w < W; w++) shared[w][ACROSS + side] = join_cluster<BLOCKS>(&shared[w][side]);
  }
  __syncthreads();
  if (BLOCKS > 1) cluster_arrive_relaxed();
#pragma unroll
  for (int w = 0; w < W; w++) t[w] = shared[w][(BLOCKS > 1 ? ACROSS : 0) + side];
  for (int j = from; j < end; j += DEPTH * STEP) {
    if (!KEPT) bring(j);
#pragma unroll
    for (int w = 0; w < W; w++) {
      const Change<LOG> change(t[w]);
#pragma unroll
      for (int k = 0; k < DEPTH; k++) from_float(raw[k].v[w], change(to_float(raw[k].v[w])));
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (j + k * STEP < end) store<W>(y + i64(j + k * STEP) * inner, raw[k]);
    if (KEPT) break;
  }
  if (BLOCKS > 1) cluster_wait();  // nobody reads this CTA's shared memory any more
}
