// Online softmax of two rows of an mma.sync fragment; four neighbouring lanes share a row.
#pragma once
#include "attention/problem.cuh"

// Maximum of the scores of two rows and of the given values.
template <int KEYS>
DEV void reduce_max(const float (&s)[KEYS][4], float (&best)[2]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int n = 0; n < KEYS; n++) best[e] = fmaxf(best[e], fmaxf(s[n][2 * e], s[n][2 * e + 1]));
    best[e] = fmaxf(best[e], __shfl_xor_sync(FULL_WARP, best[e], 1));
    best[e] = fmaxf(best[e], __shfl_xor_sync(FULL_WARP, best[e], 2));
  }
}
// Replaces scores by weights exp2(score - best), where best is the maximum of the rows so far;
// rescales the sums and outputs of earlier tiles.
template <int KEYS, int COLUMNS>
DEV void softmax_step(float (&s)[KEYS][4], float (&out)[COLUMNS][4], float (&row_max)[2],
                      float (&sum)[2], const float (&best)[2]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const float shift = best[e] == -INF ? 0.f : best[e],
                rescale = exp2_approximate(row_max[e] - shift);
    row_max[e] = best[e];
    sum[e] *= rescale;
#pragma unroll
    for (int n = 0; n < KEYS; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[n][2 * e + c] = exp2_approximate(s[n][2 * e + c] - shift);
        sum[e] += s[n][2 * e + c];
      }
#pragma unroll
    for (int d = 0; d < COLUMNS; d++) out[d][2 * e] *= rescale, out[d][2 * e + 1] *= rescale;
  }
}
// The two rows of a thread, s and s + 8.
struct RowPair {
  int see[2], least;    // keys visible to each, and to the warp's first row
  int first[2], begin;  // the first visible key of each, and of the warp's last row
  i64 mask[2];          // offsets of their masks
  float scale, fill;
  template <class Tile>
  METHOD RowPair(const Attention& g, const Tile& tile, int s, int warp) {
    see[0] = visible_keys(g, s), see[1] = visible_keys(g, s + 8), least = visible_keys(g, warp);
    first[0] = first_key(g, s), first[1] = first_key(g, s + 8), begin = first_key(g, warp + 15);
    scale = score_scale(g), fill = to_log2(g.fill);
    mask[0] = tile.mask_row(g, s), mask[1] = tile.mask_row(g, s + 8);
  }
  // Scales and masks q k^T in place. The thread's first key is t0; the tile ends at `end`.
  template <int KEYS>
  METHOD void scale_and_mask(const Attention& g, float (&s)[KEYS][4], int t0, int end) const {
    // a key of the tile may be hidden from a row of the warp
    const bool edge = end > least || (WINDOW && t0 < begin);
#pragma unroll
    for (int n = 0; n < KEYS; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int t = t0 + n * 8 + (e & 1);
        float x = capped(s[n][e] * scale);
        if (MASK && t < g.Tk) x = masked(x, g.mask, mask[e >> 1] + t * g.m_k, fill);
        if (edge && (t >= see[e >> 1] || (WINDOW && t < first[e >> 1]))) x = -INF;
        s[n][e] = x;
      }
  }
};
// Sums over the four lanes of a row.
DEV float quad_allreduce_sum(float v) {
  v += __shfl_xor_sync(FULL_WARP, v, 1);
  return v + __shfl_xor_sync(FULL_WARP, v, 2);
}
