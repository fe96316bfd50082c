// FlashAttention-3: y = softmax(scale q k^T + mask) v on sm_90, 16-bit operands. Persistent CTAs
// have GROUPS consumer warpgroups of 64 query rows each, and producer warps: one loads q, k and v
// by TMA, tile after tile of the output; one loads a mask of keys; one stores results. Keys come in
// tiles of BN, from last to first, so that tiles with hidden keys come first. SCHEDULE
// (pipeline.cuh): what overlaps.
#pragma once
#ifndef GENERATED
#define PARAMETERS                                                                  \
  const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k, \
      const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_y, OPERANDS
#include "common/instance.cuh"
// start_scores: s[64 x N] = a b^T; add_scores: s += a b^T, for N keys of a tile. a, b: descriptors
// of 16 columns.
template <int N>
struct Width;
template <int N, int M>
DEV void start_scores(const Width<N>&, float (&)[M], u64, u64) {}
template <int N, int M>
DEV void add_scores(const Width<N>&, float (&)[M], u64, u64) {}
// out[64 x padded columns of v] += p b; p: weights of 16 keys in registers.
template <int M>
DEV void add_values(float (&)[M], const u32*, u64) {}
#endif  // GENERATED
#include "attention/fa3_sm90/masks.cuh"
#include "attention/fa3_sm90/store.cuh"

template <int N>
struct Width {
  static constexpr int keys = N;
};
// Keeps the compiler from moving uses of accumulators above the wait.
template <int N>
DEV void fence_registers(float (&d)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) asm volatile("" : "+f"(d[k])::"memory");
}
DEV void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
DEV float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// wgmma descriptor: rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart. panel:
// bytes between panels of 64 columns, where these are not the k dimension. descriptor_low has the
// bits in which addresses (in units of 16 bytes) add up. A shared::cluster address has the CTA's
// number in the bits that a descriptor uses for panels.
DEV u32 descriptor_low(u32 address, u32 panel) {
  return (CLUSTER == 1 ? address : address & 0xffffffu) >> 4 | panel >> 4 << 16;
}
DEV u64 descriptor(u32 place) { return u64(64u | 1u << 30) << 32 | place; }
template <int N>
DEV void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEV void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
constexpr float kRescaleThreshold = 8.f;

// The CTA's shared memory: rings, mbarriers of their slots, masks, partial results.
struct Smem {
  char* memory;
  u32 start, queries, keys, values, tiles_at, q_full, q_empty, y_full, k_full, k_empty, v_full,
      v_empty, m_full, m_empty, masks_at;
  float* masks;
  float4* parts;
  Tile* tiles;
  METHOD Smem(char* memory) : memory(memory) {
    start = smem_address(memory), queries = (start + 1023u) & ~1023u;
    keys = queries + SLOTS * kSlot, values = keys + STAGES * kKeys;
    tiles_at = values + STAGES * kValues, q_full = tiles_at + 16 * SLOTS;
    q_empty = q_full + 8 * SLOTS * kQueryBarriers, y_full = q_empty + 8 * SLOTS;
    k_full = y_full + 8 * SLOTS, k_empty = k_full + 8 * STAGES;
    v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    m_full = v_empty + 8 * STAGES, m_empty = m_full + 8 * STAGES;
    masks_at = (m_empty + 8 * STAGES + 15) & ~15u;
    masks = (float*)at(masks_at),
    parts = (float4*)(masks + (kMasksStaged ? STAGES * kMask / 4 : 0));
    tiles = (Tile*)at(tiles_at);
  }
  METHOD char* at(u32 address) const { return memory + (address - start); }
  // mbarriers: the queries of output tile `slot` have arrived; of > 0: those of warpgroup `of`.
  METHOD u32 queries_full(int slot, int of) const {
    return q_full + 8 * (slot * kQueryBarriers + of);
  }
  METHOD void init_barriers() const {
    for (int i = 0; i < SLOTS * kQueryBarriers; i++) mbarrier_init(q_full + 8 * i, 1);
    for (int i = 0; i < SLOTS; i++)
      mbarrier_init(q_empty + 8 * i, kStores ? GROUPS * 4 * kWarp : 1),
          mbarrier_init(y_full + 8 * i, kReaders * 4 * kWarp);
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(m_full + 8 * i, kRowMasksStaged ? kMaskWarps * 32 : kWarp),
          mbarrier_init(m_empty + 8 * i, kReaders * 4 * kWarp);
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(k_full + 8 * i, 1), mbarrier_init(v_full + 8 * i, 1);
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(k_empty + 8 * i, kReaders), mbarrier_init(v_empty + 8 * i, kReaders);
    mbarrier_init_fence();
  }
};

// Producer thread: loads queries, keys and values of all output tiles of the CTA, then an end
// marker (a tile with -1 steps).
DEV void load_operands(const Attention& g, const Smem& smem, const TileScheduler& scheduler,
                       Tile& tile, PipelineState<SLOTS>& q, const TensorMap& map_q,
                       const TensorMap& map_k, const TensorMap& map_v) {
  PipelineState<STAGES> k, v;
  auto pass_on = [&](int slot) {  // marks a tile without queries
    for (int of = 0; of < kQueryBarriers; of++) arrive(smem.queries_full(slot, of));
  };
  auto load_queries = [&](int of) {  // of a warpgroup: the first can begin while those of the
                                     // others are on their way
    const u32 full = smem.queries_full(q.slot, of),
              to = smem.queries + q.slot * kSlot + of * (64 * 128);
    mbarrier_expect_tx(full, kQueries / kQueryBarriers);
    for (int p = 0; p < kPanels; p++)
      tma_load_4d(to + p * BM * 128, &map_q, full, p * 64, tile.m + of * 64, tile.h, tile.b);
  };
  for (int n = 0; scheduler.has(n); tile = scheduler.nth(g, ++n)) {
    if (tile.steps >= 0) {
      const int kv = tile.h / (g.H / g.KVH), from = first_step(g, tile);
      wait(smem.q_empty + 8 * q.slot, q.phase ^ 1);
      smem.tiles[q.slot] = tile;
      if (tile.steps == 0) pass_on(q.slot);
      for (int step = tile.steps - 1; step >= 0; step--) {
        if (step == tile.steps - 1) load_queries(0);
        wait(smem.k_empty + 8 * k.slot, k.phase ^ 1);
        mbarrier_expect_tx(smem.k_full + 8 * k.slot, kKeys);
        for (int p = 0; p < kPanels; p++)
          tma_load_4d(smem.keys + k.slot * kKeys + p * BN * 128, &map_k, smem.k_full + 8 * k.slot,
                      p * 64, (from + step) * BN, kv, tile.b);
        k.next();
        if (step == tile.steps - 1)
          for (int of = 1; of < kQueryBarriers; of++) load_queries(of);
        wait(smem.v_empty + 8 * v.slot, v.phase ^ 1);
        mbarrier_expect_tx(smem.v_full + 8 * v.slot, kValues);
        for (int p = 0; p < kPanelsV; p++)
          tma_load_4d(smem.values + v.slot * kValues + p * BN * 128, &map_v,
                      smem.v_full + 8 * v.slot, p * 64, (from + step) * BN, kv, tile.b);
        v.next();
      }
      q.next();
    }
  }
  wait(smem.q_empty + 8 * q.slot, q.phase ^ 1);
  smem.tiles[q.slot] = {0, 0, 0, -1};
  pass_on(q.slot);
}

// Producer thread, with the state of its warp (tile, q): stores results by TMA.
DEV void store_results(const Smem& smem, Tile& tile, PipelineState<SLOTS>& q,
                       const TensorMap& map_y) {
  for (;; q.next()) {
    wait(smem.queries_full(q.slot, 0), q.phase);
    tile = smem.tiles[q.slot];
    if (tile.steps < 0) break;
    wait(smem.y_full + 8 * q.slot, q.phase);
    tma_store(map_y, smem.queries + q.slot * kSlot, tile, tile.m);
    arrive(smem.q_empty + 8 * q.slot);
  }
}

// The producer warpgroup: one warp per task.
DEV void produce(const Attention& g, const Smem& smem, int warp, const TensorMap& map_q,
                 const TensorMap& map_k, const TensorMap& map_v, const TensorMap& map_y) {
  setmaxnreg_dec<REGISTERS_LEFT>();
  const TileScheduler scheduler(g);
  Tile tile = scheduler.nth(g, 0);
  PipelineState<SLOTS> q;
  if (kKeyMask && warp == GROUPS * 4 + 1)
    load_key_masks(g, scheduler, tile, smem.masks, smem.m_full, smem.m_empty);
  if (kRowMasksStaged && warp % 2 == 1)
    load_row_masks(g, scheduler, tile, (warp & 3) / 2, smem.masks_at, smem.m_full, smem.m_empty);
  if (!kStores && warp == GROUPS * 4 + 2 && elect_one()) store_results(smem, tile, q, map_y);
  if (warp != GROUPS * 4 || !elect_one()) return;
  pdl_begin();
  load_operands(g, smem, scheduler, tile, q, map_q, map_k, map_v);
}

// Consumer warpgroup w: scores, softmax, weighted sums of values, results.
DEV void consume(const Attention& g, const Smem& smem, const TensorMap& map_y, int warp, int w) {
  pdl_begin();
  setmaxnreg_inc<REGISTERS>();
  const int lane = threadIdx.x & 31, rows = kSplit ? 0 : w * 64,
            row = rows + (warp & 3) * 16 + lane / 4, column = lane % 4 * 2;
  const bool leader = threadIdx.x % 128 == 0;
  const u32 query = descriptor_low(smem.queries + rows * 128, 16),
            key = descriptor_low(smem.keys, 16), value = descriptor_low(smem.values, BN * 128);
  const float log_scale = score_scale(g), unit = RAW ? 1.f / g.scale : kLog2e,
              fill = in_units(g.fill, unit), c = RAW ? log_scale : 1.f;
  const bool mask_pairs = MASK && g.m_k == 1 && g.Tk % 2 == 0 &&
                          ((g.m_b | g.m_h | g.m_q) & 1) == 0 &&
                          aligned(g.mask, 2 * sizeof(MaskElement));
  PipelineState<STAGES> k, v;
  PipelineState<SLOTS> q;

  if (SCHEDULE == PINGPONG && w == 1) named_barrier_arrive(1, 256);
  for (;; q.next()) {
    wait(smem.queries_full(q.slot, kQueryBarriers > 1 ? w : 0), q.phase);
    const Tile tile = smem.tiles[q.slot];
    if (tile.steps < 0) break;
    const int s0 = tile.m + row, see[2] = {visible_keys(g, s0), visible_keys(g, s0 + 8)},
              least = visible_keys(g, tile.m + rows + (warp & 3) * 16);
    const i64 mask_at[2] = {tile.b * g.m_b + tile.h * g.m_h + min(s0, g.S - 1) * g.m_q,
                            tile.b * g.m_b + tile.h * g.m_h + min(s0 + 8, g.S - 1) * g.m_q};
    const int from = first_step(g, tile),
              behind[2] = {bytes_behind((const MaskElement*)g.mask + mask_at[0]),
                           bytes_behind((const MaskElement*)g.mask + mask_at[1])};
    float out[kDV / 2], s[BN / 2], row_max[2] = {-INF, -INF}, sum[2] = {0.f, 0.f},
                                   rescale[2] = {1.f, 1.f};
    u32 p[BN / 4];
#pragma unroll
    for (int d = 0; d < kDV / 2; d++) out[d] = 0.f;
    fence_registers(out);

    auto gemm_qk = [&](auto width) {  // s = q k^T, asynchronous
      const u32 a = query + q.slot * (kSlot / 16), b = key + k.slot * (kKeys / 16);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kD / 16; d++) {
        const u64 rows = descriptor(a + d / 4 * (BM * 8) + d % 4 * 2),
                  columns = descriptor(b + d / 4 * (BN * 8) + d % 4 * 2);
        if (d == 0)
          start_scores(width, s, rows, columns);
        else
          add_scores(width, s, rows, columns);
      }
      wgmma_commit();
    };
    auto free_mask = [&] { arrive_warp(smem.m_empty + 8 * k.slot); };
    auto mask_scores = [&](auto width, int step) {
      constexpr int N = width.keys;
      if (!RAW)
#pragma unroll
        for (int j = 0; j < N / 2; j++) s[j] = capped(s[j] * log_scale);
      if (kRowMask)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          u32 mask[N / 8];
          if (kRowMasksStaged) {
            if (e == 0) wait(smem.m_full + 8 * k.slot, k.phase);
            mask_row((const MaskElement*)((const char*)smem.masks + k.slot * kMask +
                                          (row + 8 * e) * kMaskPitch + behind[e]) +
                         column,
                     mask);
            if (e == 1) free_mask();
          } else
            mask_row(g, mask_at[e], (from + step) * BN + column, mask_pairs, mask);
          if (!all_visible(mask))
#pragma unroll
            for (int j = 0; j < N / 8; j++)
              mask_two(s[4 * j + 2 * e], s[4 * j + 2 * e + 1], mask[j], unit, fill);
        }
      if (kKeyMask) {
        wait(smem.m_full + 8 * k.slot, k.phase);
        const float* mask = smem.masks + k.slot * (kMask / 4);
        if (mask[BN] != 0.f)
#pragma unroll
          for (int j = 0; j < N / 8; j++) {
            const float2 m = *(const float2*)(mask + 8 * j + column);
#pragma unroll
            for (int f = 0; f < 4; f++)
              s[4 * j + f] = MASK == 1                    ? s[4 * j + f] + (f & 1 ? m.y : m.x)
                             : (f & 1 ? m.y : m.x) == 0.f ? s[4 * j + f]
                                                          : fill;
          }
        free_mask();
      }
    };
    float shift[2];
    auto update_max = [&](auto width,
                          int step) {  // shift: of the exponents; rescale: what earlier sums
                                       // and outputs, if any, must be multiplied by
      constexpr int N = width.keys;
      if ((from + step) * BN + N > least) {
        const int first = (from + step) * BN,
                  limit[2] = {see[0] - first - column, see[1] - first - column};
#pragma unroll
        for (int j = 0; j < N / 2; j++)
          if (j / 4 * 8 + (j & 1) >= limit[j >> 1 & 1]) s[j] = -INF;
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float best = row_max[e];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
          best = fmaxf(best, fmaxf(s[4 * j + 2 * e], s[4 * j + 2 * e + 1]));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
        if ((best - row_max[e]) * c <= kRescaleThreshold)
          best = row_max[e];  // weights may reach 2^kRescaleThreshold without loss of precision
        shift[e] = best == -INF ? 0.f : best * c;
        rescale[e] = best == row_max[e] || kEager && row_max[e] == -INF
                         ? 1.f
                         : exp2_approximate(row_max[e] * c - shift[e]);
        row_max[e] = best;
        sum[e] *= rescale[e];
      }
    };
    auto exponentiate = [&](int from, int to) {  // replaces s[from:to] by weights
      float more[2] = {0.f, 0.f};
#pragma unroll
      for (int j = from; j < to; j++) {
        s[j] = exp2_approximate(s[j] * c - shift[j >> 1 & 1]);
        more[j >> 1 & 1] += s[j];
      }
      sum[0] += more[0], sum[1] += more[1];
    };
    auto softmax = [&](auto width, int step) {
      update_max(width, step);
      exponentiate(0, width.keys / 2);
    };
    auto rescale_outputs = [&] {
      if (__any_sync(FULL_WARP, rescale[0] != 1.f || rescale[1] != 1.f))
#pragma unroll
        for (int d = 0; d < kDV / 2; d++) out[d] *= rescale[d >> 1 & 1];
    };
    auto pack = [&](int from, int to) {
#pragma unroll
      for (int j = from; j < to; j++) p[j] = pack2((T*)nullptr, s[2 * j], s[2 * j + 1]);
    };
    auto gemm_pv = [&](auto width) {  // out += p v, asynchronous
      const u32 b = value + v.slot * (kValues / 16);
      wgmma_fence();
#pragma unroll
      for (int t = 0; t < width.keys / 16; t++) add_values(out, p + 4 * t, descriptor(b + t * 128));
      wgmma_commit();
    };
    auto softmax_gemm_pv = [&](auto width) {  // the same, weights first: the MMAs of some keys
                                              // run while the weights of the next are computed
      const u32 b = value + v.slot * (kValues / 16);
#pragma unroll
      for (int t = 0; t < width.keys / 16; t++) {
        exponentiate(8 * t, 8 * t + 8);
        pack(4 * t, 4 * t + 4);
        if (kLate && t == 0) wait(smem.v_full + 8 * v.slot, v.phase);
        wgmma_fence();
        add_values(out, p + 4 * t, descriptor(b + t * 128));
      }
      wgmma_commit();
    };
    auto free_keys = [&](int step = kStride) {
      if (leader) arrive(smem.k_empty + 8 * k.slot);
      k.advance(min(kStride, step + 1));
    };
    auto free_values = [&](int step = kStride) {
      if (leader) arrive(smem.v_empty + 8 * v.slot);
      v.advance(min(kStride, step + 1));
    };
    auto scheduler_barrier_sync = [&] {
      if (SCHEDULE == PINGPONG) named_barrier_sync(1 + w, 256);
    };
    auto scheduler_barrier_arrive = [&] {
      if (SCHEDULE == PINGPONG) named_barrier_arrive(2 - w, 256);
    };

    // A warpgroup of earlier rows has fewer visible keys, one without rows none.
    const int mine = tile.m + rows >= g.S  ? 0
                     : CAUSAL && !kDivided ? key_tiles(g, tile.m + rows + 64)
                                           : tile.steps;
    for (int step = tile.steps - 1; step >= mine; step--) {
      wait(smem.k_full + 8 * k.slot, k.phase);
      wait(smem.v_full + 8 * v.slot, v.phase);
      if (kMasksStaged) wait(smem.m_full + 8 * k.slot, k.phase), free_mask();
      scheduler_barrier_sync();
      named_barrier_sync(4 + w, 128);
      scheduler_barrier_arrive();
      free_keys();
      free_values();
    }
    int step = mine - 1;
    if (kSplit) k.advance(min(w, mine)), v.advance(min(w, mine)), step -= w;
    const int first = step;
    constexpr Width<BN> wide;
    constexpr Width<LAST> last;  // the last tile has only LAST keys
    if (kOverlapped && step >= 0) {
      auto start_tile = [&](auto width) {
        wait(smem.k_full + 8 * k.slot, k.phase);
        scheduler_barrier_sync();
        gemm_qk(width);
        scheduler_barrier_arrive();
      };
      auto finish_tile = [&](auto width) {
        wgmma_wait<0>();
        fence_registers(s);
        mask_scores(width, step);
        free_keys(step);
        fence_registers(out);
        if (step < first) free_values();
        update_max(width, step);
        rescale_outputs();
        if (!kLate) wait(smem.v_full + 8 * v.slot, v.phase);
        softmax_gemm_pv(width);
      };
      if (LAST < BN) {
        start_tile(last);
        finish_tile(last);
        step--;
      }
      if (LAST == BN || step >= 0) {
        start_tile(wide);
        for (;; step -= kStride) {
          finish_tile(wide);
          if (step < kStride) break;
          start_tile(wide);
        }
      } else
        step = 0;
      wgmma_wait<0>();
      fence_registers(out);
      free_values(step);
    } else if (SCHEDULE == INTRA_WG && step >= 0) {
      wait(smem.k_full + 8 * k.slot, k.phase);
      gemm_qk(wide);
      wgmma_wait<0>();
      fence_registers(s);
      mask_scores(wide, step);
      free_keys();
      softmax(wide, step);
      pack(0, BN / 4);
      if (step > 0) wait(smem.k_full + 8 * k.slot, k.phase);
      for (step--; step >= 0; step--) {
        gemm_qk(wide);
        wait(smem.v_full + 8 * v.slot, v.phase);
        gemm_pv(wide);
        wgmma_wait<1>();
        fence_registers(s);
        mask_scores(wide, step);
        free_keys();
        softmax(wide, step);
        fence_registers(s);
        // This wait is also needed for its branch: otherwise the assembler hoists the wait for the
        // second GEMM, and softmax would follow the GEMMs instead of overlapping them.
        if (step > 0) wait(smem.k_full + 8 * k.slot, k.phase);
        wgmma_wait<0>();
        fence_registers(out);
        free_values();
        rescale_outputs();
        pack(0, BN / 4);
      }
      wait(smem.v_full + 8 * v.slot, v.phase);
      gemm_pv(wide);
      wgmma_wait<0>();
      fence_registers(out);
      free_values();
    } else {
      auto tile_step = [&](auto width) {
        wait(smem.k_full + 8 * k.slot, k.phase);
        gemm_qk(width);
        wgmma_wait<0>();
        fence_registers(s);
        mask_scores(width, step);
        free_keys();
        softmax(width, step);
        rescale_outputs();
        pack(0, width.keys / 4);
        wait(smem.v_full + 8 * v.slot, v.phase);
        gemm_pv(width);
        wgmma_wait<0>();
        fence_registers(out);
        free_values();
      };
      if (LAST < BN && step >= 0) tile_step(last), step--;
      for (; step >= 0; step--) tile_step(wide);
    }

    if (kSplit && !combine_warpgroups(smem.parts, w, c, out, row_max, sum)) {
      arrive_warp(smem.q_empty + 8 * q.slot);
      continue;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
      if (!kDivided)
        sum[e] = sum[e] == 0.f || !kEager ? reciprocal_of(sum[e]) : reciprocal_approximate(sum[e]);
    }
    if (SPLIT_KV) {
      store_partial(g, tile, c, out, row_max, sum);
      arrive_warp(smem.q_empty + 8 * q.slot);
      continue;
    }
    if (CLUSTER > 1) {
      static_assert(CLUSTER == 1 || sizeof(Partial<ROWS>) <= STAGES * (kKeys + kValues),
                    "in the place of keys and values");
      store_cluster(g, *(Partial<ROWS>*)(smem.at(smem.keys)), tile, c, out, row_max, sum,
                    smem.q_empty + 8 * q.slot);
      continue;
    }

    const u32 output = smem.queries + q.slot * kSlot;
    write_rows(output, rows + (warp & 3) * 16, out, sum);
    if (TMA_STORE) fence_proxy_async();
    if (kStores) {
      const int m = rows + (warp & 3) * 16;
      __syncwarp();
      if (!TMA_STORE)
        store_rows(g, smem.at(output), tile, m);
      else if (lane == 0)
        tma_store(map_y, output + m * 128, tile, tile.m + m);
    }
    arrive_warp((kStores ? smem.q_empty : smem.y_full) + 8 * q.slot);
  }
}

DEV void compute_attention(const Attention& g, const TensorMap& map_q, const TensorMap& map_k,
                           const TensorMap& map_v, const TensorMap& map_y) {
  extern __shared__ char memory[];
  const Smem smem(memory);
  const int warp = __shfl_sync(FULL_WARP, int(threadIdx.x >> 5), 0), w = warp / 4;
  if (threadIdx.x == GROUPS * 128) {
    prefetch(map_q), prefetch(map_k), prefetch(map_v);
    if (TMA_STORE) prefetch(map_y);
    smem.init_barriers();
  }
  __syncthreads();
  if (w == GROUPS)
    produce(g, smem, warp, map_q, map_k, map_v, map_y);
  else
    consume(g, smem, map_y, warp, w);
}

#if TMA_STORE
#define MAP_Y map_y
#else
#define MAP_Y map_v  // unused
#endif
extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) attention(PARAMETERS) {
  compute_attention(ATTENTION, map_q, map_k, map_v, MAP_Y);
}
