// Sums up to each element along an axis of [outer, n, inner].
#pragma once
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace cumsum {

namespace f = fam::cumsum;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t outer = l.i[f::outer], each = l.i[f::n] * l.i[f::inner];
  return outer && each ? even_tasks(outer, outer * each, threads) : 0;
}

// Integers wrap around. Single rows of floats are summed in double, rows side by side as they are.
template <class T, class Sum, class Each>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  const int64_t n = l.i[f::n], inner = l.i[f::inner], outer = l.i[f::outer],
                step = l.i[f::reverse] ? -inner : inner, start = l.i[f::reverse] ? n - 1 : 0;
  for (int64_t o = task_begin(outer, task, tasks); o < task_begin(outer, task + 1, tasks); o++) {
    const T* x = (const T*)l.buf[f::x] + (o * n + start) * inner;
    T* y = (T*)l.buf[f::y] + (o * n + start) * inner;
    if (inner == 1) {
      Sum sum = 0;
      for (int64_t k = 0; k < n; k++, x += step, y += step) {
        const Sum before = sum;
        sum += Sum(*x);
        *y = T(l.i[f::exclusive] ? before : sum);
      }
      continue;
    }
    for (int64_t j = 0; j < inner; j++) y[j] = l.i[f::exclusive] ? T(0) : x[j];
    for (int64_t k = 1; k < n; k++) {
      const T* __restrict const before = y;
      const T* __restrict const more = l.i[f::exclusive] ? x : x + step;
      T* __restrict const to = y + step;
      for (int64_t j = 0; j < inner; j++) to[j] = T(Each(before[j]) + Each(more[j]));
      x += step, y += step;
    }
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  switch (l.i[f::dtype]) {
    case kI32: return run_as<int32_t, uint32_t, uint32_t>(l, task, tasks);
    case kI64: return run_as<int64_t, uint64_t, uint64_t>(l, task, tasks);
    default: return run_as<float, double, float>(l, task, tasks);
  }
}

}  // namespace cumsum

static const Kernel kernel_cumsum = {"cumsum", cumsum::tasks, nullptr, cumsum::run};
static const Kernel* const table_scan[] = {&kernel_cumsum, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
