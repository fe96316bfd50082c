// Strided copies, fills, gathers, and transposition through shared memory. Follows runs.cuh.
//
// The generator defines LONG: from how many elements on a row is long.

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

// y is one run: a thread makes 16 aligned bytes of it at a time, whatever they come from.
template <class E, int R> DEV void copy_flat(const E* x, E* y, u32 total, const int (&n)[R], const i64 (&xs)[R]) {
  constexpr int V = 16 / sizeof(E);
  const int before = past<V>(y);
  const i64 step = xs[R - 1];
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u * V < total + before; u += gridDim.x * blockDim.x) {
    const int lo = u ? 0 : before, hi = int(min(total + before - u * V, u32(V)));
    u32 rest = u * V + lo - before;
    i64 from = 0;
    int c[R];
#pragma unroll
    for (int d = R - 1; d >= 0; d--) {
      const u32 q = d ? rest / n[d] : 0;
      c[d] = int(rest - q * n[d]);
      from += c[d] * xs[d];
      rest = q;
    }
    Vec<E, V> v;
    if (step == 1 && hi - lo == V && c[R - 1] + V <= n[R - 1]) {
      v = load_run<V>(x + from);
    } else {
#pragma unroll
      for (int j = 0; j < V; j++) {
        v.v[j] = x[from];
        if (j < lo || j + 1 >= hi) continue;
        from += step, c[R - 1]++;
#pragma unroll
        for (int d = R - 1; d > 0; d--) {
          if (c[d] < n[d]) break;
          from += xs[d - 1] - n[d] * xs[d];
          c[d] = 0, c[d - 1]++;
        }
      }
    }
    store_part<V>(y + i64(u) * V - before, v, lo, hi);
  }
}

// The k-th 16 aligned bytes of a row of n elements, each `step` after the last in x.
template <class E> DEV void copy_piece(const E* x, i64 step, E* y, int n, int k) {
  constexpr int V = 16 / sizeof(E);
  const int first = k * V - past<V>(y), lo = -first, hi = n - first;
  if (hi <= 0) return;
  Vec<E, V> v;
  if (step == 1 && lo <= 0 && hi >= V) {
    v = load_run<V>(x + first);
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) v.v[j] = x[min(max(first + j, 0), n - 1) * step];
  }
  store_part<V>(y + first, v, lo, hi);
}

// How many of them a row has at most; `even`: every row starts at one.
template <class E> DEV u32 pieces_of(int n, bool even) { return u32(n + 16 / sizeof(E) - 1) / u32(16 / sizeof(E)) + !even; }

// Rows of y that are runs.
template <class E, int R> DEV void copy_rows(const E* x, E* y, u32 total, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  u64 low = u64(y);
#pragma unroll
  for (int d = 0; d < R - 1; d++) low |= u64(ys[d]) * sizeof(E);
  const u32 pieces = pieces_of<E>(n[R - 1], (low & 15) == 0), all = total / n[R - 1] * pieces;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < all; u += gridDim.x * blockDim.x) {
    u32 rest = u / pieces;
    const int k = int(u - rest * pieces);
    i64 from = 0, to = 0;
#pragma unroll
    for (int d = R - 2; d >= 0; d--) {
      const u32 q = d ? rest / n[d] : 0, c = rest - q * n[d];
      from += c * xs[d], to += c * ys[d];
      rest = q;
    }
    copy_piece(x + from, xs[R - 1], y + to, n[R - 1], k);
  }
}

// Long rows of which only y may be a run: a warp takes 32 * LANE_WORDS elements, neighbouring lanes neighbouring ones, so that few lines are asked for at a time.
constexpr int LANE_WORDS = 4;
template <class E, int R> DEV void copy_lanes(const E* x, E* y, u32 total, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  const u32 parts = (n[R - 1] + 32 * LANE_WORDS - 1) / (32 * LANE_WORDS), all = total / n[R - 1] * parts;
  for (u32 u = (blockIdx.x * blockDim.x + threadIdx.x) / 32; u < all; u += gridDim.x * blockDim.x / 32) {
    u32 rest = u / parts;
    const int first = int(u - rest * parts) * (32 * LANE_WORDS) + (threadIdx.x & 31);
    i64 from = 0, to = 0;
#pragma unroll
    for (int d = R - 2; d >= 0; d--) {
      const u32 q = d ? rest / n[d] : 0, c = rest - q * n[d];
      from += c * xs[d], to += c * ys[d];
      rest = q;
    }
    E v[LANE_WORDS];
#pragma unroll
    for (int j = 0; j < LANE_WORDS; j++) v[j] = x[from + min(first + 32 * j, n[R - 1] - 1) * xs[R - 1]];
#pragma unroll
    for (int j = 0; j < LANE_WORDS; j++)
      if (first + 32 * j < n[R - 1]) y[to + (first + 32 * j) * ys[R - 1]] = v[j];
  }
}

template <class E, int R> DEV void copy_strided(const E* x, E* y, const int (&n)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  u64 total = 1;
  bool run = true;
#pragma unroll
  for (int d = R - 1; d >= 0; d--) {
    run &= ys[d] == i64(total);
    total *= u64(n[d]);
  }
  if (total >> 31) copy_words<E, R, u64>(x, y, n, xs, ys);
  else if (n[R - 1] >= LONG && (ys[R - 1] != 1 || u64(xs[R - 1]) > 1)) copy_lanes<E, R>(x, y, u32(total), n, xs, ys);
  else if (run) copy_flat<E, R>(x, y, u32(total), n, xs);
  else if (ys[R - 1] == 1) copy_rows<E, R>(x, y, u32(total), n, xs, ys);
  else copy_words<E, R, u32>(x, y, n, xs, ys);
}

// A tile of at most 64 x 64 elements turned: element (r, c) is read at from(r)[c] and written at to(c)[r]. 256 threads. All of a thread's loads are under
// way together: those outside the tile read a neighbour again.
template <class E, class From, class To> DEV void turn_tile(int rows, int columns, From from, To to) {
  constexpr int pitch = 64 + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);  // an odd number of banks
  __shared__ E tile[64 * pitch];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  E v[8][2];
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k * 8 < rows) {
      const E* p = from(min(k * 8 + warp, rows - 1));
      v[k][0] = p[min(lane, columns - 1)], v[k][1] = p[min(lane + 32, columns - 1)];
    }
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k * 8 < rows) tile[(k * 8 + warp) * pitch + lane] = v[k][0], tile[(k * 8 + warp) * pitch + lane + 32] = v[k][1];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k * 8 < columns) v[k][0] = tile[lane * pitch + k * 8 + warp], v[k][1] = tile[(lane + 32) * pitch + k * 8 + warp];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int c = k * 8 + warp;
    if (c < columns) {
      E* p = to(c);
      if (lane < rows) p[lane] = v[k][0];
      if (lane + 32 < rows) p[lane + 32] = v[k][1];
    }
  }
}

// Dims, innermost first, and their strides.
template <int G> struct Side {
  int n[G];
  i64 s[G];
  METHOD u32 size() const {
    u32 r = 1;
#pragma unroll
    for (int d = 0; d < G; d++) r *= n[d];
    return r;
  }
  METHOD i64 at(u32 k) const {
    i64 r = 0;
#pragma unroll
    for (int d = 0; d < G; d++) {
      const u32 q = d + 1 < G ? k / n[d] : 0;
      r += i64(k - q * n[d]) * s[d];
      k = q;
    }
    return r;
  }
};
// A copy whose target is one run along the dims of `down` (whose strides in x these are) and whose source is one along those of `across` (with strides in y).
// A block per tile.
template <class E, class Down, class Across, class Outer> DEV void copy_turned(const E* x, E* y, Down down, Across across, Outer outer_x, Outer outer_y) {
  const u32 height = down.size(), width = across.size(), tiles = (height + 63) / 64, bands = (width + 63) / 64;
  const u32 r0 = blockIdx.x % tiles * 64, c0 = blockIdx.x / tiles % bands * 64, rest = blockIdx.x / tiles / bands;
  x += outer_x.at(rest) + c0, y += outer_y.at(rest) + r0;
  turn_tile<E>(int(min(height - r0, 64u)), int(min(width - c0, 64u)), [&](int r) { return x + down.at(r0 + r); }, [&](int c) { return y + across.at(c0 + c); });
}

// One of several copies in one launch: [n0, n1, n2] elements, the last dim a run of y. `block` counts the blocks of this copy.
template <class E> DEV void copy_part(const E* x, E* y, u32 block, int n0, int n1, int n2, i64 x0, i64 x1, i64 x2, i64 y0, i64 y1) {
  const u32 pieces = pieces_of<E>(n2, false);
  const u64 unit = u64(block) * blockDim.x + threadIdx.x;
  const u64 row = unit >> 32 ? unit / pieces : u32(unit) / pieces;
  if (row >= u64(n0) * n1) return;
  const u32 outer = u32(row >> 32 ? row / n1 : u32(row) / u32(n1)), c = u32(row - u64(outer) * n1);
  copy_piece(x + outer * x0 + c * x1, x2, y + outer * y0 + c * y1, n2, int(unit - row * pieces));
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
  auto run = [&](auto zero) {
    typedef decltype(zero) I;
    for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < I(total); u += I(gridDim.x) * blockDim.x) {
      const I r = u / I(inner), k = u - r * I(inner), o = r / I(count);
      i64 at = idx[u];
      if (at < 0) at += n;
      const bool inside = at >= 0 && at < n;
      if (!inside) *fault = 1;
      y[u] = inside ? x[(i64(o) * n + at) * inner + k] : E{};
    }
  };
  if (total >> 31) run(u64(0));
  else run(u32(0));
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
