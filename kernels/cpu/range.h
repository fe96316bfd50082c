// Index tensors: y[j] = start + j * delta, and gathering single elements along an axis.
#pragma once
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

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t inner = l.i[f::inner], count = l.i[f::count], n = l.i[f::n], elem = l.i[f::elem],
                rows = l.i[f::outer] * count;
  const char* const x = (const char*)l.buf[f::x];
  char* const y = (char*)l.buf[f::y];
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++)
    for (int64_t k = 0; k < inner; k++) {
      const int64_t e = r * inner + k;
      int64_t at = l.i[f::idx_dtype] == kI32 ? ((const int32_t*)l.buf[f::idx])[e]
                                             : ((const int64_t*)l.buf[f::idx])[e];
      if (at < 0) at += n;
      if (at < 0 || at >= n) {
        *l.error = 1;
        memset(y + e * elem, 0, size_t(elem));
        continue;
      }
      memcpy(y + e * elem, x + ((r / count * n + at) * inner + k) * elem, size_t(elem));
    }
}

}  // namespace gather_elements

static const Kernel kernel_range = {"range", range::tasks, nullptr, range::run};
static const Kernel kernel_gather_elements = {"gather_elements", gather_elements::tasks, nullptr,
                                              gather_elements::run};
static const Kernel* const table_range[] = {&kernel_range, &kernel_gather_elements, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
