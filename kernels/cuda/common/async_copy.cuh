// Asynchronous copies from global to shared memory (cp.async).
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

DEV u32 smem_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
// Copies BYTES bytes (4, 8 or 16; 16 bypass L1). Only the first `read` are read, the rest become 0.
template <int BYTES = 16>
DEV void cp_async(u32 to, const void* from, int read) {
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(read)
                 : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT of this thread's groups of copies are in flight.
template <int LEFT>
DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
DEV void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
