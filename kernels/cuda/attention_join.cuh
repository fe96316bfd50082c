// Joins what the blocks of attention_few.cuh have of the same rows, where these are more than a cluster holds: a block for every row.
constexpr int kPieces = HEAD_V / kJoined;
constexpr int kAcross = kPieces <= 8 ? 8 : kPieces <= 16 ? 16 : kPieces <= 32 ? 32 : kPieces <= 64 ? 64 : kPieces <= 128 ? 128 : 256;  // threads beside each other

DEV void attend(const Attention& g, int parts) {
  typedef Vec<float, kJoined> Piece;
  constexpr int kGroups = THREADS / kAcross, kMost = (MOST_PARTS + kGroups - 1) / kGroups, kTogether = kMost < 8 ? kMost : 8;
  __shared__ float tops[kGroups], sums[kGroups];
  __shared__ Piece outs[THREADS];
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS, item = blockIdx.x, head = item / tiles, i = blockIdx.y;
  const int row = item % tiles * ROWS + i, mine = threadIdx.x / kAcross, column = threadIdx.x % kAcross;
  const int b = head / g.KVH, h = head % g.KVH * group + row / g.S, s = row % g.S;
  T* const y = g.y + b * g.y_b + h * g.y_h + s * g.y_s + threadIdx.x;
  const Part<ROWS>* of = (const Part<ROWS>*)g.q + i64(item) * parts;
  next_may_start();
  wait_with(y, of);
  if (row >= rows) return;
  // Each group of threads has its parts, of which as many as fit its registers are under way together.
  float top = -INF, sum = 0.f;
  Piece out{};
  for (int first = mine; first < parts; first += kTogether * kGroups) {
    float part_top[kTogether], part_sum[kTogether], best = top;
    Piece piece[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; k++) {
      const int p = first + k * kGroups;
      const Part<ROWS>& part = of[min(p, parts - 1)];
      part_top[k] = p < parts ? part.top[i] : -INF, part_sum[k] = part.sum[i];
      piece[k] = load<kJoined>(part.out + i * HEAD_V + min(column, kPieces - 1) * kJoined);
    }
#pragma unroll
    for (int k = 0; k < kTogether; k++) best = fmaxf(best, part_top[k]);
    const float shrink = weight_of(top, best);
    top = best, sum *= shrink;
#pragma unroll
    for (int e = 0; e < kJoined; e++) out.v[e] *= shrink;
#pragma unroll
    for (int k = 0; k < kTogether; k++) {
      if (first + k * kGroups >= parts) continue;
      const float weight = weight_of(part_top[k], best);
      sum = fmaf(part_sum[k], weight, sum);
#pragma unroll
      for (int e = 0; e < kJoined; e++) out.v[e] = fmaf(piece[k].v[e], weight, out.v[e]);
    }
  }
  outs[threadIdx.x] = out;
  if (column == 0) tops[mine] = top, sums[mine] = sum;
  __syncthreads();
  if (threadIdx.x >= HEAD_V) return;
  float best = -INF, total = 0.f, value = 0.f;
#pragma unroll
  for (int t = 0; t < kGroups; t++) best = fmaxf(best, tops[t]);
#pragma unroll
  for (int t = 0; t < kGroups; t++) {
    const float weight = weight_of(tops[t], best);
    total = fmaf(sums[t], weight, total);
    value = fmaf(outs[t * kAcross + threadIdx.x / kJoined].v[threadIdx.x % kJoined], weight, value);
  }
  from_float(*y, value * inverse_of(total));
}
