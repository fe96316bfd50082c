// Copies whose target and whose source are runs along different dims, a tile at a time. Follows
// movement/transpose.cuh.

// Where a line of a tile begins that lies outside.
constexpr i64 OUTSIDE = i64(1) << 62;

// Elements of Q that stay side by side: L times R x C of them, of which those of a line of C follow
// each other in x and those of a line of R in y. `down` and `across` are those dims, with strides
// in x and in y; a block takes L of what `outer` counts. Lines' places are found once for all of
// their threads, and these are as many as a line has elements (or a half of them, ...), so that
// lines of any length leave few threads idle.
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
  wait_for_previous();
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
