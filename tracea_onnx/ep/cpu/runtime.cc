// The CPU backend's native side, as the rest of the library knows it.
#include "plan/runtime.h"

#include "cpu/bands.h"
#include "cpu/plan.h"
#include "cpu/threads.h"
#include "ort/compatibility.h"
#include "ort/graph.h"
#include "ort/options.h"
#include "ort/provider.h"

namespace tracea {
namespace {

// One partition, with the threads of its session.
struct Threaded : Executable {
  Threaded(std::shared_ptr<const Plan> plan, const Initializers& initializers,
           std::shared_ptr<Threads> session_threads)
      : partition(std::move(plan), initializers), threads(std::move(session_threads)) {}

  void compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
               const std::vector<size_t>& outputs) override {
    Partition::Run run(partition);
    auto& in = run.inputs();
    in.resize(inputs.size());
    for (size_t k = 0; k < inputs.size(); k++) {
      const OrtValue* value = nullptr;
      check(ort.KernelContext_GetInput(context, inputs[k], &value));
      if (!value) throw Failure("input '" + partition.plan().inputs[k].name + "' is missing");
      InputTensor& t = in[k];
      check(ort.GetTensorElementTypeAndShapeDataReference(value, &t.type, &t.dims, &t.rank));
      check(ort.GetTensorData(value, &t.data));
    }
    const Bound& bound = run.bind();
    auto& out = run.outputs();
    out.resize(outputs.size());
    const auto allocate = [&](size_t k, const std::vector<int64_t>& dims) {
      OrtValue* value = nullptr;
      check(ort.KernelContext_GetOutput(context, outputs[k], dims.data(), dims.size(), &value));
      check(ort.GetTensorMutableData(value, &out[k]));
    };
    for (size_t k = 0; k < outputs.size(); k++)
      if (!bound.is_counted(k)) allocate(k, bound.output_dims[k]);
    run.execute(ort_parallel(context, threads->count(context)));
    for (size_t k = 0; k < outputs.size(); k++)
      if (bound.is_counted(k)) {
        const std::vector<int64_t> dims = run.counted(k);
        allocate(k, dims);
        run.copy_counted(k, dims, out[k]);
      }
    stats.runs++;
  }

  Partition partition;
  std::shared_ptr<Threads> threads;
};

// Instruction set of a session: the machine's best unless the option `isa` names another.
std::string read_isa(const OrtSessionOptions* session) {
  std::string isa = option(session, "isa");
  if (isa.empty()) return best_isa();
  if (isa_available(isa.c_str())) return isa;
  std::string known;
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (k->isa == std::string(k->needs) && isa_available(k->isa))
      known += (known.empty() ? "" : ", ") + std::string(k->isa);
  throw Failure("provider option isa='" + isa +
                "' is not available on this machine; use one of: " + known);
}

struct Session : DeviceSession {
  Session(const OrtSessionOptions* session, int num_threads)
      : isa(read_isa(session)), threads(std::make_shared<Threads>(num_threads)) {}

  const char* variant() const override { return isa.c_str(); }
  // isa and threads: what tuning records are kept for; a Plan is the same without one. int8,
  // bf16_isa: what the kernels of 8-bit and of bfloat16 GEMMs need.
  std::vector<std::pair<std::string, std::string>> metadata() const override {
    return {{"isa", isa},
            {"int8", needed(isa.c_str(), "gemm_int8")},
            {"bf16_isa", needed(isa.c_str(), "gemm_bf16")},
            {"threads", std::to_string(threads->limit())}};
  }
  std::shared_ptr<Executable> compile(const Entry&, std::shared_ptr<const Plan> plan,
                                      const Initializers& initializers) override {
    return std::make_shared<Threaded>(std::move(plan), initializers, threads);
  }

  const std::string isa;
  const std::shared_ptr<Threads> threads;
};

struct Processor : Devices {
  void add(OrtEpFactory* factory, const OrtHardwareDevice* const* hardware, size_t n,
           OrtEpDevice** out, size_t max, size_t* count) override {
    for (size_t k = 0; k < n && *count < max; k++) {
      if (ort.HardwareDevice_Type(hardware[k]) != 0 /* CPU */) continue;
      OrtKeyValuePairs* metadata = nullptr;
      ort.CreateKeyValuePairs(&metadata);
      ort.AddKeyValuePair(metadata, kBackendKey, "cpu");
      ort.AddKeyValuePair(metadata, kDeviceKey,
                          "-1");  // so that the provider option device_id never means this one
      for (const auto& pair : kWeightlessMetadata) ort.AddKeyValuePair(metadata, pair[0], pair[1]);
      OrtStatus* status = ort.CreateEpDevice(factory, hardware[k], metadata, nullptr, &out[*count]);
      ort.ReleaseKeyValuePairs(metadata);
      check(status);
      ++*count;
      return;  // one device for all sockets: the provider uses ORT's threads
    }
  }
  bool runs(const std::string& backend, int64_t) override { return backend == "cpu"; }
};

struct Cpu : Runtime {
  Cpu() : Runtime("cpu", true) {}

  void read_launch(const Json& row, bool init, const Plan& plan, const char* isa,
                   LaunchSpec& launch) const override {
    read_family_launch(row, init, plan, *isa ? isa : best_isa(), launch);
  }
  void join(Plan& plan) const override { find_bands(plan); }
  void check_options(const OrtSessionOptions* session) const override { read_isa(session); }
  bool counts() const override { return true; }
  std::unique_ptr<DeviceSession> open(const Setup& setup) const override {
    return std::make_unique<Session>(setup.session, setup.options->num_threads);
  }
  std::unique_ptr<Devices> devices() const override { return std::make_unique<Processor>(); }
};

const Registered<Cpu> registered;

}  // namespace
}  // namespace tracea
