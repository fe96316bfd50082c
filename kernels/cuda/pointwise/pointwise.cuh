// V elements of an operand. KIND: 1 contiguous, 0 all the same, 2 `step` apart.
template <int V, int KIND, class E>
DEV Vec<E, V> fetch(const E* p, i64 step) {
  if (KIND == 1 || V == 1) return load<V>(p);
  Vec<E, V> r;
#pragma unroll
  for (int j = 0; j < V; j++) r.v[j] = p[KIND == 0 ? 0 : j * step];
  return r;
}
// The same on their way, from any address: nothing waits for them until `get`.
template <int V, int KIND, class E>
struct Ahead {
  Vec<E, V> v;
  METHOD void read(const E* p, i64 step) { v = fetch<V, KIND>(p, step); }
  METHOD Vec<E, V> get() const { return v; }
};
template <int V, class E>
struct Ahead<V, 1, E> {
  Run<V, E> run;
  METHOD void read(const E* p, i64) { run.read(p); }
  METHOD Vec<E, V> get() const { return run.get(); }
};

// --- tiles of 64 x 64 elements in a block of 256 threads
// -----------------------------------------------------------------------
template <class E>
constexpr int TILE_PITCH = 64 + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);  // an odd number of banks
// Elements (row k * 8 + warp, column lane and lane + 32) of a tile; outside it, a neighbour again.
template <class E>
DEV void read_tile(const E* p, i64 down, i64 across, int rows, int columns, E (&v)[8][2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k * 8 < rows) {
      const E* row = p + min(k * 8 + warp, rows - 1) * down;
      v[k][0] = row[min(lane, columns - 1) * across],
      v[k][1] = row[min(lane + 32, columns - 1) * across];
    }
}
template <class E>
DEV void keep_tile(E* tile, const E (&v)[8][2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int k = 0; k < 8; k++)
    tile[(k * 8 + warp) * TILE_PITCH<E> + lane] = v[k][0],
                                          tile[(k * 8 + warp) * TILE_PITCH<E> + lane + 32] =
                                              v[k][1];
}
