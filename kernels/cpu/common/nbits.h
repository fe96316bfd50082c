// y = epilogue(x W + bias) with weights W = (q - zero) * scale of 2, 4 or 8 bits, where each block
// of terms of a column has a scale and a zero. They stay packed, in panels of 64 columns: of each
// block the scales, the zeros (where they differ), and words of neighbouring terms of one column,
// the first in the lowest bits: [N/64][K/block][scale 64, zero 64?, [block * bits / 32][64]].
//
// Few rows: a term becomes a float where it lies in its word, times a power of two that the row is
// divided by (both exact), and a block's sum is multiplied by the scale once. More rows: panels are
// dequantised, some terms at a time, for the tiles.
// Where a row holds an infinity, results are NaN.
#pragma once
#include "common/convert.h"
#include "common/tasks.h"
#include "common/tile.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kNbitsPanel = 64, kNbitsRows = 18 * kTileRows, kNbitsColumns = 24;  // half panels
constexpr int64_t kNbitsFewRows = 16;           // are multiplied without a dequantised copy
constexpr int kNbitsTile = 4, kMostTerms = 16;  // rows at a time, terms of a word
constexpr int64_t kNbitsAhead = 1024;           // words fetched ahead of use
typedef uint32_t vu __attribute__((vector_size(4 * TRACEA_W), aligned(4), may_alias));

struct NbitsLayout {
  int64_t N, K, bits, block;
  bool zeros;

  int64_t per_word() const { return 32 / bits; }
  int64_t blocks() const { return div_up(K, block); }
  int64_t words() const { return block * bits / 32; }
  int64_t chunk() const { return (1 + zeros + words()) * kNbitsPanel; }
  int64_t panels() const { return div_up(N, kNbitsPanel); }
};

// A block of whole words for any number of bits.
static inline int64_t whole_block(int64_t block) { return block / 16 * 16; }

struct Nbits : NbitsLayout {
  int64_t M, ldx, ldr, ldy;
  const float *x, *w, *bias, *res;
  float* y;
  float zero;  // of all blocks where zeros differ in none
  Epilogue epilogue;
};

// Which bits of a word are term i, for a whole vector.
template <int BITS>
struct TermMasks {
  alignas(64) int32_t of[32 / BITS][W];

  TermMasks() {
    for (int i = 0; i < 32 / BITS; i++)
      for (int j = 0; j < W; j++) of[i][j] = int32_t(((1u << BITS) - 1) << (BITS * i));
  }
};

// Term i of each word, times 2^(BITS * i) but for the last one.
template <int BITS>
TRACEA_INLINE vf term(vi words, const int32_t (*masks)[W], int i) {
  return to_float(i == 32 / BITS - 1 ? (vi)((vu)words >> (32 - BITS))
                                     : words & *(const vi*)masks[i]);
}
static inline float term_share(int64_t bits, int64_t i) {
  return i == 32 / bits - 1 ? 1.f : 1.f / float(1u << (bits * i));
}

// sum[m][v] += x[m][k] * term k of columns v * W.. over so many words.
template <int BITS, int M, int V>
TRACEA_INLINE void add_terms(const int32_t (*masks)[W], const float* words, int64_t count,
                             const float* x, int64_t ldx, vf (&sum)[M][V]) {
  constexpr int terms = 32 / BITS;
  for (; count > 0; count--, words += kNbitsPanel, x += terms) {
    asm("" : "+r"(masks));  // read where they are used: kept in registers, they push sums out
    vi raw[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      raw[v] = bits_i(load(words + v * W));
      __builtin_prefetch(words + kNbitsAhead + v * W);
    }
#pragma GCC unroll 16
    for (int i = 0; i < terms; i++) {
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        const vf q = term<BITS>(raw[v], masks, i);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) sum[m][v] = fma(splat(x[m * ldx + i]), q, sum[m][v]);
      }
    }
  }
}

// Columns of panel p of M rows, the first number `row`. `x`: the rows, each with its terms divided
// as `term` wants and then minus the sum of each block, `ldx` apart.
template <int BITS, int M>
static void nbits_rows(const Nbits& g, const float* x, int64_t ldx, int64_t row, int64_t p) {
  constexpr int V = W == 16 || M <= 2 ? 4 : 2;
  const int64_t blocks = g.blocks(), words = g.words();
  const float *at = g.w + p * blocks * g.chunk(), *sums = x + blocks * g.block;
  const TermMasks<BITS> masks;
  alignas(64) float acc[M][kNbitsPanel];
  const int64_t n0 = p * kNbitsPanel, cols = std::min(kNbitsPanel, g.N - n0);
  for (int m = 0; m < M; m++)
    for (int64_t j = 0; j < kNbitsPanel; j++) acc[m][j] = g.bias && j < cols ? g.bias[n0 + j] : 0.f;
  for (int64_t b = 0; b < blocks; b++, at += g.chunk()) {
    const float *zero = at + kNbitsPanel, *first = at + (1 + g.zeros) * kNbitsPanel;
    for (int64_t j = 0; j < kNbitsPanel; j += V * W) {
      vf sum[M][V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        const vf z = g.zeros ? load(zero + j + v * W) : splat(g.zero);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) sum[m][v] = z * sums[m * ldx + b];
      }
      add_terms<BITS, M, V>(masks.of, first + j, words, x + b * g.block, ldx, sum);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++)
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          float* const c = acc[m] + j + v * W;
          store(c, fma(sum[m][v], load(at + j + v * W), load(c)));
        }
    }
  }
  Block t{};
  t.y = g.y + row * g.ldy + n0, t.ldy = g.ldy;
  t.res = g.res ? g.res + row * g.ldr + n0 : nullptr, t.ldr = g.ldr;
  t.row = row, t.col = n0, t.epilogue = &g.epilogue;
  for (int m = 0; m < M; m++) memcpy(t.y + m * g.ldy, acc[m], size_t(cols) * 4);
  finish_block(t, 0, M, 0, cols);
}

// dst[k - k0][32] = weights of half a panel, number h, whose terms k0..k1 begin with a word's
// first.
template <int BITS>
static void dequantise(const Nbits& g, int64_t h, int64_t k0, int64_t k1, float* dst) {
  constexpr int terms = 32 / BITS;
  const TermMasks<BITS> masks;
  const float* const panel = g.w + h / 2 * g.blocks() * g.chunk() + h % 2 * kPanel;
  for (int64_t k = k0; k < k1;) {
    const int64_t b = k / g.block, end = std::min(k1, (b + 1) * g.block);
    const float* const at = panel + b * g.chunk();
    const float* words = at + (1 + g.zeros + (k - b * g.block) / terms) * kNbitsPanel;
    for (; k < end; k += terms, words += kNbitsPanel)
      for (int v = 0; v < kPanel; v += W) {
        const vf scale = load(at + v), zero = g.zeros ? load(at + kNbitsPanel + v) : splat(g.zero);
        const vi raw = bits_i(load(words + v));
#pragma GCC unroll 16
        for (int i = 0; i < terms; i++)
          store(dst + (k - k0 + i) * kPanel + v,
                fma(term<BITS>(raw, masks.of, i), splat(term_share(BITS, i)), -zero) * scale);
      }
  }
}

// The incomplete panel's columns, dequantised terms of a panel (the tiles fetch 8 further), and
// rows of x when their pitch conflicts.
struct NbitsScratch {
  int64_t rows, tail, panel, copy;
};
static inline NbitsScratch nbits_layout(const Nbits& g) {
  const int64_t depth = std::min(g.K, kDepth), rows = std::min(g.M, kNbitsRows);
  return {rows, rows * kPanel, (depth + kMostTerms) * kPanel,
          pitch_conflicts(g.ldx) ? rows * spread_pitch(depth) : 0};
}

// Rows m0..m1 of half panels h0..h1.
template <int BITS>
static void nbits_tiles(const Nbits& g, int64_t m0, int64_t m1, int64_t h0, int64_t h1,
                        float* scratch) {
  const NbitsScratch s = nbits_layout(g);
  float *tail = scratch, *panel = tail + s.tail, *rows = panel + s.panel;
  for (int64_t first = h0; first < h1; first += kNbitsColumns)
    for (int64_t k0 = 0; k0 == 0 || k0 < g.K; k0 += kDepth) {
      const int64_t k1 = std::min(g.K, k0 + kDepth), lda = s.copy ? spread_pitch(k1 - k0) : g.ldx;
      const float* a = g.x + m0 * g.ldx + k0;
      if (s.copy) pack_rows(a, g.ldx, 1, m1 - m0, k1 - k0, rows, lda), a = rows;
      for (int64_t h = first; h < std::min(first + kNbitsColumns, h1); h++) {
        const int64_t n0 = h * kPanel;
        dequantise<BITS>(g, h, k0, k1, panel);
        Block t{};
        t.a = a, t.lda = lda, t.b = panel;
        t.y = g.y + m0 * g.ldy + n0, t.ldy = g.ldy;
        t.bias = g.bias ? g.bias + n0 : nullptr;
        t.res = g.res ? g.res + m0 * g.ldr + n0 : nullptr, t.ldr = g.ldr;
        t.rows = m1 - m0, t.cols = std::min<int64_t>(kPanel, g.N - n0), t.k = k1 - k0;
        t.first = k0 == 0, t.last = k1 == g.K;
        t.row = m0, t.col = n0, t.tail = tail, t.epilogue = &g.epilogue;
        run_block(t);
      }
    }
}

static inline Nbits nbits_of(const Launch& l) {
  using namespace fam::gemm_nbits;
  Nbits g{};
  g.M = l.i[M], g.N = l.i[N], g.K = l.i[K], g.ldx = l.i[ldx], g.ldr = l.i[ldr], g.ldy = l.i[ldy];
  g.bits = l.i[bits], g.block = whole_block(l.i[block]), g.zeros = l.i[zeros] != 0;
  g.x = (const float*)l.buf[x], g.w = (const float*)l.buf[w], g.bias = (const float*)l.buf[bias],
  g.res = (const float*)l.buf[res], g.y = (float*)l.buf[y];
  g.zero = l.f[zero];
  g.epilogue = make_epilogue(l, act, o0, p0);
  if (g.epilogue.prog || g.epilogue.res_mode == kNoResidual) g.res = nullptr;
  return g;
}

static int64_t gemm_nbits_tasks(const Launch& l, int threads) {
  const Nbits g = nbits_of(l);
  if (g.M <= 0 || g.N <= 0) return 0;
  if (g.M <= kNbitsFewRows)
    return even_tasks(g.panels(), div_up(g.M, kNbitsTile) * g.N * g.K / 32, threads);
  const int64_t units = div_up(g.M, kNbitsRows) * div_up(g.N, kPanel);
  if (threads <= 1) return 1;
  return std::max<int64_t>(1, std::min({4 * int64_t(threads), g.M * g.N * g.K >> 18, units}));
}

// Floats of a row of x as `nbits_rows` reads it.
static inline int64_t nbits_row(const Nbits& g) { return g.blocks() * (g.block + 1); }

static size_t gemm_nbits_scratch(const Launch& l, int) {
  const Nbits g = nbits_of(l);
  const NbitsScratch s = nbits_layout(g);
  const int64_t few = g.M * nbits_row(g);
  return size_t(g.M <= kNbitsFewRows ? few : s.tail + s.panel + s.copy) * 4 + 64;
}

template <int BITS>
static void nbits_few(const Nbits& g, int64_t p0, int64_t p1, float* rows) {
  const int64_t ld = nbits_row(g), blocks = g.blocks();
  float share[32 / BITS];
  for (int i = 0; i < 32 / BITS; i++) share[i] = term_share(BITS, i);
  for (int64_t m = 0; m < g.M; m++) {
    const float* const x = g.x + m * g.ldx;
    float *const to = rows + m * ld, *const sums = to + blocks * g.block;
    for (int64_t b = 0; b < blocks; b++) {
      float sum = 0.f;
      for (int64_t k = b * g.block; k < (b + 1) * g.block; k++) {
        const float v = k < g.K ? x[k] : 0.f;
        to[k] = v * share[k % (32 / BITS)], sum -= v;
      }
      sums[b] = sum;
    }
  }
  for (int64_t p = p0; p < p1; p++)
    for (int64_t m = 0; m < g.M; m += kNbitsTile) {
      const float* const x = rows + m * ld;
      switch (g.M - m) {
        case 1: nbits_rows<BITS, 1>(g, x, ld, m, p); break;
        case 2: nbits_rows<BITS, 2>(g, x, ld, m, p); break;
        case 3: nbits_rows<BITS, 3>(g, x, ld, m, p); break;
        default: nbits_rows<BITS, 4>(g, x, ld, m, p);
      }
    }
}

template <int BITS>
static void nbits_task(const Nbits& g, int64_t task, int64_t tasks, float* scratch) {
  if (g.M <= kNbitsFewRows) {
    const int64_t panels = g.panels();
    return nbits_few<BITS>(g, part(panels, tasks, task), part(panels, tasks, task + 1), scratch);
  }
  const int64_t halves = div_up(g.N, kPanel), blocks = div_up(g.M, kNbitsRows);
  const int64_t units = halves * blocks, last = part(units, tasks, task + 1);
  for (int64_t u = part(units, tasks, task); u < last;) {
    const int64_t r = u / halves, h0 = u % halves, h1 = std::min(halves, h0 + last - u);
    u += h1 - h0;
    nbits_tiles<BITS>(g, part(g.M, blocks, r), part(g.M, blocks, r + 1), h0, h1, scratch);
  }
}

static void gemm_nbits_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  const Nbits g = nbits_of(l);
  switch (g.bits) {
    case 2: return nbits_task<2>(g, task, tasks, (float*)scratch);
    case 4: return nbits_task<4>(g, task, tasks, (float*)scratch);
    default: return nbits_task<8>(g, task, tasks, (float*)scratch);
  }
}

static int64_t pack_gemm_nbits_tasks(const Launch& l, int) {
  using namespace fam::pack_gemm_nbits;
  return l.i[K] <= 0 ? 0 : div_up(l.i[N], kNbitsPanel);
}

static void pack_gemm_nbits_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_gemm_nbits;
  NbitsLayout g{};
  g.N = l.i[N], g.K = l.i[K], g.bits = l.i[bits], g.block = whole_block(l.i[block]);
  const void* const zeros = l.buf[zero];
  g.zeros = zeros != nullptr;
  const uint8_t* const src = (const uint8_t*)l.buf[w];
  const int64_t w_k = l.i[fam::pack_gemm_nbits::w_k], w_n = l.i[fam::pack_gemm_nbits::w_n];
  // signed values are stored as unsigned ones, whose zero is that much higher
  const uint32_t flip = l.i[is_signed] ? 1u << (g.bits - 1) : 0;
  const int64_t n0 = task * kNbitsPanel, cols = std::min(kNbitsPanel, g.N - n0);
  float* at = (float*)l.buf[packed] + task * g.blocks() * g.chunk();
  for (int64_t b = 0; b < g.blocks(); b++, at += g.chunk()) {
    uint32_t* const to = (uint32_t*)(at + (1 + g.zeros) * kNbitsPanel);
    for (int64_t j = 0; j < cols; j++) {
      const int64_t n = n0 + j;
      at[j] = ((const float*)l.buf[scale])[b * l.i[s_k] + n * l.i[s_n]];
      if (zeros) {
        const int64_t z = b * l.i[z_k] + n * l.i[z_n];
        at[kNbitsPanel + j] = l.i[zero_dtype] == kF32 ? ((const float*)zeros)[z]
                                                      : float(bits_at(zeros, z, g.bits) ^ flip);
      }
      for (int64_t i = 0; i < g.words(); i++) {
        const int64_t k = b * g.block + i * g.per_word(), first = k * w_k + n * w_n;
        uint32_t word = 0;
        if (w_k == 1 && first * g.bits % 8 == 0 && k + g.per_word() <= g.K) {
          memcpy(&word, src + first * g.bits / 8, 4);
          for (int64_t t = 0; t < g.per_word(); t++) word ^= flip << (t * g.bits);
        } else {
          for (int64_t t = 0; t < g.per_word() && k + t < g.K; t++)
            word |= (bits_at(src, first + t * w_k, g.bits) ^ flip) << (t * g.bits);
        }
        to[i * kNbitsPanel + j] = word;
      }
    }
  }
}

static const Kernel gemm_nbits_kernel = {"gemm_nbits", gemm_nbits_tasks, gemm_nbits_scratch,
                                         gemm_nbits_run};
static const Kernel pack_gemm_nbits_kernel = {"pack_gemm_nbits", pack_gemm_nbits_tasks, nullptr,
                                              pack_gemm_nbits_run};

}  // namespace TRACEA_NS
}  // namespace tracea
