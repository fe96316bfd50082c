// Strided copies, fills, and changes of layout.
//
// Terms: a run is contiguous memory; a piece is 16 aligned bytes of y. Kernels call
// pdl_launch_dependents() first; templates wait after computing addresses, and kernels call
// pdl_wait() again at their end, for threads that had nothing to do.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int LONG = 64;        // least elements of a long row
constexpr u32 SMALL = 1 << 19;  // most elements of a copy without 16-byte pieces
constexpr int SINGLE = 4;       // elements of a thread, moved one by one
constexpr int LANE_WORDS = 4;   // elements of a long row per lane and iteration
#endif                          // GENERATED
#include "movement/transpose.cuh"

// Word u of the iteration space: y[sum i_d * ys_d] = x[sum i_d * xs_d], the last dim fastest.
template <class Word, int R, class I>
DEV void copy_words(const Word* x, Word* y, const int (&n)[R], const i64 (&xs)[R],
                    const i64 (&ys)[R]) {
  I total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= I(n[d]);
  pdl_wait();
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += I(gridDim.x) * blockDim.x) {
    I rest = u;
    i64 from = 0, to = 0;
#pragma unroll
    for (int d = R - 1; d > 0; d--) {
      const I q = rest / I(n[d]), c = rest - q * I(n[d]);
      from += i64(c) * xs[d], to += i64(c) * ys[d];
      rest = q;
    }
    y[to + i64(rest) * ys[0]] = x[from + i64(rest) * xs[0]];
  }
}

// Copies `all` words of W bytes; every row consists of whole words. per: reciprocal of the words of
// a row. A thread has U loads in flight. RUN: y is one run.
template <int U, int W, bool RUN = false, class E, int R>
DEV void copy_wide(const E* x, E* y, u32 all, const int (&n)[R], u32 inner, const u32 (&pers)[R],
                   u32 per, const i64 (&xs)[R], const i64 (&ys)[R]) {
  constexpr int count = W / sizeof(E);
  typedef Vec<E, count> Word;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < all; u += U * step) {
    i64 from[U], to[U];
    Word v[U];
    Prologue places;
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= all) continue;
      u32 rest = u + k * step;
      from[k] = to[k] = 0;
#pragma unroll
      for (int d = R - 1; d >= 0; d--) {
        const bool last = d == R - 1;
        const u32 size = last ? inner : u32(n[d]),
                  q = d ? quotient(rest, size, last ? per : pers[d]) : 0,
                  c = (rest - q * size) * (last ? count : 1);
        from[k] += i64(c) * xs[d];
        if (!RUN) to[k] += i64(c) * ys[d];
        rest = q;
      }
      places.need(from[k]), places.need(to[k]);
    }
    places.wait();
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < all) v[k] = load<count>(x + from[k]);
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < all)
        store<count>(y + (RUN ? i64(u + k * step) * count : to[k]), v[k]);
  }
  if (R == 1 && count > 1) {  // the rest of a plain run
    const int done = int(all) * count, k = done + threadIdx.x;
    pdl_wait();
    if (blockIdx.x == 0 && k < n[0]) y[k] = x[k];
  }
}

// Threads, in whole CTAs, for the pieces of `total` elements at any alignment.
template <int V>
DEV u32 ahead(u32 total) {
  return ((total + V - 1) / V + 256) / 256 * 256;
}

// Offsets in x and y of row `rest`; rows count all dims but the last.
template <int R>
DEV void place_of_row(u32 rest, const int (&n)[R], const u32 (&pers)[R], const i64 (&xs)[R],
                      const i64 (&ys)[R], i64& from, i64& to) {
  from = to = 0;
#pragma unroll
  for (int d = R - 2; d >= 0; d--) {
    const u32 q = d ? quotient(rest, n[d], pers[d]) : 0, c = rest - q * n[d];
    from += c * xs[d], to += c * ys[d];
    rest = q;
  }
}

// y is one run: a thread gathers one piece of it in an iteration, from any strides of x.
template <class E, int R>
DEV void copy_flat(const E* x, E* y, u32 total, const int (&n)[R], const u32 (&pers)[R],
                   const i64 (&xs)[R]) {
  constexpr int V = 16 / sizeof(E);
  const int before = misalignment<V>(y);
  const i64 step = xs[R - 1];
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u * V < total + before;
       u += gridDim.x * blockDim.x) {
    const int lo = u ? 0 : before, hi = int(min(total + before - u * V, u32(V)));
    u32 rest = u * V + lo - before;
    i64 from = 0;
    int c[R];
    Prologue places;
#pragma unroll
    for (int d = R - 1; d >= 0; d--) {
      const u32 q = d ? quotient(rest, n[d], pers[d]) : 0;
      c[d] = int(rest - q * n[d]);
      from += c[d] * xs[d];
      rest = q;
    }
    places.need(from);
    places.wait();
    Vec<E, V> v;
    if (step == 1 && hi - lo == V && c[R - 1] + V <= n[R - 1]) {
      v = load_unaligned_vector<V>(x + from);
    } else {
#pragma unroll
      for (int j = 0; j < V; j++) {
        v.v[j] = x[from];
        if (j < lo || j + 1 >= hi) continue;
        from += step, c[R - 1]++;
#pragma unroll
        for (int d = R - 1; d > 0; d--) {
          if (c[d] < n[d]) break;
          from += xs[d - 1] - n[d] * xs[d];
          c[d] = 0, c[d - 1]++;
        }
      }
    }
    store_part<V>(y + i64(u) * V - before, v, lo, hi);
  }
}

// Copies a run of n elements. Elements outside whole pieces of y have a thread each.
template <class E>
DEV void copy_run(const E* x, E* y, u32 n) {
  constexpr int V = 16 / sizeof(E);
  const u32 head = min(u32(-misalignment<V>(y) & (V - 1)), n), pieces = (n - head) / V,
            first = blockIdx.x * blockDim.x + threadIdx.x;
  pdl_wait_after(first, pieces);
  if (first < 2 * V) {
    const u32 k = first < V ? first : head + pieces * V + first - V;
    if (first < V ? k < head : k < n) y[k] = x[k];
  }
  for (u32 u = first; u < pieces; u += gridDim.x * blockDim.x)
    store_vector<V>(y + head + u * V, load_unaligned_vector<V>(x + head + u * V));
}

// Copies piece k of a row of n elements, which are `step` apart in x.
template <class E>
DEV void copy_piece(const E* x, i64 step, E* y, int n, int k) {
  constexpr int V = 16 / sizeof(E);
  const int first = k * V - misalignment<V>(y), lo = -first, hi = n - first;
  if (hi <= 0) return;
  Vec<E, V> v;
  if (step == 1 && lo <= 0 && hi >= V) {
    v = load_unaligned_vector<V>(x + first);
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) v.v[j] = x[min(max(first + j, 0), n - 1) * step];
  }
  store_part<V>(y + first, v, lo, hi);
}

// Most pieces of a row; even: every row is aligned to a piece.
template <class E>
DEV u32 pieces_of(int n, bool even) {
  return u32(n + 16 / sizeof(E) - 1) / u32(16 / sizeof(E)) + !even;
}

// y is one run and long rows of x are runs: a thread per piece within a row; pieces that span two
// rows have a thread per element, numbered after the others.
template <class E, int R>
DEV void copy_pieces(const E* x, E* y, u32 total, const int (&n)[R], const u32 (&pers)[R],
                     const i64 (&xs)[R], const i64 (&ys)[R]) {
  constexpr int V = 16 / sizeof(E);
  const u32 pieces = ahead<V>(total), u = blockIdx.x * blockDim.x + threadIdx.x,
            before = misalignment<V>(y), width = n[R - 1], edge = before + (u - pieces) / V * width;
  const u32 e = u < pieces ? u * V - before : edge / V * V + u % V - before,
            row = quotient(e, width, pers[R - 1]), c = e - row * width;
  if (u < pieces ? u * V < before || e + V > total || c + V > width : edge % V == 0 || e >= total)
    return;
  i64 from, to;
  place_of_row(row, n, pers, xs, ys, from, to);
  pdl_wait_after(from);
  if (u < pieces)
    store_vector<V>(y + e, load_unaligned_vector<V>(x + from + c));
  else
    y[e] = x[from + c];
}

// Rows of y are runs: a thread per piece.
template <class E, int R>
DEV void copy_rows(const E* x, E* y, u32 total, const int (&n)[R], const u32 (&pers)[R],
                   const i64 (&xs)[R], const i64 (&ys)[R]) {
  u64 low = u64(y);
#pragma unroll
  for (int d = 0; d < R - 1; d++) low |= u64(ys[d]) * sizeof(E);
  const u32 pieces = pieces_of<E>(n[R - 1], (low & 15) == 0), all = total / n[R - 1] * pieces;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < all; u += gridDim.x * blockDim.x) {
    const u32 rest = u / pieces;
    const int k = int(u - rest * pieces);
    i64 from, to;
    Prologue places;
    place_of_row(rest, n, pers, xs, ys, from, to);
    places.need(from), places.need(to);
    places.wait();
    copy_piece(x + from, xs[R - 1], y + to, n[R - 1], k);
  }
}

// Long rows that are no runs in x: a warp copies 32 * LANE_WORDS elements of a row, neighbouring
// lanes neighbouring elements, so that a load touches few cache lines.
template <class E, int R>
DEV void copy_lanes(const E* x, E* y, u32 total, const int (&n)[R], const u32 (&pers)[R],
                    const i64 (&xs)[R], const i64 (&ys)[R]) {
  const u32 parts = (n[R - 1] + 32 * LANE_WORDS - 1) / (32 * LANE_WORDS),
            all = total / n[R - 1] * parts;
  for (u32 u = (blockIdx.x * blockDim.x + threadIdx.x) / 32; u < all;
       u += gridDim.x * blockDim.x / 32) {
    const u32 rest = u / parts;
    const int first = int(u - rest * parts) * (32 * LANE_WORDS) + (threadIdx.x & 31),
              left = n[R - 1] - first;
    i64 from, to;
    Prologue places;
    place_of_row(rest, n, pers, xs, ys, from, to);
    from += first * xs[R - 1], to += first * ys[R - 1];
    places.need(from), places.need(to);
    places.wait();
    E v[LANE_WORDS];
#pragma unroll
    for (int j = 0; j < LANE_WORDS; j++)
      if (32 * j < left) v[j] = x[from + 32 * j * xs[R - 1]];
#pragma unroll
    for (int j = 0; j < LANE_WORDS; j++)
      if (32 * j < left) y[to + 32 * j * ys[R - 1]] = v[j];
  }
}

template <int R>
DEV u32 product_of(const int (&n)[R]) {
  u32 total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= n[d];
  return total;
}
// Chooses among the ways above. pers, per_wide, per_word: reciprocals (`quotient`) of n, and of the
// last dim in units of 16 and 4 bytes. FEW: whether there are at most SMALL elements (-1: unknown).
template <class E, int R, int FEW>
DEV void copy_strided(const E* x, E* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R],
                      const u32 (&pers)[R], u32 per_wide, u32 per_word) {
  constexpr int size = sizeof(E), V = 16 / size, F = size < 4 ? 4 / size : 1;
  u64 low = u64(x) | u64(y), total = 1;
  bool run = true;
#pragma unroll
  for (int d = R - 1; d >= 0; d--) {
    run &= ys[d] == i64(total);
    total *= u64(n[d]);
    if (d < R - 1) low |= u64(xs[d] | ys[d]) * size;
  }
  const int last = n[R - 1];
  if (R > 1) low |= u64(last) * size;
  if (xs[R - 1] != 1 || ys[R - 1] != 1) low = 1;
  const u32 all = u32(total);
  if (total >> 31)
    copy_words<E, R, u64>(x, y, n, xs, ys);
  else if ((low & 15) == 0)
    copy_wide<R == 1 ? 4 : 2, 16>(x, y, all / V, n, last / V, pers, per_wide, xs, ys);
  else if (R == 1 && run && xs[0] == 1)
    copy_run(x, y, all);
  else if (FEW && F > 1 && (low & 3) == 0 && all <= SMALL)
    copy_wide<SINGLE, (size < 4 ? 4 : size)>(x, y, all / F, n, last / F, pers, per_word, xs, ys);
  else if (FEW == 1 || (FEW && all <= SMALL))
    copy_wide<SINGLE, size>(x, y, all, n, last, pers, pers[R - 1], xs, ys);
  else if (last >= LONG && (ys[R - 1] != 1 || u64(xs[R - 1]) > 1))
    copy_lanes<E, R>(x, y, all, n, pers, xs, ys);
  else if (ys[R - 1] == 1 && (size == 8 || u64(xs[R - 1]) > 1))
    copy_wide<SINGLE, size>(x, y, all, n, last, pers, pers[R - 1], xs, ys);
  else if (run)
    copy_flat<E, R>(x, y, all, n, pers, xs);
  else if (ys[R - 1] == 1)
    copy_rows<E, R>(x, y, all, n, pers, xs, ys);
  else
    copy_words<E, R, u32>(x, y, n, xs, ys);
}

// One of several copies in one launch: [n0, n1, n2] elements, where n2 is a run of y. block: index
// of the CTA within this copy. single: a thread per element, else per piece. units: threads per
// row; per: their reciprocal.
template <class E>
struct Part {
  const E* x;
  E* y;
  u32 block;
  int n0, n1, n2, single;
  u32 units, per_n1, per;
  i64 x0, x1, x2, y0, y1;
};
template <class E>
DEV void copy_part(const Part<E>& p) {
  const u64 unit = u64(p.block) * blockDim.x + threadIdx.x;
  const u64 row = unit >> 31 ? unit / p.units : quotient(u32(unit), p.units, p.per);
  if (row >= u64(p.n0) * p.n1) return;
  const u32 outer = u32(row >> 31 ? row / p.n1 : quotient(u32(row), p.n1, p.per_n1)),
            c = u32(row - u64(outer) * p.n1);
  const int k = int(unit - row * p.units);
  const E* x = p.x + outer * p.x0 + c * p.x1;
  E* y = p.y + outer * p.y0 + c * p.y1;
  if (p.single) x += k * p.x2, y += k;
  pdl_wait_after(x, y);
  if (p.single)
    *y = *x;
  else
    copy_piece(x, p.x2, y, p.n2, k);
}

typedef Vec<u32, 4> Words;
// Concatenation along the last axis: a row of y is a row of each of P tensors; y is one run.
template <class E, int P>
struct Concatenation {
  const E* x[P];
  i64 pitch[P];
  int end[P];
};  // where columns of a tensor end in y
// Address of element c of y's row in its tensor; end: where that tensor's columns end in y.
template <class E, int P>
DEV const E* source_of(const Concatenation<E, P>& p, u32 row, int c, int& end) {
  const E* x = p.x[0];
  i64 pitch = p.pitch[0];
  end = p.end[0];
#pragma unroll
  for (int k = 1; k < P; k++)
    if (c >= p.end[k - 1]) x = p.x[k] - p.end[k - 1], pitch = p.pitch[k], end = p.end[k];
  return x + row * pitch + c;
}
// A thread has U elements in flight; neighbouring threads have neighbouring elements.
template <int U, class E, int P>
DEV void concatenate(const Concatenation<E, P>& p, E* y, u32 total, u32 per) {
  const u32 first = blockIdx.x * (blockDim.x * U) + threadIdx.x, width = p.end[P - 1];
  const E* from[U];
  Prologue places;
#pragma unroll
  for (int k = 0; k < U; k++) {
    const u32 u = min(first + k * blockDim.x, total - 1), row = quotient(u, width, per);
    int end;
    from[k] = source_of(p, row, int(u - row * width), end), places.need(from[k]);
  }
  places.wait();
  E v[U];
#pragma unroll
  for (int k = 0; k < U; k++) v[k] = *from[k];
#pragma unroll
  for (int k = 0; k < U; k++)
    if (first + k * blockDim.x < total) y[first + k * blockDim.x] = v[k];
}
// Long rows of small elements: a thread per piece within one row of one tensor. Pieces that span a
// boundary have a thread per element, numbered after the others.
template <class E, int P>
DEV void concatenate_pieces(const Concatenation<E, P>& p, E* y, u32 total, u32 per) {
  constexpr int V = 16 / sizeof(E);
  const u32 pieces = ahead<V>(total);
  const u32 u = blockIdx.x * blockDim.x + threadIdx.x, before = misalignment<V>(y),
            width = p.end[P - 1];
  int end;
  if (u < pieces) {
    const u32 start = u * V - before, row = quotient(start, width, per);
    const int c = int(start - row * width);
    if (u * V < before || start + V > total) return;
    const E* from = source_of(p, row, c, end);
    if (c + V > end) return;
    pdl_wait_after(from);
    store_vector<V>(y + start, load_unaligned_vector<V>(from));
  } else {
    const u32 edge = (u - pieces) / V, r = edge / P, k = edge - r * P;
    u32 at = before + r * width;  // where tensor k begins in row r; where all of y ends
#pragma unroll
    for (int j = 1; j < P; j++)
      if (k == j) at += p.end[j - 1];
    const u32 e = at / V * V + u % V - before;
    if (at % V == 0 || e >= total) return;
    const u32 row = quotient(e, width, per);
    const E* from = source_of(p, row, int(e - row * width), end);
    pdl_wait_after(from);
    y[e] = *from;
  }
}

// `count` elements of E whose bits are the low bytes of `value`.
template <class E>
DEV void fill(E* y, i64 count, i64 value) {
  const i64 first = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
  constexpr int per = 16 / sizeof(E);
  i64 done = 0;
  if (aligned(y, 16)) {
    Vec<E, per> v;
#pragma unroll
    for (int j = 0; j < per; j++) v.v[j] = E(value);
    for (i64 k = first; k < count / per; k += step) store<per>(y + k * per, v);
    done = count / per * per;
  }
  for (i64 k = done + first; k < count; k += step) y[k] = E(value);
}

// --- channels-last
struct Image {
  int C, H, W, cs;
  i64 rs, ns;
};  // pitches of the channels-last side
DEV i64 pixel(const Image& g, int p) { return i64(p / g.W) * g.rs + i64(p % g.W) * g.cs; }

// The grid is image x channel tile x pixel tile.
template <bool TO_NHWC, class E>
DEV void change_layout(const E* x, E* y, Image g) {
  const u32 plane = g.H * g.W, tiles = (plane + 63) / 64, bands = (g.C + 63) / 64;
  const int p0 = blockIdx.x % tiles * 64, c0 = blockIdx.x / tiles % bands * 64;
  const i64 image = blockIdx.x / tiles / bands;
  const int pixels = min(int(plane) - p0, 64), channels = min(g.C - c0, 64);
  if (TO_NHWC) {
    x += (image * g.C + c0) * plane + p0, y += image * g.ns + c0;
    transpose_tile<E, 64>(
        channels, pixels, [&](int r) { return x + i64(r) * plane; },
        [&](int c) { return y + pixel(g, p0 + c); });
  } else {
    x += image * g.ns + c0, y += (image * g.C + c0) * plane + p0;
    transpose_tile<E, 64>(
        pixels, channels, [&](int r) { return x + pixel(g, p0 + r); },
        [&](int c) { return y + i64(c) * plane; });
  }
}

// Few channels: a thread per pixel. Writing NHWC, pad channels up to whole vectors become zero.
template <bool TO_NHWC, int C, class E>
DEV void change_narrow(const E* x, E* y, Image g, int images) {
  constexpr int V = 16 / sizeof(E), padded = (C + V - 1) / V * V;
  const int plane = g.H * g.W;
  const E* const nhwc = TO_NHWC ? y : x;
  const bool wide = aligned(nhwc, 16) && ((g.cs | g.rs | g.ns) & (V - 1)) == 0;
  auto turn = [&](auto u) {
    const i64 image = u / decltype(u)(plane);
    const int p = int(u - image * plane);
    const i64 packed = image * g.ns + pixel(g, p), planar = image * C * plane + p;
    Vec<E, V> v[padded / V]{};
    pdl_wait_after(packed, planar);
    if (TO_NHWC) {
#pragma unroll
      for (int c = 0; c < C; c++) v[c / V].v[c % V] = x[planar + i64(c) * plane];
      if (wide) {
#pragma unroll
        for (int k = 0; k < padded / V; k++) store<V>(y + packed + k * V, v[k]);
      } else {
#pragma unroll
        for (int c = 0; c < C; c++) y[packed + c] = v[c / V].v[c % V];
      }
    } else {
      if (wide) {
#pragma unroll
        for (int k = 0; k < padded / V; k++) v[k] = load<V>(x + packed + k * V);
      } else {
#pragma unroll
        for (int c = 0; c < C; c++) v[c / V].v[c % V] = x[packed + c];
      }
#pragma unroll
      for (int c = 0; c < C; c++) y[planar + i64(c) * plane] = v[c / V].v[c % V];
    }
  };
  const u64 all = u64(images) * plane, step = u64(gridDim.x) * blockDim.x;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < all; u += step)
    if (all >> 31)
      turn(u);
    else
      turn(u32(u));
}

// Zeroes the border [-PT, H+PB) x [-PL, W+PR) around the H x W pixels of each image; cs: elements
// of a pixel.
template <class E>
DEV void zero_border(E* y, int images, int H, int W, int PT, int PL, int PB, int PR, int cs, i64 rs,
                     i64 ns) {
  const int height = H + PT + PB, width = W + PL + PR;
  const i64 total = i64(images) * height * width * cs;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const int c = int(u % cs), w = int(u / cs % width) - PL, h = int(u / cs / width % height) - PT;
    if (w < 0 || w >= W || h < 0 || h >= H)
      y[u / cs / width / height * ns + h * rs + i64(w) * cs + c] = E(0);
  }
}

// y[k] = start + k * delta.
template <class E>
DEV void count_up(E* y, i64 count, i64 start, i64 delta) {
  for (i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x; k < count;
       k += i64(gridDim.x) * blockDim.x)
    y[k] = E(start + k * delta);
}
