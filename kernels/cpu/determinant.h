// Determinants, by elimination with the largest pivots.
#pragma once
#include <cmath>

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
  return l.i[f::count] ? size_t(l.i[f::n] * l.i[f::n]) * sizeof(double) : 0;
}

static double of(double* a, int64_t n) {
  double found = 1.;
  for (int64_t k = 0; k < n; k++) {
    int64_t pivot = k;
    for (int64_t r = k + 1; r < n; r++)
      if (std::fabs(a[r * n + k]) > std::fabs(a[pivot * n + k])) pivot = r;
    if (pivot != k) {
      for (int64_t c = k; c < n; c++) {
        const double held = a[k * n + c];
        a[k * n + c] = a[pivot * n + c];
        a[pivot * n + c] = held;
      }
      found = -found;
    }
    const double head = a[k * n + k];
    found *= head;
    if (head == 0.) continue;
    for (int64_t r = k + 1; r < n; r++) {
      const double part = a[r * n + k] / head;
      for (int64_t c = k + 1; c < n; c++) a[r * n + c] -= part * a[k * n + c];
    }
  }
  return found;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  const int64_t n = l.i[f::n], count = l.i[f::count];
  for (int64_t m = task_begin(count, task, tasks); m < task_begin(count, task + 1, tasks); m++) {
    double* const a = (double*)memory;
    for (int64_t e = 0; e < n * n; e++) a[e] = ((const float*)l.buf[f::x])[m * n * n + e];
    ((float*)l.buf[f::y])[m] = float(of(a, n));
  }
}

}  // namespace determinant

static const Kernel kernel_determinant = {"determinant", determinant::tasks, determinant::scratch,
                                          determinant::run};
static const Kernel* const table_determinant[] = {&kernel_determinant, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
