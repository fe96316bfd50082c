// The GPU side of the provider's factory: devices, allocators and copies between host and device
// memory.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/listing.h"
#include "ort/ort_abi.h"
#include "plan/runtime.h"

namespace tracea::cuda {

constexpr uint32_t kNvidia = 0x10DE;
class Factory : public Devices {
 public:
  Factory() = default;
  Factory(const Factory&) = delete;
  ~Factory() override;

  // Appends one ep-device per GPU: on the hardware devices ORT shows where they can be told apart,
  // else on virtual ones. None without a driver.
  void add(OrtEpFactory* self, const OrtHardwareDevice* const* hardware, size_t n,
           OrtEpDevice** out, size_t max, size_t* count) override;
  bool runs(const std::string& backend, int64_t architecture) override;
  bool own_memory() override { return !gpus().empty(); }
  // Of device memory from the pool, or of pinned host memory. Makes no context before something is
  // allocated.
  OrtAllocator* make_allocator(const OrtMemoryInfo* info) override;
  void release_allocator(OrtAllocator* allocator) override;
  OrtDataTransferImpl* make_data_transfer() override;
  OrtSyncStreamImpl* make_stream(const OrtMemoryDevice* where) override;

 private:
  const std::vector<ListedGpu>& gpus();
  struct Exposed {
    OrtMemoryInfo *device = nullptr, *pinned = nullptr;
    OrtHardwareDevice* own = nullptr;
  };
  const OrtHardwareDevice* virtual_device(Exposed& exposed);
  std::vector<Exposed> exposed_;
  std::optional<std::vector<ListedGpu>> gpus_;
};

// ORT hands on the null that an allocator gives when there is no memory. Throws Failure with the
// reason where `data` is one.
void need_memory(const void* data);
void forget_refusal();  // of a run that ended before it could say so

// Whether a tensor lies in memory that kernels of any of our devices should read through a copy:
// host memory, pinned or not.
bool on_host(const OrtValue* value);
// Copies a tensor on this thread's stream context; outside of a run on the stream that is given,
// else at once. Throws Failure.
void copy_tensor(const OrtValue* from, OrtValue* to, Stream given = nullptr);
// Waits for copies of this thread's stream context that the host is about to look at.
void finish_copies(const OrtValue* from, const OrtValue* to);

}  // namespace tracea::cuda
