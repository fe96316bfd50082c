// Depthwise convolutions of 8-bit integers. For each row of results and 32 channels the rows of x
// under the windows are interleaved once, kGroup of them in each lane of a column, so that a column
// of taps is one multiply-add of W channels.
//
// Packed weights: [channels / W][row groups][KW][W][kGroup], and the sums of the channels.
#pragma once
#include "common/conv_launch.h"
#include "int8/requantise.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int kDwPixels = 7;                      // of a tile
constexpr int64_t kColumnBytes = 4 * kInt8Panel;  // of one group of rows, interleaved

struct Int8Depthwise : ConvSizes {  // as many filters as channels: OC
  const uint8_t* x;
  const int8_t* w;
  Finish finish;  // read when the kernel runs

  int64_t groups() const { return conv_div_up(KH, kGroup); }
  // Columns that the windows of a row see; tiles read on as if all were whole.
  int64_t width() const { return (conv_round_up(OW, kDwPixels) - 1) * SW + (KW - 1) * DW + 1; }
  int64_t blocks() const { return conv_div_up(OC, kInt8Panel); }
  const int32_t* sums() const {
    return (const int32_t*)(w + conv_round_up(OC, 16) * groups() * kGroup * KW);
  }
};

static inline Int8Depthwise read_depthwise_int8(const Launch& l) {
  using namespace fam::conv2d_int8_dw;
  Int8Depthwise p{};
  static_cast<ConvSizes&>(p) = read_conv_sizes(l);
  p.x = (const uint8_t*)l.buf[x], p.w = (const int8_t*)l.buf[w];
  return p;
}

// n channels of kGroup rows to out[32][kGroup].
TRACEA_INLINE void interleave(const uint8_t* const* rows, int64_t n, Values v, Stored* out) {
#ifdef TRACEA_VNNI
#if TRACEA_W == 16
  const auto some = [n](const uint8_t* p) {
    return _mm256_maskz_loadu_epi8(n >= 32 ? ~0u : (1u << n) - 1, p);
  };
#else
  const auto some = [n](const uint8_t* p) { return (__m256i)load_some(p, n); };
#endif
  const __m256i flip = _mm256_set1_epi8(char(v.flip));
  __m256i r[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) r[k] = _mm256_xor_si256(some(rows[k]), flip);
  const __m256i a = _mm256_unpacklo_epi8(r[0], r[1]), b = _mm256_unpackhi_epi8(r[0], r[1]),
                c = _mm256_unpacklo_epi8(r[2], r[3]), d = _mm256_unpackhi_epi8(r[2], r[3]);
  const __m256i q[] = {_mm256_unpacklo_epi16(a, c), _mm256_unpackhi_epi16(a, c),
                       _mm256_unpacklo_epi16(b, d), _mm256_unpackhi_epi16(b, d)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    _mm_storeu_si128((__m128i*)(out + 16 * k), _mm256_castsi256_si128(q[k]));
    _mm_storeu_si128((__m128i*)(out + 64 + 16 * k), _mm256_extracti128_si256(q[k], 1));
  }
#elif TRACEA_W == 8
  for (int64_t j = 0; j < n; j += 2 * W) {
    __m256i r[2];
    for (int k = 0; k < 2; k++) {
      vhalf_u8 b{};
      if (n - j >= 2 * W)
        b = *(const vhalf_u8*)(rows[k] + j);
      else
        memcpy(&b, rows[k] + j, size_t(n - j));
      r[k] = (__m256i)(widen(b ^ v.flip) - int16_t(v.zero));
    }
    const __m256i low = _mm256_unpacklo_epi16(r[0], r[1]), high = _mm256_unpackhi_epi16(r[0], r[1]);
    store_i(out + 2 * j, (vi)_mm256_permute2x128_si256(low, high, 0x20));
    store_i(out + 2 * j + 2 * W, (vi)_mm256_permute2x128_si256(low, high, 0x31));
  }
#else
  for (int64_t j = 0; j < n; j += W) {
    vi r[2];
    for (int k = 0; k < 2; k++) {
      vlanes_u8 b{};
      if (n - j >= W)
        b = *(const vlanes_u8*)(rows[k] + j);
      else
        memcpy(&b, rows[k] + j, size_t(n - j));
      r[k] = lanes(b ^ v.flip) - int32_t(v.zero);
    }
    store_i(out + 2 * j, (r[0] & 0xffff) | vi(vu(r[1]) << 16));
  }
#endif
}

// The sums of kDwPixels windows of W channels; w_step: bytes from a tap to the next, w_group from a
// group of rows to the next.
static inline void depthwise_tile(const Int8Depthwise& p, const uint8_t* columns, const int8_t* w,
                                  int64_t w_step, int64_t w_group, const int32_t* start,
                                  int32_t* sums) {
  const int64_t pixel = p.SW * kColumnBytes, tap = p.DW * kColumnBytes,
                group = p.width() * kColumnBytes;
  vi c[kDwPixels];
#pragma GCC unroll 8
  for (int t = 0; t < kDwPixels; t++) c[t] = load_i(start);
  for (int64_t g = 0; g < p.groups(); g++, columns += group, w += w_group)
    for (int64_t k = 0; k < p.KW; k++) {
      const vi b = load_weights(w + k * w_step);
      const uint8_t* x = columns + k * tap;
#pragma GCC unroll 8
      for (int t = 0; t < kDwPixels; t++) c[t] = dot(c[t], load_i(x + t * pixel), b);
    }
#pragma GCC unroll 8
  for (int t = 0; t < kDwPixels; t++) store_i(sums + t * kInt8Panel, c[t]);
}

// Columns of n channels from c0 on that the windows of row oh see.
static inline void interleave_rows(const Int8Depthwise& p, int64_t image, int64_t oh, int64_t c0,
                                   int64_t n, uint8_t* scratch) {
  const Values v = p.finish.x;
  alignas(64) uint8_t outside[kInt8Panel];
  memset(outside, v.zero ^ v.flip, sizeof outside);
  const int64_t seen = (p.OW - 1) * p.SW + (p.KW - 1) * p.DW + 1;
  const int64_t first = std::min(p.PL, seen),
                end = std::max(first, std::min(seen, p.PL + p.IW));  // columns of the image
  for (int64_t g = 0; g < p.groups(); g++) {
    const uint8_t *rows[kGroup], *nowhere[kGroup];
    int64_t step[kGroup];
    for (int64_t k = 0; k < kGroup; k++) {
      const int64_t kh = g * kGroup + k, ih = oh * p.SH - p.PT + kh * p.DH;
      const bool real = kh < p.KH && ih >= 0 && ih < p.IH;
      nowhere[k] = outside;
      rows[k] = real ? p.x + image * p.x_ns + ih * p.x_rs + c0 : outside;
      step[k] = real ? p.x_cs : 0;
    }
    Stored* out = (Stored*)(scratch + g * p.width() * kColumnBytes);
    constexpr int64_t kColumn = kInt8Panel * kGroup;
    int64_t j = 0;
    for (; j < first; j++, out += kColumn) interleave(nowhere, n, v, out);
    for (; j < end; j++, out += kColumn) {
      interleave(rows, n, v, out);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kGroup; k++) rows[k] += step[k];
    }
    for (; j < seen; j++, out += kColumn) interleave(nowhere, n, v, out);
  }
}

// One row of results, channels c0..c0+n. ones: weights that sum what the windows see.
static inline void depthwise_row(const Int8Depthwise& p, int64_t image, int64_t oh, int64_t c0,
                                 int64_t n, const Columns& columns, uint8_t* scratch,
                                 const int8_t* ones) {
  interleave_rows(p, image, oh, c0, n, scratch);
  alignas(64) int32_t sums[kDwPixels * kInt8Panel], x_sums[kDwPixels * kInt8Panel];
  const int64_t per_vector = p.groups() * p.KW * kWeights;
  const vi nothing = splat_i(int32_t(-p.finish.depth * p.finish.x.offset()));
  for (int64_t ow = 0; ow < p.OW; ow += kDwPixels) {
    const uint8_t* first = scratch + ow * p.SW * kColumnBytes;
    for (int64_t j = 0; j < n; j += W) {
      depthwise_tile(p, first + 4 * j, p.w + (c0 + j) / W * per_vector, kWeights, p.KW * kWeights,
                     columns.start + j, sums + j);
      if (!p.finish.w_zeros) continue;
      depthwise_tile(p, first + 4 * j, ones, 0, kWeights, (const int32_t*)&nothing, x_sums + j);
      for (int64_t at = j; at < kDwPixels * kInt8Panel; at += kInt8Panel)
        store_i(sums + at,
                minus(load_i(sums + at), times(load_i(columns.zero + j), load_i(x_sums + at))));
    }
    const int64_t here = std::min<int64_t>(kDwPixels, p.OW - ow);
    int64_t y_at[kDwPixels], r_at[kDwPixels];
    for (int64_t t = 0; t < here; t++) {
      y_at[t] = p.y_at(image, oh, ow + t);
      r_at[t] = p.r_at(image, oh, ow + t);
    }
    p.finish.finish(columns,
                    {sums, y_at, r_at, nullptr, here, n, (image * p.OH + oh) * p.OW + ow, c0});
  }
}

// --- the kernel: rows of results x blocks of channels, blocks outermost so that what they need is
// prepared once

static int64_t conv2d_int8_dw_tasks(const Launch& l, int threads) {
  const Int8Depthwise p = read_depthwise_int8(l);
  const int64_t units = p.N * p.OH * p.blocks(), work = units * p.OW * p.KH * p.KW >> 11;
  if (units <= 0 || p.OW <= 0) return 0;
  return threads <= 1 ? 1 : std::max<int64_t>(1, std::min({4 * int64_t(threads), work, units}));
}
static size_t conv2d_int8_dw_scratch(const Launch& l, int) {
  const Int8Depthwise p = read_depthwise_int8(l);
  return size_t(p.groups() * (p.width() * kColumnBytes + kWeights));
}
static void conv2d_int8_dw_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  Int8Depthwise p = read_depthwise_int8(l);
  p.finish = read_finish(l, fam::conv2d_int8_dw::act, p.OC, p.KH * p.KW, true);
  const int64_t rows = p.N * p.OH, units = rows * p.blocks();
  Columns columns;
  int64_t prepared = -1;
  int8_t* const ones = (int8_t*)scratch + p.groups() * p.width() * kColumnBytes;
  for (int64_t k = 0; k < p.groups() * kWeights; k++)
    ones[k] = k / kWeights * kGroup + k % kGroup < p.KH;
  for (int64_t u = conv_part(units, tasks, task); u < conv_part(units, tasks, task + 1); u++) {
    const int64_t c0 = u / rows * kInt8Panel, row = u % rows, n = std::min(kInt8Panel, p.OC - c0);
    if (prepared != c0) p.finish.prepare(columns, c0, n, p.sums() + c0), prepared = c0;
    depthwise_row(p, row / p.OH, row % p.OH, c0, n, columns, (uint8_t*)scratch, ones);
  }
}

static int64_t pack_conv2d_int8_dw_tasks(const Launch& l, int) {
  return l.i[fam::pack_conv2d_int8_dw::OC] > 0;
}
static void pack_conv2d_int8_dw_run(const Launch& l, int64_t, int64_t, void*) {
  using namespace fam::pack_conv2d_int8_dw;
  const int64_t channels = l.i[OC], high = l.i[KH], wide = l.i[KW],
                groups = conv_div_up(high, kGroup);
  const int8_t* from = (const int8_t*)l.buf[w];
  const uint8_t flip = l.i[w_dtype] == kU8 ? 0x80 : 0;
  int8_t* out = (int8_t*)l.buf[packed];
  int32_t* sums = (int32_t*)(out + conv_round_up(channels, 16) * groups * kGroup * wide);
  for (int64_t c = 0; c < channels; c++) {
    sums[c] = 0;
    for (int64_t h = 0; h < high; h++)
      for (int64_t k = 0; k < wide; k++, from++) {
        const int64_t tap = (c / W * groups + h / kGroup) * wide + k;
        const int8_t v = int8_t(*from ^ flip);
        out[(tap * W + c % W) * kGroup + h % kGroup] = v;
        sums[c] += v;
      }
  }
}

static const Kernel kernel_conv2d_int8_dw = {"conv2d_int8_dw", conv2d_int8_dw_tasks,
                                             conv2d_int8_dw_scratch, conv2d_int8_dw_run};
static const Kernel kernel_pack_conv2d_int8_dw = {"pack_conv2d_int8_dw", pack_conv2d_int8_dw_tasks,
                                                  nullptr, pack_conv2d_int8_dw_run};

}  // namespace TRACEA_NS
}  // namespace tracea
