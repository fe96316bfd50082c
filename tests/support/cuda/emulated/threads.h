// The threads of a cluster of CUDA blocks as fibers of one host thread: they are switched where
// they wait for one another, so that a wait which cannot end is seen at once. Shared memory, and
// copies that end late.
#pragma once
#include <stddef.h>
#include <string.h>

struct Dim3 {
  unsigned x, y, z;
};
// Of the thread that runs.
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short u16;

// Ends the launch: what emulate() returns.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// What the lanes of `mask` do together: `of` is called once, with the argument of each lane.
typedef void (*Together)(void** lanes, u32 mask);
void together(const char* what, Together of, void* mine, u32 mask = ~0u);

// Arrives at barrier `id` of the block (16 of them) and, if `waits`, waits there for `threads`
// threads (0: all that have not ended). Returns how many arrived with `vote`.
u32 barrier(u32 id, u32 threads, bool waits, bool vote = false);
// The two halves of the barrier of the cluster.
void cluster_arrive();
void cluster_wait();
u32 cluster_rank();
u32 cluster_size();
// Lets other threads run: of a loop that polls memory.
void pause();

// The window of shared memory: addresses of 32 bits. Those of another block of the cluster have its
// rank in bits 24 and up.
u32 address_of(const void* p);
u32 address_in(u32 address, u32 rank);
// Memory of `bytes` bytes at an address that must be a multiple of `alignment`.
char* at(u32 address, u32 bytes, u32 alignment, const char* what);
char* dynamic_shared(u32 alignment);
// The place of a variable in every block; `top` is where the last one of this program lies.
u32 place_shared(u32& top, u32 bytes, u32 alignment);
char* placed(u32 place);

// Copies of this thread into shared memory (cp.async): they write NaN at once, what is copied when
// they are waited for.
void copy_late(u32 to, const void* from, u32 bytes, u32 read);
void commit_copies();
void wait_for_copies(u32 left);
// The same of bulk stores, which read when they are waited for.
void commit_stores();
void wait_for_stores(u32 left);

// Launches `kernel`; the first error, or null. seconds: of CPU time, after which a launch ends.
extern "C" const char* emulate(void (*kernel)(void**), void** arguments, const u32* grid, u32 block,
                               u32 cluster, u32 shared_bytes, double seconds);
}  // namespace emulated
