// Keys divided among the warps of a block. Follows attention/splitkv_cluster.cuh.

// What the WARPS warps of a block have of the first `rows` rows: all there is, then put(row,
// column, value) for every element; else into `to`.
template <int ROWS, bool ALL, class Put>
DEV void join_warps(const Part<ROWS>* of, Part<ROWS>& to, int rows, Put put) {
  for (int u = threadIdx.x; u < rows * HEAD_V; u += THREADS) {
    const int row = u / HEAD_V;
    float best = -INF, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, of[w].top[row]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = weight_of(of[w].top[row], best);
      total += of[w].sum[row] * weight, value += of[w].out[u] * weight;
    }
    if (ALL) {
      put(row, u % HEAD_V, normalized(value, inverse_of(total)));
      continue;
    }
    to.out[u] = value;
    if (u % HEAD_V == 0) to.top[row] = best, to.sum[row] = total;
  }
}
