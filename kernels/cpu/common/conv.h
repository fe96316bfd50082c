// Packed panels and the loop over register tiles, shared by the direct, transposed and Winograd
// convolutions.
//
// Weights are packed per group in panels of 32 output channels (the last one 16 when that
// suffices): [group][panel][kh][kw][ic][32 or 16].
#pragma once
#include "common/conv_launch.h"
#include "common/conv_tile.h"

namespace tracea {
namespace TRACEA_NS {

// Terms of a sum that a tile takes as long for as memory takes to answer.
constexpr int64_t kConvEarly = W == 16 ? 16 : 64;

struct ConvPanel {
  const float* w;
  int64_t group, channel;  // first output channel, over all groups
  int64_t n, width;        // real and packed channels
  bool exact;              // channels n..width belong to somebody else: not written
};

static inline ConvPanel conv_panel(const Conv& c, int64_t q) {
  ConvPanel p;
  const int64_t j = q % c.group_panels * kConvPanel;
  p.group = q / c.group_panels;
  p.channel = p.group * c.ocg + j;
  p.n = std::min(kConvPanel, c.ocg - j);
  p.width = conv_round_up(p.n, 16);
  p.w = c.w + (p.group * conv_round_up(c.ocg, 16) + j) * c.depth;
  const int64_t writable = p.group + 1 == c.G && conv_round_up(c.OC, 16) <= c.y_cs
                               ? conv_round_up(c.OC, 16)
                               : (p.group + 1) * c.ocg;
  p.exact = p.channel + p.width > writable;
  return p;
}

// Most rows of a tile over a panel of this width.
static inline int64_t conv_panel_rows(int64_t width) {
  return conv_rows[std::min<int64_t>(kConvVectors, width / W)];
}

// Output pixels a panel runs over: a list, or, when they lie equally spaced in memory, a ruler of
// kConvMaxRows pixels from offset 0 and the first pixel's offsets.
struct PixelSet {
  const Pixel* px;
  int64_t count;
  bool spaced;
  Pixel first;     // of a spaced set; zero for a list
  int64_t next_x;  // input offset of what comes after the set, to be fetched ahead
};

// What the tiles of a panel fetch ahead where there are several streams over its width: the first
// one their share of the next panel's weights, the others what the next tiles read.
struct ConvAhead {
  const float* weights;
  int64_t w_step, x_step, terms, width;  // elements per term of the sum; of a row of weights

  // Of the i-th tile of the panel's vectors from v on; x: what the next one reads.
  void fetch(ConvTile& t, int64_t v, int64_t i, const float* x) const {
    t.ahead[0] = t.ahead[1] = {x, x_step};
    if (v == 0 && width > std::min(kConvStreamed, int64_t(kConvVectors * W)) && i * w_step < width)
      t.ahead[0] = {weights + i * w_step * terms, w_step};
  }
};

// The panel's sums have so many terms; x_elements: what each of its tiles reads of the input.
static inline ConvAhead conv_ahead(const ConvPanel& p, const float* weights, int64_t terms,
                                   int64_t tiles, double x_elements) {
  const auto per_term = [](double elements, int64_t n) {
    return int64_t(std::min(16., std::ceil(elements / double(std::max<int64_t>(1, n)))));
  };
  return {weights, per_term(double(p.width), tiles), per_term(x_elements, terms), terms, p.width};
}

// Activation or program over the stored pixels of a tile, one call per run of equally spaced ones.
// `y` is where output offset 0 and the panel's first channel lie, `base` what residual offsets and
// flat indices count from.
static inline void finish_pixels(const Conv& c, const ConvPanel& p, float* y, const Pixel& base,
                                 const Pixel* px, int64_t count, bool spaced) {
  for (int64_t i = 0, j; i < count; i = j) {
    const int64_t dy = i + 1 < count ? px[i + 1].y - px[i].y : 0,
                  dr = i + 1 < count ? px[i + 1].r - px[i].r : 0;
    const auto follows = [&](int64_t k) {
      return px[k].y - px[k - 1].y == dy && px[k].r - px[k - 1].r == dr &&
             (!c.by_row || px[k].flat == px[k - 1].flat + 1);
    };
    for (j = spaced ? count : i + 1; j < count && follows(j);) j++;
    const int64_t at = base.r + px[i].r + p.channel;
    finish_tile(c.epilogue, {y + px[i].y, dy, c.res ? c.res + at : nullptr, dr, j - i, p.n,
                             base.flat + px[i].flat, p.channel, at});
  }
}

// One panel over the pixels in balanced tiles. `t` holds taps, steps, depth and the input (with the
// group's channel offset).
static inline void run_conv_panel(const Conv& c, const ConvPanel& p, ConvTile t,
                                  const PixelSet& set) {
  const Epilogue& e = c.epilogue;
  alignas(64) float bias[kConvPanel], tail[kConvMaxRows * kConvPanel];
  Pixel own[kConvMaxRows];  // exact: the tile's pixels with outputs in `tail`
  t.lo = e.lo, t.hi = e.hi, t.after_act = e.after_act, t.ldw = p.width;
  const float *x = t.x, *w = t.w, *b = c.bias + p.channel,
              *res = c.res && e.in_registers ? c.res + p.channel : nullptr;
  if (p.exact) {
    for (int64_t n = 0; n < kConvPanel; n++) bias[n] = n < p.n ? b[n] : 0.f;
    b = bias;
  }
  const int64_t tiles = conv_div_up(set.count, conv_panel_rows(p.width)),
                low = set.count / std::max<int64_t>(1, tiles), more = set.count - low * tiles;
  const int64_t last_tap = (t.taps_h - 1) * t.x_step_h;
  const int64_t terms = t.taps_h * t.taps_w * t.depth;
  const ConvAhead ahead =
      conv_ahead(p, p.w + p.width * c.depth, terms, tiles,
                 double(conv_panel_rows(p.width)) * double(c.SW) * double(c.x_cs));
  const Pixel step = set.px[1];
  Pixel base = set.first;
  // Stores of tiles that take less time than memory takes to answer wait for it, unless what they
  // write was fetched some tiles ago.
  const int64_t early = p.exact ? 0 : kConvEarly / std::max<int64_t>(1, terms);
  t.x_pitch = step.x, t.y_pitch = p.exact ? kConvPanel : step.y, t.r_pitch = step.r;
  for (int64_t i = 0, first = 0, rows; i < tiles; i++, first += rows) {
    rows = low + (i < more);
    const Pixel* px = set.spaced ? set.px : set.px + first;
    float *y = c.y + p.channel + base.y, *to = p.exact ? tail : y;
    t.x = x + base.x;
    t.pixel = px;
    const float* next = x + last_tap +
                        (i + 1 == tiles ? set.next_x
                         : set.spaced   ? base.x + rows * step.x
                                        : px[rows].x);
    if (p.exact) {
      for (int64_t m = 0; m < rows; m++) own[m] = px[m], own[m].y = m * kConvPanel;
      t.pixel = own;
    }
    for (int64_t v = 0; v < p.width / W; v += kConvVectors) {
      t.w = w + v * W, t.bias = b + v * W, t.y = to + v * W;
      t.y_early = early * rows * t.y_pitch;
      t.res = res ? res + base.r + v * W : nullptr;
      ahead.fetch(t, v, i, next);
      const int64_t vectors = std::min<int64_t>(kConvVectors, p.width / W - v);
      if (set.spaced)
        conv_even_tiles[vectors][rows](t);
      else
        conv_tiles[vectors][rows](t);
    }
    if (!e.in_registers) finish_pixels(c, p, to, base, t.pixel, rows, set.spaced);
    if (p.exact)
      for (int64_t m = 0; m < rows; m++) copy_channels(y + px[m].y, tail + m * kConvPanel, p.n);
    if (set.spaced)
      base = {base.x + rows * step.x, base.y + rows * step.y, base.r + rows * step.r,
              base.flat + rows};
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
