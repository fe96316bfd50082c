// For kernels with a tile of query rows per CTA: which rows a CTA has, and copies of q, k and v to
// shared memory.
#pragma once
#include "common/mma.cuh"

#include "attention/fetch.cuh"
#include "attention/problem.cuh"

// Query rows m0 .. m0 + ROWS - 1 of head h of batch entry b. Tiles with the most visible keys come
// first.
template <int ROWS>
struct RowTile {
  int b, h, m0, from, seen;  // keys from .. seen - 1 are visible to some row
  const T *q, *k, *v;
  T* y;
  // Of a cache, g becomes that of the batch entry.
  METHOD RowTile(Attention& g, int item) {
    const int tiles = (g.S + ROWS - 1) / ROWS, head = item / tiles;
    b = head / g.H, h = head % g.H;
    limit_keys(g, b);
    m0 = (CAUSAL ? tiles - 1 - item % tiles : item % tiles) * ROWS;
    from = first_key(g, m0), seen = visible_keys(g, min(m0 + ROWS, g.S) - 1);
    const int kv = h / (g.H / g.KVH);
    q = g.q + b * g.q_b + h * g.q_h, y = g.y + b * g.y_b + h * g.y_h + m0 * g.y_s;
    k = g.k + b * g.k_b + kv * g.k_h, v = g.v + b * g.v_b + kv * g.v_h;
  }
  // Offset of the mask of a row.
  METHOD i64 mask_row(const Attention& g, int row) const {
    return b * g.m_b + h * g.m_h + min(row, g.S - 1) * g.m_q;
  }
};

// Copies rows first .. first + COUNT - 1 of [rows, SIZE] to shared memory, READ elements at a time.
// Rows from `rows` on, and columns up to PADDED, become zero. PITCH: elements between rows in
// shared memory.
template <int SIZE, int PADDED, int PITCH, int READ, int COUNT>
DEV void fetch_rows(T* to, const T* from, i64 stride, int first, int rows) {
  constexpr int pieces = PADDED / READ;
#pragma unroll 4
  for (int u = threadIdx.x; u < COUNT * pieces; u += THREADS) {
    const int r = u / pieces, c = u % pieces * READ;
    const bool real = first + r < rows && c < SIZE;
    fetch<READ>(smem_address(to + r * PITCH + c), from, (first + r) * stride + c, real);
  }
  cp_async_commit();
}
