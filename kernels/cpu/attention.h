// y = softmax(capped(scale q k^T) + mask) v, one (batch, key/value head) and a range of its query
// rows per task. Keys are packed transposed and values in panels of 32 once per task (in
// super-blocks that fit L2); a tile of query rows then goes through blocks of keys whose scores
// stay in L1, with a running maximum and sum per row (online softmax). Few query rows, as in a step
// of decoding, read keys and values where they lie instead. Uses the tiles of the gemm unit (build
// `--only gemm,attention`).
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
    16;  // query rows of a head up to which packing its keys and values costs more than it saves
constexpr int kLine = 16;         // floats of a line of the cache
constexpr int64_t kFewKeys = 32;  // values that stay in L1 while several rows read them
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
  if (g.rows <= kFewRows)
    return heads *
           (threads > 1 && heads < threads * 4 ? std::min(div_up(threads * 2, heads), g.rows) : 1);
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
  const bool few = g.rows <= kFewRows;
  // rows whose state outlives a super-block
  const int64_t held = few || g.supers > 1 ? rows : kTileRows;
  s.keys = take(few ? 0 : g.super * g.D + 8 * kPanel);
  s.values = take(few ? 0 : g.super * g.padded + 8 * kPanel);
  s.scores = take((few ? rows : kTileRows) * kScorePitch);
  s.query = take((few ? rows : kTileRows) * (spread_pitch(g.D) + 16));
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
  int64_t keys = 0;           // of the batch

  // Row r as (query head, position): a tile of rows may cross from one head to the next.
  struct Row {
    int64_t head, s;
  };
  Row row(int64_t r) const { return {kv * g.group + r / g.S, r % g.S}; }
  Row next(Row r) const { return r.s + 1 < g.S ? Row{r.head, r.s + 1} : Row{r.head + 1, 0}; }
  // Keys there are. A length that is none is an error, and no key is read for it.
  int64_t length() const {
    namespace f = fam::attention;
    if (!l.buf[f::lens]) return g.T;
    const int64_t given = l.i[f::lens_dtype] == kI32 ? ((const int32_t*)l.buf[f::lens])[b]
                                                     : ((const int64_t*)l.buf[f::lens])[b];
    const bool inside = given >= 0 && given <= g.T && given + l.i[f::lens_add] >= 0 &&
                        given + l.i[f::lens_add] <= g.T;
    if (!inside) *l.error = 1;
    return inside ? given + l.i[f::lens_add] : 0;
  }
  // Behind the last key a row may see, and the first one.
  int64_t visible(Row r) const {
    namespace f = fam::attention;
    if (!l.i[f::causal]) return keys;
    int64_t past = l.buf[f::lens] ? keys - g.S : l.i[f::past];
    if (l.i[f::clamp]) past = std::max<int64_t>(0, past);
    return std::max<int64_t>(0, std::min(g.T, r.s + past + 1));
  }
  int64_t first(Row r) const {
    const int64_t window = l.i[fam::attention::window];
    return window ? std::max<int64_t>(0, visible(r) - window) : 0;
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
    int64_t most = 0, least = g.T;
    Row r = row(r0);
    for (int64_t i = 0; i < h; i++, r = next(r)) {
      const float* src = q + r.s * l.i[f::q_s] + r.head * l.i[f::q_h];
      float* dst = s.query + i * pitch;
      int64_t d = 0;
      for (; d + W <= g.D; d += W) store(dst + d, load(src + d) * scale);
      for (; d < g.D; d++) dst[d] = src[d] * scale[0];
      most = std::max(most, visible(r)), least = std::min(least, first(r));
    }
    const int64_t end = std::min(t0 + n, most), begin = least / kKeyBlock * kKeyBlock;
    for (int64_t t = std::max(t0, begin); t < end; t += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, end - t);
      const float* packed = s.keys + (t - t0) * g.D;
      for (int64_t j = 0; j < count; j += kTileCols) {
        const float* panel = packed + j / kPanel * kPanel * g.D + j % kPanel;
        tile_for(h, count - j)(s.query, pitch, panel, s.scores + j, kScorePitch, zeros, g.D, panel,
                               0);
      }
      r = row(r0);
      for (int64_t i = 0; i < h; i++, r = next(r)) {
        const float shrink = weigh(r, s.scores + i * kScorePitch, t, count, top + i, sum + i);
        if (t > begin && shrink != 1.f)
          for (int64_t d = 0; d < g.padded; d += W)
            store(out + i * g.padded + d, load(out + i * g.padded + d) * shrink);
      }
      for (int64_t d = 0; d < g.DV; d += kTileCols) {
        const float* panel = s.values + d / kPanel * kPanel * n + d % kPanel + (t - t0) * kPanel;
        tile_for(h, g.DV - d)(s.scores, kScorePitch, panel, out + d, g.padded,
                              t == begin ? zeros : nullptr, count, panel, 0);
      }
    }
  }

  // Scores of keys t..t+n of a row become weights, 0 for what it does not see; returns as
  // softmax_row.
  float weigh(Row r, float* scores, int64_t t, int64_t n, float* top, float* sum) const {
    namespace f = fam::attention;
    const int64_t seen = std::max<int64_t>(0, std::min(n, visible(r) - t));
    if (l.f[f::softcap] > 0) cap_scores(scores, seen, l.f[f::softcap]);
    const MaskRow mask = mask_row(r);
    const int64_t hidden = std::min(seen, first(r) - t);
    if (hidden <= 0) return softmax_row(scores, seen, n, mask.kind ? &mask : nullptr, t, top, sum);
    for (int64_t j = 0; mask.kind && j < seen; j += W) {  // before what no mask brings back
      const int rest = int(std::min<int64_t>(W, seen - j));
      store(scores + j, mask.apply(load(scores + j), t + j, rest));
    }
    std::fill(scores, scores + hidden, -kInfinity);
    return softmax_row(scores, seen, n, nullptr, t, top, sum);
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

  // Query rows against keys and values as they lie: dot products with whole vectors of keys, then
  // sums of value rows, a few of which stay in L1 for all query rows.
  void few_rows() const {
    namespace f = fam::attention;
    const float* k = (const float*)l.buf[f::k] + b * l.i[f::k_b] + kv * l.i[f::k_h];
    const float* v = (const float*)l.buf[f::v] + b * l.i[f::v_b] + kv * l.i[f::v_h];
    const int64_t k_s = l.i[f::k_s], v_s = l.i[f::v_s], rows = row1 - row0;
    int64_t most = 0, least = g.T;
    Row r = row(row0);
    for (int64_t i = 0; i < rows; i++, r = next(r)) {
      reset(i, r.head);
      most = std::max(most, visible(r)), least = std::min(least, first(r));
    }
    float shrink[kFewRows];
    for (int64_t t = least; t < most; t += kKeyBlock) {
      const int64_t n = std::min(kKeyBlock, most - t);
      for (int64_t j = 0; j < n; j += W) {
        r = row(row0);
        for (int64_t i = 0; i < rows; i++, r = next(r))
          dot_products(query(r), k + (t + j) * k_s, k_s, std::min<int64_t>(W, n - j),
                       i ? 0 : W * k_s, s.scores + i * kScorePitch + j);
      }
      r = row(row0);
      for (int64_t i = 0; i < rows; i++, r = next(r))
        shrink[i] = weigh(r, s.scores + i * kScorePitch, t, n, s.top + i, s.sum + i);
      for (int64_t j = 0; j < n; j += kFewKeys)
        for (int64_t i = 0; i < rows; i++)
          for (int64_t d = 0; d < g.DV; d += 4 * W)
            add_values(s.scores + i * kScorePitch + j, v + (t + j) * v_s + d, v_s,
                       std::min(kFewKeys, n - j), g.DV - d, i ? 0 : kFewKeys * v_s,
                       j ? 1.f : shrink[i], s.out + i * g.padded + d);
    }
    r = row(row0);
    for (int64_t i = 0; i < rows; i++, r = next(r)) finish(r, s.out + i * g.padded, s.sum[i]);
  }

  const float* query(Row r) const {
    namespace f = fam::attention;
    return (const float*)l.buf[f::q] + b * l.i[f::q_b] + r.s * l.i[f::q_s] + r.head * l.i[f::q_h];
  }

  // Scaled products of a query with 1 <= n <= W keys. ahead: where the memory lies that is asked
  // for next, which no prefetcher of the processor guesses; 0 for none.
  void dot_products(const float* q, const float* k, int64_t k_s, int64_t n, int64_t ahead,
                    float* scores) const {
    const int64_t whole = g.D / W * W;
    const int rest = int(g.D - whole);
    const float* row[W];
    for (int j = 0; j < W; j++) row[j] = k + std::min<int64_t>(j, n - 1) * k_s;
    vf sum[W] = {};
    for (int64_t j = 0; ahead && j < n; j++) {  // from memory one after the other
      vf a{}, c{};
      int64_t d = 0;
      for (; d + kLine <= whole; d += kLine) {
        __builtin_prefetch(row[j] + d + ahead);
        for (int e = 0; e < kLine; e += 2 * W) {
          a = fma(load(q + d + e), load(row[j] + d + e), a);
          if (W < kLine) c = fma(load(q + d + e + W), load(row[j] + d + e + W), c);
        }
      }
      for (; d < whole; d += W) a = fma(load(q + d), load(row[j] + d), a);
      sum[j] = a + c;
    }
    for (int64_t d = 0; !ahead && d < whole; d += W) {
      const vf x = load(q + d);
#pragma GCC unroll 16
      for (int j = 0; j < W; j++) sum[j] = fma(x, load(row[j] + d), sum[j]);
    }
    if (rest) {
      const vf x = load_n(q + whole, rest);
#pragma GCC unroll 16
      for (int j = 0; j < W; j++) sum[j] = fma(x, load_n(row[j] + whole, rest), sum[j]);
    }
    store(scores, sum_each(sum) * score_scale());
  }

  // out = out * shrink + sum over n keys of score * value, for up to four vectors of columns.
  // ahead: as of dot_products.
  static void add_values(const float* scores, const float* v, int64_t v_s, int64_t n, int64_t cols,
                         int64_t ahead, float shrink, float* out) {
    if (cols >= 4 * W) {
      vf a = load(out) * shrink, c = load(out + W) * shrink, d = load(out + 2 * W) * shrink,
         e = load(out + 3 * W) * shrink;
      for (int64_t j = 0; j < n; j++, v += v_s) {
        if (ahead)
          for (int c = 0; c < 4 * W; c += kLine) __builtin_prefetch(v + ahead + c);
        const vf p = splat(scores[j]);
        a = fma(p, load(v), a), c = fma(p, load(v + W), c), d = fma(p, load(v + 2 * W), d),
        e = fma(p, load(v + 3 * W), e);
      }
      store(out, a), store(out + W, c), store(out + 2 * W, d), store(out + 3 * W, e);
      return;
    }
    for (int64_t c = 0; c < cols; c += W) {
      const int lanes = int(std::min<int64_t>(W, cols - c));
      vf a = load(out + c) * shrink;
      for (int64_t j = 0; j < n; j++) a = fma(splat(scores[j]), load_n(v + c + j * v_s, lanes), a);
      store(out + c, a);
    }
  }

  void run() {
    keys = length();
    if (g.rows <= kFewRows) return few_rows();
    const bool held = g.supers > 1;
    for (int64_t r = row0; r < row1 && held; r++) reset(r - row0, row(r).head);
    for (int64_t u = 0; u < g.supers; u++) {
      // where rows see what is their own, all keys of the batch may be seen
      const int64_t t0 = u * g.super,
                    n = std::max<int64_t>(
                        0, std::min(g.super, std::min(g.T, std::max(keys, g.S)) - t0));
      pack(t0, n);
      const int64_t tiles = div_up(row1 - row0, kTileRows);
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t r0 = row0 + part(row1 - row0, tiles, i),
                      h = row0 + part(row1 - row0, tiles, i + 1) - r0, at = held ? r0 - row0 : 0;
        for (int64_t j = 0; j < h && !held; j++) reset(j, row(r0 + j).head);
        tile(r0, h, t0, n, s.out + at * g.padded, s.top + at, s.sum + at);
        for (int64_t j = 0; j < h && u == g.supers - 1; j++)
          finish(row(r0 + j), s.out + (at + j) * g.padded, s.sum[at + j]);
      }
    }
  }
  // Of nothing but a score without a value, where there is one.
  void reset(int64_t i, int64_t head) const {
    namespace f = fam::attention;
    const bool more = l.buf[f::sink] || l.i[f::smooth];
    s.top[i] = l.buf[f::sink] ? ((const float*)l.buf[f::sink])[head] : more ? 0.f : -kInfinity;
    s.sum[i] = more ? 1.f : 0.f;
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
