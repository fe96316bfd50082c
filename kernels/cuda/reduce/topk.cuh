// The K largest (or smallest) elements of a row, in order, and their indices; among equal ones the
// lower index comes first.
//
// Radix select, then a bitonic sort. The key of an element has its value as an ordered integer (NaN
// is the largest; -0 equals 0) in the high bits, and its reversed index in the low bits. Keys are
// distinct, so the result does not depend on the order in which threads run. Digits have eleven
// bits: with fewer, the exponents of similar values would contend for few counters.
#pragma once
#include "common/base.cuh"

DEV u32 ordered(float v) {
  if (v != v) return 0xffffffffu;
  const u32 bits = __float_as_uint(v == 0.f ? 0.f : v);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEV u32 ordered(int v) { return u32(v) ^ 0x80000000u; }
DEV u32 ordered_short(u32 bits, u32 infinity) {
  const u32 size = bits & 0x7fff;
  if (size > infinity) return 0xffff;
  return size == 0 ? 0x8000 : bits >> 15 ? ~bits & 0xffff : bits | 0x8000;
}
DEV u32 ordered(half_t v) { return ordered_short(v.bits, 0x7c00); }
DEV u32 ordered(bfloat_t v) { return ordered_short(v.bits, 0x7f80); }

// places: mask of the low bits that an index takes.
template <bool LARGEST, class E>
DEV u64 key_of(E v, u32 place, u32 places) {
  const u32 value = ordered(v) ^ (LARGEST ? 0 : 0xffffffffu >> (32 - 8 * sizeof(E)));
  return u64(value) * (u64(places) + 1) + (places - place);
}
DEV u32 place_of(u64 key, u32 places) { return places - (u32(key) & places); }
DEV u32 places_of(u32 n) { return n > 1 ? 0xffffffffu >> __clz(n - 1) : 1; }

// Keys of a row, or a part of it that begins at index `first` (Row), and keys in memory
// (SavedKeys). each(visit): the threads of the CTA together visit every key.
template <int THREADS, bool LARGEST, class E>
struct Row {
  const E* x;
  i64 step;
  u32 n, first, places;
  METHOD u64 operator[](u32 i) const { return key_of<LARGEST>(x[i * step], first + i, places); }
  template <class F>
  METHOD void each(F visit) const {
    if (step != 1) {
#pragma unroll 4
      for (u32 i = threadIdx.x; i < n; i += THREADS) visit((*this)[i]);
      return;
    }
    constexpr int V = 16 / sizeof(E);
    const u32 head = min(n, u32(-(u64(x) / sizeof(E)) & (V - 1))), vectors = (n - head) / V,
              tail = head + vectors * V + threadIdx.x;
    if (threadIdx.x < head) visit((*this)[threadIdx.x]);
#pragma unroll 2
    for (u32 v = threadIdx.x; v < vectors; v += THREADS) {
      const Vec<E, V> some = load<V>(x + head + v * V);
#pragma unroll
      for (int k = 0; k < V; k++)
        visit(key_of<LARGEST>(some.v[k], first + head + v * V + k, places));
    }
    if (tail < n) visit((*this)[tail]);
  }
};
template <int THREADS>
struct SavedKeys {
  const u64* keys;
  u32 n;
  METHOD u64 operator[](u32 i) const { return keys[i]; }
  template <class F>
  METHOD void each(F visit) const {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += THREADS) visit(keys[i]);
  }
};

constexpr int DIGIT = 11, DIGITS = 1 << DIGIT;

// The K-th largest of more than K keys of `bits` bits, in all threads of the CTA; all must call
// this.
template <int THREADS, class Keys>
DEV u64 kth_largest(const Keys& keys, int bits, u32 k) {
  __shared__ u32 counts[DIGITS], sums[32];
  __shared__ u32
      found[2];  // the digit of the K-th, and the number of keys with this digit among the K
  u64 prefix = 0, mask = 0;
  for (int shift = bits - DIGIT;; shift -= DIGIT) {
    const int low = max(shift, 0);
    for (u32 d = threadIdx.x; d < DIGITS; d += THREADS) counts[d] = 0;
    __syncthreads();
    keys.each([&](u64 key) {
      if ((key & mask) == prefix) atomicAdd(&counts[key >> low & (DIGITS - 1) & ~(mask >> low)], 1);
    });
    __syncthreads();
    // Thread t has the digits EACH t .. EACH t + EACH - 1; larger digits come first.
    constexpr int EACH = DIGITS / THREADS;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 sum = 0;
#pragma unroll
    for (int d = 0; d < EACH; d++) sum += counts[EACH * threadIdx.x + d];
    u32 above = sum;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const u32 more = __shfl_down_sync(FULL_WARP, above, far);
      if (lane + far < 32) above += more;
    }
    if (lane == 0) sums[warp] = above;
    __syncthreads();
    above -= sum;
    for (u32 w = warp + 1; w < THREADS / 32; w++) above += sums[w];
    if (above < k && k <= above + sum)
      for (int d = EACH - 1; d >= 0; d--) {
        const u32 here = counts[EACH * threadIdx.x + d];
        if (above < k && k <= above + here) found[0] = EACH * threadIdx.x + d, found[1] = k - above;
        above += here;
      }
    __syncthreads();
    const u32 digit = found[0], same = counts[digit];
    prefix |= u64(digit) << low, mask |= u64(DIGITS - 1) << low, k = found[1];
    if (same == k || low == 0) return prefix;  // all keys with this prefix are among the K
    __syncthreads();
  }
}

// Index of key i in shared memory: one word of padding after every eight keys avoids bank conflicts
// between threads that each read eight consecutive keys.
DEV int at(int i) { return i + i / 8; }

// Bitonic merge in registers: compare-exchange at distances COUNT / 2, ..., 1; descending if
// `down`.
template <int COUNT>
DEV void exchange(u64 (&k)[COUNT], bool down) {
#pragma unroll
  for (int d = COUNT / 2; d; d /= 2)
#pragma unroll
    for (int j = 0; j < COUNT; j++)
      if (!(j & d)) {
        const u64 u = k[j], v = k[j + d];
        const bool turn = (u < v) == down;
        k[j] = turn ? v : u, k[j + d] = turn ? u : v;
      }
}
// Bitonic merge in shared memory, at distances COUNT / 2 * step, ..., step; a thread has COUNT
// keys.
template <int THREADS, int SIZE, int COUNT>
DEV void merge(u64* keys, int run, int step) {
  for (int g = threadIdx.x; g < SIZE / COUNT; g += THREADS) {
    const int first = (g & ~(step - 1)) * COUNT + (g & (step - 1));
    u64 k[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++) k[j] = keys[at(first + j * step)];
    exchange(k, !(first & run));
#pragma unroll
    for (int j = 0; j < COUNT; j++) keys[at(first + j * step)] = k[j];
  }
  __syncthreads();
}
// Sorts SIZE keys in descending order; SIZE is a power of two, at least 8.
template <int THREADS, int SIZE>
DEV void sort_down(u64* keys) {
  merge<THREADS, SIZE, 2>(keys, 2, 1);
  merge<THREADS, SIZE, 4>(keys, 4, 1);
  for (int run = 8; run <= SIZE; run *= 2) {
    int far = run / 2;
    for (; far >= 4; far /= 8) merge<THREADS, SIZE, 8>(keys, run, far / 4);
    if (far == 2) merge<THREADS, SIZE, 4>(keys, run, 1);
    if (far == 1) merge<THREADS, SIZE, 2>(keys, run, 1);
  }
}

// Writes the K largest keys (all, if there are at most SIZE) to kept[0..SIZE), descending, zeros
// last.
template <int THREADS, int K, int SIZE, class Keys>
DEV void largest(const Keys& keys, int bits, u64* kept) {
  if (keys.n <= SIZE) {
    for (int i = threadIdx.x; i < SIZE; i += THREADS) kept[at(i)] = i < keys.n ? keys[i] : 0;
  } else {
    __shared__ u32 count;
    for (int i = threadIdx.x; i < SIZE; i += THREADS) kept[at(i)] = 0;
    if (threadIdx.x == 0) count = 0;
    const u64 least = kth_largest<THREADS>(keys, bits, K);
    keys.each([&](u64 key) {
      if (key >= least) kept[at(atomicAdd(&count, 1))] = key;
    });
  }
  __syncthreads();
  sort_down<THREADS, SIZE>(kept);
}

struct RowOffsets {  // of a row of [outer, n, inner] and of its results in [outer, K, inner]
  i64 x, y;
  METHOD RowOffsets(i64 row, i64 n, i64 inner, int K) {
    const i64 o = row / inner, i = row - o * inner;
    x = o * n * inner + i, y = o * K * inner + i;
  }
};
template <class E>
DEV void write_result(const E* x, E* y, i64* indices, const RowOffsets& l, i64 inner, int rank,
                      u32 place) {
  if (y) y[l.y + rank * inner] = x[l.x + place * inner];
  if (indices) indices[l.y + rank * inner] = place;
}
template <class E>
DEV int bits_of(u32 places) {
  return 8 * sizeof(E) + __popc(places);
}

// A CTA per row. FROM_KEYS: of the row, `parts` * K keys were stored (top_parts).
template <int THREADS, int K, int SIZE, bool LARGEST, bool FROM_KEYS, class E>
DEV void top_rows(const E* x, const u64* before, E* y, i64* indices, i64 rows, i64 n, i64 inner,
                  int parts, u64* kept, u32* fault) {
  if (n < K) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  const u32 places = places_of(u32(n));
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const RowOffsets l(row, n, inner, K);
    if constexpr (FROM_KEYS)
      largest<THREADS, K, SIZE>(SavedKeys<THREADS>{before + row * parts * K, u32(parts) * K},
                                bits_of<E>(places), kept);
    else
      largest<THREADS, K, SIZE>(Row<THREADS, LARGEST, E>{x + l.x, inner, u32(n), 0, places},
                                bits_of<E>(places), kept);
    for (int r = threadIdx.x; r < K; r += THREADS)
      write_result(x, y, indices, l, inner, r, place_of(kept[at(r)], places));
    __syncthreads();
  }
}

// A CTA per part (`each` elements) of a row stores the K largest keys of it. If the last part is
// shorter than K, zeros follow, which are below all keys.
template <int THREADS, int K, int SIZE, bool LARGEST, class E>
DEV void top_parts(const E* x, u64* after, i64 rows, i64 n, i64 inner, int parts, int each,
                   u64* kept) {
  const u32 places = places_of(u32(n)), first = u32(blockIdx.x % parts) * each,
            some = min(u32(each), u32(n) - first);
  const RowOffsets l(blockIdx.x / parts, n, inner, K);
  largest<THREADS, K, SIZE>(
      Row<THREADS, LARGEST, E>{x + l.x + first * inner, inner, some, first, places},
      bits_of<E>(places), kept);
  for (int r = threadIdx.x; r < K; r += THREADS) after[i64(blockIdx.x) * K + r] = kept[at(r)];
}

// A warp per row of at most 32 V elements: K times, the largest key is found and removed.
template <int K, int V, bool LARGEST, class E>
DEV void top_warps(const E* x, E* y, i64* indices, i64 rows, i64 n, i64 inner, u32* fault) {
  const u32 lane = threadIdx.x & 31, warps = blockDim.x / 32;
  if (n < K) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  for (i64 row = i64(blockIdx.x) * warps + threadIdx.x / 32; row < rows;
       row += i64(gridDim.x) * warps) {
    const RowOffsets l(row, n, inner, K);
    u64 keys[V], mine = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
      const u32 i = 32 * v + lane;
      keys[v] = i < n ? key_of<LARGEST>(x[l.x + i * inner], i, 0xffffffffu) : 0;
    }
#pragma unroll 1
    for (int r = 0; r < K; r++) {
      u64 best = keys[0];
#pragma unroll
      for (int v = 1; v < V; v++) best = max(best, keys[v]);
      const u32 high = __reduce_max_sync(FULL_WARP, u32(best >> 32)),
                low = __reduce_max_sync(FULL_WARP, u32(best >> 32) == high ? u32(best) : 0);
      const u64 top = u64(high) << 32 | low;
#pragma unroll
      for (int v = 0; v < V; v++) keys[v] = keys[v] == top ? 0 : keys[v];
      if (lane == r) mine = top;
    }
    if (lane < K) write_result(x, y, indices, l, inner, lane, place_of(mine, 0xffffffffu));
  }
}
