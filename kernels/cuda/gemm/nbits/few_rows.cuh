// Few rows by weights of a few bits: y = epilogue(x W + bias), bound by the bandwidth at which
// weights are read, each once for 8 ROW_TILES rows. A CTA has COLUMN_TILES tiles of 16 columns; its
// warps divide the pieces along k, as do the SPLIT CTAs of a cluster. Weights become fragments A of
// mma.sync in registers, as integers less their zeros, which is exact; sums over a block are
// multiplied by its scale in f32. Rows are fragments B; f32 is the sum of three bf16, so that
// products are exact (a row that holds an infinity gives NaN).
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define PARAMETERS                                                                           \
  const T *x, const uint4 *w, const S *scales, const void *zeros, T *y, int M, int N, int K, \
      i64 ldx, i64 ldy, i64 ldr
#define SPLIT 2
constexpr int ROW_TILES = 1, COLUMN_TILES = 1, WARPS = 8;
constexpr int AHEAD = 4;             // pieces in flight
constexpr bool EARLY = true;         // weights are constant: no wait before they are read
constexpr bool ROWS_ALIGNED = true;  // runs of a row are there as a whole, and aligned
#endif                               // GENERATED
#include "common/cluster_splitk.cuh"
#include "gemm/nbits/fragments.cuh"

constexpr int COLUMNS = 16 * COLUMN_TILES, ROWS = 8 * ROW_TILES, PITCH = COLUMNS + 4;

// What a lane has of a piece.
struct Piece {
  uint4 words[COLUMN_TILES];
  Vec<S, 2> scales[COLUMN_TILES][SUBS];
  u16 zeros[COLUMN_TILES][SUBS];
};
typedef float Sums[COLUMN_TILES][ROW_TILES][4];
template <int SUB>
DEV void add_blocks(Sums& sum, const Piece& piece, const Rows (&x)[ROW_TILES]) {
  if constexpr (SUB < SUBS) {
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; c++) {
      const uint4 w = piece.words[c];
      const u32 words[4] = {w.x, w.y, w.z, w.w}, zero = ZEROS ? piece.zeros[c][SUB] & 255 : ZERO,
                other = ZEROS ? piece.zeros[c][SUB] >> 8 : ZERO;
      float part[ROW_TILES][4] = {};
      add_steps<SUB * SUB_STEPS, SUB_STEPS>(part, words, zero, other, x);
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          sum[c][r][j] = fmaf(part[r][j], to_float(piece.scales[c][SUB].v[j / 2]), sum[c][r][j]);
    }
    add_blocks<SUB + 1>(sum, piece, x);
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(PARAMETERS) {
  __shared__ float sums[WARPS][ROWS][PITCH];
  pdl_launch_dependents();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, tile = blockIdx.x / SPLIT * COLUMN_TILES,
            row = blockIdx.y * ROWS;
  const int tiles = (N + 15) / 16, pieces = (K + DEPTH - 1) / DEPTH, blocks = blocks_of(K);
  const int share = (pieces + SPLIT - 1) / SPLIT, begin = part * share + warp,
            end = min(pieces, (part + 1) * share);
  auto fetch = [&](Piece& to, int piece) {
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; c++) {
      const i64 at = min(tile + c, tiles - 1);  // a tile that is not there is another
      if (piece >= end) continue;
      to.words[c] = w[(at * pieces + piece) * 32 + lane];
#pragma unroll
      for (int s = 0; s < SUBS; s++) {
        const i64 from = at * blocks + min(blocks_before(piece * DEPTH + s * BLOCK), blocks - 1);
        to.scales[c][s] = ((const Vec<S, 2>*)scales)[from * 8 + g];
        if (ZEROS) to.zeros[c][s] = ((const u16*)zeros)[from * 8 + g];
      }
    }
  };
  auto read = [&](Rows(&to)[ROW_TILES], int piece) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
      const int m = row + 8 * r + g;
      const T* const from = x + m * ldx;
#pragma unroll
      for (int j = 0; j < RUNS; j++) {
        const int k = piece * DEPTH + first_term(RUN == 8 ? 2 * j : j, t);
        Run run = {};
        if (ROWS_ALIGNED) {
          if (m < M && k < K && piece < end) run = *(const Run*)(from + k);
        } else {
#pragma unroll
          for (int e = 0; e < RUN; e++)
            if (m < M && k + e < K && piece < end) run.v[e] = from[k + e];
        }
        split(run, to[r].b[j]);
      }
    }
  };
  Sums sum = {};
  Piece ahead[AHEAD];
  if (!EARLY) pdl_wait();
#pragma unroll
  for (int s = 0; s < AHEAD; s++) fetch(ahead[s], begin + s * WARPS);
  if (EARLY) pdl_wait();
  Rows next[ROW_TILES];
  read(next, begin);
#pragma unroll 1
  for (int piece = begin; piece < end; piece += AHEAD * WARPS) {
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      const int at = piece + s * WARPS;
      if (at < end) {
        Rows now[ROW_TILES];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) now[r] = next[r];
        read(next, at + WARPS);
        add_blocks<0>(sum, ahead[s], now);
        fetch(ahead[s], at + AHEAD * WARPS);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; c++)
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        sums[warp][8 * r + 2 * t + j % 2][16 * c + g + j / 2 * 8] = sum[c][r][j];
  __syncthreads();
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += 32 * WARPS) {
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < WARPS; k++) total += sums[k][i / COLUMNS][i % COLUMNS];
    sums[0][i / COLUMNS][i % COLUMNS] = total;
  }
#if SPLIT > 1
  cluster_sync();
#endif
  if (part == 0)
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += 32 * WARPS) {
      const int m = row + i / COLUMNS, n = tile * 16 + i % COLUMNS;
      if (m >= M || n >= N) continue;
      float v[8] = {sums[0][i / COLUMNS][i % COLUMNS]};
#if SPLIT > 1
#pragma unroll
      for (int peer = 1; peer < SPLIT; peer++)
        v[0] += load_dsmem_f32(&sums[0][i / COLUMNS][i % COLUMNS], peer);
#endif
      finish(epilogue, v, m, m * ldr, n, 1);
      from_float(y[m * ldy + n], v[0]);
    }
#if SPLIT > 1
  cluster_sync();  // no CTA may exit while others read its sums
#endif
}
