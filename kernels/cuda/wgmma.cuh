// Products on Hopper: y[m, n] = epilogue(sum_k A[m, k] * B[n, k]) in 16-bit types, persistent and warp-specialised.
//
// Warp 0 copies tiles of A and B (TMA) into a ring of STAGES, warp 1 copies tiles of the residual; two warpgroups multiply (wgmma) and finish.
// PING: each of the two takes whole tiles of BM x BN in turn, so that one finishes while the other multiplies; else they share a tile, half of its rows each.
// A cluster of CLUSTER blocks works on neighbouring tile rows and shares the tiles of B (multicast). Results leave through shared memory (stmatrix, TMA).
// SOURCE 1: rows of A are output pixels of a convolution, read by im2col TMA; k runs over (kh, kw, 64 channels).
//
// The generator defines: T, MMA_TYPE, BM, BN, STAGES, CLUSTER, PING, SOURCE, RESIDUAL, STAGING and the epilogue (struct Epilogue, finish, WIDTH 2).

struct alignas(64) TensorMap { char bytes[128]; };
constexpr int BLOCKS_M = PING ? BM / 64 : BM / 128;  // 64-row blocks that one warpgroup multiplies
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES, PANEL = 64 * 128, PANELS = BN / 64;
static_assert(BN % 64 == 0 && BLOCKS_M >= 1, "tile");

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void barrier_init(u32 b, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory"); }
DEV void expect_bytes(u32 b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory"); }
DEV void arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
DEV void arrive_at(u32 b, u32 block) {
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(b), "r"(block) : "memory");
}
DEV u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
DEV bool try_wait(u32 b, u32 parity) {
  u32 done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, 0x989680; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(b), "r"(parity) : "memory");
  return done;
}
// A copy that never completes must not hang the device: after 20 s the kernel traps.
DEV void wait(u32 b, u32 parity) {
  if (try_wait(b, parity)) return;
  const u64 begin = now();
  while (!try_wait(b, parity))
    if (now() - begin > 20000000000ull) __trap();
}
DEV void copy2(u32 to, const TensorMap* map, u32 b, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(b), "r"(x), "r"(y) : "memory");
}
DEV void copy2_all(u32 to, const TensorMap* map, u32 b, int x, int y, u16 blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(b), "r"(x), "r"(y), "h"(blocks) : "memory");
}
DEV void copy3(u32 to, const TensorMap* map, u32 b, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(b), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void copy3_all(u32 to, const TensorMap* map, u32 b, int x, int y, int z, u16 blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(b), "r"(x), "r"(y), "r"(z), "h"(blocks) : "memory");
}
DEV void copy_im2col(u32 to, const TensorMap* map, u32 b, int c, int w, int h, int n, u16 dw, u16 dh) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(to), "l"(map), "r"(b), "r"(c), "r"(w), "r"(h), "r"(n), "h"(dw), "h"(dh) : "memory");
}
DEV void store2(const TensorMap* map, u32 from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}
template <int N> DEV void stores_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
DEV void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEV void sync_group(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void arrive_group(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void visible_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
DEV u64 descriptor(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
DEV void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEV u32 load_word(u32 from) { u32 v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory"); return v; }
DEV bool elected() { u32 p; asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(p)); return p; }
DEV u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }
DEV void wait_for_producers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Tile t in an order that keeps a band of BAND tile rows in L2.
struct Tile { int m, n; };
DEV Tile tile_at(int t, int rows, int columns) {
  constexpr int BAND = 8;
  const int per_band = BAND * columns, band = t / per_band, height = min(rows - band * BAND, BAND), r = t - band * per_band;
  return {band * BAND + r % height, r / height};
}

extern "C" __global__ void __launch_bounds__(384, 1) product_wgmma(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 ring = (shared_address(shared) + 1023u) & ~1023u, staging = ring + STAGES * STAGE_BYTES;
  const u32 full = staging + 2 * STAGING * PANEL, empty = full + 8 * STAGES, residual_full = empty + 8 * STAGES, residual_empty = residual_full + 16 * STAGING;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0), group = warp >> 2;
  const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, (PING ? 1 : 2) * CLUSTER);
    for (int i = 0; i < 2 * STAGING; i++) barrier_init(residual_full + 8 * i, 1), barrier_init(residual_empty + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (CLUSTER > 1)
    cluster_sync();
  else
    __syncthreads();

  const int tiles_m = (M + BM * CLUSTER - 1) / (BM * CLUSTER), tiles_n = (N + BN - 1) / BN, tiles = tiles_m * tiles_n;
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
#if SOURCE == 1
  const int steps = KH * KW * chunks;
#else
  const int steps = (K + 63) / 64;
#endif
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0 && elected()) {
      int slot = 0;
      u32 phase = 0;
      bool waited = false;
      for (int t = first; t < tiles; t += step) {
        const Tile tile = tile_at(t, tiles_m, tiles_n);
        const int m0 = (tile.m * CLUSTER + rank) * BM, n0 = tile.n * BN;
#if SOURCE == 1
        const int image = m0 / (OH * OW), pixel = m0 - image * (OH * OW), h0 = pixel / OW * SH - PT, w0 = pixel % OW * SW - PL;
        int chunk = 0, kw = 0, kh = 0;
#endif
        for (int k = 0; k < steps; k++) {
          wait(empty + 8 * slot, phase ^ 1);
          const u32 to = ring + slot * STAGE_BYTES, b = full + 8 * slot;
          expect_bytes(b, STAGE_BYTES);
#if SOURCE == 1
          const int tap = kh * KW + kw;
          if (CLUSTER > 1)
            copy3_all(to + A_BYTES + rank * (B_BYTES / CLUSTER), &map_b, b, chunk * 64, tap, n0 + rank * (BN / CLUSTER), (u16)((1 << CLUSTER) - 1));
          else
            copy3(to + A_BYTES, &map_b, b, chunk * 64, tap, n0);
#else
          if (CLUSTER > 1)
            copy2_all(to + A_BYTES + rank * (B_BYTES / CLUSTER), &map_b, b, k * 64, n0 + rank * (BN / CLUSTER), (u16)((1 << CLUSTER) - 1));
          else
            copy2(to + A_BYTES, &map_b, b, k * 64, n0);
#endif
          if (!waited) {  // weights are constant: the first of them need not wait for the kernel before
            wait_for_producers();
            waited = true;
          }
#if SOURCE == 1
          copy_im2col(to, &map_a, b, chunk * 64, w0, h0, image, (u16)(kw * DW), (u16)(kh * DH));
          if (++chunk == chunks) {
            chunk = 0;
            if (++kw == KW) kw = 0, kh++;
          }
#else
          copy2(to, &map_a, b, k * 64, m0);
#endif
          if (++slot == STAGES) slot = 0, phase ^= 1;
        }
      }
    }
#if RESIDUAL
    if (warp == 1 && elected()) {
      wait_for_producers();
      // Both warpgroups go through their STAGING buffers in the same order: `taken` counts the panels of the first (low half) and the second.
      u32 taken[2] = {0, 0};
      int turn = 0;
      for (int t = first; t < tiles; t += step, turn ^= 1) {
        const Tile tile = tile_at(t, tiles_m, tiles_n);
        const int m0 = (tile.m * CLUSTER + rank) * BM, n0 = tile.n * BN;
#pragma unroll 1
        for (int panel = 0; panel < BLOCKS_M * PANELS; panel++) {
#pragma unroll
          for (int w = 0; w < 2; w++) {
            if (PING && w != turn) continue;
            const int index = w * STAGING + taken[w] % STAGING;
            wait(residual_empty + 8 * index, taken[w] / STAGING % 2 ^ 1);
            expect_bytes(residual_full + 8 * index, PANEL);
            copy2(staging + index * PANEL, &map_r, residual_full + 8 * index, n0 + panel % PANELS * 64, m0 + (PING ? 0 : w * BLOCKS_M * 64) + panel / PANELS * 64);
            taken[w]++;
          }
        }
      }
    }
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int w = group - 1, thread = threadIdx.x & 127, lane = thread & 31, row_warp = (warp & 3) * 16;
    float sum[BLOCKS_M][BN / 2];
    int slot = 0;
    u32 phase = 0;
    if (PING && w == 1) {
      arrive_group(2, 256);  // the first warpgroup goes first
      slot = steps % STAGES, phase = (steps / STAGES) & 1;
    }
    const u32 mine = staging + w * STAGING * PANEL, mine_full = residual_full + 8 * w * STAGING, mine_empty = residual_empty + 8 * w * STAGING;
    const u32 matrix_row = (lane & 7) + ((lane >> 3) & 1) * 8, matrix_chunk = lane >> 4;
    const u64 a0 = descriptor(ring + (PING ? 0 : w * BLOCKS_M * PANEL)), b0 = descriptor(ring + A_BYTES);
    wait_for_producers();  // operands of the epilogue
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    int buffer = 0;
    u32 buffer_phase = 0;
    for (int t = first + (PING ? w * step : 0); t < tiles; t += (PING ? 2 : 1) * step) {
      const Tile tile = tile_at(t, tiles_m, tiles_n);
      const int m0 = (tile.m * CLUSTER + rank) * BM + (PING ? 0 : w * BLOCKS_M * 64), n0 = tile.n * BN;
      if (PING) sync_group(2 + w, 256);
      int last = -1;
      for (int k = 0; k < steps; k++) {
        wait(full + 8 * slot, phase);
        const u64 a = a0 + (u64)(slot * (STAGE_BYTES / 16)), b = b0 + (u64)(slot * (STAGE_BYTES / 16));
        multiply_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
          for (int i = 0; i < BLOCKS_M; i++) multiply(sum[i], a + (i * (PANEL / 16) + kk * 2), b + kk * 2, (k | kk) != 0);
        multiply_commit();
        if (last >= 0) {  // the step before is done: its stage is free in every block that shares it
          multiply_wait<1>();
          if (thread < CLUSTER) CLUSTER > 1 ? arrive_at(empty + 8 * last, thread) : arrive(empty + 8 * last);
        }
        last = slot;
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
      if (PING) arrive_group(2 + (w ^ 1), 256);
      multiply_wait<0>();
      if (thread < CLUSTER) CLUSTER > 1 ? arrive_at(empty + 8 * last, thread) : arrive(empty + 8 * last);
      if (PING) {  // skip the other warpgroup's tile
        const int next = slot + steps;
        phase ^= (next / STAGES) & 1;
        slot = next % STAGES;
      }
#pragma unroll
      for (int i = 0; i < BLOCKS_M; i++) {
        const int row = m0 + i * 64 + row_warp + (lane >> 2);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
          const u32 at = mine + buffer * PANEL;
          if (RESIDUAL) {
            wait(mine_full + 8 * buffer, buffer_phase);
          } else {
            if (thread == 0) stores_read<STAGING - 1>();
            sync_group(4 + w, 128);
          }
#pragma unroll
          for (int j = 0; j < 8; j += 2) {  // two chunks of 8 columns
            u32 out[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
              const int c = panel * 8 + j + q / 2, n = n0 + c * 8 + (lane & 3) * 2, count = N - n, half = q % 2;
              float v[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
              const int m = min(row + half * 8, M - 1);  // rows beyond the last are computed, read in bounds and not stored
#if RESIDUAL
              const int r = row_warp + (lane >> 2) + half * 8;
              float given[2];
              unpack2((T*)0, load_word(at + r * 128 + (((j + q / 2) ^ (r & 7)) << 4) + (lane & 3) * 4), given[0], given[1]);
              finish(epilogue, v, m, 0, n, count, given);
#else
              finish(epilogue, v, m, (i64)m * ldr, n, count);
#endif
              out[q] = pack2((T*)0, v[0], v[1]);
            }
            if (RESIDUAL) __syncwarp();  // a warp rewrites only what it has read
            store_matrices(at + (row_warp + matrix_row) * 128 + (((j + matrix_chunk) ^ (matrix_row & 7)) << 4), out[0], out[1], out[2], out[3]);
          }
          visible_to_copies();
          sync_group(4 + w, 128);
          if (thread == 0) {
            store2(&map_y, at, n0 + panel * 64, m0 + i * 64);
            if (RESIDUAL) {  // buffers whose results have left may take the next residual
              const int before = buffer ? buffer - 1 : STAGING - 1;
              const bool final = i == BLOCKS_M - 1 && panel == PANELS - 1;
              if (final) {
                stores_read<0>();
                arrive(mine_empty + 8 * buffer);
              } else {
                stores_read<1>();
              }
              if (i || panel) arrive(mine_empty + 8 * before);
            }
          }
          if (++buffer == STAGING) buffer = 0, buffer_phase ^= 1;
        }
      }
    }
    if (thread == 0) stores_done();
  }
  if (CLUSTER > 1) cluster_sync();  // no block may leave while another still signals its barriers
}
