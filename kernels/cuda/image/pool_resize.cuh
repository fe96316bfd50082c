// Pooling and resizing of channels-last images: a thread per output pixel and V channels. Pad
// channels up to a multiple of V, or of 8, are read and written too.
#pragma once
#include "common/base.cuh"
#include "common/cluster.cuh"
#include "image/half2_max.cuh"

struct Pitch {
  int cs;
  i64 rs, ns;
};
DEV bool wide_pitch(const void* p, Pitch q, int v) {
  return aligned(p, v * int(sizeof(T))) && ((q.cs | q.rs | q.ns) & (v - 1)) == 0;
}

struct Pool {
  int N, C, IH, IW, OH, OW, KH, KW, SH, SW, DH, DW, PT, PL, PB, PR;
};

// The taps start + k * dilation, k < taps, within [low, high): the first k, and their number.
struct Taps {
  int first, count;
};
DEV Taps clip_taps(int start, int taps, int dilation, int low, int high) {
  const int first = start >= low ? 0 : (low - start + dilation - 1) / dilation,
            end = start >= high ? 0 : (high - start + dilation - 1) / dilation;
  return {first, max(min(end, taps) - first, 0)};
}

// Vectors of a pixel that are written. Where pitches are multiples of 8 channels, pad channels are
// written, too: memory stores whole 32-byte sectors faster than parts.
template <int V>
DEV u32 vectors_of(int channels, int pitch) {
  return V > 1 && pitch % 8 == 0 ? (channels + 7) / 8 * (8 / V) : (channels + V - 1) / V;
}

// Image, pixel and channel of unit u (V channels) of `total`; indices below 2^31 divide faster.
struct UnitIndex {
  int n, oh, ow, c;
};
template <int V>
DEV UnitIndex unit_index(u64 u, u64 total, u32 vectors, int OH, int OW) {
  const bool large = total >> 31;
  const u64 pixels = large ? u / vectors : u64(u32(u) / vectors),
            rows = large ? pixels / OW : u64(u32(pixels) / u32(OW));
  const int n = large ? int(rows / OH) : int(u32(rows) / u32(OH));
  return {n, int(rows - u64(n) * OH), int(pixels - rows * OW), int(u - pixels * vectors) * V};
}

// MODE: 0 maximum, 1 average over taps within the image, 2 average over taps within the padded
// image.
template <int MODE, int V>
DEV void pool_pixels(const T* x, T* y, const Pool& g, Pitch from, Pitch to) {
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const int top = oh * g.SH - g.PT, left = ow * g.SW - g.PL;
    const Taps th = clip_taps(top, g.KH, g.DH, 0, g.IH), tw = clip_taps(left, g.KW, g.DW, 0, g.IW);
    const T* p = x + n * from.ns + i64(top + th.first * g.DH) * from.rs +
                 i64(left + tw.first * g.DW) * from.cs + c;
    float a[V];
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = MODE == 0 ? -INF : 0.f;
    for (int kh = 0; kh < th.count; kh++)
#pragma unroll 3
      for (int kw = 0; kw < tw.count; kw++) {
        const Vec<T, V> v = load<V>(p + i64(kh * g.DH) * from.rs + i64(kw * g.DW) * from.cs);
#pragma unroll
        for (int j = 0; j < V; j++)
          a[j] = MODE == 0 ? keep_max(a[j], to_float(v.v[j])) : a[j] + to_float(v.v[j]);
      }
    if (MODE != 0) {
      int count = th.count * tw.count;
      if (MODE == 2)
        count = clip_taps(top, g.KH, g.DH, -g.PT, g.IH + g.PB).count *
                clip_taps(left, g.KW, g.DW, -g.PL, g.IW + g.PR).count;
      const float scale = count ? 1.f / float(count) : 0.f;
#pragma unroll
      for (int j = 0; j < V; j++) a[j] *= scale;
    }
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; j++) from_float(out.v[j], a[j]);
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c, out);
  }
}
// Accumulator of V channels: maximum (pairs of 16-bit elements in a word) or sum.
template <int MODE, int V, int SIZE>
struct Pooled {
  float a[V];
  __device__ Pooled() {
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = MODE == 0 ? -INF : 0.f;
  }
  __device__ __forceinline__ void add(const Vec<T, V>& v) {
#pragma unroll
    for (int j = 0; j < V; j++)
      a[j] = MODE == 0 ? keep_max(a[j], to_float(v.v[j])) : a[j] + to_float(v.v[j]);
  }
  __device__ __forceinline__ void shuffle_reduce(int apart) {
#pragma unroll
    for (int j = 0; j < V; j++) {
      const float other = __shfl_xor_sync(FULL_WARP, a[j], apart);
      a[j] = MODE == 0 ? keep_max(a[j], other) : a[j] + other;
    }
  }
  __device__ __forceinline__ Vec<T, V> result(float scale) const {
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; j++) from_float(out.v[j], MODE == 0 ? a[j] : a[j] * scale);
    return out;
  }
};
DEV u32 lowest_pair(float*) { return 0; }  // not used
DEV u32 pair_max(float*, u32 a, u32) { return a; }
template <>
struct Pooled<0, 8, 2> {
  u32 a[4];
  __device__ Pooled() {
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = lowest_pair((T*)0);
  }
  __device__ __forceinline__ void add(const Vec<T, 8>& v) {
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = pair_max((T*)0, a[j], ((const u32*)&v)[j]);
  }
  __device__ __forceinline__ void shuffle_reduce(int apart) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      a[j] = pair_max((T*)0, a[j], __shfl_xor_sync(FULL_WARP, a[j], apart));
  }
  __device__ __forceinline__ Vec<T, 8> result(float) const { return *(const Vec<T, 8>*)a; }
};

// Windows of a compile-time size: the loads of all taps (or of a row, where they are many) are in
// flight together.
template <int MODE, int V, int KH, int KW>
DEV void pool_windows(const T* x, T* y, const Pool& g, Pitch from, Pitch to) {
  constexpr int ROWS = KH * KW <= 16 ? KH : 1;
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const int top = oh * g.SH - g.PT, left = ow * g.SW - g.PL;
    const T* p = x + n * from.ns + i64(top) * from.rs + i64(left) * from.cs + c;
    Pooled<MODE, V, int(sizeof(T))> pooled;
    for (int row = 0; row < KH; row += ROWS) {
      Vec<T, V> v[ROWS][KW];
      const auto inside = [&](int kh, int kw) {
        return u32(top + (row + kh) * g.DH) < u32(g.IH) && u32(left + kw * g.DW) < u32(g.IW);
      };
#pragma unroll
      for (int kh = 0; kh < ROWS; kh++)
#pragma unroll
        for (int kw = 0; kw < KW; kw++)
          if (inside(kh, kw))
            v[kh][kw] = load<V>(p + i64((row + kh) * g.DH) * from.rs + i64(kw * g.DW) * from.cs);
#pragma unroll
      for (int kh = 0; kh < ROWS; kh++)
#pragma unroll
        for (int kw = 0; kw < KW; kw++)
          if (inside(kh, kw)) pooled.add(v[kh][kw]);
    }
    float scale = 1.f;
    if (MODE != 0) {
      const int low_h = MODE == 2 ? -g.PT : 0, low_w = MODE == 2 ? -g.PL : 0,
                high_h = g.IH + (MODE == 2 ? g.PB : 0), high_w = g.IW + (MODE == 2 ? g.PR : 0);
      const int count = clip_taps(top, KH, g.DH, low_h, high_h).count *
                        clip_taps(left, KW, g.DW, low_w, high_w).count;
      scale = count ? 1.f / float(count) : 0.f;
    }
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c, pooled.result(scale));
  }
}
// Few outputs: LANES neighbouring threads share the taps of each.
template <int MODE, int V, int KH, int KW, int LANES>
DEV void pool_lanes(const T* x, T* y, const Pool& g, Pitch from, Pitch to) {
  constexpr int ROUNDS = (KH * KW + LANES - 1) / LANES, AHEAD = ROUNDS < 8 ? ROUNDS : 8;
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors, apart = u64(gridDim.x) * (blockDim.x / LANES);
  const int lane = threadIdx.x % LANES;
  for (u64 first = u64(blockIdx.x) * (blockDim.x / LANES); first < total;
       first += apart) {  // the same number of iterations for all threads
    const u64 u = min(first + threadIdx.x / LANES, total - 1);
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const int top = oh * g.SH - g.PT, left = ow * g.SW - g.PL;
    const T* p = x + n * from.ns + i64(top) * from.rs + i64(left) * from.cs + c;
    Pooled<MODE, V, int(sizeof(T))> pooled;
#pragma unroll 1
    for (int k = 0; k < ROUNDS; k += AHEAD) {
      Vec<T, V> v[AHEAD];
      bool inside[AHEAD];
#pragma unroll
      for (int q = 0; q < AHEAD; q++) {
        const int at = (k + q) * LANES + lane, kh = at / KW, kw = at % KW;
        inside[q] =
            kh < KH && u32(top + kh * g.DH) < u32(g.IH) && u32(left + kw * g.DW) < u32(g.IW);
        if (inside[q]) v[q] = load<V>(p + kh * g.DH * from.rs + kw * g.DW * from.cs);
      }
#pragma unroll
      for (int q = 0; q < AHEAD; q++)
        if (inside[q]) pooled.add(v[q]);
    }
#pragma unroll
    for (int other = LANES / 2; other; other /= 2) pooled.shuffle_reduce(other);
    if (lane || first + threadIdx.x / LANES >= total) continue;
    const int low_h = MODE == 2 ? -g.PT : 0, low_w = MODE == 2 ? -g.PL : 0,
              high_h = g.IH + (MODE == 2 ? g.PB : 0), high_w = g.IW + (MODE == 2 ? g.PR : 0);
    const int count = clip_taps(top, KH, g.DH, low_h, high_h).count *
                      clip_taps(left, KW, g.DW, low_w, high_w).count;
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c,
             pooled.result(count ? 1.f / float(count) : 0.f));
  }
}
// KH, KW: 0 for large windows. LANES: threads per output.
template <int MODE, int KH, int KW, int LANES>
DEV void pool(const T* x, T* y, const Pool& g, Pitch from, Pitch to) {
  constexpr int V = 16 / sizeof(T);
  if (!wide_pitch(x, from, V) || !wide_pitch(y, to, V))
    pool_pixels<MODE, 1>(x, y, g, from, to);
  else if constexpr (LANES > 1)
    pool_lanes<MODE, V, KH, KW, LANES>(x, y, g, from, to);
  else if constexpr (KH > 0)
    pool_windows<MODE, V, KH, KW>(x, y, g, from, to);
  else
    pool_pixels<MODE, V>(x, y, g, from, to);
}

// Global pooling: LANES threads along vectors of V channels, the others along pixels. Partial
// results are combined within a warp, then in shared memory. blockIdx.x: image x channel block
// (`across` of them); blockIdx.y: slice of the pixels. One slice writes y[n, c]; more write f32
// sums (or maxima) to partial[slice, n, c], or, as the CLUSTER CTAs of a cluster, combine them.
template <bool MAX, int V, int LANES, int CLUSTER>
DEV void pool_slice(const T* x, T* y, float* partial, int N, int C, int H, int W, Pitch from,
                    i64 y_ns, int across) {
  constexpr int AHEAD = 8, DOWN = 256 / LANES;  // AHEAD: pixels in flight
  __shared__ float shared[8][LANES * V];
  __shared__ float whole[LANES * V];
  const int lane = threadIdx.x % LANES, block = blockIdx.x / CLUSTER, n = block / across,
            pixels = H * W;
  const int slices = CLUSTER > 1 ? CLUSTER : gridDim.y,
            slice = CLUSTER > 1 ? blockIdx.x % CLUSTER : blockIdx.y;
  const int begin = int(i64(pixels) * slice / slices),
            end = int(i64(pixels) * (slice + 1) / slices);
  for (int first = block % across * LANES * V; first < C; first += across * LANES * V) {
    const int c = first + lane * V;
    float a[V];
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = MAX ? -INF : 0.f;
    if (c < C) {
      const T* p = x + n * from.ns + c;
      const i64 gap = from.rs - i64(W) * from.cs;  // after each row of pixels
      for (int k = begin + int(threadIdx.x) / LANES; k < end; k += DOWN * AHEAD) {
        Vec<T, V> v[AHEAD];
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
          const int at = min(k + q * DOWN, end - 1);  // no load depends on a branch
          v[q] = load<V>(p + (i64(at) * from.cs + (gap ? at / W * gap : 0)));
        }
#pragma unroll
        for (int q = 0; q < AHEAD; q++)
          if (k + q * DOWN < end)
#pragma unroll
            for (int j = 0; j < V; j++)
              a[j] = MAX ? keep_max(a[j], to_float(v[q].v[j])) : a[j] + to_float(v[q].v[j]);
      }
    }
#pragma unroll
    for (int apart = 16; apart >= LANES; apart /= 2)
#pragma unroll
      for (int j = 0; j < V; j++) {
        const float other = __shfl_xor_sync(0xffffffffu, a[j], apart);
        a[j] = MAX ? keep_max(a[j], other) : a[j] + other;
      }
    __syncthreads();
    if (threadIdx.x % 32 < LANES)
#pragma unroll
      for (int j = 0; j < V; j++) shared[threadIdx.x / 32][lane * V + j] = a[j];
    __syncthreads();
    for (int k = threadIdx.x; k < LANES * V && first + k < C; k += 256) {
      float s = shared[0][k];
#pragma unroll
      for (int w = 1; w < 8; w++) s = MAX ? keep_max(s, shared[w][k]) : s + shared[w][k];
      if (CLUSTER > 1)
        whole[k] = s;
      else if (slices == 1)
        from_float(y[n * y_ns + first + k], MAX ? s : s / float(pixels));
      else
        partial[(i64(slice) * N + n) * C + first + k] = s;
    }
    if (CLUSTER > 1) {
      __syncthreads();
      cluster_arrive();
      cluster_wait();
      for (int k = threadIdx.x; slice == 0 && k < LANES * V && first + k < C; k += 256) {
        float s = whole[k];
#pragma unroll
        for (int b = 1; b < CLUSTER; b++) {
          const float other = load_dsmem(whole + k, b);
          s = MAX ? keep_max(s, other) : s + other;
        }
        from_float(y[n * y_ns + first + k], MAX ? s : s / float(pixels));
      }
      cluster_arrive_relaxed();  // until the first CTA has read the others' results
      cluster_wait();
    }
  }
}
template <bool MAX, bool WIDE, int LANES, int CLUSTER>
DEV void pool_all(const T* x, T* y, float* partial, int N, int C, int H, int W, Pitch from,
                  i64 y_ns, int across) {
  constexpr int V = 16 / sizeof(T);
  if (WIDE && wide_pitch(x, from, V))
    pool_slice<MAX, V, LANES, CLUSTER>(x, y, partial, N, C, H, W, from, y_ns, across);
  else
    pool_slice<MAX, 1, LANES, CLUSTER>(x, y, partial, N, C, H, W, from, y_ns, across);
}
template <bool MAX>
DEV void combine_pool(const float* partial, T* y, int slices, int N, int C, int pixels, i64 y_ns) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= N * C) return;
  float s = partial[at];
  for (int k = 1; k < slices; k++)
    s = MAX ? keep_max(s, partial[i64(k) * N * C + at]) : s + partial[i64(k) * N * C + at];
  from_float(y[at / C * y_ns + at % C], MAX ? s : s / float(pixels));
}

struct Resize {
  int N, C, IH, IW, OH, OW;
  float scale_h, scale_w;
};
// A scale of 0 is derived from the sizes. Equal sizes are a copy, whatever the scale.
DEV Resize resize_of(int N, int C, int IH, int IW, int OH, int OW, float scale_h, float scale_w) {
  const bool same = IH == OH && IW == OW;
  return {N,
          C,
          IH,
          IW,
          OH,
          OW,
          same            ? 1.f
          : scale_h > 0.f ? scale_h
                          : float(OH) / float(IH),
          same            ? 1.f
          : scale_w > 0.f ? scale_w
                          : float(OW) / float(IW)};
}
struct Tap {
  int low, high;
  float weight;
};

// The input coordinate of an output index. COORD: 0 half_pixel, 1 asymmetric, 2 align_corners,
// 3 pytorch_half_pixel.
template <int COORD>
DEV float origin(int at, int in, int out, float scale) {
  if (scale == 1.f) return float(at);
  if (COORD == 1) return float(at) / scale;
  if (COORD == 2) return out == 1 ? 0.f : float(at) * float(in - 1) / float(out - 1);
  if (COORD == 3 && out <= 1) return 0.f;
  return (float(at) + 0.5f) / scale - 0.5f;
}
// rounding: 0 prefer floor, 1 floor, 2 ceil, 3 prefer ceil, 4 ceil where the scale is below 1, else
// floor.
template <bool LINEAR, int COORD, int ROUNDING>
DEV Tap tap(int at, int in, int out, float scale) {
  float s = origin<COORD>(at, in, out, scale);
  if (!LINEAR) {
    const float below = floorf(s);
    int k = int(ROUNDING == 2 || (ROUNDING == 4 && scale < 1.f) ? ceilf(s) : below);
    // ONNX Runtime treats a coordinate this close to .5 as .5
    if (ROUNDING == 3) k += s - below - 0.5f >= -1e-6f;
    if (ROUNDING == 0) k += s - below - 0.5f > 1e-6f;
    k = min(max(k, 0), in - 1);
    return {k, k, 0.f};
  }
  s = fminf(fmaxf(s, 0.f), float(in - 1));
  const int low = int(s);
  return {low, min(low + 1, in - 1), s - float(low)};
}

template <bool LINEAR, int COORD, int ROUNDING, int V>
DEV void resize_pixels(const T* x, T* y, const Resize& g, Pitch from, Pitch to) {
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const Tap row = tap<LINEAR, COORD, ROUNDING>(oh, g.IH, g.OH, g.scale_h),
              column = tap<LINEAR, COORD, ROUNDING>(ow, g.IW, g.OW, g.scale_w);
    const T *top = x + n * from.ns + row.low * from.rs + c,
            *bottom = x + n * from.ns + row.high * from.rs + c;
    const i64 low = i64(column.low) * from.cs, high = i64(column.high) * from.cs;
    pdl_wait_after(top, bottom, low, high);
    Vec<T, V> out = load<V>(top + low);
    if (LINEAR) {
      const Vec<T, V> b = load<V>(top + high), d = load<V>(bottom + low),
                      e = load<V>(bottom + high);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const float up =
            to_float(out.v[j]) * (1.f - column.weight) + to_float(b.v[j]) * column.weight;
        const float down =
            to_float(d.v[j]) * (1.f - column.weight) + to_float(e.v[j]) * column.weight;
        from_float(out.v[j], up * (1.f - row.weight) + down * row.weight);
      }
    }
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c, out);
  }
}
// Four pixels along an axis (edge pixels repeat outside the image), and their weights by Keys'
// cubic with coefficient a.
struct CubicTaps {
  int at[4];
  float weight[4];
};
template <int COORD>
DEV CubicTaps cubic_taps(int at, int in, int out, float scale, float a) {
  const float s = origin<COORD>(at, in, out, scale), low = floorf(s), t = s - low, u = 1.f - t;
  CubicTaps f;
#pragma unroll
  for (int k = 0; k < 4; k++) f.at[k] = min(max(int(low) - 1 + k, 0), in - 1);
  f.weight[0] = ((a * (t + 1.f) - 5.f * a) * (t + 1.f) + 8.f * a) * (t + 1.f) - 4.f * a;
  f.weight[1] = ((a + 2.f) * t - (a + 3.f)) * t * t + 1.f;
  f.weight[2] = ((a + 2.f) * u - (a + 3.f)) * u * u + 1.f;
  f.weight[3] = ((a * (u + 1.f) - 5.f * a) * (u + 1.f) + 8.f * a) * (u + 1.f) - 4.f * a;
  return f;
}
template <int COORD, int V>
DEV void resize_cubic_pixels(const T* x, T* y, const Resize& g, float a, Pitch from, Pitch to) {
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const CubicTaps down = cubic_taps<COORD>(oh, g.IH, g.OH, g.scale_h, a),
                    across = cubic_taps<COORD>(ow, g.IW, g.OW, g.scale_w, a);
    pdl_wait_after(down.at[0], across.at[0], x + n * from.ns + c);
    Vec<T, V> v[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        v[i][j] = load<V>(x + n * from.ns + down.at[i] * from.rs + i64(across.at[j]) * from.cs + c);
    float sum[V] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int k = 0; k < V; k++) {
        float row = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) row += to_float(v[i][j].v[k]) * across.weight[j];
        sum[k] += row * down.weight[i];
      }
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; k++) from_float(out.v[k], sum[k]);
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c, out);
  }
}
template <int COORD>
DEV void resize_cubic(const T* x, T* y, const Resize& g, float a, Pitch from, Pitch to) {
  constexpr int V = 8 / sizeof(T);
  if (wide_pitch(x, from, V) && wide_pitch(y, to, V))
    resize_cubic_pixels<COORD, V>(x, y, g, a, from, to);
  else
    resize_cubic_pixels<COORD, 1>(x, y, g, a, from, to);
}
template <bool LINEAR, int COORD, int ROUNDING>
DEV void resize(const T* x, T* y, const Resize& g, Pitch from, Pitch to) {
  constexpr int V = 16 / sizeof(T);
  if (wide_pitch(x, from, V) && wide_pitch(y, to, V))
    resize_pixels<LINEAR, COORD, ROUNDING, V>(x, y, g, from, to);
  else
    resize_pixels<LINEAR, COORD, ROUNDING, 1>(x, y, g, from, to);
}

// LRN: y[c] = x[c] / (bias + alpha / SIZE * sum of x^2 over the SIZE channels around c)^beta.
template <int SIZE>
DEV void local_response(const T* x, T* y, int N, int C, int H, int W, float alpha, float beta,
                        float bias, Pitch from, Pitch to) {
  constexpr int V = 8, before = (SIZE - 1) / 2;
  const u32 vectors = (C + V - 1) / V;
  const u64 total = u64(N) * H * W * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, h, w, c] = unit_index<V>(u, total, vectors, H, W);
    const T* const pixel = x + n * from.ns + h * from.rs + i64(w) * from.cs;
    T* const result = y + n * to.ns + h * to.rs + i64(w) * to.cs;
    float v[V + SIZE - 1];
#pragma unroll
    for (int k = 0; k < V + SIZE - 1; k++) {
      const int at = c - before + k;
      v[k] = at >= 0 && at < C ? to_float(pixel[at]) : 0.f;
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
      float sum = 0.f;
#pragma unroll
      for (int k = 0; k < SIZE; k++) sum += v[j + k] * v[j + k];
      if (c + j < C)
        from_float(result[c + j], v[j + before] * powf(bias + alpha / float(SIZE) * sum, -beta));
    }
  }
}
