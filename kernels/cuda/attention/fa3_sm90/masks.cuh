// Masks for FlashAttention-3. A warp loads a mask of keys to shared memory; several warps load
// masks of rows. Where the elements of a mask row are not contiguous, consumer threads read them
// directly.
#pragma once
#include "attention/fa3_sm90/pipeline.cuh"

constexpr bool kKeyMask = MASK && !MASK_ROWS,
               kRowMask = MASK && MASK_ROWS;  // all rows have the same mask or each its own
constexpr bool kRowMasksStaged = kRowMask && MASK_STEP > 0,
               kMasksStaged = kKeyMask || kRowMasksStaged;
constexpr int kMaskUnits = BN * sizeof(MaskElement) / 16,
              kMaskPitch = (kMaskUnits + 1 + kMaskUnits % 2) *
                           16;  // where rows lie beside each other, no two in one bank
// Of a tile of keys: the values to add, or whether keys are hidden, followed by a flag whether any
// is; or the rows' masks.
constexpr int kMask = kRowMasksStaged ? BM * kMaskPitch : (BN + 4) * 4, kMaskWarps = 2;

// Masks of two neighbouring keys as one integer.
DEV u32 mask_bits(u8 v) { return v; }
template <class A>
DEV u32 mask_bits(A v) {
  return v.bits;
}
DEV u32 mask_pair(const MaskElement* p) { return MASK == 1 ? *(const u32*)p : *(const u16*)p; }
DEV u32 mask_pair(MaskElement a, MaskElement b) {
  return mask_bits(a) | mask_bits(b) << 8 * sizeof(MaskElement);
}
// The masks of a thread's keys in a tile, for the row whose mask begins at element `at`; first: the
// thread's first key. pairs: the number of keys is even, and pairs of neighbours are contiguous and
// aligned.
template <int N>
DEV void mask_row(const Attention& g, i64 at, int first, bool pairs, u32 (&m)[N]) {
  const MaskElement* p = (const MaskElement*)g.mask + at;
  if (pairs) {
#pragma unroll
    for (int j = 0; j < N; j++) m[j] = first + 8 * j < g.Tk ? mask_pair(p + first + 8 * j) : 0;
    return;
  }
  auto one = [&](int key) { return key < g.Tk ? p[key * g.m_k] : MaskElement{}; };
#pragma unroll
  for (int j = 0; j < N; j++) m[j] = mask_pair(one(first + 8 * j), one(first + 8 * j + 1));
}

// The same from shared memory; row: address of the thread's first key.
template <int N>
DEV void mask_row(const MaskElement* row, u32 (&m)[N]) {
#pragma unroll
  for (int j = 0; j < N; j++)
    m[j] = MASK_STEP > 1 ? mask_pair(row + 8 * j) : mask_pair(row[8 * j], row[8 * j + 1]);
}
// Misalignment of a row's mask to 16 bytes. It is the same in shared memory, as aligned 16-byte
// units are copied.
DEV int bytes_behind(const void* row) {
  return MASK_STEP * sizeof(MaskElement) == 16 ? 0 : int(u64(row) & 15);
}

// Whether none of the warp's keys is masked, by a cheap test that may say no wrongly.
template <int N>
DEV bool all_visible(const u32 (&m)[N]) {
  u32 changed = 0;
#pragma unroll
  for (int j = 0; j < N; j++)
    changed |= MASK == 1 ? m[j] & 0x7fff7fffu : m[j] ^ (MASK == 2 ? 0x0101u : 0u);
  return __all_sync(FULL_WARP, changed == 0);
}
// Mask value in units of scores; finite values stay finite.
DEV float in_units(float v, float unit) {
  const float r = v * unit;
  return MASK == 1 && IS_HALF ? r : r == -INF && v != -INF ? kLowest : r;
}
DEV void mask_two(float& a, float& b, u32 mask, float unit, float fill) {
  if (MASK == 1) {
    float x, y;
    unpack2((T*)nullptr, mask, x, y);
    a += in_units(x, unit), b += in_units(y, unit);
    return;
  }
  if (((mask & 0xffu) != 0) != (MASK == 2)) a = fill;
  if (((mask & 0xff00u) != 0) != (MASK == 2)) b = fill;
}

// One warp: loads the mask of keys, tile after tile.
DEV void load_key_masks(const Attention& g, const TileScheduler& scheduler, Tile tile, float* masks,
                        u32 full, u32 empty) {
  const int lane = threadIdx.x & 31;
  const float unit = RAW ? 1.f / g.scale : kLog2e;
  PipelineState<STAGES> k;
  pdl_begin();
  for (int n = 0; scheduler.has(n); tile = scheduler.nth(g, ++n))
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
// cp.async of 16 bytes, of which `read` are read; the rest become zero.
DEV void copy_piece(u32 to, const char* from, int count) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count)
               : "memory");
}
// The same number of bytes by ordinary stores, for other threads of the CTA.
DEV void copy_bytes(u32 to, const char* from, int count) {
#pragma unroll 1
  for (int k = 0; k < count; k++)
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + k), "r"(u32(u8(from[k]))) : "memory");
  asm volatile("fence.acq_rel.cta;" ::: "memory");
}
DEV void arrive_copied(u32 b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
}
// Warp `of` of kMaskWarps: loads its rows of the row masks, tile after tile. A thread copies the
// same 16 bytes of every kTogether-th row, if the row has any of them.
DEV void load_row_masks(const Attention& g, const TileScheduler& scheduler, Tile tile, int of,
                        u32 masks, u32 full, u32 empty) {
  constexpr int kBytes = BN * int(sizeof(MaskElement)),
                kPieces = kMaskUnits + (MASK_STEP * sizeof(MaskElement) < 16),
                kRows = BM / kMaskWarps;
  constexpr int kAcross = kPieces <= 4    ? 4
                          : kPieces <= 8  ? 8
                          : kPieces <= 16 ? 16
                                          : 32,
                kTogether = 32 / kAcross;
  static_assert(kPieces <= 32, "a row for a warp");
  const int at = threadIdx.x % kAcross * 16, first_row = of * kRows + (threadIdx.x & 31) / kAcross;
  const i64 apart = kTogether * g.m_q;
  PipelineState<STAGES> k;
  pdl_begin();
  for (int n = 0; scheduler.has(n); tile = scheduler.nth(g, ++n))
    for (int step = tile.steps - 1; step >= 0; step--, k.next()) {
      const int first = (first_step(g, tile) + step) * BN,
                end = min((of + 1) * kRows, g.S - tile.m),
                seen = min(kBytes, (g.Tk - first) * int(sizeof(MaskElement)));
      const MaskElement* row = (const MaskElement*)g.mask + tile.b * g.m_b + tile.h * g.m_h +
                               (tile.m + first_row) * g.m_q + first;
      u32 to = masks + k.slot * kMask + first_row * kMaskPitch + at;
      wait(empty + 8 * k.slot, k.phase ^ 1);
      if (first + BN + 16 < g.Tk ||
          tile.m + BM + 16 < g.S) {  // 16 bytes are as many keys of a row at most, or as many rows
#pragma unroll 4
        for (int r = first_row; r < end;
             r += kTogether, row += apart, to += kTogether * kMaskPitch) {
          const int from = at - bytes_behind(row);
          if (at < kPieces * 16 && from < seen)
            copy_piece(to, (const char*)row + from, min(seen - from, 16));
        }
      } else {  // nothing is read behind the last mask
#pragma unroll 1
        for (int r = first_row; r < end;
             r += kTogether, row += apart, to += kTogether * kMaskPitch) {
          const int from = at - bytes_behind(row), count = min(seen - from, 16);
          if (at >= kPieces * 16 || count <= 0) continue;
          const MaskElement* const after = (const MaskElement*)g.mask + (g.B - 1) * g.m_b +
                                           (g.H - 1) * g.m_h + (g.S - 1) * g.m_q + g.Tk;
          const char* const piece = (const char*)row + from;
          if (piece + 16 > (const char*)after)
            copy_bytes(to, piece, count);
          else
            copy_piece(to, piece, count);
        }
      }
      arrive_copied(full + 8 * k.slot);
    }
}
