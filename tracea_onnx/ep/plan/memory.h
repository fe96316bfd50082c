// Zeroed memory on a 64-byte line, on huge pages where it is large: packed weights and arenas are
// read at DRAM speed through few TLB entries.
#pragma once
#include <cstddef>
#include <utility>

namespace tracea {

constexpr size_t kAlign = 64;  // every buffer of a plan starts on a cache line
constexpr size_t kSlack =
    256;  // readable bytes behind every buffer: vector kernels may load past the end

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Gives what the process has freed back to the system, where its allocator keeps it. It looks at
// all of the heap: done only beside constants of that many bytes.
void return_free_memory();
constexpr size_t kWorthReturning = size_t(2) << 20;

// Takes pages of a mapped file, which were read and are not needed now, out of the process's
// memory: they come back where they are read again. Leaves what is not all pages of files.
void forget_mapped(const void* data, size_t bytes);

class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);  // throws Failure when the machine has no such memory
  Memory(Memory&& o) noexcept { swap(o); }
  Memory& operator=(Memory&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Memory();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void swap(Memory& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(mapped_, o.mapped_);
    std::swap(length_, o.length_);
  }
  char* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapped_ = nullptr;  // what munmap gets, or null when the memory came from the heap
  size_t length_ = 0;
};

}  // namespace tracea
