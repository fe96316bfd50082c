#include "cuda_driver.h"

#include <mutex>
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "failure.h"

namespace tracea::cuda {
namespace {

#if defined(_WIN32)
void* open_library() { return reinterpret_cast<void*>(LoadLibraryA("nvcuda.dll")); }
void* find(void* library, const char* symbol) { return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol)); }
constexpr const char* kLibrary = "nvcuda.dll";
#else
void* open_library() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }
void* find(void* library, const char* symbol) { return dlsym(library, symbol); }
constexpr const char* kLibrary = "libcuda.so.1";
#endif

struct Loaded {
  Driver driver;
  std::string why_not;

  Loaded() {
    void* library = open_library();
    if (!library) {
      why_not = std::string("no NVIDIA driver is installed (") + kLibrary + " was not found)";
      return;
    }
#define TRACEA_X(member, symbol, ...)                                                   \
  driver.member = reinterpret_cast<Driver::member##_t*>(find(library, symbol));         \
  if (!driver.member && why_not.empty()) why_not = "the NVIDIA driver is too old (it lacks " symbol "); CUDA 12.0 or newer is needed";
    TRACEA_CUDA_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
    if (!why_not.empty()) return;
    const Result r = driver.init(0);
    if (r == kSuccess) {
      driver.driver_version(&driver.version);
      return;
    }
    const char* text = nullptr;
    driver.error_string(r, &text);
    why_not = r == kNoDevice ? "the NVIDIA driver finds no GPU" : std::string("the NVIDIA driver does not start: ") + (text ? text : "unknown error");
  }
};

const Loaded& loaded() {
  static const Loaded* const once = new Loaded();  // never unloaded: other libraries of the process use the driver too
  return *once;
}

}  // namespace

const Driver& driver() {
  const Loaded& l = loaded();
  if (!l.why_not.empty()) throw Failure(l.why_not);
  return l.driver;
}

void check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  throw Failure("CUDA: " + what + ": " + (text ? text : "error") + " (" + std::to_string(result) + ")");
}

}  // namespace tracea::cuda
