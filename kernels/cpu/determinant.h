// Determinants, by elimination with the largest pivots.
#pragma once
#include <cmath>

#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace determinant {

namespace f = fam::determinant;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t count = l.i[f::count], n = l.i[f::n];
  return count ? even_tasks(count, count * (16 + n * n * (n + 2)), threads) : 0;
}

static size_t scratch(const Launch& l, int) {
  return l.i[f::count] ? size_t(l.i[f::n] * l.i[f::n]) * sizeof(float) : 0;
}

static double of(float* a, int64_t n) {
  double found = 1.;
  for (int64_t k = 0; k < n; k++) {
    float* const head = a + k * n;
    int64_t pivot = k;
    for (int64_t r = k + 1; r < n; r++)
      if (std::fabs(a[r * n + k]) > std::fabs(a[pivot * n + k])) pivot = r;
    if (pivot != k) {
      for (int64_t c = k; c < n; c++) {
        const float held = head[c];
        head[c] = a[pivot * n + c];
        a[pivot * n + c] = held;
      }
      found = -found;
    }
    found *= head[k];
    if (head[k] == 0.f) continue;
    for (int64_t r = k + 1; r < n; r++) {
      float* const row = a + r * n;
      const vf part = splat(-row[k] / head[k]);
      int64_t c = k + 1;
      for (; c + W <= n; c += W) store(row + c, fma(part, load(head + c), load(row + c)));
      if (c < n)
        store_n(row + c, fma(part, load_n(head + c, int(n - c)), load_n(row + c, int(n - c))),
                int(n - c));
    }
  }
  return found;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  const int64_t size = l.i[f::n] * l.i[f::n], count = l.i[f::count];
  for (int64_t m = task_begin(count, task, tasks); m < task_begin(count, task + 1, tasks); m++) {
    memcpy(memory, (const float*)l.buf[f::x] + m * size, size_t(size) * sizeof(float));
    ((float*)l.buf[f::y])[m] = float(of((float*)memory, l.i[f::n]));
  }
}

}  // namespace determinant

static const Kernel kernel_determinant = {"determinant", determinant::tasks, determinant::scratch,
                                          determinant::run};
static const Kernel* const table_determinant[] = {&kernel_determinant, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
