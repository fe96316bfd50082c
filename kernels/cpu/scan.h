// Sums up to each element along an axis of [outer, n, inner].
#pragma once
#include <type_traits>

#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace cumsum {

namespace f = fam::cumsum;

constexpr int64_t kColumns = 2048;  // whose rows stay in L1
static inline int64_t blocks(const Launch& l) { return (l.i[f::inner] + kColumns - 1) / kColumns; }

static int64_t tasks(const Launch& l, int threads) {
  const int64_t outer = l.i[f::outer], each = l.i[f::n] * l.i[f::inner];
  return outer && each ? even_tasks(outer * blocks(l), outer * each, threads) : 0;
}

// Types of their own: Clang drops the alignment of an alias template of T, and its loads would then
// require addresses that are multiples of the vector's size.
template <class T>
struct Vector;
template <>
struct Vector<float> {
  using type = vf;
};
template <>
struct Vector<uint32_t> {
  typedef uint32_t type __attribute__((vector_size(4 * W), aligned(4), may_alias));
};
template <>
struct Vector<uint64_t> {
  typedef uint64_t type __attribute__((vector_size(4 * W), aligned(8), may_alias));
};

// N vectors of columns, whose sums stay in registers.
template <int N, class T>
static inline void few(const T* x, T* y, int64_t n, int64_t step, bool exclusive) {
  using V = typename Vector<T>::type;
  constexpr int64_t lanes = 4 * W / sizeof(T);
  V sum[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; v++) {
    sum[v] = *(const V*)(x + v * lanes);
    *(V*)(y + v * lanes) = exclusive ? V{} : sum[v];
  }
  for (int64_t k = 1; k < n; k++) {
    x += step, y += step;
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
      const V before = sum[v];
      sum[v] += *(const V*)(x + v * lanes);
      *(V*)(y + v * lanes) = exclusive ? before : sum[v];
    }
  }
}

// Row after row, of `columns`.
template <class T>
static inline void rows(const T* x, T* y, int64_t n, int64_t step, int64_t columns,
                        bool exclusive) {
  using V = typename Vector<T>::type;
  constexpr int64_t lanes = 4 * W / sizeof(T);
  for (int64_t j = 0; j < columns; j++) y[j] = exclusive ? T(0) : x[j];
  for (int64_t k = 1; k < n; k++, x += step, y += step) {
    const T* const more = exclusive ? x : x + step;
    T* const to = y + step;
    int64_t j = 0;
    for (; j + lanes <= columns; j += lanes)
      *(V*)(to + j) = *(const V*)(y + j) + *(const V*)(more + j);
    for (; j < columns; j++) to[j] = y[j] + more[j];
  }
}

template <class T, class Sum>
static inline void row(const T* x, T* y, int64_t n, int64_t step, bool exclusive) {
  Sum sum = 0;
  for (int64_t k = 0; k < n; k++, x += step, y += step) {
    const Sum before = sum;
    sum += Sum(*x);
    *y = T(exclusive ? before : sum);
  }
}

// Integers wrap around. Single rows of floats are summed in double, rows side by side as they are.
template <class T, class Sum>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  constexpr int64_t lanes = 4 * W / sizeof(T);
  const int64_t n = l.i[f::n], inner = l.i[f::inner], across = blocks(l),
                pieces = l.i[f::outer] * across, step = l.i[f::reverse] ? -inner : inner,
                start = l.i[f::reverse] ? (n - 1) * inner : 0;
  const bool exclusive = l.i[f::exclusive];
  for (int64_t p = task_begin(pieces, task, tasks); p < task_begin(pieces, task + 1, tasks); p++) {
    const int64_t first = p % across * kColumns, from = p / across * n * inner + start + first,
                  columns = inner - first < kColumns ? inner - first : kColumns;
    const T* const x = (const T*)l.buf[f::x] + from;
    T* const y = (T*)l.buf[f::y] + from;
    int64_t j = 0;
    if (inner == 1)
      row<T, Sum>(x, y, n, step, exclusive), j = 1;
    else if (columns <= 8 * lanes) {
      const auto with = [&](auto count) {
        for (; j + count * lanes <= columns; j += count * lanes)
          few<count>(x + j, y + j, n, step, exclusive);
      };
      with(std::integral_constant<int, 8>()), with(std::integral_constant<int, 4>());
      with(std::integral_constant<int, 2>()), with(std::integral_constant<int, 1>());
    }
    if (j < columns) rows(x + j, y + j, n, step, columns - j, exclusive);
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  switch (l.i[f::dtype]) {
    case kI32: return run_as<uint32_t, uint32_t>(l, task, tasks);
    case kI64: return run_as<uint64_t, uint64_t>(l, task, tasks);
    default: return run_as<float, double>(l, task, tasks);
  }
}

}  // namespace cumsum

static const Kernel kernel_cumsum = {"cumsum", cumsum::tasks, nullptr, cumsum::run};
static const Kernel* const table_scan[] = {&kernel_cumsum, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
