// The library's entry points for ONNX Runtime: one factory, with a device for the CPU and one for
// each NVIDIA GPU.
#include "cuda/factory.h"

#include <cstdio>
#include <cstring>
#include <mutex>

#include "cuda/device.h"
#include "cuda/stream.h"
#include "ort/graph.h"
#include "ort/provider.h"
#include "plan/failure.h"

namespace tracea {

Ort ort;

namespace {

struct Factory : OrtEpFactory {
  cuda::Factory cuda;
  Log log;
};

void supported_devices(Factory& factory, const OrtHardwareDevice* const* devices, size_t n,
                       OrtEpDevice** out, size_t max, size_t* count) {
  *count = 0;
  for (size_t k = 0; k < n && *count < max; k++) {
    if (ort.HardwareDevice_Type(devices[k]) != 0 /* CPU */) continue;
    OrtKeyValuePairs* metadata = nullptr;
    ort.CreateKeyValuePairs(&metadata);
    ort.AddKeyValuePair(metadata, "tracea_backend", "cpu");
    ort.AddKeyValuePair(metadata, cuda::kDeviceKey,
                        "-1");  // so that the provider option device_id never means this one
    OrtStatus* status = ort.CreateEpDevice(&factory, devices[k], metadata, nullptr, &out[*count]);
    ort.ReleaseKeyValuePairs(metadata);
    check(status);
    ++*count;
    break;  // one device for all sockets: the provider uses ORT's threads
  }
  // The CPU comes first: it is what a session gets that asks for no device.
  try {
    factory.cuda.add_devices(&factory, devices, n, out, max, count);
  } catch (const std::exception& e) {  // a broken driver must not take the CPU away
    factory.log(LogLevel::kWarning, std::string("GPUs are not offered: ") + e.what());
  }
}

// `ort` is one for the whole library, and sessions outlive the factories they came from: the first
// ONNX Runtime that asks is the only one. Whether `api` is its table.
bool serves(const OrtApi* api, uint32_t version) {
  static std::mutex mutex;
  static const OrtApi* first = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!first) {
    ort.attach(api, version);
    first = api;
  }
  return first == api;
}

}  // namespace
}  // namespace tracea

TRACEA_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base,
                                           const OrtLogger* logger, OrtEpFactory** factories,
                                           size_t max, size_t* n) noexcept {
  using namespace tracea;
  *n = 0;
  unsigned major = 0, minor = 0;
  const int fields = sscanf(base->GetVersionString(), "%u.%u", &major, &minor);
  const uint32_t version = minor < kMaxAbi ? minor : kMaxAbi;
  const OrtApi* api = base->GetApi(version);
  if (!api) return nullptr;  // cannot even make a status
  const auto create_status = reinterpret_cast<Ort::CreateStatus_t*>(
      reinterpret_cast<void* const*>(api)[0]);  // the caller's own
  if (fields != 2 || major != 1 || minor < kMinAbi)
    return create_status(int(Code::kFail),
                         "TraceaExecutionProvider needs ONNX Runtime 1.24 or newer; upgrade with: "
                         "python -m pip install -U onnxruntime");
  if (!serves(api, version))
    return create_status(
        int(Code::kFail),
        "TraceaExecutionProvider: this library serves another ONNX Runtime of this process "
        "already; register a copy of the file, under another path, with this one");
  return guarded([&] {
    if (max < 1) throw Failure("no room for the factory");
    auto f = new Factory();
    f->log = {logger, LogLevel::kOff};
    f->ort_version_supported = ort.abi;
    f->GetName = [](const OrtEpFactory*) { return kProviderName; };
    f->GetVendor = [](const OrtEpFactory*) { return "tracea-onnx"; };
    f->GetVendorId = [](const OrtEpFactory*) { return uint32_t(0); };
    f->GetVersion = [](const OrtEpFactory*) { return TRACEA_VERSION; };
    f->GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                                size_t n_devices, OrtEpDevice** out, size_t most, size_t* count) {
      supported_devices(*static_cast<Factory*>(self), devices, n_devices, out, most, count);
    };
    f->CreateEp = [](OrtEpFactory*, const OrtHardwareDevice* const*,
                     const OrtKeyValuePairs* const* metadata, size_t n_devices,
                     const OrtSessionOptions* session, const OrtLogger* session_logger,
                     OrtEp** out) {
      *out = nullptr;
      *out = new Provider(session, session_logger, cuda::chosen_device(metadata, n_devices));
    };
    f->ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<Provider*>(ep); };
    f->CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo* info, const OrtKeyValuePairs*,
                            OrtAllocator** out) { *out = cuda::make_allocator(info); };
    f->ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) {
      cuda::release_allocator(allocator);
    };
    f->CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** out) {
      *out = static_cast<Factory*>(self)->cuda.any_gpu() ? cuda::make_data_transfer() : nullptr;
    };
    f->IsStreamAware = [](const OrtEpFactory* self) {
      return static_cast<Factory*>(const_cast<OrtEpFactory*>(self))->cuda.any_gpu();
    };
    f->CreateSyncStreamForDevice = [](OrtEpFactory*, const OrtMemoryDevice* where,
                                      const OrtKeyValuePairs*, OrtSyncStreamImpl** out) {
      *out = cuda::make_user_stream(where);
    };
    factories[0] = f;
    *n = 1;
  });
}

TRACEA_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  return tracea::guarded([&] { delete static_cast<tracea::Factory*>(factory); });
}

TRACEA_EXPORT const char* tracea_version() noexcept { return TRACEA_VERSION; }
