// Products of which one operand has few rows and which have few terms: y[m, n] = epilogue(alpha *
// sum_k A[m, k] * B[n, k]), bound by how often a block waits for memory: here once. Rows of the
// other operand, the wide one, are contiguous along k and may begin at any element; the few rows
// may have any strides.
//
// LANES neighbouring lanes have a row of the wide operand together, and DEEP such rows; those of
// one warp are 8 apart, so that they begin at the same place between multiples of 16 bytes. They
// read the chunks of 16 bytes that the row meets, READS each; of a chunk that reaches beyond the
// matrix only the elements there are.
//
// Where rows of the wide operand are whole chunks (WHOLE), all of these hold a row's own elements;
// where rows of the other one are, too (NEAR), each lane reads of those what it multiplies with,
// and no thread waits for another.
//
// The generator defines: T, TO_BATCH, WIDE_A (A is the wide operand, else B), EARLY (the wide
// operand is constant), FEW (most rows of the other one), LANES, DEEP, READS, ACROSS (the few rows
// are contiguous across), WHOLE, NEAR, and the epilogue (struct Epilogue, finish).

constexpr int ROWS = 256 / LANES * DEEP,
              SPAN =
                  LANES * READS * CHUNK -
                  (WHOLE
                       ? 0
                       : CHUNK - 1);  // SPAN: elements that these chunks hold wherever a row begins
constexpr int PLANE = (LANES * READS + 33) / 32 * 32 + 32 / CHUNK,
              FEW_ROW = PLANE * CHUNK;  // element k of a few row lies in plane k % CHUNK
// Rows of a warp, each of which DEEP rows of a lane are so far apart: rows that begin anywhere are
// where they begin at the same place between multiples of 16 bytes, others lie together.
constexpr bool BESIDE = WHOLE;
constexpr int APART = BESIDE ? 32 / LANES : 8;
constexpr int VALUES = DEEP * FEW, SLOTS = VALUES > 16  ? 32
                                           : VALUES > 8 ? 16
                                           : VALUES > 4 ? 8
                                           : VALUES > 2 ? 4
                                                        : VALUES;
constexpr int FILLS = NEAR ? 1 : (FEW * SPAN + 255) / 256;
static_assert(VALUES <= LANES, "a lane finishes one value at most");

DEV int place_of(int k) { return k % CHUNK * PLANE + k / CHUNK; }

extern "C" __global__ void __launch_bounds__(256) gemv_registers(PARAMETERS) {
  __shared__ float few[NEAR ? 1 : FEW * FEW_ROW];
  next_may_start();
  TO_BATCH;
  WIDE_AND_NARROW;
  const int lane = threadIdx.x & 31, place = lane % LANES, warp = threadIdx.x >> 5,
            first = blockIdx.x * ROWS,
            mine = first +
                   (BESIDE ? warp * APART * DEEP + lane / LANES : warp + lane / LANES * 8 * DEEP);
  const u64 start = (u64)wide, stop = (u64)(wide + (rows - 1) * wide_step + K);  // of the matrix
  float sum[SLOTS] = {};
  if (!EARLY) wait_for_producers();
#pragma unroll 1
  for (int k0 = 0; k0 < K; k0 += SPAN) {
    const int count = min(SPAN, K - k0);
    // Chunks of the first row, of which the elements from `low` to `high` are its own.
    const u64 from = (u64)(wide + mine * wide_step + k0), base = (from & ~15ull) + place * 16;
    const int skip = WHOLE ? 0 : (int)(from & 15) / (int)sizeof(T), low = skip - place * CHUNK,
              high = low + count;
    uint4 read[DEEP][READS];
    u32 apart = 0;  // chunks that reach beyond the matrix
#pragma unroll
    for (int i = 0; i < DEEP; i++)
#pragma unroll
      for (int s = 0; s < READS; s++) {
        const u64 at = base + APART * i * wide_step * (int)sizeof(T) + s * LANES * 16;
        const bool there =
            mine + APART * i < rows && high > s * LANES * CHUNK && low < (s * LANES + 1) * CHUNK;
        read[i][s] = make_uint4(0, 0, 0, 0);
        if (there && (WHOLE || (at >= start && at + 16 <= stop)))
          read[i][s] = *(const uint4*)at;
        else if (there)
          apart |= 1u << (i * READS + s);
      }
    if (EARLY && k0 == 0) wait_for_producers();
    if (NEAR) {
      uint4 near[FEW][READS];
#pragma unroll
      for (int c = 0; c < FEW; c++)
#pragma unroll
        for (int s = 0; s < READS; s++) {
          near[c][s] = make_uint4(0, 0, 0, 0);
          if (c < fews && high > s * LANES * CHUNK)
            near[c][s] =
                *(const uint4*)(narrow + c * narrow_step + k0 + (s * LANES + place) * CHUNK);
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
      if (c < fews && k < count) other[f] = narrow[c * narrow_step + (k0 + k) * narrow_k];
    }
    if (apart) {
#pragma unroll
      for (int i = 0; i < DEEP; i++)
#pragma unroll
        for (int s = 0; s < READS; s++)
          if (apart >> (i * READS + s) & 1) {
            const u64 at = base + APART * i * wide_step * (int)sizeof(T) + s * LANES * 16;
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
  if (EARLY && K <= 0) wait_for_producers();  // what y overwrites has been read
  keep_half<16, LANES>(sum, lane);
  keep_half<8, LANES>(sum, lane);
  keep_half<4, LANES>(sum, lane);
  keep_half<2, LANES>(sum, lane);
  keep_half<1, LANES>(sum, lane);
  const int value = place / (LANES / SLOTS), r = mine + value / FEW * APART, c = value % FEW,
            m = WIDE_A ? r : c, n = WIDE_A ? c : r;
  if (place % (LANES / SLOTS) || value >= VALUES || m >= M || n >= N) return;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  float v[8] = {sum[0]};
  finish(epilogue, v, m, m * ldr, n, 1);
  from_float(y[m * ldy + n], v[0]);
}
