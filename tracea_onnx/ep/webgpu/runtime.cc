// The WebGPU backend's native side, as the rest of the library knows it: on any adapter, and on
// those of Metal by the name `metal`.
#include "plan/runtime.h"

#include <cstdio>
#include <cstring>

#include "ort/boundary.h"
#include "ort/options.h"
#include "webgpu/library.h"
#include "webgpu/partition.h"

namespace tracea::webgpu {
namespace {

constexpr const char* kBackend = "webgpu";

Wanted read_options(const OrtSessionOptions* session, bool metal) {
  return {metal, option(session, "webgpu_adapter"), option(session, "wgpu_library")};
}

struct Session : DeviceSession {
  explicit Session(const Wanted& wanted) : device(Device::open(wanted)) {}

  std::string description() const override { return "WebGPU adapter: " + device->name; }
  DeviceSession::Prepared prepare(const Entry& entry,
                                  const std::shared_ptr<const Pack>& pack) override {
    struct Kept {
      std::shared_ptr<Device> device;
      Pipelines pipelines;
    };
    const std::shared_ptr<const Plan> plan = Plan::parse(entry, pack);
    auto kept = std::make_shared<Kept>();
    kept->device = device;
    const std::lock_guard<std::mutex> lock(device->use);
    kept->pipelines = make_pipelines(*device, *plan);
    return {plan, kept};
  }
  std::shared_ptr<Executable> compile(const Entry&, std::shared_ptr<const Plan> plan,
                                      const Initializers& initializers) override {
    return std::make_shared<Partition>(std::move(plan), device, initializers);
  }

  const std::shared_ptr<Device> device;
};

struct WebGpu : Runtime {
  explicit WebGpu(bool of_metal) : Runtime(of_metal ? "metal" : kBackend, false), metal(of_metal) {}

  const char* backend() const override { return kBackend; }
  void read_launch(const Json& row, bool init, const Plan& plan, const char*,
                   LaunchSpec& launch) const override {
    read_webgpu_launch(row, init, plan, launch);
  }
  size_t align() const override { return kDeviceAlign; }
  std::unique_ptr<DeviceSession> open(const Setup& setup) const override {
    return std::make_unique<Session>(read_options(setup.session, metal));
  }

  const bool metal;
};

struct OnAny : WebGpu {
  OnAny() : WebGpu(false) {}
};
struct OnMetal : WebGpu {
  OnMetal() : WebGpu(true) {}
};

const Registered<OnAny> on_any;
const Registered<OnMetal> on_metal;

}  // namespace
}  // namespace tracea::webgpu

// Where wgpu-native lies, as Python found it. Returns 0; 1 without memory.
TRACEA_EXPORT int tracea_webgpu_library(const char* path) noexcept {
  using namespace tracea;
  return answered(1, nullptr, 0, [&] {
    webgpu::offer_library(path);
    return 0;
  });
}

// Names of the adapters, a line each. Returns 0; 1 with what is missing in place of them.
TRACEA_EXPORT int tracea_webgpu_adapters(char* text, size_t size) noexcept {
  using namespace tracea;
  return answered(1, text, size, [&] {
    std::string lines;
    for (const std::string& name : webgpu::adapters({false, "", ""})) lines += name + "\n";
    snprintf(text, size, "%s", lines.c_str());
    return 0;
  });
}

// Whether WGSL is valid, by wgpu-native: returns 0; 1 with what is wrong in it. signature: as of a
// launch.
TRACEA_EXPORT int tracea_webgpu_check(const char* wgsl, const char* signature, char* message,
                                      size_t size) noexcept {
  using namespace tracea;
  return answered(1, message, size, [&] {
    const auto device = webgpu::Device::open({false, "", ""});
    const std::lock_guard<std::mutex> lock(device->use);
    device->pipeline({wgsl, strlen(wgsl)}, signature);
    return 0;
  });
}
