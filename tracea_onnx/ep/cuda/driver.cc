#include "cuda/driver.h"

#include <mutex>
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <pthread.h>
#endif

#include "ort/boundary.h"

namespace tracea::cuda {
namespace {

#if defined(_WIN32)
void* open_library() { return reinterpret_cast<void*>(LoadLibraryA("nvcuda.dll")); }
void* find(void* library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}
constexpr const char* kLibrary = "nvcuda.dll";
#else
void* open_library() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }
void* find(void* library, const char* symbol) { return dlsym(library, symbol); }
constexpr const char* kLibrary = "libcuda.so.1";
#endif

constexpr const char* kForked =
    "CUDA was initialised before this process was forked and does not work in the child; start "
    "workers with multiprocessing's 'spawn' method, or make GPU sessions only in them";

// Whether this process has initialised the driver, and whether it inherited that from its parent. A
// driver that was initialised before a fork cannot be used in the child.
std::atomic<bool> started{false}, inherited{false};

void watch_forks() {
#if !defined(_WIN32)
  pthread_atfork(nullptr, nullptr, Callback<void()>([] { inherited = started.load(); }));
#endif
}

// Failures after which the driver refuses every call in the context: CUDA's documentation calls the
// process inconsistent then.
bool loses_context(Result r) {
  switch (r) {
    case 214:
    case 220:
    case 226:  // uncorrectable errors of memory and links
    case 700:
    case 702:
    case 709:
    case 710:  // illegal address, time limit, destroyed context, device assertion
    case 714:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:
    case 721:  // illegal instructions and addresses, failed launches
      return true;
    default: return false;
  }
}

struct Loaded {
  Driver driver;
  std::string why_not;

  Loaded() {
    void* library = open_library();
    if (!library) {
      why_not = std::string("no NVIDIA driver is installed (") + kLibrary + " was not found)";
      return;
    }
#define TRACEA_X(member, symbol, ...)                                           \
  driver.member = reinterpret_cast<Driver::member##_t*>(find(library, symbol)); \
  if (!driver.member && why_not.empty())                                        \
    why_not = "the NVIDIA driver is too old (it lacks " symbol "); CUDA 12.0 or newer is needed";
    TRACEA_CUDA_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
    if (!why_not.empty()) return;
    watch_forks();
    const Result r = driver.init(0);
    if (r == kSuccess) {
      started = true;
      driver.driver_version(&driver.version);
      return;
    }
    if (r == kNotInitialized) {  // another library had initialised it
      why_not = kForked;
      return;
    }
    const char* text = nullptr;
    driver.error_string(r, &text);
    why_not = r == kNoDevice ? "the NVIDIA driver finds no GPU"
                             : std::string("the NVIDIA driver does not start: ") +
                                   (text ? text : "unknown error");
  }
};

const Loaded& loaded() {
  static const Loaded* const once =
      new Loaded();  // never unloaded: other libraries of the process use the driver too
  return *once;
}

}  // namespace

thread_local Health* health = nullptr;

const Driver& driver() {
  const Loaded& l = loaded();
  if (!l.why_not.empty()) throw Failure(l.why_not);
  if (inherited) throw Failure(kForked);
  return l.driver;
}

bool driver_present() { return open_library() != nullptr; }

const Driver* usable() noexcept {
  try {
    return &driver();
  } catch (...) {
    return nullptr;
  }
}

void Health::lose(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_) return;
  first_ = line;
  lost_ = true;
}

void Health::need() const {
  if (!lost_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  throw Failure("the GPU cannot be used by this process any more since an earlier failure (" +
                first_ +
                "); restart the process, and set the provider option sync_launches=1 to learn "
                "which kernel failed");
}

void check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  const std::string line =
      "CUDA: " + what + ": " + (text ? text : "error") + " (" + std::to_string(result) + ")";
  if (health && loses_context(result)) health->lose(line);
  if (result == kOutOfMemory) throw OutOfMemory(line);
  throw Failure(line);
}

}  // namespace tracea::cuda
