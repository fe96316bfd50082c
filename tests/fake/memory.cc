// Lets allocations fail that one library of the process makes, and no others: preloaded, it sees
// every malloc and operator new.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(const void* p) const { return begin <= uintptr_t(p) && uintptr_t(p) < end; }
};

Range library,
    runtime;  // whose allocations fail, and the C++ runtime through which it may make them
std::atomic<long> left{-1}, lasting{0}, made{0};
thread_local bool looking = false;

bool theirs(const void* caller) {
  if (library.holds(caller)) return true;
  if (!runtime.holds(caller) || looking) return false;
  looking = true;  // backtrace may allocate
  void* frames[12];
  const int n = backtrace(frames, 12);
  looking = false;
  bool passed = false;  // this object's own frames
  for (int k = 0; k < n; k++) {
    if (runtime.holds(frames[k]))
      passed = true;
    else if (passed)
      return library.holds(frames[k]);
  }
  return false;
}

bool fails(const void* caller) {
  if (left.load(std::memory_order_relaxed) < 0 || !theirs(caller)) return false;
  made++;
  const long before = left.load();
  if (before > 0) return left--, false;
  if (lasting-- > 1) return true;
  left = -1;
  return true;
}

int look(dl_phdr_info* info, size_t, void* name) {
  if (!info->dlpi_name || !strstr(info->dlpi_name, static_cast<const char*>(name))) return 0;
  Range& r = strstr(info->dlpi_name, "libstdc++") ? runtime : library;
  r = {};
  for (int k = 0; k < info->dlpi_phnum; k++) {
    const auto& p = info->dlpi_phdr[k];
    if (p.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + p.p_vaddr, end = begin + p.p_memsz;
    if (!r.begin || begin < r.begin) r.begin = begin;
    if (end > r.end) r.end = end;
  }
  return 1;
}

template <class F>
F next(const char* symbol) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t);

// Allocations of the library, counted from 0: number `first` and the `times` - 1 after it fail. A
// negative `first`: none does.
void fake_memory_fail(const char* name, long first, long times) {
  left = -1;
  dl_iterate_phdr(look, const_cast<char*>(name));
  dl_iterate_phdr(look, const_cast<char*>("libstdc++"));
  void* warm[2];
  backtrace(warm, 2);  // loads what it needs
  made = 0;
  lasting = times;
  left = first;
}

// How many the library made since.
long fake_memory_made() { return made; }

void* malloc(size_t n) { return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(n); }
}

void* operator new(size_t n) {
  static const auto real = next<void* (*)(size_t)>("_Znwm");
  if (fails(__builtin_return_address(0))) throw std::bad_alloc();
  return real(n);
}

void* operator new[](size_t n) {
  static const auto real = next<void* (*)(size_t)>("_Znam");
  if (fails(__builtin_return_address(0))) throw std::bad_alloc();
  return real(n);
}
