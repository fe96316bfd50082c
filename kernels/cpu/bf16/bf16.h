// Matrix products and convolutions of bfloat16 (bits in 16-bit integers), or of floats that are
// rounded to it; sums, and what is made of them until it is stored, are floats. Both are one walk:
// rows (pixels) of x are gathered in blocks that stay in L2, strip after strip as the tiles read
// them, and each block meets panel after panel of weights.
#pragma once
#include "bf16/bf16_pack.h"
#include "common/conv_launch.h"

namespace tracea {
namespace TRACEA_NS {

// Bytes and rows of a block. A machine with AMX has 2 MiB of L2.
constexpr int64_t kBf16Block = (kBf16Strip > kBf16Rows ? 512 : 256) << 10, kBf16BlockRows = 512;

struct Bf16Product : Conv {
  const uint16_t* packed;
  bool x_halfs, y_halfs, r_halfs;  // which of x, y and the residual are bfloat16

  int64_t rows() const { return N * OH * OW; }
  int64_t terms() const { return bf16_depth(depth); }
#ifdef TRACEA_AMX_BF16
  int64_t row_pitch() const { return kBf16Terms; }
  int64_t piece_pitch() const { return kBf16Piece; }
  int64_t strip_pitch() const { return kBf16Strip * terms(); }
#else
  // Rows in the same sets of L1 push each other out.
  int64_t row_pitch() const { return terms() % 512 == 0 ? terms() + 32 : terms(); }
  int64_t piece_pitch() const { return kBf16Terms; }
  int64_t strip_pitch() const { return kBf16Strip * row_pitch(); }
#endif
  int64_t block_strips() const {
    const int64_t fit = kBf16Block / (2 * std::max<int64_t>(1, strip_pitch()));
    return std::max<int64_t>(2, std::min(fit, kBf16BlockRows / kBf16Strip));
  }
  int64_t strips() const { return conv_div_up(rows(), kBf16Strip); }
  // Strips that lie gathered at a time.
  int64_t room() const { return std::min(strips(), block_strips()); }
};

static inline Bf16Product read_gemm_bf16(const Launch& l) {
  using namespace fam::gemm_bf16;
  Bf16Product p{};
  p.N = p.IH = p.OH = p.KH = p.KW = p.SH = p.SW = p.DH = p.DW = p.G = 1;
  p.IW = p.OW = l.i[M], p.OC = p.ocg = l.i[N], p.IC = p.icg = p.depth = l.i[K];
  p.x_cs = l.i[ldx], p.y_cs = l.i[ldy], p.r_cs = l.i[ldr];
  p.group_panels = p.panels = bf16_panels(p.OC);
  p.x = (const float*)l.buf[x], p.packed = (const uint16_t*)l.buf[w];
  p.bias = (const float*)l.buf[bias], p.y = (float*)l.buf[y];
  p.epilogue = make_epilogue(l, act, o0, p0);
  p.res =
      p.epilogue.prog || p.epilogue.res_mode == kNoResidual ? nullptr : (const float*)l.buf[res];
  p.x_halfs = l.i[x_dtype] == kBF16, p.y_halfs = l.i[y_dtype] == kBF16;
  p.r_halfs = l.i[r_dtype] == kBF16;
  return p;
}

static inline Bf16Product read_conv_bf16(const Launch& l) {
  Bf16Product p{};
  static_cast<Conv&>(p) = read_conv(l, fam::conv2d_bf16::kInts);
  using namespace fam::conv2d_bf16;
  p.packed = (const uint16_t*)l.buf[w];
  p.x_halfs = l.i[x_dtype] == kBF16, p.y_halfs = l.i[y_dtype] == kBF16;
  p.r_halfs = l.i[r_dtype] == kBF16;
  return p;
}

// 32 values, and so many that whole vectors of them are read and written.
constexpr int64_t kBf16Vectors = 32 / (2 * W);
static inline void gather_piece(uint16_t* to, const float* x) {
#pragma GCC unroll 4
  for (int64_t k = 0; k < kBf16Vectors; k++, x += 2 * W)
    store_bf16(to + k * 2 * W, load(x), load(x + W));
}
static inline void gather_piece(uint16_t* to, const uint16_t* x) { memcpy(to, x, 64); }
template <class T>
static inline void gather_values(uint16_t* to, const T* x, int64_t n) {
  for (int64_t k = 0; k < n; k += 32) gather_piece(to + k, x + k);
}

// The values under one window, [KH][KW][channels], and zeros up to a multiple of 32 terms. The
// zeros around the image lie there. line: room for the terms. Where taps have whole pieces, or
// there is one row of them, each piece goes where it belongs; else the terms meet in a line before.
template <class T>
static inline void gather_window(const Bf16Product& p, const T* x, uint16_t* to, uint16_t* line) {
  const bool together = p.DW == 1 && p.x_cs == p.icg;
  const int64_t pieces = together ? 1 : p.KW, length = together ? p.KW * p.icg : p.icg,
                step = p.piece_pitch(), depth = p.depth;
  if (step == kBf16Terms || (length % kBf16Terms != 0 && p.KH * pieces > 1)) {
    uint16_t* const first = step == kBf16Terms ? to : line;
    uint16_t* at = first;
    for (int64_t kh = 0; kh < p.KH; kh++, x += p.DH * p.x_rs)
      for (int64_t kw = 0; kw < pieces; kw++, at += length)
        gather_values(at, x + kw * p.DW * p.x_cs, length);
    memset(at, 0, size_t(p.terms() - depth) * 2);
    for (int64_t k = 0; first == line && k < depth; k += kBf16Terms, to += step)
      gather_piece(to, line + k);
    return;
  }
  for (int64_t kh = 0; kh < p.KH; kh++, x += p.DH * p.x_rs)
    for (int64_t kw = 0; kw < pieces; kw++) {
      const T* from = x + kw * p.DW * p.x_cs;
      for (int64_t k = 0; k < length; k += kBf16Terms, to += step) gather_piece(to, from + k);
    }
  if (const int64_t rest = depth % kBf16Terms)
    memset(to - step + rest, 0, size_t(kBf16Terms - rest) * 2);
}

// The windows of `count` pixels of a row of the image from row i of the strips on.
template <class T>
static inline void gather_pixels(const Bf16Product& p, const T* x, int64_t i, int64_t count,
                                 uint16_t* rows, uint16_t* line) {
  const int64_t strip = p.strip_pitch(), row = p.row_pitch(), piece = p.piece_pitch(),
                depth = p.depth, next = p.SW * p.x_cs, rest = depth % kBf16Terms;
  const bool points = p.KH * p.KW == 1;
  for (const int64_t end = i + count; i < end; i++, x += next) {
    uint16_t* to = rows + i / kBf16Strip * strip + i % kBf16Strip * row;
    if (!points) {
      gather_window(p, x, to, line);
      continue;
    }
    for (int64_t k = 0; k < depth; k += kBf16Terms, to += piece) gather_piece(to, x + k);
    if (rest) memset(to - piece + rest, 0, size_t(kBf16Terms - rest) * 2);
  }
}

struct Bf16Scratch {
  int64_t *y_at, *r_at;
  uint16_t *rows, *line;
};

// Elements of gathered rows, and of a line; whole pieces are written behind what is gathered.
static inline int64_t bf16_room(const Bf16Product& p) { return p.room() * p.strip_pitch() + 32; }
static inline int64_t bf16_line(const Bf16Product& p) { return p.terms() + 32; }
static inline size_t bf16_scratch_bytes(const Bf16Product& p) {
  const int64_t rows = p.room() * kBf16Strip;
  return size_t(2 * 8 * rows + 2 * (bf16_room(p) + bf16_line(p)) + 128);
}

// Offsets of rows b0..b1 in y and in residuals, and their values.
static inline void gather_bf16_rows(const Bf16Product& p, int64_t group, int64_t b0, int64_t b1,
                                    const Bf16Scratch& s) {
  int64_t ow = b0 % p.OW, oh = b0 / p.OW % p.OH, n = b0 / p.OW / p.OH;
  for (int64_t i = 0; i < b1 - b0; ow = 0) {  // row by row of the image
    const int64_t end = std::min(b1 - b0, i + p.OW - ow);
    const int64_t x_at =
        n * p.x_ns + (oh * p.SH - p.PT) * p.x_rs + (ow * p.SW - p.PL) * p.x_cs + group * p.icg;
    if (p.x_halfs)
      gather_pixels(p, (const uint16_t*)p.x + x_at, i, end - i, s.rows, s.line);
    else
      gather_pixels(p, p.x + x_at, i, end - i, s.rows, s.line);
    int64_t y_at = p.y_at(n, oh, ow), r_at = p.r_at(n, oh, ow);
    for (; i < end; i++, y_at += p.y_cs, r_at += p.r_cs) s.y_at[i] = y_at, s.r_at[i] = r_at;
    if (++oh == p.OH) oh = 0, n++;
  }
}

// W bfloat16 as floats; the first n of two vectors as bfloat16.
TRACEA_INLINE vf load_halfs(const uint16_t* x) {
  return bits_f(vi(__builtin_convertvector(*(const vhalfs*)x, vwords) << 16));
}
TRACEA_INLINE void store_halfs(uint16_t* y, vf low, vf high, int64_t n) {
  if (n >= 2 * W) return store_bf16(y, low, high);
  uint16_t rounds[2 * W];
  store_bf16(rounds, low, high);
  memcpy(y, rounds, size_t(n) * 2);
}

// The residual of a row from column v on; its first n columns are there.
TRACEA_INLINE vf residual_of(const Bf16Product& p, int64_t at, int64_t n) {
  if (p.r_halfs) return load_halfs((const uint16_t*)p.res + at);
  return n >= W ? load(p.res + at) : n > 0 ? load_n(p.res + at, int(n)) : vf{};
}

// Residual and clamp of a row of sums, and its store; add: 0 nothing, 1 before the clamp, 2 behind.
template <int add>
TRACEA_INLINE void finish_row(const Bf16Product& p, const float* sums, int64_t y, int64_t r,
                              int64_t count) {
  const Epilogue& e = p.epilogue;
  for (int64_t v = 0; v < count; v += 2 * W) {
    vf both[2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      const int64_t at = v + k * W;
      vf sum = load(sums + at);
      if (add == 1) sum = sum + residual_of(p, r + at, count - at);
      sum = e.clamp(sum);
      if (add == 2) sum = sum + residual_of(p, r + at, count - at);
      both[k] = sum;
    }
    const int64_t n = count - v;
    if (p.y_halfs) {
      store_halfs((uint16_t*)p.y + y + v, both[0], both[1], n);
    } else if (n >= 2 * W) {
      store(p.y + y + v, both[0]), store(p.y + y + v + W, both[1]);
    } else {
      store_n(p.y + y + v, both[0], int(std::min<int64_t>(W, n)));
      if (n > W) store_n(p.y + y + v + W, both[1], int(n - W));
    }
  }
}

// Residual and activation, or the program, over the sums of a strip of rows, and their stores.
// row: the first one; col: the panel's first column.
static inline void finish_bf16(const Bf16Product& p, float* sums, int64_t rows, int64_t count,
                               int64_t row, int64_t col, const Bf16Scratch& at) {
  const Epilogue& e = p.epilogue;
  if (!e.in_registers) {
    alignas(64) float widened[kBf16Strip * kBf16Panel];
    const bool wide = p.res && p.r_halfs;
    for (int64_t i = 0; wide && i < rows; i++)
      for (int64_t v = 0; v < count; v += W)
        store(widened + i * kBf16Panel + v, residual_of(p, at.r_at[i] + col + v, count - v));
    for (int64_t i = 0, j; i < rows; i = j) {  // runs of equally spaced residuals
      const int64_t step = i + 1 < rows ? at.r_at[i + 1] - at.r_at[i] : 0;
      for (j = i + 1; j < rows && at.r_at[j] - at.r_at[j - 1] == step;) j++;
      const float* r = wide ? widened + i * kBf16Panel : p.res ? p.res + at.r_at[i] + col : nullptr;
      finish_tile(e, {sums + i * kBf16Panel, kBf16Panel, r, wide ? kBf16Panel : step, j - i, count,
                      row + i, col, at.r_at[i] + col});
    }
  }
  const int add = !e.in_registers || !p.res ? 0 : e.after_act ? 2 : 1;
  for (int64_t i = 0; i < rows; i++, sums += kBf16Panel) {
    const int64_t y = at.y_at[i] + col, r = at.r_at[i] + col;
    if (add == 0)
      finish_row<0>(p, sums, y, r, count);
    else if (add == 1)
      finish_row<1>(p, sums, y, r, count);
    else
      finish_row<2>(p, sums, y, r, count);
  }
}

// Brings what a strip will write, and its residuals, into L1: single lines of rows, which no
// hardware prefetcher sees coming.
static inline void fetch_results(const Bf16Product& p, int64_t rows, int64_t col,
                                 const Bf16Scratch& at) {
  const int64_t y_size = p.y_halfs ? 2 : 4, r_size = p.r_halfs ? 2 : 4;
  for (int64_t i = 0; i < rows; i++) {
    const char* const y = (const char*)p.y + (at.y_at[i] + col) * y_size;
    __builtin_prefetch(y, 1);
    if (!p.y_halfs) __builtin_prefetch(y + 64, 1);
    if (!p.res) continue;
    const char* const r = (const char*)p.res + (at.r_at[i] + col) * r_size;
    __builtin_prefetch(r);
    if (!p.r_halfs) __builtin_prefetch(r + 64);
  }
}

// Strips m0..m1 with panels q0..q1 of all groups'.
static inline void bf16_share(const Bf16Product& p, int64_t m0, int64_t m1, int64_t q0, int64_t q1,
                              const Bf16Scratch& s) {
  const int64_t blocks = conv_div_up(m1 - m0, p.block_strips()), panel = kBf16Panel * p.terms();
#ifdef TRACEA_AMX_BF16
  const AmxTiles configured;
#endif
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t s0 = m0 + conv_part(m1 - m0, blocks, b),
                  strips = m0 + conv_part(m1 - m0, blocks, b + 1) - s0, b0 = s0 * kBf16Strip,
                  rows = std::min(p.rows() - b0, strips * kBf16Strip);
    for (int64_t q = q0; q < q1; q++) {
      const int64_t group = q / p.group_panels, j = q % p.group_panels * kBf16Panel,
                    count = std::min(kBf16Panel, p.ocg - j), col = group * p.ocg + j;
      if (q == q0 || j == 0) gather_bf16_rows(p, group, b0, b0 + rows, s);
      const uint16_t* const w = p.packed + q * panel;
      const Bf16Ahead ahead = {w + panel, q + 1 < q1 ? conv_div_up(32, strips) : 0};
      alignas(64) float start[kBf16Panel] = {}, sums[kBf16Strip * kBf16Panel];
      if (p.bias) memcpy(start, p.bias + col, size_t(count) * 4);
      const auto part = [&](int64_t i) -> Bf16Scratch {
        return {s.y_at + i * kBf16Strip, s.r_at + i * kBf16Strip, nullptr, nullptr};
      };
      const auto height = [&](int64_t i) { return std::min(kBf16Strip, rows - i * kBf16Strip); };
      fetch_results(p, height(0), col, part(0));
      for (int64_t i = 0; i < strips; i++) {
        if (i + 1 < strips) fetch_results(p, height(i + 1), col, part(i + 1));
        bf16_sums(s.rows + i * p.strip_pitch(), p.row_pitch(), w, p.terms(), height(i), count,
                  start, sums, {ahead.weights + i * ahead.lines * p.terms(), ahead.lines});
        finish_bf16(p, sums, height(i), count, b0 + i * kBf16Strip, col, part(i));
      }
    }
  }
}

// Weights that outweigh x are cut among tasks first: each is then read by one task.
static inline bool bf16_panels_first(const Bf16Product& p) { return p.OC > p.rows(); }

static inline int64_t bf16_tasks(const Bf16Product& p, int threads) {
  if (p.rows() <= 0 || p.OC <= 0) return 0;
  if (threads <= 1) return 1;
  // A task should last a few microseconds: 2^20 multiply-adds, or 64 KiB of weights.
  const int64_t work = std::max(p.rows() * p.OC * p.depth >> 20, p.OC * p.depth >> 15);
  const int64_t want = std::max<int64_t>(1, std::min<int64_t>(4 * threads, work));
  const int64_t major = bf16_panels_first(p) ? p.panels : p.strips(),
                minor = bf16_panels_first(p) ? p.strips() : p.panels;
  return want <= major ? want : major * std::min(minor, conv_div_up(want, major));
}

static inline void bf16_run(const Bf16Product& p, int64_t task, int64_t tasks, void* scratch) {
  ConvShare s = bf16_panels_first(p) ? conv_share(p.panels, p.strips(), task, tasks)
                                     : conv_share(p.strips(), p.panels, task, tasks);
  if (bf16_panels_first(p)) std::swap(s.major0, s.minor0), std::swap(s.major1, s.minor1);
  Bf16Scratch at;
  at.rows = (uint16_t*)scratch, at.line = at.rows + bf16_room(p);
  at.y_at = (int64_t*)((uint8_t*)scratch + conv_round_up(2 * (bf16_room(p) + bf16_line(p)), 64));
  at.r_at = at.y_at + p.room() * kBf16Strip;
  bf16_share(p, s.major0, s.major1, s.minor0, s.minor1, at);
}

static int64_t gemm_bf16_tasks(const Launch& l, int threads) {
  return bf16_tasks(read_gemm_bf16(l), threads);
}
static size_t gemm_bf16_scratch(const Launch& l, int) {
  return bf16_scratch_bytes(read_gemm_bf16(l));
}
static void gemm_bf16_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  bf16_run(read_gemm_bf16(l), task, tasks, scratch);
}

static int64_t conv2d_bf16_tasks(const Launch& l, int threads) {
  return bf16_tasks(read_conv_bf16(l), threads);
}
static size_t conv2d_bf16_scratch(const Launch& l, int) {
  return bf16_scratch_bytes(read_conv_bf16(l));
}
static void conv2d_bf16_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  bf16_run(read_conv_bf16(l), task, tasks, scratch);
}

static const Kernel kernel_gemm_bf16 = {"gemm_bf16", gemm_bf16_tasks, gemm_bf16_scratch,
                                        gemm_bf16_run};
static const Kernel kernel_conv2d_bf16 = {"conv2d_bf16", conv2d_bf16_tasks, conv2d_bf16_scratch,
                                          conv2d_bf16_run};

static const Kernel* const table_bf16[] = {&kernel_gemm_bf16, &kernel_conv2d_bf16,
                                           &kernel_pack_gemm_bf16, &kernel_pack_conv2d_bf16,
                                           nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
