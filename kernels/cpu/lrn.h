// Local response normalization of channels-last images: y[c] = x[c] * (bias + alpha / size * sum of
// x^2 over the `size` channels around c) ^ -beta.
#pragma once
#include <cmath>

#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace lrn {

namespace f = fam::lrn;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t pixels = l.i[f::N] * l.i[f::H] * l.i[f::W];
  return pixels && l.i[f::C] ? even_tasks(pixels, 20 * pixels * l.i[f::C], threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t h = l.i[f::H], w = l.i[f::W], channels = l.i[f::C], size = l.i[f::size],
                pixels = l.i[f::N] * h * w, ahead = size / 2, behind = (size - 1) / 2;
  for (int64_t p = task_begin(pixels, task, tasks); p < task_begin(pixels, task + 1, tasks); p++) {
    const float* const x = (const float*)l.buf[f::x] + p / (h * w) * l.i[f::x_ns] +
                           p / w % h * l.i[f::x_rs] + p % w * l.i[f::x_cs];
    float* const y = (float*)l.buf[f::y] + p / (h * w) * l.i[f::y_ns] + p / w % h * l.i[f::y_rs] +
                     p % w * l.i[f::y_cs];
    for (int64_t c = 0; c < channels; c++) {
      const int64_t first = c > behind ? c - behind : 0,
                    last = channels - 1 - c > ahead ? c + ahead : channels - 1;
      float sum = 0.f;
      for (int64_t k = first; k <= last; k++) sum += x[k] * x[k];
      y[c] = x[c] * powf(l.f[f::bias] + l.f[f::alpha] / float(size) * sum, -l.f[f::beta]);
    }
  }
}

}  // namespace lrn

static const Kernel kernel_lrn = {"lrn", lrn::tasks, nullptr, lrn::run};
static const Kernel* const table_lrn[] = {&kernel_lrn, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
