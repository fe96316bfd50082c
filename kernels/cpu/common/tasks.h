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

// First piece of a task; the task ends where the next one begins.
static inline int64_t task_begin(int64_t pieces, int64_t task, int64_t tasks) {
  return pieces * task / tasks;
}

}  // namespace TRACEA_NS
}  // namespace tracea
