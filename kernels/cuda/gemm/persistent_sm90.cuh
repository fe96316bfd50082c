// Persistent, warp-specialized GEMM on Hopper (gemm/sm90_mainloop.cuh).
//
// Producers: warp 0 copies tiles of A and B into the ring, warp 1 copies tiles of the residual.
// Consumers: two warpgroups. PINGPONG: they alternate tiles, so that the epilogue of one overlaps
// the main loop of the other; else they share a tile, half of its rows each (cooperative). CTAs of
// a cluster have neighbouring tiles: CLUSTER_M of them along rows share tiles of B by multicast,
// CLUSTER_N of them along columns share tiles of A. Each warpgroup has STAGING buffers of 64 x 64
// for the residual or for results, which are stored as STORE says:
//   0: row by row from a buffer (unaligned rows of y).
//   1: from registers, 16 bytes a lane.
//   2: by TMA from a buffer: fewer instructions and less power, but the last stores finish later.
//   3: from a buffer, 16 bytes a lane, 128 contiguous bytes of a row by 8 lanes.
// Sums of 8-bit products are integers up to the epilogue. Results leave from registers: of 8 and 16
// bits 16 bytes a lane, others two columns a lane. BLOCKED: of each 64 rows of B, 16 neighbouring
// ones are those of which a lane has sums.
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
constexpr int BM = 128, BN = 128;  // a tile: a multiple of 64 (cooperative: 128), of 8
constexpr int CLUSTER = 1;         // CTAs of a cluster: 1 to 8
constexpr int CLUSTER_N = 1;       // of these, along columns
constexpr bool PINGPONG = true;
constexpr int RESIDENT_B =
    0;                      // stages of B that stay in shared memory: all of k, or 0 (in the ring)
constexpr int STAGING = 1;  // buffers of a warpgroup: 0 to 4
constexpr bool A_MN_MAJOR = false, B_MN_MAJOR = false;
#define STORE 1
#define RES_ROWS 0  // rows of a residual of bytes (BLOCKED: or 16 bits) are read as 16 bytes a lane
#define BLOCKED 0   // a lane has sums of 16 neighbouring columns
#define SWAP 0      // M counts columns of y and N its rows (SOURCE 2)
#define PARAMETERS                                                                                 \
  const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, T *y, i64 ldy, \
      int M, int N, int K, i64 ldr

#endif  // GENERATED
#include "gemm/sm90_mainloop.cuh"

constexpr int WGMMAS_M = PINGPONG ? BM / 64 : BM / 128;  // wgmma of 64 rows per warpgroup
constexpr int PANELS = (BN + 63) / 64, A_BYTES = BM * 128,
              B_BYTES = B_MN_MAJOR ? PANELS * PANEL : BN * 128;
constexpr int STAGE_BYTES = A_BYTES + (RESIDENT_B ? 0 : B_BYTES);
constexpr int CLUSTER_M = CLUSTER / CLUSTER_N;  // CTAs of a cluster along rows
// Whether the epilogue's operands of a tile's columns are read ahead into registers, else with each
// panel. NORMED, and of 8-bit products: they are in shared memory.
constexpr bool AHEAD = !NORMED && sizeof(Columns) * (BN / 8) <= 256;
#if IS_INT8
// Of pairs of columns, for each warpgroup, with gaps that avoid bank conflicts.
constexpr int PAIRS = BN / 2 + BN / 16, TABLE = 2 * PAIRS * sizeof(ColumnOperands);
DEV int pair_at(int k) { return k + k / 8; }
#elif NORMED
constexpr int TABLE = 2 * BN * sizeof(Column);
#else
constexpr int TABLE = 0;
#endif
static_assert(BN % (SOURCE == 2 ? 8 : 64) == 0 && WGMMAS_M >= 1, "tile");
#if SOURCE == 2
static_assert(RESIDENT_B == 0 && STORE == 3 && STAGING == 1, "tile of a batch");
DEV void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
DEV void load_words(u32 (&v)[4], u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}
#define MATRICES matrices
#define IN_MATRIX(t) ((t) % (tiles_m * tiles_n))
#else
#define MATRICES 1
#define IN_MATRIX(t) (t)
#endif

// Tile t in an order that keeps a band of BAND tile rows in L2.
struct Tile {
  int m, n;
};
DEV Tile tile_at(int t, int rows, int columns) {
  constexpr int BAND = 8;
  const int per_band = BAND * columns, band = t / per_band, height = min(rows - band * BAND, BAND),
            r = t - band * per_band;
  return {band * BAND + r % height, r / height};
}

#if IS_INT8
// 16 bytes of a residual's row become words as `store_bytes` takes them.
DEV void scatter_chunks(const uint4& o, u32 (&words)[4], int lane) {
  words[0] = __byte_perm(o.x, o.z, 0x5410), words[1] = __byte_perm(o.x, o.z, 0x7632);
  words[2] = __byte_perm(o.y, o.w, 0x5410), words[3] = __byte_perm(o.y, o.w, 0x7632);
  gather_chunks(words, lane);
}
// words[k] of lane l has columns 2 l and 2 l + 1 of chunks (of 8 columns) 2 k and 2 k + 1: lane l
// stores chunks 2 l and 2 l + 1, of which `count` columns exist. BLOCKED: it has all of these.
DEV void store_bytes(u8* y, const u32 (&words)[8], int lane, int count) {
  u32 held[4] = {words[0], words[1], words[2], words[3]}, o[4];
  if (!BLOCKED) gather_chunks(held, lane);
#pragma unroll
  for (int k = 0; k < 4; k++)
    o[k] = BLOCKED ? held[k]
                   : __byte_perm(held[k % 2 * 2], held[k % 2 * 2 + 1], k < 2 ? 0x5410 : 0x7632);
  if (Y_VECTOR && whole<16>(count)) {
    *(uint4*)y = make_uint4(o[0], o[1], o[2], o[3]);
  } else if (!(Y_VECTOR && UNIT % 16 == 0)) {
#pragma unroll
    for (int k = 0; k < 16; k++)
      if (k < count) y[k] = u8(o[k / 4] >> k % 4 * 8);
  }
}
// Results of 16 bits of a row of 64 columns, of which `count` exist. words[k] of lane l has columns
// 2 l and 2 l + 1 of chunk (of 8 columns) k; BLOCKED: columns 16 l + 2 k and the next one. A store
// of neighbouring lanes fills 32 bytes.
template <class Y>
DEV void store_halves(Y* y, const u32 (&words)[8], int lane, int count) {
  u32 first[4] = {words[0], words[1], words[2], words[3]},
      second[4] = {words[4], words[5], words[6], words[7]};
  if (BLOCKED) {
    const bool odd = lane & 1;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const u32 other = __shfl_xor_sync(0xffffffffu, odd ? first[k] : second[k], 1);
      if (odd)
        first[k] = other;
      else
        second[k] = other;
    }
  } else {
    gather_chunks(first, lane), gather_chunks(second, lane);
  }
  const auto store = [&](int n, const u32(&o)[4]) {
    if (Y_VECTOR && whole<8>(count - n)) {
      *(uint4*)(y + n) = make_uint4(o[0], o[1], o[2], o[3]);
    } else if (!(Y_VECTOR && UNIT % 8 == 0)) {
#pragma unroll
      for (int k = 0; k < 8; k++)
        if (n + k < count) *(u16*)(y + n + k) = u16(o[k / 2] >> k % 2 * 16);
    }
  };
  const int n = BLOCKED ? (lane & 2) * 16 + (lane & 1) * 8 : (lane & 3) * 8;
  store(n, first), store(n + (BLOCKED ? 16 : 32), second);
}
#else
// Stores the first `count` of 64 columns of an unaligned row: lane l has columns 2 l and 2 l + 1.
DEV void store_row(T* y, u32 word, int count, int lane) {
  const bool odd = (u64)y & 2;
  const u32 next = __shfl_down_sync(0xffffffffu, word, 1);
  if (odd && lane == 0 && count > 0) y->bits = (u16)word;
  const int c = 2 * lane + odd;
  if (odd) word = word >> 16 | next << 16;
  if (c + 1 < count)
    *(u32*)(y + c) = word;
  else if (c < count)
    y[c].bits = (u16)word;
}
#endif

#if NORMED
#define NORMS(i, half) , norms[2 * i + half]
#else
#define NORMS(i, half)
#endif

extern "C" __global__ void __launch_bounds__(384, 1) gemm_persistent_sm90(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 ring = (smem_address(shared) + 1023u) & ~1023u,
            resident_b = ring + STAGES * STAGE_BYTES, staging = resident_b + RESIDENT_B * B_BYTES;
  const u32 table = staging + 2 * STAGING * PANEL, full = table + TABLE, empty = full + 8 * STAGES,
            residual_full = empty + 8 * STAGES, residual_empty = residual_full + 16 * STAGING;
  const u32 resident_b_full = residual_empty + 16 * STAGING;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0), group = warp >> 2;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0, cluster_row = rank / CLUSTER_N,
            cluster_column = rank % CLUSTER_N;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(full + 8 * i, 1),
          mbarrier_init(empty + 8 * i, (PINGPONG ? 1 : 2) * (CLUSTER_M + CLUSTER_N - 1));
    for (int i = 0; i < 2 * STAGING; i++)
      mbarrier_init(residual_full + 8 * i, 1), mbarrier_init(residual_empty + 8 * i, 4);
    for (int i = 0; i < RESIDENT_B; i++) mbarrier_init(resident_b_full + 8 * i, 1);
    mbarrier_init_fence();
  }
  if (CLUSTER > 1)
    cluster_arrive(), cluster_wait();
  else
    __syncthreads();

  const int tiles_m = (M + BM * CLUSTER_M - 1) / (BM * CLUSTER_M),
            tiles_n = (column_tiles<BN>(N) + CLUSTER_N - 1) / CLUSTER_N,
            tiles = RESIDENT_B ? tiles_m : tiles_m * tiles_n * MATRICES;
  const int first = RESIDENT_B ? blockIdx.x / tiles_n : blockIdx.x / CLUSTER,
            step = RESIDENT_B ? gridDim.x / tiles_n : gridDim.x / CLUSTER,
            column = blockIdx.x % tiles_n;
#define TILE_AT(t) (RESIDENT_B ? Tile{t, column} : tile_at(IN_MATRIX(t), tiles_m, tiles_n))
#define ROW_OF(tile) (((tile).m * CLUSTER_M + (CLUSTER_M > 1 ? cluster_row : 0)) * BM)
#define COLUMNS_OF(column) \
  tile_columns<BN>((column) * CLUSTER_N + (CLUSTER_N > 1 ? cluster_column : 0), N)
#if SOURCE == 1
  const int steps = KH * KW * chunks;
#else
  const int steps = (K + STAGE_K - 1) / STAGE_K, chunks = 1, KW = 1;
#endif
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0 && elect_one()) {
      const u32 all = (1 << CLUSTER) - 1;
      auto copy_columns = [&](u32 to, u32 b, int n0, const Step& s, int matrix) {
#if SOURCE == 2
        copy_of_batch<B_MN_MAJOR, BN, CLUSTER_M>(to, &map_b, b, s.k, n0, matrix % B1 * b_moves_1,
                                                 matrix / B1 * b_moves_0, cluster_row,
                                                 all / ((1 << CLUSTER_N) - 1) << cluster_column);
#else
        const int part = CLUSTER > 1 ? rank : 0, row = n0 + part * (BN / CLUSTER);
        to += part * (B_BYTES / CLUSTER);
#if BLOCKED
        copy_blocked<(CLUSTER > 1), BN / CLUSTER>(to, &map_b, b, STEP_BYTES(s), row, all);
#elif SOURCE == 1
        copy_filters<(CLUSTER > 1)>(to, &map_b, b, s, s.kh * KW + s.kw, row, all);
#else
        copy_matrix<(CLUSTER > 1)>(to, &map_b, b, s.k, row, all);
#endif
#endif
      };
      // Copies of a constant B need not wait for the kernel before.
      if (!EARLY) wait_for_producers();
      const int ahead = RESIDENT_B ? RESIDENT_B : min(STAGES, steps);
      {
        Step s(0, chunks, KW);
        const int n0 =
            COLUMNS_OF(RESIDENT_B ? column : tile_at(IN_MATRIX(first), tiles_m, tiles_n).n).first;
        for (int k = 0; k < ahead; k++, s.next(chunks, KW)) {
          mbarrier_expect_tx((RESIDENT_B ? resident_b_full : full) + 8 * k,
                             RESIDENT_B ? B_BYTES : STAGE_BYTES);
          copy_columns(RESIDENT_B ? resident_b + k * B_BYTES : ring + k * STAGE_BYTES + A_BYTES,
                       (RESIDENT_B ? resident_b_full : full) + 8 * k, n0, s,
                       first / (tiles_m * tiles_n));
        }
      }
      wait_for_producers();
      PipelineState stage;
      for (int t = first; t < tiles; t += step) {
        const Tile tile = TILE_AT(t);
        const TileColumns columns_here = COLUMNS_OF(tile.n);
        const int m0 = ROW_OF(tile), n0 = columns_here.first;
#if SOURCE == 1
        const Window window(m0, OH, OW, SH, SW, PT, PL);
#endif
        Step s(0, chunks, KW);
        for (int k = 0; k < steps; k++, s.next(chunks, KW)) {
          const u32 to = ring + stage.slot * STAGE_BYTES, b = full + 8 * stage.slot;
          if (RESIDENT_B || t != first || k >= ahead) {
            wait(empty + 8 * stage.slot, stage.phase ^ 1);
            mbarrier_expect_tx(b, STAGE_BYTES);
            if (!RESIDENT_B) copy_columns(to + A_BYTES, b, n0, s, t / (tiles_m * tiles_n));
          }
#if SOURCE == 1
          copy_pixels<false>(to, &map_a, b, s, columns_here.channel, window, (u16)(s.kw * DW),
                             (u16)(s.kh * DH), 0);
#elif SOURCE == 2
          copy_of_batch<A_MN_MAJOR, BM, CLUSTER_N>(
              to, &map_a, b, s.k, m0, t / (tiles_m * tiles_n) % B1 * a_moves_1,
              t / (tiles_m * tiles_n) / B1 * a_moves_0, cluster_column,
              ((1 << CLUSTER_N) - 1) << cluster_row * CLUSTER_N);
#else
          copy_matrix<false>(to, &map_a, b, s.k, m0, 0);
#endif
          stage.next();
        }
      }
      // No CTA may exit while another still signals its barriers.
      for (int k = 0; k < STAGES && CLUSTER > 1; k++, stage.next())
        wait(empty + 8 * stage.slot, stage.phase ^ 1);
    }
#if RESIDUAL
    if (warp == 1 && elect_one()) {
      wait_for_producers();
      // Both warpgroups go through their STAGING buffers in the same order: `taken` counts the
      // panels of the first (low half) and the second.
      u32 taken[2] = {0, 0};
      int owner = 0;
      for (int t = first; t < tiles; t += step, owner ^= 1) {
        const Tile tile = TILE_AT(t);
        const int m0 = ROW_OF(tile), n0 = COLUMNS_OF(tile.n).first;
#pragma unroll 1
        for (int panel = 0; panel < WGMMAS_M * PANELS; panel++) {
#pragma unroll
          for (int w = 0; w < 2; w++) {
            if (PINGPONG && w != owner) continue;
            const int index = w * STAGING + taken[w] % STAGING;
            wait(residual_empty + 8 * index, taken[w] / STAGING % 2 ^ 1);
            mbarrier_expect_tx(residual_full + 8 * index, PANEL);
            tma_load_2d(staging + index * PANEL, &map_r, residual_full + 8 * index,
                        n0 + panel % PANELS * 64,
                        m0 + (PINGPONG ? 0 : w * WGMMAS_M * 64) + panel / PANELS * 64);
            taken[w]++;
          }
        }
      }
    }
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int w = group - 1, thread = threadIdx.x & 127, lane = thread & 31,
              row_warp = (warp & 3) * 16;
    Partial sum[WGMMAS_M][BN / 2];
    const bool signals = thread < CLUSTER &&
                         (CLUSTER_M == 1 || CLUSTER_N == 1 || thread / CLUSTER_N == cluster_row ||
                          thread % CLUSTER_N == cluster_column);  // shares copies with CTA `thread`
    PipelineState stage;
    if (PINGPONG && w == 1) {
      named_barrier_arrive(2, 256);  // the first warpgroup goes first
      stage.skip(steps);
    }
    const u32 mine = staging + w * STAGING * PANEL, mine_full = residual_full + 8 * w * STAGING,
              mine_empty = residual_empty + 8 * w * STAGING;
    const u64 a0 = descriptor(ring + (PINGPONG ? 0 : w * WGMMAS_M * PANEL)),
              b0 = operand<B_MN_MAJOR>(RESIDENT_B ? resident_b : ring + A_BYTES);
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    if (const int n = COLUMNS_OF(TILE_AT(first).n).first + thread * 8;
        !NORMED && thread * 8 < BN && n < N)
      touch_columns(epilogue, n);
#if IS_INT8
    ColumnOperands* const column_table =
        (ColumnOperands*)(shared + (table - smem_address(shared))) + w * PAIRS;
#elif NORMED
    Column* const column_table = (Column*)(shared + (table - smem_address(shared))) + w * BN;
#endif
#if IS_INT8
    if (!FIXED) wait_for_producers();
    const Scalars scalars = scalars_of(epilogue);
    const auto read_columns = [&](const TileColumns& at) {
      return column_operands_at(epilogue, scalars, at.first + min(thread * 2, BN - 2), at.end);
    };
    const auto hold_columns = [&](const ColumnOperands& own) {
      if (thread * 2 < BN) column_table[pair_at(thread)] = own;
      named_barrier_sync(4 + w, 128);
    };
    if (RESIDENT_B) hold_columns(read_columns(COLUMNS_OF(column)));  // of all tiles
#endif
    wait_for_producers();  // operands of the epilogue
#if IS_INT8 && RES_ROWS
    const u32 magic = raw_magic();
#endif
    int buffer = 0;
    u32 buffer_phase = 0;
    bool fresh = true;  // this warpgroup has not yet waited for the resident B
    for (int t = first + (PINGPONG ? w * step : 0); t < tiles; t += (PINGPONG ? 2 : 1) * step) {
      const Tile tile = TILE_AT(t);
      const int m0 = ROW_OF(tile) + (PINGPONG ? 0 : w * WGMMAS_M * 64);
      const TileColumns columns_here = COLUMNS_OF(tile.n);
      const int n0 = columns_here.first,
                end = BN % 64 ? min(columns_here.end, columns_here.first + BN) : columns_here.end;
#if SOURCE == 2
      const int matrix = t / (tiles_m * tiles_n);
      T* const to = y + matrix / B1 * y_0 + matrix % B1 * y_1;
#elif STORE != 2
      auto* const to = y;
#endif
#if !IS_INT8
      Columns columns[AHEAD ? BN / 8 : 8];
      if (AHEAD)
#pragma unroll
        for (int c = 0; c < BN / 8; c++)
          columns[c] = columns_at(epilogue, n0 + c * 8 + (lane & 3) * 2, end);
#endif
#if IS_INT8
      // Read before the main loop: operands of columns, one pair a thread, and the residual.
      ColumnOperands own_columns;
      if (!RESIDENT_B) own_columns = read_columns(columns_here);
#if RES_ROWS
      // (as much as there are registers for: else with each panel)
      constexpr int PIECES = sizeof(Residual);  // of 16 bytes
      constexpr bool RES_AHEAD = 2 * WGMMAS_M * PANELS * PIECES <= 8;
      uint4 residuals[RES_AHEAD ? PANELS : 1][2 * WGMMAS_M][PIECES];
      const auto read_residuals = [&](uint4(&to)[2 * WGMMAS_M][PIECES], int panel) {
#pragma unroll
        for (int i = 0; i < 2 * WGMMAS_M; i++) {
          const i64 m = m0 + i / 2 * 64 + row_warp + (lane >> 2) + i % 2 * 8;
          const int n = n0 + panel * 64 + (lane & 3) * 16;
#pragma unroll
          for (int k = 0; k < PIECES; k++) {
            to[i][k] = make_uint4(0, 0, 0, 0);
            if (m < M && n < end) to[i][k] = ((const uint4*)(epilogue.res + m * ldr + n))[k];
          }
        }
      };
      if (RES_AHEAD)
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) read_residuals(residuals[panel], panel);
#endif
#elif NORMED
      // Inputs are loaded before the main loop; norms are computed after it if registers hold the
      // inputs until then (LATE).
      NormInputs<4> inputs[2 * WGMMAS_M];
      Norms norms[2 * WGMMAS_M];
      constexpr bool LATE = sizeof(inputs) <= 128;
      Column own_columns[(BN + 127) / 128];
#pragma unroll
      for (int i = 0; i * 128 < BN; i++)
        own_columns[i] = column_at(epilogue, n0 + i * 128 + thread, i * 128 + thread < BN ? N : 0);
#pragma unroll
      for (int i = 0; i < 2 * WGMMAS_M; i++) {
        inputs[i].load(epilogue, min(m0 + i / 2 * 64 + row_warp + (lane >> 2) + i % 2 * 8, M - 1),
                       lane);
        if (!LATE) norms[i] = inputs[i].norms(epilogue, lane);
      }
#endif
      if (PINGPONG) named_barrier_sync(2 + w, 256);
      const auto multiply = [&](int k, int slot) {
        if (RESIDENT_B && fresh) wait(resident_b_full + 8 * k, 0);
        const u64 a = a0 + (u64)(slot * (STAGE_BYTES / 16)),
                  b = b0 + (u64)(RESIDENT_B ? k * (B_BYTES / 16) : slot * (STAGE_BYTES / 16));
        if (LAST_STAGE_MMAS == STAGE_MMAS || k < steps - 1)
          multiply_stage<STAGE_MMAS, A_MN_MAJOR, B_MN_MAJOR>(sum, a, b, k);
        else
          multiply_stage<LAST_STAGE_MMAS, A_MN_MAJOR, B_MN_MAJOR>(sum, a, b, k);
        // Before this stage is done, so that MMAs of the other warpgroup are queued in time.
        if (PINGPONG && k == steps - 1) named_barrier_arrive(2 + (w ^ 1), 256);
      };
      // Releases the stage in every CTA that shares it.
      const auto release = [&](int, int slot) {
        if (signals)
          CLUSTER > 1 ? mbarrier_arrive_remote(empty + 8 * slot, thread) : arrive(empty + 8 * slot);
      };
      mainloop(stage, full, steps, multiply, release);
      fresh = false;
#if NORMED
      if (!PINGPONG)
        named_barrier_sync(
            4 + w,
            128);  // the epilogue before has ended (PINGPONG: known from the other's barrier)
#pragma unroll
      for (int i = 0; i * 128 < BN; i++)
        if (i * 128 + thread < BN) column_table[i * 128 + thread] = own_columns[i];
      named_barrier_sync(4 + w, 128);
      if (LATE)
#pragma unroll
        for (int i = 0; i < 2 * WGMMAS_M; i++) norms[i] = inputs[i].norms(epilogue, lane);
#endif
      if (PINGPONG) stage.skip(steps);  // the other warpgroup's tile
#if IS_INT8
      // (PINGPONG: the other's barrier tells that the epilogue before has ended)
      if (!PINGPONG) named_barrier_sync(4 + w, 128);
      if (!RESIDENT_B) hold_columns(own_columns);
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
#if RES_ROWS
        if (!RES_AHEAD) read_residuals(residuals[0], panel);
#endif
        ColumnOperands columns[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
          columns[k] = column_table[pair_at(panel * 32 +
                                            (BLOCKED ? (lane & 3) * 8 + k : k * 4 + (lane & 3)))];
        const int own = n0 + panel * 64 + (lane & 3) * 16;
#pragma unroll
        for (int i = 0; i < 2 * WGMMAS_M; i++) {
          const int m = m0 + i / 2 * 64 + row_warp + (lane >> 2) + i % 2 * 8;
          const i64 read = min(m, M - 1);
          u32 words[8] = {};
#if RES_ROWS
          u32 residual[4 * PIECES];
#pragma unroll
          for (int k = 0; k < PIECES; k++) {
            const uint4& given = residuals[RES_AHEAD ? panel : 0][i][k];
            residual[4 * k] = given.x, residual[4 * k + 1] = given.y;
            residual[4 * k + 2] = given.z, residual[4 * k + 3] = given.w;
          }
#if !BLOCKED
          scatter_chunks(residuals[RES_AHEAD ? panel : 0][i][0], residual, lane);
#endif
#endif
#pragma unroll
          for (int k = 0; k < 8; k++) {
            const int c = panel * 8 + k, n = BLOCKED ? own + k * 2 : n0 + c * 8 + (lane & 3) * 2;
            int v[2] = {sum[i / 2][c * 4 + i % 2 * 2], sum[i / 2][c * 4 + i % 2 * 2 + 1]};
#if RES_ROWS
            const auto raw = [&](int e) {
              constexpr int EACH = 4 / PIECES;  // elements of a word
              const int at = k * 2 + e;
              return raw_number((const Residual*)0, residual[at / EACH], at % EACH, magic);
            };
            finish(epilogue, scalars, columns[k], v, {raw(0), raw(1)}, int(read), read * ldr, n,
                   end - n);
#else
            finish(epilogue, scalars, columns[k], v, int(read), read * ldr, n, end - n);
#endif
            if (sizeof(Result) == 2) {
              words[k] = pack_floats<Result>(v[0], v[1]);
            } else {
              const u32 bytes = __byte_perm(v[0], v[1], 0x0040);
              words[k / 2] = k % 2 ? __byte_perm(words[k / 2], bytes, 0x5410) : bytes;
            }
            if (sizeof(Result) == 4 && m < M) store_results<Y_VECTOR>(to + m * ldy + n, v, end - n);
          }
          if (sizeof(Result) == 1)
            store_bytes((u8*)(to + m * ldy + own), words, lane, m < M ? end - own : 0);
          else if (sizeof(Result) == 2)
            store_halves(to + m * ldy + n0 + panel * 64, words, lane,
                         m < M ? end - n0 - panel * 64 : 0);
        }
      }
#else
#pragma unroll
      for (int i = 0; i < WGMMAS_M; i++) {
        const int row = m0 + i * 64 + row_warp + (lane >> 2);
#if MIXED
        recompute_nonfinite(sum[i], OWN_GROUP, [&](int k, int& m, int& n) {
          return (m = row + k / 2 % 2 * 8) < M &&
                 (n = n0 + k / 4 * 8 + (lane & 3) * 2 + k % 2) < end;
        });
#endif
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
          const u32 at = mine + buffer * PANEL;
          if (RESIDUAL) wait(mine_full + 8 * buffer, buffer_phase);
#if NORMED
#pragma unroll
          for (int c = 0; c < 8; c++)
            columns[c] = columns_of(column_table + panel * 64 + c * 8 + (lane & 3) * 2);
#else
          if (!AHEAD)
#pragma unroll
            for (int c = 0; c < 8; c++)
              columns[c] = columns_at(epilogue, n0 + panel * 64 + c * 8 + (lane & 3) * 2, end);
#endif
          u32 out[2][2][4];  // [row half][k / 4][k % 4]: chunk k of 8 columns
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int m = min(row + half * 8, M - 1),
                      r = row_warp + (lane >> 2) +
                          half * 8;  // rows beyond the last read the last row and are not stored
#pragma unroll
            for (int k = 0; k < 8; k++) {
              const int c = panel * 8 + k, n = n0 + c * 8 + (lane & 3) * 2;
              if (c >= BN / 8) {
                out[half][k / 4][k % 4] = 0;
                continue;
              }
              float v[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
#if RESIDUAL
              float residual[2];
              unpack2((T*)0, load_word(at + r * 128 + ((k ^ (r & 7)) << 4) + (lane & 3) * 4),
                      residual[0], residual[1]);
              finish(epilogue, columns[AHEAD ? c : k], v, m, 0, n, end - n,
                     residual NORMS(i, half));
#else
              finish(epilogue, columns[AHEAD ? c : k], v, m, (i64)m * ldr, n,
                     end - n NORMS(i, half));
#endif
              if (MEASURED) sum[i][c * 4 + half * 2] = v[0], sum[i][c * 4 + half * 2 + 1] = v[1];
              out[half][k / 4][k % 4] = pack2((T*)0, v[0], v[1]);
            }
          }
#if MEASURED
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float v[16];
#pragma unroll
            for (int k = 0; k < 16; k++) v[k] = sum[i][(panel * 8 + k / 2) * 4 + half * 2 + k % 2];
            const float2 statistics = panel_statistics(v, 0xffffffffu);
            if ((lane & 3) == 0 && row + half * 8 < M && n0 + panel * 64 < N)
              epilogue.y_stats[(i64)(row + half * 8) * (N / 64) + n0 / 64 + panel] = statistics;
          }
#endif
#if STORE == 3
          // Stores rows of y, 128 bytes at a time. With SWAP each has parts of all four warps.
          const auto sync_rows = [&] {
            if (SWAP)
              named_barrier_sync(4 + w, 128);
            else
              __syncwarp();
          };
          sync_rows();
#pragma unroll
          for (int k = 0; k < 8; k += 2) {
            const u32 chunk = SWAP ? row_warp / 8 + (lane >> 3 & 1) : k + (lane >> 4),
                      r = SWAP ? (k + (lane >> 4)) * 8 + (lane & 7) : row_warp + (lane & 15);
            const u32 to_row = at + r * 128 + ((chunk ^ (lane & 7)) << 4);
            (SWAP ? store_transposed : stmatrix_x4)(to_row, out[0][k / 4][k % 4],
                                                    out[1][k / 4][k % 4], out[0][k / 4][k % 4 + 1],
                                                    out[1][k / 4][k % 4 + 1]);
          }
          sync_rows();
#pragma unroll
          for (int k = 0; k < 16; k += 4) {
            const int r = row_warp + k + (lane >> 3), chunk = (lane & 7) * 8;
            u32 words[4];
            load_words(words, at + r * 128 + (((lane ^ r) & 7) << 4));
            const int n = n0 + panel * 64 + (SWAP ? r : chunk),
                      m = m0 + i * 64 + (SWAP ? chunk : r);
            if (n < end && m < M)
              store8(to + (SWAP ? n * ldy + m : m * ldy + n), words, SWAP ? M - m : end - n);
          }
#elif STORE == 1
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const int n = n0 + panel * 64 + (k / 2 * 4 + (lane & 3)) * 8, m = row + k % 2 * 8;
            gather_chunks(out[k % 2][k / 2], lane);
            if (m < M && n < end) store8(to + m * ldy + n, out[k % 2][k / 2], end - n);
          }
          if (RESIDUAL) {
            __syncwarp();
            if (lane == 0) arrive(mine_empty + 8 * buffer);
          }
#else
          const u32 rows = at + row_warp * 128;  // the 16 rows of this warp
          if (STORE == 2 && lane == 0) tma_store_wait_read<STAGING - 1>();
          __syncwarp();
#pragma unroll
          for (int k = 0; k < 8; k += 2)
            stmatrix_x4(rows + (lane & 15) * 128 + (((k + (lane >> 4)) ^ (lane & 7)) << 4),
                        out[0][k / 4][k % 4], out[1][k / 4][k % 4], out[0][k / 4][k % 4 + 1],
                        out[1][k / 4][k % 4 + 1]);
#if STORE == 2
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) {
            if (n0 + panel * 64 < end)
              tma_store_2d(&map_y, rows, n0 + panel * 64, m0 + i * 64 + row_warp);
            tma_store_commit();
          }
#else
          __syncwarp();
#pragma unroll 1
          for (int r = 0; r < 16; r += 8) {
            u32 words[8];
#pragma unroll
            for (int k = 0; k < 8; k++)
              words[k] =
                  load_word(rows + (r + k) * 128 + (((lane >> 2) ^ k) << 4) + (lane & 3) * 4);
#pragma unroll
            for (int k = 0; k < 8; k++)
              if (const int m = m0 + i * 64 + row_warp + r + k; m < M)
                store_row(to + m * ldy + n0 + panel * 64, words[k], min(64, end - n0 - panel * 64),
                          lane);
          }
          __syncwarp();
#endif
#endif
          if (STAGING && ++buffer == STAGING) buffer = 0, buffer_phase ^= 1;
        }
      }
#endif
    }
    if (STORE == 2 && lane == 0) tma_store_wait_read<0>();
  }
}
