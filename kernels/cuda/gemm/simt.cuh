// Products of f32 by FFMA, of operands in any layout whose rows begin anywhere, in tiles of many
// shapes. Elements go one by one (by fours where lines along rows lie at multiples of 16 bytes) to
// shared memory, where neighbouring rows of either operand lie together at each k: through
// registers, which are read while the step before is multiplied, or by asynchronous copies, more of
// which can be under way, but each of which takes shared memory four times as long.
//
// A lane has LANE_M rows by LANE_N columns and reads those of the next k while it multiplies those
// of one; a warp has 4 by 8 lanes. Warps that share rows and columns (WARPS_K)
// take fours of k in turn; their sums meet in shared memory.
#pragma once
#ifndef GENERATED
#define IS_F32 1
#define WIDTH 1
#include "common/instance.cuh"
constexpr int LANE_M = 8, LANE_N = 4;    // rows and columns of a lane, multiples of 4
constexpr int WARPS_M = 2, WARPS_N = 1;  // warps along rows and columns
constexpr int WARPS_K = 2;               // warps that share rows and columns and divide k
constexpr int STAGES = 2;                // steps of k in shared memory
constexpr int BK = 16;                   // k of a step: 16, 32 or 64
constexpr int BESIDE = 4;                // CTAs of an SM that registers must do for
constexpr int A_BYTES = 4, B_BYTES = 4;  // at multiples of which lines along rows lie: 4 or 16
constexpr bool A_ALONG = true, B_ALONG = true;      // the operand is contiguous along k
constexpr bool A_GATHER = false, B_GATHER = false;  // contiguous neither along k nor along rows
constexpr bool STRAIGHT = false;  // lanes write their sums where they belong, 4 columns at a time
#define HELD 1                    // copies go through registers (STAGES is 2), else asynchronously

#endif  // GENERATED
#include "common/cluster_splitk.cuh"
#include "gemm/operands.cuh"

constexpr int LANES_M = 4, LANES_N = 8;  // lanes of a warp along rows and columns
constexpr int BM = LANES_M * LANE_M * WARPS_M, BN = LANES_N * LANE_N * WARPS_N,
              THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;

constexpr int power_of_two(int n) {
  return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2);
}  // the next one

// Copies of ROWS rows of one operand by BK of k through registers, by E elements: a thread has
// every TURN-th row, there one four or every eighth k (ALONG), or every TURN-th line, there every
// ACROSS-th piece. All that it counts on from step to step is where it reads next and where it
// writes: the compiler would work out every address anew.
template <int ROWS, bool ALONG, bool GATHER, int BYTES>
struct Lines {
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH, E = BYTES == 16 ? 4 : 1;
  static constexpr bool FOURS =
      ALONG && E == 4;  // a warp has 2 fours of 16 rows: these lie in different banks
  static constexpr int ACROSS = power_of_two(ROWS / E < 32 ? ROWS / E : 32),
                       WIDE = ALONG ? FOURS ? 1 : BK / 8 : (ROWS + ACROSS * E - 1) / (ACROSS * E);
  static constexpr int TURN = ALONG ? FOURS ? THREADS * 4 / BK : THREADS / 8 : THREADS / ACROSS,
                       ALL = ALONG ? ROWS : BK, TURNS = (ALL + TURN - 1) / TURN;
  static_assert(!FOURS || THREADS / 32 % (BK / 8) == 0, "warps that have one four");
  const float* next;
  i64 hop, step, beside;  // between turns, steps, and rows of a line (GATHER)
  int own, place, room;   // of the first turn: row and k, or line and row; rows from that one on
  u32 mine;               // bytes within a stage
  float held[TURNS * WIDE * E];
  METHOD void begin(const float* base, i64 row_step, i64 k_step, int rows, int k0) {
    const int t = threadIdx.x, fours = BK / 8;
    own = FOURS ? t % 16 + t / 32 / fours * 16 : t / (ALONG ? 8 : ACROSS),
    place = FOURS ? (t / 16 % 2 + t / 32 % fours * 2) * 4 : t % (ALONG ? 8 : ACROSS) * E;
    room = min(rows, ROWS) - (ALONG ? own : place), beside = row_step;
    next = ALONG ? base + own * row_step + k0 + place
                 : base + (k0 + own) * k_step + (GATHER ? place * row_step : place);
    hop = TURN * (ALONG ? row_step : k_step), step = ALONG ? BK : BK * k_step;
    mine = (ALONG ? place * PITCH + own : own * PITCH + place) * 4;
    asm volatile("" : "+l"(next), "+r"(mine), "+r"(own), "+r"(place), "+r"(room));
  }
  // Whether piece w of turn i is there, of a step that has `count` k. A missing k is zero; missing
  // rows are not copied: nothing reads their results. WHOLE: no k of the step is missing, which
  // takes far fewer instructions.
  template <bool WHOLE>
  METHOD bool there(int i, int w, int count) const {
    if (ALONG) return i * TURN < room && (WHOLE || place + 8 * w < count);
    return w * ACROSS * E < room && (BK % TURN == 0 || own + i * TURN < BK) &&
           (WHOLE || own + i * TURN < count);
  }
  template <bool WHOLE>
  METHOD void read(int count) {
    const float* from = next;
    next += step;
#pragma unroll
    for (int i = 0; i < TURNS; i++, from += hop)
#pragma unroll
      for (int w = 0; w < WIDE; w++) {
        float* const to = held + (i * WIDE + w) * E;
        const float* const at = from + (ALONG    ? 8 * w
                                        : GATHER ? w * ACROSS * beside
                                                 : w * ACROSS * E);
        if (there<WHOLE>(i, w, FOURS ? count - 3 : count)) {
          if (E == 4)
            *(float4*)to = *(const float4*)at;
          else
            *to = *at;
        } else if (!WHOLE) {
#pragma unroll
          for (int e = 0; e < E; e++)
            to[e] = FOURS && i * TURN < room && place + e < count ? at[e] : 0.f;
        }
      }
  }
  METHOD void write(u32 stage) const {
    const u32 to = stage + mine;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int w = 0; w < WIDE; w++) {
        if ((ALL % TURN != 0 && own + i * TURN >= ALL) ||
            (!ALONG && ROWS % (ACROSS * E) != 0 && place + w * ACROSS * E >= ROWS))
          continue;
        const float* const v = held + (i * WIDE + w) * E;
        if (FOURS)
#pragma unroll
          for (int e = 0; e < 4; e++) store(to + (e * PITCH + i * TURN) * 4, v[e]);
        else if (ALONG)
          store(to + (8 * w * PITCH + i * TURN) * 4, *v);
        else if (E == 4)
          asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                           to + (i * TURN * PITCH + w * ACROSS * E) * 4),
                       "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                       : "memory");
        else
          store(to + (i * TURN * PITCH + w * ACROSS) * 4, *v);
      }
  }
  DEV void store(u32 to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
  }
};

// The same by asynchronous copies.
template <int ROWS, bool ALONG, bool GATHER, int BYTES>
struct AsyncLines {
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH;
  static constexpr int TURN = THREADS / 8,
                       DOWN = (ROWS + TURN - 1) / TURN;  // ALONG: eight lanes have one row
  static constexpr int E = BYTES == 16 ? 4 : 1, ACROSS = ROWS / E,
                       COPIES = ACROSS *
                                BK;  // fours of a line's rows in turn, else a warp has whole lines
  static constexpr int WARPS = THREADS / 32, LINES = (BK + WARPS - 1) / WARPS;
  const float* base;
  i64 row_step, k_step;
  int rows, k;
  METHOD void copy(float* to, int k0) const {
    if (ALONG) {
      const int own = threadIdx.x / 8, at = threadIdx.x % 8;
      const float* from = base + own * row_step + k0 + at;
      const u32 mine = (u32)__cvta_generic_to_shared(to + at * PITCH + own);
      const i64 hop = TURN * row_step;
#pragma unroll
      for (int i = 0; i < DOWN; i++, from += hop) {
        if (own + i * TURN < min(rows, ROWS)) {
#pragma unroll
          for (int e = 0; e < BK / 8; e++)
            one(mine + (8 * e * PITCH + i * TURN) * 4, from + 8 * e, k0 + at + 8 * e < k);
        }
      }
    } else if (E == 4) {
#pragma unroll
      for (int i = 0; i < (COPIES + THREADS - 1) / THREADS; i++) {
        const int t = threadIdx.x + i * THREADS, line = t / ACROSS, r = t % ACROSS * 4;
        if ((COPIES % THREADS && t >= COPIES) || r >= rows) continue;
        const int bytes = k0 + line < k ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         (u32)__cvta_generic_to_shared(to + line * PITCH + r)),
                     "l"(base + (k0 + line) * k_step + r), "r"(bytes)
                     : "memory");
      }
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const float* from = base + (k0 + warp) * k_step + (GATHER ? lane * row_step : lane);
      const u32 mine = (u32)__cvta_generic_to_shared(to + warp * PITCH + lane);
#pragma unroll
      for (int i = 0; i < LINES; i++, from += WARPS * k_step) {
        if (BK % WARPS && warp + i * WARPS >= BK) break;
#pragma unroll
        for (int r = 0; r < ROWS; r += 32)
          if (r + lane < min(rows, ROWS))
            one(mine + (i * WARPS * PITCH + r) * 4, from + (GATHER ? r * row_step : r),
                k0 + warp + i * WARPS < k);
      }
    }
  }
  DEV void one(u32 to, const float* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
  }
};

// COUNT elements of a line, fours that lie STEP apart; volatile, so that reads ahead stay ahead.
template <int COUNT, int STEP>
DEV void read_line(float (&to)[COUNT], u32 from) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4)
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
                 : "r"(from + i * STEP)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, BESIDE) gemm_simt(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  float* const memory = (float*)shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
            part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, tile = blockIdx.x / SPLIT;
  const int tiles_m = (M + BM - 1) / BM, tile_n = N > BN ? tile / tiles_m : 0,
            m0 = (tile - tile_n * tiles_m) * BM, n0 = tile_n * BN,
            group = warp / (WARPS_M * WARPS_N);
  const int steps = (K + BK - 1) / BK, begin = steps * part / SPLIT * BK,
            end = min(steps * (part + 1) / SPLIT * BK, K);
  // Neighbouring lanes have two of what four lanes lie along: of 16 lanes, which one access of
  // shared memory serves, eight read different places of the other.
  const int of_four = lane % 2 + lane / 16 * 2, of_eight = lane / 2 % 8;
  const int wm = warp % WARPS_M * (LANES_M * LANE_M) + of_four * 4,
            wn = warp / WARPS_M % WARPS_N * (LANES_N * LANE_N) + of_eight * 4;
  TO_BATCH;
#if HELD
  typedef Lines<BM, A_ALONG, A_GATHER, A_BYTES> Left;
  typedef Lines<BN, B_ALONG, B_GATHER, B_BYTES> Right;
  Left left = {};
  Right right = {};
  left.begin(a + m0 * a_m, a_m, a_k, M - m0, begin);
  right.begin(b + n0 * b_n, b_n, b_k, N - n0, begin);
#else
  typedef AsyncLines<BM, A_ALONG, A_GATHER, A_BYTES> Left;
  typedef AsyncLines<BN, B_ALONG, B_GATHER, B_BYTES> Right;
  const Left left{a + m0 * a_m, a_m, a_k, M - m0, end};
  const Right right{b + n0 * b_n, b_n, b_k, N - n0, end};
#endif
  constexpr int STAGE = Left::SIZE + Right::SIZE;
  const u32 first_stage = (u32)__cvta_generic_to_shared(memory);
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::
                   : "memory");  // in this order: else blocks of several kernels wait beside these,
                                 // which then lie unevenly
  float sum[LANE_M][LANE_N] = {};
  // The step from k0 on, which lies at `stage`.
  const auto multiply = [&](u32 stage, int k0) {
    const int fours = (min(BK, end - k0) + 3) / 4;
    u32 from_a = stage + (group * 4 * Left::PITCH + wm) * 4;
    u32 from_b = stage + (Left::SIZE + group * 4 * Right::PITCH + wn) * 4;
    float x[2][LANE_M], z[2][LANE_N];
    read_line<LANE_M, 4 * LANES_M>(x[0], from_a);
    read_line<LANE_N, 4 * LANES_N>(z[0], from_b);
#pragma unroll 1
    for (int q = group; q < fours; q += WARPS_K) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int ahead = e < 3 ? e + 1 : 4 * WARPS_K;
        if (e < 3 || q + WARPS_K < fours) {
          read_line<LANE_M, 4 * LANES_M>(x[(e + 1) % 2], from_a + ahead * Left::PITCH * 4);
          read_line<LANE_N, 4 * LANES_N>(z[(e + 1) % 2], from_b + ahead * Right::PITCH * 4);
        }
#pragma unroll
        for (int i = 0; i < LANE_M; i++)
#pragma unroll
          for (int j = 0; j < LANE_N; j++)
            sum[i][e % 2 ? LANE_N - 1 - j : j] =
                fmaf(x[e % 2][i], z[e % 2][e % 2 ? LANE_N - 1 - j : j],
                     sum[i][e % 2 ? LANE_N - 1 - j : j]);
      }
      from_a += 16 * WARPS_K * Left::PITCH, from_b += 16 * WARPS_K * Right::PITCH;
    }
  };
#if HELD
  const auto read = [&](int k0) {
    if (k0 + BK <= end)
      left.read<true>(BK), right.read<true>(BK);
    else
      left.read<false>(end - k0), right.read<false>(end - k0);
  };
  u32 stage = first_stage;
  read(begin);
#pragma unroll 1
  for (int k0 = begin; k0 < end; k0 += BK) {
    left.write(stage);
    right.write(stage + Left::SIZE * 4);
    __syncthreads();
    if (k0 + BK < end) read(k0 + BK);
    multiply(stage, k0);
    stage = stage == first_stage ? first_stage + STAGE * 4 : first_stage;
  }
#else
  const auto copy = [&](int slot, int k0) {
    if (k0 < end) {
      left.copy(memory + slot * STAGE, k0);
      right.copy(memory + slot * STAGE + Left::SIZE, k0);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) copy(s, begin + s * BK);
  int slot = 0, target = STAGES - 1;
#pragma unroll 1
  for (int k0 = begin; k0 < end; k0 += BK) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    copy(target, k0 + (STAGES - 1) * BK);
    multiply(first_stage + slot * STAGE * 4, k0);
    if (++slot == STAGES) slot = 0;
    if (++target == STAGES) target = 0;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int rows = min(BM, M - m0), columns = min(BN, N - n0);
  T* const corner = y + m0 * ldy + n0;
  if (STRAIGHT) {
#pragma unroll
    for (int j = 0; j < LANE_N; j += 4) {
      const int c = wn + j * LANES_N, n = n0 + c;
      if (c >= columns) break;
      Columns at[4];
#pragma unroll
      for (int e = 0; e < 4; e++) at[e] = columns_at(epilogue, n + e, N);
#pragma unroll
      for (int i = 0; i < LANE_M; i++) {
        const int r = wm + i / 4 * (4 * LANES_M) + i % 4;
        if (r >= rows) continue;
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float v[1] = {sum[i][j + e]};
          finish(epilogue, at[e], v, m0 + r, (m0 + r) * ldr, n + e, N - n - e);
          sum[i][j + e] = v[0];
        }
        float* const to = corner + r * ldy + c;
        if (c + 3 < columns)
          *(float4*)to = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
        else
#pragma unroll
          for (int e = 0; e < 3; e++)
            if (c + e < columns) to[e] = sum[i][j + e];
      }
    }
    return;
  }
  __syncthreads();
  constexpr int ROW = BN + 4;
#pragma unroll
  for (int i = 0; i < LANE_M; i++)
#pragma unroll
    for (int j = 0; j < LANE_N; j += 4)
      *(float4*)(memory + (group * BM + wm + i / 4 * (4 * LANES_M) + i % 4) * ROW + wn +
                 j * LANES_N) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
#if SPLIT > 1
  if (WARPS_K > 1) {  // what the groups have becomes one
    __syncthreads();
    for (int t = threadIdx.x; t < BM * ROW / 4; t += THREADS) {
      float4 v = ((const float4*)memory)[t];
#pragma unroll
      for (int g = 1; g < WARPS_K; g++) {
        const float4 other = ((const float4*)(memory + g * BM * ROW))[t];
        v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
      }
      ((float4*)memory)[t] = v;
    }
  }
  cluster_sync();
#else
  __syncthreads();
#endif
  const auto result = [&](int r, int c) {
    float v[1] = {memory[r * ROW + c]};
#if SPLIT > 1
#pragma unroll
    for (int peer = 1; peer < SPLIT; peer++)
      v[0] += from_peer(memory + r * ROW + c, (part + peer) % SPLIT);
#else
#pragma unroll
    for (int g = 1; g < WARPS_K; g++) v[0] += memory[(g * BM + r) * ROW + c];
#endif
    finish(epilogue, v, m0 + r, (m0 + r) * ldr, n0 + c, columns - c);
    return v[0];
  };
  if (columns >= 24) {
    constexpr int WARPS = THREADS / 32, APART = WARPS * SPLIT, WIDE = (BN + 31) / 32,
                  ROWS = WIDE < 4 ? 4 / WIDE : 1;  // of a turn
#pragma unroll 1
    for (int r = part * WARPS + warp; r < rows; r += ROWS * APART) {
      float v[ROWS][WIDE];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
          if (r + i * APART < rows && c * 32 + lane < columns)
            v[i][c] = result(r + i * APART, c * 32 + lane);
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
          if (r + i * APART < rows && c * 32 + lane < columns)
            corner[(r + i * APART) * ldy + c * 32 + lane] = v[i][c];
    }
  } else {
    for (int t = part * THREADS + threadIdx.x; t < rows * columns; t += THREADS * SPLIT)
      corner[t / columns * ldy + t % columns] = result(t / columns, t % columns);
  }
#if SPLIT > 1
  cluster_sync();  // no block may leave while its sums are read
#endif
}
