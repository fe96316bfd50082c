// Squeeze-excite of channels-last images in one launch: y = x * f2(w2 f1(w1 mean(x) + b1) + b2) per
// image.
//
// A cluster has IMAGES images. Its CTAs divide channels (ACROSS slices of SLICE vectors of V
// channels) and pixels (DOWN ranges). Through distributed shared memory, the CTAs of a slice sum
// over pixels; then the slices sum their parts of the hidden layer. Each CTA keeps HELD pixels of
// its part of an image in shared memory for the final multiplication, and reads the others again.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int C = 96, R = 24;          // channels and hidden channels
constexpr int PITCH = 96;              // of both packed weights, a multiple of 8
constexpr int THREADS = 256;           // of a CTA
constexpr int ACROSS = 4;              // CTAs of a cluster along channels
constexpr int DOWN = 1;                // CTAs along pixels; ACROSS * DOWN is 1 to 16
constexpr int IMAGES = 1;              // of a cluster
constexpr int SLICE = 3;               // vectors of channels of a CTA, up to THREADS
constexpr int HELD = 64;               // pixels of an image that a CTA keeps in shared memory
constexpr int X_FLAT = 1, Y_FLAT = 1;  // rows of pixels are contiguous
constexpr int EARLY = 1;               // weights and biases are constants, read before pdl_wait
DEV float first_act(float x, float, float) { return x; }
DEV float second_act(float x, float, float) { return x; }
#endif  // GENERATED
#include "common/base.cuh"
#include "common/hopper.cuh"

constexpr int V = 16 / sizeof(T), CHANNELS = SLICE * V, BLOCKS = ACROSS * DOWN;
constexpr int floor_2(int n) { return n < 2 ? 1 : 2 * floor_2(n / 2); }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a < b ? b : a; }
constexpr int ROWS = THREADS / SLICE;  // pixels, and rows of the second weight, of an
                                       // iteration: a vector per thread
// Sums over pixels: a thread has HALF channels (half a vector) of every GROUPS-th pixel.
constexpr int HALF = V / 2, HALVES = SLICE * 2, TURNS = (HALVES + THREADS - 1) / THREADS,
              GROUPS = TURNS > 1 ? 1 : THREADS / HALVES;
constexpr int PIECES =
    IMAGES * HELD * SLICE * 16 < 48 * 1024 ? 1 : 4;  // pieces whose copies are awaited one by one
// Weights: a thread has a vector of every ROWS-th row. VECTORS: of each weight; AHEAD: loads in
// flight.
constexpr int VECTORS = (R + ROWS - 1) / ROWS, AHEAD = VECTORS < 8 ? VECTORS : 8,
              FILLED = smaller(ROWS, R), PADDED = SLICE | 1;
constexpr int SCRATCH = larger(larger(GROUPS, FILLED) * CHANNELS, R* PADDED) * IMAGES;

struct Plane {
  int W;
  int cs;
  i64 rs, ns;
};
template <bool FLAT>
DEV i64 pixel_at(const Plane& p, int k) {
  return FLAT ? i64(k) * p.cs : i64(k / p.W) * p.rs + i64(k % p.W) * p.cs;
}
DEV void cp_async_vector(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
// Stores v at the address of `mine` in another CTA of the cluster (st.async), which counts the
// bytes at that CTA's mbarrier.
DEV void st_async(const float* mine, float v, u32 barrier, int block) {
  asm volatile(
      "{.reg .b32 to, b; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 b, %2, %3;"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], %1, [b];}" ::"r"(
          smem_address(mine)),
      "f"(v), "r"(barrier), "r"(block)
      : "memory");
}
// Waits for the stores of the other CTAs.
DEV void mbarrier_wait_cluster(u32 barrier) {
  u32 done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
}
// Multiplies the elements of v by those of `by`.
template <class A>
DEV void scale(Vec<A, V>& v, const float (&by)[V]) {
#pragma unroll
  for (int c = 0; c < V; c += 2)
    if constexpr (sizeof(A) == 2) {
      u32* const word = (u32*)&v + c / 2;
      float a, b;
      unpack2((A*)nullptr, *word, a, b);
      *word = pack2((A*)nullptr, a * by[c], b * by[c + 1]);
    } else
      v.v[c] *= by[c], v.v[c + 1] *= by[c + 1];
}

// Sums scratch[r * STEP + c * BY] over r < COUNT for each c < COLUMNS. share(COUNT, COLUMNS)
// neighbouring threads have a column; each calls take(c, sum, its index among them).
constexpr int share(int count, int columns) {
  return smaller(smaller(floor_2(count), 32), floor_2(larger(1, THREADS / columns)));
}
template <int COUNT, int STEP, int COLUMNS, int BY, class Take>
DEV void reduce_columns(const float* scratch, Take take) {
  constexpr int SHARE = share(COUNT, COLUMNS);
  for (int e = threadIdx.x; e < (COLUMNS * SHARE + 31) / 32 * 32; e += THREADS) {
    const int c = e / SHARE, part = e % SHARE;
    float s = 0.f;
    if (c < COLUMNS)
#pragma unroll 16
      for (int r = 0; r < COUNT; r += SHARE)
        if (r + part < COUNT) s += scratch[(r + part) * STEP + c * BY];
#pragma unroll
    for (int o = SHARE / 2; o; o /= 2) s += __shfl_xor_sync(FULL_WARP, s, o);
    if (c < COLUMNS) take(c, s, part);
  }
}

DEV void squeeze_excite_cta(const T* x, T* y, const T* w1, const float* b1, const T* w2,
                            const float* b2, int N, int H, Plane from, Plane to, float p0, float p1,
                            float q0, float q1) {
  extern __shared__ uint4 kept[];  // [IMAGES][HELD][SLICE]
  // means: [IMAGES][CHANNELS], later the gates; bias: [CHANNELS]; hidden: [IMAGES][R]. Other CTAs
  // store sums: [DOWN][IMAGES][CHANNELS] and arrived: [ACROSS][IMAGES][R].
  u64* const barriers = (u64*)(kept + IMAGES * HELD * SLICE);
  float *const scratch = (float*)(barriers + 2), *const means = scratch + SCRATCH,
               *const bias = means + IMAGES * CHANNELS;
  float *const sums = bias + CHANNELS,
               *const arrived = sums + (DOWN > 1 ? DOWN * IMAGES * CHANNELS : 0),
               *const hidden = arrived + (ACROSS > 1 ? ACROSS * IMAGES * R : 0);
  const u32 sums_here = smem_address(barriers), parts_here = smem_address(barriers + 1);
  if (BLOCKS > 1) {
    if (threadIdx.x == 0) {
      mbarrier_init(sums_here, 1), mbarrier_init(parts_here, 1);
      mbarrier_expect_tx(sums_here, DOWN * IMAGES * CHANNELS * 4),
          mbarrier_expect_tx(parts_here, ACROSS * IMAGES * R * 4);
    }
    mbarrier_init_fence();
    cluster_arrive_relaxed();
  }
  const int rank = blockIdx.x % BLOCKS, across = rank % ACROSS, down = rank / ACROSS,
            image = blockIdx.x / BLOCKS * IMAGES, first = across * CHANNELS;
  const int column = threadIdx.x % SLICE, row = threadIdx.x / SLICE, pixels = H * from.W,
            channel = first + column * V;
  const int begin = int(i64(pixels) * down / DOWN),
            mine = int(i64(pixels) * (down + 1) / DOWN) - begin;
  const bool active = row < ROWS && channel < C;
  x += image * from.ns + channel, y += image * to.ns + channel;

  Vec<T, V> first_rows[AHEAD] = {}, second_rows[AHEAD] = {};
  auto read = [&](const T* w, int n,
                  Vec<T, V>(&to)[AHEAD]) {  // loads this thread's vectors n, n + 1, ... of a weight
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (active && row + (n + k) * ROWS < R)
        to[k] = load<V>(w + (row + (n + k) * ROWS) * PITCH + channel);
  };
  auto read_weights = [&] {
    read(w1, 0, first_rows), read(w2, 0, second_rows);
    for (int c = threadIdx.x; c < CHANNELS; c += THREADS)
      bias[c] = b2 && first + c < C ? b2[first + c] : 0.f;
    for (int e = threadIdx.x; e < IMAGES * R; e += THREADS) hidden[e] = b1 ? b1[e % R] : 0.f;
  };
  if (EARLY) read_weights();
  pdl_begin();

  const int half = TURNS > 1 ? threadIdx.x : threadIdx.x % HALVES,
            group = TURNS > 1 ? 0 : threadIdx.x / HALVES;
  Vec<float, HALF> sum[IMAGES][TURNS] = {};
  for (int end = mine - larger(mine - 1, 0) / HELD * HELD;;
       end += HELD) {  // the last HELD pixels stay in shared memory
    const int start = larger(end - HELD, 0), count = end - start;
#pragma unroll
    for (int q = 0; q < PIECES; q++) {
#pragma unroll
      for (int i = 0; i < IMAGES; i++)
        if (active && image + i < N)
#pragma unroll 4
          for (int k = count * q / PIECES + row; k < count * (q + 1) / PIECES; k += ROWS)
            cp_async_vector(kept + (i * HELD + k) * SLICE + column,
                            x + i * from.ns + pixel_at<X_FLAT>(from, begin + start + k));
      cp_async_commit();
    }
    if (!EARLY && end <= HELD) read_weights();
    auto sum_piece = [&](int q) {
#pragma unroll
      for (int i = 0; i < IMAGES; i++)
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
          const Vec<T, HALF>* const halves =
              (const Vec<T, HALF>*)kept + i * HELD * HALVES + half + t * THREADS;
          const int last =
              group < GROUPS && half + t * THREADS < HALVES ? count * (q + 1) / PIECES : 0;
          int k = count * q / PIECES + group;
          auto add = [&](int k) {
            const Vec<T, HALF> v = halves[k * HALVES];
#pragma unroll
            for (int j = 0; j < HALF; j++) sum[i][t].v[j] += to_float(v.v[j]);
          };
#pragma unroll 1
          for (; k + 7 * GROUPS < last; k += 8 * GROUPS)
#pragma unroll
            for (int u = 0; u < 8; u++) add(k + u * GROUPS);
#pragma unroll
          for (int u = 0; u < 7; u++)
            if (k + u * GROUPS < last) add(k + u * GROUPS);
        }
    };
    if constexpr (PIECES == 4) {
      cp_async_wait<3>(), __syncthreads(), sum_piece(0);
      cp_async_wait<2>(), __syncthreads(), sum_piece(1);
      cp_async_wait<1>(), __syncthreads(), sum_piece(2);
    }
    cp_async_wait<0>(), __syncthreads();
    sum_piece(PIECES - 1);
    if (end == mine) break;
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < IMAGES; i++)
#pragma unroll
    for (int t = 0; t < TURNS; t++)
      if (group < GROUPS && half + t * THREADS < HALVES)
        store<HALF>(scratch + (group * IMAGES + i) * CHANNELS + (half + t * THREADS) * HALF,
                    sum[i][t]);
  __syncthreads();
  const float size = float(pixels);
  auto mean = [&](int c, float s) {
    means[c] = first + c % CHANNELS < C ? s / size : 0.f;
  };  // pad channels are undefined
  if (BLOCKS > 1) cluster_wait();  // every CTA has initialised its mbarriers
  reduce_columns<GROUPS, IMAGES * CHANNELS, IMAGES * CHANNELS, 1>(
      scratch, [&](int c, float s, int part) {
        if constexpr (DOWN == 1) {
          if (part == 0) mean(c, s);
        } else
          for (int d = part; d < DOWN; d += share(GROUPS, IMAGES * CHANNELS))
            st_async(sums + down * IMAGES * CHANNELS + c, s, sums_here, d * ACROSS + across);
      });
  if constexpr (DOWN > 1) {
    mbarrier_wait_cluster(sums_here);
    for (int c = threadIdx.x; c < IMAGES * CHANNELS; c += THREADS) {
      float s = 0.f;
#pragma unroll
      for (int d = 0; d < DOWN; d++) s += sums[d * IMAGES * CHANNELS + c];
      mean(c, s);
    }
  }
  __syncthreads();

  float gate[IMAGES][V] = {};
#pragma unroll
  for (int i = 0; i < IMAGES; i++)
#pragma unroll
    for (int c = 0; c < V; c++) gate[i][c] = means[i * CHANNELS + column * V + c];
#pragma unroll 1
  for (int n = 0; n < VECTORS; n += AHEAD) {
    if (n) read(w1, n, first_rows);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int j = row + (n + k) * ROWS;
      float add[IMAGES] = {};
#pragma unroll
      for (int c = 0; c < V; c++) {
        const float w = to_float(first_rows[k].v[c]);
#pragma unroll
        for (int i = 0; i < IMAGES; i++) add[i] += w * gate[i][c];
      }
      if (row < ROWS && j < R)
#pragma unroll
        for (int i = 0; i < IMAGES; i++)
          scratch[(i * R + j) * PADDED + column] = active ? add[i] : 0.f;
    }
  }
  __syncthreads();
  reduce_columns<SLICE, 1, IMAGES * R, PADDED>(scratch, [&](int e, float s, int part) {
    if constexpr (ACROSS > 1)
      for (int q = part; q < ACROSS; q += share(SLICE, IMAGES * R))
        st_async(arrived + across * IMAGES * R + e, s, parts_here, down * ACROSS + q);
    else if (part == 0)
      hidden[e] = first_act(s + hidden[e], p0, p1);
  });
  if constexpr (ACROSS > 1) {
    mbarrier_wait_cluster(parts_here);
    for (int e = threadIdx.x; e < IMAGES * R; e += THREADS) {
      float s = hidden[e];
#pragma unroll
      for (int q = 0; q < ACROSS; q++) s += arrived[q * IMAGES * R + e];
      hidden[e] = first_act(s, p0, p1);
    }
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < IMAGES; i++)
#pragma unroll
    for (int c = 0; c < V; c++) gate[i][c] = 0.f;
#pragma unroll 1
  for (int n = 0; n < VECTORS; n += AHEAD) {
    if (n) read(w2, n, second_rows);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int j = row + (n + k) * ROWS;
      if (active && j < R)
#pragma unroll
        for (int i = 0; i < IMAGES; i++)
#pragma unroll
          for (int c = 0; c < V; c++)
            gate[i][c] += to_float(second_rows[k].v[c]) * hidden[i * R + j];
    }
  }
  if (row < FILLED)
#pragma unroll
    for (int i = 0; i < IMAGES; i++)
#pragma unroll
      for (int c = 0; c < V; c += 4)
        store<4>(scratch + (row * IMAGES + i) * CHANNELS + column * V + c,
                 Vec<float, 4>{gate[i][c], gate[i][c + 1], gate[i][c + 2], gate[i][c + 3]});
  __syncthreads();
  reduce_columns<FILLED, IMAGES * CHANNELS, IMAGES * CHANNELS, 1>(
      scratch, [&](int c, float s, int part) {
        if (part == 0) means[c] = second_act(s + bias[c % CHANNELS], q0, q1);
      });
  __syncthreads();
  if (active)
#pragma unroll
    for (int i = 0; i < IMAGES; i++) {
      if (image + i >= N) break;
      const T* const image_x = x + i * from.ns;
      T* const image_y = y + i * to.ns;
      const int start = larger(mine - HELD, 0);
      auto multiply = [&](int k, Vec<T, V> v) {
        scale<T>(v, gate[i]);
        store<V>(image_y + pixel_at<Y_FLAT>(to, begin + k), v);
      };
#pragma unroll
      for (int c = 0; c < V; c++) gate[i][c] = means[i * CHANNELS + column * V + c];
#pragma unroll 1
      for (int k = start + row; k < mine; k += 4 * ROWS)
#pragma unroll
        for (int u = 0; u < 4; u++)
          if (k + u * ROWS < mine)
            multiply(
                k + u * ROWS,
                *(const Vec<T, V>*)(kept + (i * HELD + k + u * ROWS - start) * SLICE + column));
#pragma unroll 4
      for (int k = row; k < start; k += ROWS)
        multiply(k, load<V>(image_x + pixel_at<X_FLAT>(from, begin + k)));
    }
}
