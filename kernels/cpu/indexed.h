// Elements found by indices that only a run knows: along one axis of up to five, or by tuples; rows
// with a one in them; triangles of matrices.
//
// A negative index counts from the end. For one out of range an error is set, and nothing is read
// or written.
#pragma once
#include <cstring>

#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace indexed {

constexpr int kDims = 5;

// Index j of an operand of type I32 or I64.
static inline int64_t index_at(const void* idx, int64_t dtype, int64_t j) {
  return dtype == kI32 ? ((const int32_t*)idx)[j] : ((const int64_t*)idx)[j];
}

static inline bool inside(int64_t& at, int64_t extent) {
  at += at < 0 ? extent : 0;
  return uint64_t(at) < uint64_t(extent);
}

static inline void move(char* to, const char* from, int64_t bytes) {
  switch (bytes) {
    case 1: *to = *from; return;
    case 4: memcpy(to, from, 4); return;
    case 8: memcpy(to, from, 8); return;
    default: memcpy(to, from, size_t(bytes));
  }
}

// Rows of a box of up to five dims, one after the other: the coordinates of the first four.
struct Rows {
  int64_t n[kDims], c[kDims - 1];
  Rows(const int64_t* sizes, int64_t row) {
    for (int k = 0; k < kDims; k++) n[k] = sizes[k];
    for (int k = kDims - 2; k >= 0; k--) c[k] = row % n[k], row /= n[k];
  }
  void next() {
    for (int k = kDims - 2; k >= 0 && ++c[k] == n[k]; k--) c[k] = 0;
  }
};

// Families that move elements along an axis, by the places of their parameters. A task has some of
// the axes before the indexed one, whose indices point into different parts of the tensor: of equal
// indices the last one counts, as in ONNX Runtime.
template <int ELEM, int DTYPE, int AXIS, int N, int S, int M>
struct Along {
  static int64_t parts(const Launch& l) {
    int64_t count = 1;
    for (int k = 0; k < l.i[AXIS]; k++) count *= l.i[N + k];
    return count;
  }
  static int64_t total(const Launch& l) {
    int64_t count = 1;
    for (int k = 0; k < kDims; k++) count *= l.i[N + k];
    return count;
  }
  static int64_t tasks(const Launch& l, int threads) {
    return total(l) ? even_tasks(parts(l), 2 * total(l), threads) : 0;
  }

  // visit(element of the indices, element of the tensor, whether there is one) of a task, in order.
  template <class Index, class F>
  static inline void each(const Launch& l, const Index* idx, int64_t task, int64_t tasks, F visit) {
    const int64_t *const s = l.i + S, *const m = l.i + M, axis = l.i[AXIS], count = parts(l),
                         last = l.i[N + kDims - 1], rows = total(l) / last;
    const bool across = axis == kDims - 1;
    const int64_t per_part = across ? 1 : rows / count;
    const int64_t first = task_begin(count, task, tasks) * per_part,
                  end = task_begin(count, task + 1, tasks) * per_part;
    Rows row(l.i + N, first);
    for (int64_t r = first; r < end; r++, row.next()) {
      int64_t base = 0, inside_columns = across ? last : m[kDims - 1];
      for (int k = 0; k < kDims - 1; k++) {
        if (k == axis) continue;
        if (row.c[k] >= m[k]) inside_columns = 0;
        base += row.c[k] * s[k];
      }
      const int64_t extent = m[axis], step = s[axis], side = s[kDims - 1];
      const int64_t most = last < inside_columns ? last : inside_columns;
      const auto along = [&](int64_t c, int64_t from) {
        int64_t at = idx[r * last + c];
        if (inside(at, extent))
          visit(r * last + c, from + at * step, true);
        else
          visit(r * last + c, 0, false);
      };
      if (across) {
#pragma GCC unroll 4
        for (int64_t c = 0; c < most; c++) along(c, base);
      } else {
        for (int64_t c = 0; c < most; c++) along(c, base + c * side);
      }
      for (int64_t c = most; c < last; c++) visit(r * last + c, 0, false);
    }
  }

  // The same with types for the elements and the indices: f(T, indices).
  template <class F>
  static inline void typed(const Launch& l, const void* idx, F f) {
    const auto with = [&](auto* indices) {
      with_element(l.i[ELEM], [&](auto zero) { f(zero, indices); });
    };
    if (l.i[DTYPE] == kI32)
      with((const int32_t*)idx);
    else
      with((const int64_t*)idx);
  }
};

}  // namespace indexed

namespace gather_along {

namespace f = fam::gather_along;
using Family = indexed::Along<f::elem, f::idx_dtype, f::axis, f::n0, f::s0, f::m0>;

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  Family::typed(l, l.buf[f::idx], [&](auto zero, auto* idx) {
    using T = decltype(zero);
    const T* const x = (const T*)l.buf[f::x];
    T* const y = (T*)l.buf[f::y];
    Family::each(l, idx, task, tasks, [&](int64_t u, int64_t at, bool found) {
      if (!found) *l.error = 1;
      y[u] = found ? x[at] : T();
    });
  });
}

}  // namespace gather_along

namespace scatter_along {

namespace f = fam::scatter_along;
using Family = indexed::Along<f::elem, f::idx_dtype, f::axis, f::n0, f::s0, f::m0>;

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  Family::typed(l, l.buf[f::idx], [&](auto zero, auto* idx) {
    using T = decltype(zero);
    const T* const from = (const T*)l.buf[f::u];
    T* const y = (T*)l.buf[f::y];
    Family::each(l, idx, task, tasks, [&](int64_t u, int64_t at, bool found) {
      if (found)
        y[at] = from[u];
      else
        *l.error = 1;
    });
  });
}

}  // namespace scatter_along

namespace indexed {

// Where tuple j of k indices points: the first element of a row; whether it is one.
template <int K, int DTYPE, int S, int M>
static inline bool tuple(const Launch& l, const void* idx, int64_t j, int64_t& at) {
  at = 0;
  for (int64_t k = 0; k < l.i[K]; k++) {
    int64_t c = index_at(idx, l.i[DTYPE], j * l.i[K] + k);
    if (!inside(c, l.i[M + k])) return false;
    at += c * l.i[S + k];
  }
  return true;
}

}  // namespace indexed

namespace gather_tuples {

namespace f = fam::gather_tuples;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::count];
  return rows && l.i[f::inner]
             ? even_tasks(rows, rows * (4 + l.i[f::inner] * l.i[f::elem] / 8), threads)
             : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t count = l.i[f::count], bytes = l.i[f::inner] * l.i[f::elem],
                each = l.i[f::each] > 0 ? l.i[f::each] : count;
  const char* const x = (const char*)l.buf[f::x];
  char* const y = (char*)l.buf[f::y];
  for (int64_t j = task_begin(count, task, tasks); j < task_begin(count, task + 1, tasks); j++) {
    int64_t at;
    if (indexed::tuple<f::k, f::idx_dtype, f::s0, f::m0>(l, l.buf[f::idx], j, at))
      indexed::move(y + j * bytes, x + (at + j / each * l.i[f::step]) * l.i[f::elem], bytes);
    else
      *l.error = 1, memset(y + j * bytes, 0, size_t(bytes));
  }
}

}  // namespace gather_tuples

namespace scatter_tuples {

namespace f = fam::scatter_tuples;

// Of equal tuples the last one counts, too: a task has a part of every row.
constexpr int64_t kPiece = 1024;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t bytes = l.i[f::inner] * l.i[f::elem];
  return bytes && l.i[f::count]
             ? even_tasks((bytes + kPiece - 1) / kPiece, l.i[f::count] * (4 + bytes / 8), threads)
             : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t bytes = l.i[f::inner] * l.i[f::elem], pieces = (bytes + kPiece - 1) / kPiece,
                from = task_begin(pieces, task, tasks) * kPiece,
                end = task_begin(pieces, task + 1, tasks) * kPiece,
                length = (end < bytes ? end : bytes) - from;
  const char* const u = (const char*)l.buf[f::u];
  char* const y = (char*)l.buf[f::y];
  for (int64_t j = 0; j < l.i[f::count]; j++) {
    int64_t at;
    if (indexed::tuple<f::k, f::idx_dtype, f::s0, f::m0>(l, l.buf[f::idx], j, at))
      indexed::move(y + at * l.i[f::elem] + from, u + j * bytes + from, length);
    else
      *l.error = 1;
  }
}

}  // namespace scatter_tuples

namespace one_hot {

namespace f = fam::one_hot;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t outer = l.i[f::outer], each = l.i[f::depth] * l.i[f::inner];
  return outer && each ? even_tasks(outer, outer * (each / 4 + 4 * l.i[f::inner]), threads) : 0;
}

template <class T>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  const int64_t depth = l.i[f::depth], inner = l.i[f::inner], outer = l.i[f::outer];
  const T off = ((const T*)l.buf[f::values])[0], on = ((const T*)l.buf[f::values])[1];
  for (int64_t o = task_begin(outer, task, tasks); o < task_begin(outer, task + 1, tasks); o++) {
    T* const y = (T*)l.buf[f::y] + o * depth * inner;
    for (int64_t k = 0; k < depth * inner; k++) y[k] = off;
    for (int64_t k = 0; k < inner; k++) {
      int64_t at = indexed::index_at(l.buf[f::idx], l.i[f::idx_dtype], o * inner + k);
      if (indexed::inside(at, depth)) y[at * inner + k] = on;
    }
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  with_element(l.i[f::elem], [&](auto zero) { run_as<decltype(zero)>(l, task, tasks); });
}

}  // namespace one_hot

namespace triangle {

namespace f = fam::triangle;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::rows];
  return rows && l.i[f::columns]
             ? even_tasks(rows, rows * (2 + l.i[f::columns] * l.i[f::elem] / 16), threads)
             : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t columns = l.i[f::columns], elem = l.i[f::elem], rows = l.i[f::outer] * l.i[f::rows];
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const char* const x = (const char*)l.buf[f::x] + r * columns * elem;
    char* const y = (char*)l.buf[f::y] + r * columns * elem;
    // the first column right of the part that is kept (lower), or of the part that is not (upper)
    int64_t split = r % l.i[f::rows] + l.i[f::diagonal] + (l.i[f::upper] ? 0 : 1);
    split = split < 0 ? 0 : split > columns ? columns : split;
    const int64_t left = split * elem, right = (columns - split) * elem;
    if (l.i[f::upper])
      memset(y, 0, size_t(left)), memcpy(y + left, x + left, size_t(right));
    else
      memcpy(y, x, size_t(left)), memset(y + left, 0, size_t(right));
  }
}

}  // namespace triangle

namespace cache_write {

namespace f = fam::cache_write;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t heads = l.i[f::B] * l.i[f::H];
  return heads && l.i[f::T] && l.i[f::D]
             ? even_tasks(heads, heads * l.i[f::T] * l.i[f::D] * l.i[f::elem] / 16, threads)
             : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t H = l.i[f::H], S = l.i[f::S], T = l.i[f::T], elem = l.i[f::elem],
                row = l.i[f::D] * elem, held = l.buf[f::past] ? l.i[f::P] : 0,
                pieces = l.i[f::B] * H;
  const bool circular = l.i[f::circular] != 0;
  for (int64_t p = task_begin(pieces, task, tasks); p < task_begin(pieces, task + 1, tasks); p++) {
    const int64_t b = p / H, h = p % H,
                  given = indexed::index_at(l.buf[f::at], l.i[f::at_dtype], b);
    char* const y = (char*)l.buf[f::y] + p * T * row;
    const char* const past = (const char*)l.buf[f::past] + p * held * row;
    const bool inside = given >= 0 && given <= INT64_MAX / 4;
    int64_t at = inside && given + l.i[f::at_add] > 0 ? given + l.i[f::at_add] : 0;
    if (circular) at %= T;
    const bool fits = (circular ? S <= T : at + S <= T) && (l.i[f::keep] || at <= held);
    const bool shared = l.buf[f::past] && l.buf[f::past] == l.buf[f::y];
    if (!inside || !fits || (shared && held != T)) {
      *l.error = 1;
      continue;
    }
    if (!shared) {
      const int64_t old = l.i[f::keep] ? held : at, kept = old < T ? old : T;
      if (kept) memcpy(y, past, size_t(kept * row));
      memset(y + kept * row, 0, size_t((T - kept) * row));
    }
    const char* x = (const char*)l.buf[f::x] + (b * l.i[f::x_b] + h * l.i[f::x_h]) * elem;
    for (int64_t s = 0; s < S; s++, x += l.i[f::x_s] * elem)
      memcpy(y + (circular ? (at + s) % T : at + s) * row, x, size_t(row));
  }
}

}  // namespace cache_write

static const Kernel kernel_cache_write = {"cache_write", cache_write::tasks, nullptr,
                                          cache_write::run};
static const Kernel kernel_gather_along = {"gather_along", gather_along::Family::tasks, nullptr,
                                           gather_along::run};
static const Kernel kernel_scatter_along = {"scatter_along", scatter_along::Family::tasks, nullptr,
                                            scatter_along::run};
static const Kernel kernel_gather_tuples = {"gather_tuples", gather_tuples::tasks, nullptr,
                                            gather_tuples::run};
static const Kernel kernel_scatter_tuples = {"scatter_tuples", scatter_tuples::tasks, nullptr,
                                             scatter_tuples::run};
static const Kernel kernel_one_hot = {"one_hot", one_hot::tasks, nullptr, one_hot::run};
static const Kernel kernel_triangle = {"triangle", triangle::tasks, nullptr, triangle::run};
static const Kernel* const table_indexed[] = {
    &kernel_cache_write,    &kernel_gather_along, &kernel_scatter_along, &kernel_gather_tuples,
    &kernel_scatter_tuples, &kernel_one_hot,      &kernel_triangle,      nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
