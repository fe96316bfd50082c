#include "webgpu/device.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "ort/boundary.h"
#include "plan/failure.h"
#include "plan/memory.h"
#include "webgpu/library.h"

namespace tracea::webgpu {
namespace {

constexpr size_t kLongest = 500;  // of a message

struct Found {
  Object adapter;
  std::string name;
  int rank;  // lower is better
};

int rank_of(uint32_t type) {
  return type == kDiscrete ? 0 : type == kIntegrated ? 1 : type == kProcessor ? 3 : 2;
}

const char* backend_name(uint32_t backend) {
  return backend == kMetal ? "Metal" : backend == kVulkan ? "Vulkan" : "DirectX 12";
}

Object make_instance(const Api& api) {
  const InstanceDescriptor plain{};
  Object instance(api.create_instance(&plain), api.release_instance);
  if (!instance) throw Failure("wgpu-native makes no instance");
  return instance;
}

std::vector<Found> find(const Api& api, Handle instance, const Wanted& wanted) {
  const EnumerateAdapterOptions options{
      nullptr, wanted.metal ? kInstanceMetal : kInstanceVulkan | kInstanceMetal | kInstanceD3D12};
  std::vector<Handle> handles(api.adapters(instance, &options, nullptr));
  handles.resize(std::min(handles.size(), api.adapters(instance, &options, handles.data())));
  std::vector<Found> found;
  for (Handle h : handles) {
    Object adapter(h, api.release_adapter);
    AdapterInfo info{};
    if (api.adapter_info(h, &info) != kSuccess) continue;
    const std::string name = line_of(info.device) + " (" + backend_name(info.backend) + ")";
    const int rank = rank_of(info.type);
    api.free_info(info);
    if (name.find(wanted.name) == std::string::npos) continue;
    found.push_back({std::move(adapter), name, rank});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.rank < b.rank; });
  return found;
}

}  // namespace

std::string line_of(const Text& text) {
  if (!text.data) return "";
  const size_t n = text.length == kTerminated ? strlen(text.data) : text.length;
  std::string line;
  for (size_t k = 0; k < n && line.size() < kLongest; k++) {
    const bool blank = static_cast<unsigned char>(text.data[k]) <= ' ';
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : text.data[k];
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::vector<std::string> adapters(const Wanted& wanted) {
  const Api& api = library(wanted.library);
  const Object instance = make_instance(api);
  std::vector<std::string> names;
  for (const Found& f : find(api, instance.get(), wanted)) names.push_back(f.name);
  return names;
}

std::shared_ptr<Device> Device::open(const Wanted& wanted) {
  static std::mutex mutex;
  static std::map<std::pair<bool, std::string>, std::weak_ptr<Device>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const Api& api = library(wanted.library);
  std::weak_ptr<Device>& place = known[{wanted.metal, wanted.name}];
  if (auto open = place.lock(); open && !open->lost()) return open;
  Object instance = make_instance(api);
  std::vector<Found> found = find(api, instance.get(), wanted);
  if (found.empty())
    throw Failure(std::string("there is no ") + (wanted.metal ? "Metal " : "") + "adapter" +
                  (wanted.name.empty() ? "" : " whose name has '" + wanted.name + "'") +
                  " for WebGPU on this machine");
  std::shared_ptr<Device> made(
      new Device(api, std::move(instance), std::move(found.front().adapter), found.front().name));
  place = made;
  return made;
}

Device::Device(const Api& its_api, Object instance, Object adapter, std::string its_name)
    : api(its_api),
      name(std::move(its_name)),
      instance_(std::move(instance)),
      adapter_(std::move(adapter)) {
  if (api.adapter_limits(adapter_.get(), &limits) != kSuccess)
    throw Failure("adapter '" + name + "' does not tell its limits");
  limits.next = nullptr;
  DeviceDescriptor wanted{};
  wanted.limits = &limits;
  wanted.lost.mode = kAllowSpontaneous;
  wanted.lost.call = Callback<void(const Handle*, uint32_t, Text, void*, void*)>(
      [](const Handle*, uint32_t, Text message, void* self, void*) {
        Device& d = *static_cast<Device*>(self);
        const std::lock_guard<std::mutex> lock(d.errors_);
        d.lost_ = "the device is lost: " + line_of(message);
      });
  wanted.error.call = Callback<void(const Handle*, uint32_t, Text, void*, void*)>(
      [](const Handle*, uint32_t type, Text message, void* self, void*) {
        Device& d = *static_cast<Device*>(self);
        const std::lock_guard<std::mutex> lock(d.errors_);
        if (d.error_.empty())
          d.error_ = (type == kOutOfMemory ? "out of memory: " : "") + line_of(message);
      });
  wanted.lost.first = wanted.error.first = this;
  struct Answer {
    Handle device;
    std::string why;
  } answer{nullptr, ""};
  RequestDeviceCallback callback{};
  callback.mode = kAllowSpontaneous;
  callback.call = Callback<void(uint32_t, Handle, Text, void*, void*)>(
      [](uint32_t status, Handle made, Text message, void* to, void*) {
        Answer& a = *static_cast<Answer*>(to);
        if (status == kSuccess)
          a.device = made;
        else
          a.why = line_of(message);
      });
  callback.first = &answer;
  api.request_device(adapter_.get(), &wanted, callback);
  if (!answer.device) throw Failure("adapter '" + name + "' gives no device: " + answer.why);
  device_ = Object(answer.device, api.release_device);
  queue_ = Object(api.queue(answer.device), api.release_queue);
}

bool Device::lost() {
  const std::lock_guard<std::mutex> lock(errors_);
  return !lost_.empty();
}

void Device::check(const std::string& doing) {
  const std::lock_guard<std::mutex> lock(errors_);
  const std::string error = std::exchange(error_, "");
  if (!lost_.empty()) throw Failure(doing + ": " + lost_);
  if (!error.empty()) throw Failure(doing + ": " + error);
}

Object Device::buffer(size_t bytes, Flags usage) {
  const size_t size = align_up(std::max(bytes, size_t(1)), 16);
  if (size > limits.buffer)
    throw Failure("a buffer of " + std::to_string(size) + " bytes: adapter '" + name +
                  "' has buffers of " + std::to_string(limits.buffer) + " at most");
  BufferDescriptor wanted{};
  wanted.usage = usage;
  wanted.size = size;
  Object made(api.create_buffer(device(), &wanted), api.release_buffer);
  check("making a buffer of " + std::to_string(size) + " bytes");
  return made;
}

void Device::write(Handle buffer, size_t offset, const void* data, size_t bytes) {
  const size_t whole = bytes / 4 * 4;
  if (whole) api.write(queue(), buffer, offset, data, whole);
  if (whole == bytes) return;
  char last[4] = {};
  memcpy(last, static_cast<const char*>(data) + whole, bytes - whole);
  api.write(queue(), buffer, offset + whole, last, sizeof last);
}

std::shared_ptr<const Pipeline> Device::pipeline(const Blob& wgsl, const std::string& signature) {
  const std::string source(wgsl.data, wgsl.bytes);
  std::weak_ptr<const Pipeline>& place = pipelines_[signature + "\n" + source];
  if (auto known = place.lock()) return known;
  auto made = std::make_shared<Pipeline>();
  std::vector<LayoutEntry> entries(signature.size() + 1, LayoutEntry{});
  for (size_t k = 0; k < entries.size(); k++) {
    entries[k].binding = uint32_t(k);
    entries[k].stages = kComputeStage;
    entries[k].buffer.type = !k                        ? kUniformBinding
                             : signature[k - 1] == 'r' ? kReadOnlyBinding
                                                       : kStorageBinding;
  }
  LayoutDescriptor layout{};
  layout.count = entries.size();
  layout.entries = entries.data();
  made->layout = Object(api.create_layout(device(), &layout), api.release_layout);
  const Handle group = made->layout.get();
  PipelineLayoutDescriptor whole{};
  whole.count = 1;
  whole.layouts = &group;
  const Object pipeline_layout(api.create_pipeline_layout(device(), &whole),
                               api.release_pipeline_layout);
  const ShaderSource text{{nullptr, kShaderSourceWgsl}, {source.data(), source.size()}};
  ShaderModuleDescriptor described{};
  described.next = &text.chain;
  const Object module(api.create_module(device(), &described), api.release_module);
  check("compiling a kernel");
  PipelineDescriptor wanted{};
  wanted.layout = pipeline_layout.get();
  wanted.compute.module = module.get();
  wanted.compute.entry = {"main", kTerminated};
  made->pipeline = Object(api.create_pipeline(device(), &wanted), api.release_pipeline);
  check("compiling a kernel");
  place = made;
  for (auto it = pipelines_.begin(); it != pipelines_.end();)
    it = it->second.expired() ? pipelines_.erase(it) : std::next(it);
  return made;
}

}  // namespace tracea::webgpu
