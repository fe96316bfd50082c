// Exchange between the CTAs of a cluster that split k.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#ifndef SPLIT
#define SPLIT 2  // CTAs of a cluster that divide k
#endif
#endif  // GENERATED

#if SPLIT > 1
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEV float load_dsmem_f32(const float* p, u32 peer) {
  float v;
  asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.f32 %0, [a];}"
               : "=f"(v)
               : "r"((u32)__cvta_generic_to_shared(p)), "r"(peer)
               : "memory");
  return v;
}
#endif
