// One compiled partition on a GPU: its plan, its constants in device memory, and what repeated and
// concurrent runs share.
#pragma once
#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/stream_context.h"
#include "cuda/launch.h"
#include "plan/bound.h"
#include "plan/runtime.h"

namespace tracea::cuda {

constexpr size_t kDeviceAlign =
    256;  // of an arena: whole sectors, and more than a tensor map asks for

// A tensor of a run. One that lies in host memory, or where kernels cannot read it (not on a
// 16-byte boundary), goes through the arena.
struct Tensor {
  void* data;
  bool host;
};

// The loaded kernels of a plan: of its launches of a run, then of those that prepare constants.
struct Kernels {
  std::vector<std::shared_ptr<Module>> modules;
  std::vector<Function> run, init;
};
// Throws NoKernel, or Failure where the device has no memory or does not work. The context must be
// current.
Kernels load_kernels(Device& device, const Plan& plan);

class Partition : public Cache, public Executable, Counted<&Stats::live_partitions> {
 public:
  // `initializer` gives the contents of a constant by name; they are read only during construction.
  // Loads the kernels, copies the constants and runs the init launches. Where the session's
  // settings say so, recorded graphs are replayed from the second run with the same shapes and
  // addresses on. Throws Failure.
  Partition(std::shared_ptr<const Plan> plan, std::shared_ptr<StreamPool> streams,
            const Initializers& initializer);
  ~Partition() override;
  void compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
               const std::vector<size_t>& outputs) override;

  const Plan& plan() const { return *plan_; }
  StreamPool& streams() const { return *streams_; }
  std::shared_ptr<const Bound> bound(const std::vector<InputTensor>& inputs) {
    return bounds_.get(*plan_, layout_, inputs);
  }
  // Enqueues a run on the stream context; waits for its end only when a tensor lies in host memory.
  // Re-entrant for different stream contexts. Throws Failure.
  void run(StreamContext& ctx, const std::shared_ptr<const Bound>& bound,
           const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs);
  // The launches of this stream context's last run of `bound`, laid out for its addresses.
  const LaunchList& launches(StreamContext& ctx, const std::shared_ptr<const Bound>& bound);
  // Drops the recorded graphs of all stream contexts that are not about to replay one.
  bool drop() override;

 private:
  // Sets of shapes per stream context; sets of addresses per set of shapes; graphs of all stream
  // contexts, and of one at least.
  static constexpr size_t kPrepared = 16, kSeen = 64, kGraphs = 64, kLaneGraphs = 4;
  static constexpr long kTrials = 16, kReplays = 16;  // graphs made before their use is judged, and
                                                      // replays that make one worth its cost

  // Addresses that came again, with their graph. `plain`: no graph can be made of them.
  struct Recorded : Counted<&Stats::live_addresses> {
    Recorded(const Addresses& a, long now) : key(a), used(now) {}
    Addresses key;
    Graph graph;
    long used;
    bool plain = false;
  };
  // The launches for one set of shapes on one stream context.
  struct Prepared : Counted<&Stats::live_prepared> {
    Prepared(const Partition& p, std::shared_ptr<const Bound> b)
        : bound(std::move(b)),
          launches(p.device_, p.plan_->run, p.kernels_.run, bound->operands, bound->ints) {}
    std::shared_ptr<const Bound> bound;
    LaunchList launches;
    std::list<Recorded> recorded;
    std::array<uint64_t, kSeen>
        seen{};  // digests of the addresses that came last: most come once, and leave nothing else
    size_t next_seen = 0;
    long generation = -1;         // of the stream context's arena when `recorded` began
    long made = 0, replayed = 0;  // graphs
  };
  struct ContextState {
    const StreamContext* ctx;
    std::vector<std::unique_ptr<Prepared>> prepared;  // most recent first
    long clock = 0;
    std::atomic<bool> busy{false};  // graphs are replayed or dropped
  };
  struct Busy;

  void make_constants(const Initializers& initializer);
  ContextState& state_of(const StreamContext& ctx);
  Prepared& prepared(ContextState& state, const std::shared_ptr<const Bound>& bound);
  void enqueue(StreamContext& ctx, ContextState& state, Prepared& p, const Addresses& addresses);
  // Whether a graph was replayed; else the launches are still to be made.
  bool replay(StreamContext& ctx, ContextState& state, Prepared& p, const Addresses& addresses);
  static void make_room(ContextState& state, size_t most);
  static bool drop_graphs(ContextState& state);                      // whether there were any
  static bool comes_again(Prepared& p, const Addresses& addresses);  // remembers them
  size_t graphs_per_context();
  void give_up_graph(Recorded& recorded, const Failure& why);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<StreamPool> streams_;
  Device& device_;
  std::atomic<bool> warned_{false};
  bool faults_ = false;     // whether a launch may meet bad data
  size_t words_bytes_ = 0;  // of the launch that meets in most words
  Kernels kernels_;
  ConstantLayout layout_;
  Buffer constants_;
  std::string bad_constants_;  // why every run fails, as it does in ONNX Runtime: an init launch
                               // met bad data
  BoundPlans bounds_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ContextState>> states_;
};

}  // namespace tracea::cuda
