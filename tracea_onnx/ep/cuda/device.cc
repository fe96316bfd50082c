#include "cuda/device.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ort/boundary.h"
#include "plan/failure.h"
#include "plan/sha256.h"
#include "plan/stats.h"

namespace tracea::cuda {
namespace {

constexpr size_t kEmptyBytes = 512;
constexpr size_t kSmall = size_t(1) << 20, kLarge = size_t(2) << 20;

// Few distinct sizes: 512-byte steps, then quarters of powers of two, then the driver's own 2 MiB
// pages.
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
    throw Failure("there is no CUDA device " + std::to_string(ordinal) + "; this machine has " +
                  std::to_string(Device::count()));
  check(driver().device_get(&device, ordinal), "opening device " + std::to_string(ordinal));
  return device;
}

}  // namespace

// --- modules

Module::Module(Device& device, Blob cubin) : device_(device) {
  // PTX must end in a zero byte; a cubin says its own length.
  const bool elf = cubin.bytes > 4 && !memcmp(cubin.data,
                                              "\x7f"
                                              "ELF",
                                              4);
  const std::string text = elf ? "" : std::string(cubin.data, cubin.bytes);
  check(device.attempt(
            [&] { return driver().module_load(&handle_, elf ? cubin.data : text.c_str()); }),
        "loading a kernel; the plan may be for another GPU");
}

Module::~Module() {
  const Current current(device_, std::nothrow);
  if (const Driver* d = usable(); d && handle_) d->module_unload(handle_);
}

Function Module::function(const std::string& symbol, unsigned shared_bytes, unsigned cluster) {
  constexpr unsigned kFreeShared = 48 * 1024, kPortableCluster = 8;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, added] = kernels_.emplace(symbol, Kernel{nullptr, kFreeShared, kPortableCluster});
  Kernel& k = it->second;
  if (added) {
    const Result r = device_.attempt([&] {
      return driver().module_function(&k.handle, handle_, symbol.c_str());
    });  // kernels may be loaded here
    if (r != kSuccess) kernels_.erase(it);
    check(r, "finding kernel '" + symbol + "'");
  }
  if (shared_bytes > k.shared_bytes) {  // launches of one kernel may ask for different amounts
    check(driver().function_attribute(k.handle, kDynamicSharedBytes, int(shared_bytes)),
          "giving kernel '" + symbol + "' " + std::to_string(shared_bytes) +
              " bytes of shared memory");
    k.shared_bytes = shared_bytes;
  }
  if (cluster > k.cluster) {
    check(driver().function_attribute(k.handle, kNonPortableCluster, 1),
          "allowing kernel '" + symbol + "' clusters of " + std::to_string(cluster));
    k.cluster = cluster;
  }
  return k.handle;
}

// --- memory

Address Pool::take(size_t bytes, const void* ctx) {
  for (auto it = free_.lower_bound({bytes, 0});
       it != free_.end() && it->first.first <= bytes + bytes / 2; ++it) {
    if (it->second.ctx && it->second.ctx != ctx) continue;
    const auto [size, address] = it->first;
    live_[address] = {size, false, false};
    used_ += size;
    peak_ = std::max(peak_, used_);
    free_.erase(it);
    return address;
  }
  return 0;
}

Result Pool::obtain(Address* address, size_t bytes) {
  if (!pinned_) return driver().memory_alloc(address, bytes);
  constexpr unsigned kPortable = 1, kMapped = 2;
  void* p = nullptr;
  const Result r = driver().host_alloc(&p, bytes, kPortable | kMapped);
  *address = reinterpret_cast<Address>(p);
  return r;
}

// Freeing waits for the device, so whatever a stream context still does with the block is done
// first.
void Pool::give_back(const Block& block) {
  if (const Driver* d = usable())
    pinned_ ? d->host_free(reinterpret_cast<void*>(block.second)) : d->memory_free(block.second);
  total_ -= block.first;
  stats.live_pool_blocks--;
}

bool Pool::give_all_back() {
  const bool any = !free_.empty();
  for (const auto& [block, state] : free_) give_back(block);
  free_.clear();
  return any;
}

Address Pool::allocate(size_t wanted, const void* ctx) {
  const size_t bytes = rounded(wanted);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const Address reused = take(bytes, ctx)) return reused;
    const size_t limit = limits_.empty() ? SIZE_MAX : *limits_.begin();
    if (bytes > limit || total_ > limit - bytes) {
      give_all_back();
      if (bytes > limit || total_ > limit - bytes)
        throw Failure("out of GPU memory: " + std::to_string(wanted) + " bytes were asked for, " +
                      std::to_string(total_) + " of the " + std::to_string(limit) +
                      " that the provider option gpu_mem_limit allows are in use; raise "
                      "gpu_mem_limit, or run smaller inputs or fewer sessions at a time");
    }
    total_ += bytes;  // before the lock is let go, so that no two exceed the limit together
  }
  Address address = 0;
  const Result r = device_.attempt([&] { return obtain(&address, bytes); });
  const std::lock_guard<std::mutex> lock(mutex_);
  if (r != kSuccess) total_ -= bytes;
  if (r == kOutOfMemory && !pinned_) {
    size_t left = 0, total = 0;
    driver().memory_info(&left, &total);
    throw Failure("out of GPU memory: " + std::to_string(wanted) + " bytes were asked for, " +
                  std::to_string(left) + " of " + std::to_string(total) + " are free");
  }
  check(r,
        "allocating " + std::to_string(wanted) + " bytes" + (pinned_ ? " of pinned memory" : ""));
  stats.live_pool_blocks++;
  try {
    live_[address] = {bytes, false, false};
  } catch (...) {
    give_back({bytes, address});
    throw;
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return address;
}

// Of a block that is not used any more. Where the host has no memory to remember it, it goes back
// to the driver.
void Pool::keep(const Block& block, const void* ctx) noexcept {
  if (!contained([&] { free_[block] = {ctx, runs_}; }, [](const char*) {})) give_back(block);
  used_ -= block.first;
}

void Pool::release(Address address, const void* ctx) {
  if (!ctx && (unfinished_.exchange(false) || threads_ > 0))
    if (const Driver* d = usable()) d->context_synchronize();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(address);
  if (it == live_.end()) return;
  if (it->second.retained) {
    it->second.released = true;
    return;
  }
  keep({it->second.bytes, address}, ctx);
  live_.erase(it);
}

void Pool::retain(Address address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = live_.find(address); it != live_.end()) it->second.retained = true;
}

void Pool::unretain(Address address, const void* ctx) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(address);
  if (it == live_.end() || !it->second.retained) return;
  it->second.retained = false;
  if (!it->second.released) return;
  keep({it->second.bytes, address}, ctx);
  live_.erase(it);
}

void Pool::on_synchronized(const void* ctx) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [block, state] : free_)
    if (state.ctx == ctx) state.ctx = nullptr;
  trim();
}

// Inputs of ever new sizes would otherwise leave blocks of all of them behind. Kept is what the
// runs of this window and the one before it used, and at most half as much again as they had in use
// at a time.
void Pool::trim() {
  constexpr long kWindow = 256;
  constexpr size_t kUnnoticed = size_t(64) << 20;
  if (++runs_ % kWindow == 0) last_peak_ = std::exchange(peak_, used_);
  const size_t peak = std::max(peak_, last_peak_), most = peak + peak / 2 + kUnnoticed;
  if (total_ <= most && runs_ % kWindow) return;
  std::vector<std::map<Block, Free>::iterator> idle;
  const auto list = [&] {
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (!it->second.ctx) idle.push_back(it);
  };
  if (!contained(list, [](const char*) {})) return;  // another time
  std::sort(idle.begin(), idle.end(),
            [](const auto& a, const auto& b) { return a->second.released < b->second.released; });
  for (const auto& it : idle) {
    if (total_ <= most && it->second.released > runs_ - 2 * kWindow) break;
    give_back(it->first);
    free_.erase(it);
  }
}

bool Pool::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return give_all_back();
}

void Pool::add_limit(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  limits_.insert(bytes);
}

void Pool::remove_limit(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = limits_.find(bytes); it != limits_.end()) limits_.erase(it);
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
  size_t memory = 0;
  check(driver().device_memory(&memory, device), "reading a device's memory");
  const auto fact = [&](DeviceAttribute which) { return attribute(device, which); };
  return {name,
          pci,
          fact(kCapabilityMajor) * 10 + fact(kCapabilityMinor),
          fact(kMultiprocessors),
          memory,
          fact(kSharedBytesOfBlock),
          fact(kSharedBytesOfMultiprocessor),
          fact(kRegistersOfMultiprocessor),
          fact(kL2Bytes),
          fact(kClockKhz),
          fact(kMemoryClockKhz),
          fact(kMemoryBusBits)};
}

Device& Device::get(int ordinal) {
  static std::mutex mutex;
  static auto* const made =
      new std::map<int, std::unique_ptr<Device>>();  // kept: the driver may be gone when statics
                                                     // are destroyed
  const std::lock_guard<std::mutex> lock(mutex);
  auto it = made->find(ordinal);
  if (it == made->end())
    it = made->emplace(ordinal, std::unique_ptr<Device>(new Device(ordinal))).first;
  return *it->second;
}

Device::Device(int n) : ordinal(n), about(facts(n)), pool(*this, false), pinned(*this, true) {
  check(driver().context_retain(&context_, handle_of(n)),
        "making a context on device " + std::to_string(n));
  const Current current(*this);
  empty_ = pool.allocate(kEmptyBytes, nullptr);
  count_clusters();
}

// How many clusters of each size the device holds where every block has a multiprocessor of its
// own: parts of a device (GPCs with multiprocessors switched off, slices of MIG) may hold none of
// the large ones. Not known where the driver cannot translate PTX.
void Device::count_clusters() {
  constexpr const char* kEmptyKernel =
      ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry tracea_empty() { ret; }\n";
  const Driver& d = driver();
  int offered = 0;
  if (about.arch < 90 ||
      d.device_attribute(&offered, kClusterLaunch, handle_of(ordinal)) != kSuccess || !offered) {
    clusters_known_ = true;
    largest_cluster_ = 1;
    return;
  }
  ModuleHandle module = nullptr;
  Function kernel = nullptr;
  if (d.module_load(&module, kEmptyKernel) != kSuccess) return;
  if (d.module_function(&kernel, module, "tracea_empty") == kSuccess &&
      d.function_attribute(kernel, kDynamicSharedBytes, about.smem_block) == kSuccess &&
      d.function_attribute(kernel, kNonPortableCluster, 1) == kSuccess) {
    clusters_known_ = true;
    largest_cluster_ = 1;
    for (const unsigned size : {2u, 4u, 8u, 16u}) {
      LaunchAttribute a;
      memset(&a, 0, sizeof a);
      a.id = kClusterDimension;
      a.value.cluster = {size, 1, 1};
      const LaunchConfig config{{size, 1, 1}, {128, 1, 1}, unsigned(about.smem_block),
                                nullptr,      &a,          1};
      int n = 0;
      if (d.active_clusters(&n, kernel, &config) != kSuccess || n < 1) continue;
      clusters_ += (clusters_.empty() ? "" : ",") + std::to_string(size) + ":" + std::to_string(n);
      largest_cluster_ = size;
    }
  }
  d.module_unload(module);
}

std::string Device::identity() const {
  return about.name + ", " + std::to_string(about.memory) + " bytes, " +
         std::to_string(about.memory_bits) + " bits at " + std::to_string(about.memory_clock) +
         " kHz, " + std::to_string(about.sms) + " multiprocessors at " +
         std::to_string(about.clock) + " kHz, driver " + std::to_string(driver().version);
}

std::vector<std::pair<std::string, std::string>> Device::properties() const {
  const size_t bandwidth = size_t(about.memory_clock) * 1000 * 2 * size_t(about.memory_bits) /
                           8;  // two transfers a clock
  std::vector<std::pair<std::string, std::string>> out = {
      {"device", identity()},
      {"name", about.name},
      {"arch", std::to_string(about.arch)},
      {"sms", std::to_string(about.sms)},
      {"memory", std::to_string(about.memory)},
      {"bandwidth", std::to_string(bandwidth)},
      {"l2", std::to_string(about.l2)},
      {"smem_block", std::to_string(about.smem_block)},
      {"smem_sm", std::to_string(about.smem_sm)},
      {"registers", std::to_string(about.registers)},
      {"clock", std::to_string(about.clock)},
      {"driver", std::to_string(driver().version)}};
  if (clusters_known_) out.emplace_back("clusters", clusters_);
  return out;
}

std::shared_ptr<Module> Device::module(Blob cubin) {
  const std::string key = Sha256().add(cubin.data, cubin.bytes).hex();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = modules_.find(key); it != modules_.end())
    if (auto m = it->second.lock()) return m;
  auto m = std::make_shared<Module>(*this, cubin);
  const long before = long(modules_.size());
  for (auto it = modules_.begin(); it != modules_.end();)
    it = it->second.expired() ? modules_.erase(it) : std::next(it);  // of sessions that are gone
  modules_[key] = m;
  stats.live_modules += long(modules_.size()) - before;
  return m;
}

bool Device::reclaim() {
  bool any = false;
  {
    const std::lock_guard<std::mutex> lock(caches_mutex_);
    for (Cache* cache : caches_) any |= cache->drop();
  }
  any |= pool.flush();
  any |= pinned.flush();
  return any;
}

void Device::add_cache(Cache* cache) {
  const std::lock_guard<std::mutex> lock(caches_mutex_);
  caches_.insert(cache);
}

void Device::remove_cache(Cache* cache) {
  const std::lock_guard<std::mutex> lock(caches_mutex_);
  caches_.erase(cache);
}

// --- the current context

Current::Current(Device& device) : outer_(cuda::health) {
  const Driver& d = driver();
  device.health.need();
  cuda::health = &device.health;
  const Result r = d.context_push(device.context());
  if (r != kSuccess) {
    const struct Restore {  // there is no destructor after a failed constructor
      Health* outer;
      ~Restore() { cuda::health = outer; }
    } restore{outer_};
    check(r, "using the device");
  }
  driver_ = &d;
}

Current::Current(Device& device, std::nothrow_t) noexcept : outer_(cuda::health) {
  cuda::health = &device.health;
  const Driver* d = usable();
  if (d && d->context_push(device.context()) == kSuccess) driver_ = d;
}

Current::~Current() {
  Context previous;
  if (driver_) driver_->context_pop(&previous);
  cuda::health = outer_;
}

}  // namespace tracea::cuda
