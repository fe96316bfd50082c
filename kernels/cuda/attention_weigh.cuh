// Scores of two rows of a fragment become weights: exp2 of what they have more than the rows' largest so far, of which earlier sums and outputs are made too.
template <int KEYS, int COLUMNS> DEV void weigh(float (&s)[KEYS][4], float (&out)[COLUMNS][4], float (&top)[2], float (&sum)[2]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float best = top[e];
#pragma unroll
    for (int n = 0; n < KEYS; n++) best = fmaxf(best, fmaxf(s[n][2 * e], s[n][2 * e + 1]));
    best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
    best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
    const float shift = best == -INF ? 0.f : best, shrink = exp2_approximate(top[e] - shift);
    top[e] = best;
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
