// Instructions of sm_90a that all its kernels share: barriers in shared memory, tensor copies,
// warpgroup products.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/async_copy.cuh"

struct alignas(64) TensorMap {
  char bytes[128];
};

DEV void barrier_init(u32 b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
// What barrier_init set up is there for the cluster and for copies.
DEV void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void expect_bytes(u32 b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
               : "memory");
}
DEV void arrive(u32 b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
// One asm loop: with a branch of C++ in it (to give up after a while, say) the compiler no longer
// uses the registers that setmaxnreg gives.
DEV void wait(u32 b, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, "
      "0x989680;\n@p bra done_%=;\nbra again_%=;\ndone_%=:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
DEV void copy4(u32 to, const TensorMap* map, u32 b, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
DEV void sync_group(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEV void arrive_group(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// What ordinary stores wrote to shared memory is there for tensor copies that follow.
DEV void visible_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most LEFT groups of products are unfinished.
template <int LEFT>
DEV void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
DEV bool elected() {
  u32 p;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(p));
  return p;
}
DEV void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
