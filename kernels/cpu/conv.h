// Direct convolution (implicit GEMM) in channels-last layout, and the table of every convolution
// that runs on register tiles.
//
//   y[n, oh, ow, oc] = epilogue(bias[oc] + sum_{kh, kw, ic} x[n, oh*SH + kh*DH - PT, ow*SW + kw*DW
//   - PL, ic] * w[oc, ic, kh, kw])
#pragma once
#include "common/conv.h"
#include "common/conv_deconv.h"
#include "common/conv_winograd.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kMaxPixels = 512;  // pixels whose offsets are laid out at a time

// How the output pixels are walked. Flat: those of all images lie equally spaced in every tensor
// (1x1, stride 1, no borders). Rows: tiles stay within a row. List: rows too short for whole tiles,
// tiles run on over rows and images.
enum class Walk { kFlat, kRows, kList };

static inline Walk direct_walk(const Conv& c) {
  const auto dense = [&c](int64_t cs, int64_t rs, int64_t ns) {
    return rs == c.OW * cs && (c.N == 1 || ns == c.OH * rs);
  };
  const bool same = c.KH * c.KW == 1 && c.SH * c.SW == 1 && c.PT == 0 && c.PL == 0;
  const bool no_res = !c.res && !c.epilogue.prog;
  if (same && dense(c.x_cs, c.x_rs, c.x_ns) && dense(c.y_cs, c.y_rs, c.y_ns) &&
      (no_res || dense(c.r_cs, c.r_rs, c.r_ns)))
    return Walk::kFlat;
  return c.OW >= 2 * conv_rows[kConvVectors] ? Walk::kRows : Walk::kList;
}

// Weights that outweigh the input are cut among tasks first: each is then read by one task.
static inline bool direct_panels_first(const Conv& c) {
  return (c.OC * c.depth > c.N * c.IH * c.IW * c.IC) != (c.how.order != 0);
}
static inline int64_t direct_units(const Conv& c) {
  return conv_div_up(c.N * c.OH * c.OW, conv_rows[kConvVectors]);
}

// Pixels per pass over the panels: their input stays in L2 beside one panel, and large weights are
// not read more often than needed.
static inline int64_t direct_block(const Conv& c) {
  const int64_t budget = scaled(c.OC * c.depth > 131072 ? 131072 : 49152, c.how.block);
  const int64_t per_pixel =
      std::max<int64_t>(1, c.IC * std::min(c.SH, c.KH * c.DH) * std::min(c.SW, c.KW * c.DW));
  const int64_t fit = std::max<int64_t>(
      kConvMaxRows, std::min(scaled(kMaxPixels, c.how.block), budget / per_pixel));
  return direct_walk(c) == Walk::kRows ? std::max(c.OW, fit / c.OW * c.OW) : fit;
}

static inline Pixel direct_pixel(const Conv& c, int64_t flat) {
  const int64_t ow = flat % c.OW, oh = flat / c.OW % c.OH, n = flat / c.OW / c.OH;
  return {n * c.x_ns + (oh * c.SH - c.PT) * c.x_rs + (ow * c.SW - c.PL) * c.x_cs, c.y_at(n, oh, ow),
          c.r_at(n, oh, ow), flat};
}

static inline void direct_list(const Conv& c, int64_t begin, int64_t end, Pixel* out) {
  int64_t ow = begin % c.OW;
  for (Pixel p = direct_pixel(c, begin); begin < end; out++) {
    *out = p;
    if (++ow < c.OW) {
      p = {p.x + c.SW * c.x_cs, p.y + c.y_cs, p.r + c.r_cs, ++begin};
    } else {
      ow = 0;
      p = direct_pixel(c, ++begin);
    }
  }
}

static int64_t conv2d_tasks(const Launch& l, int threads) {
  const Conv c = read_conv(l, fam::conv2d::kInts);
  return direct_panels_first(c) ? conv_tasks(c, c.panels, direct_units(c), threads)
                                : conv_tasks(c, direct_units(c), c.panels, threads);
}

static size_t conv2d_scratch(const Launch& l, int) {
  const Conv c = read_conv(l, fam::conv2d::kInts);
  return sizeof(Pixel) * size_t(direct_walk(c) == Walk::kList
                                    ? std::max<int64_t>(2, direct_block(c))
                                    : kConvMaxRows);
}

static void conv2d_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  const Conv c = read_conv(l, fam::conv2d::kInts);
  const Walk walk = direct_walk(c);
  const int64_t units = direct_units(c), total = c.N * c.OH * c.OW, block = direct_block(c);
  ConvShare s = direct_panels_first(c) ? conv_share(c.panels, units, task, tasks)
                                       : conv_share(units, c.panels, task, tasks);
  if (direct_panels_first(c))
    std::swap(s.major0, s.minor0), std::swap(s.major1, s.minor1);  // major = pixels from here on
  const int64_t begin = conv_part(total, units, s.major0), end = conv_part(total, units, s.major1);
  const int64_t step =
      walk == Walk::kRows
          ? block
          : conv_div_up(end - begin,
                        conv_div_up(end - begin, block));  // balanced blocks, or whole rows
  Pixel* px = (Pixel*)scratch;
  if (walk != Walk::kList)
    for (int64_t i = 0; i < kConvMaxRows; i++)
      px[i] = {i * c.SW * c.x_cs, i * c.y_cs, i * c.r_cs, i};
  ConvTile t{};
  t.taps_h = c.KH, t.taps_w = c.KW, t.depth = c.icg;
  t.x_step_h = c.DH * c.x_rs, t.x_step_w = c.DW * c.x_cs;
  if (c.G == 1 && c.x_cs == c.IC && c.DW == 1)
    t.taps_w = 1, t.depth = c.KW * c.IC;  // a row of taps is contiguous
  for (int64_t p0 = begin, p1; p0 < end; p0 = p1) {
    p1 = std::min(end, p0 + step);
    if (walk == Walk::kList) direct_list(c, p0, p1, px);
    for (int64_t q = s.minor0; q < s.minor1; q++) {
      const ConvPanel p = conv_panel(c, q);
      t.x = c.x + p.group * c.icg;
      t.w = p.w;
      t.w_step_w = c.icg * p.width, t.w_step_h = c.KW * c.icg * p.width;
      for (int64_t at = p0, next; at < p1; at = next) {
        next = walk == Walk::kRows ? std::min(p1, (at / c.OW + 1) * c.OW) : p1;
        const Pixel first = direct_pixel(c, at);
        const int64_t after = next < total ? direct_pixel(c, next).x : first.x;
        run_conv_panel(
            c, p, t,
            {px, next - at, walk != Walk::kList, walk == Walk::kList ? Pixel{} : first, after});
      }
    }
  }
}

static const Kernel kernel_conv2d = {"conv2d", conv2d_tasks, conv2d_scratch, conv2d_run};
static const Kernel kernel_conv2d_wino = {"conv2d_wino", winograd_tasks, winograd_scratch,
                                          winograd_run};
static const Kernel kernel_deconv2d = {"deconv2d", deconv_tasks, deconv_scratch, deconv_run};

static const Kernel* const table_conv[] = {&kernel_conv2d, &kernel_conv2d_wino, &kernel_deconv2d,
                                           nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
