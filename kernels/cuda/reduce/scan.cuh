// Prefix sums over n of [outer, n, inner], in f32 or wrapping integers. EXCLUSIVE: without the
// element itself. REVERSE: from the end. Where columns are few and long, `parts` CTAs share one:
// reduce_rows or reduce_columns of reduce.cuh has stored the sum of each part in `held`.
#pragma once
#include "reduce/reduce.cuh"

template <class E>
DEV float addend(E v) {
  return to_float(v);
}
DEV u32 addend(i32 v) { return u32(v); }
DEV u64 addend(i64 v) { return u64(v); }
template <class E>
DEV void assign(E& to, float sum) {
  from_float(to, sum);
}
DEV void assign(i32& to, u32 sum) { to = i32(sum); }
DEV void assign(i64& to, u64 sum) { to = i64(sum); }

// Inclusive prefix sum of v within each LANES lanes.
template <int LANES, class A>
DEV A scan_lanes(A v) {
  const int lane = threadIdx.x % LANES;
#pragma unroll
  for (int o = 1; o < LANES; o *= 2) {
    const A other = __shfl_up_sync(FULL_WARP, v, o);
    if (lane >= o) v += other;
  }
  return v;
}

// Contiguous rows: a warp or the CTA scans one, K vectors of V elements per lane in an iteration.
// parts > 1: the preceding kernel stores `held`, and calls `pdl_launch_dependents` when x is
// readable.
template <int V, int K, int LANES, int THREADS, bool EXCLUSIVE, bool REVERSE, class E, class H>
DEV void scan_rows(const E* x, E* y, const H* held, int rows, int n, int parts) {
  typedef decltype(addend(E())) A;
  constexpr int WARPS = LANES / 32, TILE = 32 * K * V;
  __shared__ A shared[32];
  const i64 unit = i64(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
  if (unit >= i64(rows) * parts) return;  // whole rows leave together
  const int lane = threadIdx.x & 31, warp = threadIdx.x % LANES / 32, mine = int(unit % parts);
  const Part part(n, mine, parts, 16 / sizeof(E));
  const i64 row = unit / parts;
  x += row * n, y += row * n;
  // Positions count from the aligned vector at or before the part's first element (REVERSE: at or
  // after its last one): the part is [low, high).
  const bool whole = same_misalignment<V>(x, y);
  const int low = REVERSE ? int(-(u64(x + part.to) / sizeof(E)) & (V - 1))
                          : int(u64(x + part.from) / sizeof(E) & (V - 1)),
            high = low + part.to - part.from;
  auto place = [&](int first, int k) { return first + warp * TILE + (k * 32 + lane) * V; };
  auto index = [&](int at) {
    return REVERSE ? part.to + low - at - V : part.from - low + at;
  };  // index of the first element, in memory order, of the vector at position `at`
  auto real = [&](int at) { return at >= low && at < high; };
  Vec<E, V> raw[K];
  auto fetch = [&](int first) {
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int at = place(first, k);
      const E* p = x + index(at);
      if (at >= low && at + V <= high)
        raw[k] = load<V>(p);
      else
#pragma unroll
        for (int j = 0; j < V; j++)
          if (real(REVERSE ? at + V - 1 - j : at + j)) raw[k].v[j] = p[j];
    }
  };
  if (parts == 1) pdl_wait_after(x + index(place(0, 0)), high);
  fetch(0);
  A before = A(0);
  if (WARPS > 1 && parts > 1) {
    pdl_wait();
    for (int p = threadIdx.x; p < parts; p += THREADS)
      if (REVERSE ? p > mine : p < mine) before += addend(held[row * parts + p]);
    before = reduce_threads<Sum, LANES>(before, shared);
  }
  for (int first = 0; first < high; first += WARPS * TILE) {
    A v[K][V], total = A(0);
#pragma unroll
    for (int k = 0; k < K; k++) {
      A run = A(0);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const A next =
            run + (real(place(first, k) + j) ? addend(raw[k].v[REVERSE ? V - 1 - j : j]) : A(0));
        v[k][j] = EXCLUSIVE ? run : next;
        run = next;
      }
      const A sum = scan_lanes<32>(run), lower = __shfl_up_sync(FULL_WARP, sum, 1),
              start = total + (lane ? lower : A(0));
#pragma unroll
      for (int j = 0; j < V; j++) v[k][j] += start;
      total += __shfl_sync(FULL_WARP, sum, 31);
    }
    if (first + WARPS * TILE < high) fetch(first + WARPS * TILE);
    A start = before;
    if (WARPS > 1) {
      __syncthreads();  // the previous iteration has read `shared`
      if (lane == 0) shared[warp] = total;
      __syncthreads();
      const A sum = scan_lanes<32>(lane < WARPS ? shared[lane] : A(0)),
              lower = __shfl_sync(FULL_WARP, sum, warp ? warp - 1 : 0);
      if (warp) start += lower;
      total = __shfl_sync(FULL_WARP, sum, 31);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int at = place(first, k);
      E* p = y + index(at);
      Vec<E, V> out;
#pragma unroll
      for (int j = 0; j < V; j++) assign(out.v[REVERSE ? V - 1 - j : j], start + v[k][j]);
      if (whole && at >= low && at + V <= high)
        store_vector<V>(p, out);
      else
#pragma unroll
        for (int j = 0; j < V; j++)
          if (real(REVERSE ? at + V - 1 - j : at + j)) p[j] = out.v[j];
    }
    before += total;
  }
}

// Inclusive prefix sum of v over the DOWN threads of each column, into shared[threadIdx.x].
template <int ACROSS, int DOWN, class A>
DEV void scan_down(A v, A* shared) {
  const int down = threadIdx.x / ACROSS;
  __syncthreads();
  shared[threadIdx.x] = v;
  __syncthreads();
#pragma unroll
  for (int o = 1; o < DOWN; o *= 2) {
    if (down >= o) v += shared[threadIdx.x - o * ACROSS];
    __syncthreads();
    shared[threadIdx.x] = v;
    __syncthreads();
  }
}

// Column layout: ACROSS threads are neighbours along inner, the others of the CTA share n; a thread
// has K consecutive elements of its column in an iteration.
template <int K, int ACROSS, int THREADS, bool EXCLUSIVE, bool REVERSE, class E, class H>
DEV void scan_columns(const E* x, E* y, const H* held, int outer, int n, int inner, int parts) {
  typedef decltype(addend(E())) A;
  constexpr int DOWN = THREADS / ACROSS;
  __shared__ A shared[THREADS];
  const int side = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS, tiles = gridDim.x / parts,
            mine = blockIdx.x / tiles;
  const Column<1, ACROSS> column(i64(blockIdx.x % tiles) * ACROSS + side, outer, inner);
  const bool real = column.real;
  const Part part(n, mine, parts, 1);
  const int length = part.to - part.from;
  x += column.o * n * inner + column.at, y += column.o * n * inner + column.at;
  const A* last = shared + (DOWN - 1) * ACROSS + side;
  pdl_wait_after(x, length);
  A before = A(0);
  if (parts > 1) {
    for (int p = down; p < parts && real; p += DOWN)
      if (REVERSE ? p > mine : p < mine)
        before += addend(held[(column.o * parts + p) * inner + column.at]);
    scan_down<ACROSS, DOWN>(before, shared);
    before = *last;
  }
  for (int first = 0; first < length; first += DOWN * K) {
    const int at = first + down * K;
    auto place = [&](int k) {
      return i64(REVERSE ? part.to - 1 - (at + k) : part.from + at + k) * inner;
    };
    A v[K], total = A(0);
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = real && at + k < length ? addend(x[place(k)]) : A(0);
#pragma unroll
    for (int k = 0; k < K; k++) total += v[k];
    scan_down<ACROSS, DOWN>(total, shared);
    A run = before + (down ? shared[threadIdx.x - ACROSS] : A(0));
#pragma unroll
    for (int k = 0; k < K; k++) {
      const A next = run + v[k];
      if (real && at + k < length) assign(y[place(k)], EXCLUSIVE ? run : next);
      run = next;
    }
    before += *last;
  }
}

// Flat layout: a thread scans W columns, DEPTH elements of each at a time. Neighbouring threads
// have neighbouring columns, across the ends of [inner].
template <int W, int DEPTH, int THREADS, bool EXCLUSIVE, bool REVERSE, class E>
DEV void scan_flat(const E* x, E* y, int outer, int n, int inner) {
  typedef decltype(addend(E())) A;
  const Column<W, 1> column(i64(blockIdx.x) * THREADS + threadIdx.x, outer, inner);
  const i64 at = column.o * n * inner + column.at;
  auto place = [&](int k) { return at + i64(REVERSE ? n - 1 - k : k) * inner; };
  Vec<E, W> next[DEPTH];
  auto fetch = [&](int first) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (first + k < n) next[k] = load<W>(x + place(first + k));
  };
  pdl_wait_after(at);
  if (!column.real) return;
  A run[W];
#pragma unroll
  for (int w = 0; w < W; w++) run[w] = A(0);
  fetch(0);
  for (int first = 0; first < n; first += DEPTH) {
    Vec<E, W> raw[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) raw[k] = next[k];
    if (first + DEPTH < n) fetch(first + DEPTH);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
#pragma unroll
      for (int w = 0; w < W; w++) {
        const A sum = run[w] + addend(raw[k].v[w]);
        assign(raw[k].v[w], EXCLUSIVE ? run[w] : sum);
        run[w] = sum;
      }
      if (first + k < n) store<W>(y + place(first + k), raw[k]);
    }
  }
}

// Staged matrices [n, inner], `each` per CTA. LANES lanes share a column, a contiguous part each.
template <int BYTES, int LANES, int THREADS, bool EXCLUSIVE, bool REVERSE, class E>
DEV void scan_staged(const E* x, E* y, int outer, int n, int inner, int each) {
  typedef decltype(addend(E())) A;
  __shared__ alignas(16) E room[BYTES / sizeof(E) + 16 / sizeof(E)];
  const i64 first = i64(blockIdx.x) * each, at = first * n * inner;
  const int count = int(min(i64(each), outer - first)), columns = count * inner,
            lane = threadIdx.x % LANES, per = (n + LANES - 1) / LANES;
  Staged<THREADS, E> staged;
  staged.load_rows(room, x + at, count * n * inner);
  for (int c = threadIdx.x / LANES; c - int(threadIdx.x / LANES) < columns; c += THREADS / LANES) {
    const int column = min(c, columns - 1), from = lane * per,
              to = c < columns ? min(from + per, n) : 0;
    E* top = staged.data + column / inner * n * inner + column % inner;
    auto place = [&](int j) { return (REVERSE ? n - 1 - j : j) * inner; };
    A run = A(0);
    if (LANES > 1) {
      A total = A(0);
      for (int j = from; j < to; j++) total += addend(top[place(j)]);
      const A lower = __shfl_up_sync(FULL_WARP, scan_lanes<LANES>(total), 1);
      run = lane ? lower : A(0);
    }
    for (int j = from; j < to; j++) {
      const A next = run + addend(top[place(j)]);
      assign(top[place(j)], EXCLUSIVE ? run : next);
      run = next;
    }
  }
  staged.store_rows(y + at, count * n * inner);
}
