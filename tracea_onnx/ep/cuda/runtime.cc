// The CUDA backend's native side, as the rest of the library knows it.
#include "plan/runtime.h"

#include "cuda/factory.h"
#include "cuda/plan.h"
#include "cuda/session.h"

namespace tracea::cuda {
namespace {

constexpr const char* kGraphModes[] = {"0", "1", "session"};

SessionOptions read_options(const OrtSessionOptions* session) {
  SessionOptions o;
  if (const std::string v = option(session, "gpu_mem_limit"); !v.empty())
    o.memory_limit = number("gpu_mem_limit", v, 1, SIZE_MAX);
  if (const std::string v = option(session, "user_compute_stream"); !v.empty())
    o.user_stream = number("user_compute_stream", v, 0, UINT64_MAX, true);
  if (const std::string v = option(session, "sync_launches"); !v.empty())
    o.sync_launches = flag("sync_launches", v);
  if (const std::string v = option(session, "enable_cuda_graph"); !v.empty()) {
    int mode = 0;
    while (mode < 3 && v != kGraphModes[mode]) mode++;
    if (mode == 3)
      throw Failure("provider option enable_cuda_graph='" + v + "' is not one of: 0, 1, session");
    o.graphs = GraphMode(mode);
  }
  return o;
}

struct Cuda : Runtime {
  Cuda() : Runtime("cuda", false) {}

  void read_launch(const Json& row, bool init, const Plan& plan, const char*,
                   LaunchSpec& launch) const override {
    read_cuda_launch(row, init, plan, launch);
  }
  size_t align() const override { return kDeviceAlign; }
  void check_options(const OrtSessionOptions* session) const override { read_options(session); }
  std::unique_ptr<DeviceSession> open(const Setup& setup) const override {
    return std::make_unique<Session>(setup, read_options(setup.session));
  }
  std::unique_ptr<Devices> devices() const override { return std::make_unique<Factory>(); }
};

const Registered<Cuda> registered;

}  // namespace
}  // namespace tracea::cuda
