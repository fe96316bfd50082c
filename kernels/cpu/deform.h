// What the windows of a deformable convolution see, as rows of a matrix: each tap reads the image
// beside its place, by offsets that a tensor has.
#pragma once
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace deform_columns {

namespace f = fam::deform_columns;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t pixels = l.i[f::N] * l.i[f::OH] * l.i[f::OW], taps = l.i[f::KH] * l.i[f::KW];
  return pixels && l.i[f::C] ? even_tasks(pixels, pixels * taps * (16 + l.i[f::C]), threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t oh = l.i[f::OH], ow = l.i[f::OW], ih = l.i[f::IH], iw = l.i[f::IW],
                taps = l.i[f::KH] * l.i[f::KW], groups = l.i[f::G], offsets = l.i[f::DG],
                channels = l.i[f::C], each = channels / groups, share = channels / offsets,
                image = oh * ow, pixels = l.i[f::N] * image;
  for (int64_t p = task_begin(pixels, task, tasks); p < task_begin(pixels, task + 1, tasks); p++) {
    const int64_t n = p / image, at = p % image;
    const float* const x = (const float*)l.buf[f::x] + n * l.i[f::x_ns];
    const float* const moved = (const float*)l.buf[f::offset] + n * 2 * offsets * taps * image + at;
    const float* const mask =
        l.buf[f::mask] ? (const float*)l.buf[f::mask] + n * offsets * taps * image + at : nullptr;
    float* const y = (float*)l.buf[f::y] + p * taps * channels;
    for (int64_t d = 0; d < offsets; d++)
      for (int64_t k = 0; k < taps; k++) {
        const int64_t tap = d * taps + k;
        const int64_t row0 = at / ow * l.i[f::SH] - l.i[f::PT] + k / l.i[f::KW] * l.i[f::DH],
                      column0 = at % ow * l.i[f::SW] - l.i[f::PL] + k % l.i[f::KW] * l.i[f::DW];
        const float v = float(row0) + moved[2 * tap * image],
                    h = float(column0) + moved[(2 * tap + 1) * image],
                    m = mask ? mask[tap * image] : 1.f;
        const bool inside = v > -1.f && h > -1.f && v < float(ih) && h < float(iw);
        const float *from[4] = {}, low[2] = {floorf(v), floorf(h)};
        float weight[4] = {};
        for (int c = 0; inside && c < 4; c++) {
          const int64_t row = int64_t(low[0]) + c / 2, column = int64_t(low[1]) + c % 2;
          const float a = v - low[0], b = h - low[1];
          if (row < 0 || row >= ih || column < 0 || column >= iw) continue;
          from[c] = x + row * l.i[f::x_rs] + column * l.i[f::x_cs];
          weight[c] = (c / 2 ? a : 1.f - a) * (c % 2 ? b : 1.f - b) * m;
        }
        // the channels of these offsets, which groups may divide
        for (int64_t c = d * share; c < (d + 1) * share;) {
          const int64_t g = c / each,
                        end = (g + 1) * each < (d + 1) * share ? (g + 1) * each : (d + 1) * share;
          float* const to = y + (g * taps + k) * each - g * each;
          for (; c < end; c += W) {
            const int width = int(end - c < W ? end - c : W);
            vf sum{};
            for (int q = 0; q < 4; q++)
              if (from[q]) sum = fma(load_n(from[q] + c, width), splat(weight[q]), sum);
            store_n(to + c, sum, width);
          }
          c = end;
        }
      }
  }
}

}  // namespace deform_columns

static const Kernel kernel_deform_columns = {"deform_columns", deform_columns::tasks, nullptr,
                                             deform_columns::run};
static const Kernel* const table_deform[] = {&kernel_deform_columns, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
