// LayerNorm over short rows of N elements: LANES neighbouring lanes have a row, K vectors of V
// elements each; follows `rows`.

// The sum over LANES neighbouring lanes, all lanes of a warp at a time.
template <int LANES>
DEV float join_lanes(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

template <int V, int K, int LANES, int N>
struct Lanes {
  int lane;
  Vec<T, V> g[K], b[K];
  // Where vector k lies, and whether the row has it.
  METHOD int at(int k) const { return (k * LANES + lane) * V; }
  METHOD bool has(int k) const { return K * LANES * V == N || at(k) < N; }
  template <class Norm>
  METHOD void weights(const Norm& l) {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (has(k)) l.template weights<V>(at(k), g[k], b[k]);
  }
  // One row, if it is below `rows`; `place` sets its summands. All lanes of a warp come here.
  template <class Norm, class Place>
  METHOD void row(Norm l, int row, int rows, Place place) const {
    float s[K * V] = {}, mean = 0.f, squares = 0.f;
    if (row < rows) {
      place(l, row);
#pragma unroll
      for (int k = 0; k < K; k++)
        if (has(k)) l.template sum<V>(at(k), s + k * V);
    }
    if (!l.rms) {
#pragma unroll
      for (int j = 0; j < K * V; j++) mean += s[j];
      mean = join_lanes<LANES>(mean) * (1.f / N);
    }
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int j = 0; j < V; j++)
        if (has(k)) squares += (s[k * V + j] - mean) * (s[k * V + j] - mean);
    const float scale = rsqrtf(join_lanes<LANES>(squares) * (1.f / N) + l.eps);
    if (row >= rows) return;
    l.y += i64(row) * N;
    if (l.skip) l.skip += i64(row) * N;
#pragma unroll
    for (int k = 0; k < K; k++)
      if (has(k)) l.template finish<V>(at(k), s + k * V, mean, scale, g[k], b[k]);
  }
};

// Rows that lie at multiples of a vector. EARLY: as of `norm_rows`.
template <int V, int K, int LANES, int THREADS, int N, bool EARLY, class Norm, class Place>
DEV void norm_short(const Norm& l, int rows, Place place) {
  Lanes<V, K, LANES, N> lanes{int(threadIdx.x % LANES)};
  if (EARLY) lanes.weights(l);
  after_previous();
  if (!EARLY) lanes.weights(l);
  lanes.row(l, blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, rows, place);
}

// Contiguous rows at any address: a block brings `each` of them, of BYTES bytes at most, to shared
// memory and back. The first SLABS summands are such rows, the others one row for all; ROOMS: as
// many slabs as there are such summands, or results.
template <int K, int LANES, int SLABS, int ROOMS, int BYTES, int THREADS, int N, bool EARLY,
          class Norm>
DEV void norm_slabs(const Norm& l, int rows, int each) {
  __shared__ alignas(16) T room[ROOMS][BYTES / sizeof(T) + 16 / sizeof(T)];
  Lanes<1, K, LANES, N> lanes{int(threadIdx.x % LANES)};
  if (EARLY) lanes.weights(l);
  after_previous();
  if (!EARLY) lanes.weights(l);
  const i64 at = i64(blockIdx.x) * each * N;
  const int count = min(each, rows - int(blockIdx.x) * each);
  Slabs<THREADS, T> slabs[ROOMS];
  slabs[ROOMS - 1].slab = room[ROOMS - 1];
#pragma unroll
  for (int k = 0; k < SLABS; k++) slabs[k].bring(room[k], l.x[k] + at, count * N);
  Norm of = l;
  of.y = slabs[0].slab;
  if (l.skip) of.skip = slabs[ROOMS - 1].slab;
  for (int row = 0; row < count; row += THREADS / LANES)
    lanes.row(of, row + threadIdx.x / LANES, count, [&](auto& m, int r) {
#pragma unroll
      for (int k = 0; k < SLABS; k++) m.x[k] = slabs[k].slab + r * N;
    });
  slabs[0].take_back(l.y + at, count * N);
  if (l.skip) slabs[ROOMS - 1].take_back(l.skip + at, count * N);
}
