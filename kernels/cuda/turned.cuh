// Transposition through shared memory. Follows base.cuh.

// A tile of at most S x S elements turned: element (r, c) is read at from(r)[c] and written at to(c)[r]. 256 threads. All of a thread's loads are under way
// together: those outside the tile read a neighbour again. GUARDED: nothing is read outside, and each element goes on as it comes, which suits short
// elements of which a block does not have many.
template <class E, int S, bool GUARDED, class From, class To> DEV void turn_tile(int rows, int columns, From from, To to) {
  constexpr int pitch = S + (sizeof(E) < 4 ? 4 / sizeof(E) : 1), lines = S / 8, parts = S / 32;  // an odd number of banks
  __shared__ E tile[S * pitch];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  E v[lines][parts];
  const E* p[lines];
  Places places;
#pragma unroll
  for (int k = 0; k < lines; k++) p[k] = from(min(k * 8 + warp, rows - 1)), places.have(p[k]);
  places.wait();
#pragma unroll
  for (int k = 0; k < lines; k++) {
    const int r = k * 8 + warp;
    if (GUARDED ? r >= rows : k * 8 >= rows) continue;
#pragma unroll
    for (int j = 0; j < parts; j++) {
      const int c = lane + 32 * j;
      if (!GUARDED) v[k][j] = p[k][min(c, columns - 1)];
      else if (c < columns) tile[r * pitch + c] = p[k][c];
    }
  }
  if (!GUARDED)
#pragma unroll
    for (int k = 0; k < lines; k++)
      if (k * 8 < rows)
#pragma unroll
        for (int j = 0; j < parts; j++) tile[(k * 8 + warp) * pitch + lane + 32 * j] = v[k][j];
  __syncthreads();
  if (!GUARDED)
#pragma unroll
    for (int k = 0; k < lines; k++)
      if (k * 8 < columns)
#pragma unroll
        for (int j = 0; j < parts; j++) v[k][j] = tile[(lane + 32 * j) * pitch + k * 8 + warp];
#pragma unroll
  for (int k = 0; k < lines; k++) {
    const int c = k * 8 + warp;
    if (c >= columns) continue;
    E* p = to(c);
#pragma unroll
    for (int j = 0; j < parts; j++)
      if (lane + 32 * j < rows) p[lane + 32 * j] = GUARDED ? tile[(lane + 32 * j) * pitch + c] : v[k][j];
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
template <class E, int S, bool GUARDED, class Down, class Across, class Outer> DEV void copy_turned(const E* x, E* y, Down down, Across across, Outer outer_x, Outer outer_y) {
  const u32 height = down.size(), width = across.size(), tiles = (height + S - 1) / S, bands = (width + S - 1) / S;
  const u32 r0 = blockIdx.x % tiles * S, c0 = blockIdx.x / tiles % bands * S, rest = blockIdx.x / tiles / bands;
  x += outer_x.at(rest) + c0, y += outer_y.at(rest) + r0;
  turn_tile<E, S, GUARDED>(int(min(height - r0, u32(S))), int(min(width - c0, u32(S))), [&](int r) { return x + down.at(r0 + r); }, [&](int c) { return y + across.at(c0 + c); });
}
