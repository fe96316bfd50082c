// Weights rounded to bfloat16 and packed: [group][panel][terms / 2][32][2], with zeros past the
// terms (up to a multiple of 32) and the columns.
#pragma once
#include "bf16/bf16_tile.h"
#include "common/conv_layout.h"

namespace tracea {
namespace TRACEA_NS {

static inline int64_t bf16_depth(int64_t terms) { return conv_round_up(terms, kBf16Terms); }
static inline int64_t bf16_panels(int64_t columns) { return conv_div_up(columns, kBf16Panel); }

// Term k = tap * channels + i of a column n lies at `first` + n * s_n + i * s_i + tap * s_t of w.
struct Bf16Source {
  const void* w;
  bool halfs;  // w is bfloat16, else F32
  int64_t first, s_n, s_i, s_t, channels, taps;
};

static inline float half_to_float(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

// Columns n0..n1 of a panel, from the source's first one on; scale: of each, or null.
static inline void pack_bf16_panel(const Bf16Source& s, int64_t n0, int64_t n1, float alpha,
                                   const float* scale, uint16_t* panel) {
  const int64_t columns = n1 - n0;
  alignas(64) float factor[kBf16Panel] = {}, pair[2][kBf16Panel] = {};
  for (int64_t n = 0; n < columns; n++) factor[n] = scale ? scale[n] * alpha : alpha;
  int64_t half = 0;
  const auto store_pair = [&] {
    alignas(64) uint32_t words[kBf16Panel];
    for (int v = 0; v < kBf16Panel; v += W) {
      const vf f = load(factor + v);
      *(vwords*)(words + v) = rounded(load(pair[0] + v) * f) >> 16 | rounded(load(pair[1] + v) * f);
    }
    memcpy(panel + 2 * n0, words, size_t(columns) * 4);
    panel += 2 * kBf16Panel;
  };
  for (int64_t t = 0; t < s.taps; t++)
    for (int64_t i = 0; i < s.channels; i++) {
      const int64_t at = s.first + i * s.s_i + t * s.s_t;
      for (int64_t n = 0; n < columns; n++)
        pair[half][n] = s.halfs ? half_to_float(((const uint16_t*)s.w)[at + n * s.s_n])
                                : ((const float*)s.w)[at + n * s.s_n];
      if (half) store_pair();
      half ^= 1;
    }
  if (!half) return;
  memset(pair[1], 0, sizeof pair[1]);
  store_pair();
}

static int64_t pack_gemm_bf16_tasks(const Launch& l, int) {
  using namespace fam::pack_gemm_bf16;
  if (l.i[N] <= 0 || l.i[K] <= 0) return 0;
  return (l.i[n0] + l.i[N] - 1) / kBf16Panel - l.i[n0] / kBf16Panel + 1;
}
static void pack_gemm_bf16_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_gemm_bf16;
  const int64_t ld = l.i[ldw], start = l.i[n0], panel = start / kBf16Panel + task,
                first = panel * kBf16Panel;
  const int64_t s_n = l.i[trans] ? ld : 1, s_k = l.i[trans] ? 1 : ld;
  const int64_t a = std::max(start, first), b = std::min(start + l.i[N], first + kBf16Panel);
  const Bf16Source s{l.buf[w], l.i[w_dtype] == kBF16, (a - start) * s_n, s_n, s_k, 0, l.i[K], 1};
  pack_bf16_panel(s, a - first, b - first, l.f[alpha], nullptr,
                  (uint16_t*)l.buf[packed] + first * bf16_depth(l.i[K]));
}

static int64_t pack_conv2d_bf16_tasks(const Launch& l, int) {
  using namespace fam::pack_conv2d_bf16;
  return l.i[G] * bf16_panels(l.i[OC] / l.i[G]);
}
static void pack_conv2d_bf16_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_conv2d_bf16;
  const int64_t taps = l.i[KH] * l.i[KW], channels = l.i[IC] / l.i[G], columns = l.i[OC] / l.i[G],
                panels = bf16_panels(columns);
  const int64_t j = task % panels * kBf16Panel, n = task / panels * columns + j;
  const float* scales = (const float*)l.buf[scale];
  const Bf16Source s{
      l.buf[w], l.i[w_dtype] == kBF16, n * channels * taps, channels * taps, taps, 1, channels,
      taps};
  pack_bf16_panel(s, 0, std::min(kBf16Panel, columns - j), 1.f, scales ? scales + n : nullptr,
                  (uint16_t*)l.buf[packed] + task * kBf16Panel * bf16_depth(channels * taps));
}

static const Kernel kernel_pack_gemm_bf16 = {"pack_gemm_bf16", pack_gemm_bf16_tasks, nullptr,
                                             pack_gemm_bf16_run};
static const Kernel kernel_pack_conv2d_bf16 = {"pack_conv2d_bf16", pack_conv2d_bf16_tasks, nullptr,
                                               pack_conv2d_bf16_run};

}  // namespace TRACEA_NS
}  // namespace tracea
