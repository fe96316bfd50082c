// softmax(scale q k^T + mask) v for few query rows: a block has up to ROWS rows that read the same keys, of one head or of the heads of a group, and a share of
// the keys when PARTS blocks of a cluster divide them. LANES threads have a key at a time, V of its elements each (CHUNKS times). Every such unit has its own
// largest scores, sums and weighted sums; at the end those of a warp, of a block and of a cluster are joined.
constexpr int kUnits = THREADS / LANES, kElements = CHUNKS * V;
typedef Vec<T, V> Piece;

// Of the row at `row` the elements from `column` on, zero where there are none; WIDTH at a time.
template <int SIZE, int WIDTH> DEV void read(Piece (&to)[CHUNKS], const T* row, int column, bool real) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
    for (int e = 0; e < V; e += WIDTH) {
      const int at = column + c * LANES * V + e;
      Vec<T, WIDTH> part{};
      if (real && at < SIZE) part = load<WIDTH>(row + at);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) to[c].v[e + j] = part.v[j];
    }
  }
}

DEV void attend(const Attention& g) {
  after_previous();
  __shared__ Part<ROWS> parts[WARPS], whole;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, unit = threadIdx.x / LANES, column = lane % LANES * V;
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS, item = blockIdx.x / PARTS, head = item / tiles;
  const int b = head / g.KVH, kv = head % g.KVH, first = item % tiles * ROWS, count = min(ROWS, rows - first);
  const T *k = g.k + b * g.k_b + kv * g.k_h, *v = g.v + b * g.v_b + kv * g.v_h;
  const float log_fill = to_log2(g.fill);
  float q[ROWS][kElements], out[ROWS][kElements], top[ROWS], sum[ROWS];
  i64 mask_row[ROWS];
  int see[ROWS], keys = 0;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const int row = first + min(i, count - 1), h = kv * group + row / g.S, s = row % g.S;
    Piece p[CHUNKS];
    read<HEAD, READ_Q>(p, g.q + b * g.q_b + h * g.q_h + s * g.q_s, column, true);
#pragma unroll
    for (int e = 0; e < kElements; e++) q[i][e] = to_float(p[e / V].v[e % V]) * (g.scale * kLog2e), out[i][e] = 0.f;
    top[i] = -INF, sum[i] = 0.f, see[i] = visible_keys(g, s), mask_row[i] = b * g.m_b + h * g.m_h + s * g.m_q;
    keys = max(keys, see[i]);
  }
  const int share = (keys + PARTS - 1) / PARTS, from = int(blockIdx.x) % PARTS * share, to = min(keys, from + share);

  for (int t0 = from; t0 < to; t0 += AT_ONCE * kUnits) {
    Piece ks[AT_ONCE][CHUNKS], vs[AT_ONCE][CHUNKS];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const int t = t0 + n * kUnits + unit;
      read<HEAD, READ_K>(ks[n], k + t * g.k_s, column, t < to);
      read<HEAD_V, READ_V>(vs[n], v + t * g.v_s, column, t < to);
    }
    float x[ROWS][AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const int t = t0 + n * kUnits + unit;
#pragma unroll
      for (int i = 0; i < ROWS; i++) x[i][n] = 0.f;
#pragma unroll
      for (int e = 0; e < kElements; e++) {
        const float key = to_float(ks[n][e / V].v[e % V]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) x[i][n] = fmaf(q[i][e], key, x[i][n]);
      }
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int o = LANES / 2; o; o >>= 1) x[i][n] += __shfl_xor_sync(FULL_WARP, x[i][n], o);
        if (MASK && t < to) x[i][n] = masked(x[i][n], g.mask, mask_row[i] + t * g.m_k, log_fill);
        if (t >= min(to, see[i])) x[i][n] = -INF;
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float best = top[i];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) best = fmaxf(best, x[i][n]);
      const float shift = best == -INF ? 0.f : best, shrink = exp2f(top[i] - shift);
      top[i] = best, sum[i] *= shrink;
#pragma unroll
      for (int e = 0; e < kElements; e++) out[i][e] *= shrink;
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) x[i][n] = exp2f(x[i][n] - shift), sum[i] += x[i][n];
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
      for (int e = 0; e < kElements; e++) {
        const float value = to_float(vs[n][e / V].v[e % V]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) out[i][e] = fmaf(x[i][n], value, out[i][e]);
      }
  }

  Part<ROWS>& mine = parts[warp];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int o = LANES; o < 32; o <<= 1) {
      const float other = __shfl_xor_sync(FULL_WARP, top[i], o), best = fmaxf(top[i], other), a = weight_of(top[i], best), c = weight_of(other, best);
      top[i] = best, sum[i] = sum[i] * a + __shfl_xor_sync(FULL_WARP, sum[i], o) * c;
#pragma unroll
      for (int e = 0; e < kElements; e++) out[i][e] = out[i][e] * a + __shfl_xor_sync(FULL_WARP, out[i][e], o) * c;
    }
    if (lane == 0) mine.top[i] = top[i], mine.sum[i] = sum[i];
    if (lane < LANES)
#pragma unroll
      for (int e = 0; e < kElements; e++) {
        const int at = column + e / V * LANES * V + e % V;
        if (at < HEAD_V) mine.out[i * HEAD_V + at] = out[i][e];
      }
  }
  __syncthreads();
  auto put = [&](int i, int c, float value) {
    const int row = first + i, h = kv * group + row / g.S, s = row % g.S;
    from_float(g.y[b * g.y_b + h * g.y_h + s * g.y_s + c], value);
  };
  for (int u = threadIdx.x; u < count * HEAD_V; u += THREADS) {
    const int row = u / HEAD_V;
    float best = -INF, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, parts[w].top[row]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = weight_of(parts[w].top[row], best);
      total += parts[w].sum[row] * weight, value += parts[w].out[u] * weight;
    }
    if (PARTS == 1) {
      put(row, u % HEAD_V, value * inverse_of(total));
      continue;
    }
    whole.out[u] = value;
    if (u % HEAD_V == 0) whole.top[row] = best, whole.sum[row] = total;
  }
  if (PARTS > 1) join_parts(whole, count, put);
}
