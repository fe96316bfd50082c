// How many threads ORT's pool really has. No ORT function tells, so some runs of a session look.
#pragma once
#include <atomic>

#include "cpu/partition.h"
#include "ort/ort_abi.h"

namespace tracea {

class Threads {
 public:
  explicit Threads(int option);  // n = at most n; 0 = as many as ORT's pool has
  int limit() const { return limit_; }
  // Threads to use for this run. Without an option, runs 1, 2, 4, 8, ... of a session measure the
  // pool (at most a millisecond each) until every processor was seen: on a busy machine a thread
  // may be late once.
  int count(const OrtKernelContext* context);

 private:
  static constexpr int kLastProbe = 4096;
  int limit_;  // of the option and of the processors this process may use
  std::atomic<int> runs_{0};
  std::atomic<int> seen_;  // most threads of the pool that ever met
};

// Runs on ORT's pool.
Parallel ort_parallel(const OrtKernelContext* context, int threads);

}  // namespace tracea
