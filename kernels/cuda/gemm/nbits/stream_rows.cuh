// Few rows by weights of a few bits (gemm/nbits/layout.cuh): y = epilogue(x W + bias), bound by the
// bandwidth at which weights are read, each once.
//
// A CTA computes every gridDim.x-th tile of 16 columns. Its warps divide the items of a tile, GROUP
// pieces along k each. A lane copies its own part of AHEAD items to shared memory ahead of what it
// multiplies, across tiles and before the launch before this one has ended. Weights are fragments A
// of mma.sync, as in few_rows.cuh; rows, held in shared memory, are fragments B.
//
// GATED: weights have 2 N columns; y[m, n] = gated(v[m, n], v[m, N + n]) of what `finish` makes of
// the products. PRENORM: rows are (x - mean) / sqrt(variance + eps) * (gamma + plus) + beta,
// rounded to their type (PRENORM_RMS: no mean is taken off).
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
#define PARAMETERS                                                                             \
  const T *x, const uint4 *w, const S *scales, const void *zeros, T *y, int M, int N, i64 ldx, \
      i64 ldy, i64 ldr
#define RESIDUAL 0
#define GATED 0
#define PRENORM 0
#define BETA 0
#define PRENORM_RMS 1
constexpr int K = 2048, WARPS = 8, ROWS = 1;  // ROWS: of x, at most: 1, 2, 4, 8
constexpr int GROUP = 2, AHEAD = 4;           // pieces of an item, items of a warp in flight
constexpr bool WHOLE = true;                  // k is a multiple of an item's
constexpr bool EARLY = true;         // weights, gamma and beta are constant: no wait before these
constexpr bool ROWS_ALIGNED = true;  // rows of x are whole vectors of 16 bytes, and aligned
constexpr bool R_VECTOR = true;      // rows of the residual are aligned to 16 bytes
#endif                               // GENERATED
#include "gemm/nbits/fragments.cuh"

// Scales of a piece in units of 16 bytes, zeros.
constexpr int PIECE = 512, SCALE_UNITS = SUBS * int(sizeof(S)), ZERO_UNITS = ZEROS ? SUBS : 0;
constexpr int SCALES_AT = GROUP * PIECE, ZEROS_AT = SCALES_AT + 16 * GROUP * SCALE_UNITS,
              ITEM = ZEROS_AT + 16 * GROUP * ZERO_UNITS, RING = AHEAD * WARPS * ITEM;
constexpr int THREADS = 32 * WARPS, VECTOR = 16 / sizeof(T), PITCH = 20, HALVES = GATED ? 2 : 1;
// A warp finishes a tile: a lane has EACH pairs of columns, and SHARE lanes divide the warps' sums.
constexpr int PAIRS = 8 * ROWS, EACH = (PAIRS + 31) / 32, LANES = PAIRS < 32 ? 32 / PAIRS : 1,
              SHARE = LANES < WARPS ? LANES : WARPS;

// Sums of warps: of a tile and the next one; of rows, for their norms.
struct alignas(16) Sums {
  float of[2][WARPS][HALVES][ROWS][PITCH], rows[2][ROWS][WARPS];
};

// Pieces and blocks of a tile, what all warps have at a time.
constexpr int PIECES = (K + DEPTH - 1) / DEPTH,
              BLOCKS = BLOCK ? (K + BLOCK - 1) / (BLOCK + !BLOCK) : 1, STEP = WARPS * GROUP;
// Of rows in shared memory, in elements: those of lanes that read at once lie in different banks.
constexpr int ROW_PITCH = (K + 127) / 128 * 128 + 32;

// Copies rows of x to shared memory, zeros behind them, and where there are no rows.
DEV void fill(T* to, const T* x, int M, i64 ldx) {
  if (ROWS_ALIGNED) {
    constexpr int BATCH = 4;
    const int units = ROW_PITCH / VECTOR;
    for (int at = threadIdx.x; at < ROWS * units; at += BATCH * THREADS) {
      uint4 v[BATCH];
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int u = at + b * THREADS, m = ROWS > 1 ? u / units : 0, k = (u - m * units) * VECTOR;
        v[b] = make_uint4(0, 0, 0, 0);
        if (m < min(M, ROWS) && k < K) v[b] = *(const uint4*)(x + m * ldx + k);
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++)
        if (at + b * THREADS < ROWS * units) ((uint4*)to)[at + b * THREADS] = v[b];
    }
  } else {
    for (int u = threadIdx.x; u < ROWS * ROW_PITCH; u += THREADS) {
      const int m = ROWS > 1 ? u / ROW_PITCH : 0, k = u - m * ROW_PITCH;
      T v = {};
      if (m < M && k < K) v = x[m * ldx + k];
      to[u] = v;
    }
  }
}

#if PRENORM
// Normalises rows in shared memory, of K elements, a multiple of VECTOR. sums: of a row's warps.
DEV void normalise(T* rows, const T* gamma, const T* beta, float (&sums)[2][ROWS][WARPS], float eps,
                   float plus) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  // The sum over a row of f of its elements.
  auto sum_of = [&](int which, auto f) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      float sum = 0.f;
      for (int k = threadIdx.x * VECTOR; k < K; k += THREADS * VECTOR) {
        const Vec<T, VECTOR> v = load<VECTOR>(rows + m * ROW_PITCH + k);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum += f(m, to_float(v.v[e]));
      }
#pragma unroll
      for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, o);
      if (lane == 0) sums[which][m][warp] = sum;
    }
    __syncthreads();
  };
  auto mean_of = [&](int which, int m) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[which][m][w];
    return sum / float(K);
  };
  float mean[ROWS] = {};
  if (!PRENORM_RMS) {
    sum_of(0, [&](int, float v) { return v; });
#pragma unroll
    for (int m = 0; m < ROWS; m++) mean[m] = mean_of(0, m);
  }
  sum_of(1, [&](int m, float v) { return (v - mean[m]) * (v - mean[m]); });
  for (int k = threadIdx.x * VECTOR; k < K; k += THREADS * VECTOR) {
    const Vec<T, VECTOR> g = load<VECTOR>(gamma + k);
    Vec<T, VECTOR> b{};
    if (BETA) b = load<VECTOR>(beta + k);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      const float scale = rsqrtf(mean_of(1, m) + eps);
      Vec<T, VECTOR> v = load<VECTOR>(rows + m * ROW_PITCH + k);
#pragma unroll
      for (int e = 0; e < VECTOR; e++) {
        float u = (to_float(v.v[e]) - mean[m]) * scale * (to_float(g.v[e]) + plus);
        if (BETA) u += to_float(b.v[e]);
        from_float(v.v[e], u);
      }
      store<VECTOR>(rows + m * ROW_PITCH + k, v);
    }
  }
  __syncthreads();
}
#endif

#if RESIDUAL
#define RESIDUAL_VALUES , r[i]
#else
#define RESIDUAL_VALUES
#endif

// sum += blocks SUB.. of a piece.
template <int SUB>
DEV void add_blocks(float (&sum)[4], const u32 (&words)[4], const Vec<S, 2> (&scales)[SUBS],
                    const u16 (&zeros)[SUBS], const Rows (&x)[1]) {
  if constexpr (SUB < SUBS) {
    const u32 zero = ZEROS ? zeros[SUB] & 255 : ZERO, other = ZEROS ? zeros[SUB] >> 8 : ZERO;
    float part[1][4] = {};
    add_steps<SUB * SUB_STEPS, SUB_STEPS>(part, words, zero, other, x);
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = fmaf(part[0][j], to_float(scales[SUB].v[j / 2]), sum[j]);
    add_blocks<SUB + 1>(sum, words, scales, zeros, x);
  }
}

// Of block `at` of those of the pieces from `piece` on: of a tile.
DEV int block_of(int piece, int at) {
  const int block = SUBS > 1 ? piece * SUBS + at : blocks_before((piece + at) * DEPTH);
  return WHOLE ? block : min(block, BLOCKS - 1);
}

extern "C" __global__ void __launch_bounds__(THREADS) stream_rows(PARAMETERS) {
  extern __shared__ uint4 shared[];
  Sums& sums = *(Sums*)shared;
  char* const ring = (char*)shared + sizeof(Sums);
  T* const rows = (T*)(ring + RING);
#if PRENORM
  T *const own_gamma = rows + ROWS * ROW_PITCH, *const own_beta = own_gamma + K;
#endif
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int tiles = (N + 15) / 16;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};

  // Copies of a lane: the piece that it copies next, and where that is.
  int tile_ahead = blockIdx.x, piece_ahead = warp * GROUP, half_ahead = 0;
  if (piece_ahead >= PIECES) tile_ahead = tiles;
  const uint4* next;
  auto begin = [&] {
    next = w + (i64(tile_ahead + half_ahead * tiles) * PIECES + piece_ahead) * 32 + lane;
  };
  begin();
  const u32 lane_ring = smem_address(ring) + warp * ITEM + 16 * lane;
  auto copy = [&](int slot) {
    if (tile_ahead < tiles) {
      const u32 to = lane_ring + slot * (WARPS * ITEM);
#pragma unroll
      for (int q = 0; q < GROUP; q++)
        if (WHOLE || piece_ahead + q < PIECES) cp_async(to + q * PIECE, next + q * 32, 16);
      next += STEP * 32;
      const int before = (tile_ahead + half_ahead * tiles) * BLOCKS;
#pragma unroll
      for (int u = 0; u < GROUP * SCALE_UNITS; u += 32)
        if (const int at = u + lane; at < GROUP * SCALE_UNITS) {
          constexpr int UNITS = int(sizeof(S));  // of a block
          const int block = block_of(piece_ahead, at / UNITS);
          cp_async(to + SCALES_AT + 16 * u,
                   (const uint4*)scales + i64(before + block) * UNITS + at % UNITS, 16);
        }
      if (lane < GROUP * ZERO_UNITS)
        cp_async(to + ZEROS_AT, (const uint4*)zeros + before + block_of(piece_ahead, lane), 16);
      piece_ahead += STEP;
      if (piece_ahead >= PIECES) {
        piece_ahead = warp * GROUP, half_ahead = (half_ahead + 1) % HALVES;
        if (half_ahead == 0) tile_ahead += gridDim.x;
        begin();
      }
    }
    cp_async_commit();
  };
  if (!EARLY) pdl_wait();
#if PRENORM
  for (int k = threadIdx.x * VECTOR; k < K; k += THREADS * VECTOR) {
    cp_async(smem_address(own_gamma + k), gamma + k, 16);
#if BETA
    cp_async(smem_address(own_beta + k), beta + k, 16);
#endif
  }
  cp_async_commit();
#endif
#pragma unroll
  for (int s = 0; s < AHEAD; s++) copy(s);
  for (int tile = blockIdx.x + threadIdx.x / 2 * gridDim.x; tile < tiles;
       tile += THREADS / 2 * gridDim.x)
    if (const int n = 16 * tile + threadIdx.x % 2 * 8; n < N)
#pragma unroll
      for (int half = 0; half < HALVES; half++) touch_columns(epilogue, n + half * N);
  if (EARLY) pdl_wait();
  // Earlier, CTAs of the launches behind would come unevenly onto the multiprocessors.
  pdl_launch_dependents();
  fill(rows, x, M, ldx);
#if PRENORM
  cp_async_wait<AHEAD>();
  __syncthreads();
  normalise(rows, own_gamma, own_beta, sums.rows, eps, plus);
#else
  __syncthreads();
#endif

  // Which pair of columns a lane finishes, of which row.
  const int column = lane % 8 * 2;
  auto row_of = [&](int i) { return lane / 8 % ROWS + i * 4; };
  int slot = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn++) {
    const int n = tile * 16 + column, count = min(2, N - n);
    const bool finishes = warp == turn % WARPS;
#if RESIDUAL
    float r[EACH][2] = {};
    if (finishes && count > 0)
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (row_of(i) < M) load_columns<R_VECTOR>(res + row_of(i) * ldr + n, count, r[i]);
#endif
#pragma unroll 1
    for (int half = 0; half < HALVES; half++) {
      float sum[4] = {};
#pragma unroll 1
      for (int piece = warp * GROUP; piece < PIECES; piece += STEP) {
        cp_async_wait<AHEAD - 1>();
        __syncwarp();  // scales are those of other lanes, too
        const char* const from = ring + (slot * WARPS + warp) * ITEM;
        const T* const row = rows + g % ROWS * ROW_PITCH + piece * DEPTH;
        uint4 word[GROUP * PIECE / 512];
#pragma unroll
        for (int q = 0; q < GROUP * PIECE / 512; q++)
          word[q] = *(const uint4*)(from + 512 * q + 16 * lane);
        Vec<S, 2> scale[GROUP][SUBS];
        u16 zero[GROUP][SUBS];
#pragma unroll
        for (int q = 0; q < GROUP; q++)
#pragma unroll
          for (int s = 0; s < SUBS; s++) {
            const int at = 8 * (q * SUBS + s) + g;
            scale[q][s] = ((const Vec<S, 2>*)(from + SCALES_AT))[at];
            zero[q][s] = ZEROS ? ((const u16*)(from + ZEROS_AT))[at] : 0;
          }
        __syncwarp();
        copy(slot);
#pragma unroll
        for (int q = 0; q < GROUP; q++) {
          if (!WHOLE && piece + q >= PIECES) break;
          Rows b[1];
#pragma unroll
          for (int j = 0; j < RUNS; j++)
            split(*(const Run*)(row + q * DEPTH + first_term(RUN == 8 ? 2 * j : j, t)), b[0].b[j]);
          const u32 words[4] = {word[q].x, word[q].y, word[q].z, word[q].w};
          add_blocks<0>(sum, words, scale[q], zero[q], b);
        }
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
      }
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (2 * t + j % 2 < ROWS)
          sums.of[turn % 2][warp][half][2 * t + j % 2][g + j / 2 * 8] = sum[j];
    }
    __syncthreads();
    if (finishes) {
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        const int m = row_of(i);
        float v[HALVES][2] = {};
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
#pragma unroll
          for (int k = 0; k < WARPS / SHARE; k++) {
            const int part = k * SHARE + lane / PAIRS % SHARE;
            const float2 of = *(const float2*)&sums.of[turn % 2][part][half][m][column];
            v[half][0] += of.x, v[half][1] += of.y;
          }
#pragma unroll
          for (int o = PAIRS; o < PAIRS * SHARE; o *= 2)
#pragma unroll
            for (int e = 0; e < 2; e++) v[half][e] += __shfl_xor_sync(FULL_WARP, v[half][e], o);
        }
        if (m >= M || count <= 0) continue;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
          finish(epilogue, v[half], m, m * ldr, n + half * N, count RESIDUAL_VALUES);
#if GATED
#pragma unroll
        for (int e = 0; e < 2; e++) v[0][e] = gated(v[0][e], v[1][e]);
#endif
        if (lane < PAIRS)
          for (int e = 0; e < count; e++) from_float(y[m * ldy + n + e], v[0][e]);
      }
    }
  }
}
