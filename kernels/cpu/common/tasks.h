// How a memory-bound kernel is cut into tasks: one per thread, or one alone when the work is
// smaller than waking a thread.
#pragma once
#include "cpu/kernel.h"

namespace tracea {
namespace TRACEA_NS {

// `pieces` is the number of indivisible pieces, `ns` a rough estimate of the whole work in
// nanoseconds.
static inline int64_t even_tasks(int64_t pieces, int64_t ns, int threads) {
  const int64_t worth = ns / 8000 + 1;  // a phase costs about 1 us on every thread that takes part
  int64_t n = threads < worth ? threads : worth;
  return n < pieces ? n : pieces;
}

// What a variant makes of a size.
static inline int64_t scaled(int64_t n, double factor) { return int64_t(double(n) * factor); }

// Calls f with an element of so many bytes, 1, 2, 4 or 8, which kernels only move.
template <class F>
static inline void with_element(int64_t bytes, F f) {
  switch (bytes) {
    case 1: return f(uint8_t());  // NOLINT(bugprone-branch-clone): of other types
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    default: return f(uint64_t());
  }
}

// First piece of a task; the task ends where the next one begins.
static inline int64_t task_begin(int64_t pieces, int64_t task, int64_t tasks) {
  return pieces * task / tasks;
}

}  // namespace TRACEA_NS
}  // namespace tracea
