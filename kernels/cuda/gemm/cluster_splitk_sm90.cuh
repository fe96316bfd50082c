// GEMM on Hopper (gemm/sm90_mainloop.cuh) with one tile per CTA and split-K over a cluster, for
// results of few tiles.
//
// wgmma multiplies ROWS rows of its left operand (64 per warpgroup) by COLUMNS rows of its right
// one. SWAP: the weight is the left operand (swap-AB), so that few rows of y need few columns of
// wgmma. Of a cluster, SPLIT CTAs split k; RIGHT_MULTICAST CTAs have neighbouring left rows and
// share copies of the right operand by multicast; LEFT_MULTICAST CTAs have neighbouring right rows
// and share copies of the left one. Partial sums are exchanged through shared memory as f32: each
// of the SPLIT CTAs reduces a part of the tile's rows, always in the same order, and runs the
// epilogue. The last warp is the producer. TRANSPOSED_CONV (SOURCE 1): a transposed convolution:
// each phase of its output (blockIdx.y) is a convolution of stride 1; OH, OW, SH, SW, PT, PL are
// those of the union of the phases' windows. Matrices of a batch (SOURCE 2) are blockIdx.y and z.
// Sums of 8-bit products are integers up to the epilogue, which reads operands of columns before
// the main loop where registers suffice.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int ROWS = 128, COLUMNS = 128;                // a tile: a multiple of 64, of 8 up to 256
constexpr int SPLIT = 2;                                // 1 to 8
constexpr int RIGHT_MULTICAST = 1, LEFT_MULTICAST = 1;  // LEFT_MULTICAST > 1: SOURCE 2
constexpr int RESIDENT = 1;                             // CTAs per SM
constexpr int Y_EACH = 4;  // elements at multiples of which rows of y begin and end
constexpr bool SWAP = false;
constexpr bool LEFT_MN_MAJOR = false,
               RIGHT_MN_MAJOR = false;  // contiguous along rows, not k
constexpr bool R_VECTOR = true;         // rows of the residual are aligned to 16 bytes
#define TRANSPOSED_CONV 0
#define PARAMETERS                                                                               \
  const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w, T *y, int M, \
      int N, i64 ldy, i64 ldr, int K
#if !IS_INT8
template <bool VECTOR>
DEV void load_columns(const T*, int, float (&)[WIDTH]) {}
#endif

#endif  // GENERATED
#include "gemm/sm90_mainloop.cuh"
#if TRANSPOSED_CONV
#include "conv/transposed.cuh"
#endif

constexpr int GROUPS = ROWS / 64, WORKERS = 128 * GROUPS,
              CLUSTER = SPLIT * RIGHT_MULTICAST * LEFT_MULTICAST;
constexpr int LEFT_BYTES = ROWS * 128, RIGHT_BYTES = COLUMNS * 128,
              STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int TILE_M = SWAP ? COLUMNS : ROWS, TILE_N = SWAP ? ROWS : COLUMNS;
constexpr int PITCH =
    SWAP ? ROWS + 4
         : (COLUMNS + 31) / 32 * 32 + 8;  // sums per row of the staged tile, without bank conflicts
// A CTA finishes OWN rows of its tile. A thread finishes 8 columns of UNITS of them, ROUND rows
// apart: 8 neighbouring threads have 64 columns of a row.
constexpr int OWN = (TILE_M + SPLIT - 1) / SPLIT, CHUNKS = TILE_N / 8, ROUND = WORKERS / CHUNKS,
              UNITS = (OWN + ROUND - 1) / ROUND;
// After the main loop the ring is overlaid by the tile's sums, the partial sums of this CTA's rows
// from the other CTAs, and the norms of these rows.
constexpr int SUMS_BYTES = TILE_M * PITCH * 4, PART_BYTES = OWN * PITCH * 4,
              NORMS_AT = SUMS_BYTES + (SPLIT - 1) * PART_BYTES, FINISH_BYTES = NORMS_AT + OWN * 16;
constexpr int RING_BYTES = STAGES * STAGE_BYTES > FINISH_BYTES ? STAGES* STAGE_BYTES : FINISH_BYTES;
constexpr bool SPARE =
    FINISH_BYTES <= (STAGES - 1) * STAGE_BYTES;  // they fit into all but the last stage
// RESIDUAL_PREFETCHED: the residual is read during the main loop, where registers suffice; else it
// is read AHEAD units before it is added.
constexpr int REGISTERS = 65536 / (RESIDENT * (WORKERS + 128)), PASSES = (UNITS + 4) / 5;
#if IS_INT8
typedef int2 Sums2;
typedef int4 Sums4;
struct alignas(sizeof(Residual) == 1 ? 8 : 16) Residual8 {
  Residual v[8];
};
constexpr bool COLUMNS_PREFETCHED = COLUMNS / 2 + sizeof(Columns) / 4 + 32 <= REGISTERS;
constexpr int HELD = COLUMNS_PREFETCHED ? sizeof(Columns) / 4 : 0;
#else
typedef float2 Sums2;
typedef float4 Sums4;
typedef uint4 Residual8;
constexpr bool COLUMNS_PREFETCHED = false;
constexpr int HELD = 0;
#endif
constexpr bool RESIDUAL_PREFETCHED =
    RESIDUAL &&
    COLUMNS / 2 + int(sizeof(Residual8)) / 4 * UNITS + HELD + (NORMED ? 36 : 32) <= REGISTERS;
constexpr int AHEAD = RESIDUAL_PREFETCHED ? UNITS : (UNITS + PASSES - 1) / PASSES;
// Whether the producer warp waits for the cluster before its first copy: it must with multicast.
// (Under racecheck, all warps must arrive at such a wait before any continues.)
#ifdef RACECHECK
constexpr bool COPY_WARP_WAITS = CLUSTER > 1;
#else
constexpr bool COPY_WARP_WAITS = RIGHT_MULTICAST * LEFT_MULTICAST > 1;
#endif
static_assert(ROWS % 64 == 0 && COLUMNS % 8 == 0 && COLUMNS <= 256, "tile");
static_assert(SOURCE == 2 || LEFT_MULTICAST == 1, "tile");
static_assert(RIGHT_MN_MAJOR ? COLUMNS % 64 == 0 : COLUMNS % (8 * RIGHT_MULTICAST) == 0, "tile");

DEV u32 address_in(u32 address, u32 cta) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
  return there;
}
// Copies to the shared memory of a CTA of the cluster, and counts the bytes at its barrier `b`.
DEV void copy_to(u32 to, u32 from, u32 bytes, u32 b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(b)
      : "memory");
}
DEV void add(float& to, float v) { to += v; }
DEV void add(int& to, int v) { to = int(u32(to) + u32(v)); }
#if !IS_INT8
DEV uint4 pack8(const float (&v)[8]) {
  return make_uint4(pack2((T*)0, v[0], v[1]), pack2((T*)0, v[2], v[3]), pack2((T*)0, v[4], v[5]),
                    pack2((T*)0, v[6], v[7]));
}
DEV void unpack8(uint4 w, float (&v)[8]) {
  unpack2((T*)0, w.x, v[0], v[1]), unpack2((T*)0, w.y, v[2], v[3]), unpack2((T*)0, w.z, v[4], v[5]),
      unpack2((T*)0, w.w, v[6], v[7]);
}
template <bool VECTOR>
DEV uint4 load8(const T* p, int count) {
  if (VECTOR && count >= 8) return *(const uint4*)p;
  float v[8];
  load_columns<false>(p, count, v);
  return pack8(v);
}
// Columns [0, end) of an unaligned row by one warp: Y_EACH elements a store where all rows begin
// and end at multiples of so many, else words of two elements where these are aligned.
DEV void store_row(T* y, const float* from, int end, int lane) {
  if (Y_EACH == 4) {
    for (int c = 4 * lane; c < end; c += 128)
      *(uint2*)(y + c) =
          make_uint2(pack2((T*)0, from[c], from[c + 1]), pack2((T*)0, from[c + 2], from[c + 3]));
    return;
  }
  if (Y_EACH == 2) {
    for (int c = 2 * lane; c < end; c += 64) *(u32*)(y + c) = pack2((T*)0, from[c], from[c + 1]);
    return;
  }
  const int first = int((u64)y / sizeof(T) % 2);
  if (lane < first && end > 0) from_float(y[0], from[0]);
  for (int c = first + 2 * lane; c < end; c += 64) {
    if (c + 1 < end)
      *(u32*)(y + c) = pack2((T*)0, from[c], from[c + 1]);
    else
      from_float(y[c], from[c]);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(WORKERS + 32, RESIDENT)
    gemm_cluster_splitk_sm90(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 skip = -smem_address(shared) & 1023u, ring = smem_address(shared) + skip,
            full = ring + RING_BYTES, empty = full + 8 * STAGES;
  // ready: all rings of the split may be overlaid; arrived: partial sums of the other CTAs are here
  const u32 ready = empty + 8 * STAGES, arrived = ready + 8;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0);
  const int rank = CLUSTER > 1 ? cluster_rank() : 0,
            part = rank / (RIGHT_MULTICAST * LEFT_MULTICAST), left_index = rank % RIGHT_MULTICAST,
            right_index = rank / RIGHT_MULTICAST % LEFT_MULTICAST;
  const auto rank_of = [&](int part, int right_index, int left_index) {
    return (part * LEFT_MULTICAST + right_index) * RIGHT_MULTICAST + left_index;
  };
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(full + 8 * i, 1),
          mbarrier_init(empty + 8 * i, GROUPS * (RIGHT_MULTICAST + LEFT_MULTICAST - 1));
    if (SPLIT > 1) mbarrier_init(ready, GROUPS * SPLIT), mbarrier_init(arrived, 1);
    mbarrier_init_fence();
    if (SPLIT > 1)
      mbarrier_expect_tx(arrived, max(0, min(OWN, TILE_M - part * OWN)) * (SPLIT - 1) * PITCH * 4);
  }
  if (CLUSTER > 1) cluster_arrive();  // before barriers of other CTAs are used
  __syncthreads();

  // Tiles along y's rows are neighbours: a weight is read from memory once.
  constexpr int DOWN = SWAP ? LEFT_MULTICAST : RIGHT_MULTICAST,
                ALONG = SWAP ? RIGHT_MULTICAST : LEFT_MULTICAST;  // tiles of a cluster
  const int tile = blockIdx.x / CLUSTER, tiles_m = (M + TILE_M * DOWN - 1) / (TILE_M * DOWN);
  const int m0 = (tile % tiles_m * DOWN + (SWAP ? right_index : left_index)) * TILE_M;
  const TileColumns columns_here =
      tile_columns<TILE_N>(tile / tiles_m * ALONG + (SWAP ? left_index : right_index), N);
  const int n0 = columns_here.first, end = columns_here.end;
#if TRANSPOSED_CONV
  const Phase phase(blockIdx.y);
  const int width = phase.across.taps, steps = phase.down.taps * width * chunks;
#define TAP(s) phase.tap(s)
#define TAP_OFFSETS(s) (u16) phase.across.offset(s.kw), (u16)phase.down.offset(s.kh)
#elif SOURCE == 1
  const int width = KW, steps = KH * KW * chunks;
#define TAP(s) (s.kh * KW + s.kw)
#define TAP_OFFSETS(s) (u16)(s.kw * DW), (u16)(s.kh * DH)
#else
  const int steps = (K + STAGE_K - 1) / STAGE_K, chunks = 1, width = 1;
#endif
  // Offsets of row m in y and in the epilogue's full operands; false if the row does not exist.
  const auto place = [&](int m, i64& to, i64& full) {
#if TRANSPOSED_CONV
    return phase.place(m, OH, OW, y_cs, y_rs, y_ns, r_cs, r_rs, r_ns, OUT_H, OUT_W, to, full);
#else
    to = m * ldy, full = m * ldr;
    return true;
#endif
  };
  const int begin = steps * part / SPLIT, count = steps * (part + 1) / SPLIT - begin;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int first = SPLIT > 1 ? (STAGES - count % STAGES) % STAGES
                              : 0;  // first slot, so that the last stage has the last slot
  const int own_m = m0 + part * OWN, own_rows = min(min(OWN, TILE_M - part * OWN), M - own_m);

  if (warp == WORKERS / 32) {
    if (COPY_WARP_WAITS) cluster_wait();
    if (elect_one()) {
      // With multicast each CTA copies a part of the right operand's rows.
      constexpr int MINE = COLUMNS / RIGHT_MULTICAST;
      const u16 right_ctas = (u16)(((1 << RIGHT_MULTICAST) - 1) << rank_of(part, right_index, 0));
      const int right = left_index * MINE;
#if SOURCE == 1
      const Window window(m0 + (SWAP ? right : 0), OH, OW, SH, SW, PT, PL);
#endif
#if SOURCE == 2
      u32 left_ctas = 0;
      for (int i = 0; i < LEFT_MULTICAST; i++) left_ctas |= 1u << rank_of(part, i, left_index);
      auto copy_left = [&](int slot, const TensorMap* map, int s, int row, int at_1, int at_0) {
        copy_of_batch<LEFT_MN_MAJOR, ROWS, LEFT_MULTICAST>(ring + slot * STAGE_BYTES, map,
                                                           full + 8 * slot, s, row, at_1, at_0,
                                                           right_index, left_ctas);
      };
      auto copy_right = [&](int slot, const TensorMap* map, int s, int row, int at_1, int at_0) {
        copy_of_batch<RIGHT_MN_MAJOR, COLUMNS, RIGHT_MULTICAST>(
            ring + slot * STAGE_BYTES + LEFT_BYTES, map, full + 8 * slot, s, row, at_1, at_0,
            left_index, right_ctas);
      };
#endif
      auto copy_weight = [&](int slot, const Step& s) {
#if SOURCE == 2
        const int at_1 = blockIdx.y * b_moves_1, at_0 = blockIdx.z * b_moves_0;
        SWAP ? copy_left(slot, &map_w, s.k, n0, at_1, at_0)
             : copy_right(slot, &map_w, s.k, n0, at_1, at_0);
#else
        const u32 to = ring + slot * STAGE_BYTES + (SWAP ? 0 : LEFT_BYTES + right * 128),
                  b = full + 8 * slot;
        constexpr bool MULTICAST = !SWAP && RIGHT_MULTICAST > 1;
        const int row = n0 + (MULTICAST ? right : 0);
#if SOURCE == 1
        copy_filters<MULTICAST>(to, &map_w, b, s, TAP(s), row, right_ctas);
#else
        copy_matrix<MULTICAST>(to, &map_w, b, s.k, row, right_ctas);
#endif
#endif
      };
      auto copy_rows = [&](int slot, const Step& s) {
#if SOURCE == 2
        const int at_1 = blockIdx.y * a_moves_1, at_0 = blockIdx.z * a_moves_0;
        SWAP ? copy_right(slot, &map_x, s.k, m0, at_1, at_0)
             : copy_left(slot, &map_x, s.k, m0, at_1, at_0);
#else
        const u32 to = ring + slot * STAGE_BYTES + (SWAP ? LEFT_BYTES + right * 128 : 0),
                  b = full + 8 * slot;
        constexpr bool MULTICAST = SWAP && RIGHT_MULTICAST > 1;
#if SOURCE == 1
        copy_pixels<MULTICAST>(to, &map_x, b, s, columns_here.channel, window, TAP_OFFSETS(s),
                               right_ctas);
#else
        copy_matrix<MULTICAST>(to, &map_x, b, s.k, m0 + (MULTICAST ? right : 0), right_ctas);
#endif
#endif
      };
      // Copies of constant weights need not wait for the kernel before.
      if (!EARLY) wait_for_producers();
      Step weight(begin, chunks, width), row(begin, chunks, width);
      const int ahead = min(STAGES, count);
      for (int k = 0, slot = first; k < ahead; k++, weight.next(chunks, width)) {
        mbarrier_expect_tx(full + 8 * slot, STAGE_BYTES);
        copy_weight(slot, weight);
        if (++slot == STAGES) slot = 0;
      }
      wait_for_producers();
      for (int k = 0, slot = first; k < ahead; k++, row.next(chunks, width)) {
        copy_rows(slot, row);
        if (++slot == STAGES) slot = 0;
      }
      OffsetPipelineState stage{first};
      for (int k = ahead; k < count; k++, weight.next(chunks, width), row.next(chunks, width)) {
        wait(empty + 8 * stage.slot, stage.phase);
        mbarrier_expect_tx(full + 8 * stage.slot, STAGE_BYTES);
        copy_weight(stage.slot, weight);
        copy_rows(stage.slot, row);
        stage.next();
      }
    }
    __syncwarp();
    if (CLUSTER > 1 && !COPY_WARP_WAITS) cluster_wait();
    if (SPLIT > 1) cluster_arrive(), cluster_wait();
    return;
  }

  const int group = warp >> 2, thread = threadIdx.x & 127, lane = thread & 31,
            row_warp = group * 64 + (warp & 3) * 16;
  Columns columns = {};
#if IS_INT8
  // constants need not wait for the kernel before
  if (COLUMNS_PREFETCHED && FIXED)
    if (const int n = n0 + threadIdx.x % CHUNKS * 8; n < end)
      columns = columns_at(epilogue, n, end);
#endif
  wait_for_producers();  // operands of the epilogue; earlier kernels have read what y overwrites
  const int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 8, n = n0 + column;
  const int rows = row < ROUND && n < end
                       ? own_rows
                       : 0;  // this thread finishes every ROUND-th of them from `row` on
  const int left = WHOLE_CHUNKS ? 8 : end - n;  // columns from n on
#if IS_INT8
  if (COLUMNS_PREFETCHED && !FIXED && rows > 0) columns = columns_at(epilogue, n, end);
#endif
#if RESIDUAL
  Residual8 residual_bits[AHEAD];
  auto read_residual = [&](Residual8& to, int r) {
#if IS_INT8
    if (r < rows) load_neighbours<RES_VECTOR>(epilogue.res + (own_m + r) * ldr + n, left, to.v);
#else
    if (r < rows) to = load8<R_VECTOR>(res + (own_m + r) * ldr + n, left);
#endif
  };
  if (RESIDUAL_PREFETCHED)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) read_residual(residual_bits[i], row + i * ROUND);
#endif
#if NORMED
  Norms norms[(OWN + WORKERS - 1) / WORKERS];
#pragma unroll
  for (int i = 0; i * WORKERS < OWN; i++) {
    NormInputs<1> inputs;
    inputs.load(epilogue, min(own_m + i * WORKERS + int(threadIdx.x), M - 1), lane);
    norms[i] = inputs.norms(epilogue, lane);
  }
#endif
  if (CLUSTER > 1) cluster_wait();
  if (threadIdx.x < CHUNKS && n < end) touch_columns(epilogue, n);
  Partial sum[1][COLUMNS / 2];
  const u64 a0 = descriptor(ring + group * PANEL), b0 = operand<RIGHT_MN_MAJOR>(ring + LEFT_BYTES);
#if SOURCE == 2
  y += blockIdx.z * y_0 + blockIdx.y * y_1;
#endif
  OffsetPipelineState stage{first};
  const auto multiply = [&](int k, int slot) {
    const u64 a = a0 + (u64)(slot * (STAGE_BYTES / 16)), b = b0 + (u64)(slot * (STAGE_BYTES / 16));
    if (LAST_STAGE_MMAS == STAGE_MMAS || begin + k < steps - 1)
      multiply_stage<STAGE_MMAS, LEFT_MN_MAJOR, RIGHT_MN_MAJOR>(sum, a, b, k);
    else
      multiply_stage<LAST_STAGE_MMAS, LEFT_MN_MAJOR, RIGHT_MN_MAJOR>(sum, a, b, k);
  };
  // Releases the stage in every CTA that shares it. When only the last stage is left, `ready` says
  // that the rest of this ring may be overlaid.
  const auto release = [&](int k, int slot) {
    if (thread < RIGHT_MULTICAST + LEFT_MULTICAST - 1 && k + STAGES <= count) {
      const int other = thread - RIGHT_MULTICAST, next = other + (other >= right_index);
      if (RIGHT_MULTICAST * LEFT_MULTICAST > 1)
        mbarrier_arrive_remote(empty + 8 * slot, thread < RIGHT_MULTICAST
                                                     ? rank_of(part, right_index, thread)
                                                     : rank_of(part, next, left_index));
      else
        arrive(empty + 8 * slot);
    }
    if (SPLIT > 1 && SPARE && k == count - 1 && thread < SPLIT)
      mbarrier_arrive_remote(ready, rank_of(thread, right_index, left_index));
  };
  mainloop(stage, full, count, multiply, release);
#if SOURCE == 2
  if (count == 0)  // fewer steps than SPLIT: k is symbolic
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; j++) sum[0][j] = 0;
#endif
  if (SPLIT > 1) {
    if ((!SPARE || count < 2) && thread < SPLIT)
      mbarrier_arrive_remote(ready, rank_of(thread, right_index, left_index));
    wait(ready, 0);
  } else {
    named_barrier_sync(1, WORKERS);
  }
  Partial* staged = (Partial*)(shared + skip);
  {
    const int r = row_warp + (lane >> 2), c = (lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
      if (SWAP) {
        Partial* p = staged + (j * 8 + c) * PITCH + r;
        p[0] = sum[0][j * 4], p[PITCH] = sum[0][j * 4 + 1], p[8] = sum[0][j * 4 + 2],
        p[PITCH + 8] = sum[0][j * 4 + 3];
      } else {
        Partial* p = staged + r * PITCH + j * 8 + c;
        *(Sums2*)p = Sums2{sum[0][j * 4], sum[0][j * 4 + 1]};
        *(Sums2*)(p + 8 * PITCH) = Sums2{sum[0][j * 4 + 2], sum[0][j * 4 + 3]};
      }
    }
  }
#if NORMED
  Norms* const row_norms = (Norms*)(staged + NORMS_AT / 4);
#pragma unroll
  for (int i = 0; i * WORKERS < OWN; i++)
    if (i * WORKERS + threadIdx.x < OWN) row_norms[i * WORKERS + threadIdx.x] = norms[i];
#define NORMS , row_norms[r]
#else
#define NORMS
#endif
  if (SPLIT > 1) fence_proxy_async();
  named_barrier_sync(1, WORKERS);
  if (SPLIT > 1 && threadIdx.x > 0 && threadIdx.x < SPLIT) {
    // CTA `owner` has partial sums of the others in the order in which they follow it.
    const int owner = (part + threadIdx.x) % SPLIT, to = rank_of(owner, right_index, left_index),
              bytes = min(OWN, TILE_M - owner * OWN) * PITCH * 4;
    if (bytes > 0)
      copy_to(address_in(ring + SUMS_BYTES + (SPLIT - 1 - threadIdx.x) * PART_BYTES, to),
              ring + owner * PART_BYTES, bytes, address_in(arrived, to));
  }
  __syncwarp();
#if RESIDUAL
  if (!RESIDUAL_PREFETCHED)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) read_residual(residual_bits[i], row + i * ROUND);
#endif
  if (!COLUMNS_PREFETCHED && rows > 0) columns = columns_at(epilogue, n, end);
  if (SPLIT > 1) {
    wait(arrived, 0);
    cluster_arrive();
  }
  Partial *const mine = staged + part * OWN * PITCH, *const theirs = staged + TILE_M * PITCH;
#pragma unroll 1
  for (int top = row; top < rows; top += AHEAD * ROUND) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int r = top + i * ROUND, m = own_m + r;
      if (r >= rows) break;
      i64 to, full;
      if (!place(m, to, full)) continue;
      Partial v[8];
      // Half of the lanes read their second 16 bytes first, which avoids bank conflicts.
      const int flip = lane & 4, at = r * PITCH + column;
      Sums4 a = *(const Sums4*)(mine + at + flip), b = *(const Sums4*)(mine + at + 4 - flip);
#pragma unroll
      for (int p = 0; p < SPLIT - 1; p++) {
        const Sums4 c = *(const Sums4*)(theirs + p * OWN * PITCH + at + flip),
                    d = *(const Sums4*)(theirs + p * OWN * PITCH + at + 4 - flip);
        add(a.x, c.x), add(a.y, c.y), add(a.z, c.z), add(a.w, c.w);
        add(b.x, d.x), add(b.y, d.y), add(b.z, d.z), add(b.w, d.w);
      }
      *(Sums4*)v = flip ? b : a;
      *(Sums4*)(v + 4) = flip ? a : b;
#if MIXED
      recompute_nonfinite(v, OWN_GROUP, [&](int k, int& to_m, int& to_n) {
        return to_m = m, (to_n = n + k) < end;
      });
#endif
#if RESIDUAL
      float residual[8];
#if IS_INT8
#pragma unroll
      for (int k = 0; k < 8; k++) residual[k] = raw_number(residual_bits[i].v[k]);
#else
      unpack8(residual_bits[i], residual);
#endif
      if (AHEAD < UNITS) read_residual(residual_bits[i], r + AHEAD * ROUND);
#if IS_INT8
      finish(epilogue, columns, columns, v, residual, m, full, n, left);
#else
      finish(epilogue, columns, v, m, 0, n, left, residual NORMS);
#endif
#else
      finish(epilogue, columns, v, m, full, n, left NORMS);
#endif
#if MEASURED
      static_assert(TILE_N % 64 == 0, "64 columns are finished by 8 neighbouring threads");
      const float2 statistics = panel_statistics(v, 0xffu << (lane & 24));
      if ((lane & 7) == 0) epilogue.y_stats[(i64)m * (N / 64) + n / 64] = statistics;
#endif
#if IS_INT8
      store_results<Y_VECTOR>(y + to + n, v, left);
#else
      if (Y_VECTOR) {
        const uint4 words = pack8(v);
        store8(y + to + n, {words.x, words.y, words.z, words.w}, left);
      } else {
        *(float4*)(mine + at) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4*)(mine + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
      }
#endif
    }
  }
#if !IS_INT8
  if (!Y_VECTOR) {
    named_barrier_sync(1, WORKERS);
    i64 to, full;
#pragma unroll 4
    for (int r = warp; r < own_rows; r += WORKERS / 32)
      if (place(own_m + r, to, full))
        store_row(y + to + n0, mine + r * PITCH, min(TILE_N, end - n0), lane);
  }
#endif
  if (SPLIT > 1) cluster_wait();  // no CTA may exit while its sums are being copied
}
