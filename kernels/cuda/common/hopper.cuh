// PTX of sm_90a that its kernels share: mbarriers, 4-d TMA loads, named barriers, wgmma
// synchronisation, stmatrix.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/async_copy.cuh"

struct alignas(64) TensorMap {
  char bytes[128];
};

DEV void mbarrier_init(u32 b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
// Makes initialised mbarriers visible to the cluster and to TMA.
DEV void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEV void mbarrier_expect_tx(u32 b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
               : "memory");
}
DEV void arrive(u32 b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
// One asm loop. With a C++ branch inside (such as a time-out) the compiler does not use the
// registers that setmaxnreg grants.
DEV void wait(u32 b, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, "
      "0x989680;\n@p bra done_%=;\nbra again_%=;\ndone_%=:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
DEV void tma_load_4d(u32 to, const TensorMap* map, u32 b, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
DEV void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEV void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Makes ordinary stores to shared memory visible to TMA stores that follow.
DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LEFT groups of wgmma are in flight.
template <int LEFT>
DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
DEV bool elect_one() {
  u32 p;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(p));
  return p;
}
DEV void stmatrix_x4(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
