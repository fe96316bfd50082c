// f32 GEMM by FFMA, of operands in any layout and alignment. In shared memory both operands are
// contiguous along their rows (MN-major). Elements are copied one by one, or four at a time where
// the operand is MN-major and aligned to 16 bytes: staged through registers, which are filled while
// the step before is multiplied, or by cp.async, with more copies in flight, each of which occupies
// shared memory four times as long.
//
// A thread has a tile of THREAD_M x THREAD_N results and prefetches the operands of the next k from
// shared memory; a warp has 4 x 8 threads. WARPS_K warps with the same results split k: they take
// groups of four k in turn, and their partial sums are added in shared memory.
#pragma once
#ifndef GENERATED
#define IS_F32 1
#define WIDTH 1
#include "common/instance.cuh"
constexpr int THREAD_M = 8, THREAD_N = 4;  // the tile of a thread, multiples of 4
constexpr int WARPS_M = 2, WARPS_N = 1;    // warps along rows and columns
constexpr int WARPS_K = 2;                 // split-K over warps
constexpr int STAGES = 2;                  // steps in shared memory
constexpr int BK = 16;                     // k of a step: 16, 32 or 64
constexpr int MIN_CTAS = 4;                // resident CTAs per SM that registers must suffice for
constexpr int A_BYTES = 4, B_BYTES = 4;    // alignment of MN-major lines: 4 or 16
constexpr bool A_K_MAJOR = true, B_K_MAJOR = true;  // the operand is contiguous along k
constexpr bool A_GATHER = false, B_GATHER = false;  // contiguous neither along k nor along rows
constexpr bool DIRECT_STORE = false;  // threads store their results directly, 4 columns at a time
#define REGISTER_STAGED 1  // copies are staged through registers (STAGES is 2), else cp.async

#endif  // GENERATED
#include "common/cluster_splitk.cuh"
#include "gemm/operands.cuh"

constexpr int LANES_M = 4, LANES_N = 8;  // lanes of a warp along rows and columns
constexpr int BM = LANES_M * THREAD_M * WARPS_M, BN = LANES_N * THREAD_N * WARPS_N,
              THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;

constexpr int power_of_two(int n) {
  return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2);
}  // at least n

// Copies of ROWS rows of an operand by BK of k, staged through registers, E elements at a time.
// K_MAJOR: a thread has every STRIDE-th row, and of it one vector of four k or every eighth k; else
// every STRIDE-th line of k, and of it every ACROSS-th piece. State from step to step is one
// address to read and one offset to write: the compiler would compute every address anew.
template <int ROWS, bool K_MAJOR, bool GATHER, int BYTES>
struct Lines {
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH, E = BYTES == 16 ? 4 : 1;
  static constexpr bool VECTORS =
      K_MAJOR && E == 4;  // a warp has 2 vectors of 16 rows, in different banks
  static constexpr int ACROSS = power_of_two(ROWS / E < 32 ? ROWS / E : 32),
                       PER_PASS =
                           K_MAJOR ? VECTORS ? 1 : BK / 8 : (ROWS + ACROSS * E - 1) / (ACROSS * E);
  static constexpr int STRIDE =
                           K_MAJOR ? VECTORS ? THREADS * 4 / BK : THREADS / 8 : THREADS / ACROSS,
                       ALL = K_MAJOR ? ROWS : BK, PASSES = (ALL + STRIDE - 1) / STRIDE;
  static_assert(!VECTORS || THREADS / 32 % (BK / 8) == 0, "warps that have one four");
  const float* next;
  i64 pass_stride, k_stride, row_stride;  // strides of passes, of steps, and of rows (GATHER)
  int first, column,
      rows_left;  // of the first pass: row and k, or line and row; rows from it on
  u32 offset;     // in bytes, within a stage
  float staged[PASSES * PER_PASS * E];
  METHOD void begin(const float* base, i64 row_step, i64 k_step, int rows, int k0) {
    const int t = threadIdx.x, fours = BK / 8;
    first = VECTORS ? t % 16 + t / 32 / fours * 16 : t / (K_MAJOR ? 8 : ACROSS),
    column = VECTORS ? (t / 16 % 2 + t / 32 % fours * 2) * 4 : t % (K_MAJOR ? 8 : ACROSS) * E;
    rows_left = min(rows, ROWS) - (K_MAJOR ? first : column), row_stride = row_step;
    next = K_MAJOR ? base + first * row_step + k0 + column
                   : base + (k0 + first) * k_step + (GATHER ? column * row_step : column);
    pass_stride = STRIDE * (K_MAJOR ? row_step : k_step), k_stride = K_MAJOR ? BK : BK * k_step;
    offset = (K_MAJOR ? column * PITCH + first : first * PITCH + column) * 4;
    asm volatile("" : "+l"(next), "+r"(offset), "+r"(first), "+r"(column), "+r"(rows_left));
  }
  // Whether piece w of pass i exists, in a step of `count` k. Missing k are zero. Missing rows are
  // not copied: nothing reads their results. WHOLE: the step has BK k, which takes far fewer
  // instructions.
  template <bool WHOLE>
  METHOD bool there(int i, int w, int count) const {
    if (K_MAJOR) return i * STRIDE < rows_left && (WHOLE || column + 8 * w < count);
    return w * ACROSS * E < rows_left && (BK % STRIDE == 0 || first + i * STRIDE < BK) &&
           (WHOLE || first + i * STRIDE < count);
  }
  template <bool WHOLE>
  METHOD void read(int count) {
    const float* from = next;
    next += k_stride;
#pragma unroll
    for (int i = 0; i < PASSES; i++, from += pass_stride)
#pragma unroll
      for (int w = 0; w < PER_PASS; w++) {
        float* const to = staged + (i * PER_PASS + w) * E;
        const float* const at = from + (K_MAJOR  ? 8 * w
                                        : GATHER ? w * ACROSS * row_stride
                                                 : w * ACROSS * E);
        if (there<WHOLE>(i, w, VECTORS ? count - 3 : count)) {
          if (E == 4)
            *(float4*)to = *(const float4*)at;
          else
            *to = *at;
        } else if (!WHOLE) {
#pragma unroll
          for (int e = 0; e < E; e++)
            to[e] = VECTORS && i * STRIDE < rows_left && column + e < count ? at[e] : 0.f;
        }
      }
  }
  METHOD void write(u32 stage) const {
    const u32 to = stage + offset;
#pragma unroll
    for (int i = 0; i < PASSES; i++)
#pragma unroll
      for (int w = 0; w < PER_PASS; w++) {
        if ((ALL % STRIDE != 0 && first + i * STRIDE >= ALL) ||
            (!K_MAJOR && ROWS % (ACROSS * E) != 0 && column + w * ACROSS * E >= ROWS))
          continue;
        const float* const v = staged + (i * PER_PASS + w) * E;
        if (VECTORS)
#pragma unroll
          for (int e = 0; e < 4; e++) store(to + (e * PITCH + i * STRIDE) * 4, v[e]);
        else if (K_MAJOR)
          store(to + (8 * w * PITCH + i * STRIDE) * 4, *v);
        else if (E == 4)
          asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                           to + (i * STRIDE * PITCH + w * ACROSS * E) * 4),
                       "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                       : "memory");
        else
          store(to + (i * STRIDE * PITCH + w * ACROSS) * 4, *v);
      }
  }
  DEV void store(u32 to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
  }
};

// The same by cp.async.
template <int ROWS, bool K_MAJOR, bool GATHER, int BYTES>
struct AsyncLines {
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH;
  static constexpr int STRIDE = THREADS / 8,
                       DOWN = (ROWS + STRIDE - 1) / STRIDE;  // K_MAJOR: eight lanes have one row
  static constexpr int E = BYTES == 16 ? 4 : 1, ACROSS = ROWS / E,
                       COPIES = ACROSS *
                                BK;  // vectors of lines, by thread; E == 1: a warp has whole lines
  static constexpr int WARPS = THREADS / 32, LINES = (BK + WARPS - 1) / WARPS;
  const float* base;
  i64 row_step, k_step;
  int rows, k;
  METHOD void copy(float* to, int k0) const {
    if (K_MAJOR) {
      const int first = threadIdx.x / 8, at = threadIdx.x % 8;
      const float* from = base + first * row_step + k0 + at;
      const u32 offset = (u32)__cvta_generic_to_shared(to + at * PITCH + first);
      const i64 pass_stride = STRIDE * row_step;
#pragma unroll
      for (int i = 0; i < DOWN; i++, from += pass_stride) {
        if (first + i * STRIDE < min(rows, ROWS)) {
#pragma unroll
          for (int e = 0; e < BK / 8; e++)
            one(offset + (8 * e * PITCH + i * STRIDE) * 4, from + 8 * e, k0 + at + 8 * e < k);
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
      const u32 offset = (u32)__cvta_generic_to_shared(to + warp * PITCH + lane);
#pragma unroll
      for (int i = 0; i < LINES; i++, from += WARPS * k_step) {
        if (BK % WARPS && warp + i * WARPS >= BK) break;
#pragma unroll
        for (int r = 0; r < ROWS; r += 32)
          if (r + lane < min(rows, ROWS))
            one(offset + (i * WARPS * PITCH + r) * 4, from + (GATHER ? r * row_step : r),
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

// COUNT elements of a line, vectors of four with a stride of STEP; volatile, so that the compiler
// does not move prefetches behind their use.
template <int COUNT, int STEP>
DEV void read_line(float (&to)[COUNT], u32 from) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4)
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
                 : "r"(from + i * STEP)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) gemm_simt(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  float* const memory = (float*)shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
            part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, tile = blockIdx.x / SPLIT;
  const int tiles_m = (M + BM - 1) / BM, tile_n = N > BN ? tile / tiles_m : 0,
            m0 = (tile - tile_n * tiles_m) * BM, n0 = tile_n * BN,
            group = warp / (WARPS_M * WARPS_N);
  const int steps = (K + BK - 1) / BK, begin = steps * part / SPLIT * BK,
            end = min(steps * (part + 1) / SPLIT * BK, K);
  // Lanes are arranged so that of 16 lanes, which one shared memory access serves, two read
  // different rows and eight read different columns.
  const int of_four = lane % 2 + lane / 16 * 2, of_eight = lane / 2 % 8;
  const int wm = warp % WARPS_M * (LANES_M * THREAD_M) + of_four * 4,
            wn = warp / WARPS_M % WARPS_N * (LANES_N * THREAD_N) + of_eight * 4;
  TO_BATCH;
#if REGISTER_STAGED
  typedef Lines<BM, A_K_MAJOR, A_GATHER, A_BYTES> Left;
  typedef Lines<BN, B_K_MAJOR, B_GATHER, B_BYTES> Right;
  Left left = {};
  Right right = {};
  left.begin(a + m0 * a_m, a_m, a_k, M - m0, begin);
  right.begin(b + n0 * b_n, b_n, b_k, N - n0, begin);
#else
  typedef AsyncLines<BM, A_K_MAJOR, A_GATHER, A_BYTES> Left;
  typedef AsyncLines<BN, B_K_MAJOR, B_GATHER, B_BYTES> Right;
  const Left left{a + m0 * a_m, a_m, a_k, M - m0, end};
  const Right right{b + n0 * b_n, b_n, b_k, N - n0, end};
#endif
  constexpr int STAGE = Left::SIZE + Right::SIZE;
  const u32 first_stage = (u32)__cvta_generic_to_shared(memory);
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::
                   : "memory");  // in this order: else waiting CTAs of later kernels occupy SMs,
                                 // and CTAs of this kernel are distributed unevenly
  float sum[THREAD_M][THREAD_N] = {};
  // Multiplies the step from k0 on, in shared memory at `stage`.
  const auto multiply = [&](u32 stage, int k0) {
    const int fours = (min(BK, end - k0) + 3) / 4;
    u32 from_a = stage + (group * 4 * Left::PITCH + wm) * 4;
    u32 from_b = stage + (Left::SIZE + group * 4 * Right::PITCH + wn) * 4;
    float x[2][THREAD_M], z[2][THREAD_N];
    read_line<THREAD_M, 4 * LANES_M>(x[0], from_a);
    read_line<THREAD_N, 4 * LANES_N>(z[0], from_b);
#pragma unroll 1
    for (int q = group; q < fours; q += WARPS_K) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int ahead = e < 3 ? e + 1 : 4 * WARPS_K;
        if (e < 3 || q + WARPS_K < fours) {
          read_line<THREAD_M, 4 * LANES_M>(x[(e + 1) % 2], from_a + ahead * Left::PITCH * 4);
          read_line<THREAD_N, 4 * LANES_N>(z[(e + 1) % 2], from_b + ahead * Right::PITCH * 4);
        }
#pragma unroll
        for (int i = 0; i < THREAD_M; i++)
#pragma unroll
          for (int j = 0; j < THREAD_N; j++)
            sum[i][e % 2 ? THREAD_N - 1 - j : j] =
                fmaf(x[e % 2][i], z[e % 2][e % 2 ? THREAD_N - 1 - j : j],
                     sum[i][e % 2 ? THREAD_N - 1 - j : j]);
      }
      from_a += 16 * WARPS_K * Left::PITCH, from_b += 16 * WARPS_K * Right::PITCH;
    }
  };
#if REGISTER_STAGED
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
  if (DIRECT_STORE) {
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      const int c = wn + j * LANES_N, n = n0 + c;
      if (c >= columns) break;
      Columns at[4];
#pragma unroll
      for (int e = 0; e < 4; e++) at[e] = columns_at(epilogue, n + e, N);
#pragma unroll
      for (int i = 0; i < THREAD_M; i++) {
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
  for (int i = 0; i < THREAD_M; i++)
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4)
      *(float4*)(memory + (group * BM + wm + i / 4 * (4 * LANES_M) + i % 4) * ROW + wn +
                 j * LANES_N) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
#if SPLIT > 1
  if (WARPS_K > 1) {  // adds up the partial sums of the groups of warps
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
      v[0] += load_dsmem_f32(memory + r * ROW + c, (part + peer) % SPLIT);
#else
#pragma unroll
    for (int g = 1; g < WARPS_K; g++) v[0] += memory[(g * BM + r) * ROW + c];
#endif
    finish(epilogue, v, m0 + r, (m0 + r) * ldr, n0 + c, columns - c);
    return v[0];
  };
  if (columns >= 24) {
    constexpr int WARPS = THREADS / 32, APART = WARPS * SPLIT, PER_PASS = (BN + 31) / 32,
                  ROWS = PER_PASS < 4 ? 4 / PER_PASS : 1;  // rows per iteration
#pragma unroll 1
    for (int r = part * WARPS + warp; r < rows; r += ROWS * APART) {
      float v[ROWS][PER_PASS];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < PER_PASS; c++)
          if (r + i * APART < rows && c * 32 + lane < columns)
            v[i][c] = result(r + i * APART, c * 32 + lane);
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < PER_PASS; c++)
          if (r + i * APART < rows && c * 32 + lane < columns)
            corner[(r + i * APART) * ldy + c * 32 + lane] = v[i][c];
    }
  } else {
    for (int t = part * THREADS + threadIdx.x; t < rows * columns; t += THREADS * SPLIT)
      corner[t / columns * ldy + t % columns] = result(t / columns, t % columns);
  }
#if SPLIT > 1
  cluster_sync();  // no CTA may exit while others read its sums
#endif
}
