// What one run in flight needs for itself: arena, scratch, pointers, and the ticket counter its
// threads draw tasks from.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "cpu/bands.h"
#include "cpu/kernel.h"
#include "cpu/partition.h"

namespace tracea {

struct RunState : Counted<&Stats::live_states> {
  // Prepares for `bound` (a no-op when it is already prepared for it and for that many threads) and
  // sets the run's tensors.
  void attach(const Plan& plan, const std::shared_ptr<const Bound>& next, char* constants,
              int threads);
  void clear_outputs();
  void run(const Parallel& parallel);
  // The same, one launch after the other: microseconds of each, of the thread's time where there is
  // one thread.
  std::vector<double> time(const Parallel& parallel);
  // Index of the first launch that reported bad data, or -1; forgets it.
  int take_failure();
  const char* arena() const { return arena_.data(); }

  std::shared_ptr<const Bound> bound;
  std::vector<InputTensor> inputs;
  std::vector<void*> outputs;

 private:
  struct Patch {
    size_t operand;
    Base base;
    int index;
    int64_t offset;
  };
  // A launch, or with `bands` the launches that end with it.
  struct Step {
    int launch, bands;
  };
  // Steps [first, last): one of several tasks, or a chain of steps of one task each.
  // Tickets before..end belong to it: a task may start when `before` tasks are done.
  struct Phase {
    int first, last;
    int64_t tasks, before, end;
  };

  void prepare(const Plan& plan);
  void clear_words();
  void join(const Plan& plan, std::vector<int>& joined);
  void work(size_t worker);
  void execute(const Phase& phase, int64_t task, void* scratch) const;
  void share(const Phase& phase, const Parallel& parallel);

  int threads_ = 0;
  Memory arena_, scratch_, words_;
  size_t scratch_each_ = 0, words_bytes_ = 0;
  std::vector<void*> operands_;
  std::vector<Patch> patches_;
  std::vector<Launch> launches_;
  std::vector<const Kernel*> kernels_;
  std::vector<int> errors_;
  std::vector<Bands> bands_;
  std::vector<std::vector<int>> banded_;  // launches of each
  std::vector<Step> steps_;               // what has tasks for these shapes
  std::vector<Phase> phases_;
  bool parallel_ = false;  // whether any phase has more than one task
  alignas(64) std::atomic<int64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace tracea
