// Padding.
#pragma once
#include "common/vector_io.cuh"

enum { kConstant, kReflect, kEdge, kWrap };

// Index of the element (of m along the axis) that is read at position `at`; -1: fill.
template <int MODE>
DEV int read_at(int at, int m) {
  if (u32(at) < u32(m)) return at;
  if (MODE == kConstant || m == 0) return -1;
  if (MODE == kEdge) return at < 0 ? 0 : m - 1;
  if (MODE == kReflect) return min(max(at < 0 ? -at : 2 * m - 2 - at, 0), m - 1);
  at %= m;
  return at < 0 ? at + m : at;
}

// An axis of the result: n words, p of them before the m words of the source; per: reciprocal of n
// (`quotient`); strides in source and result.
struct Axis {
  int n, m, p;
  u32 per;
  i64 x, y;
};
// A row along the last axis: its offsets in the source (NONE: all fill) and in the result.
constexpr i64 NONE = -(i64(1) << 62);
struct Row {
  i64 from, to;
};

// The row of word k of the result, and its position c in it.
template <int MODE, class I, int R>
DEV Row row_of(const Axis (&axes)[R], I k, int& c) {
  Row row{0, 0};
#pragma unroll
  for (int d = R - 1; d >= 0; d--) {
    const I q = d ? quotient(k, I(axes[d].n), axes[d].per) : 0;
    const int mine = int(k - q * I(axes[d].n));
    k = q;
    if (d == R - 1) {
      c = mine;
      continue;
    }
    const int s = read_at<MODE>(mine - axes[d].p, axes[d].m);
    row.from = s < 0 || row.from == NONE ? NONE : row.from + i64(s) * axes[d].x,
    row.to += i64(mine) * axes[d].y;
  }
  return row;
}

// A thread has U vectors of V consecutive words in flight. V > 1 needs a result that is one aligned
// run.
template <int MODE, int V, int U, class I, class Word, int R>
DEV void pad_words(const Word* x, Word* y, Word fill, const Axis (&axes)[R], I total) {
  const Axis last = axes[R - 1];
  const I step = I(gridDim.x) * blockDim.x, units = (total + V - 1) / V;
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < units; u += U * step) {
    i64 from[U][V], to[U];
    Prologue places;
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= units) continue;
      const I first = (u + k * step) * V;
      int c;
      Row row = row_of<MODE>(axes, first, c);
      to[k] = V > 1 ? i64(first) : row.to + i64(c) * last.y;
#pragma unroll
      for (int j = 0; j < V; j++, c++) {
        if (j && c == last.n) row = row_of<MODE>(axes, first + j, c);
        const int s = read_at<MODE>(c - last.p, last.m);
        from[k][j] = s < 0 || row.from == NONE ? NONE : row.from + i64(s) * last.x;
        places.need(from[k][j]);
      }
      places.need(to[k]);
    }
    places.wait();
    Vec<Word, V> v[U];
#pragma unroll
    for (int k = 0; k < U; k++)
#pragma unroll
      for (int j = 0; j < V; j++)
        if ((u + k * step) * V + j < total) v[k].v[j] = from[k][j] == NONE ? fill : x[from[k][j]];
#pragma unroll
    for (int k = 0; k < U; k++) {
      const I first = (u + k * step) * V;
      if (first >= total) continue;
      if constexpr (V > 1)
        store_part<V>(y + first, v[k], 0, int(min(total - first, I(V))));
      else
        y[to[k]] = v[k].v[0];
    }
  }
}

template <int MODE, int V, int U, class Word, int R>
DEV void pad(const Word* x, Word* y, Word fill, const Axis (&axes)[R]) {
  u64 total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= axes[d].n;
  if (total >> 31)
    pad_words<MODE, V, U>(x, y, fill, axes, total);
  else
    pad_words<MODE, V, U>(x, y, fill, axes, u32(total));
  pdl_wait();
}
