// Rows of attention's operands that tensor copies cannot read are copied to [batch, head, row,
// element], where rows are a multiple of 16 bytes and end in zeros.
struct Rows {
  const T* from;
  T* to;
  i64 b, s, h;
  int heads, rows;
};

template <int SIZE, int WIDTH>
DEV void pad_rows(const Rows& of, int batch) {
  constexpr int pieces = (SIZE + 7) / 8;
  const u32 count = u32(batch) * of.heads * of.rows * pieces;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < count; u += gridDim.x * blockDim.x) {
    const u32 row = u / pieces, column = u % pieces * 8, s = row % of.rows, head = row / of.rows;
    const T* from = of.from + head / of.heads * of.b + head % of.heads * of.h + s * of.s + column;
    Vec<T, 8> piece{};
#pragma unroll
    for (int e = 0; e < 8; e += WIDTH) {
      Vec<T, WIDTH> part{};
      if (column + e < SIZE) part = load<WIDTH>(from + e);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) piece.v[e + j] = part.v[j];
    }
    store<8>(of.to + i64(u) * 8, piece);
  }
}
