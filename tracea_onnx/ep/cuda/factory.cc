#include "cuda/factory.h"

#include <algorithm>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda/stream_context.h"
#include "cuda/stream.h"
#include "ort/compatibility.h"
#include "ort/graph.h"
#include "ort/provider.h"
#include "plan/failure.h"

namespace tracea::cuda {
namespace {

enum { kHardwareGpu = 1 };                               // OrtHardwareDeviceType
enum { kMemoryCpu = 0, kMemoryGpu = 1 };                 // OrtMemoryInfoDeviceType
enum { kMemoryDefault = 0, kMemoryHostAccessible = 5 };  // OrtDeviceMemoryType

struct Pairs {
  Pairs() { ort.CreateKeyValuePairs(&p); }
  ~Pairs() { ort.ReleaseKeyValuePairs(p); }
  Pairs(const Pairs&) = delete;
  void add(const char* key, const std::string& value) {
    ort.AddKeyValuePair(p, key, value.c_str());
  }
  OrtKeyValuePairs* p = nullptr;
};

std::string lower(std::string s) {
  for (char& c : s) c = char(tolower(static_cast<unsigned char>(c)));
  return s;
}

struct Allocator : OrtAllocator {
  const OrtMemoryInfo* info;
  int ordinal;
  bool pinned;
};

// An allocator's interface has no error: a run takes the line from here, for others it goes to
// stderr; ORT reports the null.
thread_local std::string refused;

template <class Body>
void reported(bool in_run, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& e) {
    if (in_run)
      contained([&] { refused = e.what(); },
                [](const char*) {});  // or no reason, for want of memory
    else
      complain(e.what());
  }
}

void* allocate(OrtAllocator* self, size_t bytes) {
  const Allocator& a = *static_cast<Allocator*>(self);
  void* p = nullptr;
  reported(running(), [&] {
    Device& device = Device::get(a.ordinal);
    const Current current(device);
    if (a.pinned) {
      p = reinterpret_cast<void*>(device.pinned.allocate(bytes, nullptr));
      return;
    }
    StreamContext* ctx = context_of_thread(device);
    const Address block = device.pool.allocate(bytes, ctx);
    if (ctx && ctx->recording) ctx->retain(block);
    p = reinterpret_cast<void*>(block);
  });
  return p;
}

void release(OrtAllocator* self, void* p) {
  if (!p) return;
  const Allocator& a = *static_cast<Allocator*>(self);
  reported(false, [&] {
    if (!usable()) return;  // a child of a fork has nothing to give back
    Device& device = Device::get(a.ordinal);
    const Current current(device, std::nothrow);
    const auto block = reinterpret_cast<Address>(p);
    if (a.pinned)
      return device.pinned.release(block, nullptr);  // copies from and to it were waited for
    StreamContext* ctx = context_of_thread(device);
    if (ctx && ctx->recording) ctx->retain(block);
    device.pool.release(block, ctx);
  });
}

bool ours(const OrtMemoryDevice* m) {
  return ort.MemoryDevice_GetDeviceType(m) == kMemoryGpu &&
         ort.MemoryDevice_GetVendorId(m) == kNvidia;
}
bool host(const OrtMemoryDevice* m) {
  return ort.MemoryDevice_GetDeviceType(m) == kMemoryCpu ||
         ort.MemoryDevice_GetMemoryType(m) == kMemoryHostAccessible;
}

// The device that a tensor lies on, or null for one on the host.
Device* device_of(const OrtValue* value) {
  if (on_host(value)) return nullptr;
  const OrtMemoryDevice* m = ort.Value_GetMemoryDevice(value);
  return &Device::get(ours(m) ? int(ort.MemoryDevice_GetDeviceId(m)) : 0);
}

void wait_on_all(const OrtValue* from, const OrtValue* to) {
  for (Device* device : {device_of(from), device_of(to)})
    if (StreamContext* ctx = device ? context_of_thread(*device) : nullptr) ctx->wait_on_all();
}

// Before the host reads or writes pinned memory that copies on this stream may still be about to
// write or read.
void finish_pinned(const OrtValue* from, const OrtValue* to, Stream given) {
  for (const OrtValue* value : {from, to}) {
    const OrtMemoryDevice* m = ort.Value_GetMemoryDevice(value);
    if (!given || !ours(m)) continue;
    Device& device = Device::get(int(ort.MemoryDevice_GetDeviceId(m)));
    const Current current(device);
    if (device.sync_streams.has(given))
      cuda::check(driver().stream_synchronize(given), "copying a tensor");
  }
}

// From one device to another: after what either was given so far, before what they are given next.
// A graph would not repeat that.
void copy_across(Device& source, Device& target, Address from, Address to, size_t bytes) {
  StreamContext *const reader = context_of_thread(source), *const writer =
                                                               context_of_thread(target);
  for (StreamContext* ctx : {reader, writer})
    if (ctx) ctx->host_copies = true;
  if (!reader || !writer)  // on a side without a run nothing tells whose work is meant: all of it
    for (Device* device : {&source, &target}) {
      const Current current(*device);
      cuda::check(driver().context_synchronize(), "copying a tensor between devices");
    }
  if (reader && writer) {
    order(target, writer->stream, source, reader->stream);
    const Current current(source);
    cuda::check(driver().copy_async(to, from, bytes, reader->stream),
                "copying a tensor between devices");
    return order(source, reader->stream, target, writer->stream);
  }
  const Current current(source);
  cuda::check(driver().copy(to, from, bytes), "copying a tensor between devices");
  cuda::check(driver().context_synchronize(), "copying a tensor between devices");
}

}  // namespace

Factory::~Factory() {
  for (const Exposed& e : exposed_) {
    if (e.device) ort.ReleaseMemoryInfo(e.device);
    if (e.pinned) ort.ReleaseMemoryInfo(e.pinned);
    if (e.own) ort.ReleaseHardwareDevice(e.own);
  }
}

const OrtHardwareDevice* Factory::virtual_device(Exposed& exposed) {
  Pairs metadata;
  metadata.add("is_virtual", "1");
  tracea::check(
      ort.CreateHardwareDevice(kHardwareGpu, kNvidia, 0, "NVIDIA", metadata.p, &exposed.own));
  return exposed.own;
}

const std::vector<ListedGpu>& Factory::gpus() {
  if (!gpus_) gpus_ = list_gpus();
  return *gpus_;
}

void Factory::add(OrtEpFactory* self, const OrtHardwareDevice* const* hardware, size_t n,
                  OrtEpDevice** out, size_t max, size_t* count) {
  std::vector<const OrtHardwareDevice*> gpus;
  for (size_t k = 0; k < n; k++)
    if (ort.HardwareDevice_Type(hardware[k]) == kHardwareGpu &&
        ort.HardwareDevice_VendorId(hardware[k]) == kNvidia)
      gpus.push_back(hardware[k]);
  const int devices = int(this->gpus().size());
  exposed_.reserve(exposed_.size() + size_t(devices));
  for (int ordinal = 0; ordinal < devices && *count < max; ordinal++) {
    const ListedGpu& facts = this->gpus()[size_t(ordinal)];
    const OrtHardwareDevice* match = nullptr;
    for (const OrtHardwareDevice* gpu : gpus) {
      const char* pci = ort.GetKeyValue(ort.HardwareDevice_Metadata(gpu), "pci_bus_id");
      if (pci && !facts.pci_bus_id.empty() && lower(pci) == lower(facts.pci_bus_id)) match = gpu;
    }
    if (!match && devices == 1 && gpus.size() == 1) match = gpus.front();
    Exposed& exposed = exposed_.emplace_back();
    if (!match) match = virtual_device(exposed);
    constexpr int kDeviceAllocator = 0;
    tracea::check(ort.CreateMemoryInfo_V2("TraceaCuda", kMemoryGpu, kNvidia, ordinal,
                                          kMemoryDefault, 0, kDeviceAllocator, &exposed.device));
    tracea::check(ort.CreateMemoryInfo_V2("TraceaCudaPinned", kMemoryGpu, kNvidia, ordinal,
                                          kMemoryHostAccessible, 0, kDeviceAllocator,
                                          &exposed.pinned));
    Pairs metadata;
    metadata.add(kBackendKey, "cuda");
    metadata.add(kDeviceKey, std::to_string(ordinal));
    for (const auto& pair : kWeightlessMetadata) metadata.add(pair[0], pair[1]);
    if (!facts.name.empty()) metadata.add("name", facts.name);
    if (facts.arch) metadata.add("arch", std::to_string(facts.arch));
    tracea::check(ort.CreateEpDevice(self, match, metadata.p, nullptr, &out[*count]));
    OrtEpDevice* made = out[(*count)++];
    tracea::check(ort.EpDevice_AddAllocatorInfo(made, exposed.device));
    tracea::check(ort.EpDevice_AddAllocatorInfo(made, exposed.pinned));
  }
}

bool Factory::runs(const std::string& backend, int64_t architecture) {
  return backend == "cuda" && std::any_of(gpus().begin(), gpus().end(), [&](const ListedGpu& gpu) {
           return !gpu.arch || gpu.arch == architecture;
         });
}

OrtAllocator* Factory::make_allocator(const OrtMemoryInfo* info) {
  auto a = new Allocator();
  a->version = ort.abi;
  a->info = info;
  tracea::check(ort.MemoryInfoGetId(info, &a->ordinal));
  a->pinned = ort.MemoryInfoGetDeviceMemType(info) == kMemoryHostAccessible;
  a->Alloc = [](OrtAllocator* self, size_t bytes) { return allocate(self, bytes); };
  a->Reserve = [](OrtAllocator* self, size_t bytes) { return allocate(self, bytes); };
  a->Free = [](OrtAllocator* self, void* p) { release(self, p); };
  a->Info = [](const OrtAllocator* self) { return static_cast<const Allocator*>(self)->info; };
  return a;
}

void Factory::release_allocator(OrtAllocator* allocator) {
  delete static_cast<Allocator*>(allocator);
}

OrtDataTransferImpl* Factory::make_data_transfer() {
  auto d = new OrtDataTransferImpl();
  d->ort_version_supported = ort.abi;
  d->Release = [](OrtDataTransferImpl* self) { delete self; };
  d->CanCopy = [](const OrtDataTransferImpl*, const OrtMemoryDevice* from,
                  const OrtMemoryDevice* to) {
    return (ours(from) && (ours(to) || host(to))) || (host(from) && ours(to));
  };
  d->CopyTensors = [](OrtDataTransferImpl*, const OrtValue** from, OrtValue** to,
                      OrtSyncStream** streams, size_t n) {
    for (size_t k = 0; k < n; k++) {
      // Inside of a run there is none where the host is to have the tensor, or has made it,
      // whichever stream the run was given.
      if (!streams || !streams[k]) wait_on_all(from[k], to[k]);
      copy_tensor(from[k], to[k], streams ? stream_of(streams[k]) : nullptr);
    }
    for (size_t k = 0; k < n; k++) finish_copies(from[k], to[k]);
  };
  return d;
}

OrtSyncStreamImpl* Factory::make_stream(const OrtMemoryDevice* where) {
  return make_user_stream(where);
}

void forget_refusal() { refused.clear(); }

void need_memory(const void* data) {
  if (data) return;
  const std::string why = std::exchange(refused, {});
  throw Failure(why.empty() ? "a tensor has no memory" : why);
}

// The device that a copy between host and device is on.
Device& one_of(Device* first, Device* second) {
  if (!first && !second) throw Failure("neither side of a copy is on a CUDA device");
  return first ? *first : *second;
}

bool on_host(const OrtValue* value) { return host(ort.Value_GetMemoryDevice(value)); }

void copy_tensor(const OrtValue* from, OrtValue* to, Stream given) {
  size_t bytes = 0;
  const void* source = nullptr;
  void* target = nullptr;
  tracea::check(ort.GetTensorSizeInBytes(from, &bytes));
  if (!bytes) return;
  tracea::check(ort.GetTensorData(from, &source));
  tracea::check(ort.GetTensorMutableData(to, &target));
  need_memory(source);
  need_memory(target);
  const bool from_host = on_host(from), to_host = on_host(to);
  if (from_host && to_host) {
    finish_pinned(from, to, given);
    memcpy(target, source, bytes);
    return;
  }
  Device *const source_device = device_of(from), *const target_device = device_of(to);
  for (Device* d : {source_device, target_device})
    if (StreamContext* ctx = given && d ? context_of_thread(*d) : nullptr) ctx->wait_on(given);
  const auto at = reinterpret_cast<Address>(source), goal = reinterpret_cast<Address>(target);
  if (source_device && target_device && source_device != target_device)
    return copy_across(*source_device, *target_device, at, goal, bytes);
  Device& device = one_of(source_device, target_device);
  const Current current(device);
  if (StreamContext* ctx = context_of_thread(device)) {
    ctx->host_copies |= from_host || to_host;
    cuda::check(driver().copy_async(goal, at, bytes, ctx->stream), "copying a tensor");
    if (ctx->recording && !ctx->host_copies)
      cuda::check(driver().copy_async(goal, at, bytes, ctx->capture_stream), "copying a tensor");
    return;
  }
  if (given && device.sync_streams.has(given)) {
    cuda::check(driver().copy_async(goal, at, bytes, given), "copying a tensor");
    device.pool.mark_async();  // what it reads or writes may be released meanwhile
    return device.pinned.mark_async();
  }
  // Outside of a run: on the legacy default stream, after whatever the stream contexts were given;
  // and done when the call returns, since not every stream waits for that one.
  cuda::check(driver().copy(goal, at, bytes), "copying a tensor");
  if (!to_host) cuda::check(driver().stream_synchronize(nullptr), "copying a tensor");
}

void finish_copies(const OrtValue* from, const OrtValue* to) {
  if (on_host(from) == on_host(to)) return;
  // The driver has taken pageable host memory when the copy call returns; pinned memory it reads
  // later.
  const bool read_later = on_host(from) && ort.MemoryDevice_GetDeviceType(
                                               ort.Value_GetMemoryDevice(from)) == kMemoryGpu;
  if (!on_host(to) && !read_later) return;
  Device& device = one_of(device_of(from), device_of(to));
  if (StreamContext* ctx = context_of_thread(device)) {
    const Current current(device);
    cuda::check(driver().stream_synchronize(ctx->stream), "copying a tensor");
  }
}

}  // namespace tracea::cuda
