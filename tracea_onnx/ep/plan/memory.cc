#include "plan/memory.h"

#include <sys/mman.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cstdlib>
#include <cstring>
#include <string>

#include "plan/failure.h"
#include "plan/stats.h"

namespace tracea {

constexpr size_t kHugePage = size_t(2) << 20;

Memory::Memory(size_t bytes) : bytes_(bytes) {
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
  void* p = nullptr;
  if (posix_memalign(&p, kAlign, bytes ? bytes : kAlign)) throw Failure("out of memory");
  data_ = static_cast<char*>(p);
  memset(data_, 0, bytes);
  stats.live_memory += long(bytes_);
}

Memory::~Memory() {
  stats.live_memory -= long(bytes_), stats.live_mapped -= long(length_);
  if (mapped_)
    munmap(mapped_, length_);
  else
    free(data_);
}

void return_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace tracea
