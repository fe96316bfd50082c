// The library's entry points for ONNX Runtime: one factory, with the devices of all runtimes.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "ort/compatibility.h"
#include "ort/graph.h"
#include "ort/provider.h"
#include "plan/failure.h"

namespace tracea {

Ort ort;

namespace {

struct Factory;
// The one that offers the devices: a library that is registered twice has each of them once.
std::atomic<const Factory*> offering{nullptr};

struct Factory : OrtEpFactory {
  ~Factory() {
    const Factory* self = this;
    offering.compare_exchange_strong(self, nullptr);
  }

  Log log;
  std::vector<std::unique_ptr<Devices>> devices;  // the host's first

  // What has memory of its own. ONNX Runtime asks a factory for one data transfer, so all such
  // devices must be of one runtime.
  Devices* own_memory() const {
    for (const auto& d : devices)
      if (d->own_memory()) return d.get();
    return nullptr;
  }
};

const Factory& of(const OrtEpFactory* factory) { return *static_cast<const Factory*>(factory); }

// The host comes first: it is what a session gets that asks for no device.
void supported_devices(Factory& factory, const OrtHardwareDevice* const* devices, size_t n,
                       OrtEpDevice** out, size_t max, size_t* count) {
  *count = 0;
  const Factory* none = nullptr;
  if (!offering.compare_exchange_strong(none, &factory) && none != &factory) return;
  for (const auto& d : factory.devices) {
    try {
      d->add(&factory, devices, n, out, max, count);
    } catch (const std::exception& e) {  // a broken driver must not take the CPU away
      factory.log(LogLevel::kWarning, std::string("devices are not offered: ") + e.what());
    }
  }
}

// The ep-device a session was given: of several (policies such as PREFER_GPU give a GPU with the
// host behind it) the first, in whose memory ONNX Runtime puts tensors.
Chosen chosen_device(const OrtKeyValuePairs* const* metadata, size_t n) {
  Chosen c;
  for (size_t k = 0; k < n && c.backend.empty(); k++) {
    const auto value = [&](const char* key) {
      const char* text = metadata[k] ? ort.GetKeyValue(metadata[k], key) : nullptr;
      return std::string(text ? text : "");
    };
    c.backend = value(kBackendKey);
    if (const std::string id = value(kDeviceKey); !id.empty())
      c.ordinal = int(strtol(id.c_str(), nullptr, 10));  // our own metadata
  }
  return c;
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
    for (const Runtime* r : runtimes())
      if (auto devices = r->devices()) f->devices.push_back(std::move(devices));
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
      *out = new Provider(session, session_logger, chosen_device(metadata, n_devices));
    };
    f->ValidateCompiledModelCompatibilityInfo = [](OrtEpFactory* self,
                                                   const OrtHardwareDevice* const*, size_t,
                                                   const char* info, int* answer) {
      enum { kNotApplicable, kOptimal, kPreferRecompilation, kUnsupported };
      Compatibility made;
      if (!made.read(info)) {
        *answer = kNotApplicable;
        return;
      }
      *answer = kUnsupported;
      if (made.pack == int(Pack::kVersion))
        for (const auto& d : of(self).devices)
          if (d->runs(made.backend, made.architecture)) *answer = kOptimal;
    };
    f->ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<Provider*>(ep); };
    f->CreateAllocator = [](OrtEpFactory* self, const OrtMemoryInfo* info, const OrtKeyValuePairs*,
                            OrtAllocator** out) {
      Devices* devices = of(self).own_memory();
      *out = devices ? devices->make_allocator(info) : nullptr;
    };
    f->ReleaseAllocator = [](OrtEpFactory* self, OrtAllocator* allocator) {
      if (Devices* devices = of(self).own_memory()) devices->release_allocator(allocator);
    };
    f->CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** out) {
      Devices* devices = of(self).own_memory();
      *out = devices ? devices->make_data_transfer() : nullptr;
    };
    f->IsStreamAware = [](const OrtEpFactory* self) { return of(self).own_memory() != nullptr; };
    f->CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice* where,
                                      const OrtKeyValuePairs*, OrtSyncStreamImpl** out) {
      Devices* devices = of(self).own_memory();
      *out = devices ? devices->make_stream(where) : nullptr;
    };
    factories[0] = f;
    *n = 1;
  });
}

TRACEA_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  return tracea::guarded([&] { delete static_cast<tracea::Factory*>(factory); });
}

TRACEA_EXPORT const char* tracea_version() noexcept { return TRACEA_VERSION; }

#if defined(__ELF__)
// Destructors of the library's objects run when it is unloaded, and not once more at exit, where
// its memory may be another's. GCC's start-up files do this; zig links none into libraries.
extern "C" {
extern void* __dso_handle __attribute__((visibility("hidden")));  // NOLINT: the ABI's name
void __cxa_finalize(void*);                                       // NOLINT: the ABI's name
}
__attribute__((destructor)) static void run_destructors() {
  __cxa_finalize(static_cast<void*>(&__dso_handle));
}
#endif
