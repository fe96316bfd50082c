// Products of which one operand has few rows: y[m, n] = epilogue(alpha * sum_k A[m, k] * B[n, k]),
// bound by how fast the other operand is read. Rows of that one, the wide operand, are contiguous
// along k and may begin at any element; the few rows, in any strides, are multiplied with it as
// they lie in shared memory.
//
// A block has ROWS rows of the wide operand, and of these each of its 8 warps has DEEP that are 8
// apart: they begin at the same place between multiples of 16 bytes, so that one value of the few
// rows, at any offset, serves all of them. Or all warps SHARE one row. SPLIT blocks of a cluster
// divide k.
//
// The generator defines: T, TO_BATCH, WIDE_A (A is the wide operand, else B), EARLY (the wide
// operand is constant), FEW (most rows of the other one), DEEP, SHARE (1, or 8 with DEEP 1), SPLIT,
// PIECE (elements of k that shared memory has at a time), and the epilogue (struct Epilogue,
// finish).

constexpr int ROWS = 8 / SHARE * DEEP, LANES = 32 * SHARE,
              AHEAD = DEEP * FEW > 16 ? 2
                      : 16 / DEEP > 8 ? 8
                                      : 16 / DEEP;
// Element k of a few row lies in plane k % CHUNK at k / CHUNK: lanes that read neighbouring chunks
// at the same offset meet no bank twice.
constexpr int PLANE = (PIECE / CHUNK + 31) / 32 * 32 + 32 / CHUNK, FEW_ROW = PLANE * CHUNK;
constexpr int FILLED = SHARE > 1 ? 16 : 8;  // reads of the few rows that are under way at a time
constexpr int VALUES = DEEP * FEW, SLOTS = VALUES > 16  ? 32
                                           : VALUES > 8 ? 16
                                           : VALUES > 4 ? 8
                                           : VALUES > 2 ? 4
                                                        : VALUES;
static_assert(VALUES <= 32 && PIECE % (32 * CHUNK) == 0, "a lane finishes one value at most");

DEV int place_of(int k) { return k % CHUNK * PLANE + k / CHUNK; }

extern "C" __global__ void __launch_bounds__(256) gemv_staged(PARAMETERS) {
  __shared__ float few[FEW * FEW_ROW];
  __shared__ float sums[8 * SLOTS];
  next_may_start();
  TO_BATCH;
  WIDE_AND_NARROW;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
            part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, first = blockIdx.x / SPLIT * ROWS;
  const int share = ((K + SPLIT - 1) / SPLIT + 32 * CHUNK - 1) / (32 * CHUNK) * (32 * CHUNK),
            begin = min(part * share, K), end = min(begin + share, K);
  const int mine = first + warp / SHARE,
            place = lane +
                    warp % SHARE *
                        32;  // the first row of this warp, this lane's place among those of the row
  float sum[SLOTS] = {};
  if (!EARLY) wait_for_producers();
  for (int piece = begin; piece < end; piece += PIECE) {
    const int count = mine < rows ? min(PIECE, end - piece) : 0;
    // Of every row: elements up to the first multiple of 16 bytes, whole chunks, and what is left.
    // Rows that do not exist are read as the first one.
    const T* const base = wide + (i64)(mine)*wide_step + piece;
    const int head = min((int)((0 - (u64)base) % 16 / sizeof(T)), count),
              chunks = (count - head) / CHUNK, left = count - head - chunks * CHUNK;
    const T* row[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; i++) row[i] = base + (mine + 8 * i < rows ? 8 * i * wide_step : 0);
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
    for (int s = 0; s < AHEAD; s++) fetch(read[s], place + LANES * s);
#pragma unroll
    for (int i = 0; i < DEEP; i++) at_edge[i] = edge >= 0 ? to_float(row[i][edge]) : 0.f;
    if (piece == begin) {
      if (EARLY) wait_for_producers();
    } else {
      __syncthreads();
    }
    fill<FEW, FILLED>(few, narrow + piece * narrow_k, narrow_step, narrow_k, fews,
                      min(PIECE, end - piece),
                      [](int c, int k) { return c * FEW_ROW + place_of(k); });
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
    for (int chunk = place; chunk < chunks; chunk += LANES * AHEAD) {
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
        if (chunk + LANES * s < chunks) {
          float v[DEEP][CHUNK];
#pragma unroll
          for (int i = 0; i < DEEP; i++) unpack(read[s][i], v[i]);
#pragma unroll
          for (int c = 0; c < FEW; c++) {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
              const float other = few[c * FEW_ROW + offset[e] + chunk + LANES * s];
#pragma unroll
              for (int i = 0; i < DEEP; i++)
                sum[i * FEW + c] = fmaf(v[i][e], other, sum[i * FEW + c]);
            }
          }
        }
        fetch(read[s], chunk + LANES * (AHEAD + s));
      }
    }
  }
  if (begin >= end) wait_for_producers();  // what y overwrites has been read
  // Sums of all lanes: with every step a lane keeps half of its values, until lane l has value l /
  // (32 / SLOTS).
  keep_half<16, 32>(sum, lane);
  keep_half<8, 32>(sum, lane);
  keep_half<4, 32>(sum, lane);
  keep_half<2, 32>(sum, lane);
  keep_half<1, 32>(sum, lane);
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
  const int r = threadIdx.x % ROWS, c = threadIdx.x / ROWS, m = WIDE_A ? first + r : c,
            n = WIDE_A ? c : first + r;
  if (part == 0 && c < FEW && m < M && n < N) {
    const float* const from = sums + r % 8 * SLOTS + r / 8 * FEW + c;
    float v[8] = {*from};
#if SPLIT > 1
#pragma unroll
    for (int peer = 1; peer < SPLIT; peer++) v[0] += from_peer(from, peer);
#endif
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    finish(epilogue, v, m, m * ldr, n, 1);
    from_float(y[m * ldy + n], v[0]);
  }
#if SPLIT > 1
  cluster_sync();  // no block may leave while its sums are read
#endif
}
