// GEMV and skinny GEMM: y[m, n] = epilogue(sum_k A[m, k] * B[n, k]) where one operand, the narrow
// one, has at most NARROW_ROWS rows; bound by the bandwidth at which the other one, the wide
// operand, is read. Rows of the wide operand are contiguous along k, with any alignment; rows of
// the narrow operand may have any strides.
//
// A CTA of 8 warps has ROWS rows of the wide operand. LANES_PER_ROW lanes of WARPS_PER_ROW warps
// share a row, and have ROWS_PER_LANE such rows, with equal alignment to 16 bytes. Split-K over a
// cluster of SPLIT CTAs. The narrow operand is in shared memory as f32, so that a value is read
// once for ROWS_PER_LANE rows. The wide operand is read
//   STAGED: with prefetching: a lane reads its next chunks of 16 bytes while it multiplies those
//     before; for long k;
//   else: at once: all READS chunks of a lane and row; for k so short that a CTA waits for memory
//     once.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define STAGED 0
constexpr bool WIDE_A = true;      // A is the wide operand, else B
constexpr bool EARLY = true;       // the wide operand is constant: no wait before it is read
constexpr int NARROW_ROWS = 2;     // most rows of the narrow operand: 1 to 8
constexpr int ROWS_PER_LANE = 2;   // times NARROW_ROWS: at most LANES_PER_ROW
constexpr int LANES_PER_ROW = 32;  // lanes of a warp that share a row: 4 to 32
constexpr int WARPS_PER_ROW = 1;   // warps that share a row: 1, or 8 with ROWS_PER_LANE 1 (STAGED)
constexpr int PIECE = 4096;        // k of the narrow operand in shared memory at a time (STAGED)
constexpr int READS = 4;  // chunks of a lane and row: 1 to 4 (this and the next: not STAGED)
constexpr bool NARROW_MN_MAJOR = false;  // the narrow operand is contiguous along its rows
constexpr bool WHOLE = false;            // rows of the wide operand are whole chunks
constexpr bool DIRECT = false;           // so are rows of the narrow one: lanes read these into
                                         // registers, without shared memory

#endif  // GENERATED
#include "common/base.cuh"
#include "common/cluster_splitk.cuh"
#include "gemm/operands.cuh"

constexpr int CHUNK = 16 / sizeof(T);  // elements in 16 bytes
constexpr int ROWS = 256 / (LANES_PER_ROW * WARPS_PER_ROW) * ROWS_PER_LANE;
constexpr int VALUES = ROWS_PER_LANE * NARROW_ROWS, SLOTS = VALUES > 16  ? 32
                                                            : VALUES > 8 ? 16
                                                            : VALUES > 4 ? 8
                                                            : VALUES > 2 ? 4
                                                                         : VALUES;
static_assert(VALUES <= LANES_PER_ROW, "a lane finishes one value at most");
// Element k of a narrow row is element k / CHUNK of plane k % CHUNK: lanes that read neighbouring
// chunks at the same offset have no bank conflicts.
constexpr int CHUNKS = STAGED ? PIECE / CHUNK : LANES_PER_ROW * READS + 2,
              PLANE = (CHUNKS + 31) / 32 * 32 + 32 / CHUNK, NARROW_PITCH = PLANE * CHUNK;
DEV int place_of(int k) { return k % CHUNK * PLANE + k / CHUNK; }
// Rows of a lane are ROW_STRIDE apart: 8 where rows are unaligned, so that their alignments are
// equal.
constexpr int ROW_STRIDE = !STAGED && WHOLE ? 32 / LANES_PER_ROW : 8;

// Addresses of the operands, their strides, and numbers of rows.
struct Operands {
  const T *wide, *narrow;
  i64 wide_step, narrow_step, narrow_k;
  int rows, narrow_rows;
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
// Adds values of lanes O apart; each lane keeps half of its values while it has more than one.
template <int O>
DEV void keep_half(float (&sum)[SLOTS], int lane) {
  constexpr int HALF = SLOTS * O / LANES_PER_ROW;
  if (O >= LANES_PER_ROW) return;
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
constexpr int PREFETCH = VALUES > 16 ? 2
                         : 16 / ROWS_PER_LANE > 8
                             ? 8
                             : 16 / ROWS_PER_LANE;  // chunks of a row in flight
// Copies `count` elements along k of the narrow rows to shared memory; missing rows are zero. A
// thread has up to READS loads in flight.
template <int READS>
DEV void fill(float* narrow_smem, const T* from, const Operands& o, int count) {
  constexpr int PASSES = READS > NARROW_ROWS ? READS / NARROW_ROWS : 1;
  if (PASSES > 1 && count <= 256) return fill<NARROW_ROWS>(narrow_smem, from, o, count);
#pragma unroll 1
  for (int k = threadIdx.x; k < count; k += PASSES * 256) {
    float v[PASSES][NARROW_ROWS];
#pragma unroll
    for (int i = 0; i < PASSES; i++)
#pragma unroll
      for (int c = 0; c < NARROW_ROWS; c++)
        v[i][c] = c < o.narrow_rows && k + i * 256 < count
                      ? to_float(from[c * o.narrow_step + (k + i * 256) * o.narrow_k])
                      : 0.f;
#pragma unroll
    for (int i = 0; i < PASSES; i++)
#pragma unroll
      for (int c = 0; c < NARROW_ROWS; c++)
        if (k + i * 256 < count) narrow_smem[c * NARROW_PITCH + place_of(k + i * 256)] = v[i][c];
  }
}
// Accumulates k in [begin, end) for this lane, which is `place` of LANES_PER_ROW * WARPS_PER_ROW,
// and rows `mine`, mine + ROW_STRIDE, ...
DEV void accumulate(float (&sum)[SLOTS], float* narrow_smem, const Operands& o, int mine, int place,
                    int begin, int end) {
  for (int piece = begin; piece < end; piece += PIECE) {
    const int count = mine < o.rows ? min(PIECE, end - piece) : 0;
    // Each row has a head up to the first multiple of 16 bytes, whole chunks, and a tail. Missing
    // rows read the first row.
    const T* const base = o.wide + (i64)(mine)*o.wide_step + piece;
    const int head = min((int)((0 - (u64)base) % 16 / sizeof(T)), count),
              chunks = (count - head) / CHUNK, left = count - head - chunks * CHUNK;
    const T* row[ROWS_PER_LANE];
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; i++)
      row[i] = base + (mine + ROW_STRIDE * i < o.rows ? ROW_STRIDE * i * o.wide_step : 0);
    uint4 read[PREFETCH][ROWS_PER_LANE];
    auto fetch = [&](uint4(&to)[ROWS_PER_LANE], int chunk) {
#pragma unroll
      for (int i = 0; i < ROWS_PER_LANE; i++)
        if (chunk < chunks) to[i] = *(const uint4*)(row[i] + head + chunk * CHUNK);
    };
    const int edge = place < head                       ? place
                     : place >= 16 && place - 16 < left ? head + chunks * CHUNK + place - 16
                                                        : -1;
    float at_edge[ROWS_PER_LANE];
#pragma unroll
    for (int s = 0; s < PREFETCH; s++) fetch(read[s], place + LANES_PER_ROW * WARPS_PER_ROW * s);
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; i++) at_edge[i] = edge >= 0 ? to_float(row[i][edge]) : 0.f;
    if (piece == begin) {
      if (EARLY) pdl_wait();
    } else {
      __syncthreads();
    }
    fill<(WARPS_PER_ROW > 1 ? 16 : 8)>(narrow_smem, o.narrow + piece * o.narrow_k, o,
                                       min(PIECE, end - piece));
    __syncthreads();
    if (edge >= 0) {
#pragma unroll
      for (int c = 0; c < NARROW_ROWS; c++) {
        const float other = narrow_smem[c * NARROW_PITCH + place_of(edge)];
#pragma unroll
        for (int i = 0; i < ROWS_PER_LANE; i++)
          sum[i * NARROW_ROWS + c] = fmaf(at_edge[i], other, sum[i * NARROW_ROWS + c]);
      }
    }
    int offset[CHUNK];  // of the elements of the first chunk
#pragma unroll
    for (int e = 0; e < CHUNK; e++) offset[e] = place_of(head + e);
    for (int chunk = place; chunk < chunks; chunk += LANES_PER_ROW * WARPS_PER_ROW * PREFETCH) {
#pragma unroll
      for (int s = 0; s < PREFETCH; s++) {
        if (chunk + LANES_PER_ROW * WARPS_PER_ROW * s < chunks) {
          float v[ROWS_PER_LANE][CHUNK];
#pragma unroll
          for (int i = 0; i < ROWS_PER_LANE; i++) unpack(read[s][i], v[i]);
#pragma unroll
          for (int c = 0; c < NARROW_ROWS; c++) {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
              const float other = narrow_smem[c * NARROW_PITCH + offset[e] + chunk +
                                              LANES_PER_ROW * WARPS_PER_ROW * s];
#pragma unroll
              for (int i = 0; i < ROWS_PER_LANE; i++)
                sum[i * NARROW_ROWS + c] = fmaf(v[i][e], other, sum[i * NARROW_ROWS + c]);
            }
          }
        }
        fetch(read[s], chunk + LANES_PER_ROW * WARPS_PER_ROW * (PREFETCH + s));
      }
    }
  }
}
#else
// Elements of k that an iteration reads, for any alignment of the row.
constexpr int SPAN = LANES_PER_ROW * READS * CHUNK - (WHOLE ? 0 : CHUNK - 1);
constexpr int FILLS = DIRECT ? 1 : (NARROW_ROWS * SPAN + 255) / 256;
// Elements [low, high) of a chunk that is partly outside of the matrix; the rest is zero.
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
// Accumulates k in [0, K) for this lane, which is `place` of LANES_PER_ROW, and rows `mine`,
// mine + ROW_STRIDE, ... It reads whole chunks, and of a chunk that is partly outside of the matrix
// only the elements inside.
DEV void accumulate(float (&sum)[SLOTS], float* narrow_smem, const Operands& o, int mine, int place,
                    int K) {
  const u64 start = (u64)o.wide,
            stop = (u64)(o.wide + (o.rows - 1) * o.wide_step + K);  // of the matrix
#pragma unroll 1
  for (int k0 = 0; k0 < K; k0 += SPAN) {
    const int count = min(SPAN, K - k0);
    // Chunks that contain the first row, whose elements are [low, high).
    const u64 from = (u64)(o.wide + mine * o.wide_step + k0), base = (from & ~15ull) + place * 16;
    const int skip = WHOLE ? 0 : (int)(from & 15) / (int)sizeof(T), low = skip - place * CHUNK,
              high = low + count;
    uint4 read[ROWS_PER_LANE][READS];
    u32 partial = 0;  // bits of chunks that are partly outside of the matrix
#pragma unroll
    for (int i = 0; i < ROWS_PER_LANE; i++)
#pragma unroll
      for (int s = 0; s < READS; s++) {
        const u64 at =
            base + ROW_STRIDE * i * o.wide_step * (int)sizeof(T) + s * LANES_PER_ROW * 16;
        const bool there = mine + ROW_STRIDE * i < o.rows && high > s * LANES_PER_ROW * CHUNK &&
                           low < (s * LANES_PER_ROW + 1) * CHUNK;
        read[i][s] = make_uint4(0, 0, 0, 0);
        if (there && (WHOLE || (at >= start && at + 16 <= stop)))
          read[i][s] = *(const uint4*)at;
        else if (there)
          partial |= 1u << (i * READS + s);
      }
    if (EARLY && k0 == 0) pdl_wait();
    if (DIRECT) {
      uint4 direct[NARROW_ROWS][READS];
#pragma unroll
      for (int c = 0; c < NARROW_ROWS; c++)
#pragma unroll
        for (int s = 0; s < READS; s++) {
          direct[c][s] = make_uint4(0, 0, 0, 0);
          if (c < o.narrow_rows && high > s * LANES_PER_ROW * CHUNK)
            direct[c][s] = *(const uint4*)(o.narrow + c * o.narrow_step + k0 +
                                           (s * LANES_PER_ROW + place) * CHUNK);
        }
#pragma unroll
      for (int s = 0; s < READS; s++) {
        float v[ROWS_PER_LANE][CHUNK];
#pragma unroll
        for (int i = 0; i < ROWS_PER_LANE; i++) unpack(read[i][s], v[i]);
#pragma unroll
        for (int c = 0; c < NARROW_ROWS; c++) {
          float factor[CHUNK];
          unpack(direct[c][s], factor);
#pragma unroll
          for (int e = 0; e < CHUNK; e++)
#pragma unroll
            for (int i = 0; i < ROWS_PER_LANE; i++)
              sum[i * NARROW_ROWS + c] = fmaf(v[i][e], factor[e], sum[i * NARROW_ROWS + c]);
        }
      }
      continue;
    }
    T other[FILLS];
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256, c = NARROW_MN_MAJOR ? t % NARROW_ROWS : t / SPAN,
                k = NARROW_MN_MAJOR ? t / NARROW_ROWS : t % SPAN;
      other[f] = T{};
      if (c < o.narrow_rows && k < count)
        other[f] = o.narrow[c * o.narrow_step + (k0 + k) * o.narrow_k];
    }
    if (partial) {
#pragma unroll
      for (int i = 0; i < ROWS_PER_LANE; i++)
#pragma unroll
        for (int s = 0; s < READS; s++)
          if (partial >> (i * READS + s) & 1) {
            const u64 at =
                base + ROW_STRIDE * i * o.wide_step * (int)sizeof(T) + s * LANES_PER_ROW * 16;
            read[i][s] = part_of_chunk(at, low - s * LANES_PER_ROW * CHUNK,
                                       high - s * LANES_PER_ROW * CHUNK);
          }
    }
    if (k0) __syncthreads();
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256, c = NARROW_MN_MAJOR ? t % NARROW_ROWS : t / SPAN,
                k = NARROW_MN_MAJOR ? t / NARROW_ROWS : t % SPAN;
      if (t < NARROW_ROWS * SPAN)
        narrow_smem[c * NARROW_PITCH + place_of(CHUNK + k)] = to_float(other[f]);
    }
    __syncthreads();
    int offset[CHUNK];  // of the elements of this lane's first chunk
#pragma unroll
    for (int e = 0; e < CHUNK; e++) offset[e] = place_of(CHUNK + e - skip) + place;
#pragma unroll
    for (int s = 0; s < READS; s++) {
      const int at = s * LANES_PER_ROW * CHUNK;
      if (high <= at || low >= at + CHUNK) continue;
      float v[ROWS_PER_LANE][CHUNK];
#pragma unroll
      for (int i = 0; i < ROWS_PER_LANE; i++) {
        unpack(read[i][s], v[i]);
        if (!WHOLE && (low > at || high < at + CHUNK)) {  // elements of neighbouring rows
#pragma unroll
          for (int e = 0; e < CHUNK; e++) v[i][e] = at + e >= low && at + e < high ? v[i][e] : 0.f;
        }
      }
#pragma unroll
      for (int c = 0; c < NARROW_ROWS; c++)
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
          const float factor = WHOLE || (at + e >= low && at + e < high)
                                   ? narrow_smem[c * NARROW_PITCH + offset[e] + s * LANES_PER_ROW]
                                   : 0.f;
#pragma unroll
          for (int i = 0; i < ROWS_PER_LANE; i++)
            sum[i * NARROW_ROWS + c] = fmaf(v[i][e], factor, sum[i * NARROW_ROWS + c]);
        }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(256) gemv(PARAMETERS) {
  __shared__ float narrow_smem[!STAGED && DIRECT ? 1 : NARROW_ROWS * NARROW_PITCH];
  pdl_launch_dependents();
  TO_BATCH;
  const Operands o =
      WIDE_A ? Operands{a, b, a_m, b_n, b_k, M, N} : Operands{b, a, b_n, a_m, a_k, N, M};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x / SPLIT * ROWS;
  float sum[SLOTS] = {};
  if (!EARLY) pdl_wait();
#if STAGED
  __shared__ float sums[8 * SLOTS];
  const int part = SPLIT > 1 ? blockIdx.x % SPLIT : 0,
            k_per_cta = ((K + SPLIT - 1) / SPLIT + 32 * CHUNK - 1) / (32 * CHUNK) * (32 * CHUNK),
            begin = min(part * k_per_cta, K), end = min(begin + k_per_cta, K);
  accumulate(sum, narrow_smem, o, first + warp / WARPS_PER_ROW, lane + warp % WARPS_PER_ROW * 32,
             begin, end);
#else
  const int place = lane % LANES_PER_ROW,
            mine = first + (WHOLE ? warp * ROW_STRIDE * ROWS_PER_LANE + lane / LANES_PER_ROW
                                  : warp + lane / LANES_PER_ROW * 8 * ROWS_PER_LANE);
  accumulate(sum, narrow_smem, o, mine, place, K);
#endif
  if (EARLY) pdl_wait();  // also if K is 0: earlier kernels have read what y overwrites
  // Sums over lanes: with every step a lane keeps half of its values, until lane l of a row has
  // value l / (LANES_PER_ROW / SLOTS).
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
  if (WARPS_PER_ROW > 1) {
    __syncthreads();
    if (threadIdx.x < VALUES) {
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS_PER_ROW; w++) total += sums[w * SLOTS + threadIdx.x];
      sums[threadIdx.x] = total;
    }
  }
#if SPLIT > 1
  cluster_sync();
#else
  __syncthreads();
#endif
  const int r = threadIdx.x % ROWS, c = threadIdx.x / ROWS;
  if (part == 0 && c < NARROW_ROWS && first + r < o.rows && c < o.narrow_rows) {
    const float* const from = sums + r % 8 * SLOTS + r / 8 * NARROW_ROWS + c;
    float value = *from;
#if SPLIT > 1
#pragma unroll
    for (int peer = 1; peer < SPLIT; peer++) value += load_dsmem_f32(from, peer);
#endif
    store(first + r, c, value);
  }
#if SPLIT > 1
  cluster_sync();  // no CTA may exit while others read its sums
#endif
#else
  const int value = place / (LANES_PER_ROW / SLOTS), r = mine + value / NARROW_ROWS * ROW_STRIDE,
            c = value % NARROW_ROWS;
  if (place % (LANES_PER_ROW / SLOTS) == 0 && value < VALUES && r < o.rows && c < o.narrow_rows)
    store(r, c, sum[0]);
#endif
}
