// Stores of `gemm/multistage_sm80/gemm.cuh`: rows of matrices, pixels of images or of one phase of
// a transposed convolution, with the widest accesses that alignment allows.
#pragma once
#ifndef GENERATED
constexpr bool Y_VECTOR = true;  // rows of y are aligned to 16 bytes
constexpr int Y_EACH = 8;        // elements at multiples of which these begin and end: 1, 2, 4 or 8
#endif                           // GENERATED
#include "gemm/multistage_sm80/loads.cuh"

#if IS_INT8
template <class Y>
DEV void store8(Y* y, const int (&v)[8], int count) {
  store_results<Y_VECTOR>(y, v, count);
}
#else
DEV void store8(T* y, const float (&v)[8], int count) {
  if (Y_VECTOR && count >= 8) {
    if (SIMT) {
      *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
      *((float4*)y + 1) = make_float4(v[4], v[5], v[6], v[7]);
    } else {
#if !IS_F32
      *(uint4*)y = make_uint4(pack2((T*)0, v[0], v[1]), pack2((T*)0, v[2], v[3]),
                              pack2((T*)0, v[4], v[5]), pack2((T*)0, v[6], v[7]));
#endif
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) from_float(y[k], v[k]);
  }
}

// Stores unaligned rows of y: LANES_PER_ROW lanes store columns [0, count) of a row, 16-bit
// elements as aligned words of two (one word a lane if LANES_PER_ROW < 32). They read TOGETHER rows
// from shared memory before they store any, to hide latency.
constexpr int EACH = 4 / sizeof(T), TOGETHER = 4;
template <int LANES_PER_ROW, class Place>
DEV void store_rows(T* y, const float* from, int first, int end, int count, const Place& place) {
  constexpr int STRIDE = THREADS / LANES_PER_ROW,
                WORDS = LANES_PER_ROW < 32 ? 1 : (BN / EACH + 31) / 32;
  const int lane = threadIdx.x % LANES_PER_ROW;
#pragma unroll 1
  for (int r0 = first + threadIdx.x / LANES_PER_ROW; r0 < end; r0 += STRIDE * TOGETHER) {
    T* row[TOGETHER];
    float v[TOGETHER][WORDS][EACH], head[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const int r = r0 + i * STRIDE;
      i64 to = 0;
      row[i] = r < end && place(r, to) ? y + to : 0;
      const int skip = (int)((u64)row[i] / sizeof(T) % EACH);
      if (row[i] && lane < skip) head[i] = from[r * PITCH];
#pragma unroll
      for (int w = 0; w < WORDS; w++)
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          const int c = skip + EACH * (lane + w * LANES_PER_ROW) + e;
          if (row[i] && c < count) v[i][w][e] = from[r * PITCH + c];
        }
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const int skip = (int)((u64)row[i] / sizeof(T) % EACH);
      if (row[i] && lane < skip) from_float(row[i][0], head[i]);
#pragma unroll
      for (int w = 0; w < WORDS; w++) {
        const int c = skip + EACH * (lane + w * LANES_PER_ROW);
        if (!row[i] || c >= count) continue;
#if IS_F32
        row[i][c] = v[i][w][0];
#else
        if (c + 1 < count)
          *(u32*)(row[i] + c) = pack2((T*)0, v[i][w][0], v[i][w][1]);
        else
          from_float(row[i][c], v[i][w][0]);
#endif
      }
    }
  }
}

#endif

#if !IS_F32 && !IS_INT8
// The same for rows that begin and end at multiples of Y_EACH elements.
template <int LANES_PER_ROW, class Place>
DEV void store_even_rows(T* y, const float* from, int first, int end, int count,
                         const Place& place) {
  constexpr int WORDS = LANES_PER_ROW < 32 ? 1 : (BN / Y_EACH + 31) / 32;
  const int c0 = threadIdx.x % LANES_PER_ROW * Y_EACH;
#pragma unroll 4
  for (int r = first + threadIdx.x / LANES_PER_ROW; r < end; r += THREADS / LANES_PER_ROW) {
    i64 to = 0;
    if (!place(r, to)) continue;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
      const int c = c0 + w * LANES_PER_ROW * Y_EACH;
      const float* v = from + r * PITCH + c;
      if (c >= count) continue;
      if (Y_EACH == 4) {
        const float4 f = *(const float4*)v;
        *(uint2*)(y + to + c) = make_uint2(pack2((T*)0, f.x, f.y), pack2((T*)0, f.z, f.w));
      } else {
        const float2 f = *(const float2*)v;
        *(u32*)(y + to + c) = pack2((T*)0, f.x, f.y);
      }
    }
  }
}
#endif

// Offsets (in elements) of row m in y and in the epilogue's full operands; false if the row does
// not exist.
struct Output {
#if SOURCE == 1
  int OH, OW, rows_h, rows_w, step_h, step_w, phase_h, phase_w;
  i64 y_cs, y_rs, y_ns, r_cs, r_rs, r_ns;
  METHOD bool place(int m, i64& to, i64& full) const {
    if (Y_FLAT) {
      to = m * y_cs;
      full = m * r_cs;
      return true;
    }
    const int n = m / (rows_h * rows_w), r = m - n * (rows_h * rows_w),
              oh = r / rows_w * step_h + phase_h, ow = r % rows_w * step_w + phase_w;
    to = n * y_ns + oh * y_rs + ow * y_cs;
    full = n * r_ns + oh * r_rs + ow * r_cs;
    return oh < OH && ow < OW;
  }
#else
  i64 ldy, ldr;
  METHOD bool place(int m, i64& to, i64& full) const {
    to = m * ldy;
    full = m * ldr;
    return true;
  }
#endif
};

#if SOURCE == 1
constexpr bool kTransposed = TRANSPOSED;
#define OUTPUT_PHASES                                                              \
  const int phases = kTransposed ? SH * SW : 1, phase = blockIdx.z % phases,       \
            group = blockIdx.z / phases, phase_h = phase / (kTransposed ? SW : 1), \
            phase_w = phase % (kTransposed ? SW : 1);                              \
  const int rows_h = kTransposed ? (OH + SH - 1) / SH : OH,                        \
            rows_w = kTransposed ? (OW + SW - 1) / SW : OW;                        \
  const Output out{OH,                                                             \
                   OW,                                                             \
                   rows_h,                                                         \
                   rows_w,                                                         \
                   kTransposed ? SH : 1,                                           \
                   kTransposed ? SW : 1,                                           \
                   phase_h,                                                        \
                   phase_w,                                                        \
                   y_cs,                                                           \
                   y_rs,                                                           \
                   y_ns,                                                           \
                   r_cs,                                                           \
                   r_rs,                                                           \
                   r_ns};                                                          \
  const int channel0 = group * N;
#else
#define OUTPUT_PHASES         \
  const Output out{ldy, ldr}; \
  const int channel0 = 0;
#endif
