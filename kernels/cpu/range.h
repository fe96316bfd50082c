// Index tensors: y[j] = start + j * delta, and gathering single elements along an axis.
#pragma once
#include <algorithm>

#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace range {

namespace f = fam::range;

static int64_t tasks(const Launch& l, int) { return l.i[f::count] > 0 ? 1 : 0; }
static void run(const Launch& l, int64_t, int64_t, void*) {
  for (int64_t j = 0; j < l.i[f::count]; j++) {
    const int64_t v = l.i[f::start] + j * l.i[f::delta];
    if (l.i[f::dtype] == kI32)
      ((int32_t*)l.buf[f::y])[j] = int32_t(v);
    else if (l.i[f::dtype] == kF32)
      ((float*)l.buf[f::y])[j] = float(v);
    else
      ((int64_t*)l.buf[f::y])[j] = v;
  }
}

}  // namespace range

namespace gather_elements {

namespace f = fam::gather_elements;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::count];
  return rows && l.i[f::inner] ? even_tasks(rows, 2 * rows * l.i[f::inner], threads) : 0;
}

// Indices e to end, of which each row of `columns` points into a part of x of its own.
template <class T, class Index>
static inline void run_as(const Launch& l, const Index* idx, int64_t e, int64_t end) {
  const int64_t inner = l.i[f::inner], columns = l.i[f::count] * inner, n = l.i[f::n];
  T* const y = (T*)l.buf[f::y];
  const auto found = [&](int64_t k, const T* x, int64_t step) {
    int64_t at = idx[k];
    at += at < 0 ? n : 0;
    if (uint64_t(at) < uint64_t(n))
      y[k] = x[at * step];
    else
      y[k] = T(), *l.error = 1;
  };
  while (e < end) {
    const int64_t part = e / columns, last = std::min(end, (part + 1) * columns);
    const T* const x = (const T*)l.buf[f::x] + part * n * inner;
    if (inner == 1) {
#pragma GCC unroll 4
      for (int64_t k = e; k < last; k++) found(k, x, 1);
      e = last;
    }
    for (; e < last; e += inner)
      for (int64_t k = 0; k < inner; k++) found(e + k, x + k, inner);
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t rows = l.i[f::outer] * l.i[f::count], inner = l.i[f::inner],
                begin = task_begin(rows, task, tasks) * inner,
                end = task_begin(rows, task + 1, tasks) * inner;
  with_element(l.i[f::elem], [&](auto zero) {
    if (l.i[f::idx_dtype] == kI32)
      run_as<decltype(zero)>(l, (const int32_t*)l.buf[f::idx], begin, end);
    else
      run_as<decltype(zero)>(l, (const int64_t*)l.buf[f::idx], begin, end);
  });
}

}  // namespace gather_elements

static const Kernel kernel_range = {"range", range::tasks, nullptr, range::run};
static const Kernel kernel_gather_elements = {"gather_elements", gather_elements::tasks, nullptr,
                                              gather_elements::run};
static const Kernel* const table_range[] = {&kernel_range, &kernel_gather_elements, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
