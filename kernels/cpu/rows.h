// Kernels that work row by row: softmax and rotary embedding here, normalisations in common/norm.h,
// reductions in common/reduce.h.
#pragma once
#include <algorithm>
#include <type_traits>

#include "common/norm.h"
#include "common/reduce.h"

namespace tracea {
namespace TRACEA_NS {

static int64_t softmax_tasks(const Launch& l, int threads) {
  using namespace fam::softmax;
  return row_tasks(column_units(l.i[outer], std::max<int64_t>(l.i[inner], 0)),
                   l.i[outer] * l.i[n] * l.i[inner], threads);
}

// y = e^(x - max) / sum, or x - max - log(sum). A NaN, or +inf, or nothing but -inf, makes the
// whole row NaN, as in the plain formula.
static inline void softmax_row(const float* x, int64_t n, bool log, float* y) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const vf top = splat(fold_row(x, n, -inf, [](vf a, vf b) { return vmax(a, b); }));
  const int64_t whole = n / W * W;
  const int rest = int(n - whole);
  vf a{}, b{};
  auto keep = [&](int64_t j, vf e) {
    if (!log) store(y + j, e);
    return e;
  };
  int64_t j = 0;
  for (; j + 2 * W <= whole; j += 2 * W)
    a += keep(j, vexp_down(load(x + j) - top)), b += keep(j + W, vexp_down(load(x + j + W) - top));
  for (; j < whole; j += W) a += keep(j, vexp_down(load(x + j) - top));
  if (rest) {
    const vf v = load_n(x + whole, rest), e = vexp_down(v - top);
    if (!log) store_n(y + whole, e, rest);
    b += select(lane_numbers() < float(rest), e, vf{});
  }
  const float sum = sum_lanes(a + b);
  if (log) {
    const vf shift = splat(std::log(sum));
    for (j = 0; j < whole; j += W) store(y + j, load(x + j) - top - shift);
    if (rest) store_n(y + whole, load_n(x + whole, rest) - top - shift, rest);
  } else {
    const vf inverse = splat(1.f / sum);
    for (j = 0; j < whole; j += W) store(y + j, load(y + j) * inverse);
    if (rest) store_n(y + whole, load_n(y + whole, rest) * inverse, rest);
  }
}

// The same for one vector of columns, `step` elements between rows.
template <class Load, class Store>
TRACEA_INLINE void softmax_columns(int64_t n, bool log, Load x, Load y, Store write) {
  vf top = splat(-std::numeric_limits<float>::infinity()), sum{}, part{};
  for (int64_t j = 0; j < n; j++) top = vmax(top, x(j));
  for (int64_t j = 0; j < n; j++) {
    const vf e = vexp_down(x(j) - top);
    if (!log) write(j, e);
    part += e;
    if (j % 128 == 127) sum += part, part = vf{};
  }
  sum += part;
  const vf shift = log ? vlog(sum) : vf{}, inverse = 1.f / sum;
  for (int64_t j = 0; j < n; j++) write(j, log ? x(j) - top - shift : y(j) * inverse);
}

struct ColumnLoad {
  const float* p;
  int64_t step;
  int lanes;
  vf operator()(int64_t j) const {
    return lanes == W ? load(p + j * step) : load_n(p + j * step, lanes);
  }
};

static void softmax_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::softmax;
  const int64_t step = l.i[inner], count = l.i[n], units = column_units(l.i[outer], step),
                across = (step + W - 1) / W;
  for (int64_t u = share(units, tasks, task); u < share(units, tasks, task + 1); u++) {
    if (step == 1) {
      softmax_row((const float*)l.buf[x] + u * count, count, l.i[fam::softmax::log],
                  (float*)l.buf[y] + u * count);
      continue;
    }
    const int64_t i = u % across * W, at = u / across * count * step + i;
    const int lanes = int(std::min<int64_t>(W, step - i));
    float* q = (float*)l.buf[y] + at;
    auto write = [&](int64_t j, vf v) {
      if (lanes == W)
        store(q + j * step, v);
      else
        store_n(q + j * step, v, lanes);
    };
    softmax_columns(count, l.i[fam::softmax::log],
                    ColumnLoad{(const float*)l.buf[x] + at, step, lanes},
                    ColumnLoad{q, step, lanes}, write);
  }
}

static int64_t rope_tasks(const Launch& l, int threads) {
  using namespace fam::rope;
  return row_tasks(l.i[B] * l.i[S], l.i[B] * l.i[S] * l.i[H] * l.i[D], threads);
}

// Pairs (i, i + half): y0 = x0 cos0 - x1 sin0, y1 = x1 cos1 + x0 sin1; the second half has values
// of its own only for `full` rows.
static inline void rotate_halves(const float* x, int64_t half, const float* c0, const float* s0,
                                 const float* c1, const float* s1, float* y) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const vf a = load(x + i), b = load(x + half + i);
    store(y + i, a * load(c0 + i) - b * load(s0 + i));
    store(y + half + i, b * load(c1 + i) + a * load(s1 + i));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    y[i] = a * c0[i] - b * s0[i];
    y[half + i] = b * c1[i] + a * s1[i];
  }
}

static void rope_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::rope;
  const int64_t positions = l.i[B] * l.i[S], half = l.i[rot] / 2, other = l.i[full] ? half : 0;
  for (int64_t p = share(positions, tasks, task); p < share(positions, tasks, task + 1); p++) {
    const int64_t b = p / l.i[S], s = p % l.i[S], at = b * l.i[c_b] + s * l.i[c_s];
    const auto *pc = (const float*)l.buf[fam::rope::cos] + at,
               *ps = (const float*)l.buf[fam::rope::sin] + at;
    for (int64_t h = 0; h < l.i[H]; h++) {
      const float* px = (const float*)l.buf[x] + b * l.i[x_b] + s * l.i[x_s] + h * l.i[x_h];
      float* py = (float*)l.buf[y] + b * l.i[y_b] + s * l.i[y_s] + h * l.i[y_h];
      if (l.i[interleaved])
        for (int64_t i = 0; i < half; i++) {
          const float v = px[2 * i], w = px[2 * i + 1];
          py[2 * i] = v * pc[i] - w * ps[i];
          py[2 * i + 1] = w * pc[i + other] + v * ps[i + other];
        }
      else
        rotate_halves(px, half, pc, ps, pc + other, ps + other, py);
      for (int64_t d = 2 * half; d < l.i[D]; d++) py[d] = px[d];
    }
  }
}

static const Kernel softmax_kernel = {"softmax", softmax_tasks, nullptr, softmax_run};
static const Kernel rope_kernel = {"rope", rope_tasks, nullptr, rope_run};
static const Kernel* const table_rows[] = {
    &layernorm_kernel,      &layernorm_sum_kernel, &groupnorm_kernel,
    &groupnorm_nhwc_kernel, &softmax_kernel,       &reduce_kernel,
    &argmax_kernel,         &rope_kernel,          nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
