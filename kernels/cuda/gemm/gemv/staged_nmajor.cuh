// Products of which one operand has few rows, as thin.cuh, where the other one, the wide operand,
// is contiguous along its rows: k goes in steps.
//
// A block has ROWS rows of the wide operand. Each of its 8 warps has every eighth k: these begin at
// the same place between multiples of 16 bytes, so that a lane has the same rows at each of them.
// SPLIT blocks of a cluster divide k.
//
// The generator defines: T, TO_BATCH, WIDE_A, EARLY, FEW, SPLIT, PIECE as for thin.cuh, and the
// epilogue (struct Epilogue, finish).

constexpr int ROWS = 31 * CHUNK, AHEAD = 8;

extern "C" __global__ void __launch_bounds__(256) product_thin(PARAMETERS) {
  __shared__ float few[FEW * PIECE];
  __shared__ float sums[8 * 32 * CHUNK];  // of each warp
  __shared__ float total[FEW * ROWS];
  __shared__ int skipped[8];  // elements of a warp's first chunk before the block's first row
  next_may_start();
  TO_BATCH;
  WIDE_AND_NARROW;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
            part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, first = blockIdx.x / SPLIT * ROWS;
  const int share = ((K + SPLIT - 1) / SPLIT + 7) / 8 * 8, begin = min(part * share, K),
            end = min(begin + share, K);
  float sum[FEW][CHUNK] = {};
  // A lane's chunk of this warp's first k, and the row of its first element.
  const T* const start = wide + first + (i64)(begin + warp) * wide_k;
  const int skip = (int)((u64)start % 16 / sizeof(T)), row = first - skip + lane * CHUNK;
  const bool active = row < min(rows, first + ROWS) && row + CHUNK > first;
  // Its chunks at k from `low` on, up to `high`, lie within the matrix; the others hold elements
  // before its first or after its last one.
  const int pitch = (int)min(wide_k, (i64)CHUNK), before = -row, behind = row + CHUNK - rows;
  const int low = before > 0 ? pitch ? min((before + pitch - 1) / pitch, K) : K : 0,
            high = behind > 0 ? pitch ? max(K - (behind + pitch - 1) / pitch, low) : low : K;
  if (lane == 0) skipped[warp] = skip;
  wait_for_producers();
  for (int piece = begin; piece < end; piece += PIECE) {
    const int count = min(PIECE, end - piece), from = active ? low - piece : count,
              to = min(count, high - piece);
    uint4 read[AHEAD];
    auto fetch = [&](uint4& to_read, int at) {
      if (at >= from && at < to) to_read = *(const uint4*)(wide + row + (i64)(piece + at) * wide_k);
    };
#pragma unroll
    for (int s = 0; s < AHEAD; s++) fetch(read[s], warp + 8 * s);
    if (piece != begin) __syncthreads();
    fill<FEW, 8>(few, narrow + piece * narrow_k, narrow_step, narrow_k, fews, count,
                 [](int c, int k) { return c * PIECE + k; });
    __syncthreads();
    for (int k = warp; k < count; k += 8 * AHEAD) {
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
        if (k + 8 * s >= from && k + 8 * s < to) {
          float v[CHUNK];
          unpack(read[s], v);
#pragma unroll
          for (int c = 0; c < FEW; c++) {
            const float other = few[c * PIECE + k + 8 * s];
#pragma unroll
            for (int e = 0; e < CHUNK; e++) sum[c][e] = fmaf(v[e], other, sum[c][e]);
          }
        }
        fetch(read[s], k + 8 * (AHEAD + s));
      }
    }
  }
  if (active && (low > 0 || high < K)) {
    for (int k = begin + warp;; k += 8) {
      if (k >= low && k < high) k += (high - k + 7) / 8 * 8;
      if (k >= end) break;
#pragma unroll
      for (int c = 0; c < FEW; c++) {
        const float other = c < fews ? to_float(narrow[c * narrow_step + k * narrow_k]) : 0.f;
#pragma unroll
        for (int e = 0; e < CHUNK; e++)
          if (row + e >= 0 && row + e < rows)
            sum[c][e] = fmaf(to_float(wide[row + e + k * wide_k]), other, sum[c][e]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < FEW; c++) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < CHUNK; e++) sums[(warp * CHUNK + e) * 32 + lane] = sum[c][e];
    __syncthreads();
    if (threadIdx.x < ROWS) {
      float v = 0.f;
#pragma unroll
      for (int w = 0; w < 8; w++) {
        const int at = threadIdx.x + skipped[w];
        v += sums[(w * CHUNK + at % CHUNK) * 32 + at / CHUNK];
      }
      total[c * ROWS + threadIdx.x] = v;
    }
  }
#if SPLIT > 1
  cluster_sync();
#endif
  const int m0 = WIDE_A ? first + threadIdx.x : 0, n0 = WIDE_A ? 0 : first + threadIdx.x;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  if (part == 0 && threadIdx.x < ROWS) {
    for (int c = 0; c < FEW; c++) {
      const int m = WIDE_A ? m0 : c, n = WIDE_A ? c : n0;
      if (m >= M || n >= N) break;
      const float* const from = total + c * ROWS + threadIdx.x;  // this thread's own
      float v[8] = {*from};
#if SPLIT > 1
#pragma unroll
      for (int peer = 1; peer < SPLIT; peer++) v[0] += from_peer(from, peer);
#endif
      finish(epilogue, v, m, m * ldr, n, 1);
      from_float(y[m * ldy + n], v[0]);
    }
  }
#if SPLIT > 1
  cluster_sync();  // no block may leave while its sums are read
#endif
}
