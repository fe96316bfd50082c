// What the blocks of a cluster tell each other through shared memory.
#pragma once
#include "common/base.cuh"

// What lies at `mine` here, as block `rank` of the cluster has it: some words.
template <class H>
DEV H of_block(const H* mine, int rank) {
  u32 at, word[sizeof(H) / 4];
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(u32(__cvta_generic_to_shared(mine))), "r"(rank));
#pragma unroll
  for (int i = 0; i < int(sizeof(H) / 4); i++)
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word[i]) : "r"(at + i * 4) : "memory");
  return *(const H*)word;
}

// The sum of v over the cluster's blocks, in the same order in each; v is the same in all threads
// of a block. `slot` may not be used again.
template <int BLOCKS>
DEV float join_blocks(float v, float* slot) {
  if (BLOCKS == 1) return v;
  if (threadIdx.x == 0) *slot = v;
  cluster_arrive();
  cluster_wait();
  v = of_block(slot, (threadIdx.x & 31) % BLOCKS);
#pragma unroll
  for (int o = BLOCKS / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}
