// The GPU side of a session: its stream contexts, the kernels that ORT runs itself, and graph
// capture as ORT asks for it.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/partition.h"
#include "ort/options.h"
#include "ort/ort_abi.h"
#include "plan/runtime.h"

namespace tracea::cuda {

// Whether launches are replayed as CUDA graphs: per partition and addresses, or a whole run by ORT
// (fixed IOBinding only).
enum class GraphMode { kOff, kPartition, kSession };

// Provider options.
struct SessionOptions {
  GraphMode graphs = GraphMode::kPartition;  // enable_cuda_graph
  size_t memory_limit =
      0;  // gpu_mem_limit: bytes of device memory the provider may hold; 0 = no limit
  std::optional<uint64_t>
      user_stream;  // user_compute_stream: a CUstream as a number; 0 = the legacy default stream
  bool sync_launches = false;  // wait for every launch, so that an error names its kernel
};

class Session : public DeviceSession {
 public:
  // Without device memory, tensors at the border of partitions lie on the host and partitions copy
  // them. Throws Failure.
  Session(const Runtime::Setup& setup, const SessionOptions& options);
  ~Session() override;

  void attach(OrtEp& ep, DeviceSession* (*find)(OrtEp*)) override;
  std::shared_ptr<Executable> compile(const Entry&, std::shared_ptr<const Plan> plan,
                                      const Initializers& initializers) override;
  std::vector<std::pair<std::string, std::string>> metadata() const override;
  int64_t architecture() const override { return device_.about.arch; }
  std::string description() const override;
  Fit fit(const Entry& entry, std::string& why) const override;
  Prepared prepare(const Entry& entry, const std::shared_ptr<const Pack>& pack) override;
  bool device_memory() const override { return kernels_; }
  void expect_bodies() override { streams_->expect_bodies(); }

  void run_start(const OrtRunOptions* options);
  void run_end(bool synchronize);
  bool captured(int id);
  void replay(int id);
  void forget(int id);
  void synchronize();
  const OrtKernelRegistry* kernels() const { return kernels_; }

 private:
  struct Captured {
    Graph graph;
    StreamContext* ctx;
  };
  // The runs of one graph id (run option gpu_graph_id) so far. partitions: of the last one.
  struct Capture {
    int runs = 0;
    long partitions = 0;
    std::unique_ptr<Captured> done;
  };
  // Whether the graph and its stream context are kept for replays.
  bool finish_recording(StreamContext& ctx);

  Device& device_;
  const GraphMode graphs_;
  const size_t memory_limit_;
  const bool traps_;
  std::shared_ptr<StreamPool> streams_;
  OrtKernelRegistry* kernels_ = nullptr;
  std::mutex mutex_;
  std::map<int, Capture> captures_;
};

}  // namespace tracea::cuda
