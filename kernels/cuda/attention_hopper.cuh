// softmax(scale q k^T + mask) v on Hopper, 16-bit operands: persistent blocks of one producer warp (tensor copies of q, k and v, one tile of the output after
// the other) and GROUPS consumer warpgroups of 64 query rows each. Keys come in tiles of BN, from the last to the first, so that tiles with hidden keys come
// first. What hides a warpgroup's products and its softmax is the other warpgroups of the multiprocessor, which run freely, and with OVERLAP (where
// registers allow fewer of them) its own: then it issues the scores of the next tile before the products with the values of this one.
//
// RAW: scores stay unscaled up to their exponentials.
// The generator defines multiply_scores (S[64 x BN] = q k^T) and multiply_values (out[64 x kDV] += p v).

// Keeps the compiler from moving uses of results before the wait.
template <int N> DEV void results_ready(float (&d)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) asm volatile("" : "+f"(d[k])::"memory");
}
template <int N> DEV void registers_lessened() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void registers_raised() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
DEV void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
DEV float exp2_approximate(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Rows of 128 bytes with the 128-byte swizzle, groups of 8 rows 1024 bytes apart. `panel`: bytes between panels of 64 columns when these are the
// dimension that is not multiplied over. The lower half, in which addresses (in units of 16 bytes) add up, and the whole.
DEV u32 place(u32 address, u32 panel) { return address >> 4 | panel >> 4 << 16; }
DEV u64 descriptor(u32 place) { return u64(64u | 1u << 30) << 32 | place; }

constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, BM = GROUPS * 64;
constexpr int kPanels = (HEAD + 63) / 64, kPanelsV = (HEAD_V + 63) / 64;
constexpr int kQueries = BM * 128 * kPanels, kKeys = BN * 128 * kPanels, kValues = BN * 128 * kPanelsV, kOutput = BM * 128 * kPanelsV;
constexpr int kSlot = kQueries > kOutput ? kQueries : kOutput;  // results take the place of the queries
constexpr float kSlack = 8.f;

// An output tile: its first row, batch and head, and how many tiles of keys it sees (-1: there is no such tile).
struct alignas(16) Tile { int m, b, h, steps; };
DEV int key_tiles(const Attention& g, int rows) { return (visible_keys(g, min(rows, g.S) - 1) + BN - 1) / BN; }
// Which rows come when. Causal: longest rows first in the last band of heads whose keys and values fit the L2 cache, shortest first in the band before
// it, and so on: lengths never jump, so that blocks that go there and back again get equal shares.
struct Order {
  int rows, count, together, bands;
  __device__ __forceinline__ Order(const Attention& g) {
    const int heads = g.B * g.H;
    rows = (g.S + BM - 1) / BM, count = rows * heads;
    if (!CAUSAL || count == 0) return;
    const float bytes = 2.f * g.Tk * (HEAD + HEAD_V) * g.KVH / g.H;
    bands = (heads - 1) / max(1, int(24e6f / bytes)) + 1, together = (heads + bands - 1) / bands;
  }
  // With -1 steps behind the last.
  __device__ __forceinline__ Tile tile(const Attention& g, int t) const {
    if (t >= count) return {0, 0, 0, -1};
    int m = t % rows, head = t / rows;
    if (CAUSAL) {
      const int band = t / (together * rows), rest = t - band * together * rows, width = min(together, g.B * g.H - band * together);
      m = rest / width, head = band * together + rest % width;
      if ((bands - band) & 1) m = rows - 1 - m;
    }
    return {m * BM, head / g.H, head % g.H, key_tiles(g, m * BM + BM)};
  }
};

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

// Whether no key that the warp's threads hold masks of is masked (by values known at a glance).
DEV bool all_seen(const MaskPair (&m)[BN / 8]) {
  u32 changed = 0;
#pragma unroll
  for (int j = 0; j < BN / 8; j++)
    changed |= MASK == 1 ? *(const u32*)&m[j] & 0x7fff7fffu : *(const u16*)&m[j] ^ (MASK == 2 ? 0x0101u : 0u);
  return __all_sync(FULL_WARP, changed == 0);
}
// A finite value stays finite in units of what scores are counted in.
DEV float in_units(float v, float unit) {
  const float r = v * unit;
  return MASK == 1 && IS_HALF ? r : r == -INF && v != -INF ? kLowest : r;
}
DEV float masked_in(float score, MaskElement mask, float unit, float fill) {
  const float m = number(mask);
  return MASK == 1 ? score + in_units(m, unit) : (m != 0.f) == (MASK == 2) ? score : fill;
}

template <int COUNT> struct Ring {
  int slot = 0;
  u32 phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == COUNT) slot = 0, phase ^= 1;
  }
};

DEV void attend(const Attention& g, const TensorMap& map_q, const TensorMap& map_k, const TensorMap& map_v) {
  extern __shared__ char memory[];
  const u32 start = shared_address(memory), queries = (start + 1023u) & ~1023u, keys = queries + SLOTS * kSlot, values = keys + STAGES * kKeys;
  const u32 tiles_at = values + STAGES * kValues, q_full = tiles_at + 16 * SLOTS, q_empty = q_full + 8 * SLOTS, k_full = q_empty + 8 * SLOTS,
            k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  Tile* const tiles = (Tile*)(memory + (tiles_at - start));
  const int warp = __shfl_sync(FULL_WARP, int(threadIdx.x >> 5), 0), w = warp / 4;
  if (threadIdx.x == GROUPS * 128) {
    prefetch(map_q), prefetch(map_k), prefetch(map_v);
    for (int i = 0; i < SLOTS; i++) barrier_init(q_full + 8 * i, 1), barrier_init(q_empty + 8 * i, GROUPS);
    for (int i = 0; i < STAGES; i++) barrier_init(k_full + 8 * i, 1), barrier_init(v_full + 8 * i, 1), barrier_init(k_empty + 8 * i, GROUPS), barrier_init(v_empty + 8 * i, GROUPS);
    barriers_ready();
  }
  __syncthreads();

  if (w == GROUPS) {
    registers_lessened<REGISTERS_LEFT>();
    if (warp != GROUPS * 4 || !elected()) return;
    const Order order(g);
    const int block = blockIdx.x, blocks = gridDim.x;
    Tile tile = order.tile(g, block);
    Ring<STAGES> k, v;
    Ring<SLOTS> q;
    after_previous();
    for (int n = 0; n * blocks < order.count;) {
      if (tile.steps >= 0) {
        const int kv = tile.h / (g.H / g.KVH);
        wait(q_empty + 8 * q.slot, q.phase ^ 1);
        tiles[q.slot] = tile;
        if (tile.steps == 0) arrive(q_full + 8 * q.slot);
        for (int step = tile.steps - 1; step >= 0; step--) {
          if (step == tile.steps - 1) {
            expect_bytes(q_full + 8 * q.slot, kQueries);
            for (int p = 0; p < kPanels; p++) copy4(queries + q.slot * kSlot + p * BM * 128, &map_q, q_full + 8 * q.slot, p * 64, tile.m, tile.h, tile.b);
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
        q.next();
      }
      n++;  // there and back again, so that long and short tiles even out
      tile = order.tile(g, n * blocks + (CAUSAL && n % 2 ? blocks - 1 - block : block));
    }
    wait(q_empty + 8 * q.slot, q.phase ^ 1);
    tiles[q.slot] = {0, 0, 0, -1};
    arrive(q_full + 8 * q.slot);
    return;
  }

  after_previous();
  registers_raised<REGISTERS>();
  const int lane = threadIdx.x & 31, rows = w * 64, row = rows + (warp & 3) * 16 + lane / 4, column = lane % 4 * 2;
  const bool leader = threadIdx.x % 128 == 0;
  const u32 query = place(queries + rows * 128, 16), key = place(keys, 16), value = place(values, BN * 128);
  const float log_scale = g.scale * kLog2e, unit = RAW ? 1.f / g.scale : kLog2e, fill = in_units(g.fill, unit), c = RAW ? log_scale : 1.f;
  const bool mask_pairs = MASK && g.m_k == 1 && g.Tk % 2 == 0 && ((g.m_b | g.m_h | g.m_q) & 1) == 0 && aligned(g.mask, 2 * sizeof(MaskElement));
  Ring<STAGES> k, v;
  Ring<SLOTS> q;

  for (;; q.next()) {
    wait(q_full + 8 * q.slot, q.phase);
    const Tile tile = tiles[q.slot];
    if (tile.steps < 0) break;
    const int s0 = tile.m + row, see[2] = {visible_keys(g, s0), visible_keys(g, s0 + 8)}, least = visible_keys(g, tile.m + rows + (warp & 3) * 16);
    const i64 mask_at[2] = {tile.b * g.m_b + tile.h * g.m_h + min(s0, g.S - 1) * g.m_q, tile.b * g.m_b + tile.h * g.m_h + min(s0 + 8, g.S - 1) * g.m_q};
    float out[kDV / 2], s[BN / 2], top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f}, shrink[2] = {1.f, 1.f};
    u32 p[BN / 4];
    MaskPair mask[BN / 8];
    bool seen = false;
    auto fetch_mask = [&](int step) {  // early, where all rows have the same
      if (MASK && !MASK_ROWS) mask_row(g, mask_at[0], step * BN + column, mask_pairs, mask);
    };
#pragma unroll
    for (int d = 0; d < kDV / 2; d++) out[d] = 0.f;

    auto scores = [&] {  // s = q k^T, not finished
      const u32 a = query + q.slot * (kSlot / 16), b = key + k.slot * (kKeys / 16);
      multiply_fence();
#pragma unroll
      for (int d = 0; d < kD / 16; d++)
        multiply_scores(s, descriptor(a + d / 4 * (BM * 8) + d % 4 * 2), descriptor(b + d / 4 * (BN * 8) + d % 4 * 2), d != 0);
      multiply_commit();
    };
    auto products = [&] {  // out += p v, not finished
      const u32 b = value + v.slot * (kValues / 16);
      multiply_fence();
#pragma unroll
      for (int t = 0; t < BN / 16; t++) multiply_values(out, p + 4 * t, descriptor(b + t * 128));
      multiply_commit();
    };
    auto softmax = [&](int step) {  // s becomes weights; shrink is what earlier sums and outputs must be multiplied by
      if (!RAW)
#pragma unroll
        for (int j = 0; j < BN / 2; j++) s[j] *= log_scale;
      if (MASK)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (MASK_ROWS) mask_row(g, mask_at[e], step * BN + column, mask_pairs, mask);
          if (MASK_ROWS || e == 0) seen = all_seen(mask);
          if (!seen)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
              for (int f = 2 * e; f < 2 * e + 2; f++) s[4 * j + f] = masked_in(s[4 * j + f], mask[j].v[f - 2 * e], unit, fill);
        }
      if (step > 0) fetch_mask(step - 1);
      if ((step + 1) * BN > least) {
        const int limit[2] = {see[0] - step * BN - column, see[1] - step * BN - column};
#pragma unroll
        for (int j = 0; j < BN / 2; j++)
          if (j / 4 * 8 + (j & 1) >= limit[j >> 1 & 1]) s[j] = -INF;
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float best = top[e];
#pragma unroll
        for (int j = 0; j < BN / 8; j++) best = fmaxf(best, fmaxf(s[4 * j + 2 * e], s[4 * j + 2 * e + 1]));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
        if ((best - top[e]) * c <= kSlack) best = top[e];  // weights up to 2^kSlack are as exact as those up to 1
        const float shift = best == -INF ? 0.f : best * c;
        shrink[e] = best == top[e] ? 1.f : exp2_approximate(top[e] * c - shift);
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
    auto rescale = [&] {
      if (__any_sync(FULL_WARP, shrink[0] != 1.f || shrink[1] != 1.f))
#pragma unroll
        for (int d = 0; d < kDV / 2; d++) out[d] *= shrink[d >> 1 & 1];
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

    // A warpgroup of earlier rows sees fewer keys, one without rows none.
    const int mine = tile.m + rows >= g.S ? 0 : CAUSAL ? key_tiles(g, tile.m + rows + 64) : tile.steps;
    for (int step = tile.steps - 1; step >= mine; step--) {
      wait(k_full + 8 * k.slot, k.phase);
      wait(v_full + 8 * v.slot, v.phase);
      sync_group(4 + w, 128);
      free_keys();
      free_values();
    }
    int step = mine - 1;
    if (step >= 0) fetch_mask(step);
    if (OVERLAP && step >= 0) {
      wait(k_full + 8 * k.slot, k.phase);
      scores();
      multiply_wait<0>();
      results_ready(s);
      free_keys();
      softmax(step);
      pack();
      if (step > 0) wait(k_full + 8 * k.slot, k.phase);
      for (step--; step >= 0; step--) {
        scores();
        wait(v_full + 8 * v.slot, v.phase);
        products();
        multiply_wait<1>();
        results_ready(s);
        free_keys();
        softmax(step);
        results_ready(s);
        // This wait stands here for the branch in it, too: the assembler would move the one for the products to the front of its block, and the softmax would
        // run after the products instead of beside them.
        if (step > 0) wait(k_full + 8 * k.slot, k.phase);
        multiply_wait<0>();
        results_ready(out);
        free_values();
        rescale();
        pack();
      }
      wait(v_full + 8 * v.slot, v.phase);
      products();
      multiply_wait<0>();
      results_ready(out);
      free_values();
    } else
      for (; step >= 0; step--) {
        wait(k_full + 8 * k.slot, k.phase);
        scores();
        multiply_wait<0>();
        results_ready(s);
        free_keys();
        softmax(step);
        rescale();
        pack();
        wait(v_full + 8 * v.slot, v.phase);
        products();
        multiply_wait<0>();
        results_ready(out);
        free_values();
      }

#pragma unroll
    for (int e = 0; e < 2; e++) {
      sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
      sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
      sum[e] = inverse_of(sum[e]);
    }

    // Each warp writes its 16 rows: through shared memory, so that the stores are 16 bytes wide.
    const u32 output = queries + q.slot * kSlot;
    const int r0 = rows + (warp & 3) * 16, r = r0 + (lane & 7) + (lane >> 3 & 1) * 8;
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
    const char* const from = memory + (output - start);
    for (int u = lane; u < 16 * chunks; u += 32) {
      const int q = r0 + u / chunks, chunk = u % chunks;
      const Vec<T, 8> x = load<8>((const T*)(from + chunk / 8 * BM * 128 + q * 128 + (((chunk & 7) ^ (q & 7)) << 4)));
      if (tile.m + q < g.S) store<8>(y + (tile.m + q) * g.y_s + chunk * 8, x);
    }
    visible_to_copies();  // the next queries may overwrite the results
    sync_group(4 + w, 128);
    if (leader) arrive(q_empty + 8 * q.slot);
  }
}
