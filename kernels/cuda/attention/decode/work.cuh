// Shared by decoding kernels: y = softmax(scale q k^T + mask) v for few query rows that read the
// same keys (of one head or, with GQA, of the heads of a group). Keys are divided among the CTAs of
// a cluster, or (SPLIT_KV) of a column of the grid, which store partial results for
// splitkv_combine.
#pragma once
// COMPUTE: how scores and outputs are computed.
#define SIMT 0    // FFMA; any type, head size and pitch
#define MMA 1     // mma.sync, keys in shared memory; 16-bit types, rows of whole 16 bytes
#define STREAM 2  // mma.sync, keys loaded into registers; the same, without masks
#ifndef GENERATED
#ifndef COMPUTE
#define COMPUTE SIMT
#endif
constexpr int ROWS = COMPUTE == MMA ? 16 : 4;  // query rows of a CTA, 1 to 16 (SIMT: 4)
constexpr int CLUSTER = 1;                     // CTAs of a cluster that divide the keys, 1 to 8
constexpr bool SPLIT_KV = COMPUTE == MMA;      // the CTAs of a column of the grid divide the keys
constexpr int WARPS = 8;                       // THREADS / 32
constexpr int CTAS_PER_SM = 1;                 // that registers must permit
#endif                                         // GENERATED
#include "attention/rows.cuh"
#include "attention/splitkv.cuh"

// The rows and keys of a CTA: rows `first` .. first + count - 1 of those of KV head `kv` of batch
// entry `b` (row i is row i % S of the group's head i / S), and keys `from` .. to - 1. KEYS: the
// share is a multiple of it. ONE_TILE: heads share no keys, and a CTA has all rows of one.
template <int KEYS, bool ONE_TILE>
struct Work {
  int item, group, b, kv, first, count, parts, part, from, to;
  const T *k, *v;
  METHOD Work(const Attention& g) {
    item = blockIdx.x / CLUSTER, group = ONE_TILE ? 1 : g.H / g.KVH;
    const int rows = ONE_TILE ? ROWS : group * g.S, tiles = (rows + ROWS - 1) / ROWS,
              head = item / tiles;
    b = head / g.KVH, kv = head % g.KVH, first = item % tiles * ROWS;
    count = min(ROWS, rows - first);
    k = g.k + b * g.k_b + kv * g.k_h, v = g.v + b * g.v_b + kv * g.v_h;
    parts = SPLIT_KV ? gridDim.y : CLUSTER, part = SPLIT_KV ? blockIdx.y : blockIdx.x % CLUSTER;
  }
  // The CTA's share of the keys that are visible to any of its rows. How keys and values are read
  // (caches of other types, too) is up to the compute headers.
  METHOD void share_keys(const Attention& g) {
    int keys = CAUSAL ? 0 : g.Tk, begin = WINDOW ? g.Tk : 0;
    if (CAUSAL)
      for (int i = 0; i < count; i++) {
        const int s = (first + i) % g.S;
        keys = max(keys, visible_keys(g, s)), begin = min(begin, first_key(g, s));
      }
    const int each = ((keys - begin + parts - 1) / parts + KEYS - 1) / KEYS * KEYS;
    from = begin + part * each, to = min(keys, from + each);
  }
  struct Row {
    int h, s;
  };
  METHOD Row row(const Attention& g, int i) const {
    return ONE_TILE ? Row{kv, i} : Row{kv * group + (first + i) / g.S, (first + i) % g.S};
  }
  METHOD const T* query(const Attention& g, int i) const {
    const Row r = row(g, i);
    return g.q + b * g.q_b + r.h * g.q_h + r.s * g.q_s;
  }
  METHOD i64 mask_row(const Attention& g, int i) const {
    const Row r = row(g, i);
    return b * g.m_b + r.h * g.m_h + r.s * g.m_q;
  }
  // Address of a partial result for the kernel that combines.
  METHOD Partial<ROWS>& partial(const Attention& g) const {
    return ((Partial<ROWS>*)g.y)[item * (parts + 1) + part];
  }
  // Combines the results of the CTA's warps, and of the CTAs of its cluster; `whole` is shared
  // memory.
  METHOD void finish(const Attention& g, const Partial<ROWS>* of_warps,
                     Partial<ROWS>& whole) const {
    auto put = [&](int i, int c, float value) {
      const Row r = row(g, i);
      from_float(g.y[b * g.y_b + r.h * g.y_h + r.s * g.y_s + c], value);
    };
    if (WARPS > 1 || CLUSTER == 1)
      combine_warps<WARPS, CLUSTER == 1 && !SPLIT_KV>(of_warps, SPLIT_KV ? partial(g) : whole,
                                                      count, put);
    __syncwarp();
    if (CLUSTER > 1) combine_cluster<CLUSTER, THREADS>(WARPS > 1 ? whole : *of_warps, count, put);
  }
};
