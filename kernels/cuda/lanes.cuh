// Products of f32 by FFMA, of operands in any layout whose rows begin anywhere, in tiles of many shapes. Elements go one by one (by fours where lines along rows lie at
// multiples of 16 bytes) to shared memory, where neighbouring rows of either operand lie together at each k: through registers, which are read while the step before is
// multiplied, or by asynchronous copies, more of which can be under way, but each of which takes shared memory four times as long.
//
// A lane has LANE_M rows by LANE_N columns and reads those of the next k while it multiplies those of one; a warp has 4 by 8 lanes. Warps that share rows and columns
// (WARPS_K) take fours of k in turn; their sums meet in shared memory.
//
// The generator defines: LANE_M, LANE_N, WARPS_M, WARPS_N, WARPS_K, STAGES (steps in shared memory, 2 of which go through registers), BK (k of a step), BESIDE (blocks of a
// multiprocessor), A_ALONG, B_ALONG (contiguous along k), A_GATHER, B_GATHER (contiguous neither along k nor along rows), A_BYTES, B_BYTES (that lines along rows lie at
// multiples of: 16, else 4), SPLIT (blocks of a cluster that divide k), STRAIGHT (lanes write their sums, four columns at a time), TO_BATCH and the epilogue (struct Epilogue, finish).

constexpr bool HELD = STAGES == 2;  // what is copied goes through registers
constexpr int BM = 4 * LANE_M * WARPS_M, BN = 8 * LANE_N * WARPS_N, THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;

// Copies of ROWS rows of one operand by BK of k.
template <int ROWS, bool ALONG, bool GATHER, int BYTES> struct Lines {
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH;
  static constexpr int TURN = THREADS / 8, DOWN = (ROWS + TURN - 1) / TURN;              // ALONG: eight lanes have one row
  static constexpr int E = BYTES == 16 ? 4 : 1, ACROSS = ROWS / E, COPIES = ACROSS * BK;  // fours of a line's rows in turn, else a warp has whole lines
  static constexpr int WARPS = THREADS / 32, LINES = (BK + WARPS - 1) / WARPS, WIDE = (ROWS + 31) / 32;
  static constexpr bool FOURS = ALONG && E == 4;  // of k; a warp has 2 fours of 16 rows
  static constexpr int COUNT = ALONG && !FOURS ? DOWN * (BK / 8) : E == 4 ? (COPIES + THREADS - 1) / THREADS * 4 : LINES * WIDE;
  const float* base;
  i64 row_step, k_step;
  int rows, k;
  float held[HELD ? COUNT : 1];
  DEV int row_of(int t) { return t % 16 + t / 32 % (ROWS / 16) * 16; }
  DEV int four_of(int t) { return t / 16 % 2 + t / (2 * ROWS) * 2; }
  // A missing k is zero; missing rows are not copied: nothing reads their results.
  METHOD void read(int k0) {
    if (FOURS) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) {
        const int t = threadIdx.x + i * THREADS, r = row_of(t), at = k0 + four_of(t) * 4;
        const float* const from = base + r * row_step + at;
        const bool there = r < rows && (COPIES % THREADS == 0 || t < COPIES);
        if (there && at + 3 < k)
          *(float4*)(held + 4 * i) = *(const float4*)from;
        else
#pragma unroll
          for (int e = 0; e < 4; e++) held[4 * i + e] = there && at + e < k ? from[e] : 0.f;
      }
    } else if (ALONG) {
      const int own = threadIdx.x / 8, at = threadIdx.x % 8;
      const float* from = base + own * row_step + k0 + at;
      const i64 hop = TURN * row_step;
#pragma unroll
      for (int i = 0; i < DOWN; i++, from += hop)
#pragma unroll
        for (int e = 0; e < BK / 8; e++) held[i * (BK / 8) + e] = own + i * TURN < min(rows, ROWS) && k0 + at + 8 * e < k ? from[8 * e] : 0.f;
    } else if (E == 4) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) {
        const int t = threadIdx.x + i * THREADS, line = t / ACROSS, r = t % ACROSS * 4;
        const bool there = t < COPIES && r < rows && k0 + line < k;
        *(float4*)(held + 4 * i) = there ? *(const float4*)(base + (k0 + line) * k_step + r) : make_float4(0.f, 0.f, 0.f, 0.f);
      }
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const float* from = base + (k0 + warp) * k_step + (GATHER ? lane * row_step : lane);
#pragma unroll
      for (int i = 0; i < LINES; i++, from += WARPS * k_step)
#pragma unroll
        for (int r = 0; r < WIDE; r++) held[i * WIDE + r] = r * 32 + lane < min(rows, ROWS) && k0 + warp + i * WARPS < min(k, k0 + BK) ? from[GATHER ? r * 32 * row_step : r * 32] : 0.f;
    }
  }
  METHOD void write(float* to) const {
    if (FOURS) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) {
        const int t = threadIdx.x + i * THREADS;
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (COPIES % THREADS == 0 || t < COPIES) to[(four_of(t) * 4 + e) * PITCH + row_of(t)] = held[4 * i + e];
      }
    } else if (ALONG) {
      const int own = threadIdx.x / 8, at = threadIdx.x % 8;
#pragma unroll
      for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int e = 0; e < BK / 8; e++)
          if (ROWS % TURN == 0 || own + i * TURN < ROWS) to[(at + 8 * e) * PITCH + own + i * TURN] = held[i * (BK / 8) + e];
    } else if (E == 4) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) {
        const int t = threadIdx.x + i * THREADS;
        if (COPIES % THREADS == 0 || t < COPIES) *(float4*)(to + t / ACROSS * PITCH + t % ACROSS * 4) = *(const float4*)(held + 4 * i);
      }
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < LINES; i++)
#pragma unroll
        for (int r = 0; r < WIDE; r++)
          if ((ROWS % 32 == 0 || r * 32 + lane < ROWS) && (BK % WARPS == 0 || warp + i * WARPS < BK)) to[(warp + i * WARPS) * PITCH + r * 32 + lane] = held[i * WIDE + r];
    }
  }
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
          for (int e = 0; e < BK / 8; e++) one(mine + (8 * e * PITCH + i * TURN) * 4, from + 8 * e, k0 + at + 8 * e < k);
        }
      }
    } else if (E == 4) {
#pragma unroll
      for (int i = 0; i < (COPIES + THREADS - 1) / THREADS; i++) {
        const int t = threadIdx.x + i * THREADS, line = t / ACROSS, r = t % ACROSS * 4;
        if ((COPIES % THREADS && t >= COPIES) || r >= rows) continue;
        const int bytes = k0 + line < k ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to + line * PITCH + r)), "l"(base + (k0 + line) * k_step + r), "r"(bytes) : "memory");
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
          if (r + lane < min(rows, ROWS)) one(mine + (i * WARPS * PITCH + r) * 4, from + (GATHER ? r * row_step : r), k0 + warp + i * WARPS < k);
      }
    }
  }
  DEV void one(u32 to, const float* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
  }
};

// COUNT elements of a line, fours that lie STEP apart; volatile, so that reads ahead stay ahead.
template <int COUNT, int STEP> DEV void read_line(float (&to)[COUNT], u32 from) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4)
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3]) : "r"(from + i * STEP) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, BESIDE) product_lanes(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  float* const memory = (float*)shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, tile = blockIdx.x / SPLIT;
  const int tiles_m = (M + BM - 1) / BM, tile_n = N > BN ? tile / tiles_m : 0, m0 = (tile - tile_n * tiles_m) * BM, n0 = tile_n * BN, group = warp / (WARPS_M * WARPS_N);
  const int steps = (K + BK - 1) / BK, begin = steps * part / SPLIT * BK, end = min(steps * (part + 1) / SPLIT * BK, K);
  // Neighbouring lanes have two rows: of 16 lanes, which one access of shared memory serves, eight read different columns.
  const int wm = warp % WARPS_M * (4 * LANE_M) + (lane % 2 + lane / 16 * 2) * 4, wn = warp / WARPS_M % WARPS_N * (8 * LANE_N) + lane / 2 % 8 * 4;
  TO_BATCH;
  typedef Lines<BM, A_ALONG, A_GATHER, A_BYTES> Left;
  typedef Lines<BN, B_ALONG, B_GATHER, B_BYTES> Right;
  constexpr int STAGE = Left::SIZE + Right::SIZE;
  Left left{a + m0 * a_m, a_m, a_k, M - m0, end};
  Right right{b + n0 * b_n, b_n, b_k, N - n0, end};
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");  // in this order: else blocks of several kernels wait beside these, which then lie unevenly
  float sum[LANE_M][LANE_N] = {};
  // The step from k0 on, which lies at `stage`.
  const auto multiply = [&](const float* stage, int k0) {
    const int fours = (min(BK, end - k0) + 3) / 4;
    u32 from_a = (u32)__cvta_generic_to_shared(stage + group * 4 * Left::PITCH + wm);
    u32 from_b = (u32)__cvta_generic_to_shared(stage + Left::SIZE + group * 4 * Right::PITCH + wn);
    float x[2][LANE_M], z[2][LANE_N];
    read_line<LANE_M, 16>(x[0], from_a);
    read_line<LANE_N, 32>(z[0], from_b);
#pragma unroll 1
    for (int q = group; q < fours; q += WARPS_K) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int ahead = e < 3 ? e + 1 : 4 * WARPS_K;
        if (e < 3 || q + WARPS_K < fours) {
          read_line<LANE_M, 16>(x[(e + 1) % 2], from_a + ahead * Left::PITCH * 4);
          read_line<LANE_N, 32>(z[(e + 1) % 2], from_b + ahead * Right::PITCH * 4);
        }
#pragma unroll
        for (int i = 0; i < LANE_M; i++)
#pragma unroll
          for (int j = 0; j < LANE_N; j++) sum[i][e % 2 ? LANE_N - 1 - j : j] = fmaf(x[e % 2][i], z[e % 2][e % 2 ? LANE_N - 1 - j : j], sum[i][e % 2 ? LANE_N - 1 - j : j]);
      }
      from_a += 16 * WARPS_K * Left::PITCH, from_b += 16 * WARPS_K * Right::PITCH;
    }
  };
  if (HELD) {
    float* stage = memory;
    left.read(begin);
    right.read(begin);
#pragma unroll 1
    for (int k0 = begin; k0 < end; k0 += BK) {
      left.write(stage);
      right.write(stage + Left::SIZE);
      __syncthreads();
      if (k0 + BK < end) {
        left.read(k0 + BK);
        right.read(k0 + BK);
      }
      multiply(stage, k0);
      stage = stage == memory ? memory + STAGE : memory;
    }
  } else {
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
      const int first = begin + s * BK;
      if (first < end) {
        left.copy(memory + s * STAGE, first);
        right.copy(memory + s * STAGE + Left::SIZE, first);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int slot = 0, target = STAGES - 1;
#pragma unroll 1
    for (int k0 = begin; k0 < end; k0 += BK) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
      __syncthreads();
      const int next = k0 + (STAGES - 1) * BK;
      if (next < end) {
        left.copy(memory + target * STAGE, next);
        right.copy(memory + target * STAGE + Left::SIZE, next);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      multiply(memory + slot * STAGE, k0);
      if (++slot == STAGES) slot = 0;
      if (++target == STAGES) target = 0;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int rows = min(BM, M - m0), columns = min(BN, N - n0);
  T* const corner = y + m0 * ldy + n0;
  if (STRAIGHT) {
#pragma unroll
    for (int j = 0; j < LANE_N; j += 4) {
      const int c = wn + j * 8, n = n0 + c;
      if (c >= columns) break;
      Columns at[4];
#pragma unroll
      for (int e = 0; e < 4; e++) at[e] = columns_at(epilogue, n + e, N);
#pragma unroll
      for (int i = 0; i < LANE_M; i++) {
        const int r = wm + i / 4 * 16 + i % 4;
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
      *(float4*)(memory + (group * BM + wm + i / 4 * 16 + i % 4) * ROW + wn + j * 8) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
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
    for (int peer = 1; peer < SPLIT; peer++) v[0] += from_peer(memory + r * ROW + c, (part + peer) % SPLIT);
#else
#pragma unroll
    for (int g = 1; g < WARPS_K; g++) v[0] += memory[(g * BM + r) * ROW + c];
#endif
    finish(epilogue, v, m0 + r, (m0 + r) * ldr, n0 + c, columns - c);
    return v[0];
  };
  if (columns >= 24) {
    constexpr int WARPS = THREADS / 32, APART = WARPS * SPLIT, WIDE = BN / 32, ROWS = WIDE < 4 ? 4 / WIDE : 1;  // of a turn
#pragma unroll 1
    for (int r = part * WARPS + warp; r < rows; r += ROWS * APART) {
      float v[ROWS][WIDE];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
          if (r + i * APART < rows && c * 32 + lane < columns) v[i][c] = result(r + i * APART, c * 32 + lane);
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
          if (r + i * APART < rows && c * 32 + lane < columns) corner[(r + i * APART) * ldy + c * 32 + lane] = v[i][c];
    }
  } else {
    for (int t = part * THREADS + threadIdx.x; t < rows * columns; t += THREADS * SPLIT) corner[t / columns * ldy + t % columns] = result(t / columns, t % columns);
  }
#if SPLIT > 1
  cluster_sync();  // no block may leave while its sums are read
#endif
}
