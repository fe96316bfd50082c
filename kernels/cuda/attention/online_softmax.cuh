// The largest scores of two rows of a fragment, or what was given.
template <int KEYS>
DEV void largest(const float (&s)[KEYS][4], float (&best)[2]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int n = 0; n < KEYS; n++) best[e] = fmaxf(best[e], fmaxf(s[n][2 * e], s[n][2 * e + 1]));
    best[e] = fmaxf(best[e], __shfl_xor_sync(FULL_WARP, best[e], 1));
    best[e] = fmaxf(best[e], __shfl_xor_sync(FULL_WARP, best[e], 2));
  }
}
// Scores of two rows of a fragment become weights: exp2 of what they have more than the rows'
// largest so far, of which earlier sums and outputs are made too.
template <int KEYS, int COLUMNS>
DEV void weigh(float (&s)[KEYS][4], float (&out)[COLUMNS][4], float (&top)[2], float (&sum)[2],
               const float (&best)[2]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const float shift = best[e] == -INF ? 0.f : best[e], shrink = exp2_approximate(top[e] - shift);
    top[e] = best[e];
    sum[e] *= shrink;
#pragma unroll
    for (int n = 0; n < KEYS; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[n][2 * e + c] = exp2_approximate(s[n][2 * e + c] - shift);
        sum[e] += s[n][2 * e + c];
      }
#pragma unroll
    for (int d = 0; d < COLUMNS; d++) out[d][2 * e] *= shrink, out[d][2 * e + 1] *= shrink;
  }
}
template <int KEYS, int COLUMNS>
DEV void weigh(float (&s)[KEYS][4], float (&out)[COLUMNS][4], float (&top)[2], float (&sum)[2]) {
  float best[2] = {top[0], top[1]};
  largest(s, best);
  weigh(s, out, top, sum, best);
}
