// FlashAttention-3 on sm_90: parameters, the order of output tiles, and the rings of shared memory.
#pragma once
// SCHEDULE: what overlaps a warpgroup's GEMMs and softmax.
#define INTER_WG 0  // the other warpgroups of the SM
#define INTRA_WG 1  // its own: scores of the next tile of keys run beside the softmax of this one
#define PINGPONG \
  2                  // its own: exponentials of some keys run beside MMAs with the values of
                     // earlier ones; two warpgroups take turns with their scores
#define SINGLE_WG 3  // the same of one warpgroup
#define SPLIT_CTA 4  // the same of several that share 64 rows, each with its tiles of keys
#ifndef GENERATED
#define SCHEDULE INTER_WG
#define TMA_STORE 1                 // results are stored by TMA
constexpr int GROUPS = 2;           // consumer warpgroups of 64 query rows, 1 to 4
constexpr int BN = 64;              // keys of a tile, a multiple of 16
constexpr int LAST = 64;            // keys of the last tile that are computed, a multiple of 16
constexpr int STAGES = 2;           // tiles of keys and values in flight
constexpr int SLOTS = 2;            // tiles of queries in flight
constexpr int CLUSTER = 1;          // CTAs of a cluster that divide the keys
constexpr bool SPLIT_KV = false;    // all CTAs divide keys and store parts for splitkv_combine
constexpr int ROWS = 64;            // of a part, up to 64
constexpr int CTAS_PER_SM = 1;      // that registers must permit
constexpr int REGISTERS = 240;      // of a thread of consumers, a multiple of 8
constexpr int REGISTERS_LEFT = 40;  // of producers
constexpr bool RAW = true;          // scores stay unscaled up to their exponentials
constexpr bool MASK_ROWS = false;   // query rows have masks of their own
constexpr int MASK_STEP = 0;  // a power of two of elements of which mask rows begin at multiples;
                              // 0: their elements are not contiguous
#endif                        // GENERATED
#include "attention/splitkv.cuh"
#include "common/hopper.cuh"

constexpr bool kOverlapped = SCHEDULE >= PINGPONG, kSplit = SCHEDULE == SPLIT_CTA;
constexpr bool kStores =
    SCHEDULE >= SINGLE_WG || (GROUPS > 2 && !CAUSAL) ||
    !TMA_STORE;  // warps store their rows themselves, which is soonest, but work of theirs
constexpr bool kLate =
    SCHEDULE == PINGPONG && !CAUSAL;  // the first weights are computed before values are there
constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16,
              BM = kSplit ? 64 : GROUPS * 64;
constexpr int kPanels = (HEAD + 63) / 64, kPanelsV = (HEAD_V + 63) / 64;
constexpr int kQueries = BM * 128 * kPanels, kKeys = BN * 128 * kPanels,
              kValues = BN * 128 * kPanelsV, kOutput = BM * 128 * kPanelsV;
constexpr int kSlot = kQueries > kOutput ? kQueries : kOutput;  // results overwrite the queries
constexpr bool kEager = SCHEDULE != INTRA_WG;  // what shortens the way from the first copy to the
                                               // first MMAs and from the last to the results
constexpr int kQueryBarriers =
    kSplit || !kEager ? 1 : GROUPS;  // warpgroups with an mbarrier of their own for queries
constexpr int
    kReaders = kSplit ? 1 : GROUPS,
    kStride = kSplit
                  ? GROUPS
                  : 1;  // warpgroups that read a tile of keys; how far it is to a warpgroup's next

// CTAs that share rows and divide their keys: those of a cluster or, with SPLIT_KV, any: all CTAs
// have equal shares of the keys of all output tiles in order, and another kernel combines partial
// results.
constexpr bool kDivided = SPLIT_KV || CLUSTER > 1;
DEV int items_of(const Attention& g) { return g.B * g.H * ((g.S + BM - 1) / BM); }
// Number of key tiles of output tile `item` that precede the CTA's share, or the next CTA's.
DEV int before_part(const Attention& g, int tiles, int item, int next = 0) {
  if (!SPLIT_KV) return (int(blockIdx.x) % CLUSTER + next) * tiles / CLUSTER;
  const int blocks = gridDim.x;
  return min(max((int(blockIdx.x) + next) * items_of(g) - item * blocks, 0), blocks) * tiles /
         blocks;
}

// An output tile: first row, batch and head, and the number of key tiles that the CTA has of it
// (-1: no such tile).
struct alignas(16) Tile {
  int m, b, h, steps;
};
DEV int key_tiles(const Attention& g, int rows) {
  return (visible_keys(g, min(rows, g.S) - 1) + BN - 1) / BN;
}
DEV int item_of(const Attention& g, const Tile& tile) {
  return (tile.b * g.H + tile.h) * ((g.S + BM - 1) / BM) + tile.m / BM;
}
// First of the CTA's key tiles.
DEV int first_step(const Attention& g, const Tile& tile) {
  return kDivided ? before_part(g, key_tiles(g, tile.m + BM), item_of(g, tile)) : 0;
}
// Order of output tiles. Causal: in the last band of heads whose keys and values fit L2,
// longest rows first; in the band before it shortest first, and so on. Lengths never jump, so that
// CTAs that traverse the tiles back and forth get equal work.
struct TileScheduler {
  int rows, count, together, bands;
  __device__ __forceinline__ TileScheduler(const Attention& g) {
    const int heads = g.B * g.H;
    rows = (g.S + BM - 1) / BM, count = rows * heads;
    if (!CAUSAL || SPLIT_KV || count == 0) return;
    const float bytes = 2.f * g.Tk * (HEAD + HEAD_V) * g.KVH / g.H;
    bands = (heads - 1) / max(1, int(24e6f / bytes)) + 1, together = (heads + bands - 1) / bands;
  }
  // With -1 steps behind the last.
  __device__ __forceinline__ Tile tile(const Attention& g, int t) const {
    if (t >= count) return {0, 0, 0, -1};
    int m = t % rows, head = t / rows;
    if (CAUSAL && !SPLIT_KV) {
      const int band = t / (together * rows), rest = t - band * together * rows,
                width = min(together, g.B * g.H - band * together);
      m = rest / width, head = band * together + rest % width;
      if ((bands - band) & 1) m = rows - 1 - m;
    }
    Tile tile{m * BM, head / g.H, head % g.H, key_tiles(g, m * BM + BM)};
    if (kDivided) tile.steps = before_part(g, tile.steps, t, 1) - before_part(g, tile.steps, t);
    return tile;
  }
  // Whether any CTA, or cluster that divides keys, has an n-th tile.
  __device__ __forceinline__ bool has(int n) const {
    if (SPLIT_KV)
      return (blockIdx.x * count / gridDim.x + n) * gridDim.x < (blockIdx.x + 1) * count;
    return n * (gridDim.x / CLUSTER) < count;
  }
  // The CTA's n-th tile: back and forth, so that long and short tiles balance.
  __device__ __forceinline__ Tile nth(const Attention& g, int n) const {
    if (SPLIT_KV) return has(n) ? tile(g, blockIdx.x * count / gridDim.x + n) : Tile{0, 0, 0, -1};
    const int block = blockIdx.x / CLUSTER, blocks = gridDim.x / CLUSTER;
    return tile(g, n * blocks + (CAUSAL && n % 2 ? blocks - 1 - block : block));
  }
};

template <int COUNT>
struct PipelineState {
  int slot = 0;
  u32 phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == COUNT) slot = 0, phase ^= 1;
  }
  __device__ __forceinline__ void advance(int n) {
    for (; n > 0; n--) next();
  }
};

// Arrival of a warp at an mbarrier, by its first lane. (Under racecheck, which does not know what
// __syncwarp orders, by every lane.)
#ifdef RACECHECK
constexpr int kWarp = 32;
#else
constexpr int kWarp = 1;
#endif
DEV void arrive_warp(u32 b) {
  __syncwarp();
  if (kWarp == 32 || (threadIdx.x & 31) == 0) arrive(b);
}
