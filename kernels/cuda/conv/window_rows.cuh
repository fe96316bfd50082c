// Convolutions of 8-bit images of few channels, in which a row of a window is one pixel of 32 STEPS
// bytes at most, X_STEP bytes behind the one before (compiler/lower/passes/window_rows.py), and max
// pooling of their results (POOL).
//
// A CTA has ROWS rows of results, or of what is pooled of them; the rows of the image that these
// see are copied into shared memory while it computes those before. A warp multiplies 16 pixels at
// a time by 8 NT filters, which its registers hold: mma.sync reads pixels from wherever they begin.
// Filters are ordered such that a lane has 2 NT neighbouring channels.
//
// Packed weights: [OC, KH, TAP_BYTES].
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "gemm/int8/requantise.cuh"
#define PARAMETERS                                                                               \
  const T *x, const Weight *w, Result *y, int N, int OH, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, \
      i64 y_ns, int PH, int PW
#define EPILOGUE_ARGUMENTS
#define POOL 0
constexpr bool EARLY = true;  // weights are constant: read before griddepcontrol.wait
constexpr int KH = 7, SH = 2, DH = 1, STEPS = 1, TAP_BYTES = 32, X_STEP = 8;
constexpr int NT = 8, OC = 64, OW = 112, WARPS = 4, ROWS = 4, RESIDENT = 2;
constexpr int ROW_BYTES = 944;                     // copied of a row
constexpr int PKH = 3, PKW = 3, PPT = 1, PPL = 1;  // windows of stride 2 that are pooled
#endif                                             // GENERATED
#include "common/base.cuh"
#include "image/larger_bytes.cuh"
#include "gemm/int8/mma.cuh"

// Pairs of channels lie with gaps that avoid bank conflicts.
DEV constexpr int pair_at(int k) { return k + k / NT; }
constexpr int WARPS_N = OC / (8 * NT), THREADS = 32 * WARPS;
constexpr int MADE = POOL ? 2 * (ROWS - 1) + PKH : ROWS;  // rows of results that a tile needs
constexpr int SEEN = (MADE - 1) * SH + (KH - 1) * DH + 1, COPY = SEEN * ROW_BYTES;

// Rows [first, end) of results that tile `t` needs, of image n; `top`: its first row of y.
struct Rows {
  int n, top, first, end;
  __device__ __forceinline__ Rows(int t, int OH, int high) {
    const int tiles = (high + ROWS - 1) / ROWS;
    n = t / tiles, top = t % tiles * ROWS;
    first = POOL ? max(2 * top - PPT, 0) : top;
    end = min(POOL ? 2 * top - PPT + MADE : top + ROWS, OH);
  }
};

template <class Y>
DEV void store_bytes(Y* y, const u32 (&words)[(NT + 1) / 2]) {
  if constexpr (NT == 8)
    *(uint4*)y = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (NT == 4)
    *(uint2*)y = make_uint2(words[0], words[1]);
  else
    *(u32*)y = words[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_window_rows(PARAMETERS) {
  extern __shared__ uint4 shared[];
  char* const rows = (char*)shared;
  ColumnOperands* const table = (ColumnOperands*)(rows + 2 * COPY);
  char* const made = (char*)(table + pair_at(OC / 2));
  pdl_launch_dependents();
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, quad = lane >> 2,
            l = lane & 3, group = warp % WARPS_N * 8 * NT;
  if (!EARLY) pdl_wait();
  // Filters come through shared memory where they fit: lanes read pieces of many.
  constexpr int FILTERS = OC * KH * TAP_BYTES;
  constexpr bool STAGED = FILTERS <= 2 * COPY;
  const Weight* filters = w;
  if constexpr (STAGED) {
    for (int k = thread * 16; k < FILTERS; k += THREADS * 16)
      cp_async(smem_address(rows) + k, w + k, 16);
    cp_async_wait_all();
    __syncthreads();
    filters = (const Weight*)rows;
  }
  u32 b[KH * STEPS][NT][2];
#pragma unroll
  for (int k = 0; k < KH * STEPS; k++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int column = group + quad / 2 * 2 * NT + 2 * j + quad % 2,
                  at = k % STEPS * 32 + half * 16;
        b[k][j][half] =
            at < TAP_BYTES
                ? *(const u32*)(filters + (column * KH + k / STEPS) * TAP_BYTES + at + 4 * l)
                : 0u;
      }
  if (STAGED) __syncthreads();
  if (EARLY && !FIXED) pdl_wait();
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const Scalars scalars = scalars_of(epilogue);
  for (int k = thread; k < OC / 2; k += THREADS)
    table[pair_at(k)] = column_operands_at(epilogue, scalars, 2 * k, OC);
  if (FIXED) pdl_wait();

  const int high = POOL ? PH : OH, tiles = (high + ROWS - 1) / ROWS * N;
  const auto copy = [&](int t, int stage) {
    if (t < tiles) {
      const Rows at(t, OH, high);
      constexpr int PARTS = ROW_BYTES / 16;
      const T* from = x + at.n * x_ns + at.first * SH * x_rs;
      const int count = (at.end - at.first - 1) * SH + (KH - 1) * DH + 1;
      for (int k = thread; k < count * PARTS; k += THREADS)
        cp_async(smem_address(rows) + stage * COPY + k * 16,
                 from + k / PARTS * x_rs + k % PARTS * 16, 16);
    }
    cp_async_commit();
  };
  copy(blockIdx.x, 0);
  int stage = 0;
  for (int t = blockIdx.x; t < tiles; t += gridDim.x, stage ^= 1) {
    copy(t + gridDim.x, stage ^ 1);
    cp_async_wait<1>();
    __syncthreads();
    const Rows at(t, OH, high);
    const int count = (at.end - at.first) * OW;
    for (int u = warp / WARPS_N * 16; u < count; u += WARPS / WARPS_N * 16) {
      const T* from[2];
      int row[2], column[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int p = min(u + quad + h * 8, count - 1);
        row[h] = p / OW, column[h] = p - row[h] * OW;
        from[h] =
            (const T*)rows + stage * COPY + row[h] * (SH * ROW_BYTES) + column[h] * X_STEP + 4 * l;
      }
      int sum[NT][4];
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          sum[j][e] = STARTS ? table[pair_at(group / 2 + l * NT + j)].start[e % 2] : 0;
#pragma unroll
      for (int k = 0; k < KH * STEPS; k++) {
        const int to = k / STEPS * (DH * ROW_BYTES) + k % STEPS * 32;
        const u32 a[4] = {*(const u32*)(from[0] + to), *(const u32*)(from[1] + to),
                          *(const u32*)(from[0] + to + 16), *(const u32*)(from[1] + to + 16)};
#pragma unroll
        for (int j = 0; j < NT; j++) multiply(sum[j], a, b[k][j][0], b[k][j][1], (T*)0, (Weight*)0);
      }
      u32 words[2][(NT + 1) / 2];
#pragma unroll
      for (int j = 0; j < NT; j++) {
        ColumnOperands own = table[pair_at(group / 2 + l * NT + j)];
        own.start[0] = own.start[1] = 0;  // it is in the sums
#pragma unroll
        for (int h = 0; h < 2; h++) {
          int v[2] = {sum[j][2 * h], sum[j][2 * h + 1]};
          finish(epilogue, scalars, own, v, 0, 0, group + l * 2 * NT + 2 * j, 2);
          const u32 bytes = __byte_perm(v[0], v[1], 0x0040);
          words[h][j / 2] = j % 2 ? __byte_perm(words[h][j / 2], bytes, 0x5410) : bytes;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int n = group + l * 2 * NT;
        if (u + quad + h * 8 >= count) continue;
        if (POOL)
          store_bytes(made + (row[h] * OW + column[h]) * OC + n, words[h]);
        else
          store_bytes(y + at.n * y_ns + (at.top + row[h]) * y_rs + column[h] * y_cs + n, words[h]);
      }
    }
    __syncthreads();
#if POOL
    constexpr int PARTS = OC / 16;
    for (int k = thread; k < min(ROWS, PH - at.top) * PW * PARTS; k += THREADS) {
      const int pixel = k / PARTS, row = pixel / PW, column = pixel - row * PW, c = k % PARTS * 16,
                high_first = 2 * (at.top + row) - PPT, wide_first = 2 * column - PPL;
      uint4 most = make_uint4(0, 0, 0, 0);
      bool fresh = true;
#pragma unroll
      for (int i = 0; i < PKH; i++)
#pragma unroll
        for (int j = 0; j < PKW; j++) {
          const int h = high_first + i, at_column = wide_first + j;
          if (u32(h) >= u32(OH) || u32(at_column) >= u32(OW)) continue;
          const uint4 v = *(const uint4*)(made + ((h - at.first) * OW + at_column) * OC + c);
          most = fresh ? v
                       : make_uint4(
                             larger_bytes<Result>(most.x, v.x), larger_bytes<Result>(most.y, v.y),
                             larger_bytes<Result>(most.z, v.z), larger_bytes<Result>(most.w, v.w));
          fresh = false;
        }
      *(uint4*)(y + at.n * y_ns + (at.top + row) * y_rs + column * y_cs + c) = most;
    }
#endif
  }
}
