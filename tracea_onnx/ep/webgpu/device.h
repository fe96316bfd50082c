// An adapter of WebGPU and what sessions on it share: its queue, limits and pipelines.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan/pack.h"
#include "webgpu/api.h"

namespace tracea::webgpu {

// A text of wgpu-native in one line.
std::string line_of(const Text& text);

// An object of WebGPU, released with what it is.
class Object {
 public:
  using Release = void (*)(Handle);
  Object() = default;
  Object(Handle handle, Release release) : handle_(handle), release_(release) {}
  Object(Object&& o) noexcept { swap(o); }
  Object& operator=(Object&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Object() {
    if (handle_) release_(handle_);
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_; }

 private:
  void swap(Object& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(release_, o.release_);
  }
  Handle handle_ = nullptr;
  Release release_ = nullptr;
};

struct Pipeline {
  Object layout, pipeline;  // layout: of its one bind group
};

// Which adapter a session wants. metal: one of Metal; name: a part of its name; library: as
// `library` takes it.
struct Wanted {
  bool metal;
  std::string name, library;
};

// Names of the adapters here, the one that a session without wishes gets first. Throws Failure.
std::vector<std::string> adapters(const Wanted& wanted);

class Device {
 public:
  // The one that a session gets; sessions that want the same share it. Throws Failure.
  static std::shared_ptr<Device> open(const Wanted& wanted);
  Device(const Device&) = delete;

  // Held by whoever calls WebGPU: its errors come without saying whose they are.
  std::mutex use;
  const Api& api;
  const std::string name;
  Limits limits{};

  Handle device() const { return device_.get(); }
  Handle queue() const { return queue_.get(); }
  // Whether it works no more: sessions that are made then get another one.
  bool lost();
  // Throws Failure with what went wrong in calls since the last check; `doing` says what they did.
  void check(const std::string& doing);

  // A buffer of at least so many bytes. Throws Failure where there is no memory.
  Object buffer(size_t bytes, Flags usage);
  // Writes bytes, of which nothing need be a multiple of 4, at a multiple of 4.
  void write(Handle buffer, size_t offset, const void* data, size_t bytes);
  // A pipeline of WGSL whose bind group has sizes at 0 and behind them a buffer for each character
  // of `signature`: r, which it reads, or w. Throws Failure with what is wrong in it.
  std::shared_ptr<const Pipeline> pipeline(const Blob& wgsl, const std::string& signature);

 private:
  Device(const Api& its_api, Object instance, Object adapter, std::string its_name);

  Object instance_, adapter_, device_, queue_;
  std::mutex errors_;  // wgpu-native may report the loss of a device from threads of its own
  std::string error_, lost_;
  std::map<std::string, std::weak_ptr<const Pipeline>> pipelines_;
};

}  // namespace tracea::webgpu
