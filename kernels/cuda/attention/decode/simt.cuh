// softmax(scale q k^T + mask) v for few query rows: a block has up to ROWS rows that read the same
// keys, of one head or of the heads of a group, and a share of the keys when PARTS blocks of a
// cluster divide them, or (SPREAD) the blocks of a grid's column, whose parts another kernel joins.
// LANES threads, a unit, have a key at a time, V of its elements each (CHUNKS times); they fetch
// these into shared memory for themselves, AT_ONCE keys a stage. Every unit has its own largest
// scores, sums and weighted sums; at the end those of a warp, of a block and of a cluster are
// joined.
constexpr int kUnits = THREADS / LANES, kElements = CHUNKS * V, kScores = ROWS * AT_ONCE,
              kHeld = kScores > LANES ? kScores / LANES : 1;
typedef Vec<T, V> Piece;

// Of the row at `row` the elements from `column` on, zero where there are none; WIDTH at a time.
// The pieces of a thread lie THREADS apart.
template <int SIZE, int WIDTH>
DEV void bring(Piece* to, const T* row, int column, bool real) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int e = 0; e < V; e += WIDTH) {
      const int at = column + c * LANES * V + e;
      const bool there = real && at < SIZE;
      if constexpr (WIDTH * sizeof(T) >= 4)
        fetch<WIDTH * sizeof(T)>(shared_address(to + c * THREADS) + e * sizeof(T),
                                 there ? row + at : row, there);
      else
        to[c * THREADS].v[e] = there ? row[at] : rounded<T>(0.f);
    }
}
// The sums over a unit's LANES threads of COUNT values: each thread keeps its share, from the value
// `lane % LANES * COUNT / LANES` on.
template <int COUNT, int APART>
DEV void share_sums(float (&x)[kScores]) {
  if constexpr (APART > 0) {
    constexpr int kept = COUNT > 1 ? COUNT / 2 : 1;
    const bool upper = threadIdx.x & APART;
#pragma unroll
    for (int j = 0; j < kept; j++) {
      const float mine = COUNT > 1 && upper ? x[j + COUNT / 2] : x[j],
                  other = COUNT > 1 && !upper ? x[j + COUNT / 2] : x[j];
      x[j] = mine + __shfl_xor_sync(FULL_WARP, other, APART);
    }
    share_sums<kept, APART / 2>(x);
  }
}

DEV void attend(const Attention& g) {
  after_previous();
  extern __shared__ __align__(16) char memory[];
  __shared__ Part<ROWS> whole;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, unit = threadIdx.x / LANES,
            column = lane % LANES * V;
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS,
            item = blockIdx.x / PARTS, head = item / tiles;
  const int b = head / g.KVH, kv = head % g.KVH, first = item % tiles * ROWS,
            count = min(ROWS, rows - first);
  const T *k = g.k + b * g.k_b + kv * g.k_h, *v = g.v + b * g.v_b + kv * g.v_h;
  const float log_fill = to_log2(g.fill);
  int keys = 0;
#pragma unroll
  for (int i = 0; i < ROWS; i++)
    keys = max(keys, visible_keys(g, (first + min(i, count - 1)) % g.S));
  const int parts = SPREAD ? gridDim.y : PARTS, part = SPREAD ? blockIdx.y : blockIdx.x % PARTS;
  const int each = (keys + parts - 1) / parts, from = part * each, to = min(keys, from + each);

  Piece* const pieces = (Piece*)memory + threadIdx.x;
  auto piece = [&](int stage, int n, int which) {
    return pieces + ((stage * AT_ONCE + n) * 2 + which) * CHUNKS * THREADS;
  };
  auto bring_stage = [&](int stage, int t0) {
    if (t0 < to)
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        const int t = t0 + n * kUnits + unit;
        bring<HEAD, READ_K>(piece(stage, n, 0), k + t * g.k_s, column, t < to);
        bring<HEAD_V, READ_V>(piece(stage, n, 1), v + t * g.v_s, column, t < to);
      }
    copy_commit();
  };
  constexpr int step = AT_ONCE * kUnits;
  // The first keys are on their way before anything waits for queries.
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) bring_stage(stage, from + stage * step);

  float q[ROWS][kElements], out[ROWS][kElements], top[ROWS], sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const int row = first + min(i, count - 1), h = kv * group + row / g.S, s = row % g.S;
    const T* from = g.q + b * g.q_b + h * g.q_h + s * g.q_s;
#pragma unroll
    for (int e = 0; e < kElements; e += READ_Q) {
      const int at = column + e / V * LANES * V + e % V;
      Vec<T, READ_Q> part{};
      if (at < HEAD) part = load<READ_Q>(from + at);
#pragma unroll
      for (int j = 0; j < READ_Q; j++)
        q[i][e + j] = to_float(part.v[j]) * score_scale(g), out[i][e + j] = 0.f;
    }
    top[i] = -INF, sum[i] = 0.f;
  }
  // Of the scores whose sums the thread has: the keys of their rows, and where the masks of these
  // are.
  int see[kHeld];
  i64 mask_row[kHeld];
  const int held = lane % LANES * kScores / LANES;
#pragma unroll
  for (int j = 0; j < kHeld; j++) {
    const int row = first + min((held + j) / AT_ONCE, count - 1), h = kv * group + row / g.S,
              s = row % g.S;
    see[j] = visible_keys(g, s), mask_row[j] = b * g.m_b + h * g.m_h + s * g.m_q;
  }
  for (int t0 = from, stage = 0; t0 < to; t0 += step, stage = stage == STAGES - 1 ? 0 : stage + 1) {
    bring_stage(stage == 0 ? STAGES - 1 : stage - 1, t0 + (STAGES - 1) * step);
    copy_wait<STAGES - 1>();
    float x[kScores];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
#pragma unroll
      for (int i = 0; i < ROWS; i++) x[i * AT_ONCE + n] = 0.f;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const Piece p = piece(stage, n, 0)[c * THREADS];
#pragma unroll
        for (int e = 0; e < V; e++) {
          const float key = to_float(p.v[e]);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            x[i * AT_ONCE + n] = fmaf(q[i][c * V + e], key, x[i * AT_ONCE + n]);
        }
      }
    }
    share_sums<kScores, LANES / 2>(x);
    float mine[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; j++) {
      const int t = t0 + (held + j) % AT_ONCE * kUnits + unit;
      mine[j] = capped(x[j]);
      if (MASK && t < to) mine[j] = masked(mine[j], g.mask, mask_row[j] + t * g.m_k, log_fill);
      if (t >= min(to, see[j])) mine[j] = -INF;
    }
#pragma unroll
    for (int m = 0; m < kScores; m++)
      x[m] = __shfl_sync(FULL_WARP, mine[m % kHeld], m * LANES / kScores, LANES);
    float shrink[ROWS];
    bool shrinks = false;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float best = top[i];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) best = fmaxf(best, x[i * AT_ONCE + n]);
      const float shift = best == -INF ? 0.f : best;
      shrink[i] = exp2_approximate(top[i] - shift), shrinks |= best != top[i];
      top[i] = best, sum[i] *= shrink[i];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++)
        sum[i] += x[i * AT_ONCE + n] = exp2_approximate(x[i * AT_ONCE + n] - shift);
    }
    if (__any_sync(FULL_WARP, shrinks))
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int e = 0; e < kElements; e++) out[i][e] *= shrink[i];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const Piece p = piece(stage, n, 1)[c * THREADS];
#pragma unroll
        for (int e = 0; e < V; e++) {
          const float value = to_float(p.v[e]);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            out[i][c * V + e] = fmaf(x[i * AT_ONCE + n], value, out[i][c * V + e]);
        }
      }
  }

  copy_wait<0>();
  __syncthreads();  // all are done with what they fetched, in whose place is now what the warps
                    // have
  Part<ROWS>* const parts_of = (Part<ROWS>*)memory;
  Part<ROWS>& mine = parts_of[warp];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int o = LANES; o < 32; o <<= 1) {
      const float other = __shfl_xor_sync(FULL_WARP, top[i], o), best = fmaxf(top[i], other),
                  a = weight_of(top[i], best), c = weight_of(other, best);
      top[i] = best, sum[i] = sum[i] * a + __shfl_xor_sync(FULL_WARP, sum[i], o) * c;
#pragma unroll
      for (int e = 0; e < kElements; e++)
        out[i][e] = out[i][e] * a + __shfl_xor_sync(FULL_WARP, out[i][e], o) * c;
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
  join_warps<ROWS, PARTS == 1 && !SPREAD>(
      parts_of, SPREAD ? ((Part<ROWS>*)g.y)[item * (parts + 1) + part] : whole, count, put);
  if (PARTS > 1) join_parts(whole, count, put);
}
