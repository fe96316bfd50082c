// softmax(scale q k^T + mask) v on Hopper, 16-bit operands: persistent blocks of one producer warp (tensor copies of q, k and v) and GROUPS consumer
// warpgroups of 64 query rows each. Keys come in tiles of BN, from the last to the first, so that tiles with hidden keys come first. A warpgroup
// issues the scores of the next tile before the products with the values of this one, and the warpgroups take turns at issuing: while one computes
// its softmax, another multiplies.
//
// OWN_OUTPUT: results have shared memory of their own on their way out; else they take the place of the queries.
// The generator defines multiply_scores (S[64 x BN] = q k^T) and multiply_values (out[64 x kDV] += p v).

DEV void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void wait(u32 b, u32 parity) {
  asm volatile("{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n@p bra done_%=;\nbra again_%=;\ndone_%=:\n}"
               ::"r"(b), "r"(parity) : "memory");
}
// Keeps the compiler from moving uses of results before the wait.
template <int N> DEV void results_ready(float (&d)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) asm volatile("" : "+f"(d[k])::"memory");
}
template <int N> DEV void registers_lessened() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void registers_raised() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
DEV float exp2_approximate(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Rows of 128 bytes with the 128-byte swizzle, groups of 8 rows 1024 bytes apart. `panel`: bytes between panels of 64 columns when these are the
// dimension that is not multiplied over.
DEV u64 descriptor(u32 address, u32 panel) { return u64(address >> 4) | u64(panel >> 4) << 16 | 64ull << 32 | 1ull << 62; }

constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, BM = GROUPS * 64;
constexpr int kPanels = (HEAD + 63) / 64, kPanelsV = (HEAD_V + 63) / 64;
constexpr int kQueries = BM * 128 * kPanels, kKeys = BN * 128 * kPanels, kValues = BN * 128 * kPanelsV, kOutput = BM * 128 * kPanelsV;
constexpr bool PRESCALED = MASK || !POSITIVE;  // scores are scaled (and masked) before their maximum is taken

struct Tile { int m, b, h; };
// The longest rows first where some are shorter, within groups of heads whose keys and values fit the L2 cache.
DEV Tile tile_at(const Attention& g, int t) {
  const int tiles = (g.S + BM - 1) / BM, heads = g.B * g.H;
  int m = t % tiles, head = t / tiles;
  if (CAUSAL) {
    const i64 bytes = i64(g.Tk) * (HEAD + HEAD_V) * 2 * g.KVH / g.H + 1;
    const int together = min(heads, max(1, int((24 << 20) / bytes))), band = t / (together * tiles), rest = t - band * together * tiles;
    const int width = min(together, heads - band * together);
    m = tiles - 1 - rest / width, head = band * together + rest % width;
  }
  return {m * BM, head / g.H, head % g.H};
}
// The k-th tile of this block: there and back again, so that long and short tiles even out.
DEV int tile_number(int k) { return k * int(gridDim.x) + (CAUSAL && k % 2 ? int(gridDim.x) - 1 - int(blockIdx.x) : int(blockIdx.x)); }
DEV int key_tiles(const Attention& g, int m0) { return (visible_keys(g, min(m0 + BM, g.S) - 1) + BN - 1) / BN; }

// The mask of two neighbouring keys.
struct alignas(2 * sizeof(MaskElement)) MaskPair { MaskElement v[2]; };
// The mask of a thread's keys in one tile, for the row whose mask begins at element `at`; `first` is the thread's first key. pairs: keys are even
// in number, neighbours lie next to each other, the first of two at an even element of an aligned mask.
DEV void mask_row(const Attention& g, i64 at, int first, bool pairs, MaskPair (&m)[BN / 8]) {
  const MaskElement* p = (const MaskElement*)g.mask + at;
  if (pairs) {
#pragma unroll
    for (int j = 0; j < BN / 8; j++) m[j] = first + 8 * j < g.Tk ? *(const MaskPair*)(p + first + 8 * j) : MaskPair{};
    return;
  }
#pragma unroll
  for (int j = 0; j < BN / 8; j++)
#pragma unroll
    for (int f = 0; f < 2; f++) m[j].v[f] = first + 8 * j + f < g.Tk ? p[(first + 8 * j + f) * g.m_k] : MaskElement{};
}

struct Ring {
  int slot = 0;
  u32 phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
};

DEV void attend(const Attention& g, const TensorMap& map_q, const TensorMap& map_k, const TensorMap& map_v) {
  extern __shared__ char memory[];
  const u32 queries = (shared_address(memory) + 1023u) & ~1023u, output = OWN_OUTPUT ? queries + kQueries : queries;
  const u32 keys = queries + (OWN_OUTPUT ? kQueries + kOutput : kQueries > kOutput ? kQueries : kOutput), values = keys + STAGES * kKeys;
  const u32 q_full = values + STAGES * kValues, q_empty = q_full + 8, k_full = q_full + 16, k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES,
            v_empty = v_full + 8 * STAGES;
  const int warp = __shfl_sync(FULL_WARP, int(threadIdx.x >> 5), 0), group = warp / 4;
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1), barrier_init(q_empty, GROUPS);
    for (int i = 0; i < STAGES; i++) barrier_init(k_full + 8 * i, 1), barrier_init(v_full + 8 * i, 1), barrier_init(k_empty + 8 * i, GROUPS), barrier_init(v_empty + 8 * i, GROUPS);
    barriers_ready();
  }
  __syncthreads();
  after_previous();
  const int count = (g.S + BM - 1) / BM * g.B * g.H;

  if (group == 0) {
    registers_lessened<GROUPS == 3 ? 32 : 24>();
    if (warp == 0 && elected()) {
      Ring k, v;
      u32 q_phase = 0;
      for (int n = 0; tile_number(n) < count || (CAUSAL && n * int(gridDim.x) < count); n++) {
        if (tile_number(n) >= count) continue;
        const Tile tile = tile_at(g, tile_number(n));
        const int kv = tile.h / (g.H / g.KVH), steps = key_tiles(g, tile.m);
        for (int step = steps - 1; step >= 0; step--) {
          if (step == steps - 1) {
            wait(q_empty, q_phase ^ 1);
            q_phase ^= 1;
            expect_bytes(q_full, kQueries);
            for (int p = 0; p < kPanels; p++) copy4(queries + p * BM * 128, &map_q, q_full, p * 64, tile.m, tile.h, tile.b);
          }
          wait(k_empty + 8 * k.slot, k.phase ^ 1);
          expect_bytes(k_full + 8 * k.slot, kKeys);
          for (int p = 0; p < kPanels; p++) copy4(keys + k.slot * kKeys + p * BN * 128, &map_k, k_full + 8 * k.slot, p * 64, step * BN, kv, tile.b);
          k.next();
          wait(v_empty + 8 * v.slot, v.phase ^ 1);
          expect_bytes(v_full + 8 * v.slot, kValues);
          for (int p = 0; p < kPanelsV; p++) copy4(values + v.slot * kValues + p * BN * 128, &map_v, v_full + 8 * v.slot, p * 64, step * BN, kv, tile.b);
          v.next();
        }
      }
    }
    return;
  }

  registers_raised<GROUPS == 3 ? 160 : 240>();
  const int w = group - 1, lane = threadIdx.x & 31, row = (warp & 3) * 16 + lane / 4, column = lane % 4 * 2;
  const bool leader = threadIdx.x % 128 == 0;
  const u64 query = descriptor(queries + w * 64 * 128, 16), key = descriptor(keys, 16), value = descriptor(values, BN * 128);
  const float log_scale = g.scale * kLog2e, log_fill = to_log2(g.fill), c = PRESCALED ? 1.f : log_scale;
  const bool mask_pairs = MASK && g.m_k == 1 && g.Tk % 2 == 0 && ((g.m_b | g.m_h | g.m_q) & 1) == 0 && aligned(g.mask, 2 * sizeof(MaskElement));
  Ring k, v;
  u32 q_phase = 0;
  if (GROUPS > 1 && w == GROUPS - 1) arrive_group(1, 256);  // the first warpgroup goes first
  auto my_turn = [&] { if (GROUPS > 1) sync_group(1 + w, 256); };
  auto your_turn = [&] { if (GROUPS > 1) arrive_group(1 + (w + 1) % GROUPS, 256); };

  for (int n = 0; tile_number(n) < count || (CAUSAL && n * int(gridDim.x) < count); n++) {
    if (tile_number(n) >= count) continue;
    const Tile tile = tile_at(g, tile_number(n));
    const int steps = key_tiles(g, tile.m), s0 = tile.m + w * 64 + row, first = tile.m + w * 64 + (warp & 3) * 16;
    const int see[2] = {visible_keys(g, s0), visible_keys(g, s0 + 8)}, least = visible_keys(g, first);
    const i64 mask_at[2] = {tile.b * g.m_b + tile.h * g.m_h + min(s0, g.S - 1) * g.m_q, tile.b * g.m_b + tile.h * g.m_h + min(s0 + 8, g.S - 1) * g.m_q};
    float out[kDV / 2], s[BN / 2], top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f}, shrink[2] = {1.f, 1.f};
    u32 p[BN / 4];
    MaskPair mask[BN / 8];
    auto fetch_mask = [&](int step) {  // early, where all rows have the same
      if (MASK && !MASK_ROWS) mask_row(g, mask_at[0], step * BN + column, mask_pairs, mask);
    };
#pragma unroll
    for (int d = 0; d < kDV / 2; d++) out[d] = 0.f;

    auto scores = [&] {  // s = q k^T, not finished
      const u64 b = key + k.slot * (kKeys / 16);
      multiply_fence();
#pragma unroll
      for (int d = 0; d < kD / 16; d++) multiply_scores(s, query + d / 4 * (BM * 8) + d % 4 * 2, b + d / 4 * (BN * 8) + d % 4 * 2, d != 0);
      multiply_commit();
    };
    auto products = [&] {  // out += p v, not finished
      const u64 b = value + v.slot * (kValues / 16);
      multiply_fence();
#pragma unroll
      for (int t = 0; t < BN / 16; t++) multiply_values(out, p + 4 * t, b + t * 128);
      multiply_commit();
    };
    auto softmax = [&](int step) {  // s becomes weights; shrink is what earlier sums and outputs must be multiplied by
      if (PRESCALED)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (MASK && MASK_ROWS) mask_row(g, mask_at[e], step * BN + column, mask_pairs, mask);
#pragma unroll
          for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
              float& a = s[4 * j + 2 * e + f];
              a *= log_scale;
              if (MASK) a = masked(a, mask[j].v[f], log_fill);
            }
        }
      if ((step + 1) * BN > least)
#pragma unroll
        for (int j = 0; j < BN / 2; j++)
          if (step * BN + j / 4 * 8 + column + (j & 1) >= see[j >> 1 & 1]) s[j] = -INF;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float best = top[e];
#pragma unroll
        for (int j = 0; j < BN / 8; j++) best = fmaxf(best, fmaxf(s[4 * j + 2 * e], s[4 * j + 2 * e + 1]));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
        const float shift = best == -INF ? 0.f : best * c;
        shrink[e] = exp2_approximate(top[e] * c - shift);
        top[e] = best;
        float more = 0.f;
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
          for (int f = 2 * e; f < 2 * e + 2; f++) {
            s[4 * j + f] = exp2_approximate(s[4 * j + f] * c - shift);
            more += s[4 * j + f];
          }
        sum[e] = sum[e] * shrink[e] + more;
      }
    };
    auto pack = [&] {
#pragma unroll
      for (int j = 0; j < BN / 4; j++) p[j] = pack2((T*)nullptr, s[2 * j], s[2 * j + 1]);
    };
    auto free_keys = [&] {
      if (leader) arrive(k_empty + 8 * k.slot);
      k.next();
    };
    auto free_values = [&] {
      if (leader) arrive(v_empty + 8 * v.slot);
      v.next();
    };

    if (steps > 0) {
      fetch_mask(steps - 1);
      wait(q_full, q_phase);
      q_phase ^= 1;
      wait(k_full + 8 * k.slot, k.phase);
      my_turn();
      scores();
      your_turn();
      multiply_wait<0>();
      results_ready(s);
      free_keys();
      if (OWN_OUTPUT && steps == 1 && leader) arrive(q_empty);
      softmax(steps - 1);
      pack();
      if (steps > 1) wait(k_full + 8 * k.slot, k.phase);
      for (int step = steps - 2; step >= 0; step--) {
        fetch_mask(step);
        my_turn();
        scores();
        wait(v_full + 8 * v.slot, v.phase);
        products();
        your_turn();
        multiply_wait<1>();
        results_ready(s);
        free_keys();
        if (OWN_OUTPUT && step == 0 && leader) arrive(q_empty);
        softmax(step);
        results_ready(s);
        // This wait stands here for the branch in it, too: the assembler would move the one for the products to the front of its block, and the softmax would
        // run after the products instead of beside them.
        if (step > 0) wait(k_full + 8 * k.slot, k.phase);
        multiply_wait<0>();
        results_ready(out);
        free_values();
#pragma unroll
        for (int d = 0; d < kDV / 2; d++) out[d] *= shrink[d >> 1 & 1];
        pack();
      }
      wait(v_full + 8 * v.slot, v.phase);
      products();
      multiply_wait<0>();
      results_ready(out);
      free_values();
    }

    // Each warp writes its 16 rows: through shared memory, so that the stores are 16 bytes wide.
#pragma unroll
    for (int e = 0; e < 2; e++) {
      sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
      sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
      sum[e] = inverse_of(sum[e]);
    }
    const int r0 = w * 64 + (warp & 3) * 16, r = r0 + (lane & 7) + (lane >> 3 & 1) * 8;
    __syncwarp();  // the rows before have been read
#pragma unroll
    for (int j = 0; j < kDV / 8; j += 2) {
      u32 o[4];
#pragma unroll
      for (int q = 0; q < 4; q++) o[q] = pack2((T*)nullptr, out[4 * j + 2 * q] * sum[q & 1], out[4 * j + 2 * q + 1] * sum[q & 1]);
      const int chunk = j + (lane >> 4);
      store_matrices(output + chunk / 8 * BM * 128 + r * 128 + (((chunk & 7) ^ (r & 7)) << 4), o[0], o[1], o[2], o[3]);
    }
    __syncwarp();
    constexpr int chunks = HEAD_V / 8;
    T* y = g.y + tile.b * g.y_b + tile.h * g.y_h;
    const char* const from = memory + (output - shared_address(memory));
    for (int u = lane; u < 16 * chunks; u += 32) {
      const int q = r0 + u / chunks, chunk = u % chunks;
      const Vec<T, 8> x = load<8>((const T*)(from + chunk / 8 * BM * 128 + q * 128 + (((chunk & 7) ^ (q & 7)) << 4)));
      if (tile.m + q < g.S) store<8>(y + (tile.m + q) * g.y_s + chunk * 8, x);
    }
    if (!OWN_OUTPUT && steps > 0) {  // the next queries may overwrite the results
      visible_to_copies();
      sync_group(4 + w, 128);
      if (leader) arrive(q_empty);
    }
  }
}
