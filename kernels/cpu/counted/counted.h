// Results whose size their operands' contents say: where elements are not zero, elements that are
// chosen, elements that are different. One task, which also writes how many there are.
#pragma once
#include <algorithm>

#include "common/keys.h"
#include "common/simd.h"
#include "common/tasks.h"
#include "counted/suppress.h"

namespace tracea {
namespace TRACEA_NS {

// One, also where there are no elements: they are counted, too.
static int64_t one_task(const Launch&, int) { return 1; }

namespace nonzero {

namespace f = fam::nonzero;

constexpr int kAxes = 6;

template <class T>
static void run_as(const Launch& l) {
  const int64_t* const n = l.i + f::n0;
  const int64_t rank = l.i[f::rank], columns = n[kAxes - 1];
  int64_t rows = std::find(n, n + kAxes, 0) == n + kAxes;
  for (int d = 0; d < kAxes - 1 && rows; d++) rows *= n[d];
  const int64_t total = rows * columns;
  int64_t* const y = (int64_t*)l.buf[f::y];
  int64_t* const last = y + (rank - 1) * total;
  int64_t at[kAxes] = {}, found = 0;
  for (int64_t r = 0; r < rows; r++) {
    const T* const x = (const T*)l.buf[f::x] + r * columns;
    const int64_t first = found;
    int64_t j = 0;
    const auto meet = [&](int64_t k) {
      last[found] = k;  // at most the element's own number
      found += x[k] != T(0);
    };
    constexpr int64_t kStep = 8 / sizeof(T);  // zeros by words
    for (; j + kStep <= columns; j += kStep) {
      uint64_t word;
      memcpy(&word, x + j, 8);
      if (!word) continue;
      for (int64_t k = j; k < j + kStep; k++) meet(k);
    }
    for (; j < columns; j++) meet(j);
    for (int64_t d = 0; d < rank - 1; d++)
      std::fill(y + d * total + first, y + d * total + found, at[kAxes - rank + d]);
    for (int d = kAxes - 2; d >= 0 && ++at[d] == n[d]; d--) at[d] = 0;
  }
  *(int64_t*)l.buf[f::count] = found;
}

static void run(const Launch& l, int64_t, int64_t, void*) {
  switch (l.i[f::dtype]) {
    case kF32: return run_as<float>(l);
    case kI32: return run_as<int32_t>(l);
    case kBool:
    case kU8: return run_as<uint8_t>(l);
    case kI64: return run_as<int64_t>(l);
    default: *l.error = 1, *(int64_t*)l.buf[f::count] = 0;
  }
}

}  // namespace nonzero

namespace compress {

namespace f = fam::compress;

template <class T>
static int64_t chosen(const T* x, const uint8_t* condition, int64_t n, T* y) {
  int64_t found = 0;
  for (int64_t j = 0; j < n; j++) {
    y[found] = x[j];  // at most the element's own number
    found += condition[j] != 0;
  }
  return found;
}

static void run(const Launch& l, int64_t, int64_t, void*) {
  const int64_t n = l.i[f::n], most = std::min(n, l.i[f::length]), outer = l.i[f::outer],
                inner = l.i[f::inner], elem = l.i[f::elem], bytes = inner * elem;
  const uint8_t* const condition = (const uint8_t*)l.buf[f::condition];
  int64_t found = 0;
  for (int64_t j = 0; j < most; j++) found += condition[j] != 0;
  *(int64_t*)l.buf[f::count] = found;
  if (!found || !bytes) return;
  for (int64_t o = 0; o < outer; o++) {
    const char* const x = (const char*)l.buf[f::x] + o * n * bytes;
    char* y = (char*)l.buf[f::y] + o * most * bytes;
    if (inner == 1) {
      with_element(elem, [&](auto zero) {
        using T = decltype(zero);
        chosen((const T*)x, condition, most, (T*)y);
      });
      continue;
    }
    for (int64_t j = 0; j < most; j++)
      if (condition[j]) {
        memcpy(y, x + j * bytes, size_t(bytes));
        y += bytes;
      }
  }
}

}  // namespace compress

namespace unique {

namespace f = fam::unique;

static int64_t in_order(float v) { return ordered(v); }
static int64_t in_order(int64_t v) { return v; }

// A slice by its first element, which mostly decides.
struct Item {
  int64_t key, slice;
};

static inline bool empty(const Launch& l) { return !l.i[f::outer] || !l.i[f::inner]; }

// Places follow from what is kept here, where no operand of a Plan lies.
static size_t scratch(const Launch& l, int) {
  return empty(l) ? 0 : size_t(l.i[f::n]) * (sizeof(Item) + sizeof(int64_t));
}

// Slices of no elements are all equal.
static void run_empty(const Launch& l) {
  const int64_t n = l.i[f::n];
  if (l.buf[f::first] && n) *(int64_t*)l.buf[f::first] = 0;
  if (l.buf[f::counts] && n) *(int64_t*)l.buf[f::counts] = n;
  if (l.buf[f::inverse]) memset(l.buf[f::inverse], 0, size_t(n) * sizeof(int64_t));
  *(int64_t*)l.buf[f::count] = n > 0;
}

template <class T>
static void run_as(const Launch& l, Item* items) {
  const int64_t n = l.i[f::n], outer = l.i[f::outer], inner = l.i[f::inner];
  const T* const x = (const T*)l.buf[f::x];
  const bool more = outer * inner > 1;
  // Negative, 0 or positive, as a is less than b, equal, or more.
  const auto compare = [&](const Item& a, const Item& b) {
    if (a.key != b.key) return a.key < b.key ? -1 : 1;
    if (!more) return 0;
    for (int64_t o = 0; o < outer; o++)
      for (int64_t k = 0; k < inner; k++) {
        const int64_t va = in_order(x[(o * n + a.slice) * inner + k]),
                      vb = in_order(x[(o * n + b.slice) * inner + k]);
        if (va != vb) return va < vb ? -1 : 1;
      }
    return 0;
  };
  for (int64_t j = 0; j < n; j++) items[j] = {in_order(x[j * inner]), j};
  std::sort(items, items + n, [&](const Item& a, const Item& b) {
    const int way = compare(a, b);
    return way ? way < 0 : a.slice < b.slice;
  });
  // The slices in order, and whose elements each has: those of the first that is equal.
  int64_t* const like = (int64_t*)(items + n);
  for (int64_t j = 0; j < n; j++)
    like[items[j].slice] =
        j && !compare(items[j - 1], items[j]) ? like[items[j - 1].slice] : items[j].slice;
  int64_t* const order = (int64_t*)items;  // at most the place of the item itself
  int64_t found = 0;  // the first of equal slices, in the order of the results, to the front
  for (int64_t j = 0; j < n; j++) {
    const int64_t slice = l.i[f::sorted] ? items[j].slice : j;
    if (like[slice] == slice) order[found++] = slice;
  }
  T* const y = (T*)l.buf[f::y];
  int64_t* const first = (int64_t*)l.buf[f::first];
  int64_t* const counts = (int64_t*)l.buf[f::counts];
  for (int64_t u = 0; u < found; u++) {
    const int64_t slice = order[u];
    for (int64_t o = 0; o < outer; o++)
      memcpy(y + (o * n + u) * inner, x + (o * n + slice) * inner, size_t(inner) * sizeof(T));
    if (first) first[u] = slice;
    if (counts) counts[u] = 0;
    like[slice] = ~u;  // the number of a result, of slices that are the first
  }
  for (int64_t j = 0; j < n; j++) {
    const int64_t u = ~(like[j] < 0 ? like[j] : like[like[j]]);
    if (l.buf[f::inverse]) ((int64_t*)l.buf[f::inverse])[j] = u;
    if (counts) counts[u]++;
  }
  *(int64_t*)l.buf[f::count] = found;
}

static void run(const Launch& l, int64_t, int64_t, void* memory) {
  if (empty(l))
    run_empty(l);
  else if (l.i[f::dtype] == kF32)
    run_as<float>(l, (Item*)memory);
  else if (l.i[f::dtype] == kI64)
    run_as<int64_t>(l, (Item*)memory);
  else
    *l.error = 1, *(int64_t*)l.buf[f::count] = 0;
}

}  // namespace unique

static const Kernel kernel_nonzero = {"nonzero", one_task, nullptr, nonzero::run};
static const Kernel kernel_compress = {"compress", one_task, nullptr, compress::run};
static const Kernel kernel_unique = {"unique", one_task, unique::scratch, unique::run};
static const Kernel kernel_nms = {"nms", nms::tasks, nms::scratch, nms::run};
static const Kernel kernel_nms_list = {"nms_list", one_task, nullptr, nms_list::run};
static const Kernel* const table_counted[] = {&kernel_nonzero, &kernel_compress, &kernel_unique,
                                              &kernel_nms,     &kernel_nms_list, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
