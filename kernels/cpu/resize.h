// Resizing of channels-last images: nearest, bilinear and cubic, coordinates in float32 as ONNX
// Runtime computes them.
#pragma once
#include "common/cubic.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace resize2d {

namespace f = fam::resize2d;
enum Mode : int64_t { kNearest, kLinear };
enum Coordinate : int64_t { kHalfPixel, kAsymmetric, kAlignCorners, kPytorchHalfPixel };
enum Rounding : int64_t { kRoundPreferFloor, kFloor, kCeil, kRoundPreferCeil, kSimple };

// Source of one output position: floats lo and hi in units of positions, and the weight of hi (0
// for nearest).
struct Tap {
  int64_t lo, hi;
  float weight;
};

static inline float source(int64_t coord, int64_t at, int64_t in, int64_t out, float scale) {
  if (scale == 1.f) return float(at);
  switch (coord) {
    case kAsymmetric: return float(at) / scale;
    case kAlignCorners: return out == 1 ? 0.f : float(at) * float(in - 1) / float(out - 1);
    case kPytorchHalfPixel: return out > 1 ? (float(at) + 0.5f) / scale - 0.5f : 0.f;
    default: return (float(at) + 0.5f) / scale - 0.5f;
  }
}

// How far from a half ONNX Runtime takes a place for one.
static constexpr float kHalf = 1e-6f;

static inline int64_t nearest(int64_t rounding, float s, float scale) {
  const float below = floorf(s);
  switch (rounding) {
    case kFloor: return int64_t(below);
    case kCeil: return int64_t(ceilf(s));
    case kSimple: return int64_t(scale < 1.f ? ceilf(s) : below);
    case kRoundPreferCeil: return int64_t(below) + (s - below - 0.5f >= -kHalf);
    default: return int64_t(below) + (s - below - 0.5f > kHalf);
  }
}

static inline Tap tap(const Launch& l, int64_t at, int64_t in, int64_t out, float scale) {
  // ONNX Runtime copies an image whose size stays, whatever the scales.
  const bool same = l.i[f::IH] == l.i[f::OH] && l.i[f::IW] == l.i[f::OW];
  scale = same ? 1.f : scale > 0.f ? scale : float(out) / float(in);
  float s = source(l.i[f::coord], at, in, out, scale);
  if (l.i[f::mode] == kNearest) {
    int64_t k = nearest(l.i[f::rounding], s, scale);
    k = k < 0 ? 0 : k > in - 1 ? in - 1 : k;
    return {k, k, 0.f};
  }
  s = s < 0.f ? 0.f : s > float(in - 1) ? float(in - 1) : s;
  const int64_t lo = int64_t(s);
  return {lo, lo + 1 < in ? lo + 1 : lo, s - float(lo)};
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::OH], count = rows * l.i[f::OW] * l.i[f::C];
  return count ? even_tasks(rows, count / (l.i[f::mode] == kNearest ? 8 : 4), threads) : 0;
}

static size_t scratch(const Launch& l, int) { return size_t(l.i[f::OW]) * sizeof(Tap); }

TRACEA_INLINE void copy_pixel(const float* x, float* y, int64_t channels) {
  int64_t c = 0;
  for (; c + W <= channels; c += W) store(y + c, load(x + c));
  for (; c < channels; c++) y[c] = x[c];
}

// (1 - a)((1 - b) x00 + b x01) + a((1 - b) x10 + b x11)
TRACEA_INLINE vf blend(vf x00, vf x01, vf x10, vf x11, float a, float b) {
  const vf top = fma(x01, splat(b), x00 * (1.f - b)), bottom = fma(x11, splat(b), x10 * (1.f - b));
  return fma(bottom, splat(a), top * (1.f - a));
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  Tap* const columns = (Tap*)memory;
  const int64_t oh = l.i[f::OH], ow = l.i[f::OW], channels = l.i[f::C], cs = l.i[f::x_cs],
                end = task_begin(l.i[f::N] * oh, task + 1, tasks);
  for (int64_t w = 0; w < ow; w++) columns[w] = tap(l, w, l.i[f::IW], ow, l.f[f::scale_w]);
  for (int64_t r = task_begin(l.i[f::N] * oh, task, tasks); r < end; r++) {
    const Tap row = tap(l, r % oh, l.i[f::IH], oh, l.f[f::scale_h]);
    const float* const image = (const float*)l.buf[f::x] + r / oh * l.i[f::x_ns];
    const float *top = image + row.lo * l.i[f::x_rs], *bottom = image + row.hi * l.i[f::x_rs];
    float* y = (float*)l.buf[f::y] + r / oh * l.i[f::y_ns] + r % oh * l.i[f::y_rs];
    for (int64_t w = 0; w < ow; w++, y += l.i[f::y_cs]) {
      const Tap t = columns[w];
      const int64_t lo = t.lo * cs, hi = t.hi * cs;
      if (l.i[f::mode] == kNearest) {
        copy_pixel(top + lo, y, channels);
        continue;
      }
      int64_t c = 0;
      for (; c + W <= channels; c += W)
        store(y + c, blend(load(top + lo + c), load(top + hi + c), load(bottom + lo + c),
                           load(bottom + hi + c), row.weight, t.weight));
      if (c < channels) {
        const int n = int(channels - c);
        const vf a = load_n(top + lo + c, n), b = load_n(top + hi + c, n),
                 d = load_n(bottom + lo + c, n), e = load_n(bottom + hi + c, n);
        store_n(y + c, blend(a, b, d, e, row.weight, t.weight), n);
      }
    }
  }
}

}  // namespace resize2d

namespace resize_cubic {

namespace f = fam::resize_cubic;

// Four neighbours along an axis, those beyond the image replaced by its edge, and their weights.
struct Four {
  int64_t at[4];
  float weight[4];
};

static inline Four four(const Launch& l, int64_t at, int64_t in, int64_t out, float scale) {
  const bool same = l.i[f::IH] == l.i[f::OH] && l.i[f::IW] == l.i[f::OW];
  scale = same ? 1.f : scale > 0.f ? scale : float(out) / float(in);
  const float s = resize2d::source(l.i[f::coord], at, in, out, scale), low = floorf(s);
  Four r;
  cubic_weights(s - low, l.f[f::a], r.weight);
  for (int k = 0; k < 4; k++) {
    const int64_t p = int64_t(low) - 1 + k;
    r.at[k] = p < 0 ? 0 : p < in ? p : in - 1;
  }
  return r;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::OH], count = rows * l.i[f::OW] * l.i[f::C];
  return count ? even_tasks(rows, 2 * count, threads) : 0;
}

static size_t scratch(const Launch& l, int) { return size_t(l.i[f::OW]) * sizeof(Four); }

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  Four* const columns = (Four*)memory;
  const int64_t oh = l.i[f::OH], ow = l.i[f::OW], channels = l.i[f::C], cs = l.i[f::x_cs],
                end = task_begin(l.i[f::N] * oh, task + 1, tasks);
  for (int64_t w = 0; w < ow; w++) columns[w] = four(l, w, l.i[f::IW], ow, l.f[f::scale_w]);
  for (int64_t r = task_begin(l.i[f::N] * oh, task, tasks); r < end; r++) {
    const Four row = four(l, r % oh, l.i[f::IH], oh, l.f[f::scale_h]);
    const float* const image = (const float*)l.buf[f::x] + r / oh * l.i[f::x_ns];
    float* y = (float*)l.buf[f::y] + r / oh * l.i[f::y_ns] + r % oh * l.i[f::y_rs];
    for (int64_t w = 0; w < ow; w++, y += l.i[f::y_cs])
      for (int64_t c = 0; c < channels; c += W) {
        const int n = int(channels - c < W ? channels - c : W);
        vf sum{};
        for (int i = 0; i < 4; i++) {
          const float* const line = image + row.at[i] * l.i[f::x_rs] + c;
          vf part{};
          for (int j = 0; j < 4; j++)
            part = fma(load_n(line + columns[w].at[j] * cs, n), splat(columns[w].weight[j]), part);
          sum = fma(part, splat(row.weight[i]), sum);
        }
        store_n(y + c, sum, n);
      }
  }
}

}  // namespace resize_cubic

static const Kernel kernel_resize2d = {"resize2d", resize2d::tasks, resize2d::scratch,
                                       resize2d::run};
static const Kernel kernel_resize_cubic = {"resize_cubic", resize_cubic::tasks,
                                           resize_cubic::scratch, resize_cubic::run};
static const Kernel* const table_resize[] = {&kernel_resize2d, &kernel_resize_cubic, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
