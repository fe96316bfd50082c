// Products of few terms: y[m, n] = epilogue(alpha * sum_k A[m, k] * B[n, k]), bound by how fast y
// is written. A thread has one row of the wide operand in registers and multiplies it with OTHERS
// rows of the other one, which lie in shared memory; both operands may have any strides.
//
// The generator defines: T, TO_BATCH, WIDE_A (A is the wide operand, else B), DEPTH (terms),
// OTHERS, and the epilogue (struct Epilogue, finish).

constexpr int FOURS = (DEPTH + 3) / 4;

extern "C" __global__ void __launch_bounds__(128) product_short(PARAMETERS) {
  __shared__ float4 other[OTHERS * FOURS];
  TO_BATCH;
  WIDE_AND_NARROW;
  const int tiles = (fews + OTHERS - 1) / OTHERS;
  const int row = blockIdx.x / tiles * 128 + threadIdx.x, first = blockIdx.x % tiles * OTHERS,
            count = min(OTHERS, fews - first);
  next_may_start();
  wait_for_producers();
  float v[4 * FOURS];
#pragma unroll
  for (int k = 0; k < 4 * FOURS; k++)
    v[k] = k < DEPTH && row < rows ? to_float(wide[row * wide_step + k * wide_k]) : 0.f;
  for (int t = threadIdx.x; t < OTHERS * FOURS * 4; t += 128) {
    const int r = t / (FOURS * 4), k = t % (FOURS * 4);
    ((float*)other)[t] =
        r < count && k < DEPTH ? to_float(narrow[(first + r) * narrow_step + k * narrow_k]) : 0.f;
  }
  __syncthreads();
  if (row >= rows) return;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  Columns columns;
  if (!WIDE_A) columns = columns_at(epilogue, row, row + 1);
#pragma unroll 4
  for (int r = 0; r < count; r++) {
    float sum = 0.f;
#pragma unroll
    for (int q = 0; q < FOURS; q++) {
      const float4 f = other[r * FOURS + q];
      sum = fmaf(v[4 * q], f.x, sum), sum = fmaf(v[4 * q + 1], f.y, sum),
      sum = fmaf(v[4 * q + 2], f.z, sum), sum = fmaf(v[4 * q + 3], f.w, sum);
    }
    const int m = WIDE_A ? row : first + r, n = WIDE_A ? first + r : row;
    if (WIDE_A) columns = columns_at(epilogue, n, n + 1);
    float one[8] = {sum};
    finish(epilogue, columns, one, m, m * ldr, n, 1);
    from_float(y[m * ldy + n], one[0]);
  }
}
