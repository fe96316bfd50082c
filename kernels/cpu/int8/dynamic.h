// DynamicQuantizeLinear: the ends of pieces of x, of which the scale and the zero point follow;
// with these, which each task finds anew, the elements.
//
//   low = min(0, min x), high = max(0, max x), scale = (high - low) / 255, or 1 where both are 0
//   zero = round(clamp(-low / scale, 0, 255)), y = clamp(round(x / scale) + zero, 0, 255)
#pragma once
#include "common/tasks.h"
#include "int8/requantise.h"

namespace tracea {
namespace TRACEA_NS {
namespace dynamic {

// The first element of a piece: whole vectors of each instruction set.
static inline int64_t first_of(int64_t n, int64_t piece, int64_t pieces) {
  return std::min(n, conv_div_up(n, 16) * piece / pieces * 16);
}

static int64_t ends_tasks(const Launch& l, int threads) {
  using namespace fam::ends;
  return even_tasks(l.i[pieces], l.i[n] / 12, threads);
}
// Of each piece min(0, x) and, behind all of these, max(0, x).
static void ends_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::ends;
  const int64_t count = l.i[n], parts = l.i[pieces], last = task_begin(parts, task + 1, tasks);
  const float* const from = (const float*)l.buf[x];
  float* const to = (float*)l.buf[y];
  for (int64_t k = task_begin(parts, task, tasks); k < last; k++) {
    const float *p = from + first_of(count, k, parts), *end = from + first_of(count, k + 1, parts);
    vf low[2]{}, high[2]{};
    vi odd{};  // lanes that saw a NaN, which the ends pass over
    const auto take = [&](int j, vf v) {
      low[j] = vmin(v, low[j]), high[j] = vmax(v, high[j]), odd |= v != v;
    };
    for (; end - p >= 2 * W; p += 2 * W) take(0, load(p)), take(1, load(p + W));
    for (; p < end; p += W) take(0, load_n(p, int(std::min<int64_t>(W, end - p))));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    to[k] = any(odd) ? nan : -max_lanes(vmax(-low[0], -low[1]));
    to[parts + k] = any(odd) ? nan : max_lanes(vmax(high[0], high[1]));
  }
}

static int64_t quantise_tasks(const Launch& l, int threads) {
  using namespace fam::quantise_dynamic;
  return std::max<int64_t>(1, even_tasks(conv_div_up(l.i[n], 16), l.i[n] / 6, threads));
}
static void quantise_run(const Launch& l, int64_t task, int64_t tasks, void*) {
  using namespace fam::quantise_dynamic;
  const float *const from = (const float*)l.buf[x], *const found = (const float*)l.buf[ends];
  const int64_t parts = l.i[pieces];
  vf low{}, high{};
  for (int64_t k = 0; k < parts; k++) {
    low = vmin_nan(low, splat(found[k])), high = vmax_nan(high, splat(found[parts + k]));
  }
  const float span = high[0] - low[0], step = low[0] == high[0] ? 1.f : span / 255.f;
  const float start = 0.f - low[0] / step;
  const uint8_t middle = uint8_t(std::nearbyint(start > 0.f ? std::min(start, 255.f) : 0.f));
  if (task == 0) *(float*)l.buf[scale] = step, *(uint8_t*)l.buf[zero] = middle;
  const Quantised q = read_quantised(&step, &middle, kU8);
  uint8_t* const to = (uint8_t*)l.buf[y];
  const int64_t end = first_of(l.i[n], task + 1, tasks);
  int64_t i = first_of(l.i[n], task, tasks);
#if TRACEA_W >= 8
  for (const bool quick = q.inverse == q.inverse; quick && i + 2 * W <= end; i += 2 * W) {
    vi made[2];
    uint32_t ties = 0;
    for (int k = 0; k < 2; k++) {
      const vf near = vmin(vmax(load(from + i + k * W) * q.inverse, splat(q.lo)), splat(q.hi));
      const vi bits = bits_i(near + (q.zero + kQuickShift));
      ties |= quick_ties(bits), made[k] = bits >> kFractionBits;
    }
    if (__builtin_expect(ties != 0, 0))
      for (int k = 0; k < 2; k++)
        made[k] = to_int(Quantised::round(load(from + i + k * W), q) + q.zero);
    store_low_bytes(to + i, made, 2);
  }
#endif
  for (; i < end; i += W) {
    const int here = int(std::min<int64_t>(W, end - i));
    const vf v = here == W ? load(from + i) : load_n(from + i, here);
    store_bytes(to + i, to_int(Quantised::round(v, q) + q.zero), here);
  }
}

}  // namespace dynamic

static const Kernel kernel_ends = {"ends", dynamic::ends_tasks, nullptr, dynamic::ends_run};
static const Kernel kernel_quantise_dynamic = {"quantise_dynamic", dynamic::quantise_tasks, nullptr,
                                               dynamic::quantise_run};

}  // namespace TRACEA_NS
}  // namespace tracea
