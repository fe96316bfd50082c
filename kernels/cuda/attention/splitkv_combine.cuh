// Combines the partial results that the CTAs of another kernel stored at `q`; a CTA has some
// columns of a row. That kernel's `blocks` CTAs have equal shares of the keys of all items in
// order; an item is ROWS rows that read the same keys. The partial result of a CTA for an item is
// stored at index CTA + item.
#pragma once
#ifndef GENERATED
#define PARAMETERS OPERANDS, int blocks
constexpr int ROWS = 16;     // of a partial result
constexpr int COLUMNS = 64;  // of a CTA; THREADS / (COLUMNS / kVector) is an integer
constexpr int TOGETHER = 8;  // loads of a thread in flight
#endif                       // GENERATED
#include "attention/splitkv.cuh"

constexpr int kPieces = HEAD_V / kVector, kAcross = COLUMNS / kVector;  // neighbouring threads

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_combine(PARAMETERS) {
  const Attention g = ATTENTION;
  typedef Vec<float, kVector> Piece;
  constexpr int kGroups = THREADS / kAcross;
  __shared__ float row_maxima[kGroups], sums[kGroups];
  __shared__ Piece outs[THREADS];
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS,
            item = blockIdx.x, head = item / tiles, i = blockIdx.y;
  const int row = item % tiles * ROWS + i, mine = threadIdx.x / kAcross,
            column = threadIdx.x % kAcross;
  const int first_column = blockIdx.z * COLUMNS, at = first_column / kVector + column;
  const int b = head / g.KVH, h = head % g.KVH * group + row / g.S, s = row % g.S;
  T* const out_row = g.y + b * g.y_b + h * g.y_h + s * g.y_s + first_column;
  const int first_block = i64(item) * blocks / gridDim.x,
            parts = (i64(item + 1) * blocks - 1) / gridDim.x - first_block + 1;
  const Partial<ROWS>* of = (const Partial<ROWS>*)g.q + first_block + item;
  pdl_launch_dependents();
  pdl_wait_after(out_row, of);
  if (row >= rows) return;
  // Each group of threads has some of the partial results, with as many loads in flight as its
  // registers hold.
  float row_max = -INF, sum = 0.f;
  Piece out{};
  for (int first = mine; first < parts; first += TOGETHER * kGroups) {
    float part_top[TOGETHER], part_sum[TOGETHER], best = row_max;
    Piece piece[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      const int p = first + k * kGroups;
      const Partial<ROWS>& part = of[min(p, parts - 1)];
      part_top[k] = p < parts ? part.row_max[i] : -INF, part_sum[k] = part.sum[i];
      piece[k] = load<kVector>(part.out + i * HEAD_V + min(at, kPieces - 1) * kVector);
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) best = fmaxf(best, part_top[k]);
    const float rescale = rescale_factor(row_max, best);
    row_max = best, sum *= rescale;
#pragma unroll
    for (int e = 0; e < kVector; e++) out.v[e] *= rescale;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      if (first + k * kGroups >= parts) continue;
      const float weight = rescale_factor(part_top[k], best);
      sum = fmaf(part_sum[k], weight, sum);
#pragma unroll
      for (int e = 0; e < kVector; e++) out.v[e] = fmaf(piece[k].v[e], weight, out.v[e]);
    }
  }
  outs[threadIdx.x] = out;
  if (column == 0) row_maxima[mine] = row_max, sums[mine] = sum;
  __syncthreads();
  for (int e = threadIdx.x; e < COLUMNS && first_column + e < HEAD_V; e += THREADS) {
    float best = -INF, total = 0.f, value = 0.f;
#pragma unroll
    for (int t = 0; t < kGroups; t++) best = fmaxf(best, row_maxima[t]);
#pragma unroll
    for (int t = 0; t < kGroups; t++) {
      const float weight = rescale_factor(row_maxima[t], best);
      total = fmaf(sums[t], weight, total);
      value = fmaf(outs[t * kAcross + e / kVector].v[e % kVector], weight, value);
    }
    from_float(out_row[e], normalized(value, reciprocal_of(total)));
  }
}
