// What the native side of a backend is: it reads the launches of its Plans and runs them in
// sessions of ONNX Runtime. A static `Registered` in a file of its folder is all that anything else
// knows of it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/failure.h"
#include "plan/pack.h"

struct OrtAllocator;
struct OrtDataTransferImpl;
struct OrtEp;
struct OrtEpDevice;
struct OrtEpFactory;
struct OrtHardwareDevice;
struct OrtKernelContext;
struct OrtMemoryDevice;
struct OrtMemoryInfo;
struct OrtSessionOptions;
struct OrtSyncStreamImpl;

namespace tracea {

struct LaunchSpec;
struct Options;
struct Plan;

// The device cannot run a kernel.
struct NoKernel : Failure {
  using Failure::Failure;
};

// One compiled partition.
class Executable {
 public:
  virtual ~Executable() = default;
  // One run; any number may be in flight. `inputs` and `outputs`: index in the fused node of each
  // of the plan's tensors. Throws Failure.
  virtual void compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
                       const std::vector<size_t>& outputs) = 0;
};

// A session on one device.
class DeviceSession {
 public:
  // What is known of an entry before its nodes are claimed: nothing, or its plan and what keeps its
  // kernels loaded.
  struct Prepared {
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const void> kernels;
  };
  // Whether the device runs an entry's plan: as well as one made for it, or slower.
  enum class Fit { kNone, kSlower, kWhole };

  virtual ~DeviceSession() = default;
  // `plan`: the entry's.
  virtual std::shared_ptr<Executable> compile(const Entry& entry, std::shared_ptr<const Plan> plan,
                                              const Initializers& initializers) = 0;
  // Which of the runtime's kernels a plan gets, as `Runtime::read_launch` takes it.
  virtual const char* variant() const { return ""; }
  // Of the device, where kernels are made for one; 0 otherwise.
  virtual int64_t architecture() const { return 0; }
  // A line for the log; "" for nothing to tell.
  virtual std::string description() const { return ""; }
  // What the compiler must know of the device, as metadata of its request.
  virtual std::vector<std::pair<std::string, std::string>> metadata() const { return {}; }
  // `why`: what a slower one was made for.
  virtual Fit fit(const Entry&, std::string& /*why*/) const { return Fit::kWhole; }
  // Throws NoKernel where ONNX Runtime is to run the nodes; other failures come up again in
  // `compile`.
  virtual Prepared prepare(const Entry&, const std::shared_ptr<const Pack>&) { return {}; }
  // Sets the callbacks of `ep` that the device needs; `find` gets the session of an ep.
  virtual void attach(OrtEp&, DeviceSession* (* /*find*/)(OrtEp*)) {}
  // Whether tensors between partitions and other nodes lie on the device.
  virtual bool device_memory() const { return false; }
  // Nodes in bodies of control flow were claimed.
  virtual void expect_bodies() {}
};

// The runtime's side of a factory: what it offers ONNX Runtime.
class Devices {
 public:
  virtual ~Devices() = default;
  // Appends the devices of this machine. Initialises none of them. Throws Failure.
  virtual void add(OrtEpFactory* factory, const OrtHardwareDevice* const* hardware, size_t n,
                   OrtEpDevice** out, size_t max, size_t* count) = 0;
  // Whether one of them may run what was compiled for this architecture of the backend.
  virtual bool runs(const std::string& backend, int64_t architecture) = 0;
  // Whether there are any with memory of their own, which the rest is for.
  virtual bool own_memory() { return false; }
  virtual OrtAllocator* make_allocator(const OrtMemoryInfo*) { return nullptr; }
  virtual void release_allocator(OrtAllocator*) {}
  virtual OrtDataTransferImpl* make_data_transfer() { return nullptr; }
  virtual OrtSyncStreamImpl* make_stream(const OrtMemoryDevice*) { return nullptr; }
};

class Runtime {
 public:
  // What a session asks for. ordinal: of the device. device_memory: ONNX Runtime was given it, else
  // the host's device. warn: where lines about what goes slower than it could are sent.
  struct Setup {
    const OrtSessionOptions* session;
    const Options* options;
    int ordinal;
    bool device_memory;
    std::function<void(const std::string&)> warn;
  };

  Runtime(std::string name, bool host) : name(std::move(name)), host(host) {}
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;

  const std::string name;  // by which the provider option `backend` asks for it
  const bool host;         // computes in the host's memory

  // The backend whose Plans it runs: several runtimes may run those of one.
  virtual const char* backend() const { return name.c_str(); }
  // Fills `launch` from one record of a plan whose buffers and expressions are known already.
  // `variant`: as a session gives it; "" = the machine's best. Throws Failure.
  virtual void read_launch(const Json& row, bool init, const Plan& plan, const char* variant,
                           LaunchSpec& launch) const = 0;
  // Notes launches of a plan that has been read that may run together.
  virtual void join(Plan&) const {}
  // Whether launches may count how large outputs are (`TensorSpec::axis`).
  virtual bool counts() const { return false; }
  // Of the buffers in an arena.
  virtual size_t align() const { return kAlign; }
  // Throws Failure where one of its provider options has a value that is not allowed, also in
  // sessions of other backends.
  virtual void check_options(const OrtSessionOptions*) const {}
  virtual std::unique_ptr<DeviceSession> open(const Setup& setup) const = 0;
  // Null for one that runs on the devices of another.
  virtual std::unique_ptr<Devices> devices() const { return nullptr; }
};

// All runtimes: those of the host first, then by name.
const std::vector<const Runtime*>& runtimes();
// Null where there is none.
const Runtime* find_runtime(const std::string& name);
void add_runtime(const Runtime* runtime);

template <class Made>
struct Registered {
  Registered() { add_runtime(&made); }
  Made made;
};

}  // namespace tracea
