// Matrix products and convolutions of 8-bit integers. Both are one walk: rows (pixels) of x are
// gathered in blocks that stay in L2, as the tiles read them, and each block meets panel after
// panel of weights. Where x can be read as it lies it is not copied.
#pragma once
#include "common/conv_launch.h"
#include "int8/amx.h"
#include "int8/depthwise.h"
#include "int8/dynamic.h"
#include "int8/int8_pack.h"
#include "int8/requantise.h"

namespace tracea {
namespace TRACEA_NS {

// Bytes and rows of a block. A machine with AMX has 2 MiB of L2.
constexpr int64_t kInt8Block = (kStripRows > kInt8Rows ? 512 : 128) << 10, kInt8BlockRows = 512;

struct Int8Product : ConvSizes {
  const uint8_t* x;
  const int8_t* w;
  bool is_signed;
  Finish finish;  // what it says is in buffers, which are there when the kernel runs

  int64_t rows() const { return N * OH * OW; }
  int64_t terms() const { return IC / G; }
  int64_t columns() const { return OC / G; }
  int64_t depth() const { return terms() * KH * KW; }
  int64_t panels() const { return G * int8_panels(columns()); }
  // Bytes of a gathered row.
  int64_t pitch() const {
    const int64_t bytes = packed_depth(depth()) * int64_t(sizeof(Stored));
    return bytes % 1024 == 0 ? bytes + 64
                             : bytes;  // rows in the same sets of L1 push each other out
  }
  int64_t block_rows() const {
    const int64_t fit = kInt8Block / std::max<int64_t>(1, pitch()) / kInt8Rows * kInt8Rows;
    return std::max<int64_t>(2 * kInt8Rows, std::min(fit, kInt8BlockRows / kInt8Rows * kInt8Rows));
  }
  // Windows are single taps, all of the image.
  bool points() const {
    return KH * KW == 1 && PT == 0 && PL == 0 && (OH - 1) * SH < IH && (OW - 1) * SW < IW;
  }
  // Rows lie equally spaced, as the tiles read them.
  bool in_place() const {
    return sizeof(Stored) == 1 && !is_signed && KH * KW * SH * SW == 1 && PT == 0 && PL == 0 &&
           OH == IH && OW == IW && terms() % 4 == 0 && (OH == 1 || x_rs == OW * x_cs) &&
           (N == 1 || x_ns == OH * OW * x_cs);
  }
};

static inline Int8Product read_gemm_int8(const Launch& l) {
  using namespace fam::gemm_int8;
  Int8Product p{};
  p.N = p.IH = p.OH = p.KH = p.KW = p.SH = p.SW = p.DH = p.DW = p.G = 1;
  p.IW = p.OW = l.i[M], p.OC = l.i[N], p.IC = l.i[K];
  p.x_cs = l.i[ldx], p.y_cs = l.i[ldy], p.r_cs = l.i[ldr];
  p.x = (const uint8_t*)l.buf[x], p.w = (const int8_t*)l.buf[w];
  p.is_signed = l.i[x_dtype] == kI8;
  return p;
}

static inline Int8Product read_conv_int8(const Launch& l) {
  using namespace fam::conv2d_int8;
  Int8Product p{};
  static_cast<ConvSizes&>(p) = read_conv_sizes(l);
  p.x = (const uint8_t*)l.buf[x], p.w = (const int8_t*)l.buf[w];
  p.is_signed = l.i[x_dtype] == kI8;
  return p;
}

// The taps k0..k1 of k, `dilation` apart from `at` on, that lie within an image of `size`.
struct Inside {
  int64_t k0, k1;
  Inside(int64_t at, int64_t dilation, int64_t k, int64_t size) {
    k0 = at < 0 ? std::min(k, conv_div_up(-at, dilation)) : 0;
    k1 = at + (k - 1) * dilation < size
             ? k
             : std::max(k0, at < size ? conv_div_up(size - at, dilation) : 0);
  }
};

// The values under one window, [KH][KW][terms].
static inline void gather_window(const Int8Product& p, int64_t group, int64_t n, int64_t oh,
                                 int64_t ow, Stored* to) {
  const int64_t terms = p.terms(), left = ow * p.SW - p.PL, top = oh * p.SH - p.PT,
                row = p.KW * terms, step = p.DH * p.x_rs;
  const Values v = p.finish.x;
  const Inside h(top, p.DH, p.KH, p.IH), w(left, p.DW, p.KW, p.IW);
  if (h.k0 == h.k1 || w.k0 == w.k1) return fill_values(to, p.KH * row, v);
  const bool together = p.DW == 1 && p.x_cs == terms;
  const uint8_t* x = p.x + n * p.x_ns + top * p.x_rs + left * p.x_cs + group * terms;
  fill_values(to, h.k0 * row, v);
  to += h.k0 * row, x += h.k0 * step;
  if (together && w.k0 == 0 && w.k1 == p.KW) {
    store_values(to, x, row, h.k1 - h.k0, step, v);
    to += (h.k1 - h.k0) * row;
  } else {
    for (int64_t kh = h.k0; kh < h.k1; kh++, to += row, x += step) {
      fill_values(to, w.k0 * terms, v);
      if (together)
        store_values(to + w.k0 * terms, x + w.k0 * terms, (w.k1 - w.k0) * terms, 1, 0, v);
      else
        store_values(to + w.k0 * terms, x + w.k0 * p.DW * p.x_cs, terms, w.k1 - w.k0, p.DW * p.x_cs,
                     v);
      fill_values(to + w.k1 * terms, (p.KW - w.k1) * terms, v);
    }
  }
  fill_values(to, (p.KH - h.k1) * row, v);
}

// Rows to..to + count, `pitch` bytes apart: a window of one tap each, ow and those behind it.
static inline void gather_points(const Int8Product& p, int64_t group, int64_t n, int64_t oh,
                                 int64_t ow, int64_t count, uint8_t* to, int64_t pitch) {
  const int64_t terms = p.terms(), step = p.SW * p.x_cs;
  const uint8_t* x = p.x + n * p.x_ns + oh * p.SH * p.x_rs + ow * step + group * terms;
  const bool dense = pitch == terms * int64_t(sizeof(Stored));
  if (dense && step == terms) return store_values((Stored*)to, x, terms * count, 1, 0, p.finish.x);
  if (dense) return store_values((Stored*)to, x, terms, count, step, p.finish.x);
  for (; count > 0; count--, to += pitch, x += step)
    store_values((Stored*)to, x, terms, 1, 0, p.finish.x);
}

struct Int8Scratch {
  int64_t *y_at, *r_at;
  int32_t* x_sums;
  uint8_t* rows;
};

static inline size_t int8_scratch_bytes(const Int8Product& p) {
  const size_t rows = size_t(std::min(p.rows(), p.block_rows()));
  return rows * (2 * 8 + 4 + size_t(p.pitch())) + kVectorBytes + 64;  // whole vectors, a line
}

// Offsets of rows b0..b1, their values where they are copied, and their sums where they are needed;
// returns the first and sets the bytes between them.
static inline const uint8_t* gather_rows(const Int8Product& p, int64_t group, int64_t b0,
                                         int64_t b1, const Int8Scratch& s, int64_t* pitch) {
  const bool in_place = p.in_place(), points = !in_place && p.points();
  const uint8_t* rows = in_place ? p.x + b0 * p.x_cs + group * p.terms() : s.rows;
  *pitch = in_place ? p.x_cs : p.pitch();
  const bool r_too = p.finish.res || p.finish.epilogue.prog;
  int64_t ow = b0 % p.OW, oh = b0 / p.OW % p.OH, n = b0 / p.OW / p.OH;
  for (int64_t i = 0; i < b1 - b0;) {  // row by row of the image
    const int64_t end = std::min(b1 - b0, i + p.OW - ow);
    int64_t y_at = p.y_at(n, oh, ow), r_at = p.r_at(n, oh, ow);
    for (int64_t k = i; k < end; k++, y_at += p.y_cs) s.y_at[k] = y_at;
    for (int64_t k = i; r_too && k < end; k++, r_at += p.r_cs) s.r_at[k] = r_at;
    if (points) gather_points(p, group, n, oh, ow, end - i, s.rows + i * *pitch, *pitch);
    for (; i < end; i++, ow++) {
      if (!in_place && !points) gather_window(p, group, n, oh, ow, (Stored*)(s.rows + i * *pitch));
      if (p.finish.w_zeros)
        s.x_sums[i] = int32_t(uint32_t(sum_values((const Stored*)(rows + i * *pitch), p.depth())) -
                              uint32_t(p.depth()) * uint32_t(p.finish.x.offset()));
    }
    ow = 0;
    if (++oh == p.OH) oh = 0, n++;
  }
  return rows;
}

// The sums of a strip of rows with a panel of weights, and what becomes of them. row: its first
// one; `at` are the offsets of that one and those behind it, col is the panel's first column.
static inline void int8_strip(const Int8Product& p, const uint8_t* x, int64_t pitch, int64_t rows,
                              const int8_t* w, const Columns& columns, int64_t count, int64_t row,
                              int64_t col, const Int8Scratch& at) {
  alignas(64) int32_t sums[kStripRows * kInt8Panel];
  const int64_t groups = packed_depth(p.depth()) / kGroup, tiles = conv_div_up(rows, kInt8Rows);
  const int32_t* start = columns.start;
  int64_t start_step = 0, done = 0;  // groups
#ifdef TRACEA_AMX_INT8
  if (const int64_t pieces = packed_depth(p.depth()) / kAmxTerms; pieces && rows >= kAmxRows) {
    amx_sums(x, pitch, w, pieces, rows, start, sums);
    start = sums, start_step = kInt8Panel, done = pieces * kAmxTerms / kGroup;
  }
#endif
  x += done * 4, w += done * kInt8Panel * kGroup;
  const Quick quick = p.finish.quick(columns, col);
  const bool at_once = p.finish.at_once(columns) && count % W == 0;
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t r = conv_part(rows, tiles, t), height = conv_part(rows, tiles, t + 1) - r;
    uint32_t left =
        int8_sums(x + r * pitch, pitch, w, groups - done, height, count, start + r * start_step,
                  start_step, sums + r * kInt8Panel, at_once ? &quick : nullptr, at.y_at + r);
    const int64_t each = left == ~0u ? height : 1;
    for (int64_t k = r; left && k < r + height; k += each, left >>= 1)
      if (left & 1)
        p.finish.finish(columns,
                        {sums + k * kInt8Panel, at.y_at + k, at.r_at + k,
                         p.finish.w_zeros ? at.x_sums + k : nullptr, each, count, row + k, col});
  }
}

// Rows m0..m1 with panels q0..q1 of all groups'.
static inline void int8_share(const Int8Product& p, int64_t m0, int64_t m1, int64_t q0, int64_t q1,
                              const Int8Scratch& s) {
  const int64_t per_group = int8_panels(p.columns()), depth = packed_depth(p.depth()),
                blocks = conv_div_up(m1 - m0, p.block_rows());
  const int32_t* sums = (const int32_t*)(p.w + p.panels() * kInt8Panel * depth);
  Columns columns;
#ifdef TRACEA_AMX_INT8
  const AmxTiles configured;
#endif
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t b0 = m0 + conv_part(m1 - m0, blocks, b),
                  b1 = m0 + conv_part(m1 - m0, blocks, b + 1);
    const int64_t strips = conv_div_up(b1 - b0, kStripRows);
    const uint8_t* rows = nullptr;
    int64_t pitch = 0;
    for (int64_t q = q0; q < q1; q++) {
      const int64_t group = q / per_group, j = q % per_group * kInt8Panel,
                    count = std::min(kInt8Panel, p.columns() - j), col = group * p.columns() + j;
      if (!rows || j == 0) rows = gather_rows(p, group, b0, b1, s, &pitch);
      p.finish.prepare(columns, col, count, sums + q * kInt8Panel);
      for (int64_t i = 0; i < strips; i++) {
        const int64_t r = conv_part(b1 - b0, strips, i),
                      height = conv_part(b1 - b0, strips, i + 1) - r;
        int8_strip(p, rows + r * pitch, pitch, height, p.w + q * kInt8Panel * depth, columns, count,
                   b0 + r, col, {s.y_at + r, s.r_at + r, s.x_sums + r, nullptr});
      }
    }
  }
}

// Weights that outweigh x are cut among tasks first: each is then read by one task.
static inline bool int8_panels_first(const Int8Product& p) { return p.OC > p.rows(); }

static inline int64_t int8_tasks(const Int8Product& p, int threads) {
  if (p.rows() <= 0 || p.OC <= 0) return 0;
  if (threads <= 1) return 1;
  const int64_t units = conv_div_up(p.rows(), kInt8Rows), panels = p.panels();
  // A task should last a few microseconds: 2^20 multiply-adds, or 64 KiB of weights.
  const int64_t work = std::max(p.rows() * p.OC * p.depth() >> 20, p.OC * p.depth() >> 16);
  const int64_t want = std::max<int64_t>(1, std::min<int64_t>(4 * threads, work));
  const int64_t major = int8_panels_first(p) ? panels : units,
                minor = int8_panels_first(p) ? units : panels;
  return want <= major ? want : major * std::min(minor, conv_div_up(want, major));
}

static inline void int8_run(const Int8Product& p, int64_t task, int64_t tasks, void* scratch) {
  const int64_t units = conv_div_up(p.rows(), kInt8Rows), panels = p.panels();
  ConvShare s = int8_panels_first(p) ? conv_share(panels, units, task, tasks)
                                     : conv_share(units, panels, task, tasks);
  if (int8_panels_first(p)) std::swap(s.major0, s.minor0), std::swap(s.major1, s.minor1);
  const int64_t room = std::min(p.rows(), p.block_rows());
  Int8Scratch at;
  at.rows = (uint8_t*)scratch;
  at.y_at = (int64_t*)(at.rows + conv_round_up(room * p.pitch() + kVectorBytes, 64));
  at.r_at = at.y_at + room;
  at.x_sums = (int32_t*)(at.r_at + room);
  int8_share(p, conv_part(p.rows(), units, s.major0), conv_part(p.rows(), units, s.major1),
             s.minor0, s.minor1, at);
}

static int64_t gemm_int8_tasks(const Launch& l, int threads) {
  return int8_tasks(read_gemm_int8(l), threads);
}
static size_t gemm_int8_scratch(const Launch& l, int) {
  return int8_scratch_bytes(read_gemm_int8(l));
}
static void gemm_int8_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  Int8Product p = read_gemm_int8(l);
  p.finish = read_finish(l, fam::gemm_int8::act, p.OC, p.depth(), false);
  int8_run(p, task, tasks, scratch);
}
static int64_t conv2d_int8_tasks(const Launch& l, int threads) {
  return int8_tasks(read_conv_int8(l), threads);
}
static size_t conv2d_int8_scratch(const Launch& l, int) {
  return int8_scratch_bytes(read_conv_int8(l));
}
static void conv2d_int8_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  Int8Product p = read_conv_int8(l);
  p.finish = read_finish(l, fam::conv2d_int8::act, p.OC, p.depth(), true);
  int8_run(p, task, tasks, scratch);
}

static const Kernel kernel_gemm_int8 = {"gemm_int8", gemm_int8_tasks, gemm_int8_scratch,
                                        gemm_int8_run};
static const Kernel kernel_conv2d_int8 = {"conv2d_int8", conv2d_int8_tasks, conv2d_int8_scratch,
                                          conv2d_int8_run};

static const Kernel* const table_int8[] = {
    &kernel_gemm_int8,      &kernel_conv2d_int8,      &kernel_conv2d_int8_dw,
    &kernel_pack_gemm_int8, &kernel_pack_conv2d_int8, &kernel_pack_conv2d_int8_dw,
    &kernel_ends,           &kernel_quantise_dynamic, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
