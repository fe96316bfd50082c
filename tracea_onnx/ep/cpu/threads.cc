#include "cpu/threads.h"

#include <algorithm>
#include <chrono>
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif

#include "ort/graph.h"
#include "plan/stats.h"

namespace tracea {
namespace {

int processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? int(n) : 1;
}

// Every body waits until all have arrived or the time is up; how many ever waited together is how
// many threads there are.
struct Probe {
  int wanted;
  std::atomic<int> present{0}, most{0};
  std::atomic<bool> over{false};
  std::chrono::steady_clock::time_point deadline;

  void attend() {
    if (over.load()) return;
    const int here = present.fetch_add(1) + 1;
    for (int most_seen = most.load();
         here > most_seen && !most.compare_exchange_weak(most_seen, here);) {
    }
    if (here == wanted) over.store(true);
    while (!over.load()) {
      if (std::chrono::steady_clock::now() > deadline) over.store(true);
      std::this_thread::yield();
    }
  }
};

}  // namespace

Threads::Threads(int option) : limit_(processors()), seen_(1) {
  if (option > 0) {
    limit_ = std::min(limit_, option);
    seen_ = limit_;  // the caller knows; nothing to measure
  }
}

int Threads::count(const OrtKernelContext* context) {
  const int known = seen_.load(std::memory_order_relaxed);
  if (known == limit_) return known;
  const int run = runs_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (run > kLastProbe || run & (run - 1)) return known;
  Probe probe;
  probe.wanted = limit_;
  probe.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  const Parallel pool = ort_parallel(context, limit_);
  pool.run(pool.self, Work([](void* m, size_t) { static_cast<Probe*>(m)->attend(); }),
           size_t(limit_), &probe);
  const int met = probe.most.load();
  int seen = known;
  while (met > seen && !seen_.compare_exchange_weak(seen, met)) {
  }
  stats.threads = seen_.load();
  return seen_.load();
}

Parallel ort_parallel(const OrtKernelContext* context, int threads) {
  return {threads,
          [](void* self, Work body, size_t n, void* argument) {
            // As many batches as bodies: each may run on its own thread.
            check(ort.KernelContext_ParallelFor(static_cast<const OrtKernelContext*>(self), body, n,
                                                n, argument));
          },
          const_cast<OrtKernelContext*>(context)};
}

}  // namespace tracea
