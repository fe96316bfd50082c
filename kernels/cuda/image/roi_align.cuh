// RoiAlign of channels-last images.
//
// MODE: 0 mean of the samples of a bin, 1 maximum of their weighted pixels. HALF: half_pixel
// coordinates; otherwise sides of regions are at least one pixel.
#pragma once
#include "image/pool_resize.cuh"

struct RoiAlign {
  int N, C, IH, IW, R, OH, OW, ratio;
  float scale;
};
// A region along one axis, in pixels. samples: per bin; -1: too many.
struct RoiAxis {
  float start, bin;
  int samples;
};
template <bool HALF>
DEV RoiAxis roi_axis(float from, float to, int bins, const RoiAlign& g) {
  const float offset = HALF ? 0.5f : 0.f, start = from * g.scale - offset;
  float size = to * g.scale - offset - start;
  if (!HALF && !(size > 1.f)) size = 1.f;
  const float bin = size / float(bins), most = ceilf(bin);
  return {start, bin, g.ratio > 0 ? g.ratio : most <= 65536.f ? most > 0.f ? int(most) : 0 : -1};
}
// The two pixels around a coordinate, and their weights; false: outside.
struct LinearTaps {
  int at[2];
  float weight[2];
};
DEV bool linear_taps(float v, int n, LinearTaps& r) {
  if (!(v >= -1.f && v <= float(n))) return false;
  v = v > 0.f ? v : 0.f;
  const int low = min(int(v), n - 1), high = low + int(low < n - 1);
  const float t = high == low ? 0.f : v - float(low);
  r = {{low, high}, {1.f - t, t}};
  return true;
}
template <int MODE, bool HALF, int V>
DEV void roi_align_pixels(const T* x, const T* rois, const i64* batch, T* y, const RoiAlign& g,
                          Pitch from, Pitch to, u32* fault) {
  const u32 vectors = vectors_of<V>(g.C, to.cs);
  const u64 total = u64(g.R) * g.OH * g.OW * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const auto [r, oh, ow, c] = unit_index<V>(u, total, vectors, g.OH, g.OW);
    const T* const region = rois + 4 * i64(r);
    const i64 n = batch[r];
    const RoiAxis across = roi_axis<HALF>(to_float(region[0]), to_float(region[2]), g.OW, g),
                  down = roi_axis<HALF>(to_float(region[1]), to_float(region[3]), g.OH, g);
    const bool good = n >= 0 && n < g.N && across.samples >= 0 && down.samples >= 0;
    if (!good) *fault = 1;
    float sum[V] = {};
    bool first = true;
    const int rows = good && g.IW > 0 && g.IH > 0 ? down.samples : 0;
    for (int i = 0; i < rows; i++) {
      LinearTaps v;
      const bool inside = linear_taps(
          down.start + float(oh) * down.bin + (float(i) + 0.5f) * down.bin / float(down.samples),
          g.IH, v);
      if (!inside && MODE == 0) continue;
      for (int j = 0; j < across.samples; j++) {
        LinearTaps h;
        const bool both =
            inside && linear_taps(across.start + float(ow) * across.bin +
                                      (float(j) + 0.5f) * across.bin / float(across.samples),
                                  g.IW, h);
        if (!both && MODE == 0) continue;
        float part[V] = {};
        for (int k = 0; both && k < 4; k++) {
          const Vec<T, V> p =
              load<V>(x + n * from.ns + v.at[k / 2] * from.rs + i64(h.at[k % 2]) * from.cs + c);
          const float weight = v.weight[k / 2] * h.weight[k % 2];
#pragma unroll
          for (int q = 0; q < V; q++) {
            const float value = to_float(p.v[q]) * weight;
            part[q] = k == 0 ? value : MODE == 0 ? part[q] + value : fmaxf(part[q], value);
          }
        }
#pragma unroll
        for (int q = 0; q < V; q++)
          sum[q] = MODE == 0 ? sum[q] + part[q] : first ? part[q] : fmaxf(sum[q], part[q]);
        first = false;
      }
    }
    const i64 count = i64(down.samples) * across.samples;
    Vec<T, V> out;
#pragma unroll
    for (int q = 0; q < V; q++)
      from_float(out.v[q], MODE == 0 && count > 1 ? sum[q] / float(count) : sum[q]);
    store<V>(y + r * to.ns + oh * to.rs + i64(ow) * to.cs + c, out);
  }
}
template <int MODE, bool HALF>
DEV void roi_align(const T* x, const T* rois, const i64* batch, T* y, const RoiAlign& g, Pitch from,
                   Pitch to, u32* fault) {
  constexpr int V = 16 / sizeof(T);
  if (wide_pitch(x, from, V) && wide_pitch(y, to, V))
    roi_align_pixels<MODE, HALF, V>(x, rois, batch, y, g, from, to, fault);
  else
    roi_align_pixels<MODE, HALF, 1>(x, rois, batch, y, g, from, to, fault);
}
