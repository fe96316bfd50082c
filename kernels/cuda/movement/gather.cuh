// Gathers of rows and of elements. Kernels call pdl_launch_dependents() first and pdl_wait() last.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr u32 SMALL = 1 << 19;  // up to how many elements 16-byte pieces of them are not worth it
#endif                          // GENERATED
#include "common/vector_io.cuh"

// Rows of `words` words: y[o, j] = x[o, idx[j]]. An index out of range gives zeros and sets the
// fault word. A thread has U loads in flight.
template <int U, class I, class Word, class Index>
DEV void gather_rows(const Word* x, const Index* idx, Word* y, I total, int n, int words, u32 per,
                     int count, u32 per_count, u32* fault) {
  const I step = I(gridDim.x) * blockDim.x;
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += U * step) {
    I o[U], j[U], c[U];
    Prologue places;
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= total) continue;
      const I r = quotient(u + k * step, I(words), per);
      c[k] = u + k * step - r * I(words), o[k] = quotient(r, I(count), per_count),
      j[k] = r - o[k] * I(count);
      places.need(c[k]), places.need(o[k]), places.need(j[k]);
    }
    places.wait();
    i64 at[U];
    Word v[U];
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < total) at[k] = idx[j[k]];
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= total) continue;
      if (at[k] < 0) at[k] += n;
      const bool inside = at[k] >= 0 && at[k] < n;
      if (!inside) *fault = 1;
      v[k] = inside ? x[(i64(o[k]) * n + at[k]) * words + c[k]] : Word{};
    }
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < total) y[u + k * step] = v[k];
  }
}
// Rows of at least 16 bytes: a thread per 16 aligned bytes of y, which span at most two rows.
template <class E, class Index>
DEV void gather_flat(const E* x, const Index* idx, E* y, u32 total, int n, int inner, u32 per,
                     int count, u32 per_count, u32* fault) {
  constexpr int V = 16 / sizeof(E);
  const int before = misalignment<V>(y);
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u * V < total + before;
       u += gridDim.x * blockDim.x) {
    const int lo = u ? 0 : before, hi = int(min(total + before - u * V, u32(V)));
    const u32 start = u * V + lo - before, first = quotient(start, inner, per);
    const int c = int(start - first * inner) - lo;  // of element 0, before the row where lo > 0
    pdl_wait_after(first, c);
    const E* from[2];
    bool inside[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const bool needed = k == 0 || c + hi > inner;
      const u32 row = first + (needed ? k : 0), o = quotient(row, count, per_count);
      i64 at = idx[row - o * count];
      if (at < 0) at += n;
      inside[k] = at >= 0 && at < n;
      if (!inside[k]) *fault = 1;
      from[k] = x + (inside[k] ? (i64(o) * n + at) * inner : 0) + c - (needed ? k * inner : 0);
    }
    Vec<E, V> v;
#pragma unroll
    for (int j = 0; j < V; j++) {
      const bool next = c + j >= inner, some = j >= lo && j < hi && (next ? inside[1] : inside[0]);
      v.v[j] = some ? (next ? from[1] : from[0])[j] : E{};
    }
    store_part<V>(y + i64(u) * V - before, v, lo, hi);
  }
}
// Rows that consist of aligned words of W bytes, larger than an element (per: reciprocal of the
// words of a row). Without a choice at run time it takes fewer registers: all CTAs run in one wave.
template <int W, class E, class Index>
DEV void gather_words(const E* x, const Index* idx, E* y, int outer, int n, int inner, int count,
                      u32 per, u32 per_count, u32* fault) {
  typedef Vec<u32, W / 4> Word;
  const u64 rows = u64(outer) * count;
  const int words = inner / int(W / sizeof(E));
  if (rows * inner >> 31 || (u64(x) | u64(y) | u64(inner) * sizeof(E)) & (W - 1))
    gather_rows<1, u64>(x, idx, y, rows * inner, n, inner, per, count, per_count, fault);
  else
    gather_rows<1>((const Word*)x, idx, (Word*)y, u32(rows) * words, n, words, per, count,
                   per_count, fault);
}
// Rows that consist of aligned words of W bytes: LANES neighbouring lanes share a row; each has U
// words in flight, in PARTS iterations (0: as many as needed). The lanes load an index once. ROUND:
// neighbouring CTAs have the same part of consecutive rows, so that repeated rows hit the cache.
template <int W, int U, int LANES, int PARTS, bool ROUND, class E, class Index>
DEV void gather_lanes(const E* x, const Index* idx, E* y, int outer, int n, int inner, int count,
                      u32 per_count, u32* fault) {
  typedef Vec < typename Unsigned<W<4 ? W : 4>::type, (W + 3) / 4> Word;
  constexpr int across = U * LANES;
  const u32 words = inner / int(W / sizeof(E)),
            parts = PARTS ? PARTS : (words + across - 1) / across, lane = threadIdx.x % LANES;
  const u32 rows = u32(outer) * count,
            unit = ((ROUND ? blockIdx.x / rows : blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  const u32 row = ROUND ? blockIdx.x % rows : unit / parts,
            first = (ROUND ? unit : unit - row * parts) * across + lane;
  const u32 o = quotient(row, count, per_count);
  const Index* index = idx + (row - o * count);
  Prologue places;
  places.need(index);
  places.wait();
  if (o >= u32(outer)) return;
  i64 at = *index;
  if (at < 0) at += n;
  const bool inside = at >= 0 && at < n;
  if (!inside) *fault = 1;
  const Word* from = (const Word*)x + (i64(o) * n + at) * words;
  Word* to = (Word*)y + i64(row) * words;
  Word v[U]{};
#pragma unroll
  for (int k = 0; k < U; k++)
    if (inside && first + k * LANES < words) v[k] = from[first + k * LANES];
#pragma unroll
  for (int k = 0; k < U; k++)
    if (first + k * LANES < words) to[first + k * LANES] = v[k];
}
// per, per_word, per_wide, per_count: reciprocals (`quotient`) of inner, of inner in units of 4 and
// 16 bytes, and of count.
template <class E, class Index>
DEV void gather(const E* x, const Index* idx, E* y, int outer, int n, int inner, int count, u32 per,
                u32 per_word, u32 per_wide, u32 per_count, u32* fault) {
  constexpr int V = 16 / sizeof(E), F = sizeof(E) < 4 ? 4 / sizeof(E) : 1;
  const u64 low = u64(x) | u64(y) | u64(inner) * sizeof(E), rows = u64(outer) * count;
  if (rows * inner >> 31)
    gather_rows<1, u64>(x, idx, y, rows * inner, n, inner, per, count, per_count, fault);
  else if ((low & 15) == 0)
    gather_rows<2>((const Vec<u32, 4>*)x, idx, (Vec<u32, 4>*)y, u32(rows) * (inner / V), n,
                   inner / V, per_wide, count, per_count, fault);
  else if (F > 1 && (low & 3) == 0)
    gather_rows<4>((const u32*)x, idx, (u32*)y, u32(rows) * (inner / F), n, inner / F, per_word,
                   count, per_count, fault);
  else if (V > 2 && inner >= V && rows * inner > SMALL)
    gather_flat(x, idx, y, u32(rows) * inner, n, inner, per, count, per_count, fault);
  else
    gather_rows<4>(x, idx, y, u32(rows) * inner, n, inner, per, count, per_count, fault);
}
// Rows of one element: y[o, j] = x[o, idx[j]]. A thread has one j and strides over o, with U loads
// in flight.
template <int ACROSS, int U, class E, class Index>
DEV void gather_axis(const E* x, const Index* idx, E* y, int outer, int n, int count, u32* fault) {
  constexpr int DOWN = 256 / ACROSS;
  const u32 tiles = (count + ACROSS - 1) / ACROSS, step = gridDim.x / tiles * DOWN;
  const u32 j = blockIdx.x % tiles * ACROSS + threadIdx.x % ACROSS,
            first = blockIdx.x / tiles * DOWN + threadIdx.x / ACROSS;
  pdl_wait_after(j, first, step);
  if (j >= u32(count)) return;
  i64 at = idx[j];
  if (at < 0) at += n;
  const bool inside = at >= 0 && at < n;
  if (!inside) *fault = 1;
  x += inside ? at : 0, y += j;
  for (u32 o = first; o < u32(outer); o += U * step) {
    E v[U];
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || o + k * step < u32(outer)) v[k] = inside ? x[u64(o + k * step) * u32(n)] : E{};
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || o + k * step < u32(outer)) y[u64(o + k * step) * u32(count)] = v[k];
  }
}

// y[o, j, k] = x[o, idx[o, j, k], k]; per, per_count: reciprocals of inner and count. A thread has
// U vectors of V consecutive elements in flight; those of a CTA are consecutive, so that its loads
// share cache lines.
template <int V, int U, class I, class E, class Index>
DEV void gather_runs(const E* x, const Index* idx, E* y, I total, int n, int inner, int count,
                     u32 per, u32 per_count, u32* fault) {
  const I first = (I(blockIdx.x) * (blockDim.x * U) + threadIdx.x) * V, step = I(blockDim.x) * V,
          outer_stride = I(n) * I(inner);
  I from[U][V];
  Prologue places;
#pragma unroll
  for (int k = 0; k < U; k++) {
    const I u = first + k * step, r = quotient(u, I(inner), per),
            o = quotient(r, I(count), per_count);
    I c = u - r * I(inner), j = r - o * I(count), start = o * outer_stride;
#pragma unroll
    for (int e = 0; e < V; e++) {
      from[k][e] = start + c, places.need(from[k][e]);
      if (++c == I(inner)) {
        c = 0;
        if (++j == I(count)) j = 0, start += outer_stride;
      }
    }
  }
  places.wait();
  Vec<Index, V> at[U];
#pragma unroll
  for (int k = 0; k < U; k++) {
    const I u = first + k * step;
    if (u + V <= total) {
      at[k] = load<V>(idx + u);
    } else {
#pragma unroll
      for (int e = 0; e < V; e++) at[k].v[e] = u + e < total ? idx[u + e] : Index(0);
    }
  }
  Vec<E, V> v[U];
#pragma unroll
  for (int k = 0; k < U; k++)
#pragma unroll
    for (int e = 0; e < V; e++) {
      i64 a = at[k].v[e];
      if (a < 0) a += n;
      const bool some = first + k * step + e < total, inside = u64(a) < u64(n);
      if (some && !inside) *fault = 1;
      v[k].v[e] = some && inside ? x[from[k][e] + I(a) * I(inner)] : E{};
    }
#pragma unroll
  for (int k = 0; k < U; k++) {
    const I u = first + k * step;
    if (u < total) store_part<V>(y + u, v[k], 0, int(min(total - u, I(V))));
  }
}
// FEW: fewer than 2^31 elements of x and of y.
template <int V, int U, bool FEW, class E, class Index>
DEV void gather_elements(const E* x, const Index* idx, E* y, int outer, int n, int inner, int count,
                         u32 per, u32 per_count, u32* fault) {
  const u64 all = u64(outer) * count * inner;
  if (FEW || (all | u64(outer) * n * inner) >> 31 == 0)
    gather_runs<V, U, u32>(x, idx, y, u32(all), n, inner, count, per, per_count, fault);
  else
    gather_runs<V, U, u64>(x, idx, y, all, n, inner, count, per, per_count, fault);
}
