// The part of webgpu.h and of wgpu-native's wgpu.h that this provider uses, declared by hand: no
// header is needed to build. Enumerations are numbers of 32 bits; names are webgpu.h's.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tracea::webgpu {

// wgpu-native's major version, which these declarations are of: structs change between them.
constexpr unsigned kMajor = 29;

using Handle = void*;  // each object of WebGPU
using Bool = uint32_t;
using Flags = uint64_t;

struct Text {  // WGPUStringView
  const char* data;
  size_t length;  // kTerminated: up to a NUL
};
constexpr size_t kTerminated = SIZE_MAX;

struct Chained {
  const Chained* next;
  uint32_t type;
};
constexpr uint32_t kShaderSourceWgsl = 2;

struct Future {
  uint64_t id;
};

// Callbacks are called within the call that is given them, or within `device_poll`.
constexpr uint32_t kAllowSpontaneous = 3;

constexpr uint32_t kSuccess = 1;  // of a request's status, and of WGPUStatus

enum ErrorType : uint32_t { kNoError = 1, kValidation = 2, kOutOfMemory = 3, kInternal = 4 };
enum BackendType : uint32_t { kD3D12 = 4, kMetal = 5, kVulkan = 6 };
enum AdapterType : uint32_t { kDiscrete = 1, kIntegrated = 2, kProcessor = 3 };
constexpr Flags kInstanceVulkan = 1 << 0, kInstanceMetal = 1 << 2, kInstanceD3D12 = 1 << 3;

constexpr Flags kMapRead = 1, kCopySource = 4, kCopyTarget = 8, kUniform = 0x40, kStorage = 0x80;
constexpr Flags kMapModeRead = 1, kComputeStage = 4;
constexpr uint32_t kUniformBinding = 2, kStorageBinding = 3, kReadOnlyBinding = 4;

struct InstanceDescriptor {
  const Chained* next;
  size_t feature_count;
  const uint32_t* features;
  const void* limits;
};
struct EnumerateAdapterOptions {
  const Chained* next;
  Flags backends;
};
struct AdapterInfo {
  Chained* next;
  Text vendor, architecture, device, description;
  uint32_t backend, type, vendor_id, device_id, subgroup_min, subgroup_max;
};
struct Limits {
  Chained* next;
  uint32_t texture_1d, texture_2d, texture_3d, texture_layers, bind_groups,
      bind_groups_and_vertex_buffers, bindings_per_group, dynamic_uniform_buffers,
      dynamic_storage_buffers, sampled_textures, samplers, storage_buffers, storage_textures,
      uniform_buffers;
  uint64_t uniform_binding, storage_binding;
  uint32_t uniform_alignment, storage_alignment, vertex_buffers;
  uint64_t buffer;
  uint32_t vertex_attributes, vertex_stride, shader_variables, color_attachments, color_bytes,
      workgroup_storage, workgroup_invocations, workgroup_x, workgroup_y, workgroup_z, workgroups,
      immediate;
};
struct QueueDescriptor {
  const Chained* next;
  Text label;
};
struct LostCallback {
  const Chained* next;
  uint32_t mode;
  void (*call)(const Handle* device, uint32_t reason, Text message, void* first, void* second);
  void *first, *second;
};
struct ErrorCallback {
  const Chained* next;
  void (*call)(const Handle* device, uint32_t type, Text message, void* first, void* second);
  void *first, *second;
};
struct DeviceDescriptor {
  const Chained* next;
  Text label;
  size_t feature_count;
  const uint32_t* features;
  const Limits* limits;
  QueueDescriptor queue;
  LostCallback lost;
  ErrorCallback error;
};
struct RequestDeviceCallback {
  const Chained* next;
  uint32_t mode;
  void (*call)(uint32_t status, Handle device, Text message, void* first, void* second);
  void *first, *second;
};
struct BufferDescriptor {
  const Chained* next;
  Text label;
  Flags usage;
  uint64_t size;
  Bool mapped;
};
struct MapCallback {
  const Chained* next;
  uint32_t mode;
  void (*call)(uint32_t status, Text message, void* first, void* second);
  void *first, *second;
};
struct ShaderSource {
  Chained chain;
  Text code;
};
struct ShaderModuleDescriptor {
  const Chained* next;
  Text label;
};
struct BufferLayout {
  const Chained* next;
  uint32_t type;
  Bool dynamic;
  uint64_t least;
};
struct LayoutEntry {
  const Chained* next;
  uint32_t binding;
  Flags stages;
  uint32_t array;
  BufferLayout buffer;
  struct {
    const Chained* next;
    uint32_t type;
  } sampler;
  struct {
    const Chained* next;
    uint32_t type, dimension;
    Bool multisampled;
  } texture;
  struct {
    const Chained* next;
    uint32_t access, format, dimension;
  } storage_texture;
};
struct LayoutDescriptor {
  const Chained* next;
  Text label;
  size_t count;
  const LayoutEntry* entries;
};
struct PipelineLayoutDescriptor {
  const Chained* next;
  Text label;
  size_t count;
  const Handle* layouts;
  uint32_t immediate;
};
struct PipelineDescriptor {
  const Chained* next;
  Text label;
  Handle layout;
  struct {
    const Chained* next;
    Handle module;
    Text entry;
    size_t constant_count;
    const void* constants;
  } compute;
};
struct GroupEntry {
  const Chained* next;
  uint32_t binding;
  Handle buffer;
  uint64_t offset, size;
  Handle sampler, texture;
};
struct GroupDescriptor {
  const Chained* next;
  Text label;
  Handle layout;
  size_t count;
  const GroupEntry* entries;
};
struct PassDescriptor {
  const Chained* next;
  Text label;
  const void* timestamps;
};
struct LabelDescriptor {  // of command encoders and command buffers
  const Chained* next;
  Text label;
};

// member, symbol, type
#define TRACEA_WEBGPU_FUNCTIONS(X)                                                                 \
  X(version, "wgpuGetVersion", uint32_t())                                                         \
  X(create_instance, "wgpuCreateInstance", Handle(const InstanceDescriptor*))                      \
  X(adapters, "wgpuInstanceEnumerateAdapters",                                                     \
    size_t(Handle, const EnumerateAdapterOptions*, Handle*))                                       \
  X(adapter_info, "wgpuAdapterGetInfo", uint32_t(Handle, AdapterInfo*))                            \
  X(free_info, "wgpuAdapterInfoFreeMembers", void(AdapterInfo))                                    \
  X(adapter_limits, "wgpuAdapterGetLimits", uint32_t(Handle, Limits*))                             \
  X(request_device, "wgpuAdapterRequestDevice",                                                    \
    Future(Handle, const DeviceDescriptor*, RequestDeviceCallback))                                \
  X(queue, "wgpuDeviceGetQueue", Handle(Handle))                                                   \
  X(poll, "wgpuDevicePoll", Bool(Handle, Bool, const uint64_t*))                                   \
  X(create_buffer, "wgpuDeviceCreateBuffer", Handle(Handle, const BufferDescriptor*))              \
  X(create_module, "wgpuDeviceCreateShaderModule", Handle(Handle, const ShaderModuleDescriptor*))  \
  X(create_layout, "wgpuDeviceCreateBindGroupLayout", Handle(Handle, const LayoutDescriptor*))     \
  X(create_pipeline_layout, "wgpuDeviceCreatePipelineLayout",                                      \
    Handle(Handle, const PipelineLayoutDescriptor*))                                               \
  X(create_pipeline, "wgpuDeviceCreateComputePipeline", Handle(Handle, const PipelineDescriptor*)) \
  X(create_group, "wgpuDeviceCreateBindGroup", Handle(Handle, const GroupDescriptor*))             \
  X(create_encoder, "wgpuDeviceCreateCommandEncoder", Handle(Handle, const LabelDescriptor*))      \
  X(begin_pass, "wgpuCommandEncoderBeginComputePass", Handle(Handle, const PassDescriptor*))       \
  X(set_pipeline, "wgpuComputePassEncoderSetPipeline", void(Handle, Handle))                       \
  X(set_group, "wgpuComputePassEncoderSetBindGroup",                                               \
    void(Handle, uint32_t, Handle, size_t, const uint32_t*))                                       \
  X(dispatch, "wgpuComputePassEncoderDispatchWorkgroups",                                          \
    void(Handle, uint32_t, uint32_t, uint32_t))                                                    \
  X(end_pass, "wgpuComputePassEncoderEnd", void(Handle))                                           \
  X(copy, "wgpuCommandEncoderCopyBufferToBuffer",                                                  \
    void(Handle, Handle, uint64_t, Handle, uint64_t, uint64_t))                                    \
  X(finish, "wgpuCommandEncoderFinish", Handle(Handle, const LabelDescriptor*))                    \
  X(submit, "wgpuQueueSubmit", void(Handle, size_t, const Handle*))                                \
  X(write, "wgpuQueueWriteBuffer", void(Handle, Handle, uint64_t, const void*, size_t))            \
  X(map, "wgpuBufferMapAsync", Future(Handle, Flags, size_t, size_t, MapCallback))                 \
  X(mapped, "wgpuBufferGetConstMappedRange", const void*(Handle, size_t, size_t))                  \
  X(unmap, "wgpuBufferUnmap", void(Handle))                                                        \
  X(release_instance, "wgpuInstanceRelease", void(Handle))                                         \
  X(release_adapter, "wgpuAdapterRelease", void(Handle))                                           \
  X(release_device, "wgpuDeviceRelease", void(Handle))                                             \
  X(release_queue, "wgpuQueueRelease", void(Handle))                                               \
  X(release_buffer, "wgpuBufferRelease", void(Handle))                                             \
  X(release_module, "wgpuShaderModuleRelease", void(Handle))                                       \
  X(release_layout, "wgpuBindGroupLayoutRelease", void(Handle))                                    \
  X(release_pipeline_layout, "wgpuPipelineLayoutRelease", void(Handle))                            \
  X(release_pipeline, "wgpuComputePipelineRelease", void(Handle))                                  \
  X(release_group, "wgpuBindGroupRelease", void(Handle))                                           \
  X(release_encoder, "wgpuCommandEncoderRelease", void(Handle))                                    \
  X(release_pass, "wgpuComputePassEncoderRelease", void(Handle))                                   \
  X(release_commands, "wgpuCommandBufferRelease", void(Handle))

// wgpu-native's functions.
struct Api {
#define TRACEA_X(member, symbol, ...) \
  using member##_t = __VA_ARGS__;     \
  member##_t* member = nullptr;
  TRACEA_WEBGPU_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
};

}  // namespace tracea::webgpu
