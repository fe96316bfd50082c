// PTX of sm_90a for GEMM and convolution kernels: TMA loads and stores, multicast, clusters.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#ifndef SOURCE
#define SOURCE 0
#endif
constexpr int MERGED_COLUMNS = 0, MERGED_CHANNELS = 0;
#endif  // GENERATED
#include "common/hopper.cuh"

DEV void mbarrier_arrive_remote(u32 b, u32 block) {
  asm volatile(
      "{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, "
      "[r];}" ::"r"(b),
      "r"(block)
      : "memory");
}
DEV void tma_load_2d(u32 to, const TensorMap* map, u32 b, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y)
      : "memory");
}
DEV void tma_load_2d_multicast(u32 to, const TensorMap* map, u32 b, int x, int y, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}
DEV void tma_load_3d(u32 to, const TensorMap* map, u32 b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "r"(z)
      : "memory");
}
DEV void tma_load_3d_multicast(u32 to, const TensorMap* map, u32 b, int x, int y, int z,
                               u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}
DEV void tma_load_4d_multicast(u32 to, const TensorMap* map, u32 b, int x, int y, int z, int w,
                               u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(b), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
}
DEV void tma_load_im2col(u32 to, const TensorMap* map, u32 b, int c, int w, int h, int n, u16 dw,
                         u16 dh) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(to),
      "l"(map), "r"(b), "r"(c), "r"(w), "r"(h), "r"(n), "h"(dw), "h"(dh)
      : "memory");
}
DEV void tma_load_im2col_multicast(u32 to, const TensorMap* map, u32 b, int c, int w, int h, int n,
                                   u16 dw, u16 dh, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
      "l"(map), "r"(b), "r"(c), "r"(w), "r"(h), "r"(n), "h"(dw), "h"(dh), "h"(blocks)
      : "memory");
}
DEV void tma_store_2d(const TensorMap* map, u32 from, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
DEV void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but the last LEFT groups of this thread's stores have read shared memory.
template <int LEFT>
DEV void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// Rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
DEV u64 descriptor(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
DEV u32 load_word(u32 from) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
DEV void store_word(u32 to, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
DEV u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// All threads of a cluster arrive, later wait for each other. Nothing that they stored is waited
// for, but barriers are set up (mbarrier_init_fence); what the first cache holds is lost.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
DEV void wait_for_producers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// One step of 64 along k: columns of matrices, or (SOURCE 1) channels of a filter tap.
#if SOURCE == 1
struct Step {
  int chunk, kw, kh;
  __device__ __forceinline__ Step(int k, int chunks, int width)
      : chunk(k % chunks), kw(k / chunks % width), kh(k / chunks / width) {}
  __device__ __forceinline__ void next(int chunks, int width) {
    if (++chunk < chunks) return;
    chunk = 0;
    if (++kw == width) kw = 0, kh++;
  }
};
// Where the filter window of output pixel m begins.
struct Window {
  int image, h, w;
  __device__ __forceinline__ Window(int m, int height, int width, int step_h, int step_w, int pad_h,
                                    int pad_w) {
    image = m / (height * width);
    const int pixel = m - image * (height * width);
    h = pixel / width * step_h - pad_h, w = pixel % width * step_w - pad_w;
  }
};
#else
struct Step {
  int k;
  __device__ __forceinline__ Step(int k_, int, int) : k(k_) {}
  __device__ __forceinline__ void next(int, int) { k++; }
};
#endif

// Columns [first, end) of y that tile t of SIZE has, and the input channel where theirs begin. In a
// convolution of groups (MERGED_COLUMNS > 0) that many columns share a window of input channels,
// the next ones that MERGED_CHANNELS further on: no tile has columns of two windows.
constexpr int tiles_of_merged_groups(int width) { return (MERGED_COLUMNS + width - 1) / width; }
struct TileColumns {
  int first, end, channel;
};
template <int SIZE>
DEV TileColumns tile_columns(int t, int n) {
  if (MERGED_COLUMNS == 0) return {t * SIZE, n, 0};
  const int window = t / max(tiles_of_merged_groups(SIZE), 1);
  return {window * MERGED_COLUMNS + t % max(tiles_of_merged_groups(SIZE), 1) * SIZE,
          min(n, (window + 1) * MERGED_COLUMNS), window * MERGED_CHANNELS};
}
template <int SIZE>
DEV int column_tiles(int n) {
  if (MERGED_COLUMNS == 0) return (n + SIZE - 1) / SIZE;
  return (n + MERGED_COLUMNS - 1) / max(MERGED_COLUMNS, 1) * tiles_of_merged_groups(SIZE);
}
