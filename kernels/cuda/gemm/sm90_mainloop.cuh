// Main loop of the GEMM kernels of Hopper: y[m, n] = epilogue(sum_k A[m, k] * B[n, k]) in 16-bit
// types, by TMA copies into a ring of stages, each 64 of k, and wgmma. Two schedulers use it:
// gemm/persistent_sm90.cuh and gemm/cluster_splitk_sm90.cuh. Of 8-bit integers a stage has 128 of
// k, and a wgmma 32: what is said of 64 and 16 of k is of bytes.
//
// SOURCE: the operands:
//   0: matrices.
//   1: a convolution. Rows of A are output pixels, read by im2col TMA; k runs over (kh, kw, 64
//      channels).
//   2: matrices of a batch, of two run-time operands. A_MN_MAJOR, B_MN_MAJOR: the operand is
//      contiguous along its rows, not along k; stages are panels of 64 rows by 64 k.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr bool EARLY = true;        // B is constant: copied before griddepcontrol.wait
constexpr int LAST_STAGE_MMAS = 4;  // wgmma (of 16 k) of the last stage: 1 to 4
constexpr int STAGE_MMAS = 4;       // of the other stages (below 4: few channels)
constexpr int STAGES = 4;           // of the ring
#define RESIDUAL 0                  // the epilogue takes a residual
#define NORMED 0                    // the epilogue takes norms of rows (common/folded_norm.cuh)
#define MEASURED 0                  // the epilogue computes statistics of y's rows (the same)
#define MIXED 0                     // tiles contain channels of other groups (conv/grouped.cuh)
#define BLOCKED 0                   // rows of B are copied in another order (`copy_blocked`)
#ifndef WGMMA_SIZES
#define MMA_TYPE "f16"
#define WGMMA_SIZES WGMMA(128)
#endif

#endif  // GENERATED
#include "common/tma.cuh"
#include "common/wgmma.cuh"
#include "common/epilogue_store.cuh"
#if MIXED
#include "conv/grouped.cuh"
#endif

#if IS_INT8
typedef int Partial;  // of a sum
#else
typedef float Partial;
#endif
constexpr int STAGE_K = 128 / sizeof(T);  // of k, in a stage
constexpr int PANEL = 64 * 128;           // bytes of 64 rows of a stage
// Descriptor of an operand of a stage.
template <bool MN_MAJOR>
DEV u64 operand(u32 address) {
  return descriptor(address) + (MN_MAJOR ? 511ull << 16 : 0);  // a panel has 8192 bytes
}
// COUNT wgmma (of 16 k) of a stage, for each 64 rows of A.
template <int COUNT, bool A_MN_MAJOR, bool B_MN_MAJOR, int WGMMAS, int RESULTS>
DEV void multiply_stage(Partial (&sum)[WGMMAS][RESULTS], u64 a, u64 b, int k) {
  constexpr int A_STEP = A_MN_MAJOR ? 128 : 2,
                B_STEP = B_MN_MAJOR ? 128 : 2;  // to the next 16 of k, in units of 16 bytes
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < COUNT; kk++)
#pragma unroll
    for (int i = 0; i < WGMMAS; i++)
      wgmma<A_MN_MAJOR, B_MN_MAJOR>(sum[i], a + (i * (PANEL / 16) + kk * A_STEP), b + kk * B_STEP,
                                    (k | kk) != 0);
  wgmma_commit();
}

// A slot of the ring, and the phase of its barriers, which flips where the ring begins.
struct PipelineState {
  int slot = 0;
  u32 phase = 0;
  METHOD void next() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  METHOD void skip(int stages) {
    const int next = slot + stages;
    phase ^= (next / STAGES) & 1;
    slot = next % STAGES;
  }
};
struct OffsetPipelineState {
  int begin, slot = begin;
  u32 phase = 0;
  METHOD void next() {
    if (++slot == STAGES) slot = 0;
    if (slot == begin) phase ^= 1;
  }
};
// A consumer's main loop: multiply(k, slot) once the stage is full, then release(k, slot) of the
// stage before, whose MMAs are complete.
template <class Stages, class Multiply, class Release>
DEV void mainloop(Stages& ring, u32 full, int count, const Multiply& multiply,
                  const Release& release) {
  int last = -1;
  for (int k = 0; k < count; k++) {
    wait(full + 8 * ring.slot, ring.phase);
    multiply(k, ring.slot);
    if (last >= 0) {
      wgmma_wait<1>();
      release(k, last);
    }
    last = ring.slot;
    ring.next();
  }
  wgmma_wait<0>();
  release(count, last);
}

#if BLOCKED
// ROWS rows of an operand of bytes from `row` on, at byte k of each: of 64 rows, row 16 l + 2 c + e
// becomes row 8 c + 2 l + e, so that lane l of a quad has sums of 16 neighbours.
template <bool SHARED, int ROWS>
DEV void copy_blocked(u32 to, const TensorMap* map, u32 b, int k, int row, u32 ctas) {
  constexpr int ONCE = ROWS % 64 ? 32 : 64;
#pragma unroll
  for (int r = 0; r < ROWS; r += ONCE) {
    const int block = (row + r) / 64 * 4, first = (row + r) % 64 / 8;
    if (SHARED)
      tma_load_4d_multicast(to + r * 128, map, b, k, 0, block, first, (u16)ctas);
    else
      tma_load_4d(to + r * 128, map, b, k, 0, block, first);
  }
}
#endif
#if SOURCE == 2
// SIZE rows from `row` on at stage k, of matrix (at_0, at_1) of the batch. Multicast to ALL CTAs,
// whose bits are `ctas`: each copies a part for all of them, of the rows or, if MN_MAJOR, of the 64
// k.
template <bool MN_MAJOR, int SIZE, int ALL>
DEV void copy_of_batch(u32 to, const TensorMap* map, u32 b, int k, int row, int at_1, int at_0,
                       int rank, u32 ctas) {
  static_assert(MN_MAJOR || SIZE % (8 * ALL) == 0, "whole groups of 8 rows");
  const int part = ALL > 1 ? rank * ((MN_MAJOR ? 64 : SIZE) / ALL) : 0;
#pragma unroll
  for (int r = 0; r < SIZE; r += MN_MAJOR ? 64 : SIZE) {
    const int x = MN_MAJOR ? row + r : k * 64, y = MN_MAJOR ? k * 64 + part : row + part;
    if (ALL > 1)
      tma_load_4d_multicast(to + (r + part) * 128, map, b, x, y, at_1, at_0, (u16)ctas);
    else
      tma_load_4d(to + r * 128, map, b, x, y, at_1, at_0);
  }
}
#elif SOURCE == 1
#define STEP_BYTES(s) (((s).kh * KW + (s).kw) * tap_bytes + (s).chunk * 128)
// Filters from `row` on, at a tap. SHARED: multicast to the CTAs of the bits `ctas`.
template <bool SHARED>
DEV void copy_filters(u32 to, const TensorMap* map, u32 b, const Step& s, int tap, int row,
                      u32 ctas) {
  if (SHARED)
    tma_load_3d_multicast(to, map, b, s.chunk * STAGE_K, tap, row, (u16)ctas);
  else
    tma_load_3d(to, map, b, s.chunk * STAGE_K, tap, row);
}
// Pixels from a window on, at its tap (dw, dh).
template <bool SHARED>
DEV void copy_pixels(u32 to, const TensorMap* map, u32 b, const Step& s, int channel,
                     const Window& at, u16 dw, u16 dh, u32 ctas) {
  if (SHARED)
    tma_load_im2col_multicast(to, map, b, channel + s.chunk * STAGE_K, at.w, at.h, at.image, dw, dh,
                              (u16)ctas);
  else
    tma_load_im2col(to, map, b, channel + s.chunk * STAGE_K, at.w, at.h, at.image, dw, dh);
}
#else
#define STEP_BYTES(s) ((s).k * 128)
template <bool SHARED>
DEV void copy_matrix(u32 to, const TensorMap* map, u32 b, int k, int row, u32 ctas) {
  if (SHARED)
    tma_load_2d_multicast(to, map, b, k * STAGE_K, row, (u16)ctas);
  else
    tma_load_2d(to, map, b, k * STAGE_K, row);
}
#endif
