// Maxima of windows of channels-last images of 8-bit integers: a thread per output pixel and V
// channels.
#pragma once
#ifndef GENERATED
#define IS_INT8 1
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3;  // of a window; 0: run_kh, run_kw
#endif                         // GENERATED
#include "common/base.cuh"
#include "image/larger_bytes.cuh"

struct Bytes {
  int N, C, IH, IW, OH, OW, run_kh, run_kw, SH, SW, DH, DW, PT, PL;
  i64 x_cs, x_rs, x_ns, y_cs, y_rs, y_ns;
};

// Index: counts threads.
template <int V, class Index>
DEV void pool_bytes_by(const T* x, T* y, const Bytes& g, Index total) {
  constexpr u32 LEAST = T(-1) < T(0) ? 0x80808080 : 0;  // four times
  const int kh = KH ? KH : g.run_kh, kw = KW ? KW : g.run_kw, vectors = g.C / V;
  const Index step = Index(gridDim.x) * blockDim.x;
  for (Index u = Index(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += step) {
    const int c = int(u % vectors) * V;
    Index pixel = u / vectors;
    const int ow = int(pixel % g.OW);
    pixel /= g.OW;
    const int oh = int(pixel % g.OH), n = int(pixel / g.OH), top = oh * g.SH - g.PT,
              left = ow * g.SW - g.PL;
    const T* from = x + n * g.x_ns + c;
    constexpr int WORDS = (V + 3) / 4;
    Vec<u32, WORDS> most;
#pragma unroll
    for (int j = 0; j < WORDS; j++) most.v[j] = LEAST;
#pragma unroll
    for (int i = 0; i < kh; i++)
#pragma unroll
      for (int k = 0; k < kw; k++) {
        const int h = top + i * g.DH, w = left + k * g.DW;
        if (u32(h) >= u32(g.IH) || u32(w) >= u32(g.IW)) continue;
        Vec<u32, WORDS> v;
        if (V < 4)
          v.v[0] = from[h * g.x_rs + w * g.x_cs];
        else
          v = load<WORDS>((const u32*)(from + h * g.x_rs + w * g.x_cs));
#pragma unroll
        for (int j = 0; j < WORDS; j++) most.v[j] = larger_bytes<T>(most.v[j], v.v[j]);
      }
    T* const to = y + n * g.y_ns + oh * g.y_rs + ow * g.y_cs + c;
    if (V < 4)
      *to = T(most.v[0]);
    else
      store<WORDS>((u32*)to, most);
  }
}

template <int V>
DEV void pool_bytes(const T* x, T* y, const Bytes& g) {
  const i64 total = i64(g.N) * g.OH * g.OW * (g.C / V);
  if (total < 1ll << 31)  // divisions of 64 bits take many instructions
    pool_bytes_by<V, u32>(x, y, g, u32(total));
  else
    pool_bytes_by<V, i64>(x, y, g, total);
}
