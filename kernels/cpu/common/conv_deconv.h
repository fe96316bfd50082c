// Transposed convolution: y[n, oh, ow, oc] = epilogue(bias[oc] + sum of x[n, ih, iw, ic] * w[ic,
// oc, kh, kw] over oh + PT = ih*SH + kh*DH, likewise ow).
//
// Output pixels of one phase ((oh + PT) % SH, (ow + PL) % SW) use the same taps, with inputs one
// pixel apart: each phase is a direct convolution. A task copies the input rows of its band of
// output rows between zero borders, so that no tap needs a bounds check. One channel per group
// (bilinear upsampling) has its own loop over vectors of channels, with weights packed
// [kh][kw][round_up(C, 16)].
#pragma once
#include <numeric>

#include "common/conv.h"

namespace tracea {
namespace TRACEA_NS {

// So many elements are more than there is memory for: sizes that do not fit the model, or those of
// a changed Plan, end there instead of overflowing.
constexpr int64_t kMostCopied = int64_t(1) << 50;
static inline int64_t capped(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) ? kMostCopied : std::min(r, kMostCopied);
}

struct Deconv {
  Conv c;
  int64_t band, bands;  // output rows of a band, bands of all images
  int64_t left, cols;   // zero columns before the input, columns of the copy
  int64_t cs, rs;       // pitches of the copy
};

// Taps of one phase of one axis: k = k0, k0 + k_step, ...; the input index falls by i_step each.
struct DeconvTaps {
  int64_t k0, k_step, i_step, count;
};

static inline DeconvTaps deconv_taps(int64_t phase, int64_t K, int64_t S, int64_t D) {
  const int64_t g = std::gcd(S, D);
  DeconvTaps t{0, S / g, D / g, 0};
  const int64_t most = std::min(t.k_step, K);
  while (t.k0 < most && t.k0 * D % S != phase) t.k0++;
  t.count = t.k0 < most ? conv_div_up(K - t.k0, t.k_step) : 0;
  return t;
}

static inline int64_t deconv_phase_of(int64_t padded, int64_t S) { return (padded % S + S) % S; }

static inline int64_t floor_div(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}
// Input rows that output rows [h0, h1) touch.
static inline int64_t deconv_first_row(const Conv& c, int64_t h0) {
  return floor_div(h0 + c.PT - capped(c.KH - 1, c.DH), c.SH);
}
static inline int64_t deconv_last_row(const Conv& c, int64_t h1) {
  return floor_div(h1 - 1 + c.PT, c.SH);
}

static inline Deconv read_deconv(const Launch& l) {
  Deconv d;
  d.c = read_conv(l, fam::deconv2d::kInts);
  const Conv& c = d.c;
  d.band = std::max<int64_t>(
      1, std::min(c.OH,
                  conv_round_up(conv_div_up(capped(256, c.SW), std::max<int64_t>(1, c.OW)), c.SH)));
  d.bands = conv_div_up(c.OH, d.band);
  d.left = std::max<int64_t>(0, -floor_div(c.PL - capped(c.KW - 1, c.DW), c.SW));
  d.cols = d.left + std::max(c.IW, floor_div(c.OW - 1 + c.PL, c.SW) + 1);
  d.cs = conv_round_up(std::max<int64_t>(c.IC, 1), 16);
  if (d.cs % 512 == 0) d.cs += 16;
  d.rs = capped(d.cols, d.cs);
  return d;
}

static inline int64_t deconv_rows(const Deconv& d) {
  return conv_div_up(d.band + capped(d.c.KH - 1, d.c.DH), d.c.SH) + 2;
}
static inline int64_t deconv_pixels(const Deconv& d) {
  return (conv_div_up(d.band, d.c.SH) + 1) * (conv_div_up(d.c.OW, d.c.SW) + 1);
}

static inline bool deconv_by_channel(const Conv& c) { return c.G == c.IC && c.G == c.OC; }
static inline int64_t deconv_minor(const Conv& c) { return deconv_by_channel(c) ? 1 : c.panels; }

static int64_t deconv_tasks(const Launch& l, int threads) {
  const Deconv d = read_deconv(l);
  return conv_tasks(d.c, d.c.N * d.bands, deconv_minor(d.c), threads);
}

static size_t deconv_scratch(const Launch& l, int) {
  const Deconv d = read_deconv(l);
  return 4 * size_t(capped(deconv_rows(d), d.rs)) + sizeof(Pixel) * size_t(deconv_pixels(d));
}

static inline void deconv_copy(const Deconv& d, int64_t n, int64_t row0, int64_t row1, float* to) {
  const Conv& c = d.c;
  for (int64_t ih = row0; ih <= row1; ih++, to += d.rs) {
    memset(to, 0, 4 * size_t(d.rs));
    if (ih < 0 || ih >= c.IH) continue;
    const float* from = c.x + n * c.x_ns + ih * c.x_rs;
    for (int64_t iw = 0; iw < c.IW; iw++)
      memcpy(to + (d.left + iw) * d.cs, from + iw * c.x_cs, 4 * size_t(c.IC));
  }
}

// The pixels of one phase in output rows [h0, h1); returns how many.
static inline int64_t deconv_phase(const Deconv& d, int64_t n, int64_t h0, int64_t h1, int64_t row0,
                                   int64_t ph, int64_t pw, const DeconvTaps& th,
                                   const DeconvTaps& tw, Pixel* out) {
  const Conv& c = d.c;
  int64_t count = 0;
  const auto first = [](int64_t from, int64_t pad, int64_t s, int64_t phase) {
    return from + ((phase - from - pad) % s + s) % s;
  };
  for (int64_t oh = first(h0, c.PT, c.SH, ph); oh < h1; oh += c.SH)
    for (int64_t ow = first(0, c.PL, c.SW, pw); ow < c.OW; ow += c.SW) {
      const int64_t ih = floor_div(oh + c.PT - th.k0 * c.DH, c.SH),
                    iw = floor_div(ow + c.PL - tw.k0 * c.DW, c.SW);
      out[count++] = {(ih - row0) * d.rs + (iw + d.left) * d.cs, c.y_at(n, oh, ow),
                      c.r_at(n, oh, ow), (n * c.OH + oh) * c.OW + ow};
    }
  return count;
}

// Depthwise: all channels of the pixels of one phase, from the copied rows.
static inline void deconv_depthwise(const Deconv& d, const DeconvTaps& th, const DeconvTaps& tw,
                                    const float* x, const Pixel* px, int64_t count) {
  const Conv& c = d.c;
  const Epilogue& e = c.epilogue;
  const int64_t ld = conv_round_up(c.OC, 16);
  for (int64_t i = 0; i < count; i++) {
    float* y = c.y + px[i].y;
    for (int64_t k = 0; k < c.OC; k += W) {
      vf a = load(c.bias + k);
      for (int64_t p = 0; p < th.count; p++)
        for (int64_t q = 0; q < tw.count; q++) {
          const int64_t tap = (th.k0 + p * th.k_step) * c.KW + tw.k0 + q * tw.k_step;
          a = fma(load(x + px[i].x - p * th.i_step * d.rs - q * tw.i_step * d.cs + k),
                  load(c.w + tap * ld + k), a);
        }
      store_n(y + k, e.in_registers && !c.res ? e.clamp(a) : a,
              int(std::min<int64_t>(W, c.OC - k)));
    }
    if (!e.in_registers || c.res)
      finish_tile(e, {y, 0, c.res ? c.res + px[i].r : nullptr, 0, 1, c.OC, px[i].flat, 0, px[i].r});
  }
}

static void deconv_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  const Deconv d = read_deconv(l);
  const Conv& c = d.c;
  const ConvShare s = conv_share(c.N * d.bands, deconv_minor(c), task, tasks);
  float* copy = (float*)scratch;
  Pixel* px = (Pixel*)(copy + deconv_rows(d) * d.rs);
  for (int64_t u = s.major0; u < s.major1; u++) {
    const int64_t n = u / d.bands, h0 = u % d.bands * d.band, h1 = std::min(c.OH, h0 + d.band);
    const int64_t row0 = deconv_first_row(c, h0);
    deconv_copy(d, n, row0, deconv_last_row(c, h1), copy);
    // as many phases as there are pixels, where a stride is larger than the image
    for (int64_t oh = h0; oh < std::min(h1, h0 + c.SH); oh++)
      for (int64_t ow = 0; ow < std::min(c.OW, c.SW); ow++) {
        const int64_t ph = deconv_phase_of(oh + c.PT, c.SH), pw = deconv_phase_of(ow + c.PL, c.SW);
        const DeconvTaps th = deconv_taps(ph, c.KH, c.SH, c.DH),
                         tw = deconv_taps(pw, c.KW, c.SW, c.DW);
        const int64_t count = deconv_phase(d, n, h0, h1, row0, ph, pw, th, tw, px);
        if (deconv_by_channel(c)) {
          deconv_depthwise(d, th, tw, copy, px, count);
          continue;
        }
        ConvTile t{};
        t.taps_h = th.count, t.taps_w = tw.count, t.depth = c.icg;
        t.x_step_h = -th.i_step * d.rs, t.x_step_w = -tw.i_step * d.cs;
        for (int64_t q = s.minor0; q < s.minor1; q++) {
          const ConvPanel p = conv_panel(c, q);
          const int64_t tap = c.icg * p.width;
          t.x = copy + p.group * c.icg;
          t.w = th.count && tw.count ? p.w + (th.k0 * c.KW + tw.k0) * tap : p.w;
          t.w_step_w = tw.k_step * tap, t.w_step_h = th.k_step * c.KW * tap;
          run_conv_panel(c, p, t, {px, count, false, {}, 0});
        }
      }
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
