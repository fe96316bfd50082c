// How results leave attention on Hopper: a tile of shared memory by tensor copies, or, where these cannot write the result, by the threads of the warp that has
// the rows; or, where blocks divide the keys, by threads that join what these have.

// A tile of shared memory goes to a tensor, without what lies outside of it; and until such copies have read what they copy.
DEV void store4(const TensorMap* map, u32 from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
DEV void stores_read() { asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory"); }
// The rows of results at `from`, in the output from row m on, leave by a tensor copy; done when their memory can be used again.
DEV void take_away(const TensorMap& map, u32 from, const Tile& tile, int m) {
#pragma unroll
  for (int p = 0; p < kPanelsV; p++) store4(&map, from + p * BM * 128, p * 64, m, tile.h, tile.b);
  stores_read();
}

// The same by a warp: rows m to m + 15 of the tile, whose results begin at `from`.
DEV void store_rows(const Attention& g, const char* from, const Tile& tile, int m) {
  T* y = g.y + tile.b * g.y_b + tile.h * g.y_h + (tile.m + m) * g.y_s;
  const int lane = threadIdx.x & 31, count = min(16, g.S - tile.m - m);
  for (int r = 0; r < count; r++, y += g.y_s) {
    const char* row = from + (m + r) * 128;
#pragma unroll
    for (int c = 0; c < HEAD_V; c += 32) {
      const int at = c + lane;
      if (at < HEAD_V) y[at] = *(const T*)(row + at / 64 * BM * 128 + ((at / 8 & 7) ^ (m + r & 7)) * 16 + at % 8 * 2);
    }
  }
}
// The blocks of a cluster have the same 64 rows, each of some keys; a warpgroup of each joins some of the results. part: room for what this block has, in the
// memory of its keys and values; q_empty: what the warps arrive at when they are done with the queries.
DEV void store_joined(const Attention& g, Part<64>& part, const Tile& tile, float c, float (&out)[kDV / 2], float (&top)[2], float (&sum)[2], u32 q_empty) {
  const int lane = threadIdx.x & 31, column = lane % 4 * 2;
  sync_group(8, THREADS);  // no warp multiplies any longer
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * e;
    if (lane % 4 == 0) part.top[row] = top[e] == -INF ? -INF : top[e] * c, part.sum[row] = sum[e];
#pragma unroll
    for (int j = 0; j < kDV / 8; j++)
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (8 * j + column + f < HEAD_V) part.out[row * HEAD_V + 8 * j + column + f] = out[4 * j + 2 * e + f];
  }
  arrive_warp(q_empty);
  T* y = g.y + tile.b * g.y_b + tile.h * g.y_h + tile.m * g.y_s;
  join_parts(part, min(64, g.S - tile.m), [&](int row, int at, float value) { from_float(y[row * g.y_s + at], value); });
}
