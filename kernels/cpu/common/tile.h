// What the GEMM kernels share: the register tiles (defined once, in the gemm unit, from
// gen_gemm.py), packing into panels of 32 columns, and the loop over panels and row tiles of one
// block.
#pragma once
#include <algorithm>

#include "common/epilogue.h"
#include "common/lanes.h"
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int kPanel = 32;       // columns of a packed panel: [k][32]
constexpr int64_t kDepth = 768;  // terms of one sum: that bounds its rounding error
constexpr int kTileCols = 2 * W;
constexpr int kTileRows = W == 16 ? 14 : 6;
constexpr int kWideRows = W == 16 ? 4 : W == 8 ? 3 : 1;

// c[i, :2W] = init[:] + a[i, :k] b[:k, :2W], or c += a b when init is null. Meanwhile fetches
// `next` into L2, `step` elements per k.
typedef void (*Tile)(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                     const float* init, int64_t k, const float* next, int64_t step);
// The same over kWidePanels[rows] whole panels, `pitch` elements apart.
typedef void (*WideTile)(const float* a, int64_t lda, const float* b, int64_t pitch, float* c,
                         int64_t ldc, const float* init, int64_t k);
extern const Tile kTiles[kTileRows + 1],
    kNarrowTiles[kTileRows + 1];  // narrow: only the first W columns
extern const WideTile kWideTiles[kWideRows + 1], kSteadyTiles[kWideRows + 1],
    kBackTiles[kWideRows + 1];
extern const int kWidePanels[kWideRows + 1];
// c[i, :32] = init[i, :] + a[i, :k] b[:k, :32] of kPairRows rows.
struct Beside {
  const float* a;
  int64_t lda;
  const float* b;
  float* c;
  int64_t ldc;
  const float* init;
  int64_t ldi;
};
// One row over kWidePanels[1] whole panels, and as many terms of another GEMM. The terms of the
// row, from first to last or from last to first.
typedef void (*PairTile)(const float* a, const float* b, int64_t pitch, float* c, const float* init,
                         int64_t k, const Beside& beside);
constexpr int kPairRows = W == 16 ? 6 : 0;
extern const PairTile kPairTiles[2];

static inline Tile tile_for(int64_t rows, int64_t cols) {
  return (cols > W ? kTiles : kNarrowTiles)[rows];
}

static inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }
// First of the elements 0..n that part `i` of `parts` near-equal parts holds.
static inline int64_t part(int64_t n, int64_t parts, int64_t i) {
  return n / parts * i + std::min(i, n % parts);
}

// A row pitch of whole 4 KiB pages maps every row of a tile to the same L1 sets.
static inline bool pitch_conflicts(int64_t ld) { return ld * 4 % 4096 == 0 && ld != 0; }
static inline int64_t spread_pitch(int64_t n) { return n * 4 % 1024 == 0 ? n + 16 : n; }

// dst[k*32 + n] = src[k*s_k + n*s_n] * scale for n < cols <= 32; other columns are untouched.
static inline void pack_columns(const float* src, int64_t s_k, int64_t s_n, int64_t rows,
                                int64_t cols, float* dst, float scale) {
  if (s_n == 1 && cols == kPanel) {
    for (int64_t k = 0; k < rows; k++)
      for (int v = 0; v < kPanel; v += W)
        store(dst + k * kPanel + v, load(src + k * s_k + v) * scale);
    return;
  }
  if (s_n == 1) {
    for (int64_t k = 0; k < rows; k++, src += s_k, dst += kPanel) {
      int64_t v = 0;
      for (; v + W <= cols; v += W) store(dst + v, load(src + v) * scale);
      if (v < cols) store_n(dst + v, load_n(src + v, int(cols - v)) * scale, int(cols - v));
    }
    return;
  }
  int64_t n = 0;
  if (s_k == 1) {
    for (; n + W <= cols; n += W) {
      int64_t k = 0;
      for (; k + W <= rows; k += W)
        transpose_block(src + n * s_n + k, s_n, dst + k * kPanel + n, kPanel, scale);
      for (; k < rows; k++)
        for (int j = 0; j < W; j++) dst[k * kPanel + n + j] = src[(n + j) * s_n + k] * scale;
    }
  }
  for (int64_t k = 0; k < rows; k++)
    for (int64_t j = n; j < cols; j++) dst[k * kPanel + j] = src[k * s_k + j * s_n] * scale;
}

// The panels of a run-time operand, [panel][rows][32] with zeros past `cols`.
static inline void pack_panels(const float* src, int64_t s_k, int64_t s_n, int64_t rows,
                               int64_t cols, float* dst, float scale) {
  for (int64_t n = 0; n < cols; n += kPanel, dst += rows * kPanel) {
    const int64_t here = std::min<int64_t>(kPanel, cols - n);
    if (here < kPanel)
      for (int64_t k = 0; k < rows; k++)
        for (int v = 0; v < kPanel; v += W) store(dst + k * kPanel + v, vf{});
    pack_columns(src + n * s_n, s_k, s_n, rows, here, dst, scale);
  }
}

// dst[i*ldd + k] = src[i*s_m + k*s_k]: rows a tile can read.
static inline void pack_rows(const float* src, int64_t s_m, int64_t s_k, int64_t rows, int64_t k,
                             float* dst, int64_t ldd) {
  if (s_k == 1) {
    for (int64_t i = 0; i < rows; i++) memcpy(dst + i * ldd, src + i * s_m, size_t(k) * 4);
    return;
  }
  int64_t i = 0;
  if (s_m == 1)
    for (; i + W <= rows; i += W) {
      int64_t j = 0;
      for (; j + W <= k; j += W)
        transpose_block(src + i + j * s_k, s_k, dst + i * ldd + j, ldd, 1.f);
      for (; j < k; j++)
        for (int r = 0; r < W; r++) dst[(i + r) * ldd + j] = src[i + r + j * s_k];
    }
  for (; i < rows; i++)
    for (int64_t j = 0; j < k; j++) dst[i * ldd + j] = src[i * s_m + j * s_k];
}

// One block of a GEMM: `rows` x `cols` outputs over `k` terms of the sum. Several blocks in k
// follow one another: the first writes bias + its sums, the others add, the last finishes.
struct Block {
  const float* a;
  int64_t lda;
  const float* b;  // packed panels, `b_pitch` elements apart
  int64_t b_pitch;
  float* y;
  int64_t ldy;
  const float* bias;  // at the block's first column, or null
  const float* res;   // at the block's first element, or null
  int64_t ldr;
  int64_t rows, cols, k;
  bool first, last;
  bool stream;       // one panel whose following terms, or the next panel, lie right behind it
  int64_t row, col;  // of the block's first element, for the program's operands
  float* tail;       // [rows][32]: the last panel while it is incomplete
  const Epilogue* epilogue;
};

static inline bool needs_finish(const Epilogue& e, const float* res) {
  return e.prog || e.act != kNone || res;
}

static inline void finish_block(const Block& t, int64_t m, int64_t rows, int64_t n, int64_t cols) {
  if (!needs_finish(*t.epilogue, t.res)) return;
  EpilogueTile e{};
  e.y = t.y + m * t.ldy + n;
  e.ldy = t.ldy;
  e.res = t.res ? t.res + m * t.ldr + n : nullptr;
  e.ldr = t.ldr;
  e.m = rows;
  e.n = cols;
  e.row = t.row + m;
  e.col = t.col + n;
  finish_tile(*t.epilogue, e);
}

// The bias of one panel, zero past `cols` and without a bias; `edge` holds 32 floats.
static inline const float* panel_bias(const Block& t, int64_t n, int64_t cols, float* edge) {
  if (!t.first) return nullptr;
  if (t.bias && cols == kPanel) return t.bias + n;
  for (int64_t j = 0; j < kPanel; j++) edge[j] = t.bias && j < cols ? t.bias[n + j] : 0.f;
  return edge;
}

static inline void copy_tail(const Block& t, int64_t m, int64_t rows, int64_t n, int64_t cols) {
  for (int64_t i = m; i < m + rows; i++)
    memcpy(t.y + i * t.ldy + n, t.tail + i * kPanel, size_t(cols) * 4);
}

// Panels outside, row tiles inside: a panel's weights come from L2 once per tile, rows of `a` stay
// in L2. The tiles of a panel also fetch the next panel, evenly, because weights usually come from
// memory.
static inline void run_block(const Block& t) {
  float edge[kPanel];
  const int64_t tiles = div_up(t.rows, kTileRows);
  for (int64_t n = 0, p = 0; n < t.cols; n += kPanel, p++) {
    const int64_t cols = std::min<int64_t>(kPanel, t.cols - n);
    const float* init = panel_bias(t, n, cols, edge);
    float* c = cols == kPanel ? t.y + n : t.tail;
    const int64_t ldc = cols == kPanel ? t.ldy : kPanel;
    const float* b = t.b + p * t.b_pitch;
    const float* next = t.stream ? b + t.k * kPanel : n + kPanel < t.cols ? b + t.b_pitch : b;
    const int64_t calls = tiles * div_up(cols, kTileCols),
                  step = next == b ? 0 : div_up(kPanel, calls);
    int64_t call = 0;
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t m = part(t.rows, tiles, i), h = part(t.rows, tiles, i + 1) - m;
      for (int64_t j = 0; j < cols; j += kTileCols, call++) {
        const bool fetch = call * step < kPanel;
        tile_for(h, cols - j)(t.a + m * t.lda, t.lda, b + j, c + m * ldc + j, ldc,
                              init ? init + j : nullptr, t.k, fetch ? next + call * t.k * step : b,
                              fetch ? step : 0);
      }
      if (!t.last) continue;
      if (cols < kPanel) copy_tail(t, m, h, n, cols);
      finish_block(t, m, h, n, cols);
    }
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
