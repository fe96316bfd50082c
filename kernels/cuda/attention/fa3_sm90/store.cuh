// Combination of warpgroups that divide the keys, and stores of results: by TMA from shared memory,
// or, where TMA cannot write the result, by the threads of the warp that has the rows; with split
// keys, by threads that combine the CTAs' partial results.
#pragma once
#include "attention/fa3_sm90/pipeline.cuh"
#include "common/quantise.cuh"

// Combines the warpgroups of a CTA that have the same rows into the first one; returns whether this
// is it. parts: shared memory for the others' results.
DEV bool combine_warpgroups(float4* parts, int w, float c, float (&out)[kDV / 2],
                            float (&row_max)[2], float (&sum)[2]) {
  const int at = threadIdx.x & 127;
  float4* const part = parts + (w - 1) * 128 * (kDV / 8 + 1) + at;
  if (w > 0) {
#pragma unroll
    for (int j = 0; j < kDV / 8; j++)
      part[j * 128] = {out[4 * j], out[4 * j + 1], out[4 * j + 2], out[4 * j + 3]};
    part[kDV / 8 * 128] = {row_max[0], row_max[1], sum[0], sum[1]};
  }
  named_barrier_sync(8, GROUPS * 128);
  if (w == 0)
#pragma unroll
    for (int g = 1; g < GROUPS; g++) {
      const float4* const from = parts + (g - 1) * 128 * (kDV / 8 + 1) + at;
      const float4 of = from[kDV / 8 * 128];
      const float row_maxima[2] = {of.x, of.y}, sums[2] = {of.z, of.w};
      float a[2], b[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float best = fmaxf(row_max[e], row_maxima[e]);
        a[e] = row_max[e] == best ? 1.f : exp2_approximate(row_max[e] * c - best * c);
        b[e] = row_maxima[e] == best ? 1.f : exp2_approximate(row_maxima[e] * c - best * c);
        row_max[e] = best, sum[e] = sum[e] * a[e] + sums[e] * b[e];
      }
#pragma unroll
      for (int j = 0; j < kDV / 8; j++) {
        const float4 o = from[j * 128];
        out[4 * j] = out[4 * j] * a[0] + o.x * b[0],
                out[4 * j + 1] = out[4 * j + 1] * a[0] + o.y * b[0];
        out[4 * j + 2] = out[4 * j + 2] * a[1] + o.z * b[1],
                    out[4 * j + 3] = out[4 * j + 3] * a[1] + o.w * b[1];
      }
    }
  named_barrier_sync(8, GROUPS * 128);
  return w == 0;
}

// Writes the warp's rows m to m + 15 of a tile to shared memory, each row times the reciprocal of
// its sum of weights.
DEV void write_rows(u32 output, int m, const float (&out)[kDV / 2], const float (&inverse)[2]) {
  const int lane = threadIdx.x & 31, r = m + (lane & 15);
#pragma unroll
  for (int j = 0; j < kDV / 8; j += 2) {
    u32 o[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
      o[q] = pack2((T*)nullptr, normalized(out[4 * j + 2 * q], inverse[q & 1]),
                   normalized(out[4 * j + 2 * q + 1], inverse[q & 1]));
    const int chunk = j + (lane >> 4);
    stmatrix_x4(output + chunk / 8 * BM * 128 + r * 128 + (((chunk & 7) ^ (r & 7)) << 4), o[0],
                o[1], o[2], o[3]);
  }
}

// TMA store of a tile of shared memory (clipped to the tensor), and the wait until such stores have
// read shared memory.
DEV void tma_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
DEV void tma_stores_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Stores the results at `from`, rows m.. of the output, by TMA; returns when their memory can be
// reused.
DEV void tma_store(const TensorMap& map, u32 from, const Tile& tile, int m) {
#pragma unroll
  for (int p = 0; p < kPanelsV; p++)
    tma_store_4d(&map, from + p * BM * 128, p * 64, m, tile.h, tile.b);
  tma_stores_read();
}

#ifdef QUANTISED
// Quantises rows m to m + 15 of the tile, whose results begin at `from`, and stores them: a warp.
DEV void store_rows(const Attention& g, const char* from, const Tile& tile, int m) {
  constexpr int EACH = HEAD_V % 4 == 0 ? 4 : 1, PIECES = HEAD_V / EACH;
  const i64 first = tile.b * g.y_b + tile.h * g.y_h + (tile.m + m) * g.y_s;
  QUANTISED* const y = (QUANTISED*)g.y + first;
  const int lane = threadIdx.x & 31, count = min(16, g.S - tile.m - m);
  const Quantiser<QUANTISED> by(g.step, g.zero);
  for (int i = lane; i < count * PIECES; i += 32) {
    const int r = i / PIECES, at = i % PIECES * EACH;
    const T* v = (const T*)(from + (m + r) * 128 + at / 64 * BM * 128 +
                            ((at / 8 & 7) ^ (m + r & 7)) * 16 + at % 8 * 2);
    Vec<QUANTISED, EACH> bytes;
#pragma unroll
    for (int k = 0; k < EACH; k++) bytes.v[k] = by.of(to_float(v[k]));
    QUANTISED* const to = y + r * g.y_s + at;
    if (aligned(to, EACH)) {
      store<EACH>(to, bytes);
    } else {
#pragma unroll
      for (int k = 0; k < EACH; k++) to[k] = bytes.v[k];
    }
  }
}
#else
// The same by a warp: rows m to m + 15 of the tile, whose results begin at `from`.
DEV void store_rows(const Attention& g, const char* from, const Tile& tile, int m) {
  T* y = g.y + tile.b * g.y_b + tile.h * g.y_h + (tile.m + m) * g.y_s;
  const int lane = threadIdx.x & 31, count = min(16, g.S - tile.m - m);
  for (int r = 0; r < count; r++, y += g.y_s) {
    const char* row = from + (m + r) * 128;
#pragma unroll
    for (int c = 0; c < HEAD_V; c += 32) {
      const int at = c + lane;
      if (at < HEAD_V)
        y[at] =
            *(const T*)(row + at / 64 * BM * 128 + ((at / 8 & 7) ^ (m + r & 7)) * 16 + at % 8 * 2);
    }
  }
}
#endif
// The CTAs of a cluster have the same 64 rows and divide the keys; a warpgroup of each combines
// some of the results. part: shared memory for this CTA's partial result, in place of keys and
// values. q_empty: the mbarrier that warps arrive at when done with the queries.
DEV void store_cluster(const Attention& g, Partial<ROWS>& part, const Tile& tile, float c,
                       float (&out)[kDV / 2], float (&row_max)[2], float (&sum)[2], u32 q_empty) {
  const int lane = threadIdx.x & 31, column = lane % 4 * 2;
  named_barrier_sync(8, 128);  // all GEMMs are finished
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * e;
    if (row >= ROWS) continue;
    if (lane % 4 == 0)
      part.row_max[row] = row_max[e] == -INF ? -INF : row_max[e] * c, part.sum[row] = sum[e];
#pragma unroll
    for (int j = 0; j < kDV / 8; j++)
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (8 * j + column + f < HEAD_V)
          part.out[row * HEAD_V + 8 * j + column + f] = out[4 * j + 2 * e + f];
  }
  arrive_warp(q_empty);
  T* y = g.y + tile.b * g.y_b + tile.h * g.y_h + tile.m * g.y_s;
  combine_cluster<CLUSTER, 128>(part, min(ROWS, g.S - tile.m), [&](int row, int at, float value) {
    from_float(y[row * g.y_s + at], value);
  });
}
// Stores the CTA's partial result for the kernel that combines.
DEV void store_partial(const Attention& g, const Tile& tile, float c, const float (&out)[kDV / 2],
                       const float (&row_max)[2], const float (&sum)[2]) {
  const int lane = threadIdx.x & 31, column = lane % 4 * 2;
  Partial<ROWS>& part = ((Partial<ROWS>*)g.y)[item_of(g, tile) + int(blockIdx.x)];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * e;
    if (tile.m + row >= g.S) continue;
    if (lane % 4 == 0)
      part.row_max[row] = row_max[e] == -INF ? -INF : row_max[e] * c, part.sum[row] = sum[e];
#pragma unroll
    for (int j = 0; j < kDV / 8; j++) {
      const int at = 8 * j + column;
      float* const to = part.out + row * HEAD_V + at;
      if (HEAD_V % 2 == 0 && at < HEAD_V)
        *(float2*)to = make_float2(out[4 * j + 2 * e], out[4 * j + 2 * e + 1]);
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (HEAD_V % 2 != 0 && at + f < HEAD_V) to[f] = out[4 * j + 2 * e + f];
    }
  }
}
