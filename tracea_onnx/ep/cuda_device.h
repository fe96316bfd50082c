// One GPU of the process: its primary context (shared with every other CUDA library), memory pool and loaded modules.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_driver.h"
#include "pack.h"

namespace tracea::cuda {

// What the driver says of a device without making a context on it. arch: compute capability x 10.
struct DeviceFacts { std::string name, pci_bus_id; int arch, sms; };

// A loaded cubin; equal bytes share one.
class Module {
 public:
  explicit Module(Blob cubin);  // throws Failure
  ~Module();
  Module(const Module&) = delete;
  // Finds a kernel and allows it that much dynamic shared memory and that cluster size. Throws Failure.
  Function function(const std::string& symbol, unsigned shared_bytes, unsigned cluster);

 private:
  struct Kernel { Function handle; unsigned shared_bytes, cluster; };
  ModuleHandle handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, Kernel> kernels_;
};

// Device memory that is kept when it is released. A block released by a run is free to the same lane at once (its stream orders the
// uses) and to everybody else when that lane was synchronised (`settle`). The device's context must be current.
class Pool {
 public:
  Address allocate(size_t bytes, const void* lane);  // throws Failure when the device has no such memory
  void release(Address address, const void* lane);
  void settle(const void* lane);
  // A run has ended without synchronisation: the next block that is released outside of a run waits for the device first.
  void expect_unfinished() { unfinished_ = true; }
  // Runs are spread over threads (ORT's parallel executor), and any of them may release what another's lane still uses: every block that is
  // released outside of a run waits for the device from now on.
  void expect_threads() { threads_ = true; }

 private:
  struct Free { Address address; const void* lane; };
  Address take(size_t bytes, const void* lane);
  std::mutex mutex_;
  std::atomic<bool> unfinished_{false}, threads_{false};
  std::multimap<size_t, Free> free_;
  std::unordered_map<Address, size_t> live_;
};

class Device {
 public:
  // How many the driver offers; 0 without a driver. Never throws.
  static int count();
  static DeviceFacts facts(int ordinal);  // throws Failure
  // The device with its context, made on first use and kept for the life of the process. Throws Failure.
  static Device& get(int ordinal);

  const int ordinal;
  const DeviceFacts about;
  Pool pool;

  Context context() const { return context_; }
  Address empty() const { return empty_; }  // stands for the data of a tensor without elements
  std::shared_ptr<Module> module(Blob cubin);  // the context must be current

 private:
  explicit Device(int ordinal);
  Context context_ = nullptr;
  Address empty_ = 0;
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Module>> modules_;  // by SHA-256
};

// Makes the device's context current on this thread while it lives.
class Current {
 public:
  explicit Current(const Device& device) { check(driver().context_push(device.context()), "using the device"); }
  ~Current() {
    Context previous;
    driver().context_pop(&previous);
  }
  Current(const Current&) = delete;
};

// Device memory that belongs to one object. It must be idle when it is released; the context must be current then.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes) : device_(&device), address_(device.pool.allocate(bytes, nullptr)), bytes_(bytes) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept { swap(o); return *this; }
  ~Buffer() { if (device_) device_->pool.release(address_, nullptr); }
  Address address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) { std::swap(device_, o.device_); std::swap(address_, o.address_); std::swap(bytes_, o.bytes_); }
  Device* device_ = nullptr;
  Address address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tracea::cuda
