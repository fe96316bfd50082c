// softmax(scale q k^T + mask) v on Hopper, 16-bit operands, of so few keys (BN) that a block has
// all of them at once: its GROUPS warpgroups have 64 query rows each, their first thread brings
// queries, keys and values, and the other blocks of the multiprocessor hide how long that takes.
// Nothing is rescaled; scores, weights and results do not need registers at the same time, so that
// these are enough for four warpgroups of a multiprocessor.

constexpr int kChunk = 64,
              kChunks =
                  BN /
                  kChunk;  // keys that are waited for together: earlier causal rows need no others

DEV void attend(const Attention& g, const TensorMap& map_q, const TensorMap& map_k,
                const TensorMap& map_v, const TensorMap& map_y) {
  extern __shared__ char memory[];
  const u32 start = shared_address(memory), queries = (start + 1023u) & ~1023u,
            keys = queries + kSlot, values = keys + kKeys;
  const u32 q_full = values + kValues, k_full = q_full + 8 * GROUPS, v_full = k_full + 8 * kChunks;
  const int warp = __shfl_sync(FULL_WARP, int(threadIdx.x >> 5), 0), w = warp / 4,
            lane = threadIdx.x & 31;
  const int tiles = (g.S + BM - 1) / BM, head = blockIdx.x / tiles;
  const Tile tile{int(blockIdx.x) % tiles * BM, head / g.H, head % g.H, 0};
  // How many chunks of keys a warpgroup needs.
  auto needed = [&](int of) {
    const int first = tile.m + of * 64;
    return first < g.S ? (visible_keys(g, min(first + 64, g.S) - 1) + kChunk - 1) / kChunk : 0;
  };
  const bool brings = warp == 0 && elected();
  if (brings) {
    for (int i = 0; i < GROUPS + 2 * kChunks; i++) barrier_init(q_full + 8 * i, 1);
    barriers_ready();
    prefetch(map_q), prefetch(map_k), prefetch(map_v);
    if (COPIED_OUT) prefetch(map_y);
  }
  after_previous();
  if (brings) {
    const int kv = tile.h / (g.H / g.KVH),
              chunks = (visible_keys(g, min(tile.m + BM, g.S) - 1) + kChunk - 1) / kChunk;
    auto bring = [&](const TensorMap& map, u32 to, u32 full, int panels, int pitch, int row,
                     int head) {
      expect_bytes(full, panels * (64 * 128));
#pragma unroll
      for (int p = 0; p < panels; p++)
        copy4(to + p * pitch * 128, &map, full, p * 64, row, head, tile.b);
    };
#pragma unroll
    for (int i = 0; i < GROUPS || i < kChunks; i++) {
      if (i < GROUPS && needed(i) > 0)
        bring(map_q, queries + i * (64 * 128), q_full + 8 * i, kPanels, BM, tile.m + i * 64,
              tile.h);
      if (i < kChunks && i < chunks)
        bring(map_k, keys + i * (64 * 128), k_full + 8 * i, kPanels, BN, i * 64, kv);
    }
#pragma unroll
    for (int i = 0; i < kChunks; i++)
      if (i < chunks)
        bring(map_v, values + i * (64 * 128), v_full + 8 * i, kPanelsV, BN, i * 64, kv);
  }
  __syncthreads();
  if (tile.m + w * 64 >= g.S) return;

  const int m = w * 64 + (warp & 3) * 16, s0 = tile.m + m + lane / 4, column = lane % 4 * 2;
  const int see[2] = {visible_keys(g, s0), visible_keys(g, s0 + 8)},
            least = visible_keys(g, tile.m + m);
  const float log_scale = score_scale(g), unit = RAW ? 1.f / g.scale : kLog2e,
              c = RAW ? log_scale : 1.f;
  float out[kDV / 2], sum[2] = {0.f, 0.f};
  auto attend_to = [&](auto width) {
    constexpr int N = width.keys;
    float s[BN / 2];
    u32 p[N / 4];
    const u32 query = place(queries + w * 64 * 128, 16), key = place(keys, 16),
              value = place(values, BN * 128);
    wait(q_full + 8 * w, 0);
#pragma unroll
    for (int i = 0; i * kChunk < N; i++) wait(k_full + 8 * i, 0);
    multiply_fence();
#pragma unroll
    for (int d = 0; d < kD / 16; d++) {
      const u64 rows = descriptor(query + d / 4 * (BM * 8) + d % 4 * 2),
                columns = descriptor(key + d / 4 * (BN * 8) + d % 4 * 2);
      if (d == 0)
        start_scores(width, s, rows, columns);
      else
        add_scores(width, s, rows, columns);
    }
    multiply_commit();
    multiply_wait<0>();
    results_ready(s);
    if (!RAW)
#pragma unroll
      for (int j = 0; j < N / 2; j++) s[j] = capped(s[j] * log_scale);
    if (MASK) {
      const float fill = in_units(g.fill, unit);
      const bool pairs = g.m_k == 1 && g.Tk % 2 == 0 && ((g.m_b | g.m_h | g.m_q) & 1) == 0 &&
                         aligned(g.mask, 2 * sizeof(MaskElement));
#pragma unroll
      for (int e = 0; e < 2; e++) {
        u32 mask[N / 8];
        mask_row(g, tile.b * g.m_b + tile.h * g.m_h + min(s0 + 8 * e, g.S - 1) * g.m_q, column,
                 pairs, mask);
        if (!all_seen(mask))
#pragma unroll
          for (int j = 0; j < N / 8; j++)
            mask_two(s[4 * j + 2 * e], s[4 * j + 2 * e + 1], mask[j], unit, fill);
      }
    }
    if (N > least)
#pragma unroll
      for (int j = 0; j < N / 2; j++)
        if (j / 4 * 8 + (j & 1) >= see[j >> 1 & 1] - column) s[j] = -INF;
    float shift[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float best = s[2 * e];
#pragma unroll
      for (int j = 0; j < N / 8; j++)
        best = fmaxf(best, fmaxf(s[4 * j + 2 * e], s[4 * j + 2 * e + 1]));
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
      best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
      shift[e] = best == -INF ? 0.f : best * c;
    }
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
      const float a = exp2_approximate(s[2 * j] * c - shift[j & 1]),
                  b = exp2_approximate(s[2 * j + 1] * c - shift[j & 1]);
      sum[j & 1] += a + b;
      p[j] = pack2((T*)nullptr, a, b);
    }
#pragma unroll
    for (int i = 0; i * kChunk < N; i++) wait(v_full + 8 * i, 0);
    multiply_fence();
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
      if (t == 0)
        start_values(out, p, descriptor(value));
      else
        multiply_values(out, p + 4 * t, descriptor(value + t * 128));
    }
    multiply_commit();
    multiply_wait<0>();
    results_ready(out);
  };
  const int chunks = needed(w);
  if (CAUSAL && kChunks > 1 && chunks == 1)
    attend_to(Width<kChunk>());
  else if (chunks > 0)
    attend_to(Width<LAST>());
  else
#pragma unroll
    for (int d = 0; d < kDV / 2; d++) out[d] = 0.f;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
    sum[e] = sum[e] == 0.f ? inverse_of(sum[e]) : inverse_approximate(sum[e]);
  }
  write_rows(queries, m, out, sum);
  if (COPIED_OUT) visible_to_copies();
  __syncwarp();
  if (!COPIED_OUT)
    store_rows(g, memory + (queries - start), tile, m);
  else if (lane == 0)
    take_away(map_y, queries + m * 128, tile, tile.m + m);
}
// Where no tensor copy can write the result.
DEV void attend(const Attention& g, const TensorMap& map_q, const TensorMap& map_k,
                const TensorMap& map_v) {
  attend(g, map_q, map_k, map_v, map_v);
}
