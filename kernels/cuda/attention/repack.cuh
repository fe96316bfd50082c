// Copies rows of up to three operands that TMA cannot read to [batch, head, row, element], where
// rows are zero-padded to multiples of 16 bytes. Each operand has a row of the grid.
#pragma once
#ifndef GENERATED
constexpr int SIZE_A = 64, SIZE_B = 64, SIZE_C = 64;  // elements of a row, 1 to 256
constexpr int READ_A = 8, READ_B = 8, READ_C = 8;     // of an access, up to 8
#define PARAMETERS                                                                               \
  const T *a, T *a_to, i64 a_b, i64 a_s, i64 a_h, int a_heads, int a_rows, const T *b, T *b_to,  \
      i64 b_b, i64 b_s, i64 b_h, int b_heads, int b_rows, const T *c, T *c_to, i64 c_b, i64 c_s, \
      i64 c_h, int c_heads, int c_rows, int batch
#endif  // GENERATED
#include "common/base.cuh"

struct Rows {
  const T* from;
  T* to;
  i64 b, s, h;  // pitches of `from`, in elements
  int heads, rows;
};

template <int SIZE, int READ>
DEV void pad_rows(const Rows& of, int batch) {
  constexpr int pieces = (SIZE + 7) / 8;
  const u32 count = u32(batch) * of.heads * of.rows * pieces;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < count; u += gridDim.x * blockDim.x) {
    const u32 row = u / pieces, column = u % pieces * 8, s = row % of.rows, head = row / of.rows;
    const T* from = of.from + head / of.heads * of.b + head % of.heads * of.h + s * of.s + column;
    Vec<T, 8> piece{};
#pragma unroll
    for (int e = 0; e < 8; e += READ) {
      Vec<T, READ> part{};
      if (column + e < SIZE) part = load<READ>(from + e);
#pragma unroll
      for (int j = 0; j < READ; j++) piece.v[e + j] = part.v[j];
    }
    store<8>(of.to + i64(u) * 8, piece);
  }
}

extern "C" __global__ void __launch_bounds__(256) attention_repack(PARAMETERS) {
  pdl_begin();
  if (blockIdx.y == 0) pad_rows<SIZE_A, READ_A>({a, a_to, a_b, a_s, a_h, a_heads, a_rows}, batch);
  if (blockIdx.y == 1) pad_rows<SIZE_B, READ_B>({b, b_to, b_b, b_s, b_h, b_heads, b_rows}, batch);
  if (blockIdx.y == 2) pad_rows<SIZE_C, READ_C>({c, c_to, c_b, c_s, c_h, c_heads, c_rows}, batch);
}
