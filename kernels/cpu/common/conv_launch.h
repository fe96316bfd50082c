// A convolution launch's geometry and its split into tasks.
#pragma once
#include "common/conv_layout.h"
#include "common/epilogue.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

// Sizes and pitches of a convolution, with which the parameters of all its families begin.
struct ConvSizes {
  int64_t N, IC, IH, IW, OC, OH, OW, KH, KW, SH, SW, DH, DW, PT, PL, G;
  int64_t x_cs, x_rs, x_ns, y_cs, y_rs, y_ns, r_cs, r_rs, r_ns;

  int64_t y_at(int64_t n, int64_t oh, int64_t ow) const { return n * y_ns + oh * y_rs + ow * y_cs; }
  int64_t r_at(int64_t n, int64_t oh, int64_t ow) const { return n * r_ns + oh * r_rs + ow * r_cs; }
};

static inline ConvSizes read_conv_sizes(const Launch& l) {
  using namespace fam::conv2d;
  ConvSizes c;
  const int64_t* i = l.i;
  c.N = i[N], c.IC = i[IC], c.IH = i[IH], c.IW = i[IW], c.OC = i[OC], c.OH = i[OH], c.OW = i[OW],
  c.KH = i[KH], c.KW = i[KW];
  c.SH = i[SH], c.SW = i[SW], c.DH = i[DH], c.DW = i[DW], c.PT = i[PT], c.PL = i[PL], c.G = i[G];
  c.x_cs = i[x_cs], c.x_rs = i[x_rs], c.x_ns = i[x_ns], c.y_cs = i[y_cs], c.y_rs = i[y_rs],
  c.y_ns = i[y_ns];
  c.r_cs = i[r_cs], c.r_rs = i[r_rs], c.r_ns = i[r_ns];
  return c;
}

// The launch of conv2d, conv2d_wino, conv2d_dw or deconv2d: their parameters begin alike.
struct Conv : ConvSizes {
  int64_t icg, ocg;  // channels of one group
  int64_t depth;     // multiply-adds per output: icg * KH * KW
  int64_t group_panels, panels;
  const float *x, *w, *bias, *res;
  float* y;
  bool by_row;  // an epilogue operand is read per pixel
  Epilogue epilogue;
  fam::conv2d::Variant how;  // the others have the first of its parameters
};

// integers: how many parameters the family has; the variant's number lies behind them.
static inline Conv read_conv(const Launch& l, int integers) {
  using namespace fam::conv2d;
  Conv c;
  static_cast<ConvSizes&>(c) = read_conv_sizes(l);
  c.icg = c.IC / c.G, c.ocg = c.OC / c.G;
  c.depth = c.icg * c.KH * c.KW;
  c.group_panels = conv_div_up(c.ocg, kConvPanel);
  c.panels = c.G * c.group_panels;
  c.x = (const float*)l.buf[x], c.w = (const float*)l.buf[w], c.bias = (const float*)l.buf[bias],
  c.y = (float*)l.buf[y];
  c.epilogue = make_epilogue(l, act, o0, p0, true);
  c.res =
      c.epilogue.prog || c.epilogue.res_mode == kNoResidual ? nullptr : (const float*)l.buf[res];
  c.how = variant(l.i + (integers - kInts));
  c.by_row = false;
  for (int k = 0; c.epilogue.prog && k + 1 < c.epilogue.prog->n_in && k < 4; k++)
    c.by_row |= c.epilogue.kind[k] == kRow;
  return c;
}

// --- tasks
// ---------------------------------------------------------------------------------------------------------------------
// Work is a grid of `major` x `minor` units; the major dimension is cut first. The cut follows from
// the number of tasks alone. A task is worth waking a thread for from about 5 us on: so many
// multiply-adds, fewer where they wait for memory.
constexpr int64_t kTaskMacs = int64_t(1) << 18, kDepthwiseTaskMacs = int64_t(1) << 16;

struct ConvShare {
  int64_t major0, major1, minor0, minor1;
};

static inline int64_t conv_tasks(const Conv& c, int64_t major, int64_t minor, int threads,
                                 int64_t least = kTaskMacs) {
  if (c.N * c.OH * c.OW * c.OC == 0) return 0;
  const int64_t macs = c.N * c.OH * c.OW * c.OC * c.depth;
  int64_t want =
      threads <= 1 ? 1 : std::max<int64_t>(1, std::min(c.how.split * threads, macs / least));
  if (want > 1) want = conv_round_up(want, threads);  // every thread gets as many
  return want <= major ? want : major * std::min(minor, conv_div_up(want, major));
}

static inline ConvShare conv_share(int64_t major, int64_t minor, int64_t task, int64_t tasks) {
  if (tasks <= major)
    return {conv_part(major, tasks, task), conv_part(major, tasks, task + 1), 0, minor};
  const int64_t parts = tasks / major, m = task / parts, p = task % parts;
  return {m, m + 1, conv_part(minor, parts, p), conv_part(minor, parts, p + 1)};
}

}  // namespace TRACEA_NS
}  // namespace tracea
