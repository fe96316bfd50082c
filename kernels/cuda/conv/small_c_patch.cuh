// Convolutions of few input channels (more than a network's first layer has, or with larger
// windows) in 16-bit types on Hopper, without MMAs on padding channels.
//
// A warpgroup computes TILE_H x TILE_W output pixels of BN channels from a patch of the image in
// shared memory. The patch has planes of 8 channels, and of each a part per stride residue, with 16
// bytes per pixel and rows of PITCH pixels. So the pixels of a unit of k (one tap, 8 channels) are
// contiguous, PITCH for each output row. A wgmma has two units at any distance. Results beyond
// TILE_W are not stored. Filters stay in shared memory; warpgroups process tiles independently and
// copy the next patch while they multiply. With PASSES > 1 the input channels are split into parts,
// one after another, with patches and filters copied in the same way; warpgroups of a CTA share the
// filters.
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
constexpr int IC = 16, OC = 32;              // channels
constexpr int C8 = 2, PASSES = 1;            // chunks of 8 input channels of a pass, passes
constexpr int TAPS = 9;                      // of the window
constexpr int SH = 1, SW = 1;                // stride
constexpr int PT = 1, PL = 1;                // padding above and at the left
constexpr int TILE_H = 6, TILE_W = 8;        // output pixels of a tile
constexpr int PITCH = 10;                    // pixels of a row of one residue
constexpr int ROWS_IN = 8, COLUMNS_IN = 10;  // pixels of the image that a tile reads
constexpr int PHASE = 86, PLANE = 91;        // pixels of a residue, of a plane of 8 channels
constexpr int SIZE = 182;                    // pixels of a patch
constexpr int UNITS = 18;                    // of k: a tap and 8 channels
constexpr int OFFSETS[UNITS] = {};           // of units in the patch, increasing; an even number
DEV int unit_of(int j) { return j; }         // the unit of tap * C8 + chunk
constexpr int WGMMAS = 1;                    // of 64 rows of a tile
constexpr int GROUPS = 2;                    // warpgroups
constexpr int RESIDENT = 2;                  // CTAs per SM
constexpr int BN = 32;                       // output channels of a CTA
constexpr bool EARLY = true;                 // the weights are constant
#define PARAMETERS                                                                         \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, i64 x_cs, i64 x_rs, \
      i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#define MMA_TYPE "f16"
#define WGMMA_SIZES WGMMA(32)  // BN

#endif  // GENERATED
#include "common/epilogue_store.cuh"
#include "common/hopper.cuh"
#include "common/wgmma.cuh"

constexpr int ALL8 = (IC + 7) / 8, STEPS = (UNITS + 1) / 2, NT = BN / 8,
              FILTERS = STEPS * 2 * BN * 16, RINGS = PASSES > 1 ? 2 : 1, THREADS = 128 * GROUPS,
              ROWS = 64 * WGMMAS, COPIES = ROWS_IN * COLUMNS_IN * C8;

DEV void wait_for_producers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void zero16(u32 to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_small_c_patch(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  // Uniform in a warp, by the shuffle known to the compiler: descriptors use the uniform datapath.
  const int group = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 7), 0),
            thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const int n0 = blockIdx.y * BN;
  const u32 weights = smem_address(shared),
            patches = weights + RINGS * FILTERS + group * (2 * SIZE * 16);
  const int across = (OW + TILE_W - 1) / TILE_W, bands = (OH + TILE_H - 1) / TILE_H,
            tiles = N * bands * across;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) wait_for_producers();
  constexpr int ODD = UNITS % 2;
  const auto fetch_filters = [&](int pass, u32 to) {
#pragma unroll 8
    for (int i = threadIdx.x; i < STEPS * 2 * BN;
         i += THREADS) {  // neighbouring threads read neighbouring chunks
      const int j = i / 16 % STEPS * 2 + i % 2, oc = i / 16 / STEPS * 8 + i / 2 % 8,
                u = j < UNITS ? unit_of(j) : j, chunk = pass * C8 + j % C8;
      const bool real = n0 + oc < OC && j < UNITS && chunk < ALL8;
      cp_async(to + (u * NT + oc / 8) * 128 + oc % 8 * 16,
               real ? w + ((i64)(n0 + oc) * (TAPS * ALL8) + j / C8 * ALL8 + chunk) * 8 : w,
               real ? 16 : 0);
    }
  };
  fetch_filters(0, weights);
  cp_async_commit();
  if (ODD)  // the last unit has filters of zeros; its pixels must be finite
    for (int i = thread; i < 2 * ROWS; i += 128)
      zero16(patches + (i / ROWS * SIZE + SIZE - ROWS + i % ROWS) * 16);
  wait_for_producers();
  const auto fetch = [&](int wanted, int pass, u32 to) {
    const int tile = PASSES > 1 ? min(wanted, tiles - 1) : wanted;
    const int top = tile / across % bands * (TILE_H * SH) - PT,
              left = tile % across * (TILE_W * SW) - PL;
    const T* const image = x + tile / across / bands * x_ns;
#pragma unroll 4
    for (int i = thread; i < COPIES; i += 128) {
      const int c = i % C8, at = i / C8, row = at / COLUMNS_IN, column = at % COLUMNS_IN,
                ih = top + row, iw = left + column;
      const bool inside = (u32)ih < (u32)IH && (u32)iw < (u32)IW;
      const int offset =
          c * PLANE + (row % SH * SW + column % SW) * PHASE + row / SH * PITCH + column / SW;
      const int left = IC - (pass * C8 + c) * 8;  // channels
      const bool real = inside && (PASSES == 1 || left > 0);
      cp_async(to + offset * 16, real ? image + ih * x_rs + iw * x_cs + (pass * C8 + c) * 8 : x,
               real ? min(left, 8) * 2 : 0);
    }
  };
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  Columns columns[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) columns[j] = columns_at(epilogue, n0 + j * 8 + (lane & 3) * 2, OC);
  const int first = blockIdx.x * GROUPS + group, step = gridDim.x * GROUPS;
  const int others = PASSES > 1 ? group : 0;  // warpgroups that share filters iterate together
  if (first - others < tiles) fetch(first, 0, patches);
  cp_async_commit();
  if (PASSES == 1) {
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();  // the filters are in shared memory
  }
  int buffer = 0;
#pragma unroll 1
  for (int step_tile = first; step_tile - others < tiles; step_tile += step) {
    const int tile = PASSES > 1 ? min(step_tile, tiles - 1) : step_tile;
    float sum[WGMMAS][BN / 2];
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++, buffer ^= 1) {
      cp_async_wait<0>();
      fence_proxy_async();
      if (PASSES > 1)
        __syncthreads();
      else
        named_barrier_sync(1 + group, 128);  // this patch is complete, and the other one is free
      const bool last = pass == PASSES - 1;
      if (!last || step_tile + step - others < tiles) {
        fetch(last ? step_tile + step : step_tile, last ? 0 : pass + 1,
              patches + (buffer ^ 1) * (SIZE * 16));
        if (PASSES > 1) fetch_filters(last ? 0 : pass + 1, weights + (buffer ^ 1) * FILTERS);
      }
      cp_async_commit();
      const u64 a = (u64)((patches + buffer * (SIZE * 16)) >> 4) | 8ull << 32;
      const u64 b = (u64)((weights + (PASSES > 1 ? buffer * FILTERS : 0)) >> 4) |
                    (u64)(NT * 8) << 16 | 8ull << 32;
      float pass_sum[WGMMAS][BN / 2];  // of this pass: tensor cores truncate long sums
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int i = 0; i < WGMMAS; i++)
          wgmma(pass_sum[i],
                a + (u64)(i * 64 + OFFSETS[2 * s]) +
                    ((u64)(OFFSETS[2 * s + 1] - OFFSETS[2 * s]) << 16),
                b + (u64)(s * (2 * NT * 8)), s != 0);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int k = 0; k < WGMMAS * BN / 2; k++)
        sum[k / (BN / 2)][k % (BN / 2)] =
            pass_sum[k / (BN / 2)][k % (BN / 2)] + (pass ? sum[k / (BN / 2)][k % (BN / 2)] : 0.f);
    }
    const int image = tile / across / bands, h0 = tile / across % bands * TILE_H,
              w0 = tile % across * TILE_W;
#pragma unroll
    for (int i = 0; i < WGMMAS; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int p = i * 64 + warp * 16 + (lane >> 2) + half * 8, oh = h0 + p / PITCH,
                  ow = w0 + p % PITCH, h = min(oh, OH - 1), v = min(ow, OW - 1);
        const bool inside = p / PITCH < TILE_H && p % PITCH < TILE_W && oh < OH && ow < OW &&
                            (PASSES == 1 || step_tile < tiles);
        const int m = (image * OH + h) * OW + v;
        const i64 full = image * r_ns + h * r_rs + v * r_cs;
        T* const to = y + image * y_ns + h * y_rs + v * y_cs + n0 + (lane & 3) * 8;
#pragma unroll
        for (int j = 0; j < NT; j += 4) {  // four chunks of 8 channels
          u32 o[4] = {0, 0, 0, 0};
#pragma unroll
          for (int k = 0; k < 4 && j + k < NT; k++) {
            const int c = j + k, n = n0 + c * 8 + (lane & 3) * 2;
            float pair[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
            finish(epilogue, columns[c], pair, m, full, n, OC - n);
            o[k] = pack2((T*)0, pair[0], pair[1]);
          }
          gather_chunks(o, lane);
          const int n = n0 + (j + (lane & 3)) * 8;
          if (inside && j + (lane & 3) < NT && n < OC) store8(to + j * 8, o, OC - n);
        }
      }
  }
}
