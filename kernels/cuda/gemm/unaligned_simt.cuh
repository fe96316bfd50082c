// As flat.cuh, of f32 by FFMA: elements go one by one, in any layout and wherever they lie, to
// shared memory, where neighbouring rows of either operand lie together at each k.
//
// A warp has 32 rows by 32 columns, of which a lane has eight rows by four columns.
//
// The generator defines: WARPS_M, WARPS_N, HELD, A_ALONG, B_ALONG (contiguous along k, else along
// rows), TO_BATCH and the epilogue (struct Epilogue, finish).

constexpr int BK = 32, BM = 32 * WARPS_M, BN = 32 * WARPS_N, THREADS = 32 * WARPS_M * WARPS_N;

// What a thread reads of ROWS rows of one operand by BK of k: of every TURN-th row each eighth k
// (ALONG), or one row at every TURN-th k.
template <int ROWS, bool ALONG>
struct Elements {
  static constexpr int TURN = ALONG ? THREADS / 8 : THREADS / ROWS,
                       LINES = ALONG ? (ROWS + TURN - 1) / TURN : 1,
                       EACH = ALONG ? BK / 8 : BK / TURN;
  static constexpr int PITCH = ROWS + 4, SIZE = BK * PITCH;
  static_assert(ALONG ? ROWS % TURN == 0 : BK % TURN == 0, "threads have as many elements");
  const float* line[LINES];
  i64 step;  // between elements of a line
  int own, at, k;
  float v[LINES][EACH];

  // Rows that do not exist are read as the last one.
  METHOD void begin(const float* base, i64 row_step, i64 k_step, int rows, int all_k) {
    own = ALONG ? threadIdx.x / 8 : threadIdx.x / ROWS,
    at = ALONG ? threadIdx.x % 8 : threadIdx.x % ROWS, k = all_k, step = k_step;
#pragma unroll
    for (int i = 0; i < LINES; i++)
      line[i] = base + min(ALONG ? own + i * TURN : at, rows - 1) * row_step +
                (ALONG ? at : own * k_step);
  }
  METHOD void read(int k0) {
#pragma unroll
    for (int i = 0; i < LINES; i++) {
#pragma unroll
      for (int e = 0; e < EACH; e++)
        v[i][e] = k0 + (ALONG ? at + 8 * e : own + e * TURN) < k
                      ? line[i][ALONG ? 8 * e : e * TURN * step]
                      : 0.f;
      line[i] += ALONG ? BK : BK * step;
    }
  }
  METHOD void write(float* to) const {
#pragma unroll
    for (int i = 0; i < LINES; i++)
#pragma unroll
      for (int e = 0; e < EACH; e++)
        to[ALONG ? (at + 8 * e) * PITCH + own + i * TURN : (own + e * TURN) * PITCH + at] = v[i][e];
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, HELD / THREADS) product_flat(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  float* const memory = (float*)shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tiles_m = (M + BM - 1) / BM,
            tile_n = N > BN ? blockIdx.x / tiles_m : 0;
  const int m0 = (blockIdx.x - tile_n * tiles_m) * BM, n0 = tile_n * BN,
            wm = warp % WARPS_M * 32 + lane / 8 * 8, wn = warp / WARPS_M * 32 + lane % 8 * 4;
  TO_BATCH;
  typedef Elements<BM, A_ALONG> Left;
  typedef Elements<BN, B_ALONG> Right;
  constexpr int STAGE = Left::SIZE + Right::SIZE;
  Left left;
  Right right;
  left.begin(a + m0 * a_m, a_m, a_k, M - m0, K);
  right.begin(b + n0 * b_n, b_n, b_k, N - n0, K);
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::
                   : "memory");  // in this order: else blocks of several kernels wait beside these,
                                 // which then lie unevenly
  float sum[8][4] = {};
  float* stage = memory;
#pragma unroll 1
  for (int k = -BK; k < K; k += BK) {  // in the first turn there is nothing to multiply yet
    if (k >= 0) {
      left.write(stage);
      right.write(stage + Left::SIZE);
      __syncthreads();
    }
    if (k + BK < K) {
      left.read(k + BK);
      right.read(k + BK);
    }
    if (k < 0) continue;
    const float *from_a = stage + wm, *from_b = stage + Left::SIZE + wn;
    const int deep = min(BK, K - k);
#pragma unroll 1
    for (int d = 0; d < deep; d += 4, from_a += 4 * Left::PITCH, from_b += 4 * Right::PITCH) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float x[8], z[4];
        *(float4*)x = *(const float4*)(from_a + e * Left::PITCH);
        *(float4*)(x + 4) = *(const float4*)(from_a + e * Left::PITCH + 4);
        *(float4*)z = *(const float4*)(from_b + e * Right::PITCH);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) sum[i][j] = fmaf(x[i], z[j], sum[i][j]);
      }
    }
    stage = stage == memory ? memory + STAGE : memory;
  }
  __syncthreads();
  constexpr int ROW = BN + 4;
  const int rows = min(BM, M - m0), columns = min(BN, N - n0);
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      float v[2] = {sum[i][j], sum[i][j + 1]};
      if (wm + i < rows && wn + j < columns)
        finish(epilogue, v, m0 + wm + i, (m0 + wm + i) * ldr, n0 + wn + j, columns - wn - j);
      sum[i][j] = v[0], sum[i][j + 1] = v[1];
    }
    *(float4*)(memory + (wm + i) * ROW + wn) =
        make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
  }
  __syncthreads();
  T* const corner = y + m0 * ldy + n0;
  if (columns >= 24) {
    T* row = corner + warp * ldy;
#pragma unroll 1
    for (int r = warp; r < rows; r += THREADS / 32, row += THREADS / 32 * ldy) {
#pragma unroll
      for (int c = 0; c < BN; c += 32)
        if (c + lane < columns) row[c + lane] = memory[r * ROW + c + lane];
    }
  } else {
    for (int t = threadIdx.x; t < rows * columns; t += THREADS) {
      const int r = t / columns, c = t % columns;
      corner[r * ldy + c] = memory[r * ROW + c];
    }
  }
}
