// Channels-last images sampled where a grid says.
#pragma once
#include "common/cubic.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace grid_sample {

namespace f = fam::grid_sample;
enum Mode : int64_t { kNearest, kLinear, kCubic };
enum Outside : int64_t { kZeros, kBorder, kReflection };

// A place of the grid, -1..1, in pixels. `corners`: -1 and 1 are the centers of the outermost
// pixels, else their outer edges.
static inline float position(float g, int64_t n, bool corners) {
  return corners ? (g + 1.f) / 2.f * float(n - 1) : ((g + 1.f) * float(n) - 1.f) / 2.f;
}

static inline float reflected(float v, int64_t n, bool corners) {
  const float low = corners ? 0.f : -0.5f, high = corners ? float(n - 1) : float(n) - 0.5f,
              range = high - low;
  if (v >= low && v <= high) return v;
  const float past = v < low ? low - v : v - high, turns = floorf(past / range),
              rest = past - turns * range;
  const bool even = turns - 2.f * floorf(turns / 2.f) == 0.f;
  return (v < low) == even ? low + rest : high - rest;
}

// Up to four neighbours along an axis, whether there are such pixels, and their weights.
struct Around {
  int count;
  int64_t at[4];
  bool some[4];
  float weight[4];
};

static inline Around around(const Launch& l, float g, int64_t n) {
  const int64_t mode = l.i[f::mode], pad = l.i[f::pad];
  const bool corners = l.i[f::corners] != 0;
  float v = position(g, n, corners);
  if (mode == kNearest) v = rintf(v);
  if (pad == kBorder && mode != kCubic)  // cubic: its neighbours are brought in, alone
    v = v > 0.f ? v < float(n - 1) ? v : float(n - 1) : 0.f;
  if (pad == kReflection) v = reflected(v, n, corners);
  const float below = floorf(v), t = v - below;
  Around r;
  r.count = mode == kNearest ? 1 : mode == kLinear ? 2 : 4;
  const float first = mode == kNearest ? v : below - float(mode == kCubic);
  r.weight[0] = 1.f;
  if (mode == kLinear) r.weight[0] = 1.f - t, r.weight[1] = t;
  if (mode == kCubic) cubic_weights(t, -0.75f, r.weight);
  for (int k = 0; k < r.count; k++) {
    const float p = first + float(k), q = pad == kReflection ? reflected(p, n, corners) : p;
    r.some[k] = pad != kZeros || (p >= 0.f && p <= float(n - 1));
    // far beyond the image a float is no integer
    r.at[k] = q > 0.f ? q < float(n - 1) ? int64_t(q) : n - 1 : 0;
  }
  return r;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t pixels = l.i[f::N] * l.i[f::OH] * l.i[f::OW];
  return pixels && l.i[f::C] ? even_tasks(pixels, pixels * (32 + l.i[f::C]), threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t oh = l.i[f::OH], ow = l.i[f::OW], channels = l.i[f::C], ih = l.i[f::IH],
                iw = l.i[f::IW], pixels = l.i[f::N] * oh * ow;
  for (int64_t p = task_begin(pixels, task, tasks); p < task_begin(pixels, task + 1, tasks); p++) {
    const float* const place = (const float*)l.buf[f::grid] + 2 * p;
    const float* const image = (const float*)l.buf[f::x] + p / (oh * ow) * l.i[f::x_ns];
    float* const y = (float*)l.buf[f::y] + p / (oh * ow) * l.i[f::y_ns] +
                     p / ow % oh * l.i[f::y_rs] + p % ow * l.i[f::y_cs];
    if (!ih || !iw) {
      memset(y, 0, size_t(channels) * sizeof(float));
      continue;
    }
    const Around across = around(l, place[0], iw), down = around(l, place[1], ih);
    for (int64_t c = 0; c < channels; c += W) {
      const int n = int(channels - c < W ? channels - c : W);
      vf sum{};
      for (int i = 0; i < down.count; i++) {
        if (!down.some[i]) continue;
        const float* const line = image + down.at[i] * l.i[f::x_rs] + c;
        vf part{};
        for (int j = 0; j < across.count; j++)
          if (across.some[j])
            part =
                fma(load_n(line + across.at[j] * l.i[f::x_cs], n), splat(across.weight[j]), part);
        sum = fma(part, splat(down.weight[i]), sum);
      }
      store_n(y + c, sum, n);
    }
  }
}

}  // namespace grid_sample

static const Kernel kernel_grid_sample = {"grid_sample", grid_sample::tasks, nullptr,
                                          grid_sample::run};
static const Kernel* const table_sample[] = {&kernel_grid_sample, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
