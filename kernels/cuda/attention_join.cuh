// Joins what the blocks of attention_few.cuh have of the same rows, where these are more than a cluster holds: a block for every row.
constexpr int kPieces = HEAD_V / kJoined;
constexpr int kAcross = kPieces <= 8 ? 8 : kPieces <= 16 ? 16 : kPieces <= 32 ? 32 : kPieces <= 64 ? 64 : kPieces <= 128 ? 128 : 256;  // threads beside each other

DEV void attend(const Attention& g, int parts) {
  after_previous();
  typedef Vec<float, kJoined> Piece;
  __shared__ float weights[MOST_PARTS], shared[32];
  __shared__ Piece outs[THREADS];
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS, item = blockIdx.x, head = item / tiles, i = blockIdx.y;
  const int row = item % tiles * ROWS + i, column = threadIdx.x % kAcross;
  if (row >= rows) return;
  const Part<ROWS>* of = (const Part<ROWS>*)g.q + i64(item) * parts;
  const bool real = threadIdx.x < parts;
  const float top = real ? of[threadIdx.x].top[i] : -INF, best = join_threads<Largest, THREADS>(top, shared), weight = weight_of(top, best);
  if (real) weights[threadIdx.x] = weight;
  const float sum = join_threads<Sum, THREADS>(real ? of[threadIdx.x].sum[i] * weight : 0.f, shared);
  Piece out{};
  if (column < kPieces)
#pragma unroll 8
    for (int p = threadIdx.x / kAcross; p < parts; p += THREADS / kAcross) {  // each group of threads has its parts
      const Piece piece = load<kJoined>(of[p].out + i * HEAD_V + column * kJoined);
#pragma unroll
      for (int e = 0; e < kJoined; e++) out.v[e] = fmaf(piece.v[e], weights[p], out.v[e]);
    }
  outs[threadIdx.x] = out;
  __syncthreads();
  if (threadIdx.x >= HEAD_V) return;
  float value = 0.f;
#pragma unroll
  for (int t = 0; t < THREADS / kAcross; t++) value += outs[t * kAcross + threadIdx.x / kJoined].v[threadIdx.x % kJoined];
  const int b = head / g.KVH, h = head % g.KVH * group + row / g.S, s = row % g.S;
  from_float(g.y[b * g.y_b + h * g.y_h + s * g.y_s + threadIdx.x], value * inverse_of(sum));
}
