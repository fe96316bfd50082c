// Joins what the blocks of attention_few.cuh have of the same rows, where these are more than a cluster holds: a block for every row.
constexpr int kAcross = HEAD_V <= 32 ? 32 : HEAD_V <= 64 ? 64 : HEAD_V <= 128 ? 128 : 256;  // threads beside each other; each such group has its parts

DEV void attend(const Attention& g, int parts) {
  after_previous();
  __shared__ float weights[MOST_PARTS], outs[THREADS], shared[32];
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS, item = blockIdx.x, head = item / tiles, i = blockIdx.y;
  const int row = item % tiles * ROWS + i, column = threadIdx.x % kAcross;
  if (row >= rows) return;
  const Part<ROWS>* of = (const Part<ROWS>*)g.q + i64(item) * parts;
  const bool real = threadIdx.x < parts;
  const float top = real ? of[threadIdx.x].top[i] : -INF, best = join_threads<Largest, THREADS>(top, shared), weight = weight_of(top, best);
  if (real) weights[threadIdx.x] = weight;
  const float sum = join_threads<Sum, THREADS>(real ? of[threadIdx.x].sum[i] * weight : 0.f, shared);
  float out = 0.f;
  if (column < HEAD_V)
#pragma unroll 8
    for (int p = threadIdx.x / kAcross; p < parts; p += THREADS / kAcross) out = fmaf(of[p].out[i * HEAD_V + column], weights[p], out);
  outs[threadIdx.x] = out;
  __syncthreads();
  if (threadIdx.x >= HEAD_V) return;
#pragma unroll
  for (int t = kAcross; t < THREADS; t += kAcross) out += outs[t + column];
  const int b = head / g.KVH, h = head % g.KVH * group + row / g.S, s = row % g.S;
  from_float(g.y[b * g.y_b + h * g.y_h + s * g.y_s + column], out * inverse_of(sum));
}
