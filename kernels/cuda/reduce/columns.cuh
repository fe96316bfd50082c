// Reductions of columns by aligned vectors, whatever the alignment of rows.
#pragma once
#include "reduce/reduce.cuh"

// A tile is `wide` columns of [n, inner], read as the aligned vectors of V elements that cover
// them. ACROSS threads cover a row of the tile, DOWN threads share n; rows DOWN apart are equally
// aligned (EVEN: all rows are aligned). A CTA has TEAMS tiles. `parts` CTAs share a tile: the
// BLOCKS CTAs of a cluster, or each stores its state in `held`. A thread has up to DEPTH loads in
// flight. inner must be at least V - 1.
template <class R, int V, int ACROSS, int DOWN, int TEAMS, int DEPTH, int BLOCKS, bool EVEN>
DEV void reduce_unaligned_columns(const typename R::Element* x, typename R::Result* y,
                                  typename R::State* held, int outer, int n, int inner, int wide,
                                  int parts) {
  typedef typename R::Element E;
  typedef typename R::State H;
  constexpr int TEAM = ACROSS * DOWN, THREADS = (TEAM * TEAMS + 31) / 32 * 32;
  constexpr int SPLIT = DOWN < 2 * V    ? 1
                        : DOWN < 4 * V  ? 2
                        : DOWN < 8 * V  ? 4
                        : DOWN < 16 * V ? 8
                                        : 16;  // lanes that combine a column
  // Element j of a thread is at j * PITCH + (team * DOWN + down) * ROW + side: no bank conflicts
  // between neighbouring threads, or between lanes that combine a column.
  constexpr int ROW = SPLIT > 1 ? ACROSS | 1 : ACROSS,
                PITCH = (TEAMS * DOWN * ROW + 31) / 32 * 32 + 32 / V;
  __shared__ H shared[V * PITCH];
  const int tiles = (inner + wide - 1) / wide;
  struct Tile {
    int o, left, columns, mine;
    const E* top;
  };
  const u32 units = u32(outer) * tiles * parts;
  const auto tile = [&](int team) {
    const u32 index = min(blockIdx.x * TEAMS + team, units - 1), unit = index / u32(parts);
    Tile t;
    t.mine = int(index - unit * parts), t.o = int(unit / u32(tiles)),
    t.left = int(unit - t.o * tiles) * wide, t.columns = min(wide, inner - t.left);
    t.top = x + i64(t.o) * n * inner + t.left;
    return t;
  };
  const auto past = [&](const Tile& t, int row) {
    return EVEN ? 0 : int((u64(t.top + i64(row) * inner) / sizeof(E)) & (V - 1));
  };
  const int team = min(int(threadIdx.x) / TEAM, TEAMS - 1), place = threadIdx.x - team * TEAM,
            side = place % ACROSS, down = place / ACROSS;
  const Tile t = tile(team);
  const Part part(n, t.mine, parts, 1);
  const int at = side * V - past(t, part.from + down), row = part.from + down;
  // A vector may not reach before the first row or past the last one: such a row is read by
  // elements.
  const int alone = EVEN                                            ? -1
                    : at < 0 && t.left == 0 && t.o == 0 && row == 0 ? 0
                    : t.o == outer - 1 && at + V > inner - t.left   ? n - 1
                                                                    : -1;
  const int end = at < t.columns && down < DOWN ? part.to : 0;  // threads beyond the teams are idle
  const E* p = t.top + at;
  pdl_wait_after(p, alone, end);
  H h[V];
#pragma unroll
  for (int j = 0; j < V; j++) h[j] = R::start(t.top + min(max(at + j, 0), t.columns - 1));
  for (int first = row; first < end; first += DEPTH * DOWN) {
    Vec<E, V> raw[DEPTH];
    auto taken = [&](int k) {
      return first + k * DOWN < end && (EVEN || first + k * DOWN != alone);
    };
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (taken(k)) raw[k] = load<V>(p + i64(first + k * DOWN) * inner);
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (taken(k))
#pragma unroll
        for (int j = 0; j < V; j++) R::update(h[j], raw[k].v[j], first + k * DOWN);
  }
  if (!EVEN && alone >= row && alone < end && (alone - row) % DOWN == 0)
#pragma unroll
    for (int j = 0; j < V; j++)
      if (at + j >= 0 && at + j < t.columns) {
        H one = R::start(t.top + at + j);
        R::update(one, p[i64(alone) * inner + j], alone);
        h[j] = R::combine(h[j], one);
      }
  if (TEAM * TEAMS == THREADS || down < DOWN)
#pragma unroll
    for (int j = 0; j < V; j++) shared[j * PITCH + (team * DOWN + down) * ROW + side] = h[j];
  __syncthreads();
  // Combines all rows of column c; each of SPLIT lanes takes every SPLIT-th row.
  const auto joined = [&](const Tile& t, int team, int c) {
    const int row = threadIdx.x % SPLIT, first = EVEN ? 0 : past(t, Part(n, t.mine, parts, 1).from);
    const auto of = [&](int d) {
      const u32 k = u32(c) + (EVEN ? 0 : (u32(first) + u32(d) * u32(inner)) & (V - 1));
      return shared[k % V * PITCH + (team * DOWN + d) * ROW + k / V];
    };
    H all = of(row);
#pragma unroll 8
    for (int d = row + SPLIT; d < DOWN; d += SPLIT) all = R::combine(all, of(d));
    return reduce_state<R, SPLIT>(all, (H*)nullptr);
  };
  if constexpr (BLOCKS > 1) {
    static_assert(TEAMS == 1, "the blocks of a cluster share one tile");
    __shared__ H whole[ACROSS * V];
    for (int first = 0; first < t.columns; first += THREADS / SPLIT) {
      const int c = first + threadIdx.x / SPLIT;
      const H all = joined(t, 0, min(c, t.columns - 1));
      if (c < t.columns && threadIdx.x % SPLIT == 0) whole[c] = all;
    }
    cluster_arrive();
    cluster_wait();
    for (int c = t.mine * THREADS + threadIdx.x; c < t.columns; c += BLOCKS * THREADS) {
      H other[BLOCKS];
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) other[b] = load_dsmem(whole + c, b);
#pragma unroll
      for (int b = 1; b < BLOCKS; b++) other[0] = R::combine(other[0], other[b]);
      y[i64(t.o) * inner + t.left + c] = R::finish(other[0], n, t.top + c);
    }
    cluster_arrive_relaxed();
    cluster_wait();  // nobody reads this CTA's shared memory any more
  } else {
    for (int first = 0; first < TEAMS * wide; first += THREADS / SPLIT) {
      const int k = first + threadIdx.x / SPLIT, team = TEAMS == 1 ? 0 : min(k / wide, TEAMS - 1),
                c = k - team * wide;
      const Tile t = tile(team);
      const H all = joined(t, team, min(c, t.columns - 1));
      if (c >= t.columns || threadIdx.x % SPLIT || blockIdx.x * TEAMS + team >= units) continue;
      if (parts == 1)
        y[i64(t.o) * inner + t.left + c] = R::finish(all, n, t.top + c);
      else
        held[(i64(t.o) * parts + t.mine) * inner + t.left + c] = all;
    }
  }
}
