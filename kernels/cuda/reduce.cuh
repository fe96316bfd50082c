// Reductions over n of [outer, n, inner] and argmax. Floats are accumulated in f32, integers in i64 (they wrap).
enum { kSum, kMean, kMax, kMin, kProd, kL1, kL2, kSumSquare, kLogSum, kLogSumExp };

template <int KIND> struct Fold {
  static __device__ __forceinline__ float start() { return KIND == kMax ? -INF : KIND == kMin ? INF : KIND == kProd ? 1.f : 0.f; }
  static __device__ __forceinline__ float join(float a, float b) {
    return KIND == kMax ? keep_max(a, b) : KIND == kMin ? keep_min(a, b) : KIND == kProd ? a * b : a + b;
  }
  static __device__ __forceinline__ float map(float v, float shift) {
    return KIND == kL1 ? fabsf(v) : KIND == kL2 || KIND == kSumSquare ? v * v : KIND == kLogSumExp ? expf(v - shift) : v;
  }
  static __device__ __forceinline__ float finish(float s, int n, float shift) {
    return KIND == kMean ? s / float(n) : KIND == kL2 ? sqrtf(s) : KIND == kLogSum ? logf(s) : KIND == kLogSumExp ? logf(s) + shift : s;
  }
};
// The same over integers: kinds kSum, kMax, kMin, kProd.
template <int KIND, class A> struct FoldInt {
  static constexpr A lowest = sizeof(A) == 8 ? A(-0x7fffffffffffffffll - 1) : A(-0x7fffffff - 1);
  static __device__ __forceinline__ A start() { return KIND == kMax ? lowest : KIND == kMin ? A(~lowest) : KIND == kProd ? A(1) : A(0); }
  static __device__ __forceinline__ A join(A a, A b) {
    return KIND == kMax ? (a > b ? a : b) : KIND == kMin ? (a < b ? a : b) : KIND == kProd ? A(u64(a) * u64(b)) : A(u64(a) + u64(b));
  }
};

// The shift of LogSumExp: keeps exp finite and does not turn infinities into NaN.
DEV float safe_shift(float m) { return fabsf(m) < INF ? m : 0.f; }

// V elements at a time of a contiguous row.
template <class Op, int KIND, int V, int THREADS> DEV float fold_row(const T* x, int n, int lane, float shift) {
  float a[V];
#pragma unroll
  for (int j = 0; j < V; j++) a[j] = Op::start();
#pragma unroll 4
  for (int i = lane * V; i < n; i += THREADS * V) {
    const Vec<T, V> raw = load<V>(x + i);
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = Op::join(a[j], Fold<KIND>::map(to_float(raw.v[j]), shift));
  }
#pragma unroll
  for (int j = 1; j < V; j++) a[0] = Op::join(a[0], a[j]);
  return a[0];
}

template <int KIND, int V, int THREADS> DEV float reduce_row(const T* x, int n, int lane, float* shared) {
  float shift = 0.f;
  if (KIND == kLogSumExp) shift = safe_shift(join_threads<Fold<kMax>, THREADS>(fold_row<Fold<kMax>, kMax, V, THREADS>(x, n, lane, 0.f), shared));
  const float s = join_threads<Fold<KIND>, THREADS>(fold_row<Fold<KIND>, KIND, V, THREADS>(x, n, lane, shift), shared);
  return Fold<KIND>::finish(s, n, shift);
}

template <int KIND, int V, int THREADS> DEV void reduce_rows(const T* x, T* y, int rows, int n) {
  __shared__ float shared[32];
  const int row = blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS, lane = threadIdx.x % THREADS;
  if (row >= rows) return;
  x += i64(row) * n;
  const bool whole = n % V == 0 && aligned(x, V * sizeof(T));
  const float r = whole ? reduce_row<KIND, V, THREADS>(x, n, lane, shared) : reduce_row<KIND, 1, THREADS>(x, n, lane, shared);
  if (lane == 0) from_float(y[row], r);
}

// 32 columns and 8 slices of n a block (256 threads).
template <int KIND> DEV void reduce_columns(const T* x, T* y, int n, int inner) {
  __shared__ float part[8][32];
  const int across = (inner + 31) / 32, lane = threadIdx.x & 31, slice = threadIdx.x >> 5, column = int(blockIdx.x % across) * 32 + lane;
  const i64 outer = blockIdx.x / across;
  const bool real = column < inner;
  x += outer * n * inner + (real ? column : 0);
  auto fold = [&](auto op, auto map) {
    typedef decltype(op) Op;
    float a = Op::start();
#pragma unroll 4
    for (int j = slice; j < n; j += 8) a = Op::join(a, map(to_float(x[i64(j) * inner])));
    __syncthreads();
    part[slice][lane] = a;
    __syncthreads();
    a = part[0][lane];
#pragma unroll
    for (int k = 1; k < 8; k++) a = Op::join(a, part[k][lane]);
    return a;
  };
  float shift = 0.f;
  if (KIND == kLogSumExp) shift = safe_shift(fold(Fold<kMax>(), [](float v) { return v; }));
  const float s = fold(Fold<KIND>(), [&](float v) { return Fold<KIND>::map(v, shift); });
  if (real && slice == 0) from_float(y[outer * inner + column], Fold<KIND>::finish(s, n, shift));
}

// Integers: a warp per result.
template <int KIND, class A> DEV void reduce_integers(const A* x, A* y, int outer, int n, int inner) {
  typedef FoldInt<KIND, A> Op;
  const i64 results = i64(outer) * inner, step = i64(gridDim.x) * (blockDim.x / 32);
  for (i64 r = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; r < results; r += step) {
    const A* p = x + r / inner * n * inner + r % inner;
    A a = Op::start();
    for (int j = threadIdx.x & 31; j < n; j += 32) a = Op::join(a, p[i64(j) * inner]);
#pragma unroll
    for (int o = 16; o; o >>= 1) a = Op::join(a, __shfl_xor_sync(FULL_WARP, a, o));
    if ((threadIdx.x & 31) == 0) y[r] = a;
  }
}

// Index of the first (last) extremum of n values. A NaN never wins, as in a scan with `>`, unless it comes first.
template <class E> DEV auto comparable(E v) { return to_float(v); }
DEV i64 comparable(i64 v) { return v; }
template <class E, bool MIN, bool LAST, int THREADS> DEV void argmax_rows(const E* x, i64* y, int outer, int n, int inner) {
  typedef decltype(comparable(E())) A;
  __shared__ A values[32];
  __shared__ int places[32];
  const i64 r = i64(blockIdx.x) * (blockDim.x / THREADS) + threadIdx.x / THREADS;
  const int lane = threadIdx.x % THREADS;
  if (r >= i64(outer) * inner) return;
  const E* p = x + r / inner * n * inner + r % inner;
  A best = comparable(p[0]);
  const bool hopeless = best != best;
  int at = 0;
  auto take = [&](A v, int j) {
    const bool better = MIN ? v < best : v > best;
    if (better || (v == best && (LAST ? j > at : j < at))) best = v, at = j;
  };
#pragma unroll 4
  for (int j = lane; j < n; j += THREADS) take(comparable(p[i64(j) * inner]), j);
  auto join = [&] {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const A v = __shfl_xor_sync(FULL_WARP, best, o);
      const int j = __shfl_xor_sync(FULL_WARP, at, o);
      take(v, j);
    }
  };
  join();
  if (THREADS > 32) {
    if ((lane & 31) == 0) values[lane >> 5] = best, places[lane >> 5] = at;
    __syncthreads();
    const int k = (lane & 31) < THREADS / 32 ? lane & 31 : 0;
    best = values[k], at = places[k];
    join();
  }
  if (lane == 0) y[r] = hopeless ? 0 : at;
}
