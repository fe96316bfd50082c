// Reductions over n of [outer, n, inner], including argmax. A policy R has the state of a reduction
// (R::State): start(address of the first element), update(state, value, index) in order of index,
// combine(two states), shuffle(state of another lane), finish(state). Where rows are few and long,
// `parts` CTAs share one: each stores its state in `held`, and combine_parts finishes.
#pragma once
#include "common/base.cuh"
#include "common/cluster.cuh"
#include "common/ragged_rows.cuh"

enum { kSum, kMean, kMax, kMin, kProd, kL1, kL2, kSumSquare, kLogSum, kLogSumExp };

// Floats, accumulated in f32.
template <int KIND>
struct Fold {
  typedef T Element;
  typedef T Result;
  typedef float State;
  static METHOD float start(const T*) {
    return KIND == kMax ? -INF : KIND == kMin ? INF : KIND == kProd ? 1.f : 0.f;
  }
  static METHOD float combine(float a, float b) {
    return KIND == kMax    ? keep_max(a, b)
           : KIND == kMin  ? keep_min(a, b)
           : KIND == kProd ? a * b
                           : a + b;
  }
  static METHOD void update(float& h, T x, int) {
    const float v = to_float(x);
    h = combine(h, KIND == kL1 ? fabsf(v) : KIND == kL2 || KIND == kSumSquare ? v * v : v);
  }
  static METHOD float shuffle(float h, int o) { return __shfl_xor_sync(FULL_WARP, h, o); }
  static METHOD T finish(float s, int n, const T*) {
    return rounded<T>(KIND == kMean     ? s / float(n)
                      : KIND == kL2     ? sqrtf(s)
                      : KIND == kLogSum ? logf(s)
                                        : s);
  }
};
// sum = sum of e^(v - top), or of e^v where top is infinite, so that infinities do not become NaN.
struct Exponentials {
  float top, sum;
};
template <>
struct Fold<kLogSumExp> {
  typedef T Element;
  typedef T Result;
  typedef Exponentials State;
  static METHOD float shift(float top) { return fabsf(top) < INF ? top : 0.f; }
  static METHOD State start(const T*) { return {-INF, 0.f}; }
  static METHOD State combine(State a, State b) {
    const float top = keep_max(a.top, b.top), s = shift(top);
    return {top, a.sum * expf(a.top - s) + b.sum * expf(b.top - s)};
  }
  static METHOD void update(State& h, T x, int) { h = combine(h, {to_float(x), 1.f}); }
  static METHOD State shuffle(State h, int o) {
    return {__shfl_xor_sync(FULL_WARP, h.top, o), __shfl_xor_sync(FULL_WARP, h.sum, o)};
  }
  static METHOD T finish(State h, int, const T*) { return rounded<T>(logf(h.sum) + shift(h.top)); }
};
// Integers wrap: kinds kSum, kMax, kMin, kProd.
template <int KIND, class E>
struct FoldInt {
  typedef E Element;
  typedef E Result;
  typedef E State;
  static constexpr E lowest = sizeof(E) == 8 ? E(-0x7fffffffffffffffll - 1) : E(-0x7fffffff - 1);
  static METHOD E start(const E*) {
    return KIND == kMax ? lowest : KIND == kMin ? E(~lowest) : KIND == kProd ? E(1) : E(0);
  }
  static METHOD E combine(E a, E b) {
    return KIND == kMax    ? (a > b ? a : b)
           : KIND == kMin  ? (a < b ? a : b)
           : KIND == kProd ? E(u64(a) * u64(b))
                           : E(u64(a) + u64(b));
  }
  static METHOD void update(E& h, E v, int) { h = combine(h, v); }
  static METHOD E shuffle(E h, int o) { return __shfl_xor_sync(FULL_WARP, h, o); }
  static METHOD E finish(E h, int, const E*) { return h; }
};
// Index of the first (LAST: last) extremum. A NaN never wins, unless it is the first element (as in
// a scan with `>`).
template <class E>
DEV auto comparable(E v) {
  return to_float(v);
}
DEV i64 comparable(i64 v) { return v; }
DEV int comparable(int v) { return v; }
template <class E, bool MIN, bool LAST>
struct Extremum {
  typedef E Element;
  typedef i64 Result;
  typedef decltype(comparable(E())) A;
  struct State {
    A best;
    int at;
  };
  static METHOD bool better(A a, A b) { return MIN ? a < b : a > b; }
  static METHOD State start(const E* first) { return {comparable(*first), 0}; }
  static METHOD State combine(State a, State b) {
    return better(b.best, a.best) || (a.best == b.best && (LAST ? b.at > a.at : b.at < a.at)) ? b
                                                                                              : a;
  }
  static METHOD void update(State& h, E x, int at) {
    const A v = comparable(x);
    if (better(v, h.best) || (LAST && v == h.best)) h = {v, at};
  }
  static METHOD State shuffle(State h, int o) {
    return {__shfl_xor_sync(FULL_WARP, h.best, o), __shfl_xor_sync(FULL_WARP, h.at, o)};
  }
  static METHOD i64 finish(State h, int, const E* first) {
    const A v = comparable(*first);
    return v == v ? h.at : 0;
  }
};

// Combines the states of LANES lanes of a warp, or of a CTA of LANES threads.
template <class R, int LANES, class H>
DEV H reduce_state(H h, H* shared) {
#pragma unroll
  for (int o = (LANES < 32 ? LANES : 32) / 2; o; o >>= 1) h = R::combine(h, R::shuffle(h, o));
  if (LANES > 32) {
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = h;
    __syncthreads();
    h = shared[threadIdx.x & (LANES / 32 - 1)];
#pragma unroll
    for (int o = LANES / 64; o; o >>= 1) h = R::combine(h, R::shuffle(h, o));
  }
  return h;
}

// Part [from, to) of an axis that is divided in multiples of `unit`.
struct Part {
  int from, to;
  __device__ __forceinline__ Part(int n, int part, int parts, int unit) {
    const i64 each = (i64(n) + i64(parts) * unit - 1) / (i64(parts) * unit) * unit;
    from = int(min(i64(n), part * each)), to = int(min(i64(n), (part + 1) * each));
  }
};

// Contiguous rows, LANES lanes each. LANES < 2 V - 2 needs rows of aligned vectors.
template <class R, int V, int LANES, int THREADS>
DEV void reduce_rows(const typename R::Element* x, typename R::Result* y, typename R::State* held,
                     int rows, int n, int parts) {
  typedef typename R::State H;
  __shared__ H shared[32];
  const i64 unit = i64(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
  const int lane = threadIdx.x % LANES, row = int(min(unit / parts, i64(rows) - 1));
  x += i64(row) * n;
  const Part part(n, int(unit % parts), parts, V);
  const Span<V> s(x + part.from, part.to - part.from);
  const int edge = s.edge(lane), first = part.from + s.head;
  pdl_wait_after(x + first + lane * V, s.vectors, edge);
  H h[V], rest = R::start(x);
#pragma unroll
  for (int j = 0; j < V; j++) h[j] = rest;
  over_vectors<V, LANES, 4>(x + first, s.vectors, lane,
                            [&](int i, const Vec<typename R::Element, V>& raw) {
#pragma unroll
                              for (int j = 0; j < V; j++)
                                R::update(h[j], raw.v[j], first + i * V + j);
                            });
  if (edge >= 0) R::update(rest, x[part.from + edge], part.from + edge);
#pragma unroll
  for (int j = 0; j < V; j++) rest = R::combine(rest, h[j]);
  rest = reduce_state<R, LANES>(rest, shared);
  if (lane || unit >= i64(rows) * parts) return;
  if (parts == 1)
    y[row] = R::finish(rest, n, x);
  else
    held[unit] = rest;
}

// The columns of a thread: vector `index` of the outer * inner columns, W columns each; W divides
// inner. With ACROSS = 4 threads, inner = 3 vectors are padded to 4, so that a CTA never has a part
// of [inner], whose memory transactions would be mostly unused.
template <int W, int ACROSS>
struct Column {
  bool real;  // otherwise the thread repeats the last column
  i64 o;
  int at;
  __device__ __forceinline__ Column(i64 index, int outer, int inner) {
    const int across = ACROSS == 4 ? 4 : inner / W;
    const i64 total = i64(outer) * across, k = min(index, total - 1);
    o = total >> 31 ? k / across : i64(u32(k) / u32(across));
    const int c = int(k - o * across) * W;
    real = index < total && c < inner;
    at = min(c, inner - W);
  }
};

// Column layout: a thread has W columns; ACROSS threads are neighbours along inner, the others of
// the CTA share n. With BLOCKS > 1, the CTAs of a cluster share n, too (parts = BLOCKS).
template <class R, int W, int ACROSS, int THREADS, int BLOCKS>
DEV void reduce_columns(const typename R::Element* x, typename R::Result* y,
                        typename R::State* held, int outer, int n, int inner, int parts) {
  typedef typename R::State H;
  constexpr int DOWN = THREADS / ACROSS, DEPTH = 8;
  __shared__ H shared[W][THREADS / 2];
  const int side = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS, tiles = gridDim.x / parts;
  const int tile = BLOCKS > 1 ? blockIdx.x / BLOCKS : blockIdx.x % tiles,
            mine = BLOCKS > 1 ? blockIdx.x % BLOCKS : blockIdx.x / tiles;
  const Column<W, ACROSS> column(i64(tile) * ACROSS + side, outer, inner);
  const auto* top = x + column.o * n * inner + column.at;
  const Part part(n, mine, parts, 1);
  pdl_wait_after(top + i64(part.from + down) * inner, part.to);
  H h[W];
#pragma unroll
  for (int w = 0; w < W; w++) h[w] = R::start(top + w);
  const int end = column.real ? part.to : 0;
  for (int first = part.from + down; first < end; first += DEPTH * DOWN) {
    Vec<typename R::Element, W> raw[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (first + k * DOWN < end) raw[k] = load<W>(top + i64(first + k * DOWN) * inner);
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (first + k * DOWN < end)
#pragma unroll
        for (int w = 0; w < W; w++) R::update(h[w], raw[k].v[w], first + k * DOWN);
  }
#pragma unroll
  for (int half = DOWN / 2; half; half >>= 1) {
    if (down >= half && down < 2 * half)
#pragma unroll
      for (int w = 0; w < W; w++) shared[w][threadIdx.x - half * ACROSS] = h[w];
    __syncthreads();
    if (down < half)
#pragma unroll
      for (int w = 0; w < W; w++) h[w] = R::combine(h[w], shared[w][threadIdx.x]);
    __syncthreads();
  }
  if constexpr (BLOCKS > 1) {
    if (down == 0)
#pragma unroll
      for (int w = 0; w < W; w++) shared[w][side] = h[w];
    cluster_arrive();
    cluster_wait();
    if (down == 0 && mine == 0)
#pragma unroll
      for (int w = 0; w < W; w++) {
        H other[BLOCKS];
#pragma unroll
        for (int b = 1; b < BLOCKS; b++) other[b] = load_dsmem(&shared[w][side], b);
#pragma unroll
        for (int b = 1; b < BLOCKS; b++) h[w] = R::combine(h[w], other[b]);
      }
    cluster_arrive_relaxed();
    cluster_wait();  // nobody reads this CTA's shared memory any more
  }
  if (down || !column.real || (BLOCKS > 1 && mine)) return;
#pragma unroll
  for (int w = 0; w < W; w++) {
    if (BLOCKS > 1 || parts == 1)
      y[column.o * inner + column.at + w] = R::finish(h[w], n, top + w);
    else
      held[(column.o * parts + mine) * inner + column.at + w] = h[w];
  }
}

// Flat layout: a thread has all n elements of W columns, and U such vectors, THREADS apart.
// Neighbouring threads have neighbouring columns, across the ends of [inner].
template <class R, int W, int U, int THREADS>
DEV void reduce_flat(const typename R::Element* x, typename R::Result* y, int outer, int n,
                     int inner) {
  typedef typename R::State H;
  constexpr int DEPTH = 8 / U;
  const int across = inner / W;  // W divides inner
  const auto run = [&](auto zero) {
    typedef decltype(zero) I;
    const I first = I(blockIdx.x) * (U * THREADS) + threadIdx.x, total = I(outer) * across;
    const typename R::Element* top[U];
    H h[U][W];
    Prologue places;
#pragma unroll
    for (int u = 0; u < U; u++) {
      const I unit = min(first + u * THREADS, total - 1), o = unit / I(across);
      top[u] = x + i64(o) * n * inner + i64(unit - o * I(across)) * W;
      places.need(top[u]);
    }
    places.wait();
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int w = 0; w < W; w++) h[u][w] = R::start(top[u] + w);
    for (int from = 0; from < n; from += DEPTH) {
      Vec<typename R::Element, W> raw[DEPTH][U];
#pragma unroll
      for (int k = 0; k < DEPTH; k++)
#pragma unroll
        for (int u = 0; u < U; u++)
          if (from + k < n) raw[k][u] = load<W>(top[u] + i64(from + k) * inner);
#pragma unroll
      for (int k = 0; k < DEPTH; k++)
#pragma unroll
        for (int u = 0; u < U; u++)
          if (from + k < n)
#pragma unroll
            for (int w = 0; w < W; w++) R::update(h[u][w], raw[k][u].v[w], from + k);
    }
#pragma unroll
    for (int u = 0; u < U; u++)
      if (first + u * THREADS < total)
#pragma unroll
        for (int w = 0; w < W; w++)
          y[i64(first + u * THREADS) * W + w] = R::finish(h[u][w], n, top[u] + w);
  };
  if (i64(outer) * across >> 31)
    run(u64(0));
  else
    run(u32(0));
}

// Staged matrices [n, inner], `each` per CTA; LANES lanes share a column.
template <class R, int BYTES, int LANES, int THREADS>
DEV void reduce_staged(const typename R::Element* x, typename R::Result* y, int outer, int n,
                       int inner, int each) {
  typedef typename R::Element E;
  constexpr int ROOM = BYTES / sizeof(E);
  __shared__ alignas(16) E room[ROOM + 16 / sizeof(E)];
  const i64 first = i64(blockIdx.x) * each;
  const int count = int(min(i64(each), outer - first)), columns = count * inner,
            lane = threadIdx.x % LANES;
  Staged<THREADS, E> staged;
  staged.load_rows(room, x + first * n * inner, count * n * inner);
  for (int c = threadIdx.x / LANES; c - int(threadIdx.x / LANES) < columns; c += THREADS / LANES) {
    const int column = min(c, columns - 1);
    const E* top = staged.data + column / inner * n * inner + column % inner;
    typename R::State h = R::start(top);
    for (int j = lane; j < n; j += LANES) R::update(h, top[j * inner], j);
    h = reduce_state<R, LANES>(h, (typename R::State*)nullptr);
    if (lane == 0 && c < columns) y[first * inner + c] = R::finish(h, n, top);
  }
}

// Combines the states [outer, parts, inner] that `parts` CTAs stored of each result; a warp each.
template <class R, int THREADS>
DEV void combine_parts(const typename R::Element* x, typename R::Result* y,
                       const typename R::State* held, int outer, int n, int inner, int parts) {
  const i64 r = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  if (r >= i64(outer) * inner) return;
  const i64 o = r / inner, column = r % inner;
  const int lane = threadIdx.x & 31;
  held += o * parts * inner + column;
  const auto* top = x + o * n * inner + column;
  pdl_wait_after(top, held);
  typename R::State h = R::start(top), some[8];
  for (int p = lane; p < parts; p += 256) {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (p + k * 32 < parts) some[k] = held[(p + k * 32) * i64(inner)];
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (p + k * 32 < parts) h = R::combine(h, some[k]);
  }
  h = reduce_state<R, 32>(h, (typename R::State*)nullptr);
  if (lane == 0) y[r] = R::finish(h, n, top);
}

// The same for inner > 1: 32 neighbouring results per CTA; THREADS / 32 threads share the parts of
// each.
template <class R, int THREADS>
DEV void combine_columns(const typename R::Element* x, typename R::Result* y,
                         const typename R::State* held, int outer, int n, int inner, int parts) {
  typedef typename R::State H;
  constexpr int DOWN = THREADS / 32, DEPTH = 4;
  __shared__ H shared[DOWN][32];
  const int side = threadIdx.x % 32, down = threadIdx.x / 32;
  const Column<1, 32> column(i64(blockIdx.x) * 32 + side, outer, inner);
  const auto* top = x + column.o * n * inner + column.at;
  held += column.o * parts * inner + column.at;
  pdl_wait_after(top, held);
  H h = R::start(top), some[DEPTH];
  for (int p = down; p < parts; p += DEPTH * DOWN) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (p + k * DOWN < parts) some[k] = held[i64(p + k * DOWN) * inner];
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (p + k * DOWN < parts) h = R::combine(h, some[k]);
  }
  shared[down][side] = h;
  __syncthreads();
  if (down || !column.real) return;
#pragma unroll
  for (int d = 1; d < DOWN; d++) h = R::combine(h, shared[d][side]);
  y[column.o * inner + column.at] = R::finish(h, n, top);
}
