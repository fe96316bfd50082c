#include "cuda/ort_kernels.h"

#include <vector>

#include "cuda/factory.h"
#include "ort/graph.h"
#include "ort/provider.h"
#include "plan/failure.h"

namespace tracea::cuda {
namespace {

using Types = std::vector<const OrtDataType*>;
using Streams = std::shared_ptr<StreamPool>;

// More types than there are: ORT says which it knows. FP8 and 4-bit tensors are among them, though
// no Plan reads or makes any yet (`element_bytes` of plan/bound.cc).
constexpr int kStringTensor = 8, kLastType = 31, kInt64Tensor = 7, kBoolTensor = 9;
constexpr int kAnyVersion = 999;                 // as far as ORT knows any
enum { kMemCpuInput = -2, kMemCpuOutput = -1 };  // OrtMemType

Types tensor_types() {
  Types types;
  for (int t = 1; t <= kLastType; t++) {
    const OrtDataType* type = nullptr;
    if (t == kStringTensor) continue;
    if (OrtStatus* s = ort.GetTensorDataType(t, &type))
      ort.ReleaseStatus(s);
    else if (type)
      types.push_back(type);
  }
  return types;
}

Types tensor_type(int t) {
  const OrtDataType* type = nullptr;
  tracea::check(ort.GetTensorDataType(t, &type));
  return {type};
}

// The definition of a kernel, and its way into a registry.
class Definition {
 public:
  Definition(const char* op, int first_version, int last_version) {
    tracea::check(ort.CreateKernelDefBuilder(&builder_));
    tracea::check(ort.KernelDefBuilder_SetOperatorType(builder_, op));
    tracea::check(ort.KernelDefBuilder_SetDomain(builder_, ""));
    tracea::check(ort.KernelDefBuilder_SetSinceVersion(builder_, first_version, last_version));
    tracea::check(ort.KernelDefBuilder_SetExecutionProvider(builder_, kProviderName));
  }
  ~Definition() { ort.ReleaseKernelDefBuilder(builder_); }
  Definition(const Definition&) = delete;
  Definition& host_input(size_t k) {
    tracea::check(ort.KernelDefBuilder_SetInputMemType(builder_, k, kMemCpuInput));
    return *this;
  }
  Definition& host_output(size_t k) {
    tracea::check(ort.KernelDefBuilder_SetOutputMemType(builder_, k, kMemCpuOutput));
    return *this;
  }
  // `name`: of a type in the operator's schema.
  Definition& allow(const char* name, const Types& types) {
    tracea::check(
        ort.KernelDefBuilder_AddTypeConstraint(builder_, name, types.data(), types.size()));
    return *this;
  }
  void add_to(OrtKernelRegistry* registry, OrtKernelCreateFunc create, const Streams* streams) {
    OrtKernelDef* made = nullptr;
    tracea::check(ort.KernelDefBuilder_Build(builder_, &made));
    OrtStatus* const added =
        ort.KernelRegistry_AddKernel(registry, made, create, const_cast<Streams*>(streams));
    ort.ReleaseKernelDef(made);
    tracea::check(added);
  }

 private:
  OrtKernelDefBuilder* builder_ = nullptr;
};

void copy_compute(OrtKernelContext* context) {
  const OrtValue* from = nullptr;
  OrtValue* to = nullptr;
  tracea::check(ort.KernelContext_GetInput(context, 0, &from));
  int type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  tracea::check(ort.GetTensorElementTypeAndShapeDataReference(from, &type, &dims, &rank));
  tracea::check(ort.KernelContext_GetOutput(context, 0, dims, rank, &to));
  copy_tensor(from, to);  // of a partition of this run, or to new memory
  finish_copies(from, to);
}

const OrtKernelCreateFunc kCreateCopy = [](void*, const OrtKernelInfo*, OrtKernelImpl** out) {
  auto k = new OrtKernelImpl();
  k->ort_version_supported = ort.abi;
  k->Compute = [](OrtKernelImpl*, OrtKernelContext* context) { copy_compute(context); };
  k->Release = [](OrtKernelImpl* self) { delete self; };
  *out = k;
};

// ORT runs bodies itself, by kernels that it makes for the provider. With them values that go into
// a body and come out of it stay on the device.
const OrtKernelCreateFunc kCreateIf = [](void*, const OrtKernelInfo* info, OrtKernelImpl** out) {
  tracea::check(ort.CreateIfKernel(info, out));
};

// What ORT asks of the provider for a Loop.
struct LoopHelper : OrtLoopKernelHelper {
  explicit LoopHelper(Streams s) : OrtLoopKernelHelper{}, streams(std::move(s)) {
    ort_version_supported = ort.abi;
    Release = [](OrtLoopKernelHelper* self) { delete static_cast<LoopHelper*>(self); };
    ConcatOutput = [](OrtLoopKernelHelper* self, void* given, const OrtValue* const* values,
                      size_t n, void* out, size_t bytes) {
      static_cast<LoopHelper*>(self)->join(given, values, n, out, bytes);
    };
  }
  // Copies what the iterations gave one after the other to `out`, which has this many bytes.
  void join(void* given, const OrtValue* const* values, size_t n, void* out, size_t bytes) {
    const Current current(streams->device);
    ScopedContext scoped(*streams);
    if (given) scoped.ctx().wait_on(static_cast<Stream>(given));
    auto goal = reinterpret_cast<Address>(out);
    size_t left = bytes;
    for (size_t k = 0; k < n; k++) {
      size_t size = 0;
      const void* data = nullptr;
      tracea::check(ort.GetTensorSizeInBytes(values[k], &size));
      tracea::check(ort.GetTensorData(values[k], &data));
      if (size > left || size * n != bytes)
        throw Failure("the iterations of a Loop give tensors of different sizes");
      if (!size) continue;
      cuda::check(
          driver().copy_async(goal, reinterpret_cast<Address>(data), size, scoped.ctx().stream),
          "copying a tensor");
      goal += size;
      left -= size;
    }
    scoped.done();
  }
  const Streams streams;
};

const OrtKernelCreateFunc kCreateLoop = [](void* streams, const OrtKernelInfo* info,
                                           OrtKernelImpl** out) {
  auto helper = std::make_unique<LoopHelper>(*static_cast<const Streams*>(streams));
  tracea::check(ort.CreateLoopKernel(info, helper.get(), out));
  [[maybe_unused]] const auto* owned_by_ort = helper.release();
};

// What ORT asks of the provider for a Scan.
struct ScanHelper : OrtScanKernelHelper {
  ScanHelper() : OrtScanKernelHelper{} {
    ort_version_supported = ort.abi;
    Release = [](OrtScanKernelHelper* self) { delete static_cast<ScanHelper*>(self); };
    Transpose = [](OrtScanKernelHelper*, const size_t*, size_t, const OrtValue*, OrtSyncStream*,
                   OrtValue*) { throw Failure("internal: a Scan along other axes was claimed"); };
  }
};

const OrtKernelCreateFunc kCreateScan = [](void*, const OrtKernelInfo* info, OrtKernelImpl** out) {
  auto helper = std::make_unique<ScanHelper>();
  tracea::check(ort.CreateScanKernel(info, helper.get(), out));
  [[maybe_unused]] const auto* owned_by_ort = helper.release();
};

}  // namespace

OrtKernelRegistry* make_kernels(const Streams* streams) {
  OrtKernelRegistry* registry = nullptr;
  tracea::check(ort.CreateKernelRegistry(&registry));
  const Types any = tensor_types(), yes_or_no = tensor_type(kBoolTensor);
  // For a provider that compiles all its nodes, ORT leaves what its own MemcpyFromHost makes in
  // host memory; with kernels of ours it does not.
  Definition("MemcpyFromHost", 1, 1)
      .host_input(0)
      .allow("T", any)
      .add_to(registry, kCreateCopy, nullptr);
  Definition("MemcpyToHost", 1, 1)
      .host_output(0)
      .allow("T", any)
      .add_to(registry, kCreateCopy, nullptr);
  Definition("If", 1, kAnyVersion)
      .host_input(0)
      .allow("B", yes_or_no)
      .allow("V", any)
      .add_to(registry, kCreateIf, nullptr);
  Definition("Loop", 1, kAnyVersion)
      .host_input(0)
      .host_input(1)
      .allow("I", tensor_type(kInt64Tensor))
      .allow("B", yes_or_no)
      .allow("V", any)
      .add_to(registry, kCreateLoop, streams);
  Definition("Scan", 9, kAnyVersion).allow("V", any).add_to(registry, kCreateScan, nullptr);
  return registry;
}

}  // namespace tracea::cuda
