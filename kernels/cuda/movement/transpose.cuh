// Transpose through shared memory: copies whose target and source are runs (contiguous) along
// different dims.
#pragma once
#include "common/vector_io.cuh"

// A tile of at most S x S elements transposed: element (r, c) is read at from(r)[c] and written at
// to(c)[r]. 256 threads. All loads of a thread are in flight together; those outside the tile
// repeat a neighbour.
template <class E, int S, class From, class To>
DEV void transpose_tile(int rows, int columns, From from, To to) {
  constexpr int pitch = S + (sizeof(E) < 4 ? 4 / sizeof(E) : 1), lines = S / 8,
                parts = S / 32;  // an odd number of banks
  __shared__ E tile[S * pitch];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  E v[lines][parts];
  const E* p[lines];
  Prologue places;
#pragma unroll
  for (int k = 0; k < lines; k++) p[k] = from(min(k * 8 + warp, rows - 1)), places.need(p[k]);
  places.wait();
#pragma unroll
  for (int k = 0; k < lines; k++) {
    if (k * 8 >= rows) continue;
#pragma unroll
    for (int j = 0; j < parts; j++) v[k][j] = p[k][min(lane + 32 * j, columns - 1)];
  }
#pragma unroll
  for (int k = 0; k < lines; k++)
    if (k * 8 < rows)
#pragma unroll
      for (int j = 0; j < parts; j++) tile[(k * 8 + warp) * pitch + lane + 32 * j] = v[k][j];
  __syncthreads();
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
      if (lane + 32 * j < rows) p[lane + 32 * j] = v[k][j];
  }
}

// The same for at most R x C elements. Elements outside are neither read nor written.
template <class E, int R, int C, class From, class To>
DEV void transpose_block(int rows, int columns, From from, To to) {
  constexpr int pitch = C + (sizeof(E) < 4 ? 4 / sizeof(E) : 1);  // an odd number of banks
  constexpr int across = C < 32 ? C : 32, down = 256 / across, lines = R / down, parts = C / across;
  constexpr int run = R < 32 ? R : 32, beside = 256 / run, turns = C / beside, pieces = R / run;
  __shared__ E tile[R * pitch];
  const int lane = threadIdx.x % across, line = threadIdx.x / across;
  E v[lines][parts];
  const E* p[lines];
  Prologue places;
#pragma unroll
  for (int k = 0; k < lines; k++)
    p[k] = from(min(k * down + line, rows - 1)) + lane, places.need(p[k]);
  places.wait();
#pragma unroll
  for (int k = 0; k < lines; k++)
#pragma unroll
    for (int j = 0; j < parts; j++) {
      v[k][j] = E{};
      if (k * down + line < rows && lane + across * j < columns) v[k][j] = p[k][across * j];
    }
#pragma unroll
  for (int k = 0; k < lines; k++)
#pragma unroll
    for (int j = 0; j < parts; j++) tile[(k * down + line) * pitch + lane + across * j] = v[k][j];
  __syncthreads();
  const int r = threadIdx.x % run, c = threadIdx.x / run;
  E w[turns][pieces];
#pragma unroll
  for (int k = 0; k < turns; k++)
#pragma unroll
    for (int j = 0; j < pieces; j++) w[k][j] = tile[(r + run * j) * pitch + k * beside + c];
#pragma unroll
  for (int k = 0; k < turns; k++) {
    if (k * beside + c >= columns) continue;
    E* const q = to(k * beside + c) + r;
#pragma unroll
    for (int j = 0; j < pieces; j++)
      if (r + run * j < rows) q[run * j] = w[k][j];
  }
}

// Dims, innermost first, and their strides.
template <int G>
struct Side {
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
// The target is a run along the dims of `down` (with strides in x), the source along those of
// `across` (with strides in y). A CTA per tile.
template <class E, int R, int C, class Down, class Across, class Outer>
DEV void copy_transposed(const E* x, E* y, Down down, Across across, Outer outer_x, Outer outer_y) {
  const u32 height = down.size(), width = across.size(), tiles = (height + R - 1) / R,
            bands = (width + C - 1) / C;
  const u32 r0 = blockIdx.x % tiles * R, c0 = blockIdx.x / tiles % bands * C,
            rest = blockIdx.x / tiles / bands;
  x += outer_x.at(rest) + c0, y += outer_y.at(rest) + r0;
  transpose_block<E, R, C>(
      int(min(height - r0, u32(R))), int(min(width - c0, u32(C))),
      [&](int r) { return x + down.at(r0 + r); }, [&](int c) { return y + across.at(c0 + c); });
}

// Offset of a line that is outside the tensor.
constexpr i64 OUTSIDE = i64(1) << 62;

// Tiles of short lines: L layers of R x C elements of Q words each. C elements (a line) are
// contiguous in x, R elements in y. down, across: these dims, with strides in x and in y; outer:
// counts layers, of which a CTA takes L. The offset of a line is computed once for all of its
// threads. A line has as many threads as elements (or half of that, ...), so that few threads idle
// at any length.
template <class E, int L, int R, int C, int Q, class Down, class Across, class Outer>
DEV void copy_tiles(const E* x, E* y, Down down, Across across, Outer outer_x, Outer outer_y) {
  constexpr int wide = C * Q, high = R * Q, parts = (wide + 63) / 64, turns = (high + 63) / 64,
                threads = (wide + parts - 1) / parts, riders = (high + turns - 1) / turns;
  constexpr int lines = 256 / threads, steps = (L * R + lines - 1) / lines, rows = 256 / riders,
                rounds = (L * C + rows - 1) / rows;
  constexpr int bank = sizeof(E) < 4 ? 4 / sizeof(E) : 1,
                pitch = ((wide + bank - 1) / bank | 1) * bank;  // an odd number of banks
  __shared__ E tile[L * R * pitch];
  __shared__ i64 from[L * R], to[L * C];
  const u32 height = down.size(), width = across.size(), tiles = (height + R - 1) / R,
            bands = (width + C - 1) / C;
  const u32 r0 = blockIdx.x % tiles * R, c0 = blockIdx.x / tiles % bands * C,
            first = blockIdx.x / tiles / bands * L, left = outer_x.size() - first;
  for (int k = threadIdx.x; k < L * R; k += 256) {
    const u32 l = k / R, r = r0 + k % R;
    from[k] = l < left && r < height ? outer_x.at(first + l) + down.at(r) + c0 * Q : OUTSIDE;
  }
  for (int k = threadIdx.x; k < L * C; k += 256) {
    const u32 l = k / C, c = c0 + k % C;
    to[k] = l < left && c < width ? outer_y.at(first + l) + across.at(c) + r0 * Q : OUTSIDE;
  }
  __syncthreads();
  pdl_wait();
  const int c = threadIdx.x % threads, line = threadIdx.x / threads,
            columns = int(min(width - c0, u32(C))) * Q;
  E v[steps][parts];
#pragma unroll
  for (int k = 0; k < steps; k++) {
    const int s = line + k * lines;
    const i64 at = line < lines && s < L * R ? from[s] : OUTSIDE;
#pragma unroll
    for (int j = 0; j < parts; j++) {
      v[k][j] = E{};
      if (at != OUTSIDE && c + j * threads < columns) v[k][j] = x[at + c + j * threads];
    }
  }
#pragma unroll
  for (int k = 0; k < steps; k++)
#pragma unroll
    for (int j = 0; j < parts; j++)
      if (line < lines && line + k * lines < L * R && c + j * threads < wide)
        tile[(line + k * lines) * pitch + c + j * threads] = v[k][j];
  __syncthreads();
  const int r = threadIdx.x % riders, row = threadIdx.x / riders,
            run = int(min(height - r0, u32(R))) * Q;
  E w[rounds][turns];
#pragma unroll
  for (int k = 0; k < rounds; k++) {
    const int s = row + k * rows;
#pragma unroll
    for (int j = 0; j < turns; j++) {
      const int p = r + j * riders;
      if (row < rows && s < L * C && p < high)
        w[k][j] = tile[(s / C * R + p / Q) * pitch + s % C * Q + p % Q];
    }
  }
#pragma unroll
  for (int k = 0; k < rounds; k++) {
    const int s = row + k * rows;
    const i64 at = row < rows && s < L * C ? to[s] : OUTSIDE;
#pragma unroll
    for (int j = 0; j < turns; j++)
      if (at != OUTSIDE && r + j * riders < run) y[at + r + j * riders] = w[k][j];
  }
}
