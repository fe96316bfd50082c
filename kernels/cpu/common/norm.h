// Normalisations. Mean and variance in two passes over data that the first pass brought into L1 or
// L2: float sums of at most kSumChunk elements, added up in double, so neither long rows nor a
// large mean lose digits.
#pragma once
#include "common/epilogue.h"
#include "common/lanes.h"

namespace tracea {
namespace TRACEA_NS {

constexpr int64_t kSumChunk = 2048;

static inline int64_t row_tasks(int64_t rows, int64_t elements, int threads) {
  if (rows <= 0 || elements <= 0) return 0;
  if (threads <= 1) return 1;
  return std::max<int64_t>(1, std::min({rows, int64_t(threads) * 4, elements >> 13}));
}
static inline int64_t share(int64_t n, int64_t tasks, int64_t task) {
  return n / tasks * task + std::min(task, n % tasks);
}

// Sum of f(v) over n floats; lanes past the end see f(fill), which must be 0.
template <class F>
TRACEA_INLINE double sum_of(const float* p, int64_t n, float fill, F f) {
  double total = 0;
  for (int64_t c = 0; c < n; c += kSumChunk) {
    const float *q = p + c, *const end = p + std::min(n, c + kSumChunk);
    vf a{}, b{}, d{}, e{};
    for (; q + 4 * W <= end; q += 4 * W)
      a += f(load(q)), b += f(load(q + W)), d += f(load(q + 2 * W)), e += f(load(q + 3 * W));
    for (; q + W <= end; q += W) a += f(load(q));
    if (q < end) b += f(load_n(q, int(end - q), fill));
    total += sum_lanes((a + b) + (d + e));
  }
  return total;
}

// Sums of v - m and of its square over n floats.
static inline void sums_about(const float* p, int64_t n, float mean, double* first,
                              double* squares) {
  const vf m = splat(mean);
  *first = *squares = 0;
  for (int64_t c = 0; c < n; c += kSumChunk) {
    const float *q = p + c, *const end = p + std::min(n, c + kSumChunk);
    vf s[4] = {}, r[4] = {};
    const auto add = [&](int k, vf v) { v -= m, s[k] += v, r[k] = fma(v, v, r[k]); };
    for (; q + 4 * W <= end; q += 4 * W)
      add(0, load(q)), add(1, load(q + W)), add(2, load(q + 2 * W)), add(3, load(q + 3 * W));
    for (; q + W <= end; q += W) add(0, load(q));
    if (q < end) add(1, load_n(q, int(end - q), mean));
    *first += sum_lanes((s[0] + s[1]) + (s[2] + s[3])),
        *squares += sum_lanes((r[0] + r[1]) + (r[2] + r[3]));
  }
}

struct Moments {
  float mean, scale;
};  // scale = 1 / sqrt(variance + eps)

// mean is 0 for rms = true: then scale is that of the root mean square.
// The first mean is some units in its last place off: what the second pass finds beside it corrects
// it, so that rows of (nearly) equal values, whose results are hundreds of such units, give zero.
static inline Moments moments(const float* p, int64_t n, bool rms, float eps) {
  const double part = 1 / double(n);
  if (rms)
    return {0.f, float(1 / std::sqrt(sum_of(p, n, 0.f, [](vf v) { return v * v; }) * part +
                                     double(eps)))};
  const float mean = float(sum_of(p, n, 0.f, [](vf v) { return v; }) * part);
  double first, squares;
  sums_about(p, n, mean, &first, &squares);
  const double off = first * part, variance = std::max(squares * part - off * off, 0.0);
  return {float(double(mean) + off), float(1 / std::sqrt(variance + double(eps)))};
}

// y = (s - mean) * scale * (gamma + plus) + beta
template <bool has_gamma, bool has_beta>
TRACEA_INLINE void normalise(const float* s, int64_t n, Moments m, const float* gamma, float plus,
                             const float* beta, float* y) {
  const vf mean = splat(m.mean), scale = splat(m.scale), add = splat(plus);
  auto one = [&](vf v, vf g, vf b) {
    v = (v - mean) * scale;
    return has_gamma && has_beta ? fma(v, g + add, b)
           : has_gamma           ? v * (g + add)
           : has_beta            ? v + b
                                 : v;
  };
  int64_t j = 0;
  for (; j + W <= n; j += W)
    store(y + j,
          one(load(s + j), has_gamma ? load(gamma + j) : vf{}, has_beta ? load(beta + j) : vf{}));
  if (j < n) {
    const int r = int(n - j);
    store_n(y + j,
            one(load_n(s + j, r), has_gamma ? load_n(gamma + j, r) : vf{},
                has_beta ? load_n(beta + j, r) : vf{}),
            r);
  }
}

// s = x (+ res) (+ bias); which of them exist is constant.
template <bool has_res, bool has_bias>
TRACEA_INLINE void add_row(const float* x, const float* res, const float* bias, int64_t n,
                           float* s) {
  int64_t j = 0;
  for (; j + W <= n; j += W) {
    vf v = load(x + j);
    if (has_res) v += load(res + j);
    if (has_bias) v += load(bias + j);
    store(s + j, v);
  }
  if (j < n) {
    const int r = int(n - j);
    vf v = load_n(x + j, r);
    if (has_res) v += load_n(res + j, r);
    if (has_bias) v += load_n(bias + j, r);
    store_n(s + j, v, r);
  }
}

static int64_t layernorm_tasks(const Launch& l, int threads) {
  using namespace fam::layernorm;
  return row_tasks(l.i[rows], l.i[rows] * l.i[N], threads);
}

// A row that was summed up at `s` (which may be `out`), normalised.
struct NormWeights {
  const float *gamma, *beta;
  float plus, eps;
  bool rms;
};
static inline void norm_row(const float* s, int64_t n, const NormWeights& w, float* out) {
  const Moments m = moments(s, n, w.rms, w.eps);
  if (w.gamma && w.beta)
    normalise<true, true>(s, n, m, w.gamma, w.plus, w.beta, out);
  else if (w.gamma)
    normalise<true, false>(s, n, m, w.gamma, w.plus, w.beta, out);
  else if (w.beta)
    normalise<false, true>(s, n, m, w.gamma, w.plus, w.beta, out);
  else
    normalise<false, false>(s, n, m, w.gamma, w.plus, w.beta, out);
}

static void layernorm_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::layernorm;
  const int64_t n = l.i[N];
  const auto *px = (const float*)l.buf[x], *pr = (const float*)l.buf[res],
             *pb = (const float*)l.buf[xbias];
  const NormWeights weights{(const float*)l.buf[gamma],
                            l.i[rms] ? nullptr : (const float*)l.buf[beta],
                            l.i[gamma_add] ? 1.f : 0.f, l.f[eps], l.i[rms] != 0};
  auto *py = (float*)l.buf[y], *ps = (float*)l.buf[skip];
  for (int64_t r = share(l.i[rows], tasks, task); r < share(l.i[rows], tasks, task + 1); r++) {
    const float* s = px + r * n;
    float *out = py + r * n,
          *sum =
              ps ? ps + r * n : out;  // the sum needs a place of its own only when it is an output
    if (pr || pb || ps) {
      if (pr && pb)
        add_row<true, true>(s, pr + r * n, pb, n, sum);
      else if (pr)
        add_row<true, false>(s, pr + r * n, pb, n, sum);
      else if (pb)
        add_row<false, true>(s, pr, pb, n, sum);
      else
        add_row<false, false>(s, pr, pb, n, sum);
      s = sum;
    }
    norm_row(s, n, weights, out);
  }
}

static int64_t layernorm_sum_tasks(const Launch& l, int threads) {
  using namespace fam::layernorm_sum;
  return row_tasks(l.i[outer] * l.i[inner], l.i[outer] * l.i[inner] * l.i[N], threads);
}

// Row (b, s) of summand k, or null where it has none.
static inline const float* summand_row(const Launch& l, int k, int64_t b, int64_t s) {
  using namespace fam::layernorm_sum;
  const void* const* o = l.buf + x0 + k * (x1 - x0);
  const int64_t* i = l.i + k * (x1_o - x0_o);
  if (!o[0] || s < i[x0_lo] || s >= i[x0_hi]) return nullptr;
  const int64_t at = b * i[x0_o] + (s - i[x0_lo]) * i[x0_i];
  if (!o[1]) return (const float*)o[0] + at;
  int64_t row = i[i0_dtype] == kI64 ? ((const int64_t*)o[1])[at] : ((const int32_t*)o[1])[at];
  if (row < 0) row += i[x0_n];
  if (row >= 0 && row < i[x0_n]) return (const float*)o[0] + row * i[x0_ld];
  *l.error = 1;
  return nullptr;
}

static void layernorm_sum_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::layernorm_sum;
  constexpr int most = (gamma - x0) / (x1 - x0);
  const int64_t n = l.i[N], rows = l.i[outer] * l.i[inner];
  const NormWeights weights{(const float*)l.buf[gamma],
                            l.i[rms] ? nullptr : (const float*)l.buf[beta],
                            l.i[gamma_add] ? 1.f : 0.f, l.f[eps], l.i[rms] != 0};
  for (int64_t r = share(rows, tasks, task); r < share(rows, tasks, task + 1); r++) {
    float *out = (float*)l.buf[y] + r * n, *sum = l.buf[skip] ? (float*)l.buf[skip] + r * n : out;
    bool first = true;
    for (int k = 0; k < most; k++) {
      const float* from = summand_row(l, k, r / l.i[inner], r % l.i[inner]);
      if (!from) continue;
      if (first)
        add_row<false, false>(from, nullptr, nullptr, n, sum);
      else
        add_row<true, false>(sum, from, nullptr, n, sum);
      first = false;
    }
    if (first) std::fill(sum, sum + n, 0.f);
    norm_row(sum, n, weights, out);
  }
}

// The activation alone over rows of a result that is still in cache.
static inline void activate_rows(int64_t act, float p0, float p1, float* y, int64_t ldy, int64_t m,
                                 int64_t n) {
  if (act == kNone) return;
  Epilogue e{};
  e.act = act, e.p0 = p0, e.p1 = p1;
  EpilogueTile t{};
  t.y = y, t.ldy = ldy, t.m = m, t.n = n;
  finish_tile(e, t);
}

static int64_t groupnorm_tasks(const Launch& l, int threads) {
  using namespace fam::groupnorm;
  return row_tasks(l.i[B] * l.i[G], l.i[B] * l.i[C] * l.i[inner], threads);
}

static void groupnorm_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::groupnorm;
  const int64_t channels = l.i[C] / l.i[G], n = l.i[inner], groups = l.i[B] * l.i[G];
  const auto *pg = (const float*)l.buf[gamma], *pb = (const float*)l.buf[beta];
  constexpr int64_t piece = 2048;  // elements written before the activation goes over them
  for (int64_t g = share(groups, tasks, task); g < share(groups, tasks, task + 1); g++) {
    const float* src = (const float*)l.buf[x] + g * channels * n;
    float* dst = (float*)l.buf[y] + g * channels * n;
    const Moments m = moments(src, channels * n, false, l.f[eps]);
    for (int64_t c = 0; c < channels; c++) {
      const int64_t channel = g % l.i[G] * channels + c;
      const vf mean = splat(m.mean), scale = splat(m.scale * (pg ? pg[channel] : 1.f)),
               shift = splat(pb ? pb[channel] : 0.f);
      for (int64_t j0 = c * n; j0 < (c + 1) * n; j0 += piece) {
        const int64_t end = std::min(j0 + piece, (c + 1) * n);
        int64_t j = j0;
        for (; j + W <= end; j += W) store(dst + j, fma(load(src + j) - mean, scale, shift));
        if (j < end)
          store_n(dst + j, fma(load_n(src + j, int(end - j)) - mean, scale, shift), int(end - j));
        activate_rows(l.i[act], l.f[p0], l.f[p1], dst + j0, 0, 1, end - j0);
      }
    }
  }
}

// Channels-last. A task takes whole groups of one image; sums per channel are kept in vectors over
// the pixels and then added per group.
struct ChannelsLast {
  int64_t per_group, parts;
};

static inline ChannelsLast channels_last_shape(const Launch& l, int64_t tasks) {
  using namespace fam::groupnorm_nhwc;
  return {l.i[C] / l.i[G], std::max<int64_t>(1, l.i[N] ? tasks / l.i[N] : 1)};
}

static int64_t groupnorm_nhwc_tasks(const Launch& l, int threads) {
  using namespace fam::groupnorm_nhwc;
  const int64_t elements = l.i[N] * l.i[C] * l.i[H] * l.i[fam::groupnorm_nhwc::W];
  if (elements <= 0 || l.i[G] <= 0) return 0;
  // Several groups per task where that makes runs of at least 32 channels: two cache lines of every
  // pixel.
  const int64_t apart = std::max<int64_t>(1, std::min(l.i[G], l.i[C] / 32)),
                wanted = threads <= 1 ? 1 : std::min(int64_t(threads) * 2, elements >> 13);
  return l.i[N] * std::max<int64_t>(1, std::min(apart, wanted / l.i[N]));
}

static size_t groupnorm_nhwc_scratch(const Launch& l, int) {
  return size_t(4 * (l.i[fam::groupnorm_nhwc::C] + 2 * W) + 16) * 8;
}

// sums[c..c+vectors*W) += sum over rows h0..h1 of (x - mean[c])^power; `lanes` counts the last
// vector's channels.
template <int power, int vectors>
TRACEA_INLINE void channel_block(const float* x, int64_t h0, int64_t h1, int64_t width, int64_t cs,
                                 int64_t rs, int lanes, const float* mean, double* sums) {
  vf a[vectors] = {}, m[vectors];
  for (int v = 0; v < vectors; v++)
    m[v] = lanes == W ? load(mean + v * W) : load_n(mean + v * W, lanes);
  for (int64_t h = h0; h < h1; h++) {
    const float* p = x + h * rs;
    for (int64_t w = 0; w < width; w++, p += cs)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) {
        const vf d = (lanes == W ? load(p + v * W) : load_n(p, lanes)) - m[v];
        a[v] += power == 1 ? d : d * d;
      }
  }
  for (int v = 0; v < vectors; v++)
    for (int k = 0; k < lanes; k++) sums[v * W + k] += double(a[v][k]);
}

// Power 1 or 2 over all pixels: a few image rows at a time, so that the pixels are still near when
// the next channels are summed.
template <int power>
static inline void channel_sums(const float* x, int64_t H, int64_t width, int64_t cs, int64_t rs,
                                int64_t channels, const float* mean, double* sums) {
  const int64_t rows = std::max<int64_t>(1, 128 / width);
  for (int64_t h = 0; h < H; h += rows) {
    const int64_t end = std::min(H, h + rows);
    int64_t c = 0;
    for (; c + 4 * W <= channels; c += 4 * W)
      channel_block<power, 4>(x + c, h, end, width, cs, rs, W, mean + c, sums + c);
    for (; c < channels; c += W)
      channel_block<power, 1>(x + c, h, end, width, cs, rs, int(std::min<int64_t>(W, channels - c)),
                              mean + c, sums + c);
  }
}

static void groupnorm_nhwc_run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  using namespace fam::groupnorm_nhwc;
  const int64_t width = l.i[fam::groupnorm_nhwc::W];
  constexpr int64_t lane = tracea::TRACEA_NS::W;
  const ChannelsLast shape = channels_last_shape(l, tasks);
  const int64_t image = task / shape.parts, g0 = share(l.i[G], shape.parts, task % shape.parts),
                g1 = share(l.i[G], shape.parts, task % shape.parts + 1);
  const int64_t c0 = g0 * shape.per_group, channels = (g1 - g0) * shape.per_group,
                padded = channels + lane;
  double* sums = (double*)scratch;
  float *mean = (float*)(sums + padded), *scale = mean + padded, *shift = scale + padded;
  const float *src = (const float*)l.buf[x] + image * l.i[x_ns] + c0,
              *pg = (const float*)l.buf[gamma], *pb = (const float*)l.buf[beta];
  float* dst = (float*)l.buf[y] + image * l.i[y_ns] + c0;
  const double count = double(shape.per_group * l.i[H] * width);
  std::fill(mean, mean + channels, 0.f);
  std::fill(sums, sums + channels, 0.);
  channel_sums<1>(src, l.i[H], width, l.i[x_cs], l.i[x_rs], channels, mean, sums);
  auto spread =
      [&](auto value,
          float* to) {  // per-group value of the summed channels, written for each of them
        for (int64_t c = 0; c < channels; c += shape.per_group) {
          double s = 0;
          for (int64_t k = 0; k < shape.per_group; k++) s += sums[c + k];
          std::fill(to + c, to + c + shape.per_group, value(s / count));
        }
      };
  spread([](double m) { return float(m); }, mean);
  std::fill(sums, sums + channels, 0.);
  channel_sums<2>(src, l.i[H], width, l.i[x_cs], l.i[x_rs], channels, mean, sums);
  spread([&](double v) { return float(1 / std::sqrt(v + double(l.f[eps]))); }, scale);
  for (int64_t c = 0; c < channels; c++) {
    if (pg) scale[c] *= pg[c0 + c];
    shift[c] = pb ? pb[c0 + c] : 0.f;
  }
  for (int64_t h = 0; h < l.i[H]; h++) {
    for (int64_t w = 0; w < width; w++) {
      const float* p = src + h * l.i[x_rs] + w * l.i[x_cs];
      float* q = dst + h * l.i[y_rs] + w * l.i[y_cs];
      int64_t c = 0;
      for (; c + lane <= channels; c += lane)
        store(q + c, fma(load(p + c) - load(mean + c), load(scale + c), load(shift + c)));
      if (c < channels) {
        const int r = int(channels - c);
        store_n(
            q + c,
            fma(load_n(p + c, r) - load_n(mean + c, r), load_n(scale + c, r), load_n(shift + c, r)),
            r);
      }
    }
    activate_rows(l.i[act], l.f[p0], l.f[p1], dst + h * l.i[y_rs], l.i[y_cs], width, channels);
  }
}

static const Kernel layernorm_kernel = {"layernorm", layernorm_tasks, nullptr, layernorm_run};
static const Kernel layernorm_sum_kernel = {"layernorm_sum", layernorm_sum_tasks, nullptr,
                                            layernorm_sum_run};
static const Kernel groupnorm_kernel = {"groupnorm", groupnorm_tasks, nullptr, groupnorm_run};
static const Kernel groupnorm_nhwc_kernel = {"groupnorm_nhwc", groupnorm_nhwc_tasks,
                                             groupnorm_nhwc_scratch, groupnorm_nhwc_run};

}  // namespace TRACEA_NS
}  // namespace tracea
