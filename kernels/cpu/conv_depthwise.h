// Depthwise convolution in channels-last layout: y[n, oh, ow, c] = epilogue(bias[c] + sum_{kh, kw}
// x[n, oh*SH + kh - PT, ow*SW + kw - PL, c] * w[kh, kw, c]).
//
// A register tile holds R output rows x T output pixels of W channels: an input vector is loaded
// once for all the taps that use it. Square 3, 5 and 7 kernels of stride 1 and 2 are instantiated;
// anything else takes the general loop.
#pragma once
#include <utility>

#include "common/conv_launch.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int kDwMaxT = W == 16 ? 8 : 6;  // pixels of a tile: accumulators, one input and one
                                          // weight vector fit the register file
constexpr int kDwPairT = 7;               // the same with two rows

struct DwTile {
  const float *x, *w, *bias;
  float* y;
  int64_t x_cs, x_rs, y_cs, y_rs, w_ld;
  int64_t channels;  // whole vectors, the last may reach into the pad channels
  float lo, hi;
};

template <int K, int S, int R, int T>
static void dw_tile(const DwTile& t) {
  const vf lo = splat(t.lo), hi = splat(t.hi);
  for (int64_t c = 0; c < t.channels; c += W) {
    const float *x = t.x + c, *w = t.w + c;
    float* y = t.y + c;
    const vf b = load(t.bias + c);
    vf a[R][T];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int p = 0; p < T; p++) a[r][p] = b;
#pragma GCC unroll 16
    for (int i = 0; i < (R - 1) * S + K; i++)
#pragma GCC unroll 32
      for (int j = 0; j < (T - 1) * S + K; j++) {
        const vf v = load(x + i * t.x_rs + j * t.x_cs);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
          for (int p = 0; p < T; p++) {
            const int kh = i - r * S, kw = j - p * S;
            if (kh >= 0 && kh < K && kw >= 0 && kw < K)
              a[r][p] = fma(v, load(w + (kh * K + kw) * t.w_ld), a[r][p]);
          }
      }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int p = 0; p < T; p++) store(y + r * t.y_rs + p * t.y_cs, clamp(a[r][p], lo, hi));
  }
}

typedef void (*DwFunction)(const DwTile&);
template <int K, int S, int R, int... T>
static DwFunction dw_function(int64_t pixels, std::integer_sequence<int, T...>) {
  static const DwFunction table[] = {dw_tile<K, S, R, T + 1>...};
  return table[pixels - 1];
}
using DwWidths = std::make_integer_sequence<int, kDwMaxT>;
using DwPairWidths = std::make_integer_sequence<int, kDwPairT>;

// Two rows at once pay where they share inputs and the registers suffice.
static inline bool dw_pairs(const Conv& c) { return W == 16 && c.KH == 3 && c.SH == 1; }
static inline bool dw_special(const Conv& c) {
  return c.KH == c.KW && c.SH == c.SW && c.DH == 1 && c.DW == 1 &&
         (c.KH == 3 || c.KH == 5 || c.KH == 7) && (c.SH == 1 || c.SH == 2);
}

static inline DwFunction dw_select(const Conv& c, int64_t rows, int64_t pixels) {
  if (rows == 2) return dw_function<3, 1, 2>(pixels, DwPairWidths());
  switch (c.KH * 10 + c.SH) {
    case 31: return dw_function<3, 1, 1>(pixels, DwWidths());
    case 32: return dw_function<3, 2, 1>(pixels, DwWidths());
    case 51: return dw_function<5, 1, 1>(pixels, DwWidths());
    case 52: return dw_function<5, 2, 1>(pixels, DwWidths());
    case 71: return dw_function<7, 1, 1>(pixels, DwWidths());
    default: return dw_function<7, 2, 1>(pixels, DwWidths());
  }
}

// Any kernel, stride and dilation: one row of T pixels. Writes exactly `channels` channels.
template <int T>
static void dw_general_tile(const Conv& c, const DwTile& t) {
  for (int64_t k = 0; k < t.channels; k += W) {
    const int n = int(std::min<int64_t>(W, t.channels - k));
    const int64_t px = c.SW * t.x_cs;
    const vf b = load(t.bias + k);
    vf a[T];
#pragma GCC unroll 8
    for (int p = 0; p < T; p++) a[p] = b;
    for (int64_t kh = 0; kh < c.KH; kh++)
      for (int64_t kw = 0; kw < c.KW; kw++) {
        const float* x = t.x + kh * c.DH * t.x_rs + kw * c.DW * t.x_cs + k;
        const vf v = load(t.w + (kh * c.KW + kw) * t.w_ld + k);
#pragma GCC unroll 8
        for (int p = 0; p < T; p++) a[p] = fma(load(x + p * px), v, a[p]);
      }
#pragma GCC unroll 8
    for (int p = 0; p < T; p++)
      store_n(t.y + p * t.y_cs + k, clamp(a[p], splat(t.lo), splat(t.hi)), n);
  }
}

static inline void dw_general(const Conv& c, DwTile t, int64_t pixels) {
  constexpr int T = 6;
  for (; pixels >= T; pixels -= T, t.x += T * c.SW * t.x_cs, t.y += T * t.y_cs)
    dw_general_tile<T>(c, t);
  for (; pixels > 0; pixels--, t.x += c.SW * t.x_cs, t.y += t.y_cs) dw_general_tile<1>(c, t);
}

// --- the kernel: units are bands of one or two output rows x blocks of channels
// -----------------------------------------------------

static inline int64_t dw_band(const Conv& c) { return dw_special(c) && dw_pairs(c) ? 2 : 1; }

// Channels of a block: the input rows of a band stay in L1 while the tile walks along them.
static inline int64_t dw_block(const Conv& c) {
  const int64_t rows = (dw_band(c) - 1) * c.SH + c.KH, cols = c.OW * c.SW + c.KW;
  const int64_t fit = scaled(6144, c.how.block) / std::max<int64_t>(1, rows * cols) / 16 * 16;
  return std::max(scaled(64, c.how.block), std::min<int64_t>(fit, 1024));
}

static int64_t depthwise_tasks(const Launch& l, int threads) {
  const Conv c = read_conv(l, fam::conv2d_dw::kInts);
  return conv_tasks(c, c.N * conv_div_up(c.OH, dw_band(c)), conv_div_up(c.OC, dw_block(c)), threads,
                    kDepthwiseTaskMacs);
}

static void depthwise_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const Conv c = read_conv(l, fam::conv2d_dw::kInts);
  const Epilogue& e = c.epilogue;
  const int64_t band = dw_band(c), bands = conv_div_up(c.OH, band),
                blocks = conv_div_up(c.OC, dw_block(c));
  const ConvShare s = conv_share(c.N * bands, blocks, task, tasks);
  const bool vectors =
      dw_special(c) && conv_round_up(c.OC, 16) <= c.y_cs;  // whole vectors may be stored
  const bool finish = !e.in_registers || c.res;  // a residual joins after the tile is stored
  constexpr float inf = std::numeric_limits<float>::infinity();
  DwTile t{};
  t.x_cs = c.x_cs, t.x_rs = c.x_rs, t.y_cs = c.y_cs, t.y_rs = c.y_rs,
  t.w_ld = conv_round_up(c.OC, 16);
  t.lo = finish ? -inf : e.lo, t.hi = finish ? inf : e.hi;
  const int64_t units = conv_div_up(c.OC, W);
  for (int64_t b = s.minor0; b < s.minor1; b++) {
    const int64_t c0 = conv_part(units, blocks, b) * W,
                  c1 = std::min(c.OC, conv_part(units, blocks, b + 1) * W);
    t.channels = c1 - c0, t.w = c.w + c0, t.bias = c.bias + c0;
    for (int64_t u = s.major0; u < s.major1; u++) {
      const int64_t n = u / bands, oh = u % bands * band, rows = std::min(band, c.OH - oh);
      const int64_t most = !vectors    ? 12
                           : rows == 2 ? kDwPairT
                                       : kDwMaxT,
                    tiles = conv_div_up(c.OW, most);
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t ow = conv_part(c.OW, tiles, i), pixels = conv_part(c.OW, tiles, i + 1) - ow;
        t.x = c.x + n * c.x_ns + (oh * c.SH - c.PT) * c.x_rs + (ow * c.SW - c.PL) * c.x_cs + c0;
        t.y = c.y + c.y_at(n, oh, ow) + c0;
        if (vectors)
          dw_select(c, rows, pixels)(t);
        else
          for (int64_t r = 0; r < rows; r++) {
            DwTile row = t;
            row.x += r * c.SH * c.x_rs, row.y += r * c.y_rs;
            dw_general(c, row, pixels);
          }
        if (!finish) continue;
        for (int64_t r = 0; r < rows; r++) {
          const int64_t at = c.r_at(n, oh + r, ow) + c0, flat = (n * c.OH + oh + r) * c.OW + ow;
          finish_tile(e, {t.y + r * c.y_rs, c.y_cs, c.res ? c.res + at : nullptr, c.r_cs, pixels,
                          c1 - c0, flat, c0, at});
        }
      }
    }
  }
}

static const Kernel kernel_conv2d_dw = {"conv2d_dw", depthwise_tasks, nullptr, depthwise_run};

static const Kernel* const table_conv_depthwise[] = {&kernel_conv2d_dw, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
