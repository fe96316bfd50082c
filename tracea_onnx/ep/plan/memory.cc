#include "plan/memory.h"

#if !defined(_WIN32)
#include <sys/mman.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

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

}  // namespace tracea
