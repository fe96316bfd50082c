// Softmax and LayerNorm over contiguous rows. A warp or a block has a row; it stays in registers when its length is known (K vectors of V
// elements a thread), else it is read again from cache.

// exp for softmax: the approximation is good to a few units of f32 near 0 and exact enough for 16-bit results everywhere.
template <class T> DEV float exp_of(float x) { return sizeof(T) == 2 ? __expf(x) : expf(x); }

template <int THREADS> struct Row {
  int lane, index;
  __device__ Row() : lane(threadIdx.x % THREADS), index(blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS) {}
};

// y = e^(x - max) / sum, or x - max - log(sum); NaN, +inf, or nothing but -inf makes the row NaN. n is at most K * V * THREADS, a multiple of V.
template <int V, int K, int THREADS, bool LOG> DEV void softmax_registers(const T* x, T* y, int n, int lane, float* shared) {
  float v[K * V];
  Vec<T, V> raw[K];
#pragma unroll
  for (int k = 0; k < K; k++)
    if ((k * THREADS + lane) * V < n) raw[k] = load<V>(x + (k * THREADS + lane) * V);
  float top = -INF, sum = 0.f;
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int j = 0; j < V; j++) {
      v[k * V + j] = (k * THREADS + lane) * V < n ? to_float(raw[k].v[j]) : -INF;
      top = fmaxf(top, v[k * V + j]);
    }
  top = join_threads<Largest, THREADS>(top, shared);
#pragma unroll
  for (int k = 0; k < K; k++)
    if ((k * THREADS + lane) * V < n)
#pragma unroll
      for (int j = 0; j < V; j++) {
        v[k * V + j] -= top;
        const float e = exp_of<T>(v[k * V + j]);
        sum += e;
        if (!LOG) v[k * V + j] = e;
      }
  sum = join_threads<Sum, THREADS>(sum, shared);
  const float change = LOG ? -logf(sum) : 1.f / sum;
#pragma unroll
  for (int k = 0; k < K; k++)
    if ((k * THREADS + lane) * V < n) {
#pragma unroll
      for (int j = 0; j < V; j++) from_float(raw[k].v[j], LOG ? v[k * V + j] + change : v[k * V + j] * change);
      store<V>(y + (k * THREADS + lane) * V, raw[k]);
    }
}

template <int V, int THREADS, bool LOG> DEV void softmax_again(const T* x, T* y, int n, int lane, float* shared) {
  float top = -INF, sum = 0.f;
  for (int i = lane * V; i < n; i += THREADS * V) {
    const Vec<T, V> raw = load<V>(x + i);
#pragma unroll
    for (int j = 0; j < V; j++) top = fmaxf(top, to_float(raw.v[j]));
  }
  top = join_threads<Largest, THREADS>(top, shared);
  for (int i = lane * V; i < n; i += THREADS * V) {
    const Vec<T, V> raw = load<V>(x + i);
#pragma unroll
    for (int j = 0; j < V; j++) sum += exp_of<T>(to_float(raw.v[j]) - top);
  }
  sum = join_threads<Sum, THREADS>(sum, shared);
  const float change = LOG ? -logf(sum) : 1.f / sum;
  for (int i = lane * V; i < n; i += THREADS * V) {
    Vec<T, V> raw = load<V>(x + i);
#pragma unroll
    for (int j = 0; j < V; j++) {
      const float d = to_float(raw.v[j]) - top;
      from_float(raw.v[j], LOG ? d + change : exp_of<T>(d) * change);
    }
    store<V>(y + i, raw);
  }
}

// K = 0: the length is not known when the kernel is compiled.
template <int V, int K, int THREADS, bool LOG> DEV void softmax_rows(const T* x, T* y, int rows, int n) {
  __shared__ float shared[32];
  const Row<THREADS> row;
  if (row.index >= rows) return;  // whole rows leave together
  x += i64(row.index) * n, y += i64(row.index) * n;
  const bool whole = n % V == 0 && aligned(x, V * sizeof(T)) && aligned(y, V * sizeof(T));
  if (K > 0 && whole) softmax_registers<V, K ? K : 1, THREADS, LOG>(x, y, n, row.lane, shared);
  else if (whole) softmax_again<V, THREADS, LOG>(x, y, n, row.lane, shared);
  else softmax_again<1, THREADS, LOG>(x, y, n, row.lane, shared);
}

// Over n of [outer, n, inner]: a thread per column.
template <bool LOG> DEV void softmax_columns(const T* x, T* y, int outer, int n, int inner) {
  const i64 columns = i64(outer) * inner;
  for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < columns; c += i64(gridDim.x) * blockDim.x) {
    const i64 at = c / inner * n * inner + c % inner;
    float top = -INF, sum = 0.f;
#pragma unroll 4
    for (int j = 0; j < n; j++) top = fmaxf(top, to_float(x[at + i64(j) * inner]));
#pragma unroll 4
    for (int j = 0; j < n; j++) sum += exp_of<T>(to_float(x[at + i64(j) * inner]) - top);
    const float change = LOG ? -logf(sum) : 1.f / sum;
    for (int j = 0; j < n; j++) {
      const float d = to_float(x[at + i64(j) * inner]) - top;
      from_float(y[at + i64(j) * inner], LOG ? d + change : exp_of<T>(d) * change);
    }
  }
}

// s = the sum of TERMS rows; skip = s; y = (s - mean) / sqrt(variance + eps) * (gamma + plus) + beta. Null operands are absent; those of the
// kernel are its literals, so the compiler drops what concerns them. SOME: a summand may have no row here (null).
template <int TERMS, bool SOME> struct Norm {
  const T *x[TERMS], *gamma, *beta;
  T *y, *skip;
  int n;
  bool rms;
  float plus, eps;
  template <int V> __device__ __forceinline__ void sum(int i, float* s) const {
    Vec<T, V> v[TERMS];
#pragma unroll
    for (int k = 0; k < TERMS; k++)
      if (!SOME || x[k]) v[k] = load<V>(x[k] + i);
#pragma unroll
    for (int j = 0; j < V; j++) s[j] = 0.f;
#pragma unroll
    for (int k = 0; k < TERMS; k++)
      if (!SOME || x[k])
#pragma unroll
        for (int j = 0; j < V; j++) s[j] += to_float(v[k].v[j]);
  }
  template <int V> __device__ __forceinline__ void weights(int i, Vec<T, V>& g, Vec<T, V>& b) const {
    if (gamma) g = load<V>(gamma + i);
    if (beta) b = load<V>(beta + i);
  }
  template <int V> __device__ __forceinline__ void finish(int i, const float* s, float mean, float scale, const Vec<T, V>& g, const Vec<T, V>& b) const {
    Vec<T, V> out;
    if (skip) {
#pragma unroll
      for (int j = 0; j < V; j++) from_float(out.v[j], s[j]);
      store<V>(skip + i, out);
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
      float v = (s[j] - mean) * scale;
      if (gamma) v *= to_float(g.v[j]) + plus;
      if (beta) v += to_float(b.v[j]);
      from_float(out.v[j], v);
    }
    store<V>(y + i, out);
  }
};

// Mean and sum of squared deviations of the N elements of a row, N a multiple of 32 * V: each thread's own are exact, and pairs of equal or known counts
// are joined (Chan), so that one exchange does and a large mean costs no digits. Every warp holds whole vectors or none.
struct Moments { float mean, squares; };
template <int V, int K, int THREADS, int N> DEV Moments moments_at_once(const float (&s)[K * V], Moments* shared) {
  const auto held = [](int warp) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < K; k++) n += k * THREADS + warp * 32 < N / V;
    return n;
  };
  const int warp = threadIdx.x % THREADS / 32;
  float count = float(held(warp) * V), total = 0.f;
  const float inverse = count ? 1.f / count : 0.f;
#pragma unroll
  for (int k = 0; k < K * V; k++) total += s[k];
  Moments m{total * inverse, 0.f};
#pragma unroll
  for (int k = 0; k < K * V; k++)
    if (k / V * THREADS + warp * 32 < N / V) m.squares += (s[k] - m.mean) * (s[k] - m.mean);
#pragma unroll
  for (int o = 16; o; o >>= 1, count *= 2.f) {
    const float mean = __shfl_xor_sync(FULL_WARP, m.mean, o), squares = __shfl_xor_sync(FULL_WARP, m.squares, o), d = mean - m.mean;
    m.squares += squares + d * d * (count * 0.5f);
    m.mean = (m.mean + mean) * 0.5f;
  }
  if (THREADS == 32) return m;
  if ((threadIdx.x & 31) == 0) shared[warp] = m;
  __syncthreads();
  m = shared[0];
  float n = float(held(0));
#pragma unroll
  for (int w = 1; w < THREADS / 32; w++) {
    const float more = float(held(w)), d = shared[w].mean - m.mean;
    if (more == 0.f) continue;
    m.mean += d * (more / (n + more));
    m.squares += shared[w].squares + d * d * (n * more / (n + more) * (32 * V));
    n += more;
  }
  return m;
}

// N: the length of a row, where it is known when the kernel is compiled.
template <int V, int K, int THREADS, int N, class Norm>
DEV void norm_registers(const Norm& l, const Vec<T, V> (&g)[K], const Vec<T, V> (&b)[K], int lane, float* shared) {
  float s[K * V], total = 0.f, mean = 0.f;
#pragma unroll
  for (int k = 0; k < K; k++) {
#pragma unroll
    for (int j = 0; j < V; j++) s[k * V + j] = 0.f;
    if ((k * THREADS + lane) * V < l.n) l.template sum<V>((k * THREADS + lane) * V, s + k * V);
  }
  if (N && N % (32 * V) == 0 && !l.rms) {
    const Moments m = moments_at_once<V, K, THREADS, N>(s, (Moments*)shared);
    mean = m.mean, total = m.squares;
  } else {
    if (!l.rms) {
#pragma unroll
      for (int k = 0; k < K * V; k++) total += s[k];
      mean = join_threads<Sum, THREADS>(total, shared) / float(l.n);
    }
    total = 0.f;
#pragma unroll
    for (int k = 0; k < K; k++)
      if ((k * THREADS + lane) * V < l.n)
#pragma unroll
        for (int j = 0; j < V; j++) total += (s[k * V + j] - mean) * (s[k * V + j] - mean);
    total = join_threads<Sum, THREADS>(total, shared);
  }
  const float scale = 1.f / sqrtf(total / float(l.n) + l.eps);
#pragma unroll
  for (int k = 0; k < K; k++)
    if ((k * THREADS + lane) * V < l.n) l.template finish<V>((k * THREADS + lane) * V, s + k * V, mean, scale, g[k], b[k]);
}

template <int V, int THREADS, class Norm> DEV void norm_again(const Norm& l, int lane, float* shared) {
  float s[V], total = 0.f, mean = 0.f;
  if (!l.rms) {
    for (int i = lane * V; i < l.n; i += THREADS * V) {
      l.template sum<V>(i, s);
#pragma unroll
      for (int j = 0; j < V; j++) total += s[j];
    }
    mean = join_threads<Sum, THREADS>(total, shared) / float(l.n);
  }
  total = 0.f;
  for (int i = lane * V; i < l.n; i += THREADS * V) {
    l.template sum<V>(i, s);
#pragma unroll
    for (int j = 0; j < V; j++) total += (s[j] - mean) * (s[j] - mean);
  }
  const float scale = 1.f / sqrtf(join_threads<Sum, THREADS>(total, shared) / float(l.n) + l.eps);
  for (int i = lane * V; i < l.n; i += THREADS * V) {
    Vec<T, V> g{}, b{};
    l.template sum<V>(i, s);
    l.template weights<V>(i, g, b);
    l.template finish<V>(i, s, mean, scale, g, b);
  }
}

// Row number index[at] of a table of n rows, null and a fault when there is none.
template <class I> DEV const T* table_row(const T* table, const I* index, i64 at, int n, i64 pitch, u32* fault) {
  i64 row = index[at];
  if (row < 0) row += n;
  if (row >= 0 && row < n) return table + row * pitch;
  *fault = 1;
  return nullptr;
}

// `place` sets the summands of a row. EARLY: gamma and beta are constants, read while the kernel before this one still runs.
template <int V, int K, int THREADS, int N, bool EARLY, class Norm, class Place> DEV void norm_rows(Norm l, int rows, Place place) {
  __shared__ float shared[64];
  const Row<THREADS> row;
  constexpr int bytes = V * sizeof(T);
  const bool even = l.n % V == 0 && aligned(l.gamma, bytes) && aligned(l.beta, bytes);
  constexpr int PARTS = K ? K : 1;
  Vec<T, V> g[PARTS] = {}, b[PARTS] = {};
  auto weights = [&] {
#pragma unroll
    for (int k = 0; k < PARTS; k++)
      if ((k * THREADS + row.lane) * V < l.n) l.template weights<V>((k * THREADS + row.lane) * V, g[k], b[k]);
  };
  if (EARLY && K > 0 && even) weights();
  after_previous();
  if (row.index >= rows) return;
  if (!EARLY && K > 0 && even) weights();
  place(l, row.index);
  const i64 at = i64(row.index) * l.n;
  l.y += at;
  if (l.skip) l.skip += at;
  bool whole = even && aligned(l.y, bytes) && aligned(l.skip, bytes);
  for (const T* x : l.x) whole = whole && aligned(x, bytes);
  if (K > 0 && whole) norm_registers<V, PARTS, THREADS, N>(l, g, b, row.lane, shared);
  else if (whole) norm_again<V, THREADS>(l, row.lane, shared);
  else norm_again<1, THREADS>(l, row.lane, shared);
}

// x[b, s, h, :rot] rotated by pairs; W consecutive pairs a thread (they lie apart by `half`, or next to each other when interleaved).
struct Rope { int S, H, D, rot; i64 x_b, x_s, x_h, y_b, y_s, y_h, c_b, c_s; };
template <bool INTERLEAVED, bool WHOLE> DEV void rope_pairs(const T* x, const T* cosines, const T* sines, T* y, int B, Rope r) {
  const int half = r.rot / 2, rest = r.D - 2 * half, work = half + rest;
  const i64 total = i64(B) * r.S * r.H * work;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += i64(gridDim.x) * blockDim.x) {
    const int i = int(u % work);
    i64 row = u / work;
    const i64 h = row % r.H;
    row /= r.H;
    const i64 s = row % r.S, b = row / r.S;
    const T* px = x + b * r.x_b + s * r.x_s + h * r.x_h;
    T* py = y + b * r.y_b + s * r.y_s + h * r.y_h;
    if (i >= half) {
      py[half + i] = px[half + i];
      continue;
    }
    const i64 at = b * r.c_b + s * r.c_s + i;
    const int first = INTERLEAVED ? 2 * i : i, second = INTERLEAVED ? 2 * i + 1 : i + half, other = WHOLE ? half : 0;
    const float v = to_float(px[first]), w = to_float(px[second]);
    from_float(py[first], v * to_float(cosines[at]) - w * to_float(sines[at]));
    from_float(py[second], w * to_float(cosines[at + other]) + v * to_float(sines[at + other]));
  }
}
