// Pooling over channels-last images. Channels are the vector direction; windows are clipped to the
// image, so no border is read.
#pragma once
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

enum PoolMode : int64_t { kPoolMax, kPoolAverageValid, kPoolAveragePadded };

namespace pool2d {

namespace f = fam::pool2d;

// The taps of a window along one axis that fall inside the image: input positions first + k * step,
// k < count.
struct Taps {
  int64_t first, count;
};

static inline Taps clip_taps(int64_t start, int64_t taps, int64_t dilation, int64_t size) {
  const int64_t skip = start < 0 ? (-start + dilation - 1) / dilation : 0, room = size - start;
  const int64_t end = room <= 0 ? 0 : (room + dilation - 1) / dilation,
                last = end < taps ? end : taps;
  return {start + skip * dilation, last > skip ? last - skip : 0};
}

// Taps that fall inside the image extended by its pads: what an average including padding divides
// by.
static inline int64_t padded_taps(int64_t start, int64_t taps, int64_t dilation, int64_t size,
                                  int64_t before, int64_t after) {
  return clip_taps(start + before, taps, dilation, size + before + after).count;
}

constexpr int kVectors = 4;  // vectors of channels handled together

// Windows that overlap along the row are reduced in two steps, columns first: KH + KW operations an
// element in place of KH * KW.
static inline bool two_steps(const Launch& l) {
  return l.i[f::IW] * (l.i[f::KH] + 1) + l.i[f::OW] * (l.i[f::KW] + 1) <
         l.i[f::OW] * l.i[f::KH] * l.i[f::KW];
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::OH], count = rows * l.i[f::OW] * l.i[f::C];
  return count
             ? even_tasks(
                   rows,
                   count * (two_steps(l) ? l.i[f::KH] + l.i[f::KW] : l.i[f::KH] * l.i[f::KW]) / 16 +
                       1,
                   threads)
             : 0;
}

static int64_t padded_channels(const Launch& l) { return (l.i[f::C] + W - 1) / W * W; }
static size_t scratch(const Launch& l, int) {
  return two_steps(l) ? size_t(l.i[f::IW] * padded_channels(l)) * 4 : 0;
}

// A rectangle of taps for V vectors of channels, in row-major order. The last vector is read whole
// (a channels-last buffer has readable slack) and `lanes` of it are written.
template <bool kMax, int V>
TRACEA_INLINE void window(const float* x, int64_t row_step, int64_t column_step, int64_t rows,
                          int64_t columns, float scale, float* y, int lanes) {
  vf acc[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) acc[v] = splat(kMax ? -INFINITY : 0.f);
  for (int64_t r = 0; r < rows; r++) {
    const float* p = x + r * row_step;
    for (int64_t c = 0; c < columns; c++, p += column_step)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++)
        acc[v] = kMax ? vmax(acc[v], load(p + v * W)) : acc[v] + load(p + v * W);
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const vf value = kMax ? acc[v] : acc[v] * scale;
    if (v + 1 < V || lanes == W)
      store(y + v * W, value);
    else
      store_n(y + v * W, value, lanes);
  }
}

// The same for all channels of one pixel.
template <bool kMax>
TRACEA_INLINE void pixel(const float* x, int64_t row_step, int64_t column_step, int64_t rows,
                         int64_t columns, float scale, float* y, int64_t channels) {
  int64_t c = 0;
  for (; c + kVectors * W <= channels; c += kVectors * W)
    window<kMax, kVectors>(x + c, row_step, column_step, rows, columns, scale, y + c, W);
  for (; c < channels; c += W)
    window<kMax, 1>(x + c, row_step, column_step, rows, columns, scale, y + c,
                    channels - c < W ? int(channels - c) : W);
}

template <bool kMax>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks, float* reduced) {
  const int64_t oh = l.i[f::OH], cs = l.i[f::x_cs], rs = l.i[f::x_rs], iw = l.i[f::IW],
                kw = l.i[f::KW], dw = l.i[f::DW], padded = padded_channels(l);
  const int64_t end = task_begin(l.i[f::N] * oh, task + 1, tasks);
  for (int64_t r = task_begin(l.i[f::N] * oh, task, tasks); r < end; r++) {
    const int64_t top = r % oh * l.i[f::SH] - l.i[f::PT];
    const Taps th = clip_taps(top, l.i[f::KH], l.i[f::DH], l.i[f::IH]);
    const int64_t padded_h =
        padded_taps(top, l.i[f::KH], l.i[f::DH], l.i[f::IH], l.i[f::PT], l.i[f::PB]);
    const float* x = (const float*)l.buf[f::x] + r / oh * l.i[f::x_ns] + th.first * rs;
    float* y = (float*)l.buf[f::y] + r / oh * l.i[f::y_ns] + r % oh * l.i[f::y_rs];
    int64_t pitch = cs, row_step = l.i[f::DH] * rs, rows = th.count;
    if (reduced) {
      for (int64_t w = 0; w < iw; w++)
        pixel<kMax>(x + w * cs, row_step, 0, rows, 1, 1.f, reduced + w * padded, padded);
      x = reduced, pitch = padded, row_step = 0, rows = 1;
    }
    for (int64_t o = 0; o < l.i[f::OW]; o++, y += l.i[f::y_cs]) {
      const int64_t left = o * l.i[f::SW] - l.i[f::PL];
      const Taps tw = clip_taps(left, kw, dw, iw);
      const int64_t divisor = l.i[f::mode] == kPoolAveragePadded
                                  ? padded_h * padded_taps(left, kw, dw, iw, l.i[f::PL], l.i[f::PR])
                                  : th.count * tw.count;
      pixel<kMax>(x + tw.first * pitch, row_step, dw * pitch, rows, tw.count,
                  divisor ? 1.f / float(divisor) : 0.f, y, l.i[f::C]);
    }
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  float* const columns = two_steps(l) ? (float*)memory : nullptr;
  if (l.i[f::mode] == kPoolMax)
    run_as<true>(l, task, tasks, columns);
  else
    run_as<false>(l, task, tasks, columns);
}

}  // namespace pool2d

namespace global_pool {

namespace f = fam::global_pool;
constexpr int64_t kChannels = 64;  // channels per piece
constexpr int64_t kRun = 32;  // pixels summed plainly; the partial sums are added with compensation

static int64_t blocks(const Launch& l) { return (l.i[f::C] + kChannels - 1) / kChannels; }

static int64_t tasks(const Launch& l, int threads) {
  const int64_t count = l.i[f::N] * l.i[f::C];
  return count ? even_tasks(l.i[f::N] * blocks(l), count * l.i[f::H] * l.i[f::W] / 16 + 1, threads)
               : 0;
}

// V vectors of channels over the whole image; `lanes` of the last vector are real.
template <bool kMax, int V>
static inline void reduce(const Launch& l, const float* x, float* y, int lanes) {
  const int64_t h = l.i[f::H], w = l.i[f::W], cs = l.i[f::x_cs];
  vf total[V], lost[V];  // `lost`: what rounding has dropped from `total`
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) total[v] = splat(kMax ? -INFINITY : 0.f), lost[v] = vf{};
  for (int64_t r = 0; r < h; r++)
    for (int64_t c0 = 0; c0 < w; c0 += kRun) {
      const float* p = x + r * l.i[f::x_rs] + c0 * cs;
      const int64_t run = w - c0 < kRun ? w - c0 : kRun;
      vf part[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) part[v] = splat(kMax ? -INFINITY : 0.f);
      for (int64_t c = 0; c < run; c++, p += cs)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          const vf value = load(p + v * W);  // past the last channel: readable slack
          part[v] = kMax ? vmax(part[v], value) : part[v] + value;
        }
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        if (kMax) {
          total[v] = vmax(total[v], part[v]);
        } else {
          const vf add = part[v] - lost[v], sum = total[v] + add;
          lost[v] = (sum - total[v]) - add;
          total[v] = sum;
        }
      }
    }
  const float scale = kMax ? 1.f : 1.f / float(h * w);
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    if (lanes == W || v + 1 < V)
      store(y + v * W, total[v] * scale);
    else
      store_n(y + v * W, total[v] * scale, lanes);
  }
}

template <bool kMax>
static inline void run_as(const Launch& l, int64_t task, int64_t tasks) {
  const int64_t count = blocks(l), channels = l.i[f::C];
  for (int64_t unit = task_begin(l.i[f::N] * count, task, tasks);
       unit < task_begin(l.i[f::N] * count, task + 1, tasks); unit++) {
    const int64_t first = unit % count * kChannels,
                  last = first + kChannels < channels ? first + kChannels : channels;
    const float* x = (const float*)l.buf[f::x] + unit / count * l.i[f::x_ns];
    float* y = (float*)l.buf[f::y] + unit / count * l.i[f::y_ns];
    int64_t c = first;
    for (; c + 4 * W <= last; c += 4 * W) reduce<kMax, 4>(l, x + c, y + c, W);
    for (; c + W <= last; c += W) reduce<kMax, 1>(l, x + c, y + c, W);
    if (c < last) reduce<kMax, 1>(l, x + c, y + c, int(last - c));
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  if (l.i[f::mode] == kPoolMax)
    run_as<true>(l, task, tasks);
  else
    run_as<false>(l, task, tasks);
}

}  // namespace global_pool

static const Kernel kernel_pool2d = {"pool2d", pool2d::tasks, pool2d::scratch, pool2d::run};
static const Kernel kernel_global_pool = {"global_pool", global_pool::tasks, nullptr,
                                          global_pool::run};
static const Kernel* const table_pool[] = {&kernel_pool2d, &kernel_global_pool, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
