#include "cuda_device.h"

#include <cstring>

#include "failure.h"
#include "sha256.h"

namespace tracea::cuda {
namespace {

constexpr size_t kEmptyBytes = 512;
constexpr size_t kSmall = size_t(1) << 20, kLarge = size_t(2) << 20;

// Few distinct sizes: 512-byte steps, then quarters of powers of two, then the driver's own 2 MiB pages.
size_t rounded(size_t bytes) {
  if (bytes >= kSmall) return align_up(bytes, kLarge);
  size_t step = 512;
  while (step * 8 < bytes) step *= 2;
  return align_up(bytes ? bytes : 1, step);
}

int attribute(int device, DeviceAttribute which) {
  int v = 0;
  check(driver().device_attribute(&v, which, device), "reading a device attribute");
  return v;
}

int handle_of(int ordinal) {
  int device = 0;
  if (ordinal < 0 || ordinal >= Device::count())
    throw Failure("there is no CUDA device " + std::to_string(ordinal) + "; this machine has " + std::to_string(Device::count()));
  check(driver().device_get(&device, ordinal), "opening device " + std::to_string(ordinal));
  return device;
}

}  // namespace

// --- modules

Module::Module(Blob cubin) {
  // PTX must end in a zero byte; a cubin says its own length.
  const bool elf = cubin.bytes > 4 && !memcmp(cubin.data, "\x7f" "ELF", 4);
  const std::string text = elf ? "" : std::string(cubin.data, cubin.bytes);
  check(driver().module_load(&handle_, elf ? cubin.data : text.c_str()), "loading a kernel; the plan may be for another GPU");
}

Module::~Module() {
  if (handle_) driver().module_unload(handle_);
}

Function Module::function(const std::string& symbol, unsigned shared_bytes, unsigned cluster) {
  constexpr unsigned kFreeShared = 48 * 1024, kPortableCluster = 8;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, added] = kernels_.emplace(symbol, Kernel{nullptr, kFreeShared, kPortableCluster});
  Kernel& k = it->second;
  if (added) {
    const Result r = driver().module_function(&k.handle, handle_, symbol.c_str());
    if (r != kSuccess) kernels_.erase(it);
    check(r, "finding kernel '" + symbol + "'");
  }
  if (shared_bytes > k.shared_bytes) {  // launches of one kernel may ask for different amounts
    check(driver().function_attribute(k.handle, kDynamicSharedBytes, int(shared_bytes)), "giving kernel '" + symbol + "' " + std::to_string(shared_bytes) + " bytes of shared memory");
    k.shared_bytes = shared_bytes;
  }
  if (cluster > k.cluster) {
    check(driver().function_attribute(k.handle, kNonPortableCluster, 1), "allowing kernel '" + symbol + "' clusters of " + std::to_string(cluster));
    k.cluster = cluster;
  }
  return k.handle;
}

// --- memory

Address Pool::take(size_t bytes, const void* lane) {
  for (auto it = free_.lower_bound(bytes); it != free_.end() && it->first <= bytes + bytes / 2; ++it) {
    if (it->second.lane && it->second.lane != lane) continue;
    const Address address = it->second.address;
    live_[address] = it->first;
    free_.erase(it);
    return address;
  }
  return 0;
}

Address Pool::allocate(size_t wanted, const void* lane) {
  const size_t bytes = rounded(wanted);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const Address reused = take(bytes, lane)) return reused;
  Address address = 0;
  Result r = driver().memory_alloc(&address, bytes);
  if (r == kOutOfMemory && !free_.empty()) {  // freeing waits for the device, so whatever a lane still used is done
    for (const auto& [size, block] : free_) driver().memory_free(block.address);
    free_.clear();
    r = driver().memory_alloc(&address, bytes);
  }
  if (r == kOutOfMemory) {
    size_t left = 0, total = 0;
    driver().memory_info(&left, &total);
    throw Failure("out of GPU memory: " + std::to_string(wanted) + " bytes were asked for, " + std::to_string(left) + " of " + std::to_string(total) + " are free");
  }
  check(r, "allocating " + std::to_string(wanted) + " bytes");
  live_[address] = bytes;
  return address;
}

void Pool::release(Address address, const void* lane) {
  if (!lane && (unfinished_.exchange(false) || threads_)) driver().context_synchronize();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(address);
  if (it == live_.end()) return;
  free_.emplace(it->second, Free{address, lane});
  live_.erase(it);
}

void Pool::settle(const void* lane) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [size, block] : free_)
    if (block.lane == lane) block.lane = nullptr;
}

// --- devices

int Device::count() {
  try {
    int n = 0;
    return driver().device_count(&n) == kSuccess ? n : 0;
  } catch (const Failure&) {
    return 0;
  }
}

DeviceFacts Device::facts(int ordinal) {
  driver();  // says why there is none
  const int device = handle_of(ordinal);
  char name[256] = {}, pci[32] = {};
  check(driver().device_name(name, sizeof name - 1, device), "reading a device's name");
  check(driver().device_pci_bus_id(pci, sizeof pci - 1, device), "reading a device's address");
  return {name, pci, attribute(device, kCapabilityMajor) * 10 + attribute(device, kCapabilityMinor), attribute(device, kMultiprocessors)};
}

Device& Device::get(int ordinal) {
  static std::mutex mutex;
  static auto* const made = new std::map<int, std::unique_ptr<Device>>();  // kept: the driver may be gone when statics are destroyed
  const std::lock_guard<std::mutex> lock(mutex);
  auto it = made->find(ordinal);
  if (it == made->end()) it = made->emplace(ordinal, std::unique_ptr<Device>(new Device(ordinal))).first;
  return *it->second;
}

Device::Device(int n) : ordinal(n), about(facts(n)) {
  check(driver().context_retain(&context_, handle_of(n)), "making a context on device " + std::to_string(n));
  const Current current(*this);
  empty_ = pool.allocate(kEmptyBytes, nullptr);
}

std::shared_ptr<Module> Device::module(Blob cubin) {
  const std::string key = Sha256().add(cubin.data, cubin.bytes).hex();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<Module>& known = modules_[key];
  std::shared_ptr<Module> m = known.lock();
  if (!m) known = m = std::make_shared<Module>(cubin);
  return m;
}

}  // namespace tracea::cuda
