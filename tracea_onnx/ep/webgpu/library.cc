#include "webgpu/library.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "ort/python.h"
#include "plan/failure.h"

namespace tracea::webgpu {
namespace {

#if defined(_WIN32)
void* open_library(const char* path) { return reinterpret_cast<void*>(LoadLibraryA(path)); }
void* find(void* library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}
constexpr const char *kSystem = "wgpu_native.dll", *kInWheel = "wgpu_native-release.dll";
#else
void* open_library(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
void* find(void* library, const char* symbol) { return dlsym(library, symbol); }
#if defined(__APPLE__)
constexpr const char *kSystem = "libwgpu_native.dylib", *kInWheel = "libwgpu_native-release.dylib";
#else
constexpr const char *kSystem = "libwgpu_native.so", *kInWheel = "libwgpu_native-release.so";
#endif
#endif

struct Loaded {
  Api api;
  std::string path;
};

std::mutex mutex;
std::string offered;
std::unique_ptr<const Loaded> loaded;  // never unloaded: its threads may outlive the last session

std::string version_text(uint32_t v) {
  std::string text = std::to_string(v >> 24);
  for (int shift = 16; shift >= 0; shift -= 8) text += "." + std::to_string((v >> shift) & 255);
  return text;
}

std::unique_ptr<const Loaded> read(void* handle, const std::string& path) {
  auto made = std::make_unique<Loaded>();
  made->path = path;
  const auto version = reinterpret_cast<Api::version_t*>(find(handle, "wgpuGetVersion"));
  if (!version) throw Failure("'" + path + "' is not wgpu-native: it has no wgpuGetVersion");
  if (const uint32_t v = version(); v >> 24 != kMajor)
    throw Failure("'" + path + "' is wgpu-native " + version_text(v) +
                  ", and this provider knows the interface of version " + std::to_string(kMajor) +
                  "; python -m pip install wgpu==0.32.0 brings it");
#define TRACEA_X(member, symbol, ...)                                          \
  made->api.member = reinterpret_cast<Api::member##_t*>(find(handle, symbol)); \
  if (!made->api.member) throw Failure("'" + path + "' lacks the function " + symbol);
  TRACEA_WEBGPU_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
  return made;
}

// Of the wheel that is installed where this package is.
std::string beside_package() {
  const std::string own = library_path();
  const size_t file = own.find_last_of("/\\");
  const size_t folder = file == std::string::npos ? file : own.find_last_of("/\\", file - 1);
  return folder == std::string::npos ? "" : own.substr(0, folder) + "/wgpu/resources/" + kInWheel;
}

}  // namespace

void offer_library(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex);
  offered = path;
}

const Api& library(const std::string& wanted) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded) {
    if (!wanted.empty() && wanted != loaded->path)
      throw Failure("provider option wgpu_library='" + wanted +
                    "': this process has loaded wgpu-native from '" + loaded->path + "'");
    return loaded->api;
  }
  const char* variable = getenv("TRACEA_WGPU_LIBRARY");
  const std::string named = !wanted.empty() ? wanted : variable ? variable : "";
  std::vector<std::string> places = {offered, beside_package(), kSystem};
  if (!named.empty()) places = {named};
  for (const std::string& path : places)
    if (void* const handle = path.empty() ? nullptr : open_library(path.c_str())) {
      loaded = read(handle, path);
      return loaded->api;
    }
  throw Failure(named.empty()
                    ? "wgpu-native is not installed; python -m pip install wgpu==0.32.0 brings it"
                    : "wgpu-native cannot be loaded from '" + named + "'");
}

}  // namespace tracea::webgpu
