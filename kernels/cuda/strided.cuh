// Strided copies, fills, gathers, and transposition through shared memory.

// Word u of the iteration space: y[sum i_d * ys_d] = x[sum i_d * xs_d], the last dim fastest.
template <class Word, int R, class I> DEV void copy_words(const Word* x, Word* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  I total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= I(n[d]);
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += I(gridDim.x) * blockDim.x) {
    I rest = u;
    i64 from = 0, to = 0;
#pragma unroll
    for (int d = R - 1; d > 0; d--) {
      const I q = rest / I(n[d]), c = rest - q * I(n[d]);
      from += i64(c) * xs[d], to += i64(c) * ys[d];
      rest = q;
    }
    y[to + i64(rest) * ys[0]] = x[from + i64(rest) * xs[0]];
  }
}

// The same with the inner dim taken in words of W bytes instead of elements of E.
template <class E, int W, int R, class I> DEV void copy_wide(const void* x, void* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  constexpr int per = W / sizeof(E);
  int words[R];
  i64 from[R], to[R];
#pragma unroll
  for (int d = 0; d < R; d++) {
    words[d] = d == R - 1 ? n[d] / per : n[d];
    from[d] = d == R - 1 ? 1 : xs[d] / per, to[d] = d == R - 1 ? 1 : ys[d] / per;
  }
  copy_words<Vec<E, per>, R, I>((const Vec<E, per>*)x, (Vec<E, per>*)y, words, from, to);
  if (R == 1) {  // what is left of a plain run
    const int done = n[0] / per * per, k = done + threadIdx.x;
    if (blockIdx.x == 0 && k < n[0]) ((E*)y)[k] = ((const E*)x)[k];
  }
}

template <class E, int R> DEV void copy_strided(const void* x, void* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  constexpr int size = sizeof(E);
  u64 low = u64(x) | u64(y), total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) {
    total *= u64(n[d]);
    if (d < R - 1) low |= u64(xs[d] | ys[d]) * size;
  }
  if (R > 1) low |= u64(n[R - 1]) * size;
  const bool runs = xs[R - 1] == 1 && ys[R - 1] == 1;
  if (total >> 31) copy_words<E, R, u64>((const E*)x, (E*)y, n, xs, ys);
  else if (runs && (low & 15) == 0) copy_wide<E, 16, R, u32>(x, y, n, xs, ys);
  else if (size < 4 && runs && (low & 3) == 0) copy_wide<E, 4 < size ? size : 4, R, u32>(x, y, n, xs, ys);
  else copy_words<E, R, u32>((const E*)x, (E*)y, n, xs, ys);
}

// A tile of 64 x 64 elements turned: element (r, c) is read at from(r)[c] and written at to(c)[r]. 256 threads.
template <class E, class From, class To> DEV void turn_tile(int rows, int columns, From from, To to) {
  constexpr int pitch = 64 + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);  // an odd number of banks
  __shared__ E tile[64 * pitch];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int r = k * 8 + warp;
    if (r < rows) {
      const E* p = from(r);
      if (lane < columns) tile[r * pitch + lane] = p[lane];
      if (lane + 32 < columns) tile[r * pitch + lane + 32] = p[lane + 32];
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int c = k * 8 + warp;
    if (c < columns) {
      E* p = to(c);
      if (lane < rows) p[lane] = tile[lane * pitch + c];
      if (lane + 32 < rows) p[lane + 32] = tile[(lane + 32) * pitch + c];
    }
  }
}

// A copy whose source is contiguous along dim A and whose target is contiguous along the last dim. A block per tile.
template <class E, int R, int A> DEV void copy_turned(const E* x, E* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  const u32 down = (n[R - 1] + 63) / 64, across = (n[A] + 63) / 64;
  const int r0 = blockIdx.x % down * 64, c0 = blockIdx.x / down % across * 64;
  u32 rest = blockIdx.x / down / across;
  i64 from = 0, to = 0;
#pragma unroll
  for (int d = R - 2; d >= 0; d--)
    if (d != A) {
      const u32 c = rest % n[d];
      rest /= n[d];
      from += i64(c) * xs[d], to += i64(c) * ys[d];
    }
  x += from + r0 * xs[R - 1] + c0, y += to + c0 * ys[A] + r0;
  turn_tile<E>(min(n[R - 1] - r0, 64), min(n[A] - c0, 64), [&](int r) { return x + r * xs[R - 1]; }, [&](int c) { return y + c * ys[A]; });
}

// Rows of `words` words: y[o, j] = x[o, idx[j]]; an index out of range gives zeros and a fault.
template <class Word, class Index> DEV void gather_rows(const Word* x, const Index* idx, Word* y, int outer, int n, int words, int count, u32* fault) {
  const u64 total = u64(outer) * count * words;
  auto run = [&](auto zero) {
    typedef decltype(zero) I;
    for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < I(total); u += I(gridDim.x) * blockDim.x) {
      const I r = u / I(words), k = u - r * I(words), o = r / I(count), j = r - o * I(count);
      i64 at = idx[j];
      if (at < 0) at += n;
      const bool inside = at >= 0 && at < n;
      if (!inside) *fault = 1;
      y[u] = inside ? x[(i64(o) * n + at) * words + k] : Word{};
    }
  };
  if (total >> 31) run(u64(0));
  else run(u32(0));
}
template <class E, class Index> DEV void gather(const void* x, const Index* idx, void* y, int outer, int n, int inner, int count, u32* fault) {
  const u64 low = u64(x) | u64(y) | u64(inner) * sizeof(E);
  if ((low & 15) == 0) gather_rows((const Vec<u32, 4>*)x, idx, (Vec<u32, 4>*)y, outer, n, inner / int(16 / sizeof(E)), count, fault);
  else if (sizeof(E) < 4 && (low & 3) == 0) gather_rows((const u32*)x, idx, (u32*)y, outer, n, inner / int(4 / sizeof(E)), count, fault);
  else gather_rows((const E*)x, idx, (E*)y, outer, n, inner, count, fault);
}

// y[o, j, k] = x[o, idx[o, j, k], k]
template <class E, class Index> DEV void gather_elements(const E* x, const Index* idx, E* y, int outer, int n, int inner, int count, u32* fault) {
  const u64 total = u64(outer) * count * inner;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += u64(gridDim.x) * blockDim.x) {
    const u64 k = u % u64(inner), o = u / u64(inner) / u64(count);
    i64 at = idx[u];
    if (at < 0) at += n;
    const bool inside = at >= 0 && at < n;
    if (!inside) *fault = 1;
    y[u] = inside ? x[(i64(o) * n + at) * inner + k] : E{};
  }
}

// `count` elements of E whose bits are the low bytes of `value`.
template <class E> DEV void fill(E* y, i64 count, i64 value) {
  const i64 first = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
  constexpr int per = 16 / sizeof(E);
  i64 done = 0;
  if (aligned(y, 16)) {
    Vec<E, per> v;
#pragma unroll
    for (int j = 0; j < per; j++) v.v[j] = E(value);
    for (i64 k = first; k < count / per; k += step) store<per>(y + k * per, v);
    done = count / per * per;
  }
  for (i64 k = done + first; k < count; k += step) y[k] = E(value);
}

// --- channels-last ----------------------------------------------------------------------------------------------------------
struct Image { int C, H, W, cs; i64 rs, ns; };  // pitches of the channels-last side
DEV i64 pixel(const Image& g, int p) { return i64(p / g.W) * g.rs + i64(p % g.W) * g.cs; }

// Blocks are image x channel tile x pixel tile.
template <bool TO_NHWC, class E> DEV void change_layout(const E* x, E* y, Image g) {
  const u32 plane = g.H * g.W, tiles = (plane + 63) / 64, bands = (g.C + 63) / 64;
  const int p0 = blockIdx.x % tiles * 64, c0 = blockIdx.x / tiles % bands * 64;
  const i64 image = blockIdx.x / tiles / bands;
  const int pixels = min(int(plane) - p0, 64), channels = min(g.C - c0, 64);
  if (TO_NHWC) {
    x += (image * g.C + c0) * plane + p0, y += image * g.ns + c0;
    turn_tile<E>(channels, pixels, [&](int r) { return x + i64(r) * plane; }, [&](int c) { return y + pixel(g, p0 + c); });
  } else {
    x += image * g.ns + c0, y += (image * g.C + c0) * plane + p0;
    turn_tile<E>(pixels, channels, [&](int r) { return x + pixel(g, p0 + r); }, [&](int c) { return y + i64(c) * plane; });
  }
}

// Few channels: a thread per pixel. Pad channels up to whole vectors become zero when they are written.
template <bool TO_NHWC, int C, class E> DEV void change_narrow(const E* x, E* y, Image g, int images) {
  constexpr int V = 16 / sizeof(E), padded = (C + V - 1) / V * V;
  const int plane = g.H * g.W;
  const E* const nhwc = TO_NHWC ? y : x;
  const bool wide = aligned(nhwc, 16) && ((g.cs | g.rs | g.ns) & (V - 1)) == 0;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < i64(images) * plane; u += i64(gridDim.x) * blockDim.x) {
    const i64 image = u / plane;
    const int p = int(u - image * plane);
    const i64 packed = image * g.ns + pixel(g, p), planar = image * C * plane + p;
    Vec<E, V> v[padded / V]{};
    if (TO_NHWC) {
#pragma unroll
      for (int c = 0; c < C; c++) v[c / V].v[c % V] = x[planar + i64(c) * plane];
      if (wide) {
#pragma unroll
        for (int k = 0; k < padded / V; k++) store<V>(y + packed + k * V, v[k]);
      } else {
#pragma unroll
        for (int c = 0; c < C; c++) y[packed + c] = v[c / V].v[c % V];
      }
    } else {
      if (wide) {
#pragma unroll
        for (int k = 0; k < padded / V; k++) v[k] = load<V>(x + packed + k * V);
      } else {
#pragma unroll
        for (int c = 0; c < C; c++) v[c / V].v[c % V] = x[packed + c];
      }
#pragma unroll
      for (int c = 0; c < C; c++) y[planar + i64(c) * plane] = v[c / V].v[c % V];
    }
  }
}

// Zeroes [-PT, H+PB) x [-PL, W+PR) of every image outside its H x W pixels; `cs` elements a pixel.
template <class E> DEV void zero_border(E* y, int images, int H, int W, int PT, int PL, int PB, int PR, int cs, i64 rs, i64 ns) {
  const int height = H + PT + PB, width = W + PL + PR;
  const i64 total = i64(images) * height * width * cs;
  for (i64 u = i64(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += i64(gridDim.x) * blockDim.x) {
    const int c = int(u % cs), w = int(u / cs % width) - PL, h = int(u / cs / width % height) - PT;
    if (w < 0 || w >= W || h < 0 || h >= H) y[u / cs / width / height * ns + h * rs + i64(w) * cs + c] = E(0);
  }
}
