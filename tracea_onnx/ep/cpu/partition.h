// One compiled partition of a session: its plan, its constants, and what repeated and concurrent
// runs share.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ort/boundary.h"
#include "plan/bound.h"

namespace tracea {

// Runs body(context, k) for k in [0, n), on as many threads as there are; bodies may run one after
// the other on one thread. What threads of a pool run.
using Work = Callback<void(void* context, size_t k)>;

struct Parallel {
  int threads;  // 1: never call `run`
  void (*run)(void* self, Work body, size_t n, void* context);
  void* self;
};

struct RunState;

class Partition : Counted<&Stats::live_partitions> {
 public:
  // `initializer` gives the contents of a constant by name; they are read only during construction.
  // Runs the init launches. Throws Failure.
  Partition(std::shared_ptr<const Plan> plan,
            const std::function<Blob(const std::string&)>& initializer);
  ~Partition();

  const Plan& plan() const { return *plan_; }

  // One run in flight. Any number may exist at once, each used by one thread. What it needs is
  // borrowed from the partition, so a run like an earlier one allocates nothing.
  class Run {
   public:
    explicit Run(Partition& partition);
    ~Run();
    Run(const Run&) = delete;

    std::vector<InputTensor>& inputs();  // the caller fills them, then binds,
    const Bound&
    bind();  // the plan for their shapes (the last sets of shapes are remembered; throws Failure),
    // or the same with other variants of its launches, one number each, but for negative ones,
    const Bound& bind(const std::vector<int64_t>& variants);
    std::vector<void*>& outputs();  // then fills these,
    void execute(
        const Parallel& parallel);  // and runs; throws Failure when a kernel reports bad data
    // The same, launch after launch: microseconds of each.
    std::vector<double> time(const Parallel& parallel);
    // After a run: the dims of a counted output, and its elements, of these dims. Throws Failure
    // where the count is none of its axis.
    std::vector<int64_t> counted(size_t output) const;
    void copy_counted(size_t output, const std::vector<int64_t>& dims, void* to) const;

   private:
    void finish() const;

    Partition& partition_;
    std::unique_ptr<RunState> state_;
    std::shared_ptr<const Bound> bound_;
  };

 private:
  void run_init(const std::vector<const char*>& base);

  std::shared_ptr<const Plan> plan_;
  ConstantLayout layout_;
  Memory constants_;
  std::string bad_constants_;  // why every run fails, as it does in ONNX Runtime: an init launch
                               // met an index out of range
  std::mutex mutex_;
  BoundPlans bounds_;
  std::vector<std::unique_ptr<RunState>> idle_;  // one per run that was ever concurrent
};

}  // namespace tracea
