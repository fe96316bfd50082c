// One GPU of the process: its primary context (shared with every other CUDA library), memory pool
// and loaded modules.
#pragma once
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "plan/pack.h"

namespace tracea::cuda {

// What the driver says of a device without making a context on it. arch: compute capability x 10;
// memory and its bandwidth: bytes, and bytes a second; smem: bytes of shared memory, of a block
// that asks for it and of a multiprocessor; clocks: kHz.
struct DeviceFacts {
  std::string name, pci_bus_id;
  int arch, sms;
  size_t memory;
  int smem_block, smem_sm, registers, l2, clock, memory_clock, memory_bits;
};

class Device;

// A loaded cubin; equal bytes share one.
class Module {
 public:
  Module(Device& device, Blob cubin);  // throws Failure
  ~Module();
  Module(const Module&) = delete;
  // Finds a kernel and allows it that much dynamic shared memory and that cluster size. Throws
  // Failure.
  Function function(const std::string& symbol, unsigned shared_bytes, unsigned cluster);

 private:
  struct Kernel {
    Function handle;
    unsigned shared_bytes, cluster;
  };
  Device& device_;
  ModuleHandle handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, Kernel> kernels_;
};

// A caching allocator. A block that a run releases is free at once to the same stream context,
// whose stream orders the uses, and to everybody else when that stream context was synchronised
// (`on_synchronized`). Blocks that recent runs did not use go back to the driver. The device's
// context must be current.
class Pool {
 public:
  // `pinned`: of host memory that the device reads and writes by itself; else of device memory.
  Pool(Device& device, bool pinned) : device_(device), pinned_(pinned) {}
  Address allocate(size_t bytes, const void* ctx);  // throws Failure when there is no such memory
  void release(Address address, const void* ctx);
  void on_synchronized(const void* ctx);
  // A block that a recorded graph uses: it is free only when it was both released and unretained.
  void retain(Address address);
  void unretain(Address address, const void* ctx);
  // Gives all free blocks back to the driver; whether there were any. Waits for the device.
  bool flush();
  // The sum of all blocks, free ones included, stays within the least limit of those that live.
  void add_limit(size_t bytes);
  void remove_limit(size_t bytes);
  // A run has ended without synchronisation: the next block that is released outside of a run waits
  // for the device first.
  void mark_async() { unfinished_ = true; }
  // Runs of a session are spread over threads (ORT's parallel executor), and any of them may
  // release what another's stream context still uses: while there is such a session, every block
  // that is released outside of a run waits for the device.
  void require_sync_on_free(bool begin) { threads_ += begin ? 1 : -1; }

 private:
  // By size, then by address: the same requests in the same order get the same blocks, run after
  // run, so that graphs are replayed.
  using Block = std::pair<size_t, Address>;
  struct Free {
    const void* ctx;
    long released;
  };
  struct Live {
    size_t bytes;
    bool retained, released;
  };
  Address take(size_t bytes, const void* ctx);
  void keep(const Block& block, const void* ctx) noexcept;
  Result obtain(Address* address, size_t bytes);
  void give_back(const Block& block);
  bool give_all_back();
  void trim();

  Device& device_;
  const bool pinned_;
  std::mutex mutex_;
  std::atomic<bool> unfinished_{false};
  std::atomic<int> threads_{0};
  std::map<Block, Free> free_;
  std::unordered_map<Address, Live> live_;
  std::multiset<size_t> limits_;
  size_t total_ = 0, used_ = 0;      // bytes of all blocks, of those that are not free
  size_t peak_ = 0, last_peak_ = 0;  // of used_, in this window of runs and the one before
  long runs_ = 0;
};

// What may be made again: dropped when the device has no memory left.
class Cache {
 public:
  virtual ~Cache() = default;
  virtual bool drop() = 0;  // whether there was anything; called from any thread
};

// The streams of a device that ONNX Runtime's users made there and did not release yet.
class SyncStreams {
 public:
  void add(Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    alive_.push_back(stream);
  }
  void remove(Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    alive_.erase(std::find(alive_.begin(), alive_.end(), stream));
  }
  bool has(Stream stream) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::find(alive_.begin(), alive_.end(), stream) != alive_.end();
  }
  // None is released meanwhile.
  template <class Body>
  void each(Body body) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Stream s : alive_) body(s);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Stream> alive_;
};

class Device {
 public:
  // How many the driver offers; 0 without a driver. Initialises CUDA. Never throws.
  static int count();
  static DeviceFacts facts(int ordinal);  // throws Failure
  // The device with its context, made on first use and kept for the life of the process. Throws
  // Failure.
  static Device& get(int ordinal);

  const int ordinal;
  const DeviceFacts about;
  Health health;
  Pool pool, pinned;
  SyncStreams sync_streams;

  Context context() const { return context_; }
  // The device in words that tell its kind from any other, and as metadata of a compile request
  // (`tracea_onnx/runtime/device_caps.py`).
  std::string identity() const;
  unsigned largest_cluster() const { return largest_cluster_; }  // blocks of one; 0 = not known
  std::vector<std::pair<std::string, std::string>> properties() const;
  Address empty() const { return empty_; }     // stands for the data of a tensor without elements
  std::shared_ptr<Module> module(Blob cubin);  // the context must be current

  // A call of the driver that may need memory of the device: where it has none, what is only kept
  // is given back, and the call is made again.
  template <class Call>
  Result attempt(Call call) {
    const Result r = call();
    return r == kOutOfMemory && reclaim() ? call() : r;
  }
  bool reclaim();  // whether anything was given back
  void add_cache(Cache* cache);
  void remove_cache(Cache* cache);

 private:
  explicit Device(int ordinal);
  void count_clusters();
  std::string
      clusters_;  // "blocks of a cluster:clusters at a time", of each size; empty = not known
  bool clusters_known_ = false;
  unsigned largest_cluster_ = 0;
  Context context_ = nullptr;
  Address empty_ = 0;
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Module>> modules_;  // by SHA-256
  std::mutex caches_mutex_;
  std::set<Cache*> caches_;
};

// Makes the device's context current on this thread while it lives.
class Current {
 public:
  explicit Current(Device& device);  // throws Failure, also where the context was lost
  // For destructors: throws nothing. Where the context cannot be used, calls of the driver fail,
  // and their results are not looked at.
  Current(Device& device, std::nothrow_t) noexcept;
  ~Current();
  Current(const Current&) = delete;

 private:
  const Driver* driver_ = nullptr;  // null: nothing was pushed
  Health* outer_;
};

// Device memory that belongs to one object. It must be idle when it is released; the context must
// be current then.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes)
      : device_(&device), address_(device.pool.allocate(bytes, nullptr)), bytes_(bytes) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Buffer() {
    if (device_) device_->pool.release(address_, nullptr);
  }
  Address address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(address_, o.address_);
    std::swap(bytes_, o.bytes_);
  }
  Device* device_ = nullptr;
  Address address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tracea::cuda
