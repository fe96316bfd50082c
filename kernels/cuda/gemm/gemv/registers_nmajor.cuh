// Products of which one operand has few rows and which have few terms, as dots.cuh, where the other
// one, the wide operand, is contiguous along its rows.
//
// LANES neighbouring lanes have a block's rows together, as chunks of 16 bytes; the others of a
// warp have other k, as warps do: READS each. Those of one warp are 8 apart, so that they begin at
// the same place between multiples of 16 bytes. Of a chunk that reaches beyond the matrix only the
// elements there are are read.
//
// The generator defines: T, TO_BATCH, WIDE_A, FEW, LANES, READS, ACROSS as for dots.cuh, and the
// epilogue (struct Epilogue, finish).

constexpr int ROWS = (LANES - 1) * CHUNK, TURNS = 32 / LANES, SPAN = 8 * TURNS * READS,
              FILLS = (FEW * SPAN + 255) / 256;
constexpr int ALL = FEW * CHUNK, KEPT = ALL / TURNS;  // sums of a lane, and those it has once the
                                                      // lanes that share rows have added theirs up
static_assert(ALL % TURNS == 0, "these lanes divide a lane's sums");

extern "C" __global__ void __launch_bounds__(256) product_dots(PARAMETERS) {
  __shared__ float few[FEW * SPAN];
  __shared__ float sums[8 * ALL * LANES];  // of each warp
  next_may_start();
  TO_BATCH;
  WIDE_AND_NARROW;
  const int lane = threadIdx.x & 31, place = lane % LANES, turn = lane / LANES,
            warp = threadIdx.x >> 5, first = blockIdx.x * ROWS, mine = warp + 8 * turn;
  const u64 start = (u64)wide, stop = (u64)(wide + (K - 1) * wide_k + rows);  // of the matrix
  const u64 from = (u64)(wide + first + warp * wide_k),
            base = (from & ~15ull) + 8 * turn * wide_k * (int)sizeof(T) +
                   place * 16;  // this lane's chunk of its first k
  const int row = first - (int)(from & 15) / (int)sizeof(T) + place * CHUNK;
  const bool active = row < min(rows, first + ROWS) && row + CHUNK > first;
  float sum[ALL] = {};
  wait_for_producers();
#pragma unroll 1
  for (int k0 = 0; k0 < K; k0 += SPAN) {
    uint4 read[READS];
    u32 apart = 0;  // chunks that reach beyond the matrix
#pragma unroll
    for (int s = 0; s < READS; s++) {
      const int k = k0 + s * 8 * TURNS;
      const u64 at = base + k * wide_k * (int)sizeof(T);
      const bool there = active && k + mine < K;
      read[s] = make_uint4(0, 0, 0, 0);
      if (there && at >= start && at + 16 <= stop)
        read[s] = *(const uint4*)at;
      else if (there)
        apart |= 1u << s;
    }
    T other[FILLS];
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256, c = ACROSS ? t % FEW : t / SPAN,
                k = k0 + (ACROSS ? t / FEW : t % SPAN);
      other[f] = T{};
      if (c < fews && k < K) other[f] = narrow[c * narrow_step + k * narrow_k];
    }
    if (apart) {
#pragma unroll
      for (int s = 0; s < READS; s++)
        if (apart >> s & 1)
          read[s] = part_of_chunk(base + (k0 + s * 8 * TURNS) * wide_k * (int)sizeof(T), -row,
                                  rows - row);
    }
    if (k0) __syncthreads();
#pragma unroll
    for (int f = 0; f < FILLS; f++) {
      const int t = threadIdx.x + f * 256;
      if (FEW * SPAN % 256 == 0 || t < FEW * SPAN)
        few[ACROSS ? t % FEW * SPAN + t / FEW : t] = to_float(other[f]);
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < READS; s++) {
      float v[CHUNK];
      unpack(read[s], v);
#pragma unroll
      for (int c = 0; c < FEW; c++) {
        const float factor = few[c * SPAN + s * 8 * TURNS + mine];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) sum[c * CHUNK + e] = fmaf(v[e], factor, sum[c * CHUNK + e]);
      }
    }
  }
  if (16 >= LANES) keep_half<16, 32>(sum, lane);
  if (8 >= LANES) keep_half<8, 32>(sum, lane);
  if (4 >= LANES) keep_half<4, 32>(sum, lane);
#pragma unroll
  for (int q = 0; q < KEPT; q++)
    sums[(warp * ALL + q) * LANES + turn * KEPT * LANES + place] = sum[q];
  __syncthreads();
#pragma unroll
  for (int t = threadIdx.x; t < FEW * ROWS; t += 256) {
    const int c = t / ROWS, r = t % ROWS, m = WIDE_A ? first + r : c, n = WIDE_A ? c : first + r;
    if (m >= M || n >= N) continue;
    float v[8] = {};
#pragma unroll
    for (int w = 0; w < 8; w++) {
      const int at = r + (int)((u64)(wide + first + w * wide_k) & 15) / (int)sizeof(T);
      v[0] += sums[(w * ALL + c * CHUNK + at % CHUNK) * LANES + at / CHUNK];
    }
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    finish(epilogue, v, m, m * ldr, n, 1);
    from_float(y[m * ldy + n], v[0]);
  }
}
