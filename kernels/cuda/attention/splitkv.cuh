// Split-KV (flash-decoding): CTAs or warps each have a part of the keys of the same rows; then
// the partial results are combined.
#pragma once
#include "attention/problem.cuh"

constexpr int kVector = HEAD_V % 4 == 0 ? 4 : 1;  // neighbouring elements per thread

// Partial results of rows: unnormalised outputs, maximum scores (in units of log2), sums of
// weights.
template <int ROWS>
struct alignas(16) Partial {
  float out[ROWS * HEAD_V], row_max[ROWS], sum[ROWS];
};

DEV float rescale_factor(float row_max, float best) {
  return row_max == -INF ? 0.f : exp2f(row_max - best);
}

// Combines the partial results `of` of WARPS warps for the first `rows` rows. FINAL: calls put(row,
// column, value) for every element; otherwise stores the combined partial result in `to`.
template <int WARPS, bool FINAL, int ROWS, class Put>
DEV void combine_warps(const Partial<ROWS>* of, Partial<ROWS>& to, int rows, Put put) {
  for (int u = threadIdx.x; u < rows * HEAD_V; u += THREADS) {
    const int row = u / HEAD_V;
    float best = -INF, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, of[w].row_max[row]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = rescale_factor(of[w].row_max[row], best);
      total += of[w].sum[row] * weight, value += of[w].out[u] * weight;
    }
    if (FINAL) {
      put(row, u % HEAD_V, normalized(value, reciprocal_of(total)));
      continue;
    }
    to.out[u] = value;
    if (u % HEAD_V == 0) to.row_max[row] = best, to.sum[row] = total;
  }
}

DEV u32 cluster_address(const float* mine, int block) {
  u32 at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(u32(__cvta_generic_to_shared(mine))), "r"(block));
  return at;
}
DEV void load_cluster(float (&v)[1], const float* mine, int block) {
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(v[0])
               : "r"(cluster_address(mine, block))
               : "memory");
}
DEV void load_cluster(float (&v)[4], const float* mine, int block) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(cluster_address(mine, block))
               : "memory");
}

// Combines the partial results of the CTAS CTAs of a cluster, each in its own `part` in shared
// memory, for the first `rows` rows. put(row, column, value) is called for every element, by one of
// the COUNT threads of each CTA.
template <int CTAS, int COUNT, int ROWS, class Put>
DEV void combine_cluster(const Partial<ROWS>& part, int rows, Put put) {
  cluster_arrive();
  cluster_wait();
  for (int u = (int(blockIdx.x) % CTAS * COUNT + threadIdx.x) * kVector; u < rows * HEAD_V;
       u += CTAS * COUNT * kVector) {
    const int row = u / HEAD_V;
    float row_max[CTAS][1], sums[CTAS][1], outs[CTAS][kVector];
    float best = -INF, sum = 0.f, out[kVector] = {};
#pragma unroll
    for (int p = 0; p < CTAS; p++)
      load_cluster(row_max[p], part.row_max + row, p), load_cluster(sums[p], part.sum + row, p),
          load_cluster(outs[p], part.out + u, p);
#pragma unroll
    for (int p = 0; p < CTAS; p++) best = fmaxf(best, row_max[p][0]);
#pragma unroll
    for (int p = 0; p < CTAS; p++) {
      const float weight = rescale_factor(row_max[p][0], best);
      sum += sums[p][0] * weight;
#pragma unroll
      for (int e = 0; e < kVector; e++) out[e] += outs[p][e] * weight;
    }
    const float inverse = reciprocal_of(sum);
#pragma unroll
    for (int e = 0; e < kVector; e++) put(row, u % HEAD_V + e, normalized(out[e], inverse));
  }
  cluster_arrive();  // other CTAs read this one's shared memory until then
  cluster_wait();
}
