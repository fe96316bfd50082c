// The largest or smallest elements along an axis of [outer, n, inner], in order: a heap of keys for
// each row.
#pragma once
#include "common/keys.h"
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace topk {

namespace f = fam::topk;

// A heap of keys with the smallest on top: the key at `at` sinks to its place.
static inline void sink(uint64_t* heap, int64_t count, int64_t at) {
  const uint64_t key = heap[at];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count) child += heap[child + 1] < heap[child];
    if (key < heap[child]) break;
    heap[at] = heap[child];
  }
  heap[at] = key;
}

// Of elements those that may come before `value`.
static inline vi before(vf v, float value, bool largest) {
  return largest ? ~(v <= splat(value)) : ~(v >= splat(value));
}
static inline vi before(vf v, int32_t value, bool largest) {
  return largest ? bits_i(v) > value : bits_i(v) < value;
}
// The same of a row's elements from j on, W at most, as bits.
template <class T>
static inline uint32_t candidates(const T* x, int64_t j, int64_t n, T value, bool largest) {
  const auto bits = [&](const T* p) {
    return lane_bits(before(load((const float*)p), value, largest));
  };
  if (j + W <= n) return bits(x + j);
  if (n >= W) return bits(x + n - W) >> (j - (n - W));
  T some[W] = {};
  for (int64_t k = j; k < n; k++) some[k - j] = x[k];
  return bits(some) & ((1u << (n - j)) - 1);
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::inner];
  return rows && l.i[f::k] ? even_tasks(rows, rows * (l.i[f::n] + 16 * l.i[f::k]), threads) : 0;
}

static size_t scratch(const Launch& l, int) {
  const int64_t k = l.i[f::k] < l.i[f::n] ? l.i[f::k] : l.i[f::n];
  if (!l.i[f::outer] || !l.i[f::inner]) return 0;
  return size_t(k) * sizeof(uint64_t) + (l.i[f::inner] > 1 ? size_t(l.i[f::n]) * 4 : 0);
}

template <class T>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks, uint64_t* heap) {
  const int64_t n = l.i[f::n], k = l.i[f::k], inner = l.i[f::inner], rows = l.i[f::outer] * inner;
  const uint32_t flip = l.i[f::largest] ? 0 : 0xffffffffu;
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const T* x = (const T*)l.buf[f::x] + r / inner * n * inner + r % inner;
    if (inner > 1) {  // a column is copied to where its elements are neighbours
      T* const column = (T*)(heap + k);
      for (int64_t j = 0; j < n; j++) column[j] = x[j * inner];
      x = column;
    }
    const int64_t to = r / inner * k * inner + r % inner;
    for (int64_t j = 0; j < k; j++) heap[j] = key_of(ordered(x[j]) ^ flip, j);
    for (int64_t j = k / 2 - 1; j >= 0; j--) sink(heap, k, j);
    const auto meet = [&](int64_t j) {
      const uint64_t key = key_of(ordered(x[j]) ^ flip, j);
      if (key < heap[0]) return;
      heap[0] = key;
      sink(heap, k, 0);
    };
    for (int64_t j = k; j < n; j += W)
      for (uint32_t bits = candidates(x, j, n, x[place_of(heap[0])], !flip); bits; bits &= bits - 1)
        meet(j + __builtin_ctz(bits));
    for (int64_t left = k; left > 0; left--) {
      const int64_t at = to + (left - 1) * inner, place = place_of(heap[0]);
      if (l.buf[f::y]) ((T*)l.buf[f::y])[at] = x[place];
      if (l.buf[f::at]) ((int64_t*)l.buf[f::at])[at] = place;
      heap[0] = heap[left - 1];
      sink(heap, left - 1, 0);
    }
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  if (l.i[f::k] > l.i[f::n] || l.i[f::n] > 0xffffffff) {  // places fill half a key
    *l.error = 1;
    return;
  }
  if (l.i[f::dtype] == kI32)
    run_as<int32_t>(l, task, tasks, (uint64_t*)memory);
  else
    run_as<float>(l, task, tasks, (uint64_t*)memory);
}

}  // namespace topk

static const Kernel kernel_topk = {"topk", topk::tasks, topk::scratch, topk::run};
static const Kernel* const table_topk[] = {&kernel_topk, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
