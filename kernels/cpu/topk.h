// The largest or smallest elements along an axis of [outer, n, inner], in order: a heap of keys for
// each row.
#pragma once
#include <cstring>

#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace topk {

namespace f = fam::topk;

// A number in the order of the values (NaN above all, both zeros one).
static inline uint32_t ordered(float v) {
  if (v != v) return 0xffffffffu;
  uint32_t bits;
  v = v == 0.f ? 0.f : v;
  memcpy(&bits, &v, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
static inline uint32_t ordered(int32_t v) { return uint32_t(v) ^ 0x80000000u; }

// An element and its place: larger for what comes first.
static inline uint64_t key_of(uint32_t value, int64_t place) {
  return uint64_t(value) << 32 | (0xffffffffu - uint64_t(place));
}
static inline int64_t place_of(uint64_t key) { return int64_t(0xffffffffu - (key & 0xffffffffu)); }

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

constexpr int64_t kBlock = 4 * W;  // elements that are compared at once

// Whether all elements of a block come behind `value`, as far as a comparison of them tells.
template <class T>
static inline bool none_before(const T*, T, bool) {
  return false;
}
static inline bool none_before(const float* x, float value, bool largest) {
  vi some{};
  for (int64_t k = 0; k < kBlock; k += W) {
    const vf v = load(x + k);
    some |= largest ? ~(v <= splat(value)) : ~(v >= splat(value));
  }
  uint64_t bits[W / 2], any = 0;
  memcpy(bits, &some, sizeof some);
  for (uint64_t b : bits) any |= b;
  return !any;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::inner];
  return rows && l.i[f::k] ? even_tasks(rows, rows * (l.i[f::n] + 16 * l.i[f::k]), threads) : 0;
}

static size_t scratch(const Launch& l, int) {
  const int64_t k = l.i[f::k] < l.i[f::n] ? l.i[f::k] : l.i[f::n];
  return l.i[f::outer] && l.i[f::inner] ? size_t(k) * sizeof(uint64_t) : 0;
}

template <class T>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks, uint64_t* heap) {
  const int64_t n = l.i[f::n], k = l.i[f::k], inner = l.i[f::inner], rows = l.i[f::outer] * inner;
  const uint32_t flip = l.i[f::largest] ? 0 : 0xffffffffu;
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const T* const x = (const T*)l.buf[f::x] + r / inner * n * inner + r % inner;
    const int64_t to = r / inner * k * inner + r % inner;
    for (int64_t j = 0; j < k; j++) heap[j] = key_of(ordered(x[j * inner]) ^ flip, j);
    for (int64_t j = k / 2 - 1; j >= 0; j--) sink(heap, k, j);
    for (int64_t j = k; j < n;) {
      const int64_t end = inner == 1 && j + kBlock <= n ? j + kBlock : j + 1;
      if (end > j + 1 && none_before(x + j, x[place_of(heap[0])], !flip)) j = end;
      for (; j < end; j++) {
        const uint64_t key = key_of(ordered(x[j * inner]) ^ flip, j);
        if (key < heap[0]) continue;
        heap[0] = key;
        sink(heap, k, 0);
      }
    }
    for (int64_t left = k; left > 0; left--) {
      const int64_t at = to + (left - 1) * inner, place = place_of(heap[0]);
      if (l.buf[f::y]) ((T*)l.buf[f::y])[at] = x[place * inner];
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
