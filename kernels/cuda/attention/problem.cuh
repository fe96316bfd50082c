// Shared by all attention kernels: the problem, visible keys, masks, normalisation.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int HEAD = 64;        // elements of a row of q and k, 1 to 256
constexpr int HEAD_V = 64;      // elements of a row of v and y, 1 to 256
constexpr int MASK = 0;         // 0: none, 1: added, 2: hides where false, 3: hides where true
constexpr bool CAUSAL = false;  // row s attends to the first s + past + 1 keys
constexpr int WINDOW = 0;       // of the keys that a row attends to, the last so many; 0: all
constexpr int NAN_TO_ZERO = 0;  // NaN becomes 0 in (1) all rows, (2) rows whose keys are all hidden
constexpr float SOFTCAP = 0.f;  // scores x become SOFTCAP * tanh(x / SOFTCAP); 0: unchanged
constexpr bool IS_HALF = !IS_F32;  // T is half_t
constexpr int THREADS = 256;       // of a CTA, among which the result is divided
#define OPERANDS                                                                               \
  const T *q, const T *k, const T *v, const void *mask, T *y, int B, int H, int KVH, int S,    \
      int Tk, i64 q_b, i64 q_s, i64 q_h, i64 k_b, i64 k_s, i64 k_h, i64 v_b, i64 v_s, i64 v_h, \
      i64 y_b, i64 y_s, i64 y_h, i64 m_b, i64 m_h, i64 m_q, i64 m_k, int past, float scale,    \
      float fill
#ifndef PARAMETERS
#define PARAMETERS OPERANDS
#endif
#endif  // GENERATED
#include "common/base.cuh"

// q [B, S, H, HEAD], k and v [B, Tk, KVH, HEAD or HEAD_V], y [B, S, H, HEAD_V], mask [B, H, S, Tk],
// with pitches in elements; KVH divides H. A boolean mask sets hidden scores to `fill`.
struct Attention {
  const T *q, *k, *v;
  const void* mask;
  T* y;
  int B, H, KVH, S, Tk;
  i64 q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, y_b, y_s, y_h, m_b, m_h, m_q, m_k;
  int past;
  float scale, fill;
#ifdef LENGTH
  const LENGTH* lens;
  int lens_add;
  u32* fault;
#endif
#ifdef QUANTISED
  float step;
  int zero;
#endif
};
// The operands among a kernel's PARAMETERS. QUANTISED: the type of y's elements, to which results
// of type T are quantised.
#ifdef LENGTH
#define LENGTHS , lens, lens_add, fault
#else
#define LENGTHS
#endif
#ifdef QUANTISED
#define STEPS , step, zero
#else
#define STEPS
#endif
#define ATTENTION                                                                              \
  Attention {                                                                                  \
    q, k, v, mask, y, B, H, KVH, S, Tk, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, y_b, y_s, \
        y_h, m_b, m_h, m_q, m_k, past, scale, fill LENGTHS STEPS                               \
  }
// With LENGTH, the type of lens: k and v are a cache, of which batch entry b has lens[b] + lens_add
// keys, and its queries are the last ones. CLAMP: where it has fewer keys than S, they begin at the
// first.
DEV void limit_keys(Attention& g, int b) {
#ifdef LENGTH
  const i64 keys = i64(g.lens[b]) + g.lens_add;
  const bool outside = keys < 0 || keys > g.Tk;
  if (outside) *g.fault = 1;
  g.Tk = outside ? 0 : int(keys);
  g.past = CLAMP ? max(0, g.Tk - g.S) : g.Tk - g.S;
#endif
}
constexpr float kLog2e = 1.4426950408889634f, kLowest = -3.402823466e38f;

DEV float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The factor of q k^T that gives scores in units of log2 or, with SOFTCAP, the argument of tanh = 1
// - 2 / (1 + exp2) for 16-bit types (capped() computes the scores).
constexpr bool kCapped = SOFTCAP != 0.f;
DEV float score_scale(const Attention& g) {
  return kCapped ? g.scale / SOFTCAP * (sizeof(T) == 4 ? 1.f : 2.f * kLog2e) : g.scale * kLog2e;
}
DEV float capped(float x) {
  if (!kCapped) return x;
  if (sizeof(T) == 4) return SOFTCAP * kLog2e * tanhf(x);
  float y;
  asm("{.reg .f32 e; ex2.approx.ftz.f32 e, %1; add.f32 e, e, 0f3f800000; rcp.approx.ftz.f32 %0, e;}"
      : "=f"(y)
      : "f"(x));
  return fmaf(-2.f * SOFTCAP * kLog2e, y, SOFTCAP * kLog2e);
}
// Mask value in units of log2; finite values stay finite.
DEV float to_log2(float m) {
  const float r = m * kLog2e;
  return sizeof(T) == 2 && MASK == 1 && IS_HALF ? r : r == -INF && m != -INF ? kLowest : r;
}
template <int KIND>
struct Element {
  typedef u8 Type;
};
template <>
struct Element<1> {
  typedef T Type;
};
typedef Element<MASK>::Type MaskElement;
DEV float number(u8 v) { return v; }
template <class A>
DEV float number(A v) {
  return to_float(v);
}
// The masked score of a key; x: the score in units of log2.
DEV float masked(float score, MaskElement mask, float fill) {
  const float m = number(mask);
  if (MASK == 1) return score + to_log2(m);
  if (MASK == 2) return m != 0.f ? score : fill;
  if (MASK == 3) return m != 0.f ? fill : score;
  return score;
}
DEV float masked(float score, const void* mask, i64 at, float fill) {
  return MASK ? masked(score, ((const MaskElement*)mask)[at], fill) : score;
}
// 1 / sum. A row without visible keys gives what softmax of nothing gives.
DEV float reciprocal_of(float sum) {
  return sum == 0.f ? (NAN_TO_ZERO || MASK == 0 ? 0.f : NOT_A_NUMBER) : 1.f / sum;
}
// A weighted sum of values, normalised. The reciprocal is NaN where a score of the row is NaN or
// +inf; with NAN_TO_ZERO = 1 the row becomes zero then, whatever the values are.
DEV float normalized(float out, float inverse) {
  return NAN_TO_ZERO == 1 && inverse != inverse ? 0.f : out * inverse;
}
// Number of keys that are visible to row s.
DEV int visible_keys(const Attention& g, int s) {
  return CAUSAL ? max(0, min(g.Tk, s + g.past + 1)) : g.Tk;
}
// The first of them.
DEV int first_key(const Attention& g, int s) {
  return WINDOW ? max(0, visible_keys(g, s) - WINDOW) : 0;
}
