// Asynchronous copies from global to shared memory (cp.async).
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

DEV u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
// BYTES (4, 8, or 16 past the first cache), of which `read` are read; the rest become zero.
template <int BYTES = 16>
DEV void copy_async(u32 to, const void* from, int read) {
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(read)
                 : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most LEFT groups of this thread's copies are under way.
template <int LEFT>
DEV void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
DEV void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
