// Packed 8-bit weights, U8 less 128: [group][panel][K / kGroup][32][kGroup], K rounded up to 4 with
// zeros, and behind all the I32 sums of the columns.
#pragma once
#include "common/conv_layout.h"
#include "int8/int8_tile.h"

namespace tracea {
namespace TRACEA_NS {

static inline int64_t packed_depth(int64_t k) { return conv_round_up(k, 4); }
static inline int64_t int8_panels(int64_t columns) { return conv_div_up(columns, kInt8Panel); }

// One source: element (k, n) of a group, k = tap * terms + i, lies at n * s_n + i * s_i + tap *
// s_t.
struct Int8Source {
  const int8_t* w;
  int64_t s_n, s_i, s_t, terms, taps;
  uint8_t flip;  // 0x80 for U8
  int64_t depth() const { return terms * taps; }
};

// Columns n0..n1 of a panel, from the source's column `from`.
static inline void pack_int8_panel(const Int8Source& s, int64_t from, int64_t n0, int64_t n1,
                                   int8_t* panel, int32_t* sums) {
  for (int64_t n = n0; n < n1; n++, from++) {
    int32_t sum = 0;
    const int8_t* w = s.w + from * s.s_n;
    for (int64_t t = 0, k = 0; t < s.taps; t++)
      for (int64_t i = 0; i < s.terms; i++, k++) {
        const int8_t v = int8_t(w[i * s.s_i + t * s.s_t] ^ s.flip);
        panel[(k / kGroup * kInt8Panel + n) * kGroup + k % kGroup] = v;
        sum += v;
      }
    sums[n] = sum;
  }
}

static int64_t pack_gemm_int8_tasks(const Launch& l, int) {
  using namespace fam::pack_gemm_int8;
  if (l.i[N] <= 0) return 0;
  return (l.i[n0] + l.i[N] - 1) / kInt8Panel - l.i[n0] / kInt8Panel + 1;
}
static void pack_gemm_int8_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_gemm_int8;
  const int64_t ld = l.i[ldw], start = l.i[n0], panel = start / kInt8Panel + task;
  const int64_t depth = packed_depth(l.i[K]), total = std::max(l.i[N_total], start + l.i[N]);
  const Int8Source s{(const int8_t*)l.buf[w],
                     l.i[trans] ? ld : 1,
                     l.i[trans] ? 1 : ld,
                     0,
                     l.i[K],
                     1,
                     uint8_t(l.i[w_dtype] == kU8 ? 0x80 : 0)};
  const int64_t first = panel * kInt8Panel, a = std::max(start, first),
                b = std::min(start + l.i[N], first + kInt8Panel);
  int8_t* out = (int8_t*)l.buf[packed];
  pack_int8_panel(s, a - start, a - first, b - first, out + first * depth,
                  (int32_t*)(out + int8_panels(total) * kInt8Panel * depth) + first);
}

static int64_t pack_conv2d_int8_tasks(const Launch& l, int) {
  using namespace fam::pack_conv2d_int8;
  return l.i[G] * int8_panels(l.i[OC] / l.i[G]);
}
static void pack_conv2d_int8_run(const Launch& l, int64_t task, int64_t, void*) {
  using namespace fam::pack_conv2d_int8;
  const int64_t taps = l.i[KH] * l.i[KW], terms = l.i[IC] / l.i[G], columns = l.i[OC] / l.i[G],
                panels = int8_panels(columns), depth = packed_depth(terms * taps);
  const Int8Source s{(const int8_t*)l.buf[w],
                     terms * taps,
                     taps,
                     1,
                     terms,
                     taps,
                     uint8_t(l.i[w_dtype] == kU8 ? 0x80 : 0)};
  const int64_t group = task / panels, first = task % panels * kInt8Panel;
  int8_t* out = (int8_t*)l.buf[packed];
  pack_int8_panel(s, group * columns + first, 0, std::min(kInt8Panel, columns - first),
                  out + task * kInt8Panel * depth,
                  (int32_t*)(out + l.i[G] * panels * kInt8Panel * depth) + task * kInt8Panel);
}

static const Kernel kernel_pack_gemm_int8 = {"pack_gemm_int8", pack_gemm_int8_tasks, nullptr,
                                             pack_gemm_int8_run};
static const Kernel kernel_pack_conv2d_int8 = {"pack_conv2d_int8", pack_conv2d_int8_tasks, nullptr,
                                               pack_conv2d_int8_run};

}  // namespace TRACEA_NS
}  // namespace tracea
