// GEMV and skinny GEMM: y[m, n] = epilogue(sum_k A[m, k] * B[n, k]) where one operand, the narrow
// one, has at most FEW rows; bound by how fast the other one, the wide operand, is read. Rows of
// the wide operand are contiguous along k and may begin at any element; those of the narrow one may
// have any strides.
//
// A CTA of 8 warps has ROWS rows of the wide operand: LANES neighbouring lanes, of SHARE warps,
// have a row together, and DEEP such rows, which begin at the same place between multiples of 16
// bytes. SPLIT CTAs of a cluster divide k. The narrow operand lies in shared memory as f32, so that
// one value of it serves DEEP rows. Of the wide one,
//   STAGED: a lane reads its next chunks of 16 bytes while it multiplies those before: for long k;
//   else all READS chunks of a lane and row are read at once: for k so short that a CTA waits for
//   memory once.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define STAGED 0
constexpr bool WIDE_A = true;   // A is the wide operand, else B
constexpr bool EARLY = true;    // the wide operand is constant: no wait before it is read
constexpr int FEW = 2;          // rows of the narrow operand at most: 1 to 8
constexpr int DEEP = 2;         // rows of a lane; DEEP * FEW values are at most LANES
constexpr int LANES = 32;       // lanes of a warp that have a row together: 4 to 32
constexpr int SHARE = 1;        // warps that have a row together: 1, or 8 with DEEP 1 (STAGED)
constexpr int PIECE = 4096;     // elements of k in shared memory at a time (STAGED)
constexpr int READS = 4;        // chunks of a lane and row: 1 to 4 (not STAGED, as what follows)
constexpr bool ACROSS = false;  // rows of the narrow operand are neighbours in memory
constexpr bool WHOLE = false;   // rows of the wide operand are whole chunks
constexpr bool NEAR = false;    // those of the narrow one, too: lanes read them, without
                                // shared memory, where they multiply

#endif  // GENERATED
#include "common/base.cuh"
#include "common/cluster_splitk.cuh"
#include "gemm/operands.cuh"

constexpr int CHUNK = 16 / sizeof(T);  // elements of 16 bytes
constexpr int ROWS = 256 / (LANES * SHARE) * DEEP;
constexpr int VALUES = DEEP * FEW, SLOTS = VALUES > 16  ? 32
                                           : VALUES > 8 ? 16
                                           : VALUES > 4 ? 8
                                           : VALUES > 2 ? 4
                                                        : VALUES;
static_assert(VALUES <= LANES, "a lane finishes one value at most");
// Element k of a narrow row lies in plane k % CHUNK at k / CHUNK: lanes that read neighbouring
// chunks at the same offset meet no bank twice.
constexpr int CHUNKS = STAGED ? PIECE / CHUNK : LANES * READS + 2,
              PLANE = (CHUNKS + 31) / 32 * 32 + 32 / CHUNK, FEW_ROW = PLANE * CHUNK;
DEV int place_of(int k) { return k % CHUNK * PLANE + k / CHUNK; }
// Rows of a lane are APART: those that begin anywhere are where they begin at the same place
// between multiples of 16 bytes, rows of whole chunks lie together.
constexpr int APART = !STAGED && WHOLE ? 32 / LANES : 8;

// Where the operands lie, how far it is to the next row (and narrow element along k), how many rows
// they have.
struct Operands {
  const T *wide, *narrow;
  i64 wide_step, narrow_step, narrow_k;
  int rows, fews;
};

DEV void unpack(uint4 w, float (&v)[CHUNK]) {
#if IS_F32
  v[0] = __uint_as_float(w.x), v[1] = __uint_as_float(w.y), v[2] = __uint_as_float(w.z),
  v[3] = __uint_as_float(w.w);
#else
  unpack2((T*)0, w.x, v[0], v[1]), unpack2((T*)0, w.y, v[2], v[3]), unpack2((T*)0, w.z, v[4], v[5]),
      unpack2((T*)0, w.w, v[6], v[7]);
#endif
}
// Sums over pairs of lanes O apart, of the LANES that have them, each of which keeps half of the
// values while there are more than one.
template <int O>
DEV void keep_half(float (&sum)[SLOTS], int lane) {
  constexpr int HALF = SLOTS * O / LANES;
  if (O >= LANES) return;
  if (HALF == 0) {
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], O);
    return;
  }
  const bool upper = lane & O;
#pragma unroll
  for (int q = 0; q < HALF; q++) {
    const float low = sum[q], high = sum[q + HALF],
                given = __shfl_xor_sync(0xffffffffu, upper ? low : high, O);
    sum[q] = (upper ? high : low) + given;
  }
}

#if STAGED
static_assert(PIECE % (32 * CHUNK) == 0, "whole chunks of a warp");
constexpr int AHEAD = VALUES > 16 ? 2 : 16 / DEEP > 8 ? 8 : 16 / DEEP;  // chunks under way of a row
// `count` elements along k of the narrow rows go to shared memory; rows that do not exist are zero.
// A thread has READS reads under way together where there are as many.
template <int READS>
DEV void fill(float* few, const T* from, const Operands& o, int count) {
  constexpr int TURNS = READS > FEW ? READS / FEW : 1;
  if (TURNS > 1 && count <= 256) return fill<FEW>(few, from, o, count);
#pragma unroll 1
  for (int k = threadIdx.x; k < count; k += TURNS * 256) {
    float v[TURNS][FEW];
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int c = 0; c < FEW; c++)
        v[i][c] = c < o.fews && k + i * 256 < count
                      ? to_float(from[c * o.narrow_step + (k + i * 256) * o.narrow_k])
                      : 0.f;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int c = 0; c < FEW; c++)
        if (k + i * 256 < count) few[c * FEW_ROW + place_of(k + i * 256)] = v[i][c];
  }
}
// Adds the products of k in [begin, end) for this lane, `place` of LANES * SHARE, and rows `mine`,
// mine + APART, ...
DEV void accumulate(float (&sum)[SLOTS], float* few, const Operands& o, int mine, int place,
                    int begin, int end) {
  for (int piece = begin; piece < end; piece += PIECE) {
    const int count = mine < o.rows ? min(PIECE, end - piece) : 0;
    // Of every row: elements up to the first multiple of 16 bytes, whole chunks, and what is left.
    // Rows that do not exist are read as the first one.
    const T* const base = o.wide + (i64)(mine)*o.wide_step + piece;
    const int head = min((int)((0 - (u64)base) % 16 / sizeof(T)), count),
              chunks = (count - head) / CHUNK, left = count - head - chunks * CHUNK;
    const T* row[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; i++)
      row[i] = base + (mine + APART * i < o.rows ? APART * i * o.wide_step : 0);
    uint4 read[AHEAD][DEEP];
    auto fetch = [&](uint4(&to)[DEEP], int chunk) {
#pragma unroll
      for (int i = 0; i < DEEP; i++)
        if (chunk < chunks) to[i] = *(const uint4*)(row[i] + head + chunk * CHUNK);
    };
    const int edge = place < head                       ? place
                     : place >= 16 && place - 16 < left ? head + chunks * CHUNK + place - 16
                                                        : -1;
    float at_edge[DEEP];
#pragma unroll
    for (int s = 0; s < AHEAD; s++) fetch(read[s], place + LANES * SHARE * s);
#pragma unroll
    for (int i = 0; i < DEEP; i++) at_edge[i] = edge >= 0 ? to_float(row[i][edge]) : 0.f;
    if (piece == begin) {
      if (EARLY) wait_for_previous();
    } else {
      __syncthreads();
    }
    fill<(SHARE > 1 ? 16 : 8)>(few, o.narrow + piece * o.narrow_k, o, min(PIECE, end - piece));
    __syncthreads();
    if (edge >= 0) {
#pragma unroll
      for (int c = 0; c < FEW; c++) {
        const float other = few[c * FEW_ROW + place_of(edge)];
#pragma unroll
        for (int i = 0; i < DEEP; i++) sum[i * FEW + c] = fmaf(at_edge[i], other, sum[i * FEW + c]);
      }
    }
    int offset[CHUNK];  // of the elements of the first chunk
#pragma unroll
    for (int e = 0; e < CHUNK; e++) offset[e] = place_of(head + e);
    for (int chunk = place; chunk < chunks; chunk += LANES * SHARE * AHEAD) {
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
        if (chunk + LANES * SHARE * s < chunks) {
          float v[DEEP][CHUNK];
#pragma unroll
          for (int i = 0; i < DEEP; i++) unpack(read[s][i], v[i]);
#pragma unroll
          for (int c = 0; c < FEW; c++) {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
              const float other = few[c * FEW_ROW + offset[e] + chunk + LANES * SHARE * s];
#pragma unroll
              for (int i = 0; i < DEEP; i++)
                sum[i * FEW + c] = fmaf(v[i][e], other, sum[i * FEW + c]);
            }
          }
        }
        fetch(read[s], chunk + LANES * SHARE * (AHEAD + s));
      }
    }
  }
}
#else
// Elements of k that a turn reads, wherever a row begins.
constexpr int SPAN = LANES * READS * CHUNK - (WHOLE ? 0 : CHUNK - 1);
constexpr int FILLS = NEAR ? 1 : (FEW * SPAN + 255) / 256;
// The elements of a chunk from `low` to `high`, and zeros: of one that reaches beyond the matrix.
DEV uint4 part_of_chunk(u64 chunk, int low, int high) {
#if IS_F32
  const u32* const at = (const u32*)chunk;
#else
  const u16* const at = (const u16*)chunk;
#endif
  u32 v[CHUNK];
#pragma unroll
  for (int e = 0; e < CHUNK; e++) v[e] = e >= low && e < high ? at[e] : 0;
#if IS_F32
  return make_uint4(v[0], v[1], v[2], v[3]);
#else
  return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
#endif
}
// Adds the products of k in [0, K) for this lane, `place` of LANES, and rows `mine`, mine + APART,
// ...: it reads the chunks that a row meets; of a chunk that reaches beyond the matrix only the
// elements there are.
DEV void accumulate(float (&sum)[SLOTS], float* few, const Operands& o, int mine, int place,
                    int K) {
  const u64 start = (u64)o.wide,
            stop = (u64)(o.wide + (o.rows - 1) * o.wide_step + K);  // of the matrix
#pragma unroll 1
  for (int k0 = 0; k0 < K; k0 += SPAN) {
    const int count = min(SPAN, K - k0);
    // Chunks of the first row, of which the elements from `low` to `high` are its own.
    const u64 from = (u64)(o.wide + mine * o.wide_step + k0), base = (from & ~15ull) + place * 16;
    const int skip = WHOLE ? 0 : (int)(from & 15) / (int)sizeof(T), low = skip - place * CHUNK,
              high = low + count;
    uint4 read[DEEP][READS];
    u32 apart = 0;  // chunks that reach beyond the matrix
#pragma unroll
    for (int i = 0; i < DEEP; i++)
#pragma unroll
      for (int s = 0; s < READS; s++) {
        const u64 at = base + APART * i * o.wide_step * (int)sizeof(T) + s * LANES * 16;
        const bool there =
            mine + APART * i < o.rows && high > s * LANES * CHUNK && low < (s * LANES + 1) * CHUNK;
        read[i][s] = make_uint4(0, 0, 0, 0);
        if (there && (WHOLE || (at >= start && at + 16 <= stop)))
          read[i][s] = *(const uint4*)at;
        else if (there)
          apart |= 1u << (i * READS + s);
      }
    if (EARLY && k0 == 0) wait_for_previous();
    if (NEAR) {
      uint4 near[FEW][READS];
#pragma unroll
      for (int c = 0; c < FEW; c++)
#pragma unroll
        for (int s = 0; s < READS; s++) {
          near[c][s] = make_uint4(0, 0, 0, 0);
          if (c < o.fews && high > s * LANES * CHUNK)
            near[c][s] =
                *(const uint4*)(o.narrow + c * o.narrow_step + k0 + (s * LANES + place) * CHUNK);
        }
#pragma unroll
      for (int s = 0; s < READS; s++) {
        float v[DEEP][CHUNK];
#pragma unroll
        for (int i = 0; i < DEEP; i++) unpack(read[i][s], v[i]);
#pragma unroll
        for (int c = 0; c < FEW; c++) {
          float factor[CHUNK];
          unpack(near[c][s], factor);
#pragma unroll
          for (int e = 0; e < CHUNK; e++)
#pragma unroll
            for (int i = 0; i < DEEP; i++)
              sum[i * FEW + c] = fmaf(v[i][e], factor[e], sum[i * FEW + c]);
        }
      }
      continue;
    }
    T other[FILLS];
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256, c = ACROSS ? t % FEW : t / SPAN,
                k = ACROSS ? t / FEW : t % SPAN;
      other[f] = T{};
      if (c < o.fews && k < count) other[f] = o.narrow[c * o.narrow_step + (k0 + k) * o.narrow_k];
    }
    if (apart) {
#pragma unroll
      for (int i = 0; i < DEEP; i++)
#pragma unroll
        for (int s = 0; s < READS; s++)
          if (apart >> (i * READS + s) & 1) {
            const u64 at = base + APART * i * o.wide_step * (int)sizeof(T) + s * LANES * 16;
            read[i][s] = part_of_chunk(at, low - s * LANES * CHUNK, high - s * LANES * CHUNK);
          }
    }
    if (k0) __syncthreads();
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256, c = ACROSS ? t % FEW : t / SPAN,
                k = ACROSS ? t / FEW : t % SPAN;
      if (t < FEW * SPAN) few[c * FEW_ROW + place_of(CHUNK + k)] = to_float(other[f]);
    }
    __syncthreads();
    int offset[CHUNK];  // of the elements of this lane's first chunk
#pragma unroll
    for (int e = 0; e < CHUNK; e++) offset[e] = place_of(CHUNK + e - skip) + place;
#pragma unroll
    for (int s = 0; s < READS; s++) {
      const int at = s * LANES * CHUNK;
      if (high <= at || low >= at + CHUNK) continue;
      float v[DEEP][CHUNK];
#pragma unroll
      for (int i = 0; i < DEEP; i++) {
        unpack(read[i][s], v[i]);
        if (!WHOLE && (low > at || high < at + CHUNK)) {  // neighbouring rows' elements
#pragma unroll
          for (int e = 0; e < CHUNK; e++) v[i][e] = at + e >= low && at + e < high ? v[i][e] : 0.f;
        }
      }
#pragma unroll
      for (int c = 0; c < FEW; c++)
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
          const float factor = WHOLE || (at + e >= low && at + e < high)
                                   ? few[c * FEW_ROW + offset[e] + s * LANES]
                                   : 0.f;
#pragma unroll
          for (int i = 0; i < DEEP; i++) sum[i * FEW + c] = fmaf(v[i][e], factor, sum[i * FEW + c]);
        }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(256) gemv(PARAMETERS) {
  __shared__ float few[!STAGED && NEAR ? 1 : FEW * FEW_ROW];
  next_may_start();
  TO_BATCH;
  const Operands o =
      WIDE_A ? Operands{a, b, a_m, b_n, b_k, M, N} : Operands{b, a, b_n, a_m, a_k, N, M};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x / SPLIT * ROWS;
  float sum[SLOTS] = {};
  if (!EARLY) wait_for_previous();
#if STAGED
  __shared__ float sums[8 * SLOTS];
  const int part = SPLIT > 1 ? blockIdx.x % SPLIT : 0,
            share = ((K + SPLIT - 1) / SPLIT + 32 * CHUNK - 1) / (32 * CHUNK) * (32 * CHUNK),
            begin = min(part * share, K), end = min(begin + share, K);
  accumulate(sum, few, o, first + warp / SHARE, lane + warp % SHARE * 32, begin, end);
#else
  const int place = lane % LANES, mine = first + (WHOLE ? warp * APART * DEEP + lane / LANES
                                                        : warp + lane / LANES * 8 * DEEP);
  accumulate(sum, few, o, mine, place, K);
#endif
  if (EARLY) wait_for_previous();  // where k is 0, too: what y overwrites has been read
  // Sums of all lanes: with every step a lane keeps half of its values, until lane l of a row has
  // value l / (LANES / SLOTS).
  keep_half<16>(sum, lane);
  keep_half<8>(sum, lane);
  keep_half<4>(sum, lane);
  keep_half<2>(sum, lane);
  keep_half<1>(sum, lane);
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const auto store = [&](int r, int c, float value) {
    const int m = WIDE_A ? r : c, n = WIDE_A ? c : r;
    float v[8] = {value};
    finish(epilogue, v, m, m * ldr, n, 1);
    from_float(y[m * ldy + n], v[0]);
  };
#if STAGED
  if (lane % (32 / SLOTS) == 0) sums[warp * SLOTS + lane / (32 / SLOTS)] = sum[0];
  if (SHARE > 1) {
    __syncthreads();
    if (threadIdx.x < VALUES) {
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < SHARE; w++) total += sums[w * SLOTS + threadIdx.x];
      sums[threadIdx.x] = total;
    }
  }
#if SPLIT > 1
  cluster_sync();
#else
  __syncthreads();
#endif
  const int r = threadIdx.x % ROWS, c = threadIdx.x / ROWS;
  if (part == 0 && c < FEW && first + r < o.rows && c < o.fews) {
    const float* const from = sums + r % 8 * SLOTS + r / 8 * FEW + c;
    float value = *from;
#if SPLIT > 1
#pragma unroll
    for (int peer = 1; peer < SPLIT; peer++) value += from_peer(from, peer);
#endif
    store(first + r, c, value);
  }
#if SPLIT > 1
  cluster_sync();  // no CTA may leave while its sums are read
#endif
#else
  const int value = place / (LANES / SLOTS), r = mine + value / FEW * APART, c = value % FEW;
  if (place % (LANES / SLOTS) == 0 && value < VALUES && r < o.rows && c < o.fews)
    store(r, c, sum[0]);
#endif
}
