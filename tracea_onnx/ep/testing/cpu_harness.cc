// Runs and times a CPU plan without ONNX Runtime, each launch in any variant of its kernel: the C
// ABI of runtime/cpu_harness.py, for the tuner.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/clock.h"
#include "cpu/partition.h"
#include "cpu/spin.h"
#include "ort/boundary.h"
#include "testing/given_plan.h"
#include "testing/host_tensor.h"

using namespace tracea;

namespace {

// Threads that wait for work by spinning, as those of ONNX Runtime do between nodes.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int t = 1; t < threads; t++) others_.emplace_back([this, t] { serve(size_t(t)); });
  }
  ~Pool() {
    stop_ = true;
    turn_.fetch_add(1);
    for (auto& t : others_) t.join();
  }
  Pool(const Pool&) = delete;

  Parallel parallel() {
    return {threads_,
            [](void* self, Work body, size_t, void* context) {
              static_cast<Pool*>(self)->run(body, context);
            },
            this};
  }

 private:
  void run(Work body, void* context) {
    body_ = body, context_ = context;
    busy_.store(int(others_.size()));
    turn_.fetch_add(1);
    body(context, 0);
    for (int spins = 0; busy_.load(); spins++) spin(spins);
  }
  void serve(size_t worker) {
    for (int64_t seen = 0;; seen++) {
      for (int spins = 0; turn_.load() == seen; spins++) spin(spins);
      if (stop_) return;
      body_(context_, worker);
      busy_.fetch_sub(1);
    }
  }

  const int threads_;
  std::vector<std::thread> others_;
  std::atomic<int64_t> turn_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
  Work body_{[](void*, size_t) {}};
  void* context_ = nullptr;
};

struct Opened {
  std::unique_ptr<Partition> partition;
  std::unique_ptr<Pool> pool;
};

// A run with these variants whose outputs `output` gives memory for, as it does once.
void bind(const Opened& o, Partition::Run& run, const HostTensor* inputs, const int64_t* variants,
          HostOutput output, void* context) {
  const Plan& plan = o.partition->plan();
  auto& in = run.inputs();
  in.resize(plan.inputs.size());
  for (size_t k = 0; k < in.size(); k++)
    in[k] = {inputs[k].data, inputs[k].type, inputs[k].dims, inputs[k].rank};
  const Bound& bound = run.bind({variants, variants + plan.run.size()});
  auto& out = run.outputs();
  out.resize(bound.output_dims.size());
  for (size_t k = 0; k < out.size(); k++)
    out[k] = output(context, k, bound.output_dims[k].data(), bound.output_dims[k].size());
}

double median(std::vector<double>& of) {
  std::nth_element(of.begin(), of.begin() + long(of.size() / 2), of.end());
  return of[of.size() / 2];
}

}  // namespace

// Loads the first plan of a pack and prepares its constants. Null and a line in `message` on
// failure.
TRACEA_EXPORT void* tracea_cpu_open(int threads, const char* isa, const void* pack_bytes, size_t n,
                                    const char* const* names, const void* const* data,
                                    const size_t* bytes, size_t n_initializers, char* message,
                                    size_t message_size) noexcept {
  return answered<void*>(nullptr, message, message_size, [&] {
    auto opened = std::make_unique<Opened>();
    const GivenPlan given({pack_bytes, n, names, data, bytes, n_initializers}, "cpu", isa);
    opened->partition = std::make_unique<Partition>(
        given.plan, [&](const std::string& name) { return given.constant(name); });
    opened->pool = std::make_unique<Pool>(std::max(threads, 1));
    return opened.release();
  });
}

TRACEA_EXPORT void tracea_cpu_close(void* handle) noexcept { delete static_cast<Opened*>(handle); }

// Runs once. `variants`: of each launch, negative where the plan's is meant. `output(context, k,
// dims, rank)` gives memory for output k, once per output and before anything runs.
TRACEA_EXPORT int tracea_cpu_run(void* handle, const HostTensor* inputs, const int64_t* variants,
                                 HostOutput output, void* context, char* message,
                                 size_t message_size) noexcept {
  const Opened& o = *static_cast<Opened*>(handle);
  return answered(1, message, message_size, [&] {
    Partition::Run run(*o.partition);
    bind(o, run, inputs, variants, output, context);
    run.execute(o.pool->parallel());
    return 0;
  });
}

// Times `sides` sets of variants in turn, `turns` times each, one run as it is and one launch by
// launch. us[side]: median microseconds of a run; us[sides + side * launches + k]: of launch k.
TRACEA_EXPORT int tracea_cpu_time(void* handle, const HostTensor* inputs, const int64_t* variants,
                                  int sides, int turns, HostOutput output, void* context,
                                  double* us, char* message, size_t message_size) noexcept {
  const Opened& o = *static_cast<Opened*>(handle);
  return answered(1, message, message_size, [&] {
    const size_t n = o.partition->plan().run.size();
    const Parallel parallel = o.pool->parallel();
    std::vector<std::unique_ptr<Partition::Run>> runs;
    std::vector<std::vector<double>> found(size_t(sides) * (n + 1));
    for (int side = 0; side < sides; side++) {
      runs.push_back(std::make_unique<Partition::Run>(*o.partition));
      bind(o, *runs.back(), inputs, variants + size_t(side) * n, output, context);
      runs.back()->execute(parallel);  // what is set up the first time
    }
    for (int turn = 0; turn < turns; turn++)
      for (int k = 0; k < sides; k++) {
        const size_t side = size_t(turn % 2 ? sides - 1 - k : k);
        Partition::Run& run = *runs[side];
        const double start = seconds(parallel.threads == 1);
        run.execute(parallel);
        found[side].push_back(1e6 * (seconds(parallel.threads == 1) - start));
        const std::vector<double> each = run.time(parallel);
        for (size_t l = 0; l < n; l++) found[size_t(sides) + side * n + l].push_back(each[l]);
      }
    for (size_t k = 0; k < found.size(); k++) us[k] = median(found[k]);
    return 0;
  });
}
