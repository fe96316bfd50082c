// Keys divided among the PARTS blocks of a cluster: what each has of the same rows becomes one
// result.

constexpr int kJoined = HEAD_V % 4 == 0 ? 4 : 1;  // neighbouring elements that a thread joins

// Weighted sums of values, largest scores (in units of log2) and sums of weights.
template <int ROWS>
struct alignas(16) Part {
  float out[ROWS * HEAD_V], top[ROWS], sum[ROWS];
};

DEV u32 in_block(const float* mine, int block) {
  u32 at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(u32(__cvta_generic_to_shared(mine))), "r"(block));
  return at;
}
DEV void of_block(float (&v)[1], const float* mine, int block) {
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(v[0])
               : "r"(in_block(mine, block))
               : "memory");
}
DEV void of_block(float (&v)[4], const float* mine, int block) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(in_block(mine, block))
               : "memory");
}
DEV float weight_of(float top, float best) { return top == -INF ? 0.f : exp2f(top - best); }

// put(row, column, value) for every element of the first `rows` rows, each by one thread of the
// cluster.
template <int ROWS, class Put>
DEV void join_parts(const Part<ROWS>& part, int rows, Put put) {
  cluster_arrive();
  cluster_wait();
  for (int u = (int(blockIdx.x) % PARTS * THREADS + threadIdx.x) * kJoined; u < rows * HEAD_V;
       u += PARTS * THREADS * kJoined) {
    const int row = u / HEAD_V;
    float top[PARTS][1], sums[PARTS][1], outs[PARTS][kJoined], best = -INF, sum = 0.f,
                                                               out[kJoined] = {};
#pragma unroll
    for (int p = 0; p < PARTS; p++)
      of_block(top[p], part.top + row, p), of_block(sums[p], part.sum + row, p),
          of_block(outs[p], part.out + u, p);
#pragma unroll
    for (int p = 0; p < PARTS; p++) best = fmaxf(best, top[p][0]);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const float weight = weight_of(top[p][0], best);
      sum += sums[p][0] * weight;
#pragma unroll
      for (int e = 0; e < kJoined; e++) out[e] += outs[p][e] * weight;
    }
    const float inverse = inverse_of(sum);
#pragma unroll
    for (int e = 0; e < kJoined; e++) put(row, u % HEAD_V + e, normalized(out[e], inverse));
  }
  cluster_arrive();  // what others read of this block's memory must stay until then
  cluster_wait();
}
