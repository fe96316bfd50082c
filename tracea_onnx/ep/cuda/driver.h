// The part of NVIDIA's driver API this provider uses, declared by hand and found with dlopen:
// neither CUDA's headers nor its libraries are needed to build, and the same library serves
// machines without a GPU. Values are those of cuda.h.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "plan/failure.h"

namespace tracea::cuda {

using Result = int;
using Address = uint64_t;  // CUdeviceptr
using Context = struct CUctx_st*;
using ModuleHandle = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using GraphHandle = struct CUgraph_st*;
using GraphExecHandle = struct CUgraphExec_st*;

constexpr Result kSuccess = 0, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100;

enum DeviceAttribute {
  kClockKhz = 13,
  kMultiprocessors = 16,
  kMemoryClockKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kSharedBytesOfMultiprocessor = 81,
  kRegistersOfMultiprocessor = 82,
  kSharedBytesOfBlock = 97,
  kClusterLaunch = 120
};
enum FunctionAttribute { kDynamicSharedBytes = 8, kNonPortableCluster = 14 };
enum LaunchAttributeId { kClusterDimension = 4, kProgrammaticSerialization = 6 };
enum CaptureMode { kCaptureRelaxed = 2 };
enum EventFlags { kEventDefault = 0, kEventNoTiming = 2 };
enum EventRecordFlags { kRecordExternal = 1 };
enum StreamFlags { kStreamDefault = 0, kStreamNonBlocking = 1 };

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "CUlaunchAttribute");

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned n_attributes;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig");

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// member, exported name, signature
#define TRACEA_CUDA_FUNCTIONS(X)                                                                  \
  X(init, "cuInit", Result(unsigned))                                                             \
  X(driver_version, "cuDriverGetVersion", Result(int*))                                           \
  X(error_string, "cuGetErrorString", Result(Result, const char**))                               \
  X(device_count, "cuDeviceGetCount", Result(int*))                                               \
  X(device_get, "cuDeviceGet", Result(int*, int))                                                 \
  X(device_name, "cuDeviceGetName", Result(char*, int, int))                                      \
  X(device_attribute, "cuDeviceGetAttribute", Result(int*, int, int))                             \
  X(device_memory, "cuDeviceTotalMem_v2", Result(size_t*, int))                                   \
  X(active_clusters, "cuOccupancyMaxActiveClusters", Result(int*, Function, const LaunchConfig*)) \
  X(device_pci_bus_id, "cuDeviceGetPCIBusId", Result(char*, int, int))                            \
  X(context_retain, "cuDevicePrimaryCtxRetain", Result(Context*, int))                            \
  X(context_push, "cuCtxPushCurrent_v2", Result(Context))                                         \
  X(context_pop, "cuCtxPopCurrent_v2", Result(Context*))                                          \
  X(context_synchronize, "cuCtxSynchronize", Result())                                            \
  X(memory_info, "cuMemGetInfo_v2", Result(size_t*, size_t*))                                     \
  X(memory_alloc, "cuMemAlloc_v2", Result(Address*, size_t))                                      \
  X(memory_free, "cuMemFree_v2", Result(Address))                                                 \
  X(host_alloc, "cuMemHostAlloc", Result(void**, size_t, unsigned))                               \
  X(host_free, "cuMemFreeHost", Result(void*))                                                    \
  X(copy, "cuMemcpy", Result(Address, Address, size_t))                                           \
  X(copy_async, "cuMemcpyAsync", Result(Address, Address, size_t, Stream))                        \
  X(fill_async, "cuMemsetD8Async", Result(Address, unsigned char, size_t, Stream))                \
  X(module_load, "cuModuleLoadData", Result(ModuleHandle*, const void*))                          \
  X(module_unload, "cuModuleUnload", Result(ModuleHandle))                                        \
  X(module_function, "cuModuleGetFunction", Result(Function*, ModuleHandle, const char*))         \
  X(function_attribute, "cuFuncSetAttribute", Result(Function, int, int))                         \
  X(launch, "cuLaunchKernelEx", Result(const LaunchConfig*, Function, void**, void**))            \
  X(encode_tiled, "cuTensorMapEncodeTiled",                                                       \
    Result(TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,   \
           const uint32_t*, int, int, int, int))                                                  \
  X(encode_im2col, "cuTensorMapEncodeIm2col",                                                     \
    Result(TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const int*,        \
           const int*, uint32_t, uint32_t, const uint32_t*, int, int, int, int))                  \
  X(stream_create, "cuStreamCreate", Result(Stream*, unsigned))                                   \
  X(stream_destroy, "cuStreamDestroy_v2", Result(Stream))                                         \
  X(stream_synchronize, "cuStreamSynchronize", Result(Stream))                                    \
  X(stream_context, "cuStreamGetCtx", Result(Stream, Context*))                                   \
  X(stream_wait, "cuStreamWaitEvent", Result(Stream, Event, unsigned))                            \
  X(capture_begin, "cuStreamBeginCapture_v2", Result(Stream, int))                                \
  X(capture_end, "cuStreamEndCapture", Result(Stream, GraphHandle*))                              \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                             \
    Result(GraphExecHandle*, GraphHandle, unsigned long long))                                    \
  X(graph_destroy, "cuGraphDestroy", Result(GraphHandle))                                         \
  X(graph_launch, "cuGraphLaunch", Result(GraphExecHandle, Stream))                               \
  X(graph_exec_destroy, "cuGraphExecDestroy", Result(GraphExecHandle))                            \
  X(event_create, "cuEventCreate", Result(Event*, unsigned))                                      \
  X(event_destroy, "cuEventDestroy_v2", Result(Event))                                            \
  X(event_record, "cuEventRecord", Result(Event, Stream))                                         \
  X(event_record_flags, "cuEventRecordWithFlags", Result(Event, Stream, unsigned))                \
  X(event_synchronize, "cuEventSynchronize", Result(Event))                                       \
  X(event_elapsed, "cuEventElapsedTime", Result(float*, Event, Event))

struct Driver {
#define TRACEA_X(member, symbol, ...) \
  using member##_t = __VA_ARGS__;     \
  member##_t* member = nullptr;
  TRACEA_CUDA_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
  int version = 0;  // 1000 * major + 10 * minor of the newest CUDA it supports
};

// The driver, loaded and initialised on first use. Throws Failure with one line where there is
// none, where it is too old, and in a process that was forked after its parent had initialised it.
const Driver& driver();
// Whether the driver's library is on this machine. Initialises nothing.
bool driver_present();
// The same as `driver` for destructors: null where that would throw.
const Driver* usable() noexcept;

// Whether a context still works. After some failures (an illegal address, say) the driver refuses
// every later call in the context.
class Health {
 public:
  void lose(const std::string& line);  // the first line is kept
  bool lost() const { return lost_; }
  void need() const;  // throws Failure with the first failure

 private:
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string first_;
};
// That of the context which is current on this thread; null = none of ours.
extern thread_local Health* health;

struct OutOfMemory : Failure {
  using Failure::Failure;
};

// Throws Failure, or OutOfMemory: what was attempted, and the driver's own words. Where the context
// is lost by it, `health` remembers.
void check(Result result, const std::string& what);

}  // namespace tracea::cuda
