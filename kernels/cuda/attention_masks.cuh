// Masks of attention on Hopper: one of keys is brought to shared memory by a warp, of one that rows have each their own threads read what they need.

constexpr bool kKeyMask = MASK && !MASK_ROWS, kRowMask = MASK && MASK_ROWS;  // all rows have the same mask or each its own
constexpr int kMask = (BN + 4) * 4;  // of a tile of keys: what is added, or whether a key is hidden; behind it whether there is any such key

// The mask of two neighbouring keys.
struct alignas(2 * sizeof(MaskElement)) MaskPair { MaskElement v[2]; };
// The mask of a thread's keys in one tile, for the row whose mask begins at element `at`; `first` is the thread's first key. pairs: keys are even
// in number, neighbours lie next to each other, the first of two at an even element of an aligned mask.
template <int N> DEV void mask_row(const Attention& g, i64 at, int first, bool pairs, MaskPair (&m)[N]) {
  const MaskElement* p = (const MaskElement*)g.mask + at;
  if (pairs) {
#pragma unroll
    for (int j = 0; j < N; j++) m[j] = first + 8 * j < g.Tk ? *(const MaskPair*)(p + first + 8 * j) : MaskPair{};
    return;
  }
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int f = 0; f < 2; f++) m[j].v[f] = first + 8 * j + f < g.Tk ? p[(first + 8 * j + f) * g.m_k] : MaskElement{};
}

// Whether no key that the warp's threads hold masks of is masked (by values known at a glance).
template <int N> DEV bool all_seen(const MaskPair (&m)[N]) {
  u32 changed = 0;
#pragma unroll
  for (int j = 0; j < N; j++)
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

// One warp: what the mask of keys does, a tile of keys after the other.
DEV void bring_masks(const Attention& g, const Order& order, Tile tile, float* masks, u32 full, u32 empty) {
  const int lane = threadIdx.x & 31;
  const float unit = RAW ? 1.f / g.scale : kLog2e;
  Ring<STAGES> k;
  after_previous();
  for (int n = 0; order.has(n); tile = order.nth(g, ++n))
    for (int step = tile.steps - 1; step >= 0; step--, k.next()) {
      const MaskElement* p = (const MaskElement*)g.mask + tile.b * g.m_b + tile.h * g.m_h;
      const int first = (first_step(g, tile) + step) * BN;
      float m[(BN + 31) / 32];
      bool any = false;
#pragma unroll
      for (int j = 0; j < (BN + 31) / 32; j++) {
        const int key = first + j * 32 + lane;
        const float x = number(p[min(key, g.Tk - 1) * g.m_k]);
        m[j] = key >= g.Tk ? 0.f : MASK == 1 ? in_units(x, unit) : (x != 0.f) != (MASK == 2);
        any |= m[j] != 0.f;
      }
      any = __any_sync(FULL_WARP, any);
      wait(empty + 8 * k.slot, k.phase ^ 1);
      float* to = masks + k.slot * (kMask / 4);
#pragma unroll
      for (int j = 0; j < (BN + 31) / 32; j++)
        if (j * 32 + lane < BN) to[j * 32 + lane] = m[j];
      if (lane == 0) to[BN] = any;
      arrive_warp(full + 8 * k.slot);
    }
}
