// The K largest (or smallest) elements of a row, in order, and their places; of equal ones the earlier comes first. Follows base.cuh.
//
// A key says where an element stands: 32 bits in the order of the values (NaN above all, both zeros one), above the place turned round. No two keys are equal, so that
// "the K largest keys" means one set in one order, whatever order threads run in. Digits of eight bits narrow down the K-th largest by counting; what is not below it is
// kept and sorted.

DEV u32 ordered(float v) {
  if (v != v) return 0xffffffffu;
  const u32 bits = __float_as_uint(v == 0.f ? 0.f : v);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEV u32 ordered(i32 v) { return u32(v) ^ 0x80000000u; }
template <class E> DEV u32 ordered(E v) { return ordered(to_float(v)); }

template <bool LARGEST, class E> DEV u64 key_of(E v, u32 place) { return u64(LARGEST ? ordered(v) : ~ordered(v)) << 32 | u32(~place); }
DEV u32 place_of(u64 key) { return ~u32(key); }

// Keys of a row that lies in memory, and of one whose keys were kept before.
template <bool LARGEST, class E> struct Row {
  const E* x;
  i64 step;
  METHOD u64 operator[](u32 i) const { return key_of<LARGEST>(x[i * step], i); }
};
struct Kept {
  const u64* keys;
  METHOD u64 operator[](u32 i) const { return keys[i]; }
};

// The K-th largest of n keys, n > K. All threads of the block call it, and get it.
template <int THREADS, class Keys> DEV u64 kth(const Keys& keys, u32 n, u32 k) {
  __shared__ u32 counts[256];
  __shared__ u32 found[2];  // the digit of the K-th, and how many of those that share it are among the K
  u64 prefix = 0, mask = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (u32 d = threadIdx.x; d < 256; d += THREADS) counts[d] = 0;
    __syncthreads();
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
      const u64 key = keys[i];
      if ((key & mask) == prefix) atomicAdd(&counts[key >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // lane l has the digits 8 l .. 8 l + 7; what lies above it comes first
      u32 sum = 0;
#pragma unroll
      for (int d = 0; d < 8; d++) sum += counts[8 * threadIdx.x + d];
      u32 above = sum;
#pragma unroll
      for (int far = 1; far < 32; far *= 2) {
        const u32 more = __shfl_down_sync(FULL_WARP, above, far);
        if (threadIdx.x + far < 32) above += more;
      }
      above -= sum;
#pragma unroll
      for (int d = 7; d >= 0; d--) {
        const u32 here = counts[8 * threadIdx.x + d];
        if (above < k && k <= above + here) found[0] = 8 * threadIdx.x + d, found[1] = k - above;
        above += here;
      }
    }
    __syncthreads();
    const u32 digit = found[0], same = counts[digit];
    prefix |= u64(digit) << shift, mask |= u64(255) << shift;
    k = found[1];
    __syncthreads();
    if (same == k) break;  // all that share it are among the K
  }
  return prefix;
}

// Sorts SIZE keys, a power of two, from the largest down.
template <int THREADS, int SIZE> DEV void sort_down(u64* keys) {
  for (int run = 2; run <= SIZE; run *= 2)
    for (int far = run / 2; far; far /= 2) {
      for (int p = threadIdx.x; p < SIZE / 2; p += THREADS) {
        const int a = 2 * p - (p & (far - 1)), b = a + far;
        const u64 u = keys[a], v = keys[b];
        if ((u < v) == !(a & run)) keys[a] = v, keys[b] = u;
      }
      __syncthreads();
    }
}

// The K largest of n keys into kept[SIZE], SIZE the next power of two, what is left over 0; in order if SORTED.
template <int THREADS, int K, int SIZE, bool SORTED, class Keys> DEV void largest(const Keys& keys, u32 n, u64* kept) {
  __shared__ u32 count;
  for (int i = threadIdx.x; i < SIZE; i += THREADS) kept[i] = 0;
  if (threadIdx.x == 0) count = 0;
  const u64 least = n > K ? kth<THREADS>(keys, n, K) : 0;
  __syncthreads();
#pragma unroll 4
  for (u32 i = threadIdx.x; i < n; i += THREADS) {
    const u64 key = keys[i];
    if (key >= least) kept[atomicAdd(&count, 1)] = key;
  }
  __syncthreads();
  if (SORTED) sort_down<THREADS, SIZE>(kept);
}

struct Line {  // a row of [outer, n, inner], and where its results go in [outer, K, inner]
  i64 x, y;
  METHOD Line(i64 row, i64 n, i64 inner, int K) {
    const i64 o = row / inner, i = row - o * inner;
    x = o * n * inner + i, y = o * K * inner + i;
  }
};
template <class E> DEV void answer(const E* x, E* y, i64* at, const Line& l, i64 inner, int rank, u64 key) {
  const u32 place = place_of(key);
  if (y) y[l.y + rank * inner] = x[l.x + place * inner];
  if (at) at[l.y + rank * inner] = place;
}

// A block for each row; with FROM_KEPT, for the `parts` times K keys that were kept of it.
template <int THREADS, int K, int SIZE, bool LARGEST, bool FROM_KEPT, class E>
DEV void top_rows(const E* x, const u64* before, E* y, i64* at, i64 rows, i64 n, i64 inner, int parts, u64* kept, u32* fault) {
  if (n < K) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const Line l(row, n, inner, K);
    if constexpr (FROM_KEPT) largest<THREADS, K, SIZE, true>(Kept{before + row * parts * K}, u32(parts) * K, kept);
    else largest<THREADS, K, SIZE, true>(Row<LARGEST, E>{x + l.x, inner}, u32(n), kept);
    for (int r = threadIdx.x; r < K; r += THREADS) answer(x, y, at, l, inner, r, kept[r]);
    __syncthreads();
  }
}

// A block for each part of `each` elements of each row: the K largest keys of it, in no order. Parts with fewer end with keys of 0, below all others.
template <int THREADS, int K, int SIZE, bool LARGEST, class E> DEV void top_parts(const E* x, u64* after, i64 rows, i64 n, i64 inner, int parts, int each, u64* kept) {
  const i64 row = blockIdx.x / parts;
  const u32 first = u32(blockIdx.x % parts) * each;
  struct Part {
    Row<LARGEST, E> row;
    u32 first;
    METHOD u64 operator[](u32 i) const { return row[first + i]; }
  };
  largest<THREADS, K, SIZE, false>(Part{{x + Line(row, n, inner, K).x, inner}, first}, min(u32(each), u32(n) - first), kept);
  for (int r = threadIdx.x; r < K; r += THREADS) after[i64(blockIdx.x) * K + r] = kept[r];
}

// A warp for each row of at most 32 V elements: the largest key, K times over.
template <int K, int V, bool LARGEST, class E> DEV void top_warps(const E* x, E* y, i64* at, i64 rows, i64 n, i64 inner, u32* fault) {
  const u32 lane = threadIdx.x & 31, warps = blockDim.x / 32;
  if (n < K) {
    if (threadIdx.x == 0) *fault = 1;
    return;
  }
  for (i64 row = i64(blockIdx.x) * warps + threadIdx.x / 32; row < rows; row += i64(gridDim.x) * warps) {
    const Line l(row, n, inner, K);
    u64 keys[V], mine = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
      const u32 i = 32 * v + lane;
      keys[v] = i < n ? key_of<LARGEST>(x[l.x + i * inner], i) : 0;
    }
#pragma unroll 1
    for (int r = 0; r < K; r++) {
      u64 best = keys[0];
#pragma unroll
      for (int v = 1; v < V; v++) best = max(best, keys[v]);
      const u32 high = __reduce_max_sync(FULL_WARP, u32(best >> 32)), low = __reduce_max_sync(FULL_WARP, u32(best >> 32) == high ? u32(best) : 0);
      const u64 top = u64(high) << 32 | low;
#pragma unroll
      for (int v = 0; v < V; v++) keys[v] = keys[v] == top ? 0 : keys[v];
      if (lane == r) mine = top;
    }
    if (lane < K) answer(x, y, at, l, inner, lane, mine);
  }
}
