// Pointwise programs over an iteration space of up to six dims. A thread computes vectors or single
// elements of the result; where operands are transposed, a CTA computes tiles of 64 x 64.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int RANK = 2;    // dims of the space, the last one the fastest, 1 to 6
constexpr int VECTOR = 4;  // elements of a vector: 16 bytes of the widest operand (or twice that)
constexpr int VECTOR_ALIGNED = -1;  // 1: all operands are aligned to vectors, 0: not, -1: unknown
constexpr int FEW = -1;             // 1: too few elements for vectors, 0: not, -1: unknown
constexpr bool CONTIGUOUS = true;   // the result is contiguous
constexpr int TILED = 0;            // the dim of tiles besides the last one
constexpr int SINGLE = 2;           // elements of a thread, one by one
constexpr int SMALL = 1 << 18,
              SHORT = 64;  // FEW: up to SMALL elements, twice that for rows < SHORT
// F(operand, its type, KIND, MARKED). KIND along the last dim: 1 contiguous, 0 constant, 2 neither.
// MARKED: vectors continue across the ends of rows; with tiles, the operand is transposed.
#define INPUTS(F) F(x0, half_t, 1, true) F(x1, float, 0, false)
#define OUTPUT(F) F(y, half_t, 1, true)
DEV void compute(half_t& y, half_t x0, float x1) { from_float(y, to_float(x0) + x1); }
#endif  // GENERATED
#include "common/vector_io.cuh"

constexpr int LAST = RANK - 1;
#define ALL(F) INPUTS(F) OUTPUT(F)
#define FIELD(x, E, INNER, MARKED) \
  const E* x;                      \
  i64 s_##x[RANK];
#define RESULT(y, E, INNER, MARKED)        \
  typedef E Result;                        \
  static constexpr bool ROWS = INNER == 1; \
  E* y;                                    \
  i64 s_##y[RANK];
struct Operands {
  INPUTS(FIELD)
  OUTPUT(RESULT)
  int n[RANK];
  u32 per[RANK], per_wide;  // reciprocals (`quotient`) of n, and of the last dim in vectors
};
typedef Operands::Result Result;
// Offsets that a thread reads and writes.
#define PLACE(x, E, INNER, MARKED) i64 x = 0;
struct Offsets {
  ALL(PLACE)
};

// V elements of an operand. KIND: 1 contiguous, 0 all equal, 2 `step` apart.
template <int V, int KIND, class E>
DEV Vec<E, V> fetch(const E* p, i64 step) {
  if (KIND == 1 || V == 1) return load<V>(p);
  Vec<E, V> r;
#pragma unroll
  for (int j = 0; j < V; j++) r.v[j] = p[KIND == 0 ? 0 : j * step];
  return r;
}
// The same in flight, from any address: `get` waits for the loads.
template <int V, int KIND, class E>
struct InFlight {
  Vec<E, V> v;
  METHOD void read(const E* p, i64 step) { v = fetch<V, KIND>(p, step); }
  METHOD Vec<E, V> get() const { return v; }
};
template <int V, class E>
struct InFlight<V, 1, E> {
  UnalignedVector<V, E> vector;
  METHOD void read(const E* p, i64) { vector.read(p); }
  METHOD Vec<E, V> get() const { return vector.get(); }
};

// Vectors of V elements, with all operands aligned; a thread has U vectors in flight.
template <int V, int U, class I>
DEV void map_vectors(const Operands& o, I first, I end) {
  const I step = I(gridDim.x) * blockDim.x;
  for (I u = first + I(blockIdx.x) * blockDim.x + threadIdx.x; u < end; u += U * step) {
    Offsets at[U];
    Prologue prologue;
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= end) continue;
      I rest = u + k * step;
#pragma unroll
      for (int d = LAST; d >= 0; d--) {
        const bool wide = d == LAST && V > 1;
        const I n = wide ? I(o.n[d]) / V : I(o.n[d]),
                q = d ? quotient(rest, n, wide ? o.per_wide : o.per[d]) : 0,
                c = (rest - q * n) * (wide ? V : 1);
        rest = q;
#define STEP(x, E, INNER, MARKED) at[k].x += i64(c) * o.s_##x[d];
        ALL(STEP)
      }
#define NEED(x, E, INNER, MARKED) prologue.need(at[k].x);
      ALL(NEED)
    }
    prologue.wait();
#define GOT(x, E, INNER, MARKED) Vec<E, V> got_##x[U];
    INPUTS(GOT)
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= end) continue;
#define FETCH(x, E, INNER, MARKED) got_##x[k] = fetch<V, INNER>(o.x + at[k].x, o.s_##x[LAST]);
      INPUTS(FETCH)
    }
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= end) continue;
      Vec<Result, V> result;
#define ELEMENT(x, E, INNER, MARKED) , got_##x[k].v[j]
#pragma unroll
      for (int j = 0; j < V; j++) compute(result.v[j] INPUTS(ELEMENT));
      store<V>(o.y + at[k].y, result);
    }
  }
}

// Computes elements lo .. hi - 1 of V at `to`, from coordinates c on, with inputs at offsets `at`.
template <int V>
DEV void compute_vector(const Operands& o, Offsets at, int (&c)[RANK], int lo, int hi, Result* to) {
#define LISTED(x, E, INNER, MARKED) at.x,
  pdl_wait_after(INPUTS(LISTED) c[LAST]);
  const bool full = lo <= 0 && hi >= V;
#define AHEAD(x, E, INNER, MARKED) \
  InFlight<V, INNER, E> r_##x;     \
  Vec<E, V> v_##x;
  INPUTS(AHEAD)
#define READ(x, E, INNER, MARKED) \
  if (WANTED == MARKED) r_##x.read(o.x + at.x, o.s_##x[LAST]);
#define GET(x, E, INNER, MARKED) \
  if (WANTED == MARKED) v_##x = r_##x.get();
  if (full) {
    constexpr bool WANTED = true;
    INPUTS(READ)
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) {
      const int k = min(max(j, lo), hi - 1) - lo;
#define SINGLY(x, E, INNER, MARKED) \
  if (MARKED) v_##x.v[j] = o.x[at.x + k];
      INPUTS(SINGLY)
    }
  }
  if (full && c[LAST] + V <= o.n[LAST]) {
    constexpr bool WANTED = false;
    INPUTS(READ)
    INPUTS(GET)
  } else {
#pragma unroll
    for (int j = 0; j < V; j++) {
#define TAKE(x, E, INNER, MARKED) \
  if (!MARKED) v_##x.v[j] = o.x[at.x];
      INPUTS(TAKE)
      if (j < lo || j + 1 >= hi) continue;
#define NEXT(x, E, INNER, MARKED) \
  if (!MARKED) at.x += o.s_##x[LAST];
      INPUTS(NEXT)
      c[LAST]++;
#pragma unroll
      for (int d = LAST; d > 0; d--) {
        if (c[d] < o.n[d]) break;
#define CARRY(x, E, INNER, MARKED) \
  if (!MARKED) at.x += o.s_##x[d - 1] - o.n[d] * o.s_##x[d];
        INPUTS(CARRY)
        c[d] = 0, c[d - 1]++;
      }
    }
  }
  if (full) {
    constexpr bool WANTED = true;
    INPUTS(GET)
  }
  Vec<Result, V> result;
#define OF_VECTOR(x, E, INNER, MARKED) , v_##x.v[j]
#pragma unroll
  for (int j = 0; j < V; j++) compute(result.v[j] INPUTS(OF_VECTOR));
  store_part<V>(to, result, lo, hi);
}

// The same as `each` for any alignment of inputs. The result, or each of its rows, is contiguous; a
// thread computes an aligned vector of it.
template <int V>
DEV void map_unaligned(const Operands& o, u32 total) {
#define ADVANCE(x, E, INNER, MARKED) at.x += c[d] * o.s_##x[d];
  if constexpr (CONTIGUOUS) {
    const int before = misalignment<V>(o.y);
    for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u * V < total + before;
         u += gridDim.x * blockDim.x) {
      const int lo = u ? 0 : before, hi = int(min(total + before - u * V, u32(V)));
      u32 rest = u * V + lo - before;
      Offsets at;
      int c[RANK];
#pragma unroll
      for (int d = LAST; d >= 0; d--) {
        const u32 q = d ? quotient(rest, o.n[d], o.per[d]) : 0;
        c[d] = int(rest - q * o.n[d]);
        rest = q;
        INPUTS(ADVANCE)
      }
      compute_vector<V>(o, at, c, lo, hi, o.y + i64(u) * V - before);
    }
  } else {
    const u32 pieces = (o.n[LAST] + V - 1) / V + 1;
    for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < total / o.n[LAST] * pieces;
         u += gridDim.x * blockDim.x) {
      u32 rest = u / pieces;
      const int k = int(u - rest * pieces);
      Offsets at;
      int c[RANK];
#pragma unroll
      for (int d = LAST - 1; d >= 0; d--) {
        const u32 q = d ? quotient(rest, o.n[d], o.per[d]) : 0;
        c[d] = int(rest - q * o.n[d]);
        rest = q;
        ALL(ADVANCE)
      }
      const int first = k * V - misalignment<V>(o.y + at.y), lo = max(-first, 0),
                hi = o.n[LAST] - first;
      if (hi <= 0) continue;
      constexpr int d = LAST;
      c[d] = first + lo;
      INPUTS(ADVANCE)
      compute_vector<V>(o, at, c, lo, hi, o.y + at.y + first);
    }
  }
}

// Whether strides of rows are multiples of vectors.
DEV bool aligned_strides(const i64 (&s)[RANK]) {
  bool whole = true;
#pragma unroll
  for (int d = 0; d < LAST; d++) whole = whole && s[d] % VECTOR == 0;
  return whole;
}
DEV void pointwise(const Operands& o) {
  u64 total = u64(o.n[0]);
#pragma unroll
  for (int d = 1; d < RANK; d++) total *= u64(o.n[d]);
  if (total >> 31) {
    map_vectors<1, 1, u64>(o, 0, total);
    return;
  }
  const u32 count = u32(total);
  auto unaligned = [&] {
    if (FEW == 1 || (FEW && count <= (o.n[LAST] < SHORT ? 2 * SMALL : SMALL)))
      map_vectors<1, SINGLE, u32>(o, 0, count);
    else
      map_unaligned<VECTOR>(o, count);
  };
  if constexpr (!Operands::ROWS || VECTOR == 1) {
    map_vectors<1, FEW == 0 ? 1 : SINGLE, u32>(o, 0, count);
  } else if constexpr (VECTOR_ALIGNED == 0) {
    unaligned();
  } else {
#define ALIGNED(x, E, INNER, MARKED) &&(INNER != 1 || aligned(o.x, VECTOR * sizeof(E)))
#define STRIDES(x, E, INNER, MARKED) &&(INNER != 1 || aligned_strides(o.s_##x))
    if (true ALL(ALIGNED) ALL(STRIDES) && (RANK == 1 || o.n[LAST] % VECTOR == 0)) {
      map_vectors<VECTOR, 1, u32>(o, 0, count / VECTOR);
      if (RANK == 1 && count % VECTOR) map_vectors<1, 1, u32>(o, count / VECTOR * VECTOR, count);
    } else if (VECTOR_ALIGNED == 1) {
      map_vectors<1, 1, u32>(o, 0, count);
    } else {
      unaligned();
    }
  }
}

// Tiles of 64 x 64 elements in a CTA of 256 threads.
template <class E>
constexpr int TILE_PITCH = 64 + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);  // an odd number of banks
// A thread's elements of a tile: rows k * 8 + warp, columns lane and lane + 32; outside, a
// neighbour.
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
DEV void stage_tile(E* tile, const E (&v)[8][2]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int k = 0; k < 8; k++)
    tile[(k * 8 + warp) * TILE_PITCH<E> + lane] = v[k][0],
                                          tile[(k * 8 + warp) * TILE_PITCH<E> + lane + 32] =
                                              v[k][1];
}
// A tile along dims TILED and LAST; MARKED operands are transposed through shared memory.
DEV void map_tiles(const Operands& o) {
  const u32 across = (o.n[LAST] + 63) / 64, down = (o.n[TILED] + 63) / 64;
  const int c0 = int(blockIdx.x % across) * 64, r0 = int(blockIdx.x / across % down) * 64,
            lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int columns = min(o.n[LAST] - c0, 64), rows = min(o.n[TILED] - r0, 64);
  u32 rest = blockIdx.x / across / down;
  Offsets at;
#define CORNER(x, E, INNER, MARKED) at.x = r0 * o.s_##x[TILED] + c0 * o.s_##x[LAST];
  ALL(CORNER)
#pragma unroll
  for (int d = LAST - 1; d >= 0; d--) {
    if (d == TILED) continue;
    const u32 q = quotient(rest, o.n[d], o.per[d]), c = rest - q * o.n[d];
    rest = q;
#define OUTER(x, E, INNER, MARKED) at.x += c * o.s_##x[d];
    ALL(OUTER)
  }
  pdl_wait_after(INPUTS(LISTED) at.y);
#define READ_TILE(x, E, INNER, MARKED)                                                  \
  E t_##x[8][2];                                                                        \
  __shared__ E tile_##x[MARKED ? 64 * TILE_PITCH<E> : 1];                               \
  read_tile(o.x + at.x, o.s_##x[MARKED ? LAST : TILED], o.s_##x[MARKED ? TILED : LAST], \
            MARKED ? columns : rows, MARKED ? rows : columns, t_##x);
  INPUTS(READ_TILE)
#define STAGE(x, E, INNER, MARKED) \
  if constexpr (MARKED) stage_tile(tile_##x, t_##x);
  INPUTS(STAGE)
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int r = k * 8 + warp;
    if (r >= rows) break;
    Vec<Result, 2> result;
#define OF_TILE(x, E, INNER, MARKED) \
  , MARKED ? tile_##x[MARKED * ((lane + 32 * j) * TILE_PITCH<E> + r)] : t_##x[k][j]
#pragma unroll
    for (int j = 0; j < 2; j++) compute(result.v[j] INPUTS(OF_TILE));
    Result* to = o.y + at.y + r * o.s_y[TILED];
    if (lane < columns) to[lane] = result.v[0];
    if (lane + 32 < columns) to[lane + 32] = result.v[1];
  }
}
