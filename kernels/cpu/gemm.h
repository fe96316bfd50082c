// y = epilogue(x W + bias) with weights packed once into panels of 32 columns, [N/32][K][32] and
// zeros past N. The rows of x of a block stay in L2 while the panels stream by: blocks of up to
// kStreamFloats elements of x through all of K where that leaves enough rows, else blocks of
// kRowBlock rows, kColumnBlock columns and kDepth terms.
#pragma once
#include "common/nbits.h"
#include "common/tasks.h"
#include "common/tile.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kRowBlock = 18 * kTileRows, kColumnBlock = 24 * kPanel;

constexpr int64_t kStreamFloats = 160 << 10, kFewestStreamRows = 7 * kTileRows;

// Rows of a block that stream whole panels, 0 when K is too long for that.
static inline int64_t stream_rows(int64_t K, const fam::gemm::Variant& how) {
  const int64_t rows =
      scaled(kStreamFloats, how.block) / std::max<int64_t>(K, 1) / kTileRows * kTileRows;
  return rows < kFewestStreamRows ? 0 : std::min(rows, scaled(2 * kRowBlock, how.block));
}
static inline int64_t row_block(int64_t K, const fam::gemm::Variant& how) {
  const int64_t rows = stream_rows(K, how);
  return rows ? rows : scaled(kRowBlock, how.block);
}

// Work is counted in (row block, panel) units, row blocks outermost; a task is a contiguous range
// of units.
struct GemmGrid {
  int64_t panels, row_blocks;
};

static inline GemmGrid gemm_grid(int64_t M, int64_t N, int64_t K, int64_t tasks,
                                 const fam::gemm::Variant& how) {
  const int64_t panels = div_up(N, kPanel);
  const int64_t wanted =
      std::max(div_up(M, row_block(K, how)), div_up(tasks, std::max<int64_t>(panels, 1)));
  return {panels, std::min(wanted, div_up(M, kTileRows))};
}

static int64_t gemm_tasks(const Launch& l, int threads) {
  using namespace fam::gemm;
  const int64_t M_ = l.i[M], N_ = l.i[N], K_ = l.i[K];
  if (M_ <= 0 || N_ <= 0) return 0;
  if (threads <= 1) return 1;
  // A task should last a few microseconds: 2^18 multiply-adds, or 64 KiB of weights when there are
  // few rows.
  const int64_t work = std::max(M_ * N_ * K_ >> 18, N_ * K_ >> 14);
  const int64_t units = div_up(N_, kPanel) * div_up(M_, kTileRows);
  return std::max<int64_t>(1, std::min({variant(l.i).split * threads, work, units}));
}

static size_t gemm_scratch(const Launch& l, int) {
  using namespace fam::gemm;
  const int64_t rows = std::min(l.i[M], row_block(l.i[K], variant(l.i))),
                depth = stream_rows(l.i[K], variant(l.i)) ? l.i[K] : std::min(l.i[K], kDepth);
  size_t floats = size_t(rows) * kPanel;
  if (pitch_conflicts(l.i[ldx])) floats += size_t(rows) * size_t(spread_pitch(depth));
  return floats * 4 + 64;
}

struct Gemm {
  int64_t M, N, K, ldx, ldr, ldy;
  const float *x, *w, *bias, *res;
  float* y;
  float *tail, *rows;  // scratch: the incomplete panel, and the copy of x's rows when its pitch
                       // conflicts (else null)
  Epilogue epilogue;
  fam::gemm::Variant how;

  int64_t depth_blocks() const { return std::max<int64_t>(1, div_up(K, kDepth)); }

  Block block(int64_t m0, int64_t m1, int64_t p0, int64_t p1, int64_t q) const {
    const int64_t nk = depth_blocks(), k0 = part(K, nk, q), n0 = p0 * kPanel;
    Block b{};
    b.a = x + m0 * ldx + k0, b.lda = ldx;
    b.b = w + (p0 * K + k0) * kPanel, b.b_pitch = K * kPanel;
    b.y = y + m0 * ldy + n0, b.ldy = ldy;
    b.bias = bias ? bias + n0 : nullptr;
    b.res = res ? res + m0 * ldr + n0 : nullptr, b.ldr = ldr;
    b.rows = m1 - m0, b.cols = std::min(p1 * kPanel, N) - n0, b.k = part(K, nk, q + 1) - k0;
    b.first = q == 0, b.last = q == nk - 1;
    b.row = m0, b.col = n0, b.tail = tail, b.epilogue = &epilogue;
    return b;
  }

  // Weights stream once, panel after panel, each through all of K: one tile holds all rows.
  void few_rows(int64_t p0, int64_t p1) const {
    const int64_t nk = depth_blocks(), group = M <= kWideRows ? kWidePanels[M] : 1;
    int64_t p = p0;
    float edge[kPanel * 4] = {};
    for (; group > 1 && p + group <= p1 && (p + group) * kPanel <= N; p += group) {
      for (int64_t q = 0; q < nk; q++) {
        const Block b = block(0, M, p, p + group, q);
        kWideTiles[M](b.a, b.lda, b.b, b.b_pitch, b.y, b.ldy,
                      !b.first ? nullptr
                      : b.bias ? b.bias
                               : edge,
                      b.k);
        if (b.last) finish_block(b, 0, M, 0, group * kPanel);
      }
    }
    if (p < p1 && (!rows || stream_rows(K, how)))
      stream(0, M, p, p1);
    else if (p < p1)
      blocks(0, M, p, p1);
  }

  // Panel after panel, each through all of K: sums over several blocks of terms stay in L1.
  void stream(int64_t m0, int64_t m1, int64_t p0, int64_t p1) const {
    const int64_t nk = depth_blocks(), pitch = spread_pitch(K);
    const bool copy = worth_copying(p0, p1);
    if (copy) pack_rows(x + m0 * ldx, ldx, 1, m1 - m0, K, rows, pitch);
    for (int64_t p = p0; p < p1; p++)
      for (int64_t q = 0; q < nk; q++) {
        Block b = block(m0, m1, p, p + 1, q);
        b.stream = true;
        if (copy) b.a = rows + part(K, nk, q), b.lda = pitch;
        run_block(b);
      }
  }

  // Blocks of terms outside: each takes its columns of x once.
  void blocks(int64_t m0, int64_t m1, int64_t p0, int64_t p1) const {
    const int64_t nk = depth_blocks(), groups = div_up(p1 - p0, kColumnBlock / kPanel);
    for (int64_t g = 0; g < groups; g++)
      for (int64_t q = 0; q < nk; q++) {
        Block b =
            block(m0, m1, p0 + part(p1 - p0, groups, g), p0 + part(p1 - p0, groups, g + 1), q);
        if (worth_copying(p0, p1)) {
          const int64_t pitch = spread_pitch(b.k);
          pack_rows(b.a, b.lda, 1, b.rows, b.k, rows, pitch);
          b.a = rows, b.lda = pitch;
        }
        run_block(b);
      }
  }

  bool worth_copying(int64_t p0, int64_t p1) const { return rows && p1 - p0 > 2; }
};

static void gemm_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  Gemm g{};
  {
    using namespace fam::gemm;
    g.M = l.i[M], g.N = l.i[N], g.K = l.i[K], g.ldx = l.i[ldx], g.ldr = l.i[ldr], g.ldy = l.i[ldy];
    g.x = (const float*)l.buf[x], g.w = (const float*)l.buf[w], g.bias = (const float*)l.buf[bias],
    g.res = (const float*)l.buf[res], g.y = (float*)l.buf[y];
    g.how = variant(l.i);
    g.epilogue = make_epilogue(l, act, o0, p0);
    if (g.epilogue.prog || g.epilogue.res_mode == kNoResidual) g.res = nullptr;
  }
  g.tail = (float*)scratch;
  g.rows =
      pitch_conflicts(g.ldx) ? g.tail + std::min(g.M, row_block(g.K, g.how)) * kPanel : nullptr;
  const GemmGrid grid = gemm_grid(g.M, g.N, g.K, tasks, g.how);
  const int64_t units = grid.panels * grid.row_blocks, last = part(units, tasks, task + 1);
  for (int64_t u = part(units, tasks, task); u < last;) {
    const int64_t r = u / grid.panels, p0 = u % grid.panels,
                  p1 = std::min(grid.panels, p0 + last - u);
    u += p1 - p0;
    const int64_t m0 = part(g.M, grid.row_blocks, r), m1 = part(g.M, grid.row_blocks, r + 1);
    if (g.M <= kTileRows)
      g.few_rows(p0, p1);
    else if (stream_rows(g.K, g.how))
      g.stream(m0, m1, p0, p1);
    else
      g.blocks(m0, m1, p0, p1);
  }
}

// One task per destination panel: columns of the source that fall into it.
static int64_t pack_gemm_tasks(const Launch& l, int) {
  using namespace fam::pack_gemm;
  if (l.i[N] <= 0 || l.i[K] <= 0) return 0;
  return (l.i[n0] + l.i[N] - 1) / kPanel - l.i[n0] / kPanel + 1;
}

static void pack_gemm_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_gemm;
  const int64_t K_ = l.i[K], ld = l.i[ldw], start = l.i[n0], panel = start / kPanel + task;
  const int64_t s_k = l.i[trans] ? 1 : ld, s_n = l.i[trans] ? ld : 1;
  const int64_t a = std::max(start, panel * kPanel),
                b = std::min(start + l.i[N], (panel + 1) * kPanel);
  const float* src = (const float*)l.buf[w] + (a - start) * s_n;
  float* dst = (float*)l.buf[packed] + panel * kPanel * K_ + (a - panel * kPanel);
  pack_columns(src, s_k, s_n, K_, b - a, dst, l.f[alpha]);
  if (const float* scales = (const float*)l.buf[scale])
    for (int64_t k = 0; k < K_; k++)
      for (int64_t n = a; n < b; n++) dst[k * kPanel + n - a] *= scales[n - start];
}

static const Kernel gemm_kernel = {"gemm", gemm_tasks, gemm_scratch, gemm_run};
static const Kernel pack_gemm_kernel = {"pack_gemm", pack_gemm_tasks, nullptr, pack_gemm_run};
static const Kernel* const table_gemm[] = {&gemm_kernel, &pack_gemm_kernel, &gemm_nbits_kernel,
                                           &pack_gemm_nbits_kernel, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
