// Squeeze-excite of channels-last images in one launch: y = x * f2(w2 f1(w1 mean(x) + b1) + b2) per image.
//
// A cluster has an image: its blocks share it by channels (ACROSS slices of SLICE vectors of V channels) and by pixels (DOWN ranges). Sums over
// pixels meet among the blocks of a slice, then what the slices add to the hidden layer meets among the slices, through the blocks' shared
// memory. KEPT: bytes of its part of the image that a block keeps in shared memory for the product; what does not fit is read again.
//
// The generator defines T, C, R (hidden channels), THREADS, ACROSS, DOWN, SLICE, KEPT, EARLY, first_act and second_act. EARLY: weights are constants, and
// their first rows are read while the kernel before this one still runs.
constexpr int V = 16 / sizeof(T), ROWS = THREADS / SLICE, WIDTH = SLICE * V, BLOCKS = ACROSS * DOWN, PITCH = (C + 7) / 8 * 8;
constexpr int PER = (R + ROWS - 1) / ROWS, AHEAD = PER < 4 ? PER : 4;  // rows of a weight a thread reads, and those it reads at once
constexpr int HIDDEN_SUMS = R * SLICE, SCRATCH = ROWS * WIDTH > HIDDEN_SUMS ? ROWS * WIDTH : HIDDEN_SUMS;

struct Plane { int W; int cs; i64 rs, ns; };
DEV i64 pixel_at(const Plane& p, int k) { return i64(k / p.W) * p.rs + i64(k % p.W) * p.cs; }
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The float of another block of the cluster at the place of `mine` in this one.
DEV float remote(const float* mine, int rank) {
  u32 at;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(mine))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}

// The sum of `mine` over the ROWS threads of each vector column: sums[c] for the channels of the slice.
DEV void join_rows(const float (&mine)[V], bool active, int row, int column, float* scratch, float* sums) {
  if (active)
#pragma unroll
    for (int j = 0; j < V; j++) scratch[(row * SLICE + column) * V + j] = mine[j];
  __syncthreads();
  for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
    float s = 0.f;
#pragma unroll 8
    for (int r = 0; r < ROWS; r++) s += scratch[r * WIDTH + c];
    sums[c] = s;
  }
  __syncthreads();
}

DEV void excite(const T* x, T* y, const T* w1, const float* b1, const T* w2, const float* b2, int H, Plane from, Plane to, float p0, float p1, float q0, float q1) {
  extern __shared__ uint4 kept[];
  float *const scratch = (float*)(kept + KEPT / 16), *const sums = scratch + SCRATCH, *const pooled = sums + WIDTH, *const part = pooled + WIDTH, *const hidden = part + R;
  const int rank = blockIdx.x % BLOCKS, across = rank % ACROSS, down = rank / ACROSS, image = blockIdx.x / BLOCKS, first = across * WIDTH;
  const int column = threadIdx.x % SLICE, row = threadIdx.x / SLICE, pixels = H * from.W, channel = first + column * V;
  const int begin = int(i64(pixels) * down / DOWN), end = int(i64(pixels) * (down + 1) / DOWN), mine = end - begin;
  const bool active = row < ROWS && channel < C;
  x += image * from.ns + channel, y += image * to.ns + channel;
  Vec<T, V> first_rows[AHEAD] = {}, second_rows[AHEAD] = {};
  auto rows_at = [&](const T* w, int i, Vec<T, V>(&to)[AHEAD]) {  // this thread's rows i, i + 1, ... of a weight
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (active && row + (i + k) * ROWS < R) to[k] = load<V>(w + (row + (i + k) * ROWS) * PITCH + channel);
  };
  if (EARLY) rows_at(w1, 0, first_rows), rows_at(w2, 0, second_rows);
  after_previous();
  if (!EARLY) rows_at(w1, 0, first_rows), rows_at(w2, 0, second_rows);

  float a[V] = {};
  if (active)
#pragma unroll 4
    for (int k = row; k < mine; k += ROWS) {
      const Vec<T, V> v = load<V>(x + pixel_at(from, begin + k));
      const int place = k * SLICE + column;
      if (place < KEPT / 16) kept[place] = *(const uint4*)&v;
#pragma unroll
      for (int j = 0; j < V; j++) a[j] += to_float(v.v[j]);
    }
  join_rows(a, row < ROWS, row, column, scratch, sums);
  if (DOWN > 1) cluster_arrive(), cluster_wait();
  for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
    float s = 0.f;
    if (DOWN == 1) s = sums[c];
    else
#pragma unroll
      for (int d = 0; d < DOWN; d++) s += remote(sums + c, d * ACROSS + across);
    pooled[c] = first + c < C ? s / float(pixels) : 0.f;  // pad channels hold anything
  }
  __syncthreads();

#pragma unroll 1
  for (int i = 0; i < PER; i += AHEAD) {
    if (i) rows_at(w1, i, first_rows);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      float s = 0.f;
#pragma unroll
      for (int j = 0; j < V; j++) s += to_float(first_rows[k].v[j]) * pooled[column * V + j];
      const int j = row + (i + k) * ROWS;
      if (row < ROWS && j < R) scratch[j * SLICE + column] = active ? s : 0.f;
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < R; j += THREADS) {
    float s = 0.f;
#pragma unroll 8
    for (int k = 0; k < SLICE; k++) s += scratch[j * SLICE + k];
    part[j] = s;
  }
  if (ACROSS > 1) cluster_arrive(), cluster_wait();
  else __syncthreads();
  for (int j = threadIdx.x; j < R; j += THREADS) {
    float s = b1 ? b1[j] : 0.f;
    if (ACROSS == 1) s += part[j];
    else
#pragma unroll
      for (int q = 0; q < ACROSS; q++) s += remote(part + j, down * ACROSS + q);
    hidden[j] = first_act(s, p0, p1);
  }
  __syncthreads();
  if (BLOCKS > 1) cluster_arrive();  // nothing of another block is read from here on

#pragma unroll
  for (int j = 0; j < V; j++) a[j] = 0.f;
#pragma unroll 1
  for (int i = 0; i < PER; i += AHEAD) {
    if (i) rows_at(w2, i, second_rows);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int j = row + (i + k) * ROWS;
      if (active && j < R)
#pragma unroll
        for (int c = 0; c < V; c++) a[c] += to_float(second_rows[k].v[c]) * hidden[j];
    }
  }
  join_rows(a, row < ROWS, row, column, scratch, sums);
  if (active) {
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = second_act(sums[column * V + j] + (b2 && channel + j < C ? b2[channel + j] : 0.f), q0, q1);
#pragma unroll 4
    for (int k = row; k < mine; k += ROWS) {
      const int place = k * SLICE + column;
      Vec<T, V> v;
      if (place < KEPT / 16) *(uint4*)&v = kept[place];
      else v = load<V>(x + pixel_at(from, begin + k));
#pragma unroll
      for (int j = 0; j < V; j++) from_float(v.v[j], to_float(v.v[j]) * a[j]);
      store<V>(y + pixel_at(to, begin + k), v);
    }
  }
  if (BLOCKS > 1) cluster_wait();
}
