#include "plan/memory.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#endif
#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "plan/failure.h"
#include "plan/stats.h"

namespace tracea {

constexpr std::align_val_t kLine{kAlign};

Memory::Memory(size_t bytes) : bytes_(bytes) {
#if !defined(_WIN32)
  constexpr size_t kHugePage = size_t(2) << 20;
  if (bytes >= kHugePage) {
    length_ = align_up(bytes, kHugePage) + kHugePage;  // room to start on a huge page
    mapped_ = length_ > bytes ? mmap(nullptr, length_, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                              : MAP_FAILED;
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      throw Failure("out of memory: " + std::to_string(bytes) + " bytes were asked for");
    }
    data_ = reinterpret_cast<char*>(align_up(reinterpret_cast<size_t>(mapped_), kHugePage));
    stats.live_memory += long(bytes_), stats.live_mapped += long(length_);
#ifdef MADV_HUGEPAGE
    madvise(data_, align_up(bytes, kHugePage), MADV_HUGEPAGE);
#endif
    return;
  }
#endif
  data_ = static_cast<char*>(::operator new(bytes ? bytes : kAlign, kLine, std::nothrow));
  if (!data_) throw Failure("out of memory: " + std::to_string(bytes) + " bytes were asked for");
  memset(data_, 0, bytes);
  stats.live_memory += long(bytes_);
}

Memory::~Memory() {
  stats.live_memory -= long(bytes_), stats.live_mapped -= long(length_);
#if !defined(_WIN32)
  if (mapped_) {
    munmap(mapped_, length_);
    return;
  }
#endif
  ::operator delete(data_, kLine);
}

void return_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

#if defined(__linux__)
namespace {

// Whether these pages hold nothing that their file does not: what the process wrote to a private
// mapping is anonymous, and would be lost. By the flags of /proc/self/pagemap.
bool only_of_files(uintptr_t first, uintptr_t end, uintptr_t page) {
  constexpr uint64_t kPresent = uint64_t(1) << 63, kSwapped = uint64_t(1) << 62,
                     kOfFile = uint64_t(1) << 61;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  uint64_t flags[512];
  bool all = true;
  for (uintptr_t at = first / page; all && at < end / page;) {
    const size_t wanted = std::min(sizeof flags, (end / page - at) * sizeof *flags);
    const ssize_t got = pread(pagemap, flags, wanted, off_t(at * sizeof *flags));
    const size_t n = got > 0 ? size_t(got) / sizeof *flags : 0;
    all = n && std::all_of(flags, flags + n, [](uint64_t f) {
            return f & kPresent ? bool(f & kOfFile) : !(f & kSwapped);
          });
    at += n;
  }
  close(pagemap);
  return all;
}

}  // namespace

void forget_mapped(const void* data, size_t bytes) {
  constexpr size_t kWorthIt = size_t(1) << 16;
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = align_up(at, page), end = (at + bytes) / page * page;
  if (first + kWorthIt <= end && only_of_files(first, end, page))
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}
#else
void forget_mapped(const void*, size_t) {}
#endif

}  // namespace tracea
