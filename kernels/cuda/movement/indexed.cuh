// Gather and scatter of tensors of up to five dims: by indices along one axis, or by index tuples.
//
// A negative index counts from the end. One out of range sets the fault word; nothing is read or
// written for it.
#pragma once
#include "common/base.cuh"

struct Dims {
  int n[5];
  i64 s[5];
  int m[5];
};  // of the indices; strides and extents of what they point into
DEV bool inside(i64& at, int extent) {
  if (at < 0) at += extent;
  return at >= 0 && at < extent;
}

// Offset that element u of the indices points to (its coordinate of AXIS replaced); -1: out of
// range.
template <int AXIS, class I, class Index>
DEV i64 along(I u, const Index* idx, const Dims& g) {
  i64 at = idx[u];
  bool found = inside(at, g.m[AXIS]);
  i64 to = at * g.s[AXIS];
#pragma unroll
  for (int k = 4; k >= 0; k--) {
    const I q = k ? u / I(g.n[k]) : 0;
    const int c = int(u - q * I(g.n[k]));
    u = q;
    if (k == AXIS) continue;
    found = found && c < g.m[k];
    to += i64(c) * g.s[k];
  }
  return found ? to : -1;
}
template <int AXIS, bool SCATTER, class E, class Index>
DEV void move_along(const E* from, const Index* idx, E* to, const Dims& g, u32* fault) {
  const u64 total = u64(g.n[0]) * g.n[1] * g.n[2] * g.n[3] * g.n[4];
  auto run = [&](auto zero) {
    typedef decltype(zero) I;
    for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < I(total);
         u += I(gridDim.x) * blockDim.x) {
      const i64 at = along<AXIS>(u, idx, g);
      if (at < 0) *fault = 1;
      if (SCATTER && at >= 0) to[at] = from[u];
      if (!SCATTER) to[u] = at < 0 ? E{} : from[at];
    }
  };
  if (total >> 31)
    run(u64(0));
  else
    run(u32(0));
}

// Rows of `inner` elements: row u is written to (SCATTER) or read from the address that tuple u of
// K indices gives. Every `each` tuples, addresses advance by `step` (batch dims).
template <int K, bool SCATTER, class E, class Index>
DEV void move_tuples(const E* from, const Index* idx, E* to, int count, int inner, int each,
                     i64 step, const Dims& g, u32* fault) {
  const u64 total = u64(count) * inner;
  auto run = [&](auto zero) {
    typedef decltype(zero) I;
    for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < I(total);
         u += I(gridDim.x) * blockDim.x) {
      const I row = u / I(inner);
      i64 at = u - row * I(inner) + i64(row / I(each)) * step;
      bool found = true;
#pragma unroll
      for (int k = 0; k < K; k++) {
        i64 i = idx[row * K + k];
        found = inside(i, g.m[k]) && found;
        at += i * g.s[k];
      }
      if (!found) *fault = 1;
      if (SCATTER && found) to[at] = from[u];
      if (!SCATTER) to[u] = found ? from[at] : E{};
    }
  };
  if (total >> 31)
    run(u64(0));
  else
    run(u32(0));
}
template <int K, class E, class Index>
DEV void scatter_tuples(const E* from, const Index* idx, E* to, int count, int inner, const Dims& g,
                        u32* fault) {
  move_tuples<K, true>(from, idx, to, count, inner, 1, 0, g, fault);
}
template <int K, class E, class Index>
DEV void gather_tuples(const E* from, const Index* idx, E* to, int count, int inner, int each,
                       i64 step, const Dims& g, u32* fault) {
  move_tuples<K, false>(from, idx, to, count, inner, each, step, g, fault);
}

// Triu (UPPER) or tril of matrices: the other elements become zero.
template <bool UPPER, class E>
DEV void triangle(const E* x, E* y, i64 total, int rows, int columns, int diagonal) {
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const i64 r = u / columns, past = u - r * columns - r % rows;
    y[u] = (UPPER ? past >= diagonal : past <= diagonal) ? x[u] : E{};
  }
}

// One-hot: y[o, d, i] = values[d == idx[o, i]]; negative indices count from the end.
template <class E, class Index>
DEV void one_hot(const Index* idx, const E* values, E* y, i64 total, int depth, int inner) {
  const E off = values[0], on = values[1];
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const i64 row = u / inner, o = row / depth, d = row - o * depth,
              at = idx[o * inner + (u - row * inner)];
    y[u] = (at < 0 ? at + depth : at) == d ? on : off;
  }
}
