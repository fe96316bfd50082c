// Rows first..first+count of [rows, SIZE] to shared memory, WIDTH elements at a time; zeros from
// row `rows` on and up to column PADDED.
template <int SIZE, int PADDED, int PITCH, int WIDTH>
DEV void fetch_rows(float* to, const float* from, i64 stride, int first, int count, int rows) {
  constexpr int pieces = PADDED / WIDTH;
#pragma unroll 4
  for (int u = threadIdx.x; u < count * pieces; u += THREADS) {
    const int r = u / pieces, c = u % pieces * WIDTH;
    const bool real = first + r < rows && c < SIZE;
    fetch<4 * WIDTH>(shared_address(to + r * PITCH + c),
                     real ? from + (first + r) * stride + c : from, real);
  }
  copy_commit();
}
