// The GPU side of a session: its lanes, the copy kernels ORT puts between providers, and graph
// capture as ORT asks for it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/partition.h"
#include "ort/options.h"
#include "ort/ort_abi.h"

namespace tracea::cuda {

class Session {
 public:
  // `device_memory`: ORT was given a GPU device, so tensors at the border of partitions lie in its
  // memory; else they lie on the host and partitions copy them. `warn`: where lines about what goes
  // slower than it could are sent. Throws Failure.
  Session(int ordinal, bool device_memory, const Options& options,
          std::function<void(const std::string&)> warn);
  ~Session();

  // Sets the callbacks of `ep` that a GPU needs; `find` gets the session of an ep.
  void attach(OrtEp& ep, Session* (*find)(OrtEp*));
  std::shared_ptr<Partition> compile(std::shared_ptr<const Plan> plan,
                                     const std::function<Blob(const std::string&)>& initializer);
  // What the compiler must know of the device, as metadata of its request.
  std::vector<std::pair<std::string, std::string>> metadata() const;
  std::string description() const;
  int arch() const { return device_.about.arch; }
  int sms() const { return device_.about.sms; }
  // Loads the kernels of a plan, which stay loaded as long as they are kept. Throws NoKernel where
  // the device cannot run one of them.
  Kernels load(const Plan& plan);
  // Whether tensors between partitions and other nodes lie on the device.
  bool device_memory() const { return copy_kernels_; }
  // Nodes in bodies of control flow were claimed.
  void expect_bodies() { lanes_->expect_bodies(); }

  void run_start(const OrtRunOptions* options);
  void run_end(bool synchronize);
  bool captured(int id);
  void replay(int id);
  void forget(int id);
  void synchronize();
  const OrtKernelRegistry* copy_kernels() const { return copy_kernels_; }

 private:
  struct Captured {
    Graph graph;
    Lane* lane;
  };
  // The runs of one graph id (run option gpu_graph_id) so far. partitions: of the last one.
  struct Capture {
    int runs = 0;
    long partitions = 0;
    std::unique_ptr<Captured> done;
  };
  // Whether the graph and its lane are kept for replays.
  bool finish_recording(Lane& lane);

  Device& device_;
  const GraphMode graphs_;
  const size_t memory_limit_;
  std::shared_ptr<Lanes> lanes_;
  OrtKernelRegistry* copy_kernels_ = nullptr;
  std::mutex mutex_;
  std::map<int, Capture> captures_;
};

// One run of a partition inside ORT. `inputs` and `outputs`: index in the fused node of each of the
// plan's tensors. Throws Failure.
void compute(Partition& partition, OrtKernelContext* context, const std::vector<size_t>& inputs,
             const std::vector<size_t>& outputs);

}  // namespace tracea::cuda
