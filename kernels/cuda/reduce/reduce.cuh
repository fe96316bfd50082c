// Reductions over n of [outer, n, inner], argmax among them. A policy R says what is held of the
// values seen (R::Held): start (given the row's first element), take (in the order of their
// places), join, across (another lane's), finish. Where rows are few and long, `parts` CTAs share
// a row: each leaves what it holds, and join_parts finishes.
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
  typedef float Held;
  static METHOD float start(const T*) {
    return KIND == kMax ? -INF : KIND == kMin ? INF : KIND == kProd ? 1.f : 0.f;
  }
  static METHOD float join(float a, float b) {
    return KIND == kMax    ? keep_max(a, b)
           : KIND == kMin  ? keep_min(a, b)
           : KIND == kProd ? a * b
                           : a + b;
  }
  static METHOD void take(float& h, T x, int) {
    const float v = to_float(x);
    h = join(h, KIND == kL1 ? fabsf(v) : KIND == kL2 || KIND == kSumSquare ? v * v : v);
  }
  static METHOD float across(float h, int o) { return __shfl_xor_sync(FULL_WARP, h, o); }
  static METHOD T finish(float s, int n, const T*) {
    return rounded<T>(KIND == kMean     ? s / float(n)
                      : KIND == kL2     ? sqrtf(s)
                      : KIND == kLogSum ? logf(s)
                                        : s);
  }
};
// sum = the sum of e^(v - top), but e^v where top is infinite: that keeps exp finite and does not
// turn infinities into NaN.
struct Exponentials {
  float top, sum;
};
template <>
struct Fold<kLogSumExp> {
  typedef T Element;
  typedef T Result;
  typedef Exponentials Held;
  static METHOD float shift(float top) { return fabsf(top) < INF ? top : 0.f; }
  static METHOD Held start(const T*) { return {-INF, 0.f}; }
  static METHOD Held join(Held a, Held b) {
    const float top = keep_max(a.top, b.top), s = shift(top);
    return {top, a.sum * expf(a.top - s) + b.sum * expf(b.top - s)};
  }
  static METHOD void take(Held& h, T x, int) { h = join(h, {to_float(x), 1.f}); }
  static METHOD Held across(Held h, int o) {
    return {__shfl_xor_sync(FULL_WARP, h.top, o), __shfl_xor_sync(FULL_WARP, h.sum, o)};
  }
  static METHOD T finish(Held h, int, const T*) { return rounded<T>(logf(h.sum) + shift(h.top)); }
};
// Integers wrap: kinds kSum, kMax, kMin, kProd.
template <int KIND, class E>
struct FoldInt {
  typedef E Element;
  typedef E Result;
  typedef E Held;
  static constexpr E lowest = sizeof(E) == 8 ? E(-0x7fffffffffffffffll - 1) : E(-0x7fffffff - 1);
  static METHOD E start(const E*) {
    return KIND == kMax ? lowest : KIND == kMin ? E(~lowest) : KIND == kProd ? E(1) : E(0);
  }
  static METHOD E join(E a, E b) {
    return KIND == kMax    ? (a > b ? a : b)
           : KIND == kMin  ? (a < b ? a : b)
           : KIND == kProd ? E(u64(a) * u64(b))
                           : E(u64(a) + u64(b));
  }
  static METHOD void take(E& h, E v, int) { h = join(h, v); }
  static METHOD E across(E h, int o) { return __shfl_xor_sync(FULL_WARP, h, o); }
  static METHOD E finish(E h, int, const E*) { return h; }
};
// Where the first (last) extremum lies. A NaN never wins, as in a scan with `>`, unless it comes
// first.
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
  struct Held {
    A best;
    int at;
  };
  static METHOD bool better(A a, A b) { return MIN ? a < b : a > b; }
  static METHOD Held start(const E* first) { return {comparable(*first), 0}; }
  static METHOD Held join(Held a, Held b) {
    return better(b.best, a.best) || (a.best == b.best && (LAST ? b.at > a.at : b.at < a.at)) ? b
                                                                                              : a;
  }
  static METHOD void take(Held& h, E x, int at) {
    const A v = comparable(x);
    if (better(v, h.best) || (LAST && v == h.best)) h = {v, at};
  }
  static METHOD Held across(Held h, int o) {
    return {__shfl_xor_sync(FULL_WARP, h.best, o), __shfl_xor_sync(FULL_WARP, h.at, o)};
  }
  static METHOD i64 finish(Held h, int, const E* first) {
    const A v = comparable(*first);
    return v == v ? h.at : 0;
  }
};

// What LANES lanes of a warp, or a CTA of so many threads, hold.
template <class R, int LANES, class H>
DEV H join_held(H h, H* shared) {
#pragma unroll
  for (int o = (LANES < 32 ? LANES : 32) / 2; o; o >>= 1) h = R::join(h, R::across(h, o));
  if (LANES > 32) {
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = h;
    __syncthreads();
    h = shared[threadIdx.x & (LANES / 32 - 1)];
#pragma unroll
    for (int o = LANES / 64; o; o >>= 1) h = R::join(h, R::across(h, o));
  }
  return h;
}

// A part of a divided axis: [from, to).
struct Part {
  int from, to;
  __device__ __forceinline__ Part(int n, int part, int parts, int unit) {
    const i64 each = (i64(n) + i64(parts) * unit - 1) / (i64(parts) * unit) * unit;
    from = int(min(i64(n), part * each)), to = int(min(i64(n), (part + 1) * each));
  }
};

// Contiguous rows, LANES lanes each: fewer than 2 V - 2 only where every row is whole vectors.
template <class R, int V, int LANES, int THREADS>
DEV void reduce_rows(const typename R::Element* x, typename R::Result* y, typename R::Held* held,
                     int rows, int n, int parts) {
  typedef typename R::Held H;
  __shared__ H shared[32];
  const i64 unit = i64(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
  const int lane = threadIdx.x % LANES, row = int(min(unit / parts, i64(rows) - 1));
  x += i64(row) * n;
  const Part part(n, int(unit % parts), parts, V);
  const Span<V> s(x + part.from, part.to - part.from);
  const int edge = s.edge(lane), first = part.from + s.head;
  wait_with(x + first + lane * V, s.vectors, edge);
  H h[V], rest = R::start(x);
#pragma unroll
  for (int j = 0; j < V; j++) h[j] = rest;
  over_vectors<V, LANES, 4>(x + first, s.vectors, lane,
                            [&](int i, const Vec<typename R::Element, V>& raw) {
#pragma unroll
                              for (int j = 0; j < V; j++)
                                R::take(h[j], raw.v[j], first + i * V + j);
                            });
  if (edge >= 0) R::take(rest, x[part.from + edge], part.from + edge);
#pragma unroll
  for (int j = 0; j < V; j++) rest = R::join(rest, h[j]);
  rest = join_held<R, LANES>(rest, shared);
  if (lane || unit >= i64(rows) * parts) return;
  if (parts == 1)
    y[row] = R::finish(rest, n, x);
  else
    held[unit] = rest;
}

// Which columns a thread has: number `index` of all `outer` times `inner` columns, taken W at a
// time; W divides inner. Three next to each other are taken as four (ACROSS): a column alone would
// take as much of memory as they do.
template <int W, int ACROSS>
struct Column {
  bool real;  // others go along with the last one
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

// W columns a thread, ACROSS threads next to each other (in the next row of columns where one
// ends), the CTA's others below, and those of the other BLOCKS of a cluster: parts counts these
// then.
template <class R, int W, int ACROSS, int THREADS, int BLOCKS>
DEV void reduce_columns(const typename R::Element* x, typename R::Result* y, typename R::Held* held,
                        int outer, int n, int inner, int parts) {
  typedef typename R::Held H;
  constexpr int DOWN = THREADS / ACROSS, DEPTH = 8;
  __shared__ H shared[W][THREADS / 2];
  const int side = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS, tiles = gridDim.x / parts;
  const int tile = BLOCKS > 1 ? blockIdx.x / BLOCKS : blockIdx.x % tiles,
            mine = BLOCKS > 1 ? blockIdx.x % BLOCKS : blockIdx.x / tiles;
  const Column<W, ACROSS> column(i64(tile) * ACROSS + side, outer, inner);
  const auto* top = x + column.o * n * inner + column.at;
  const Part part(n, mine, parts, 1);
  wait_with(top + i64(part.from + down) * inner, part.to);
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
        for (int w = 0; w < W; w++) R::take(h[w], raw[k].v[w], first + k * DOWN);
  }
#pragma unroll
  for (int half = DOWN / 2; half; half >>= 1) {
    if (down >= half && down < 2 * half)
#pragma unroll
      for (int w = 0; w < W; w++) shared[w][threadIdx.x - half * ACROSS] = h[w];
    __syncthreads();
    if (down < half)
#pragma unroll
      for (int w = 0; w < W; w++) h[w] = R::join(h[w], shared[w][threadIdx.x]);
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
        for (int b = 1; b < BLOCKS; b++) other[b] = of_block(&shared[w][side], b);
#pragma unroll
        for (int b = 1; b < BLOCKS; b++) h[w] = R::join(h[w], other[b]);
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

// W columns a thread, all of them, and of columns of few elements U of those, THREADS apart:
// threads next to each other have what follows, in the next row of columns where one ends.
template <class R, int W, int U, int THREADS>
DEV void reduce_flat(const typename R::Element* x, typename R::Result* y, int outer, int n,
                     int inner) {
  typedef typename R::Held H;
  constexpr int DEPTH = 8 / U;
  const int across = inner / W;  // W divides inner
  const auto run = [&](auto zero) {
    typedef decltype(zero) I;
    const I first = I(blockIdx.x) * (U * THREADS) + threadIdx.x, total = I(outer) * across;
    const typename R::Element* top[U];
    H h[U][W];
    Places places;
#pragma unroll
    for (int u = 0; u < U; u++) {
      const I unit = min(first + u * THREADS, total - 1), o = unit / I(across);
      top[u] = x + i64(o) * n * inner + i64(unit - o * I(across)) * W;
      places.have(top[u]);
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
            for (int w = 0; w < W; w++) R::take(h[u][w], raw[k][u].v[w], from + k);
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

// Small slabs [n, inner], so many a CTA; LANES lanes have a column.
template <class R, int BYTES, int LANES, int THREADS>
DEV void reduce_slabs(const typename R::Element* x, typename R::Result* y, int outer, int n,
                      int inner, int each) {
  typedef typename R::Element E;
  constexpr int ROOM = BYTES / sizeof(E);
  __shared__ alignas(16) E room[ROOM + 16 / sizeof(E)];
  const i64 first = i64(blockIdx.x) * each;
  const int count = int(min(i64(each), outer - first)), columns = count * inner,
            lane = threadIdx.x % LANES;
  Slabs<THREADS, E> slabs;
  slabs.bring(room, x + first * n * inner, count * n * inner);
  for (int c = threadIdx.x / LANES; c - int(threadIdx.x / LANES) < columns; c += THREADS / LANES) {
    const int column = min(c, columns - 1);
    const E* top = slabs.slab + column / inner * n * inner + column % inner;
    typename R::Held h = R::start(top);
    for (int j = lane; j < n; j += LANES) R::take(h, top[j * inner], j);
    h = join_held<R, LANES>(h, (typename R::Held*)nullptr);
    if (lane == 0 && c < columns) y[first * inner + c] = R::finish(h, n, top);
  }
}

// What `parts` CTAs left of every result, [outer, parts, inner]: a warp each.
template <class R, int THREADS>
DEV void join_parts(const typename R::Element* x, typename R::Result* y,
                    const typename R::Held* held, int outer, int n, int inner, int parts) {
  const i64 r = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  if (r >= i64(outer) * inner) return;
  const i64 o = r / inner, column = r % inner;
  const int lane = threadIdx.x & 31;
  held += o * parts * inner + column;
  const auto* top = x + o * n * inner + column;
  wait_with(top, held);
  typename R::Held h = R::start(top), some[8];
  for (int p = lane; p < parts; p += 256) {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (p + k * 32 < parts) some[k] = held[(p + k * 32) * i64(inner)];
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (p + k * 32 < parts) h = R::join(h, some[k]);
  }
  h = join_held<R, 32>(h, (typename R::Held*)nullptr);
  if (lane == 0) y[r] = R::finish(h, n, top);
}

// The same where results lie next to each other: 32 of them beside each other, THREADS / 32 threads
// below share the parts of each.
template <class R, int THREADS>
DEV void join_columns(const typename R::Element* x, typename R::Result* y,
                      const typename R::Held* held, int outer, int n, int inner, int parts) {
  typedef typename R::Held H;
  constexpr int DOWN = THREADS / 32, DEPTH = 4;
  __shared__ H shared[DOWN][32];
  const int side = threadIdx.x % 32, down = threadIdx.x / 32;
  const Column<1, 32> column(i64(blockIdx.x) * 32 + side, outer, inner);
  const auto* top = x + column.o * n * inner + column.at;
  held += column.o * parts * inner + column.at;
  wait_with(top, held);
  H h = R::start(top), some[DEPTH];
  for (int p = down; p < parts; p += DEPTH * DOWN) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (p + k * DOWN < parts) some[k] = held[i64(p + k * DOWN) * inner];
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (p + k * DOWN < parts) h = R::join(h, some[k]);
  }
  shared[down][side] = h;
  __syncthreads();
  if (down || !column.real) return;
#pragma unroll
  for (int d = 1; d < DOWN; d++) h = R::join(h, shared[d][side]);
  y[column.o * inner + column.at] = R::finish(h, n, top);
}
