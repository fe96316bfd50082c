// One-time packing of convolution weights and biases, and the folding of BatchNormalization.
// Destinations are zeroed before.
#pragma once
#include "common/conv_layout.h"

namespace tracea {
namespace TRACEA_NS {

// --- direct and transposed: [group][panel][kh][kw][ic][32 or 16]
// ----------------------------------------------------------------

// The source element (oc, ic, tap) of group g lies at w[(g*group_oc + oc)*s_oc + (g*group_ic +
// ic)*s_ic + tap].
struct PackSource {
  const float *w, *scale;
  int64_t s_oc, s_ic, group_oc, group_ic;
};

static inline int64_t pack_panels_of(int64_t OC, int64_t G) {
  return G * conv_div_up(OC / G, kConvPanel);
}

// Rows of a panel that are transposed at once: read along a channel, written across channels.
constexpr int64_t kTransposedRows = 64;

static inline void pack_conv_panels(const PackSource& s, float* packed, int64_t OC, int64_t IC,
                                    int64_t taps, int64_t G, int64_t task, int64_t tasks) {
  const int64_t ocg = OC / G, icg = IC / G, depth = icg * taps,
                per_group = conv_div_up(ocg, kConvPanel), panels = G * per_group;
  for (int64_t q = conv_part(panels, tasks, task); q < conv_part(panels, tasks, task + 1); q++) {
    const int64_t g = q / per_group, j = q % per_group * kConvPanel,
                  n = std::min(kConvPanel, ocg - j), width = conv_round_up(n, 16);
    float* out = packed + (g * conv_round_up(ocg, 16) + j) * depth;
    const float* from = s.w + (g * s.group_oc + j) * s.s_oc + g * s.group_ic * s.s_ic;
    for (int64_t i0 = 0, t0 = 0, row = 0; row < depth;) {
      float transposed[kTransposedRows][kConvPanel];
      const int64_t rows = std::min(kTransposedRows, depth - row);
      for (int64_t o = 0; o < n; o++) {
        const float* w = from + o * s.s_oc;
        const float scale = s.scale ? s.scale[g * ocg + j + o] : 1.f;
        for (int64_t r = 0, i = i0, t = t0; r < rows; r++) {
          transposed[r][o] = w[i * s.s_ic + t] * scale;
          if (++t == taps) t = 0, i++;
        }
      }
      for (int64_t r = 0; r < rows; r++) {
        copy_channels(out + (t0 * icg + i0) * width, transposed[r], n);
        if (++t0 == taps) t0 = 0, i0++;
      }
      row += rows;
    }
  }
}

static int64_t pack_conv2d_tasks(const Launch& l, int threads) {
  using namespace fam::pack_conv2d;
  return std::min<int64_t>(pack_panels_of(l.i[OC], l.i[G]), 4 * threads);
}
static void pack_conv2d_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::pack_conv2d;
  const int64_t taps = l.i[KH] * l.i[KW], icg = l.i[IC] / l.i[G];
  const PackSource from{
      (const float*)l.buf[w], (const float*)l.buf[scale], icg * taps, taps, l.i[OC] / l.i[G], 0};
  pack_conv_panels(from, (float*)l.buf[packed], l.i[OC], l.i[IC], taps, l.i[G], task, tasks);
}

// --- depthwise: [kh][kw][round_up(C, 16)]
// --------------------------------------------------------------------------------------------

static int64_t one_task(const Launch&, int) { return 1; }

static inline void pack_by_channel(const float* w, const float* scale, float* packed, int64_t C,
                                   int64_t taps) {
  const int64_t ld = conv_round_up(C, 16);
  for (int64_t c = 0; c < C; c++)
    for (int64_t t = 0; t < taps; t++)
      packed[t * ld + c] = w[c * taps + t] * (scale ? scale[c] : 1.f);
}

static void pack_conv2d_dw_run(const Launch& l, int64_t, int64_t, void*) {
  using namespace fam::pack_conv2d_dw;
  pack_by_channel((const float*)l.buf[w], (const float*)l.buf[scale], (float*)l.buf[packed],
                  l.i[OC], l.i[KH] * l.i[KW]);
}

// ConvTranspose weights are [IC][OC/G][KH][KW]: the group is an offset along IC. One channel per
// group is packed as depthwise.
static int64_t pack_deconv2d_tasks(const Launch& l, int threads) {
  using namespace fam::pack_deconv2d;
  return l.i[G] == l.i[IC] && l.i[G] == l.i[OC]
             ? 1
             : std::min<int64_t>(pack_panels_of(l.i[OC], l.i[G]), 4 * threads);
}
static void pack_deconv2d_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::pack_deconv2d;
  const float *from = (const float*)l.buf[w], *scales = (const float*)l.buf[scale];
  const int64_t taps = l.i[KH] * l.i[KW], ocg = l.i[OC] / l.i[G];
  if (l.i[G] == l.i[IC] && l.i[G] == l.i[OC])
    return pack_by_channel(from, scales, (float*)l.buf[packed], l.i[OC], taps);
  pack_conv_panels({from, scales, taps, ocg * taps, 0, l.i[IC] / l.i[G]}, (float*)l.buf[packed],
                   l.i[OC], l.i[IC], taps, l.i[G], task, tasks);
}

// --- Winograd: [panel][16][ic][32 or 16], U = G g G^T in float64
// ------------------------------------------------------------------

// Filters of each channel that are transposed at once.
constexpr int64_t kTransposedFilters = 8;

static int64_t pack_conv2d_wino_tasks(const Launch& l, int threads) {
  return std::min<int64_t>(conv_div_up(l.i[fam::pack_conv2d_wino::OC], kConvPanel), 4 * threads);
}
static void pack_conv2d_wino_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::pack_conv2d_wino;
  const int64_t oc = l.i[OC], ic = l.i[IC], panels = conv_div_up(oc, kConvPanel);
  const float* scales = (const float*)l.buf[scale];
  for (int64_t q = conv_part(panels, tasks, task); q < conv_part(panels, tasks, task + 1); q++) {
    const int64_t j = q * kConvPanel, n = std::min(kConvPanel, oc - j),
                  width = conv_round_up(n, 16);
    float* out = (float*)l.buf[packed] + j * 16 * ic;
    double s[kConvPanel] = {};
    for (int64_t o = 0; o < n; o++) s[o] = scales ? scales[j + o] : 1.;
    float transposed[kTransposedFilters * 9][kConvPanel] = {};
    for (int64_t i0 = 0; i0 < ic; i0 += kTransposedFilters) {
      const int64_t filters = std::min(kTransposedFilters, ic - i0);
      for (int64_t o = 0; o < n; o++) {
        const float* from = (const float*)l.buf[w] + ((j + o) * ic + i0) * 9;
        for (int64_t r = 0; r < filters * 9; r++) transposed[r][o] = from[r];
      }
      for (int64_t i = 0; i < filters; i++) {
        const auto* g = transposed + i * 9;
        double h[4][3][kConvPanel];  // G g
        for (int k = 0; k < 3; k++)
          for (int64_t o = 0; o < kConvPanel; o++) {
            const double a = g[k][o], b = g[3 + k][o], c = g[6 + k][o];
            h[0][k][o] = a, h[3][k][o] = c;
            h[1][k][o] = .5 * (a + b + c), h[2][k][o] = .5 * (a - b + c);
          }
        float u[16][kConvPanel];
        for (int r = 0; r < 4; r++)
          for (int64_t o = 0; o < kConvPanel; o++) {
            const double a = h[r][0][o], b = h[r][1][o], c = h[r][2][o];
            u[r * 4][o] = float(a * s[o]), u[r * 4 + 3][o] = float(c * s[o]);
            u[r * 4 + 1][o] = float(.5 * (a + b + c) * s[o]);
            u[r * 4 + 2][o] = float(.5 * (a - b + c) * s[o]);
          }
        for (int k = 0; k < 16; k++) copy_channels(out + (k * ic + i0 + i) * width, u[k], n);
      }
    }
  }
}

static void pack_bias_run(const Launch& l, int64_t, int64_t, void*) {
  using namespace fam::pack_bias;
  const int64_t oc = l.i[OC];
  const float *bias = (const float*)l.buf[b], *scales = (const float*)l.buf[scale],
              *shifts = (const float*)l.buf[shift];
  float* out = (float*)l.buf[packed];
  for (int64_t o = 0; o < conv_round_up(oc, 16); o++)
    out[o] = o < oc ? float((bias ? double(bias[o]) : 0.) * (scales ? scales[o] : 1.f) +
                            (shifts ? shifts[o] : 0.f))
                    : 0.f;
}

static void fold_bn_run(const Launch& l, int64_t, int64_t, void*) {
  using namespace fam::fold_bn;
  const float *g = (const float*)l.buf[gamma], *b = (const float*)l.buf[beta],
              *m = (const float*)l.buf[mean], *v = (const float*)l.buf[var];
  for (int64_t c = 0; c < l.i[C]; c++) {
    const double s = double(g[c]) / std::sqrt(double(v[c]) + double(l.f[eps]));
    ((float*)l.buf[scale])[c] = float(s);
    ((float*)l.buf[shift])[c] = float(b[c] - m[c] * s);
  }
}

static const Kernel kernel_pack_conv2d = {"pack_conv2d", pack_conv2d_tasks, nullptr,
                                          pack_conv2d_run};
static const Kernel kernel_pack_deconv2d = {"pack_deconv2d", pack_deconv2d_tasks, nullptr,
                                            pack_deconv2d_run};
static const Kernel kernel_pack_conv2d_wino = {"pack_conv2d_wino", pack_conv2d_wino_tasks, nullptr,
                                               pack_conv2d_wino_run};
static const Kernel kernel_pack_conv2d_dw = {"pack_conv2d_dw", one_task, nullptr,
                                             pack_conv2d_dw_run};
static const Kernel kernel_pack_bias = {"pack_bias", one_task, nullptr, pack_bias_run};
static const Kernel kernel_fold_bn = {"fold_bn", one_task, nullptr, fold_bn_run};

static const Kernel* const table_conv_pack[] = {&kernel_pack_conv2d,
                                                &kernel_pack_deconv2d,
                                                &kernel_pack_conv2d_wino,
                                                &kernel_pack_conv2d_dw,
                                                &kernel_pack_bias,
                                                &kernel_fold_bn,
                                                nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
