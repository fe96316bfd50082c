// A step of attention over caches: queries and keys rotated by a rotary embedding, keys and values
// written into their caches, from a row on that each batch entry has.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define INDEX int   // type of the rows
#define WORD uint4  // by which old rows are copied
#define PARAMETERS                                                                                 \
  const T *q, const T *k, const T *v, const T *cosines, const T *sines, const WORD *past_k,        \
      const WORD *past_v, const INDEX *at, T *y, T *keys, T *values, int B, int S, int H, int KVH, \
      int P, int R, int D, int rot, int words, i64 q_b, i64 q_s, i64 q_h, i64 k_b, i64 k_s,        \
      i64 k_h, i64 v_b, i64 v_s, i64 v_h, i64 c_b, i64 c_s, i64 places, i64 at_add, u32 *fault
constexpr bool INTERLEAVED = false;
#endif  // GENERATED
#include "common/base.cuh"

// Where a batch entry's new rows begin in caches of R rows, of which P come from the past; negative
// where they do not fit.
DEV i64 first_row(const INDEX* at, int b, i64 add, int S, int P, int R, bool shared) {
  const i64 given = at[b], start = given + add > 0 ? given + add : 0;
  const bool fits = given >= 0 && given <= i64(1) << 40 && start + S <= R && start <= P;
  return fits && !(shared && P != R) ? start : -1;
}
// What is before the new rows comes from the past, behind them are zeros. A cache that has the
// memory of the past has all of that.
DEV void keep_old(const WORD* past, WORD* cache, const INDEX* at, int B, int KVH, int S, int P,
                  int R, int words, i64 add) {
  if (past == cache) return;
  const i64 total = i64(B) * KVH * max(R - S, 0) * words;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const i64 row = u / words, head = row / (R - S);
    const i64 start = first_row(at, int(head / KVH), add, S, P, R, false);
    if (start < 0) continue;
    const int c = int(u % words), r = int(row % (R - S)), t = r < start ? r : r + S;
    WORD old{};
    if (t < start) old = past[(head * P + t) * words + c];
    cache[(head * R + t) * words + c] = old;
  }
}

// A thread has a pair of elements of a row, or one that is not rotated; rows of a token are those
// of its queries, keys and values.
extern "C" __global__ void __launch_bounds__(256) rope_cache(PARAMETERS) {
  pdl_begin();
  const int half = rot / 2, work = D - half, heads = H + 2 * KVH;
  const bool shared = (const void*)past_k == keys || (const void*)past_v == values;
  const i64 total = i64(B) * S * heads * work;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += i64(gridDim.x) * blockDim.x) {
    const int i = int(u % work);
    i64 row = u / work;
    const int h = int(row % heads);
    row /= heads;
    const int s = int(row % S), b = int(row / S), kv = h < H + KVH ? h - H : h - H - KVH;
    const T* from = h < H         ? q + b * q_b + s * q_s + h * q_h
                    : h < H + KVH ? k + b * k_b + s * k_s + kv * k_h
                                  : v + b * v_b + s * v_s + kv * v_h;
    const i64 start = first_row(at, b, at_add, S, P, R, shared);
    if (start < 0 || (places && start + S > places)) {
      *fault = 1;
      continue;
    }
    T* const to = h < H ? y + ((i64(b) * S + s) * H + h) * D
                        : (h < H + KVH ? keys : values) + ((i64(b) * KVH + kv) * R + start + s) * D;
    if (i >= half) {
      to[half + i] = from[half + i];
      continue;
    }
    const int first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? 2 * i + 1 : i + half;
    if (h >= H + KVH) {
      to[first] = from[first], to[second] = from[second];
      continue;
    }
    const i64 turn = places ? (start + s) * c_s + i : b * c_b + s * c_s + i;
    const float one = to_float(from[first]), other = to_float(from[second]),
                cosine = to_float(cosines[turn]), sine = to_float(sines[turn]);
    from_float(to[first], one * cosine - other * sine);
    from_float(to[second], other * cosine + one * sine);
  }
  keep_old(past_k, (WORD*)keys, at, B, KVH, S, P, R, words, at_add);
  keep_old(past_v, (WORD*)values, at, B, KVH, S, P, R, words, at_add);
}
