// Regions of channels-last images, each resampled to the same size.
#pragma once
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace roi_align {

namespace f = fam::roi_align;
enum Mode : int64_t { kMean, kLargest };

// Samples of a bin along an axis, at most: so many that a region is nonsense.
constexpr float kMostSamples = 65536.f;

// A region along one axis, in pixels.
struct Side {
  float start, bin;
  int64_t samples;  // of a bin; -1: too many
};
static inline Side side(const Launch& l, float from, float to, int64_t bins) {
  const bool half = l.i[f::half] != 0;
  const float offset = half ? 0.5f : 0.f, start = from * l.f[f::scale] - offset;
  float size = to * l.f[f::scale] - offset - start;
  if (!half && !(size > 1.f)) size = 1.f;
  Side s{start, size / float(bins), l.i[f::ratio]};
  if (s.samples > 0) return s;
  const float most = ceilf(s.bin);
  s.samples = most <= kMostSamples ? most > 0.f ? int64_t(most) : 0 : -1;
  return s;
}

// The two pixels beside a place, and their weights.
struct Beside {
  int64_t at[2];
  float weight[2];
};
// Whether there are any: places beyond the pixels around the image count nothing.
static inline bool beside(float v, int64_t n, Beside& r) {
  const bool near = v >= -1.f && v <= float(n);  // not so for NaN
  if (!near) return false;
  v = v > 0.f ? v : 0.f;
  const int64_t low = int64_t(v) < n - 1 ? int64_t(v) : n - 1, high = low + (low < n - 1);
  const float t = high == low ? 0.f : v - float(low);
  r = {{low, high}, {1.f - t, t}};
  return true;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t pixels = l.i[f::R] * l.i[f::OH] * l.i[f::OW];
  return pixels && l.i[f::C] ? even_tasks(pixels, pixels * (64 + 2 * l.i[f::C]), threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t oh = l.i[f::OH], ow = l.i[f::OW], channels = l.i[f::C], ih = l.i[f::IH],
                iw = l.i[f::IW], pixels = l.i[f::R] * oh * ow;
  const bool mean = l.i[f::mode] == kMean;
  for (int64_t p = task_begin(pixels, task, tasks); p < task_begin(pixels, task + 1, tasks); p++) {
    const int64_t r = p / (oh * ow), row = p / ow % oh, column = p % ow,
                  n = ((const int64_t*)l.buf[f::batch])[r];
    const float* const region = (const float*)l.buf[f::rois] + 4 * r;
    float* const y =
        (float*)l.buf[f::y] + r * l.i[f::y_ns] + row * l.i[f::y_rs] + column * l.i[f::y_cs];
    const Side across = side(l, region[0], region[2], ow), down = side(l, region[1], region[3], oh);
    const bool good = n >= 0 && n < l.i[f::N] && across.samples >= 0 && down.samples >= 0;
    if (!good) *l.error = 1;
    if (!good || !ih || !iw) {
      memset(y, 0, size_t(channels) * sizeof(float));
      continue;
    }
    const float* const image = (const float*)l.buf[f::x] + n * l.i[f::x_ns];
    const int64_t count = across.samples * down.samples;
    for (int64_t c = 0; c < channels; c += W) {
      const int width = int(channels - c < W ? channels - c : W);
      vf sum{};
      bool first = true;
      for (int64_t i = 0; i < down.samples; i++) {
        Beside v;
        const bool inside = beside(
            down.start + float(row) * down.bin + (float(i) + 0.5f) * down.bin / float(down.samples),
            ih, v);
        if (!inside && mean) continue;
        for (int64_t j = 0; j < across.samples; j++) {
          Beside h;
          const bool both =
              inside && beside(across.start + float(column) * across.bin +
                                   (float(j) + 0.5f) * across.bin / float(across.samples),
                               iw, h);
          if (!both && mean) continue;
          // ONNX takes the largest of the weighted pixels, not of what they add up to
          vf part{};
          for (int k = 0; both && k < 4; k++) {
            const vf x =
                load_n(image + v.at[k / 2] * l.i[f::x_rs] + h.at[k % 2] * l.i[f::x_cs] + c, width) *
                splat(v.weight[k / 2] * h.weight[k % 2]);
            part = k == 0 ? x : mean ? part + x : vmax(part, x);
          }
          sum = mean ? sum + part : first ? part : vmax(sum, part);
          first = false;
        }
      }
      if (mean) sum = sum / splat(float(count > 0 ? count : 1));
      store_n(y + c, sum, width);
    }
  }
}

}  // namespace roi_align

static const Kernel kernel_roi_align = {"roi_align", roi_align::tasks, nullptr, roi_align::run};
static const Kernel* const table_roi[] = {&kernel_roi_align, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
