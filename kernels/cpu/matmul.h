// y = epilogue(alpha * op(a) op(b) + bias) for a batch of run-time operands with arbitrary strides:
// b (and a where its rows are not contiguous) is packed block by block into scratch, then the tiles
// of the gemm unit do the work (build `--only gemm,matmul`).
#pragma once
#include "common/tasks.h"
#include "common/tile.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kMatmulDepth = 384, kMatmulColumns = 6 * kPanel, kMatmulRows = 18 * kTileRows;
constexpr int64_t kTinyMatmul = 256;  // multiply-adds up to which packing costs more than it saves
constexpr int64_t kDirectRows = 2;    // rows up to which b is used as it lies

// A task is a range of whole GEMMs, or, when there are fewer GEMMs than tasks, one GEMM's
// (row part, panel part).
struct MatmulGrid {
  int64_t batch, rows, panels;
};

static inline MatmulGrid matmul_grid(const Launch& l, int64_t tasks) {
  using namespace fam::matmul;
  const int64_t batch = l.i[B0] * l.i[B1], panels = div_up(l.i[N], kPanel),
                tiles = div_up(l.i[M], kTileRows);
  const int64_t each = std::max<int64_t>(1, batch ? tasks / batch : 1),
                across = std::min(each, panels);
  return {batch, std::min(std::max<int64_t>(1, each / std::max<int64_t>(across, 1)), tiles),
          across};
}

static int64_t matmul_tasks(const Launch& l, int threads) {
  using namespace fam::matmul;
  const int64_t batch = l.i[B0] * l.i[B1], product = l.i[M] * l.i[N];
  if (batch <= 0 || l.i[M] <= 0 || l.i[N] <= 0) return 0;
  if (threads <= 1) return 1;
  const int64_t wanted = std::max<int64_t>(
      1,
      std::min(variant(l.i).split * threads, batch * product * std::max<int64_t>(l.i[K], 1) >> 16));
  if (batch >= wanted) return wanted;
  const MatmulGrid g = matmul_grid(l, wanted / batch * batch);
  return batch * g.rows * g.panels;
}

struct MatmulScratch {
  size_t tail, columns, rows;
};  // floats

static inline MatmulScratch matmul_layout(const Launch& l) {
  using namespace fam::matmul;
  const int64_t columns = scaled(kMatmulColumns, variant(l.i).block);
  const int64_t depth = std::min(l.i[K], kMatmulDepth), rows = std::min(l.i[M], kMatmulRows);
  const int64_t kept =
      l.i[K] > kMatmulDepth ? l.i[M] : rows;  // sums over several blocks of terms: those of all
                                              // rows wait in the tail meanwhile
  return {size_t(kept * kPanel),
          size_t(round_up(depth * std::min(round_up(l.i[N], kPanel), columns), 16)),
          size_t(rows * (spread_pitch(depth) + 16))};
}

static size_t matmul_scratch(const Launch& l, int) {
  const MatmulScratch s = matmul_layout(l);
  // 8 rows of slack behind the packed columns: the tiles fetch that far ahead.
  return (s.tail + s.columns + 8 * kPanel + s.rows) * 4;
}

// One row of a (step a_k) times b[k][n] with contiguous n, for many columns: eight rows of b stream
// by at once, sums stay in y (L1).
static inline void row_times_long_rows(const float* a, int64_t a_k, const float* b, int64_t b_k,
                                       int64_t K, int64_t N, float* y, float alpha) {
  constexpr int depth = 8;
  for (int64_t n = 0; n < N; n++) y[n] = 0.f;
  for (int64_t k = 0; k < K; k += depth) {
    if (k + depth > K) {
      for (int64_t i = k; i < K; i++)
        for (int64_t n = 0; n < N; n++) y[n] += a[i * a_k] * alpha * b[i * b_k + n];
      break;
    }
    vf s[depth];
    for (int i = 0; i < depth; i++) s[i] = splat(a[(k + i) * a_k] * alpha);
    const float* const p = b + k * b_k;
    int64_t n = 0;
    for (; n + W <= N; n += W) {
      vf c = s[0] * load(p + n), d = s[1] * load(p + b_k + n);
#pragma GCC unroll 8
      for (int i = 2; i < depth; i += 2)
        c = fma(s[i], load(p + i * b_k + n), c), d = fma(s[i + 1], load(p + (i + 1) * b_k + n), d);
      store(y + n, load(y + n) + (c + d));
    }
    for (; n < N; n++)
      for (int i = 0; i < depth; i++) y[n] += s[i][0] * p[i * b_k + n];
  }
}

// The same for fewer columns: four vectors of them at a time, sums in registers.
static inline void row_times_rows(const float* a, int64_t a_k, const float* b, int64_t b_k,
                                  int64_t K, int64_t N, float* y, float alpha) {
  if (N >= 32 * W) return row_times_long_rows(a, a_k, b, b_k, K, N, y, alpha);
  int64_t n = 0;
  for (; n + 4 * W <= N; n += 4 * W) {
    vf c0{}, c1{}, c2{}, c3{};
    const float* p = b + n;
    for (int64_t k = 0; k < K; k++, p += b_k) {
      const vf s = splat(a[k * a_k]);
      c0 = fma(s, load(p), c0), c1 = fma(s, load(p + W), c1), c2 = fma(s, load(p + 2 * W), c2),
      c3 = fma(s, load(p + 3 * W), c3);
    }
    store(y + n, c0 * alpha), store(y + n + W, c1 * alpha), store(y + n + 2 * W, c2 * alpha),
        store(y + n + 3 * W, c3 * alpha);
  }
  for (; n + W <= N; n += W) {
    vf c{};
    for (int64_t k = 0; k < K; k++) c = fma(splat(a[k * a_k]), load(b + k * b_k + n), c);
    store(y + n, c * alpha);
  }
  for (; n < N; n++) {
    float c = 0;
    for (int64_t k = 0; k < K; k++) c += a[k * a_k] * b[k * b_k + n];
    y[n] = c * alpha;
  }
}

// One contiguous row of a times b[n][k] with contiguous k.
static inline void row_times_columns(const float* a, const float* b, int64_t b_n, int64_t K,
                                     int64_t N, float* y, float alpha) {
  for (int64_t n = 0; n < N; n++) {
    const float* p = b + n * b_n;
    vf c0{}, c1{}, c2{}, c3{};
    int64_t k = 0;
    for (; k + 4 * W <= K; k += 4 * W) {
      c0 = fma(load(a + k), load(p + k), c0), c1 = fma(load(a + k + W), load(p + k + W), c1);
      c2 = fma(load(a + k + 2 * W), load(p + k + 2 * W), c2),
      c3 = fma(load(a + k + 3 * W), load(p + k + 3 * W), c3);
    }
    for (; k + W <= K; k += W) c0 = fma(load(a + k), load(p + k), c0);
    float s = sum_lanes((c0 + c1) + (c2 + c3));
    for (; k < K; k++) s += a[k] * p[k];
    y[n] = s * alpha;
  }
}

struct Matmul {
  int64_t K, a_m, a_k, b_k, b_n;
  float alpha;
  float *tail, *columns, *rows;
  int64_t most;  // columns that are packed at a time
};

// No packing: very small GEMMs, and few rows of a.
static bool run_direct(const Matmul& g, const Block& t, const float* b) {
  const bool tiny = t.rows * t.cols * g.K <= kTinyMatmul;
  const bool few = t.rows <= kDirectRows && (g.b_n == 1 || (g.b_k == 1 && g.a_k == 1));
  if (!tiny && !few) return false;
  for (int64_t m = 0; m < t.rows; m++) {
    const float* a = t.a + m * g.a_m;
    float* y = t.y + m * t.ldy;
    if (g.b_n == 1)
      row_times_rows(a, g.a_k, b, g.b_k, g.K, t.cols, y, g.alpha);
    else if (few)
      row_times_columns(a, b, g.b_n, g.K, t.cols, y, g.alpha);
    else
      for (int64_t n = 0; n < t.cols; n++) {
        float c = 0;
        for (int64_t k = 0; k < g.K; k++) c += a[k * g.a_k] * b[k * g.b_k + n * g.b_n];
        y[n] = c * g.alpha;
      }
    if (t.bias)
      for (int64_t n = 0; n < t.cols; n++) y[n] += t.bias[n];
  }
  finish_block(t, 0, t.rows, 0, t.cols);
  return true;
}

// `t` is one GEMM, or a part of its rows and columns, with t.a and `b` unpacked; fills in the
// blocks.
static void run_matmul(const Matmul& g, const Block& whole, const float* b) {
  if (run_direct(g, whole, b)) return;
  const int64_t nq = std::max<int64_t>(1, div_up(g.K, kMatmulDepth)),
                nc = div_up(whole.cols, g.most), nr = div_up(whole.rows, kMatmulRows);
  const bool copy = g.a_k != 1 || pitch_conflicts(g.a_m);
  for (int64_t c = 0; c < nc; c++)
    for (int64_t q = 0; q < nq; q++) {
      const int64_t k0 = part(g.K, nq, q), n0 = c * g.most;
      Block t = whole;
      t.k = part(g.K, nq, q + 1) - k0, t.first = q == 0, t.last = q == nq - 1;
      t.cols = std::min(whole.cols - n0, g.most), t.col = whole.col + n0;
      t.b = g.columns, t.b_pitch = t.k * kPanel;
      t.bias = whole.bias ? whole.bias + n0 : nullptr;
      pack_panels(b + k0 * g.b_k + n0 * g.b_n, g.b_k, g.b_n, t.k, t.cols, g.columns, g.alpha);
      for (int64_t r = 0; r < nr; r++) {
        const int64_t m0 = part(whole.rows, nr, r);
        t.rows = part(whole.rows, nr, r + 1) - m0, t.row = whole.row + m0;
        t.y = whole.y + m0 * t.ldy + n0;
        t.res = whole.res ? whole.res + m0 * t.ldr + n0 : nullptr;
        t.a = whole.a + m0 * g.a_m + k0 * g.a_k, t.lda = g.a_m;
        t.tail = whole.tail + (nq > 1 ? m0 * kPanel : 0);
        if (copy) {
          const int64_t pitch = spread_pitch(t.k);
          pack_rows(t.a, g.a_m, g.a_k, t.rows, t.k, g.rows, pitch);
          t.a = g.rows, t.lda = pitch;
        }
        run_block(t);
      }
    }
}

static void matmul_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  using namespace fam::matmul;
  const MatmulScratch sizes = matmul_layout(l);
  float* const tail = (float*)scratch;
  const Matmul g{l.i[K],
                 l.i[a_m],
                 l.i[a_k],
                 l.i[b_k],
                 l.i[b_n],
                 l.f[alpha],
                 tail,
                 tail + sizes.tail,
                 tail + sizes.tail + sizes.columns + 8 * kPanel,
                 scaled(kMatmulColumns, variant(l.i).block)};
  const Epilogue epilogue = make_epilogue(l, act, -1, p0);
  const bool own = l.i[r_0] || l.i[r_1] || l.i[ldr];  // else the residual has y's strides
  const MatmulGrid grid = matmul_grid(l, tasks);
  const bool split = tasks > grid.batch;
  const int64_t parts = split ? grid.rows * grid.panels : 1, panels = div_up(l.i[N], kPanel);
  const int64_t first = split ? task / parts : part(grid.batch, tasks, task),
                last = split ? first + 1 : part(grid.batch, tasks, task + 1);
  const int64_t r = split ? task % parts / grid.panels : 0,
                c = split ? task % parts % grid.panels : 0;
  const int64_t m0 = split ? part(l.i[M], grid.rows, r) : 0,
                m1 = split ? part(l.i[M], grid.rows, r + 1) : l.i[M];
  const int64_t n0 = split ? part(panels, grid.panels, c) * kPanel : 0,
                n1 = split ? std::min(part(panels, grid.panels, c + 1) * kPanel, l.i[N]) : l.i[N];
  for (int64_t i = first; i < last; i++) {
    const int64_t i0 = i / l.i[B1], i1 = i % l.i[B1];
    const float* pb = (const float*)l.buf[b] + i0 * l.i[b_0] + i1 * l.i[b_1] + n0 * g.b_n;
    const float* pr = (const float*)l.buf[res];
    Block t{};
    t.a = (const float*)l.buf[a] + i0 * l.i[a_0] + i1 * l.i[a_1] + m0 * g.a_m;
    t.y = (float*)l.buf[y] + i0 * l.i[y_0] + i1 * l.i[y_1] + m0 * l.i[ldy] + n0, t.ldy = l.i[ldy];
    t.bias = l.buf[bias] ? (const float*)l.buf[bias] + n0 : nullptr;
    t.ldr = own ? l.i[ldr] : t.ldy;
    if (pr && epilogue.res_mode != kNoResidual)
      t.res = pr + i0 * l.i[own ? r_0 : y_0] + i1 * l.i[own ? r_1 : y_1] + m0 * t.ldr + n0;
    t.rows = m1 - m0, t.cols = n1 - n0, t.row = m0, t.col = n0;
    t.tail = g.tail, t.epilogue = &epilogue;
    run_matmul(g, t, pb);
  }
}

static const Kernel matmul_kernel = {"matmul", matmul_tasks, matmul_scratch, matmul_run};
static const Kernel* const table_matmul[] = {&matmul_kernel, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
