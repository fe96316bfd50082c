// Convolutions of stride 1 on Hopper in 16-bit types that copy an input patch once for all taps.
//
// A tile is TILE_H rows of STACK output images, WIDTH_IN pixels wide: the input's width with
// padding. The patch is the tile with its halo: all rows of the padded input that the tile reads,
// 64 channels at a time. Pixel p of an image's part of the tile reads, for filter tap (kh, kw),
// pixel p + kh * DH * WIDTH_IN + kw * DW of the patch: the A operand of a tap is the patch at an
// offset. The pixels of an image are WGMMAS_PER_IMAGE wgmmas of 64 rows. Columns beyond the
// output's width are computed and not stored.
//
// Producers: warp 0 copies the weights, one tap and 64 input channels of BN output channels a
// stage; warp 1 copies patches into a ring. Consumers: two warpgroups. WEIGHTS_RESIDENT: all
// weights of a CTA's BN output channels have a stage each and are copied
//   once. The warpgroups alternate tiles, so that the epilogue of one overlaps MMAs of the other.
// else: the weights are streamed through a ring. The warpgroups share a tile. Clusters have split-K
//   (SPLIT: each CTA reduces and finishes a part of the sums) or multicast of weights (MULTICAST:
//   the CTAs have neighbouring tiles).
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
constexpr bool WEIGHTS_RESIDENT = true;
constexpr int KH = 3, KW = 3;                   // filter window
constexpr int DH = 1, DW = 1;                   // dilation
constexpr int PT = 1, PL = 1;                   // padding above and at the left
constexpr int CHUNKS = 1;                       // steps of 64 input channels
constexpr int LAST_CHUNK_MMAS = 4;              // wgmmas (of 16 channels) of the last chunk
constexpr int TILE_H = 2, WIDTH_IN = 58;        // rows of a tile, pixels of a row
constexpr int STACK = 1, WGMMAS_PER_IMAGE = 2;  // images of a tile; wgmmas of 64 pixels of each
constexpr int BN = 64;                          // output channels of a tile, a multiple of 32
constexpr int STAGES = 9, PATCHES = 4;          // stages of weights, of patches
constexpr int OVERREAD = 0;  // bytes reserved behind the weights: wgmma reads beyond the last patch
constexpr int MULTICAST = 1;  // CTAs of a cluster that share weights by multicast
constexpr int GROUP_MMAS = 4,
              GROUP_COLUMNS = BN;    // wgmmas and columns of a block of a block-diagonal filter
constexpr bool EARLY = true;         // the weights are constant
constexpr bool WHOLE_TILES = false;  // N (or the columns of merged groups) is a multiple of BN
#define SPLIT 1                      // split-K over a cluster
#define MIXED 0                      // tiles contain channels of other groups (conv/grouped.cuh)
#define PARAMETERS                                                                                 \
  const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w, T *y, i64 ldy, \
      int N, int IMAGES, int OH, int OW, i64 ldr
#define MMA_TYPE "f16"
#define WGMMA_SIZES WGMMA(64)  // GROUP_COLUMNS

#endif  // GENERATED
#include "common/tma.cuh"
#include "common/wgmma.cuh"
#include "common/cluster_splitk.cuh"
#include "common/epilogue_store.cuh"
#if MIXED
#include "conv/grouped.cuh"
#endif

constexpr int TAPS = KH * KW, STEPS = CHUNKS * TAPS, HEIGHT_IN = TILE_H + (KH - 1) * DH;
constexpr int PATCH_BYTES = STACK * HEIGHT_IN * WIDTH_IN * 128,
              PATCH = (PATCH_BYTES + 1023) / 1024 * 1024, B_BYTES = BN * 128;
// wgmmas of a tile, and of one warpgroup: where both share a tile, the second may have one less.
constexpr int TOTAL = STACK * WGMMAS_PER_IMAGE, WGMMAS = WEIGHTS_RESIDENT ? TOTAL : (TOTAL + 1) / 2;
constexpr int CLUSTER = SPLIT * MULTICAST;
// Whether the epilogue's operands are read ahead into registers.
constexpr bool AHEAD = WEIGHTS_RESIDENT || sizeof(Columns) * (BN / 8) <= 128;
static_assert(TOTAL > 1 && BN % 32 == 0 && (SPLIT == 1 || MULTICAST == 1), "tile");
static_assert(!WEIGHTS_RESIDENT ||
                  (STAGES == STEPS && CLUSTER == 1 && (CHUNKS == 1 || LAST_CHUNK_MMAS == 4)),
              "resident weights");
template <int N>
struct Constant {
  static constexpr int value = N;
};
#if SPLIT > 1
DEV float4 load_dsmem_f32(const float4* p, u32 peer) {
  float4 v;
  asm volatile(
      "{.reg .b32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, "
      "%3}, [a];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(smem_address(p)), "r"(peer)
      : "memory");
  return v;
}
#endif

extern "C" __global__ void __launch_bounds__(384, 1) conv_halo(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 patches = (smem_address(shared) + 1023u) & ~1023u, weights = patches + PATCHES * PATCH;
  const u32 full = weights + STAGES * B_BYTES + OVERREAD, empty = full + 8 * STAGES,
            patch_full = empty + 8 * STAGES, patch_empty = patch_full + 8 * PATCHES;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0), group = warp >> 2;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++)
      mbarrier_init(full + 8 * i, 1), mbarrier_init(empty + 8 * i, 2 * MULTICAST);
    for (int i = 0; i < PATCHES; i++)
      mbarrier_init(patch_full + 8 * i, 1),
          mbarrier_init(patch_empty + 8 * i, WEIGHTS_RESIDENT ? 1 : 2);
    mbarrier_init_fence();
  }
  if (MULTICAST > 1)
    cluster_arrive(), cluster_wait();
  else
    __syncthreads();

  const int part = SPLIT > 1 ? cluster_rank() : 0, peer = MULTICAST > 1 ? cluster_rank() : 0,
            begin = STEPS * part / SPLIT, end = STEPS * (part + 1) / SPLIT;
  // With resident weights the grid is a multiple of tiles_n: all tiles of a CTA have the same
  // columns.
  const int tiles_n = column_tiles<BN>(N), per_image = (OH + TILE_H - 1) / TILE_H,
            tiles =
                ((IMAGES + STACK - 1) / STACK * per_image + MULTICAST - 1) / MULTICAST * tiles_n;
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0 && elect_one()) {
      // Copies of constant weights need not wait for the kernel before.
      if (!EARLY) wait_for_producers();
      int slot = 0;
      u32 phase = 0;
      for (int t = first; t < (WEIGHTS_RESIDENT ? first + 1 : tiles); t += step) {
        const int n0 = tile_columns<BN>(t % tiles_n, N).first + peer * (BN / MULTICAST);
        for (int k = begin; k < end; k++) {
          if (!WEIGHTS_RESIDENT) wait(empty + 8 * slot, phase ^ 1);
          mbarrier_expect_tx(full + 8 * slot, B_BYTES);
          if (MULTICAST > 1)
            tma_load_3d_multicast(weights + slot * B_BYTES + peer * (B_BYTES / MULTICAST), &map_w,
                                  full + 8 * slot, k / TAPS * 64, k % TAPS, n0,
                                  (u16)((1 << MULTICAST) - 1));
          else
            tma_load_3d(weights + slot * B_BYTES, &map_w, full + 8 * slot, k / TAPS * 64, k % TAPS,
                        n0);
          if (++slot == STAGES) slot = 0, phase ^= 1;
        }
      }
    } else if (warp == 1 && elect_one()) {
      wait_for_producers();
      int slot = 0;
      u32 phase = 0;
      for (int t = first; t < tiles; t += step) {
        const int at = t / tiles_n * MULTICAST + peer,
                  channel = tile_columns<BN>(t % tiles_n, N).channel;
        for (int chunk = begin / TAPS; chunk * TAPS < end; chunk++) {
          wait(patch_empty + 8 * slot, phase ^ 1);
          mbarrier_expect_tx(patch_full + 8 * slot, PATCH_BYTES);
          tma_load_4d(patches + slot * PATCH, &map_x, patch_full + 8 * slot, channel + chunk * 64,
                      -PL, at % per_image * TILE_H - PT, at / per_image * STACK);
          if (++slot == PATCHES) slot = 0, phase ^= 1;
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int w = group - 1, thread = threadIdx.x & 127, lane = thread & 31,
              row_warp = (warp & 3) * 16, wgmma0 = WEIGHTS_RESIDENT ? 0 : w * WGMMAS;
    const u64 a0 = descriptor(patches), b0 = descriptor(weights);
    u32 begins[WGMMAS];  // offsets of wgmmas in the patch, in units of 16 bytes
#pragma unroll
    for (int i = 0; i < WGMMAS; i++)
      begins[i] = ((wgmma0 + i) / WGMMAS_PER_IMAGE * (HEIGHT_IN * WIDTH_IN) +
                   (wgmma0 + i) % WGMMAS_PER_IMAGE * 64) *
                  8;
    float sum[WGMMAS][BN / 2] = {};  // columns of merged groups without channels stay zero
    int slot = 0, patch = WEIGHTS_RESIDENT ? w * CHUNKS % PATCHES : 0;
    u32 phase = 0, patch_phase = WEIGHTS_RESIDENT ? w * CHUNKS / PATCHES & 1 : 0;
    bool fresh = true;  // has not yet waited for resident weights
    if (WEIGHTS_RESIDENT && w == 1) named_barrier_arrive(2, 256);  // the first warpgroup goes first
    wait_for_producers();                                          // operands of the epilogue
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    Columns columns[AHEAD ? BN / 8 : 4];
    const auto read_columns = [&](int n0, int n_end) {
#pragma unroll
      for (int c = 0; c < BN / 8; c++)
        if (AHEAD) columns[c] = columns_at(epilogue, n0 + c * 8 + (lane & 3) * 2, n_end);
    };
    const TileColumns resident = tile_columns<BN>(first % tiles_n, N);
    if (WEIGHTS_RESIDENT) read_columns(resident.first, resident.end);
    // A step of 64 channels for the first `wgmmas` wgmmas. started: accumulate, else overwrite.
    const auto multiply_tap = [&](auto wgmmas, auto mmas, u64 a, u64 b, int started) {
#pragma unroll
      for (int kk = 0; kk < mmas.value; kk++)
#pragma unroll
        for (int i = 0; i < wgmmas.value; i++) {
          const int at = kk / GROUP_MMAS * GROUP_COLUMNS;  // the first column of these channels
          wgmma(*(float (*)[GROUP_COLUMNS / 2])(sum[i] + at / 2), a + (begins[i] + kk * 2),
                b + (at * 8 + kk * 2), (started | kk % GROUP_MMAS) != 0);
        }
    };
    for (int t = first + (WEIGHTS_RESIDENT ? w * step : 0); t < tiles;
         t += WEIGHTS_RESIDENT ? 2 * step : step) {
      const TileColumns own = WEIGHTS_RESIDENT ? resident : tile_columns<BN>(t % tiles_n, N);
      const int n0 = own.first, n_end = own.end;
      if constexpr (WEIGHTS_RESIDENT) {
        named_barrier_sync(2 + w, 256);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
          if (fresh)
            for (int tap = 0; tap < TAPS; tap++) wait(full + 8 * (chunk * TAPS + tap), 0);
          wait(patch_full + 8 * patch, patch_phase);
          wgmma_fence();
#pragma unroll
          for (int tap = 0; tap < TAPS; tap++)
            multiply_tap(
                Constant<WGMMAS>{}, Constant<LAST_CHUNK_MMAS>{},
                a0 + (u64)(patch * (PATCH / 16) + (tap / KW * DH * WIDTH_IN + tap % KW * DW) * 8),
                b0 + (u64)((chunk * TAPS + tap) * (B_BYTES / 16)), chunk | tap);
          wgmma_commit();
          if (chunk == CHUNKS - 1) named_barrier_arrive(2 + (w ^ 1), 256);
          wgmma_wait<0>();
          if (thread == 0) arrive(patch_empty + 8 * patch);
          if (++patch == PATCHES) patch = 0, patch_phase ^= 1;
        }
        fresh = false;
        const int next = patch + CHUNKS;  // skip the other warpgroup's tile
        patch_phase ^= (next / PATCHES) & 1;
        patch = next % PATCHES;
      } else {
        read_columns(n0, n_end);
        int last = -1, last_patch = 0;
        auto multiply_chunk = [&](auto wgmmas, auto mmas, int chunk) {
          wait(patch_full + 8 * patch, patch_phase);
          const u64 a_patch = a0 + (u64)(patch * (PATCH / 16));
          const int first_tap = max(begin - chunk * TAPS, 0),
                    end_tap = min(end - chunk * TAPS, TAPS);
          int kw = first_tap % KW, shift = (first_tap / KW * DH * WIDTH_IN + kw * DW) * 8;
#pragma unroll 1
          for (int tap = first_tap; tap < end_tap; tap++) {
            wait(full + 8 * slot, phase);
            wgmma_fence();
            multiply_tap(wgmmas, mmas, a_patch + (u64)shift, b0 + (u64)(slot * (B_BYTES / 16)),
                         last + 1);
            wgmma_commit();
            // The step before is complete: releases its weights, and the patch of the chunk before.
            wgmma_wait<1>();
            if (thread < MULTICAST && last >= 0) {
              MULTICAST > 1 ? mbarrier_arrive_remote(empty + 8 * last, thread)
                            : arrive(empty + 8 * last);
              if (thread == 0 && tap == first_tap) arrive(patch_empty + 8 * last_patch);
            }
            last = slot;
            if (++slot == STAGES) slot = 0, phase ^= 1;
            shift += DW * 8;
            if (++kw == KW) kw = 0, shift += (DH * WIDTH_IN - KW * DW) * 8;
          }
          last_patch = patch;
          if (++patch == PATCHES) patch = 0, patch_phase ^= 1;
        };
        auto multiply_tile = [&](auto wgmmas) {
#pragma unroll 1
          for (int chunk = begin / TAPS;
               chunk < (LAST_CHUNK_MMAS < 4 ? CHUNKS - 1 : CHUNKS) && chunk * TAPS < end; chunk++)
            multiply_chunk(wgmmas, Constant<4>{}, chunk);
          if (LAST_CHUNK_MMAS < 4 && end > (CHUNKS - 1) * TAPS)
            multiply_chunk(wgmmas, Constant<LAST_CHUNK_MMAS>{}, CHUNKS - 1);
          wgmma_wait<0>();
        };
        if (TOTAL % 2 == 0 || w == 0)
          multiply_tile(Constant<WGMMAS>{});
        else
          multiply_tile(Constant<TOTAL - WGMMAS>{});
        if (thread < MULTICAST)
          MULTICAST > 1 ? mbarrier_arrive_remote(empty + 8 * last, thread)
                        : arrive(empty + 8 * last);
        if (thread == 0) arrive(patch_empty + 8 * last_patch);
      }

#if SPLIT > 1
      // Items of 16 sums of a thread, which has the same results in every CTA of the split.
      float4* const staged =
          (float4*)(shared + (patches - smem_address(shared))) + (threadIdx.x - 128);
      named_barrier_sync(1, 256);  // no wgmma reads shared memory
#pragma unroll
      for (int item = 0; item < WGMMAS * BN / 32; item++) {
        const float* const v = sum[item % WGMMAS] + item / WGMMAS * 16;
        if (item % SPLIT != part)
#pragma unroll
          for (int k = 0; k < 4; k++)
            staged[(item * 4 + k) * 256] =
                make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
      }
      cluster_sync();
#pragma unroll
      for (int item = 0; item < WGMMAS * BN / 32; item++) {
        float* const v = sum[item % WGMMAS] + item / WGMMAS * 16;
        if (item % SPLIT == part)
#pragma unroll
          for (int other = 1; other < SPLIT; other++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
              const float4 other_sum =
                  load_dsmem_f32(staged + (item * 4 + k) * 256, (part + other) % SPLIT);
              v[4 * k] += other_sum.x, v[4 * k + 1] += other_sum.y, v[4 * k + 2] += other_sum.z,
                  v[4 * k + 3] += other_sum.w;
            }
      }
      asm volatile("barrier.cluster.arrive.release;" ::
                       : "memory");  // has read the sums of the others
#endif
      const int at = t / tiles_n * MULTICAST + peer, first_image = at / per_image * STACK,
                h0 = at % per_image * TILE_H;
      // The output pixel of a thread's sums of wgmma i, in one half of its rows; false: none.
      const auto place = [&](int i, int half, int& m) {
        const int tile_wgmma = wgmma0 + i,
                  p = tile_wgmma % WGMMAS_PER_IMAGE * 64 + row_warp + (lane >> 2) + half * 8,
                  image = first_image + tile_wgmma / WGMMAS_PER_IMAGE, oh = h0 + p / WIDTH_IN,
                  ow = p % WIDTH_IN;
        const bool inside =
            tile_wgmma < TOTAL && image < IMAGES && oh < min(OH, h0 + TILE_H) && ow < OW;
        m = inside ? (image * OH + oh) * OW + ow : 0;  // else reads pixel 0 and is not stored
        return inside;
      };
#if MIXED
#pragma unroll
      for (int i = 0; i < WGMMAS; i++) {
        // Rows that are not stored may come from behind the patch and not be finite: zero them.
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int m;
          if (place(i, half, m)) continue;
#pragma unroll
          for (int k = 0; k < BN / 2; k++)
            if (k / 2 % 2 == half) sum[i][k] = 0.f;
        }
        recompute_nonfinite(sum[i], OWN_GROUP, [&](int k, int& m, int& n) {
          n = n0 + k / 4 * 8 + (lane & 3) * 2 + k % 2;
          return place(i, k / 2 % 2, m) && n < n_end;
        });
      }
#endif
#pragma unroll
      for (int j = 0; j < BN / 8; j += 4) {  // four chunks of 8 columns
        if (!WHOLE_TILES && n0 + j * 8 >= n_end) continue;
        if (!AHEAD)
#pragma unroll
          for (int k = 0; k < 4; k++)
            columns[k] = columns_at(epilogue, n0 + (j + k) * 8 + (lane & 3) * 2, n_end);
#pragma unroll
        for (int i = 0; i < WGMMAS; i++) {
          if ((j / 4 * WGMMAS + i) % SPLIT != part) continue;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            int m;
            const bool inside = place(i, half, m);
            u32 out[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
              const int c = j + k, n = n0 + c * 8 + (lane & 3) * 2;
              float v[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
              finish(epilogue, columns[AHEAD ? c : k], v, m, (i64)m * ldr, n, n_end - n);
              out[k] = pack2((T*)0, v[0], v[1]);
            }
            gather_chunks(out, lane);
            const int n = n0 + (j + (lane & 3)) * 8;
            if (inside && (WHOLE_TILES || n < n_end)) store8(y + m * ldy + n, out, n_end - n);
          }
        }
      }
#if SPLIT > 1
      cluster_wait();
#endif
    }
    if (MULTICAST > 1)
      cluster_arrive(), cluster_wait();  // other CTAs still signal barriers of this one
  }
}
