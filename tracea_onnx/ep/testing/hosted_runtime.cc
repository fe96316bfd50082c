// A runtime made of callbacks: the native side of a backend that is written in Python
// (tests/backends/reference.py). Its Plans are handed out as JSON; tensors lie in the host's
// memory.
#include "ort/boundary.h"
#include "ort/graph.h"
#include "plan/plan.h"
#include "plan/runtime.h"
#include "plan/stats.h"
#include "testing/host_tensor.h"

namespace tracea {

// blobs: of the pack; data: of buffers that are initializers, by the buffer. The last two arguments
// are room for a line that says what failed. `open` returns a handle, null on failure; `run` 0 on
// success.
struct HostedCalls {
  void* (*open)(const char* plan, const void* const* blobs, const size_t* blob_bytes,
                const void* const* data, const size_t* bytes, char* message, size_t message_size);
  int (*run)(void* handle, const HostTensor* inputs, HostOutput output, void* context,
             char* message, size_t message_size);
  void (*close)(void* handle);
};

namespace {

struct Raw : RuntimeLaunch {  // the callbacks read it
  const char* name() const override { return "hosted"; }
};

struct Hosted : Executable {
  Hosted(const HostedCalls& its_calls, const Entry& entry, const Plan& plan,
         const Initializers& initializers)
      : calls(its_calls) {
    std::vector<const void*> blobs, data;
    std::vector<size_t> blob_bytes, bytes;
    for (const Blob& b : plan.pack->blobs()) blobs.push_back(b.data), blob_bytes.push_back(b.bytes);
    for (const BufferSpec& b : plan.buffers) {
      const bool named = b.kind == BufferKind::kInitializer;
      const Blob contents = named ? initializers(b.name) : Blob{nullptr, 0};
      data.push_back(contents.data), bytes.push_back(contents.bytes);
    }
    char message[512] = "";
    handle = calls.open(entry.plan->dump().c_str(), blobs.data(), blob_bytes.data(), data.data(),
                        bytes.data(), message, sizeof message);
    if (!handle) throw Failure(message);
  }
  ~Hosted() override { calls.close(handle); }
  Hosted(const Hosted&) = delete;

  void compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
               const std::vector<size_t>& outputs) override {
    std::vector<HostTensor> in;
    for (const size_t k : inputs) {
      const OrtValue* value = nullptr;
      check(ort.KernelContext_GetInput(context, k, &value));
      if (!value) throw Failure("an input is missing");
      const TensorView t = tensor_view(value);
      in.push_back({t.data, t.type, uint32_t(t.rank), t.dims});
    }
    struct Outputs {
      OrtKernelContext* context;
      const std::vector<size_t>& at;
    } made{context, outputs};
    const HostOutput output = [](void* self, size_t k, const int64_t* dims, size_t rank) {
      void* data = nullptr;
      contained(
          [&] {
            const Outputs& o = *static_cast<Outputs*>(self);
            OrtValue* value = nullptr;
            check(ort.KernelContext_GetOutput(o.context, o.at[k], dims, rank, &value));
            check(ort.GetTensorMutableData(value, &data));
          },
          complain);
      return data;
    };
    char message[512] = "";
    if (calls.run(handle, in.data(), output, &made, message, sizeof message))
      throw Failure(message);
    stats.runs++;
  }

  const HostedCalls calls;
  void* handle;
};

struct HostedRuntime : Runtime {
  HostedRuntime(const char* its_name, const HostedCalls& its_calls)
      : Runtime(its_name, true), calls(its_calls) {}

  void read_launch(const Json&, bool, const Plan&, const char*, LaunchSpec& launch) const override {
    launch.own = std::make_shared<Raw>();
  }
  std::unique_ptr<DeviceSession> open(const Setup&) const override {
    struct Session : DeviceSession {
      explicit Session(const HostedCalls& its_calls) : calls(its_calls) {}
      std::shared_ptr<Executable> compile(const Entry& entry, std::shared_ptr<const Plan> plan,
                                          const Initializers& initializers) override {
        return std::make_shared<Hosted>(calls, entry, *plan, initializers);
      }
      const HostedCalls calls;
    };
    return std::make_unique<Session>(calls);
  }

  const HostedCalls calls;
};

}  // namespace
}  // namespace tracea

// Adds a runtime for the life of the process, before any session is made. Returns 0; 1 where there
// is one of that name.
TRACEA_EXPORT int tracea_add_runtime(const char* name, const tracea::HostedCalls* calls) noexcept {
  using namespace tracea;
  return answered(1, nullptr, 0, [&] {
    if (find_runtime(name)) return 1;
    add_runtime(new HostedRuntime(name, *calls));
    return 0;
  });
}
