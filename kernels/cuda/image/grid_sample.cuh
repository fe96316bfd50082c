// Grid sampling of channels-last images.
//
// MODE: 0 nearest, 1 linear, 2 cubic. PAD, outside the image: 0 zeros, 1 edge, 2 reflection.
// CORNERS: -1 and 1 are the centres of the outermost pixels, else their outer edges. The order of
// operations is that of ONNX Runtime's CPU provider.
#pragma once
#include "image/pool_resize.cuh"

struct Sample {
  int N, C, IH, IW, OH, OW;
};

template <bool CORNERS>
DEV float unnormalize(float g, int n) {
  return CORNERS ? (g + 1.f) / 2.f * float(n - 1) : ((g + 1.f) * float(n) - 1.f) / 2.f;
}
template <bool CORNERS>
DEV float reflect_coordinate(float v, int n) {
  const float low = CORNERS ? 0.f : -0.5f, high = CORNERS ? float(n - 1) : float(n) - 0.5f,
              range = high - low;
  if (v >= low && v <= high) return v;
  const float past = v < low ? low - v : v - high, turns = floorf(past / range),
              rest = past - turns * range;
  const bool even = turns - 2.f * floorf(turns / 2.f) == 0.f;
  return (v < low) == even ? low + rest : high - rest;
}
template <int PAD, bool CORNERS>
DEV float pad_coordinate(float v, int n) {
  return PAD == 1   ? fminf(fmaxf(v, 0.f), float(n - 1))
         : PAD == 2 ? reflect_coordinate<CORNERS>(v, n)
                    : v;
}
// The pixel that is read for index k; false: zero padding. Large indices, which do not fit an int,
// are zero padding, too.
struct Pixel {
  int at;
  bool inside;
};
template <int PAD, bool CORNERS>
DEV Pixel padded_pixel(float k, int n) {
  const float r = PAD == 2 ? reflect_coordinate<CORNERS>(k, n) : k;
  return {min(max(int(r), 0), n - 1), PAD != 0 || (k >= 0.f && k <= float(n - 1))};
}
// The pixels read along an axis, and their weights.
template <int MODE>
struct AxisTaps {
  Pixel at[MODE == 0 ? 1 : 2 * MODE];
  float weight[MODE == 0 ? 1 : 2 * MODE];
};
template <int MODE, int PAD, bool CORNERS>
DEV AxisTaps<MODE> axis_taps(float g, int n) {
  float v = unnormalize<CORNERS>(g, n);
  if (MODE == 0) v = rintf(v);
  if (MODE != 2 || PAD != 1)
    v = pad_coordinate<PAD, CORNERS>(v, n);  // cubic: PAD applies to each pixel instead
  const float low = MODE == 0 ? v : floorf(v) - float(MODE - 1), t = v - floorf(v);
  AxisTaps<MODE> r;
  r.weight[0] = 1.f;
  if (MODE == 1) r.weight[0] = 1.f - t, r.weight[MODE] = t;
  if (MODE == 2) {
    constexpr float a = -0.75f;
    const float u = 1.f - t;
    r.weight[0] = ((a * (t + 1.f) - 5.f * a) * (t + 1.f) + 8.f * a) * (t + 1.f) - 4.f * a;
    r.weight[MODE / 2] = ((a + 2.f) * t - (a + 3.f)) * t * t + 1.f;
    r.weight[MODE] = ((a + 2.f) * u - (a + 3.f)) * u * u + 1.f;
    r.weight[MODE + MODE / 2] =
        ((a * (u + 1.f) - 5.f * a) * (u + 1.f) + 8.f * a) * (u + 1.f) - 4.f * a;
  }
#pragma unroll
  for (int k = 0; k < int(sizeof(r.at) / sizeof(Pixel)); k++)
    r.at[k] = padded_pixel<PAD, CORNERS>(low + float(k), n);
  return r;
}
template <int MODE, int PAD, bool CORNERS, int V, class G>
DEV void sample_pixels(const T* x, const G* grid, T* y, const Sample& g, Pitch from, Pitch to) {
  constexpr int M = MODE == 0 ? 1 : 2 * MODE;
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.N) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [n, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const G* const place = grid + 2 * ((i64(n) * g.OH + oh) * g.OW + ow);
    const AxisTaps<MODE> across = axis_taps<MODE, PAD, CORNERS>(to_float(place[0]), g.IW),
                         down = axis_taps<MODE, PAD, CORNERS>(to_float(place[1]), g.IH);
    float sum[V] = {};
#pragma unroll
    for (int i = 0; i < M; i++) {
      float row[V] = {};
#pragma unroll
      for (int j = 0; j < M; j++)
        if (down.at[i].inside && across.at[j].inside) {
          const Vec<T, V> v = load<V>(x + n * from.ns + down.at[i].at * from.rs +
                                      i64(across.at[j].at) * from.cs + c);
#pragma unroll
          for (int k = 0; k < V; k++) row[k] += to_float(v.v[k]) * across.weight[j];
        }
#pragma unroll
      for (int k = 0; k < V; k++) sum[k] += row[k] * down.weight[i];
    }
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; k++) from_float(out.v[k], sum[k]);
    store<V>(y + n * to.ns + oh * to.rs + i64(ow) * to.cs + c, out);
  }
}
template <int MODE, int PAD, bool CORNERS, class G>
DEV void sample(const T* x, const G* grid, T* y, const Sample& g, Pitch from, Pitch to) {
  constexpr int V = 16 / sizeof(T);
  if (wide_pitch(x, from, V) && wide_pitch(y, to, V))
    sample_pixels<MODE, PAD, CORNERS, V>(x, grid, y, g, from, to);
  else
    sample_pixels<MODE, PAD, CORNERS, 1>(x, grid, y, g, from, to);
}
