// Copies to shared memory, synchronous or by cp.async. Follows common/mma.cuh.
#pragma once
#ifndef GENERATED
#include "common/mma.cuh"
#endif  // GENERATED

// Copies READ elements at from[at] to shared memory, zeros unless `real`. Four bytes or more are
// copied by cp.async (16 bytes bypass L1).
template <int READ, class Index>
DEV void fetch(u32 to, const T* from, Index at, bool real) {
  constexpr int BYTES = READ * sizeof(T);
  if constexpr (BYTES == 16)
    cp_async(to, from + (real ? at : 0), real ? 16 : 0);
  else if constexpr (BYTES >= 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to),
                 "l"(from + (real ? at : 0)), "n"(BYTES), "r"(real ? BYTES : 0)
                 : "memory");
  else
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(real ? *(const u16*)(from + at) : u16(0))
                 : "memory");
}
