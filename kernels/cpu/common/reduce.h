// Reductions over n of [outer, n, inner], and argmax. Sums: float chunks added up in double (inner
// = 1) or in a compensated second level (inner > 1).
#pragma once
#include <limits>

#include "common/norm.h"

namespace tracea {
namespace TRACEA_NS {

enum ReduceKind : int64_t {
  kSum,
  kMean,
  kMax,
  kMin,
  kProd,
  kL1,
  kL2,
  kSumSquare,
  kLogSum,
  kLogSumExp
};

static inline float finish_sum(int64_t kind, double s, int64_t n) {
  switch (kind) {
    case kMean: return float(s / double(n));
    case kL2: return float(std::sqrt(s));
    case kLogSum: return float(std::log(s));
    default: return float(s);
  }
}
TRACEA_INLINE vf finish_sum(int64_t kind, vf s, int64_t n) {
  switch (kind) {
    case kMean: return s / float(n);
    case kL2: return vsqrt(s);
    case kLogSum: return vlog(s);
    default: return s;
  }
}

// What the identity of an extremum or product is.
static inline float reduce_start(int64_t kind) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  return kind == kMin ? inf : kind == kProd ? 1.f : -inf;
}

template <class F>
TRACEA_INLINE float fold_row(const float* p, int64_t n, float start, F f) {
  vf a = splat(start), b = a;
  int64_t j = 0;
  for (; j + 2 * W <= n; j += 2 * W) a = f(a, load(p + j)), b = f(b, load(p + j + W));
  for (; j + W <= n; j += W) a = f(a, load(p + j));
  if (j < n) b = f(b, load_n(p + j, int(n - j), start));
  return fold_lanes(f(a, b), f);
}

// A shift that keeps exp finite and does not turn infinities into NaN.
static inline float safe_shift(float m) { return std::isfinite(m) ? m : 0.f; }

static inline float reduce_row(int64_t kind, const float* p, int64_t n) {
  switch (kind) {
    case kMax: return fold_row(p, n, reduce_start(kind), [](vf a, vf b) { return vmax_nan(a, b); });
    case kMin: return fold_row(p, n, reduce_start(kind), [](vf a, vf b) { return vmin_nan(a, b); });
    case kProd: return fold_row(p, n, 1.f, [](vf a, vf b) { return a * b; });
    case kL1: return float(sum_of(p, n, 0.f, [](vf v) { return vabs(v); }));
    case kL2:
    case kSumSquare: return finish_sum(kind, sum_of(p, n, 0.f, [](vf v) { return v * v; }), n);
    case kLogSumExp: {
      const float top =
                      fold_row(p, n, reduce_start(kMax), [](vf a, vf b) { return vmax_nan(a, b); }),
                  shift = safe_shift(top);
      const vf m = splat(shift);
      return float(std::log(sum_of(p, n, -std::numeric_limits<float>::infinity(),
                                   [m](vf v) { return exp_or_zero(v - m); })) +
                   double(shift));
    }
    default: return finish_sum(kind, sum_of(p, n, 0.f, [](vf v) { return v; }), n);
  }
}

// One vector of columns. `at(j)` gives its values in row j.
template <class At, class F>
TRACEA_INLINE vf fold_columns(int64_t n, float start, At at, F f) {
  vf a = splat(start), b = a;
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) a = f(a, at(j)), b = f(b, at(j + 1));
  return f(j < n ? f(a, at(j)) : a, b);
}
template <class At, class F>
TRACEA_INLINE vf sum_columns(int64_t n, At at, F f) {
  constexpr int64_t chunk = 128;
  vf total{}, lost{};
  for (int64_t j = 0; j < n; j += chunk) {
    const vf more = fold_columns(
        std::min(chunk, n - j), 0.f, [&](int64_t i) { return f(at(j + i)); },
        [](vf a, vf b) { return a + b; });
    const vf next = total + more, used = next - total;
    lost += select(vabs(next) < splat(INFINITY), (total - (next - used)) + (more - used),
                   vf{});  // Knuth's two-sum: what the addition rounded away
    total = next;
  }
  return total + lost;
}
template <class At>
TRACEA_INLINE vf reduce_columns(int64_t kind, int64_t n, At at) {
  switch (kind) {
    case kMax:
      return fold_columns(n, reduce_start(kind), at, [](vf a, vf b) { return vmax_nan(a, b); });
    case kMin:
      return fold_columns(n, reduce_start(kind), at, [](vf a, vf b) { return vmin_nan(a, b); });
    case kProd: return fold_columns(n, 1.f, at, [](vf a, vf b) { return a * b; });
    case kL1: return sum_columns(n, at, [](vf v) { return vabs(v); });
    case kL2:
    case kSumSquare: return finish_sum(kind, sum_columns(n, at, [](vf v) { return v * v; }), n);
    case kLogSumExp: {
      const vf top =
          fold_columns(n, reduce_start(kMax), at, [](vf a, vf b) { return vmax_nan(a, b); });
      const vf shift = select(vabs(top) < splat(INFINITY), top, vf{});
      return vlog(sum_columns(n, at, [&](vf v) { return exp_or_zero(v - shift); })) + shift;
    }
    default: return finish_sum(kind, sum_columns(n, at, [](vf v) { return v; }), n);
  }
}

template <class T>
static inline void reduce_integers(int64_t kind, const T* x, int64_t outer, int64_t n,
                                   int64_t inner, T* y) {
  const T start = kind == kMax    ? std::numeric_limits<T>::min()
                  : kind == kMin  ? std::numeric_limits<T>::max()
                  : kind == kProd ? T(1)
                                  : T(0);
  typedef typename std::make_unsigned<T>::type U;  // sums and products wrap
  for (int64_t o = 0; o < outer; o++, y += inner) {
    std::fill(y, y + inner, start);
    for (int64_t j = 0; j < n; j++, x += inner)
      for (int64_t i = 0; i < inner; i++)
        y[i] = kind == kMax    ? std::max(y[i], x[i])
               : kind == kMin  ? std::min(y[i], x[i])
               : kind == kProd ? T(U(y[i]) * U(x[i]))
                               : T(U(y[i]) + U(x[i]));
  }
}

// Vectors of columns of all outer indices, or rows when inner is 1.
static inline int64_t column_units(int64_t outer, int64_t inner) {
  return inner == 1 ? outer : outer * ((inner + W - 1) / W);
}

static int64_t reduce_tasks(const Launch& l, int threads) {
  using namespace fam::reduce;
  if (l.i[outer] <= 0 || l.i[inner] <= 0) return 0;
  if (l.i[dtype] != kF32)
    return row_tasks(l.i[outer], l.i[outer] * std::max<int64_t>(1, l.i[n]) * l.i[inner], threads);
  return row_tasks(column_units(l.i[outer], l.i[inner]),
                   l.i[outer] * std::max<int64_t>(1, l.i[n]) * l.i[inner], threads);
}

static void reduce_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::reduce;
  const int64_t count = l.i[n], step = l.i[inner], what = l.i[kind];
  if (l.i[dtype] != kF32) {
    const int64_t o0 = share(l.i[outer], tasks, task), o1 = share(l.i[outer], tasks, task + 1);
    if (l.i[dtype] == kI64)
      reduce_integers(what, (const int64_t*)l.buf[x] + o0 * count * step, o1 - o0, count, step,
                      (int64_t*)l.buf[y] + o0 * step);
    else
      reduce_integers(what, (const int32_t*)l.buf[x] + o0 * count * step, o1 - o0, count, step,
                      (int32_t*)l.buf[y] + o0 * step);
    return;
  }
  const auto* px = (const float*)l.buf[x];
  auto* py = (float*)l.buf[y];
  const int64_t units = column_units(l.i[outer], step), last = share(units, tasks, task + 1),
                across = (step + W - 1) / W;
  for (int64_t u = share(units, tasks, task); u < last; u++) {
    if (step == 1) {
      py[u] = reduce_row(what, px + u * count, count);
      continue;
    }
    const int64_t o = u / across, i = u % across * W;
    const float* p = px + o * count * step + i;
    const int lanes = int(std::min<int64_t>(W, step - i));
    float* q = py + o * step + i;
    if (lanes == W)
      store(q, reduce_columns(what, count, [&](int64_t j) { return load(p + j * step); }));
    else
      store_n(q,
              reduce_columns(what, count, [&](int64_t j) { return load_n(p + j * step, lanes); }),
              lanes);
  }
}

// Index of the extremum of n values `step` apart. A NaN never wins, as in a scan with `>`, unless
// it comes first.
template <class T>
static inline int64_t arg_scan(const T* p, int64_t n, int64_t step, bool min, bool last) {
  int64_t at = 0;
  T best = p[0];
  for (int64_t j = 1; j < n; j++) {
    const T v = p[j * step];
    const bool better = min ? v < best : v > best;
    if (better || (last && v == best)) best = v, at = j;
  }
  return at;
}

// Contiguous floats: the extremum by vectors, then the first (last) place that holds it.
static inline int64_t arg_row(const float* p, int64_t n, bool min, bool last) {
  if (n < 4 * W || std::isnan(p[0])) return arg_scan(p, n, 1, min, last);
  const float best = min ? fold_row(p, n, p[0], [](vf a, vf b) { return vmin(b, a); })
                         : fold_row(p, n, p[0], [](vf a, vf b) { return vmax(b, a); });
  for (int64_t j = 0; j < n; j++) {
    const int64_t at = last ? n - 1 - j : j;
    if (p[at] == best) return at;
  }
  return 0;
}

static int64_t argmax_tasks(const Launch& l, int threads) {
  using namespace fam::argmax;
  return row_tasks(l.i[outer] * l.i[inner], l.i[n] <= 0 ? 0 : l.i[outer] * l.i[n] * l.i[inner],
                   threads);
}

static void argmax_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::argmax;
  const int64_t step = l.i[inner], count = l.i[n], units = l.i[outer] * step;
  auto* py = (int64_t*)l.buf[y];
  for (int64_t u = share(units, tasks, task); u < share(units, tasks, task + 1); u++) {
    const int64_t at = u / step * count * step + u % step;
    if (l.i[dtype] == kI64)
      py[u] = arg_scan((const int64_t*)l.buf[x] + at, count, step, l.i[min], l.i[last]);
    else if (l.i[dtype] == kI32)
      py[u] = arg_scan((const int32_t*)l.buf[x] + at, count, step, l.i[min], l.i[last]);
    else if (step == 1)
      py[u] = arg_row((const float*)l.buf[x] + at, count, l.i[min], l.i[last]);
    else
      py[u] = arg_scan((const float*)l.buf[x] + at, count, step, l.i[min], l.i[last]);
  }
}

static const Kernel reduce_kernel = {"reduce", reduce_tasks, nullptr, reduce_run};
static const Kernel argmax_kernel = {"argmax", argmax_tasks, nullptr, argmax_run};

}  // namespace TRACEA_NS
}  // namespace tracea
