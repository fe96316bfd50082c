// y = softmax(capped(scale q k^T) + mask) v, one (batch, key/value head) and a range of its query
// rows per task. Keys are packed transposed and values in panels of 32 once per task (in
// super-blocks that fit L2); a tile of query rows then goes through blocks of keys whose scores
// stay in L1, with a running maximum and sum per row (online softmax). Uses the tiles of the gemm
// unit (build `--only gemm,attention`).
#pragma once
#include <limits>

#include "common/tile.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kKeyBlock = 256;  // keys whose scores a tile holds at once
constexpr int64_t kPackedFloats = 160
                                  << 10;  // packed keys and values of a super-block: 640 KiB of L2
constexpr int64_t kScorePitch = kKeyBlock + 16;
constexpr int64_t kFewRows =
    2;  // query rows of a head up to which packing its keys and values costs more than it saves
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Attention {
  int64_t S, T, D, DV, group;  // group = query heads per key/value head
  int64_t rows;                // group * S query rows share one packed head
  int64_t super, supers;       // keys per super-block, a multiple of kKeyBlock; their number
  int64_t padded;              // DV rounded up to whole panels
};

static inline Attention attention_shape(const Launch& l) {
  namespace f = fam::attention;
  Attention g{
      l.i[f::S], l.i[f::T], l.i[f::D], l.i[f::DV], 0, 0, 0, 0, round_up(l.i[f::DV], kPanel)};
  g.group = l.i[f::KVH] ? l.i[f::H] / l.i[f::KVH] : 0;
  g.rows = g.group * g.S;
  g.super = std::max<int64_t>(1, kPackedFloats / std::max<int64_t>(g.D + g.padded, 1) / kKeyBlock) *
            kKeyBlock;
  if (g.T <= g.super + g.super / 4) g.super = std::max<int64_t>(kPanel, round_up(g.T, kPanel));
  g.supers = std::max<int64_t>(1, div_up(g.T, g.super));
  return g;
}

static int64_t attention_tasks(const Launch& l, int threads) {
  namespace f = fam::attention;
  const Attention g = attention_shape(l);
  const int64_t heads = l.i[f::B] * l.i[f::KVH];
  if (heads <= 0 || g.rows <= 0 || g.DV <= 0) return 0;
  // Rows of a task share the packing, worth about 10 rows of work; with several super-blocks their
  // outputs must stay in L2, too.
  int64_t parts = g.supers > 1 ? div_up(g.rows, 18 * kTileRows) : 1;
  if (threads > 1 && heads < threads * 4)
    parts = std::max(parts, std::min(div_up(threads * 2, heads), div_up(g.rows, 4 * kTileRows)));
  return heads * parts;
}

struct AttentionScratch {
  float *keys, *values, *scores, *query, *out, *top, *sum;
  size_t floats;
};

static inline AttentionScratch attention_layout(const Attention& g, int64_t rows, float* p) {
  float* const start = p;
  auto take = [&p](int64_t n) {
    float* r = p;
    p += round_up(n, 16);
    return r;
  };
  AttentionScratch s{};
  const int64_t held = g.supers > 1 ? rows : kTileRows;  // rows whose state outlives a super-block
  s.keys = take(g.super * g.D + 8 * kPanel);
  s.values = take(g.super * g.padded + 8 * kPanel);
  s.scores = take(kTileRows * kScorePitch);
  s.query = take(kTileRows * (spread_pitch(g.D) + 16));
  s.out = take(held * g.padded);
  s.top = take(held);
  s.sum = take(held);
  s.floats = size_t(p - start);
  return s;
}

static size_t attention_scratch(const Launch& l, int threads) {
  namespace f = fam::attention;
  const Attention g = attention_shape(l);
  const int64_t heads = l.i[f::B] * l.i[f::KVH], tasks = attention_tasks(l, threads);
  if (!tasks) return 0;
  float* const nowhere = nullptr;
  return attention_layout(g, div_up(g.rows, tasks / heads), nowhere).floats * 4;
}

typedef uint8_t bytes __attribute__((vector_size(TRACEA_W), aligned(1), may_alias));

// The mask applied to the scores v of W consecutive keys (or of 1 <= n < W; the other lanes hold
// anything).
struct MaskRow {
  const void* p;
  int64_t step, kind;
  float fill;
  vf apply(vf v, int64_t t, int n) const {
    if (kind != 1) {
      const uint8_t* m = (const uint8_t*)p + t * step;
      const uint8_t keep = kind == 2;
      if (step == 1 && n == W) {
        const vi set = __builtin_convertvector(*(const bytes*)m, vi) != 0;
        return keep ? select(set, v, splat(fill)) : select(set, splat(fill), v);
      }
      for (int j = 0; j < n; j++) v[j] = (m[j * step] != 0) == keep ? v[j] : fill;
      return v;
    }
    const float* m = (const float*)p + t * step;
    if (step == 1) return v + (n == W ? load(m) : load_n(m, n));
    if (step == 0) return v + *m;
    for (int j = 0; j < n; j++) v[j] += m[j * step];
    return v;
  }
};

// Scores s[0..n) become cap * tanh(s); the lanes behind them hold anything.
static inline void cap_scores(float* s, int64_t n, float cap) {
  for (int64_t j = 0; j < n; j += W) store(s + j, vtanh(load(s + j)) * cap);
}

// Scores s[0..n) (keys t0..) become exp(s + mask - top); lanes n..stop become 0. Updates the row's
// maximum and sum and returns the factor by which what was summed before shrinks. A NaN score makes
// the sum NaN; with every key masked so far the maximum stays -inf and the sum 0.
static inline float softmax_row(float* s, int64_t n, int64_t stop, const MaskRow* mask, int64_t t0,
                                float* top, float* sum) {
  vf m0 = splat(*top), m1 = m0;
  int64_t j = 0;
  if (mask) {
    for (; j + W <= n; j += W) {
      const vf v = mask->apply(load(s + j), t0 + j, W);
      store(s + j, v);
      m0 = vmax(m0, v);
    }
  } else {
    for (; j + 2 * W <= n; j += 2 * W) m0 = vmax(m0, load(s + j)), m1 = vmax(m1, load(s + j + W));
    for (; j + W <= n; j += W) m0 = vmax(m0, load(s + j));
  }
  if (j < n) {
    const int rest = int(n - j);
    const vf v = mask ? mask->apply(load(s + j), t0 + j, rest) : load(s + j);
    const vf kept = select(lane_numbers() < float(rest), v, splat(-kInfinity));
    store(s + j, kept);
    m1 = vmax(m1, kept);
    j += W;
  }
  const int64_t written = j;
  float best = max_lanes(vmax(m0, m1));
  best = best > *top ? best : *top;  // a NaN in the last lanes must not become the maximum
  const vf shift = splat(best == -kInfinity ? 0.f : best);
  vf e0{}, e1{};
  for (j = 0; j + 2 * W <= written; j += 2 * W) {
    const vf a = vexp_down(load(s + j) - shift), b = vexp_down(load(s + j + W) - shift);
    store(s + j, a), store(s + j + W, b);
    e0 += a, e1 += b;
  }
  for (; j < written; j += W) {
    const vf a = vexp_down(load(s + j) - shift);
    store(s + j, a);
    e0 += a;
  }
  for (; j < stop; j += W) store(s + j, vf{});
  const float old = *top, shrink = best == old         ? 1.f
                                   : old == -kInfinity ? 0.f
                                                       : std::exp(old - best);
  *top = best;
  *sum = *sum * shrink + sum_lanes(e0 + e1);
  return shrink;
}

struct AttentionTask {
  const Launch& l;
  Attention g;
  AttentionScratch s;
  int64_t b, kv, row0, row1;  // batch, key/value head, query rows (head in group * S + position)

  // Row r as (query head, position): a tile of rows may cross from one head to the next.
  struct Row {
    int64_t head, s;
  };
  Row row(int64_t r) const { return {kv * g.group + r / g.S, r % g.S}; }
  Row next(Row r) const { return r.s + 1 < g.S ? Row{r.head, r.s + 1} : Row{r.head + 1, 0}; }
  // Keys a row may see.
  int64_t visible(Row r) const {
    namespace f = fam::attention;
    return l.i[f::causal] ? std::max<int64_t>(0, std::min(g.T, r.s + l.i[f::past] + 1)) : g.T;
  }

  void pack(int64_t t0, int64_t n) const {
    namespace f = fam::attention;
    const float* k =
        (const float*)l.buf[f::k] + b * l.i[f::k_b] + kv * l.i[f::k_h] + t0 * l.i[f::k_s];
    const float* v =
        (const float*)l.buf[f::v] + b * l.i[f::v_b] + kv * l.i[f::v_h] + t0 * l.i[f::v_s];
    pack_panels(k, 1, l.i[f::k_s], g.D, n, s.keys, 1.f);
    pack_panels(v, l.i[f::v_s], 1, n, g.DV, s.values, 1.f);
  }

  // Rows r0..r0+h against the packed keys t0..t0+n; `out`, `top`, `sum` are the tile's state.
  void tile(int64_t r0, int64_t h, int64_t t0, int64_t n, float* out, float* top,
            float* sum) const {
    namespace f = fam::attention;
    alignas(64) static const float zeros[kPanel] = {};
    const int64_t pitch = spread_pitch(g.D);
    const float* q = (const float*)l.buf[f::q] + b * l.i[f::q_b];
    const vf scale = splat(score_scale());
    int64_t most = 0;
    Row r = row(r0);
    for (int64_t i = 0; i < h; i++, r = next(r)) {
      const float* src = q + r.s * l.i[f::q_s] + r.head * l.i[f::q_h];
      float* dst = s.query + i * pitch;
      int64_t d = 0;
      for (; d + W <= g.D; d += W) store(dst + d, load(src + d) * scale);
      for (; d < g.D; d++) dst[d] = src[d] * scale[0];
      most = std::max(most, visible(r));
    }
    const int64_t end = std::min(t0 + n, most);
    for (int64_t t = t0; t < end; t += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, end - t);
      const float* packed = s.keys + (t - t0) * g.D;
      for (int64_t j = 0; j < keys; j += kTileCols) {
        const float* panel = packed + j / kPanel * kPanel * g.D + j % kPanel;
        tile_for(h, keys - j)(s.query, pitch, panel, s.scores + j, kScorePitch, zeros, g.D, panel,
                              0);
      }
      r = row(r0);
      for (int64_t i = 0; i < h; i++, r = next(r)) {
        const int64_t n_row = std::max<int64_t>(0, std::min(keys, visible(r) - t));
        if (l.f[f::softcap] > 0) cap_scores(s.scores + i * kScorePitch, n_row, l.f[f::softcap]);
        const MaskRow mask = mask_row(r);
        const float shrink = softmax_row(s.scores + i * kScorePitch, n_row, keys,
                                         mask.kind ? &mask : nullptr, t, top + i, sum + i);
        if (t > 0 && shrink != 1.f)
          for (int64_t d = 0; d < g.padded; d += W)
            store(out + i * g.padded + d, load(out + i * g.padded + d) * shrink);
      }
      for (int64_t d = 0; d < g.DV; d += kTileCols) {
        const float* panel = s.values + d / kPanel * kPanel * n + d % kPanel + (t - t0) * kPanel;
        tile_for(h, g.DV - d)(s.scores, kScorePitch, panel, out + d, g.padded,
                              t == 0 ? zeros : nullptr, keys, panel, 0);
      }
    }
  }

  // What products of queries and keys are multiplied by, before tanh where scores are capped.
  float score_scale() const {
    namespace f = fam::attention;
    return l.f[f::softcap] > 0 ? l.f[f::scale] / l.f[f::softcap] : l.f[f::scale];
  }

  MaskRow mask_row(Row r) const {
    namespace f = fam::attention;
    const int64_t kind = l.buf[f::mask] ? l.i[f::mask_kind] : 0,
                  at = b * l.i[f::m_b] + r.head * l.i[f::m_h] + r.s * l.i[f::m_q];
    const void* p = kind == 1 ? (const void*)((const float*)l.buf[f::mask] + at)
                              : (const void*)((const uint8_t*)l.buf[f::mask] + at);
    return {p, l.i[f::m_k], kind, l.f[f::fill]};
  }

  // y = out / sum. A row whose every key was masked by -inf has sum 0: NaN as softmax makes it, or
  // 0 where the graph cleans that up; where it cleans up every NaN (1, not 2), a row with a NaN
  // score, too.
  void finish(Row r, const float* out, float sum) const {
    namespace f = fam::attention;
    float* y = (float*)l.buf[f::y] + b * l.i[f::y_b] + r.s * l.i[f::y_s] + r.head * l.i[f::y_h];
    if (l.i[f::nan_to_zero] == 1 && sum != sum) {
      std::fill(y, y + g.DV, 0.f);
      return;
    }
    const float inverse = sum == 0.f ? (l.i[f::nan_to_zero] || !l.buf[f::mask]
                                            ? 0.f
                                            : std::numeric_limits<float>::quiet_NaN())
                                     : 1.f / sum;
    int64_t d = 0;
    for (; d + W <= g.DV; d += W) store(y + d, load(out + d) * inverse);
    for (; d < g.DV; d++) y[d] = out[d] * inverse;
  }

  // One query row against keys and values as they lie: a dot product per key, then a sum of value
  // rows.
  void single_row(Row r) const {
    namespace f = fam::attention;
    const float* q =
        (const float*)l.buf[f::q] + b * l.i[f::q_b] + r.s * l.i[f::q_s] + r.head * l.i[f::q_h];
    const float* k = (const float*)l.buf[f::k] + b * l.i[f::k_b] + kv * l.i[f::k_h];
    const float* v = (const float*)l.buf[f::v] + b * l.i[f::v_b] + kv * l.i[f::v_h];
    const int64_t k_s = l.i[f::k_s], v_s = l.i[f::v_s], whole = g.D / W * W, keys = visible(r);
    const int rest = int(g.D - whole);
    const MaskRow mask = mask_row(r);
    reset(0);
    for (int64_t t = 0; t < keys; t += kKeyBlock) {
      const int64_t n = std::min(kKeyBlock, keys - t);
      for (int64_t j = 0; j < n; j++) {
        const float* row = k + (t + j) * k_s;
        vf a{}, c{};
        int64_t d = 0;
        for (; d + 2 * W <= whole; d += 2 * W)
          a = fma(load(q + d), load(row + d), a), c = fma(load(q + d + W), load(row + d + W), c);
        for (; d < whole; d += W) a = fma(load(q + d), load(row + d), a);
        if (rest) c = fma(load_n(q + d, rest), load_n(row + d, rest), c);
        s.scores[j] = sum_lanes(a + c) * score_scale();
      }
      if (l.f[f::softcap] > 0) cap_scores(s.scores, n, l.f[f::softcap]);
      const float shrink =
          softmax_row(s.scores, n, n, mask.kind ? &mask : nullptr, t, s.top, s.sum);
      for (int64_t d = 0; d < g.DV; d += 4 * W)
        add_values(v + t * v_s + d, v_s, n, g.DV - d, shrink, s.out + d);
    }
    finish(r, s.out, *s.sum);
  }
  // out = out * shrink + sum over n keys of score * value, for up to four vectors of columns.
  void add_values(const float* v, int64_t v_s, int64_t n, int64_t cols, float shrink,
                  float* out) const {
    if (cols >= 4 * W) {
      vf a = load(out) * shrink, c = load(out + W) * shrink, d = load(out + 2 * W) * shrink,
         e = load(out + 3 * W) * shrink;
      for (int64_t j = 0; j < n; j++, v += v_s) {
        const vf p = splat(s.scores[j]);
        a = fma(p, load(v), a), c = fma(p, load(v + W), c), d = fma(p, load(v + 2 * W), d),
        e = fma(p, load(v + 3 * W), e);
      }
      store(out, a), store(out + W, c), store(out + 2 * W, d), store(out + 3 * W, e);
      return;
    }
    for (int64_t c = 0; c < cols; c += W) {
      const int lanes = int(std::min<int64_t>(W, cols - c));
      vf a = load(out + c) * shrink;
      for (int64_t j = 0; j < n; j++)
        a = fma(splat(s.scores[j]), load_n(v + c + j * v_s, lanes), a);
      store(out + c, a);
    }
  }

  void run() const {
    if (g.rows <= kFewRows) {
      Row r = row(row0);
      for (int64_t i = row0; i < row1; i++, r = next(r)) single_row(r);
      return;
    }
    const bool held = g.supers > 1;
    for (int64_t r = row0; r < row1 && held; r++) reset(r - row0);
    for (int64_t u = 0; u < g.supers; u++) {
      const int64_t t0 = u * g.super, n = std::max<int64_t>(0, std::min(g.super, g.T - t0));
      pack(t0, n);
      const int64_t tiles = div_up(row1 - row0, kTileRows);
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t r0 = row0 + part(row1 - row0, tiles, i),
                      h = row0 + part(row1 - row0, tiles, i + 1) - r0, at = held ? r0 - row0 : 0;
        for (int64_t j = 0; j < h && !held; j++) reset(j);
        tile(r0, h, t0, n, s.out + at * g.padded, s.top + at, s.sum + at);
        for (int64_t j = 0; j < h && u == g.supers - 1; j++)
          finish(row(r0 + j), s.out + (at + j) * g.padded, s.sum[at + j]);
      }
    }
  }
  void reset(int64_t i) const {
    s.top[i] = -kInfinity, s.sum[i] = 0.f;
    for (int64_t d = 0; d < g.padded; d += W) store(s.out + i * g.padded + d, vf{});
  }
};

static void attention_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  namespace f = fam::attention;
  const Attention g = attention_shape(l);
  const int64_t heads = l.i[f::B] * l.i[f::KVH], parts = tasks / heads, h = task / parts,
                p = task % parts;
  const int64_t row0 = part(g.rows, parts, p), row1 = part(g.rows, parts, p + 1);
  AttentionTask{l,
                g,
                attention_layout(g, row1 - row0, (float*)scratch),
                h / l.i[f::KVH],
                h % l.i[f::KVH],
                row0,
                row1}
      .run();
}

static const Kernel attention_kernel = {"attention", attention_tasks, attention_scratch,
                                        attention_run};
static const Kernel* const table_attention[] = {&attention_kernel, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
