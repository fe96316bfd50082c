// Exchange between the CTAs of a cluster through distributed shared memory.
#pragma once
#include "common/base.cuh"

// Reads from CTA `rank` what has the address `mine` in this CTA: a multiple of 4 bytes.
template <class H>
DEV H load_dsmem(const H* mine, int rank) {
  u32 at, word[sizeof(H) / 4];
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(u32(__cvta_generic_to_shared(mine))), "r"(rank));
#pragma unroll
  for (int i = 0; i < int(sizeof(H) / 4); i++)
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word[i]) : "r"(at + i * 4) : "memory");
  return *(const H*)word;
}

// Sum of v over the CTAs of the cluster, in the same order in each. v is equal in all threads of a
// CTA. `slot` is for one call only: another CTA may still read it.
template <int BLOCKS>
DEV float cluster_sum(float v, float* slot) {
  if (BLOCKS == 1) return v;
  if (threadIdx.x == 0) *slot = v;
  cluster_arrive();
  cluster_wait();
  v = load_dsmem(slot, (threadIdx.x & 31) % BLOCKS);
#pragma unroll
  for (int o = BLOCKS / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}
