// im2col of deformable convolutions on channels-last images: each tap reads at an offset from its
// place, given by a tensor with DG groups of offsets. A thread has V channels of a tap.
#pragma once
#include "image/pool_resize.cuh"

struct DeformConv {
  int N, C, IH, IW, OH, OW, KH, KW, SH, SW, DH, DW, PT, PL, G, DG;
};
template <int V>
DEV void deform_im2col(const T* x, const T* offset, const T* mask, T* y, const DeformConv& g,
                       Pitch from) {
  const int taps = g.KH * g.KW, each = g.C / g.G, share = g.C / g.DG, image = g.OH * g.OW;
  const u32 vectors = u32(g.C / V);
  const u64 total = u64(g.N) * image * taps * vectors;
  for (u64 u = u64(blockIdx.x) * blockDim.x + threadIdx.x; u < total;
       u += u64(gridDim.x) * blockDim.x) {
    const u64 row = u / vectors, pixel = row / u32(taps);
    const int c = int(u - row * vectors) * V, k = int(row - pixel * u32(taps)),
              n = int(pixel / u32(image)), at = int(pixel - u64(n) * u32(image));
    const i64 tap = (i64(n) * g.DG + c / share) * taps + k;
    const float v = float(at / g.OW * g.SH - g.PT + k / g.KW * g.DH) +
                    to_float(offset[2 * tap * image + at]),
                h = float(at % g.OW * g.SW - g.PL + k % g.KW * g.DW) +
                    to_float(offset[(2 * tap + 1) * image + at]),
                m = mask ? to_float(mask[tap * image + at]) : 1.f;
    float sum[V] = {};
    if (v > -1.f && h > -1.f && v < float(g.IH) && h < float(g.IW)) {
      const float top = floorf(v), left = floorf(h);
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const int r = int(top) + q / 2, s = int(left) + q % 2;
        const float a = v - top, b = h - left,
                    weight = (q / 2 ? a : 1.f - a) * (q % 2 ? b : 1.f - b) * m;
        if (r < 0 || r >= g.IH || s < 0 || s >= g.IW) continue;
        const Vec<T, V> p = load<V>(x + n * from.ns + r * from.rs + i64(s) * from.cs + c);
#pragma unroll
        for (int e = 0; e < V; e++) sum[e] += to_float(p.v[e]) * weight;
      }
    }
    Vec<T, V> out;
#pragma unroll
    for (int e = 0; e < V; e++) from_float(out.v[e], sum[e]);
    const int group = c / each;
    store<V>(y + ((i64(pixel) * g.G + group) * taps + k) * each + (c - group * each), out);
  }
}
// WIDE: vectors divide the channels of every group.
template <int WIDE>
DEV void deform_columns(const T* x, const T* offset, const T* mask, T* y, const DeformConv& g,
                        Pitch from) {
  if (WIDE > 1 && wide_pitch(x, from, WIDE) && aligned(y, WIDE * int(sizeof(T))))
    deform_im2col<WIDE>(x, offset, mask, y, g, from);
  else
    deform_im2col<1>(x, offset, mask, y, g, from);
}
