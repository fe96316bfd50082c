// Winograd convolution F(2x2, 3x3): each 4x4 input tile d gives a 2x2 output tile A^T [(G g G^T) .
// (B^T d B)] A, summed over channels, so 16 products of [tiles x IC] by [IC x OC] replace 36
// multiplications per output tile and channel pair.
//
// Packed weights: [panel][16][ic][32 or 16]. A block of tiles is transformed once and stays in L2;
// each panel then runs its 16 products and the output transform with the epilogue while its results
// are hot.
#pragma once
#include "common/conv.h"

namespace tracea {
namespace TRACEA_NS {

struct Winograd {
  Conv c;
  int64_t th, tw, tiles;  // tile rows and columns of an image, tiles of all images
  int64_t block;          // most tiles of a block
  int64_t v_ld, v_step;   // transformed input: [16][tile][v_ld], v_step per matrix
  int64_t m_step;         // products: [16][tile][kConvPanel]
};

// Floats of one of a block's 16 matrices. Larger blocks read weights less often, and what they hold
// comes from L3 in time where the products take as long as with short vectors.
constexpr int64_t kWinogradFloats = 10240, kMostWinogradFloats = W == 16 ? 10240 : 32768;

// Most tiles of a block: balanced, of at most so many floats.
static inline int64_t winograd_block(const Winograd& w, int64_t floats) {
  const double scale = w.c.how.block;
  const int64_t fit = std::max<int64_t>(
      conv_rows[kConvVectors], std::min(scaled(56, scale), scaled(floats, scale) / w.v_ld));
  return std::max<int64_t>(1,
                           conv_div_up(w.tiles, std::max<int64_t>(1, conv_div_up(w.tiles, fit))));
}

static inline int64_t winograd_blocks(const Winograd& w, int64_t block) {
  return conv_div_up(w.tiles, std::max<int64_t>(1, block));
}

// The work of a launch in so many tasks.
static inline Winograd read_winograd(const Launch& l, int64_t tasks) {
  Winograd w;
  w.c = read_conv(l, fam::conv2d_wino::kInts);
  w.th = conv_div_up(w.c.OH, 2), w.tw = conv_div_up(w.c.OW, 2);
  w.tiles = w.c.N * w.th * w.tw;
  w.v_ld = conv_round_up(w.c.IC, 16);
  if (w.v_ld % 512 == 0) w.v_ld += 16;  // rows a multiple of 2 KiB apart collide in L1
  w.block = winograd_block(w, kWinogradFloats);
  const int64_t large = winograd_block(w, kMostWinogradFloats),
                blocks = std::max<int64_t>(1, winograd_blocks(w, large));
  // Tasks that share a block transform its input each: for four panels at least.
  if (tasks <= blocks ||
      (!w.c.how.order && tasks % blocks == 0 && w.c.panels >= 4 * (tasks / blocks)))
    w.block = large;
  // The transforms touch all 16 matrices at once: whole pages and a few lines apart, they fall into
  // different L1 sets.
  w.v_step = conv_round_up(w.block * w.v_ld, 1024) + 80;
  w.m_step = conv_round_up(w.block * kConvPanel, 1024) + 48;
  return w;
}

static int64_t winograd_tasks(const Launch& l, int threads) {
  const Winograd w = read_winograd(l, 1);
  const int64_t blocks = winograd_blocks(w, winograd_block(w, kWinogradFloats));
  return w.c.how.order ? conv_tasks(w.c, w.c.panels, blocks, threads)
                       : conv_tasks(w.c, blocks, w.c.panels, threads);
}

static size_t winograd_scratch(const Launch& l, int) {
  const Winograd w = read_winograd(l, 1);  // the largest block
  return 4 * size_t(16 * (w.v_step + w.m_step) + 4 * w.block * kConvPanel + 64);
}

// v[r*4 + s] = (B^T d B)[r][s] for the tiles [first, first + count).
static inline void winograd_input(const Winograd& w, int64_t first, int64_t count, float* v) {
  const Conv& c = w.c;
  for (int64_t q = 0; q < count; q++) {
    const int64_t t = first + q, tw = t % w.tw, th = t / w.tw % w.th, n = t / w.tw / w.th;
    const float* x = c.x + n * c.x_ns + (2 * th - c.PT) * c.x_rs + (2 * tw - c.PL) * c.x_cs;
    for (int64_t k = 0; k < c.IC; k += W) {
      vf e[4][4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const float* row = x + i * c.x_rs + k;
        const vf d0 = load(row), d1 = load(row + c.x_cs), d2 = load(row + 2 * c.x_cs),
                 d3 = load(row + 3 * c.x_cs);
        e[i][0] = d0 - d2, e[i][1] = d1 + d2, e[i][2] = d2 - d1, e[i][3] = d1 - d3;
      }
      float* out = v + q * w.v_ld + k;
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        store(out + j * w.v_step, e[0][j] - e[2][j]);
        store(out + (4 + j) * w.v_step, e[1][j] + e[2][j]);
        store(out + (8 + j) * w.v_step, e[2][j] - e[1][j]);
        store(out + (12 + j) * w.v_step, e[1][j] - e[3][j]);
      }
    }
  }
}

// Where the output tiles of one tile row go: y itself, or a buffer when only part of a panel's
// channels may be written.
struct WinogradOutput {
  float* y;
  int64_t rs, cs;
  const float* res;
};

static inline void winograd_output(const Winograd& w, const ConvPanel& p, const float* m,
                                   const float* bias, const WinogradOutput& o, int64_t rows,
                                   int64_t cols) {
  const Conv& c = w.c;
  const Epilogue& e = c.epilogue;
  for (int64_t k = 0; k < p.width; k += W) {
    vf d[4][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const float* row = m + 4 * i * w.m_step + k;
      const vf m0 = load(row), m1 = load(row + w.m_step), m2 = load(row + 2 * w.m_step),
               m3 = load(row + 3 * w.m_step);
      d[i][0] = m0 + m1 + m2, d[i][1] = m1 - m2 - m3;
    }
    const vf b = load(bias + k);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      if (j >= cols) break;
      const vf top = d[0][j] + d[1][j] + d[2][j] + b, bottom = d[1][j] - d[2][j] - d[3][j] + b;
      float* y = o.y + j * o.cs + k;
      if (!o.res) {
        store(y, e.clamp(top));
        if (rows > 1) store(y + o.rs, e.clamp(bottom));
      } else {
        const float* r = o.res + j * c.r_cs + k;
        const vf r0 = load(r);
        store(y, e.after_act ? e.clamp(top) + r0 : e.clamp(top + r0));
        if (rows > 1) {
          const vf r1 = load(r + c.r_rs);
          store(y + o.rs, e.after_act ? e.clamp(bottom) + r1 : e.clamp(bottom + r1));
        }
      }
    }
  }
}

// Output transform and epilogue of one panel for the tiles [first, first + count), one row of tiles
// after the other.
static inline void winograd_store(const Winograd& w, const ConvPanel& p, int64_t first,
                                  int64_t count, const float* m, float* tail) {
  const Conv& c = w.c;
  const Epilogue& e = c.epilogue;
  alignas(64) float bias[kConvPanel];
  for (int64_t n = 0; n < kConvPanel; n++) bias[n] = n < p.n ? c.bias[p.channel + n] : 0.f;
  for (int64_t q = 0, run; q < count; q += run) {
    const int64_t t = first + q, tw = t % w.tw, th = t / w.tw % w.th, n = t / w.tw / w.th;
    run = std::min(count - q, w.tw - tw);
    const int64_t oh = 2 * th, ow = 2 * tw, rows = std::min<int64_t>(2, c.OH - oh),
                  pixels = std::min(2 * run, c.OW - ow);
    float* y = c.y + c.y_at(n, oh, ow) + p.channel;
    const int64_t at = c.r_at(n, oh, ow) + p.channel, flat = (n * c.OH + oh) * c.OW + ow;
    WinogradOutput o{y, c.y_rs, c.y_cs, c.res ? c.res + at : nullptr};
    if (p.exact) o.y = tail, o.rs = 2 * run * kConvPanel, o.cs = kConvPanel;
    const WinogradOutput base = o;
    if (!e.in_registers) o.res = nullptr;
    for (int64_t i = 0; i < run; i++) {
      winograd_output(w, p, m + (q + i) * kConvPanel, bias, o, rows, c.OW - ow - 2 * i);
      o.y += 2 * o.cs;
      if (o.res) o.res += 2 * c.r_cs;
    }
    for (int64_t r = 0; r < rows; r++) {
      float* row = base.y + r * base.rs;
      if (!e.in_registers)
        finish_tile(e, {row, base.cs, base.res ? base.res + r * c.r_rs : nullptr, c.r_cs, pixels,
                        p.n, flat + r * c.OW, p.channel, at + r * c.r_rs});
      if (p.exact)
        for (int64_t i = 0; i < pixels; i++)
          copy_channels(y + r * c.y_rs + i * c.y_cs, row + i * kConvPanel, p.n);
    }
  }
}

static void winograd_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  const Winograd w = read_winograd(l, tasks);
  const Conv& c = w.c;
  const int64_t blocks = winograd_blocks(w, w.block);
  ConvShare s = c.how.order ? conv_share(c.panels, blocks, task, tasks)
                            : conv_share(blocks, c.panels, task, tasks);
  if (c.how.order) std::swap(s.major0, s.minor0), std::swap(s.major1, s.minor1);
  float* v = (float*)scratch;
  float* m = v + 16 * w.v_step;
  float* tail = m + 16 * w.m_step;
  float* zero = tail + 4 * w.block * kConvPanel;
  for (int n = 0; n < 64; n++) zero[n] = 0.f;
  ConvTile t{};
  t.taps_h = t.taps_w = 1, t.depth = c.IC, t.bias = zero;
  t.x_pitch = w.v_ld, t.y_pitch = kConvPanel;
  t.lo = -std::numeric_limits<float>::infinity(), t.hi = -t.lo;
  for (int64_t b = s.major0; b < s.major1; b++) {
    const int64_t first = conv_part(w.tiles, blocks, b),
                  count = conv_part(w.tiles, blocks, b + 1) - first;
    winograd_input(w, first, count, v);
    for (int64_t q = s.minor0; q < s.minor1; q++) {
      ConvPanel p = conv_panel(c, q);
      p.w = c.w + q * kConvPanel * 16 * c.IC;
      t.ldw = p.width;
      const int64_t heights = conv_div_up(count, conv_panel_rows(p.width));
      for (int64_t xi = 0; xi < 16; xi++) {
        const float* weights = p.w + xi * c.IC * p.width;
        const ConvAhead ahead = conv_ahead(p, weights + c.IC * p.width, c.IC, heights,
                                           double(conv_panel_rows(p.width)) * double(w.v_ld));
        for (int64_t i = 0; i < heights; i++) {
          const int64_t row = conv_part(count, heights, i),
                        rows = conv_part(count, heights, i + 1) - row;
          t.x = v + xi * w.v_step + row * w.v_ld;
          const float* next = i + 1 < heights ? t.x + rows * w.v_ld : v + (xi + 1) % 16 * w.v_step;
          for (int64_t j = 0; j < p.width / W; j += kConvVectors) {
            t.w = weights + j * W, t.y = m + xi * w.m_step + row * kConvPanel + j * W;
            ahead.fetch(t, j, i, next);
            conv_even_tiles[std::min<int64_t>(kConvVectors, p.width / W - j)][rows](t);
          }
        }
      }
      winograd_store(w, p, first, count, m, tail);
    }
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
