// softmax(scale q k^T + mask) v for the few query rows of heads that share keys, ROWS = 16 of them a tile of tensor cores (mma.sync). Each of a block's warps has
// KEYS keys at a time, which it fetches into shared memory for itself, STAGES - 1 times ahead. Keys are divided among the blocks of a grid's column, whose parts
// another kernel joins. Rows of q, k and v are whole aligned vectors.
constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, kPitch = kD * 2 + 16, kPitchV = kDV * 2 + 16;  // an odd number of 16 bytes
constexpr int kValues = KEYS * kPitch, kStage = KEYS * (kPitch + kPitchV);

// Keys or values first.. of those before `end`, to a warp's stage.
template <int SIZE, int PADDED, int PITCH> DEV void bring_rows(u32 to, const T* from, i64 stride, int first, int end) {
  constexpr int chunks = PADDED / 8;
#pragma unroll
  for (int u = 0; u < KEYS * chunks; u += 32) {
    const int at = u + (threadIdx.x & 31), r = at / chunks, c = at % chunks;
    const bool real = first + r < end && c * 8 < SIZE;
    copy_async(to + r * PITCH + c * 16, real ? from + (first + r) * stride + c * 8 : from, real ? 16 : 0);
  }
}
DEV void sync_warp() {
#ifdef RACECHECK
  __syncthreads();  // it does not know what __syncwarp orders
#else
  __syncwarp();
#endif
}

DEV void attend(const Attention& g) {
  next_may_start();
  extern __shared__ __align__(16) char memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column = lane % 4 * 2;
  const int group = g.H / g.KVH, rows = group * g.S, tiles = (rows + ROWS - 1) / ROWS, item = blockIdx.x, head = item / tiles;
  const int b = head / g.KVH, kv = head % g.KVH, first = item % tiles * ROWS, count = min(ROWS, rows - first);
  const T *k = g.k + b * g.k_b + kv * g.k_h, *v = g.v + b * g.v_b + kv * g.v_h;
  const int parts = gridDim.y, part = blockIdx.y;
  wait_with(k, v, count);
  int keys = CAUSAL ? 0 : g.Tk;
  if (CAUSAL)
    for (int i = 0; i < count; i++) keys = max(keys, visible_keys(g, (first + i) % g.S));
  const int each = ((keys + parts - 1) / parts + KEYS - 1) / KEYS * KEYS, from = part * each, to = min(keys, from + each);
  const int steps = (max(to - from, 0) + WARPS * KEYS - 1) / (WARPS * KEYS);
  const u32 ring = shared_address(memory) + warp * STAGES * kStage;
  auto bring = [&](int step) {
    if (step < steps) {
      const int t = from + (step * WARPS + warp) * KEYS;
      const u32 at = ring + step % STAGES * kStage;
      bring_rows<HEAD, kD, kPitch>(at, k, g.k_s, t, to);
      bring_rows<HEAD_V, kDV, kPitchV>(at + kValues, v, g.v_s, t, to);
    }
    copy_commit();
  };
  // The first keys are on their way before anything waits for queries.
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) bring(step);

  // This thread's rows are lane / 4 and 8 more; its columns of an 8-wide tile are column and column + 1.
  u32 a[kD / 16][4];
  int see[2];
  i64 mask_row[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = first + min(lane / 4 + 8 * e, count - 1), h = kv * group + row / g.S, s = row % g.S;
    const T* q = g.q + b * g.q_b + h * g.q_h + s * g.q_s + column;
    see[e] = min(to, visible_keys(g, s)), mask_row[e] = b * g.m_b + h * g.m_h + s * g.m_q;
#pragma unroll
    for (int d = 0; d < kD / 8; d++) a[d / 2][e + d % 2 * 2] = d * 8 < HEAD ? *(const u32*)(q + d * 8) : 0;
  }
  const float log_scale = g.scale * kLog2e, log_fill = to_log2(g.fill);
  const u32 key = ((lane & 7) + (lane >> 4) * 8) * kPitch + (lane >> 3 & 1) * 16, value = kValues + ((lane & 7) + (lane >> 3 & 1) * 8) * kPitchV + (lane >> 4) * 16;
  float out[kDV / 8][4] = {}, top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
  for (int step = 0; step < steps; step++) {
    sync_warp();  // all have read what is overwritten now
    bring(step + STAGES - 1);
    copy_wait<STAGES - 1>();
    sync_warp();
    const u32 stage = ring + step % STAGES * kStage;
    float x[KEYS / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kD / 16; d++)
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        u32 r[4];
        load_matrices(r, stage + key + n * 16 * kPitch + d * 32);
        multiply(x[2 * n], a[d], r[0], r[1], (T*)nullptr);
        multiply(x[2 * n + 1], a[d], r[2], r[3], (T*)nullptr);
      }
    const int t0 = from + (step * WARPS + warp) * KEYS + column;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int t = t0 + n * 8 + (c & 1), e = c >> 1;
        x[n][c] *= log_scale;
        if (MASK && t < to) x[n][c] = masked(x[n][c], g.mask, mask_row[e] + t * g.m_k, log_fill);
        if (t >= see[e]) x[n][c] = -INF;
      }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float best = top[e];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) best = fmaxf(best, fmaxf(x[n][2 * e], x[n][2 * e + 1]));
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
      const float shift = best == -INF ? 0.f : best, shrink = exp2_approximate(top[e] - shift);
      top[e] = best, sum[e] *= shrink;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 2 * e; c < 2 * e + 2; c++) sum[e] += x[n][c] = exp2_approximate(x[n][c] - shift);
#pragma unroll
      for (int d = 0; d < kDV / 8; d++) out[d][2 * e] *= shrink, out[d][2 * e + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
      const u32 p[4] = {pack2((T*)nullptr, x[2 * n][0], x[2 * n][1]), pack2((T*)nullptr, x[2 * n][2], x[2 * n][3]),
                        pack2((T*)nullptr, x[2 * n + 1][0], x[2 * n + 1][1]), pack2((T*)nullptr, x[2 * n + 1][2], x[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDV / 16; d++) {
        u32 r[4];
        load_transposed(r, stage + value + n * 16 * kPitchV + d * 32);
        multiply(out[2 * d], p, r[0], r[1], (T*)nullptr);
        multiply(out[2 * d + 1], p, r[2], r[3], (T*)nullptr);
      }
    }
  }

  copy_wait<0>();
  __syncthreads();  // all are done with what they fetched, in whose place is now what the warps have
  Part<ROWS>* const parts_of = (Part<ROWS>*)memory;
  Part<ROWS>& mine = parts_of[warp];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = lane / 4 + 8 * e;
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
    if (lane % 4 == 0) mine.top[row] = top[e], mine.sum[row] = sum[e];
#pragma unroll
    for (int d = 0; d < HEAD_V / 8; d++) *(float2*)&mine.out[row * HEAD_V + d * 8 + column] = make_float2(out[d][2 * e], out[d][2 * e + 1]);
  }
  __syncthreads();
  join_warps<ROWS, false>(parts_of, ((Part<ROWS>*)g.y)[item * parts + part], count, [](int, int, float) {});
}
