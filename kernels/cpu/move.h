// Data movement over plain layouts: strided copies (transpose, slice, expand, concat), padding,
// fills, gathers.
#pragma once
#include <algorithm>

#include "common/tasks.h"
#include "common/transpose.h"

namespace tracea {
namespace TRACEA_NS {

namespace copy_nd {

namespace f = fam::copy;

constexpr int kDims = 6;
constexpr int64_t kBlock = 64;           // side of a transposed block
constexpr int64_t kSegment = 64 * 1024;  // longest run of bytes handled as one piece

// Dims ordered by falling |y stride|, unit dims dropped, neighbours merged where both sides allow;
// at least one dim.
struct Space {
  int dims;
  int64_t n[kDims], x[kDims], y[kDims];
  int across;  // the dim that is contiguous in x while the last is contiguous in y (a
               // transposition), or -1
};

static inline int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

static inline Space collapse(const Launch& l) {
  Space s{};
  for (int d = 0; d < kDims; d++) {
    const int64_t n = l.i[f::n0 + d], x = l.i[f::x0 + d], y = l.i[f::y0 + d];
    if (n == 1) continue;
    int at = s.dims++;
    for (; at > 0 && magnitude(s.y[at - 1]) < magnitude(y); at--)
      s.n[at] = s.n[at - 1], s.x[at] = s.x[at - 1], s.y[at] = s.y[at - 1];
    s.n[at] = n, s.x[at] = x, s.y[at] = y;
  }
  int kept = 0;
  for (int d = 1; d < s.dims; d++) {
    if (s.x[kept] == s.x[d] * s.n[d] && s.y[kept] == s.y[d] * s.n[d])
      s.n[kept] *= s.n[d];
    else
      s.n[++kept] = s.n[d];
    s.x[kept] = s.x[d], s.y[kept] = s.y[d];
  }
  s.dims = s.dims ? kept + 1 : 1;
  if (s.n[0] == 0)
    s.n[0] = 1, s.x[0] = s.y[0] = 1;  // a single element (empty copies have no tasks)
  s.across = -1;
  const int last = s.dims - 1;
  if (s.y[last] == 1 && s.x[last] != 1 && s.x[last] != 0 && s.n[last] > 1)
    for (int d = 0; d < last; d++)
      if (s.x[d] == 1 && s.n[d] > 1) s.across = d;
  return s;
}

// Pieces of the innermost dim (and of `across`): how many, and how long.
struct Pieces {
  int64_t rows, inner, length;
};

static inline Pieces pieces(const Space& s, int64_t elem) {
  Pieces p{1, 1, s.n[s.dims - 1]};
  const int64_t most = s.across < 0 ? kSegment / elem : s.n[s.across] <= 4 ? 16 * kBlock : kBlock;
  if (p.length > most) p.inner = (p.length + most - 1) / most, p.length = most;
  for (int d = 0; d + 1 < s.dims; d++)
    if (d != s.across) p.rows *= s.n[d];
  return p;
}

static int64_t tasks(const Launch& l, int threads) {
  int64_t count = 1;
  for (int d = 0; d < kDims; d++) count *= l.i[f::n0 + d];
  if (!count) return 0;
  const Space s = collapse(l);
  const Pieces p = pieces(s, l.i[f::elem]);
  return even_tasks(p.rows * p.inner, count * l.i[f::elem] / 8, threads);
}

template <class T>
static inline void copy_row(T* y, int64_t ys, const T* x, int64_t xs, int64_t n) {
  if (ys == 1 && xs == 1) {
    if (n * int64_t(sizeof(T)) > 512) {
      memcpy(y, x, size_t(n) * sizeof(T));
    } else {
      constexpr int64_t step = 4 * W / int64_t(sizeof(T));
      int64_t j = 0;
      for (; j + step <= n; j += step) memcpy(y + j, x + j, 4 * W);
      for (; j < n; j++) y[j] = x[j];
    }
  } else if (ys == 1 && xs == 0) {
    const T v = *x;
    for (int64_t j = 0; j < n; j++) y[j] = v;
  } else {
    for (int64_t j = 0; j < n; j++) y[j * ys] = x[j * xs];
  }
}

// y[c * ldy + r] = x[r * ldx + c]
template <class T>
static inline void transpose(T* y, int64_t ldy, const T* x, int64_t ldx, int64_t rows,
                             int64_t columns) {
  const int64_t step = rows <= 4 ? columns : kBlock;
  for (int64_t c0 = 0; c0 < columns; c0 += step) {
    const int64_t n = columns - c0 < step ? columns - c0 : step;
    if (sizeof(T) == 4) {
      transpose_block((const float*)(x + c0), ldx, (float*)(y + c0 * ldy), ldy, rows, n);
    } else {
      for (int64_t c = c0; c < c0 + n; c++)
        for (int64_t r = 0; r < rows; r++) y[c * ldy + r] = x[r * ldx + c];
    }
  }
}

template <class T>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  const Space s = collapse(l);
  const Pieces p = pieces(s, sizeof(T));
  const int last = s.dims - 1;
  const int row_dim = s.across == last - 1
                          ? last - 2
                          : last - 1;  // the innermost of the outer dims; -1 or -2: none
  const int64_t end = task_begin(p.rows * p.inner, task + 1, tasks);
  for (int64_t unit = task_begin(p.rows * p.inner, task, tasks); unit < end;) {
    const int64_t first = unit % p.inner * p.length,
                  n = s.n[last] - first < p.length ? s.n[last] - first : p.length;
    int64_t rest = unit / p.inner, xo = first * s.x[last], yo = first * s.y[last], together = 1;
    if (p.inner == 1 &&
        row_dim >= 0) {  // rows follow each other at constant strides up to the end of their dim
      together = s.n[row_dim] - rest % s.n[row_dim];
      if (together > end - unit) together = end - unit;
    }
    for (int d = last - 1; d >= 0; d--) {
      if (d == s.across) continue;
      xo += rest % s.n[d] * s.x[d];
      yo += rest % s.n[d] * s.y[d];
      rest /= s.n[d];
    }
    const T* x = (const T*)l.buf[f::x] + xo;
    T* y = (T*)l.buf[f::y] + yo;
    for (int64_t k = 0; k < together; k++) {
      if (s.across >= 0)
        transpose(y, s.y[s.across], x, s.x[last], n, s.n[s.across]);
      else
        copy_row(y, s.y[last], x, s.x[last], n);
      if (row_dim >= 0) x += s.x[row_dim], y += s.y[row_dim];
    }
    unit += together;
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  with_element(l.i[f::elem], [&](auto zero) { run_as<decltype(zero)>(l, task, tasks); });
}

}  // namespace copy_nd

namespace pad {

namespace f = fam::pad;
enum Mode : int64_t { kConstant, kReflect, kEdge, kWrap };
constexpr int kLast = f::n4 - f::n0;

// Which of the m elements of an axis is read `at` places behind its first; -1 where none is.
static inline int64_t read_at(int64_t mode, int64_t at, int64_t m) {
  if (at >= 0 && at < m) return at;
  if (mode == kConstant || m == 0) return -1;
  if (mode == kWrap) return at % m < 0 ? at % m + m : at % m;
  const int64_t back = mode == kEdge ? at : at < 0 ? -at : 2 * m - 2 - at;
  return back < 0 ? 0 : back < m ? back : m - 1;
}

static int64_t rows_of(const Launch& l) {
  int64_t rows = 1;
  for (int d = 0; d < kLast; d++) rows *= l.i[f::n0 + d];
  return rows;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = rows_of(l), n = l.i[f::n4];
  return rows && n ? even_tasks(rows, rows * (4 + n * l.i[f::elem] / 8), threads) : 0;
}

template <class T>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  const int64_t rows = rows_of(l), mode = l.i[f::mode], n = l.i[f::n4], m = l.i[f::m4],
                p = l.i[f::p4], xs = l.i[f::x4], ys = l.i[f::y4];
  // what is copied of a row as it is
  const int64_t from = p < 0   ? 0
                       : p < n ? p
                               : n,
                end = p + m < n ? p + m : n, to = end < from ? from : end;
  const T value = T(uint64_t(l.i[f::value]));
  int64_t c[kLast], rest = task_begin(rows, task, tasks);
  for (int d = kLast - 1; d >= 0; d--) c[d] = rest % l.i[f::n0 + d], rest /= l.i[f::n0 + d];
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const T* x = (const T*)l.buf[f::x];
    T* y = (T*)l.buf[f::y];
    bool some = true;
    for (int d = 0; d < kLast; d++) {
      const int64_t s = read_at(mode, c[d] - l.i[f::p0 + d], l.i[f::m0 + d]);
      some = some && s >= 0;
      if (some) x += s * l.i[f::x0 + d];
      y += c[d] * l.i[f::y0 + d];
    }
    for (int d = kLast - 1; d >= 0 && ++c[d] == l.i[f::n0 + d]; d--) c[d] = 0;
    const auto around = [&](int64_t k) {
      const int64_t s = some ? read_at(mode, k - p, m) : -1;
      y[k * ys] = s < 0 ? value : x[s * xs];
    };
    for (int64_t k = 0; k < (some ? from : n); k++) around(k);
    if (!some) continue;
    if (to > from) copy_nd::copy_row(y + from * ys, ys, x + (from - p) * xs, xs, to - from);
    for (int64_t k = to; k < n; k++) around(k);
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  with_element(l.i[f::elem], [&](auto zero) { run_as<decltype(zero)>(l, task, tasks); });
}

}  // namespace pad

namespace fill {

namespace f = fam::fill;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t count = l.i[f::count];
  return count ? even_tasks(count, count * l.i[f::elem] / 16, threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t count = l.i[f::count], begin = task_begin(count, task, tasks),
                end = task_begin(count, task + 1, tasks);
  with_element(l.i[f::elem], [&](auto zero) {
    using T = decltype(zero);
    T* const y = (T*)l.buf[f::y];
    std::fill(y + begin, y + end, T(uint64_t(l.i[f::value])));
  });
}

}  // namespace fill

namespace store_ints {

namespace f = fam::store_ints;

static int64_t tasks(const Launch& l, int) { return l.i[f::count] ? 1 : 0; }
static void run(const Launch& l, int64_t, int64_t, void*) {
  for (int64_t j = 0; j < l.i[f::count]; j++) {
    if (l.i[f::dtype] == kI32)
      ((int32_t*)l.buf[f::y])[j] = int32_t(l.i[f::v0 + j]);
    else if (l.i[f::dtype] == kBool)
      ((uint8_t*)l.buf[f::y])[j] = l.i[f::v0 + j] != 0;
    else
      ((int64_t*)l.buf[f::y])[j] = l.i[f::v0 + j];
  }
}

}  // namespace store_ints

namespace gather {

namespace f = fam::gather;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::count];
  return rows && l.i[f::inner]
             ? even_tasks(rows, rows * (2 + l.i[f::inner] * l.i[f::elem] / 8), threads)
             : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t bytes = l.i[f::inner] * l.i[f::elem], size = l.i[f::n], columns = l.i[f::count],
                rows = l.i[f::outer] * columns;
  const char* const source = (const char*)l.buf[f::x];
  char* const target = (char*)l.buf[f::y];
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const int64_t o = r / columns, j = r % columns;
    int64_t at = l.i[f::idx_dtype] == kI32 ? ((const int32_t*)l.buf[f::idx])[j]
                                           : ((const int64_t*)l.buf[f::idx])[j];
    if (at < 0) at += size;
    if (at < 0 || at >= size) {
      *l.error = 1;
      memset(target + r * bytes, 0, size_t(bytes));
      continue;
    }
    const char* const from = source + (o * size + at) * bytes;
    if (bytes == 4)
      memcpy(target + r * 4, from, 4);
    else if (bytes == 8)
      memcpy(target + r * 8, from, 8);
    else
      memcpy(target + r * bytes, from, size_t(bytes));
  }
}

}  // namespace gather

static const Kernel kernel_copy = {"copy", copy_nd::tasks, nullptr, copy_nd::run};
static const Kernel kernel_pad = {"pad", pad::tasks, nullptr, pad::run};
static const Kernel kernel_fill = {"fill", fill::tasks, nullptr, fill::run};
static const Kernel kernel_store_ints = {"store_ints", store_ints::tasks, nullptr, store_ints::run};
static const Kernel kernel_gather = {"gather", gather::tasks, nullptr, gather::run};
static const Kernel* const table_move[] = {&kernel_copy,       &kernel_pad,    &kernel_fill,
                                           &kernel_store_ints, &kernel_gather, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
