// Channels-last layout: conversion from and to NCHW, zero borders, channel-slice copies.
#pragma once
#include "common/tasks.h"
#include "common/transpose.h"

namespace tracea {
namespace TRACEA_NS {

namespace nchw_to_nhwc {

namespace f = fam::nchw_to_nhwc;

constexpr int64_t kPixels = 64;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::H], count = rows * l.i[f::W] * l.i[f::C];
  return count ? even_tasks(rows, count / 2, threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t channels = l.i[f::C], h = l.i[f::H], w = l.i[f::W], plane = h * w,
                cs = l.i[f::y_cs], rs = l.i[f::y_rs];
  const int64_t rows = l.i[f::N] * h, end = task_begin(rows, task + 1, tasks);
  for (int64_t r = task_begin(rows, task, tasks); r < end;) {
    const int64_t image = r / h, row = r % h;
    // Rows that touch (no border between them) are one long row.
    int64_t together = 1;
    if (rs == w * cs) together = h - row < end - r ? h - row : end - r;
    const float* from = (const float*)l.buf[f::x] + image * channels * plane + row * w;
    float* to = (float*)l.buf[f::y] + image * l.i[f::y_ns] + row * rs;
    const int64_t pixels = together * w;
    const int64_t step = channels <= 4 ? pixels : kPixels;
    for (int64_t p = 0; p < pixels; p += step)
      transpose_block(from + p, plane, to + p * cs, cs, channels,
                      pixels - p < step ? pixels - p : step);
    r += together;
  }
}

}  // namespace nchw_to_nhwc

namespace nhwc_to_nchw {

namespace f = fam::nhwc_to_nchw;

constexpr int64_t kPixels = 64, kChannels = 64;

static int64_t blocks(const Launch& l) { return (l.i[f::C] + kChannels - 1) / kChannels; }

static int64_t tasks(const Launch& l, int threads) {
  const int64_t count = l.i[f::N] * l.i[f::H] * l.i[f::W] * l.i[f::C];
  return count ? even_tasks(l.i[f::N] * blocks(l) * l.i[f::H], count / 2, threads) : 0;
}

// Pieces run over image, channel block, row: the planes of one block are written from start to end.
static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t channels = l.i[f::C], h = l.i[f::H], w = l.i[f::W], plane = h * w,
                cs = l.i[f::x_cs], rs = l.i[f::x_rs], count = blocks(l);
  const int64_t end = task_begin(l.i[f::N] * count * h, task + 1, tasks);
  for (int64_t unit = task_begin(l.i[f::N] * count * h, task, tasks); unit < end;) {
    const int64_t row = unit % h, block = unit / h % count, image = unit / h / count;
    int64_t together = 1;
    if (rs == w * cs) together = h - row < end - unit ? h - row : end - unit;
    const int64_t first = block * kChannels,
                  n = channels - first < kChannels ? channels - first : kChannels,
                  pixels = together * w;
    const float* from = (const float*)l.buf[f::x] + image * l.i[f::x_ns] + row * rs + first;
    float* to = (float*)l.buf[f::y] + (image * channels + first) * plane + row * w;
    const int64_t step = n <= 4 ? pixels : kPixels;
    for (int64_t p = 0; p < pixels; p += step)
      transpose_block(from + p * cs, cs, to + p, plane, pixels - p < step ? pixels - p : step, n);
    unit += together;
  }
}

}  // namespace nhwc_to_nchw

namespace zero_border {

namespace f = fam::zero_border;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * (l.i[f::H] + l.i[f::PT] + l.i[f::PB]);
  return rows && l.i[f::y_cs] ? even_tasks(rows, rows * 20, threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t h = l.i[f::H], w = l.i[f::W], cs = l.i[f::y_cs], left = l.i[f::PL],
                right = l.i[f::PR], per_image = h + l.i[f::PT] + l.i[f::PB];
  for (int64_t r = task_begin(l.i[f::N] * per_image, task, tasks);
       r < task_begin(l.i[f::N] * per_image, task + 1, tasks); r++) {
    const int64_t row = r % per_image - l.i[f::PT];
    float* const first = (float*)l.buf[f::y] + r / per_image * l.i[f::y_ns] + row * l.i[f::y_rs];
    if (row < 0 || row >= h) {
      memset(first - left * cs, 0, size_t((left + w + right) * cs) * 4);
    } else {
      memset(first - left * cs, 0, size_t(left * cs) * 4);
      memset(first + w * cs, 0, size_t(right * cs) * 4);
    }
  }
}

}  // namespace zero_border

namespace copy_nhwc {

namespace f = fam::copy_nhwc;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::H], count = rows * l.i[f::W] * l.i[f::C];
  return count ? even_tasks(rows, count / 2, threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t h = l.i[f::H], w = l.i[f::W], c = l.i[f::C], rows = l.i[f::N] * h,
                xs = l.i[f::x_cs], ys = l.i[f::y_cs];
  const bool dense = xs == c && ys == c;
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const float* from = (const float*)l.buf[f::x] + r / h * l.i[f::x_ns] + r % h * l.i[f::x_rs];
    float* to = (float*)l.buf[f::y] + r / h * l.i[f::y_ns] + r % h * l.i[f::y_rs];
    if (dense) {
      memcpy(to, from, size_t(w * c) * 4);
      continue;
    }
    for (int64_t p = 0; p < w; p++, from += xs, to += ys) {
      int64_t k = 0;
      for (; k + TRACEA_W <= c; k += TRACEA_W) store(to + k, load(from + k));
      for (; k < c; k++) to[k] = from[k];
    }
  }
}

}  // namespace copy_nhwc

static const Kernel kernel_nchw_to_nhwc = {"nchw_to_nhwc", nchw_to_nhwc::tasks, nullptr,
                                           nchw_to_nhwc::run};
static const Kernel kernel_nhwc_to_nchw = {"nhwc_to_nchw", nhwc_to_nchw::tasks, nullptr,
                                           nhwc_to_nchw::run};
static const Kernel kernel_zero_border = {"zero_border", zero_border::tasks, nullptr,
                                          zero_border::run};
static const Kernel kernel_copy_nhwc = {"copy_nhwc", copy_nhwc::tasks, nullptr, copy_nhwc::run};
static const Kernel* const table_layout[] = {&kernel_nchw_to_nhwc, &kernel_nhwc_to_nchw,
                                             &kernel_zero_border, &kernel_copy_nhwc, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
