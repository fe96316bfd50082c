// The epilogue of 8-bit products: from sums to results, rounded as ONNX Runtime's and the CPU's.
//
// The generator defines, beside what is below, `struct Epilogue` with an address for each operand
// (a constant null for absent ones), T, Weight, Residual, Middle and Result (element types of x, w,
// a residual, what is between the product and the rest, and y), and of the activation or program
// AFTER(e, c, f, k, m) of column k of row m, READ_EXTRAS and READ_FULL, which read its operands of
// columns and of elements, and struct Extras, which has those of columns.
#pragma once
#ifndef GENERATED
#define IS_INT8 1
#include "common/instance.cuh"
typedef signed char Weight;
typedef u8 Residual, Middle, Result;
constexpr bool SUMS = false;       // whether results are the sums
constexpr int RES_MODE = 1;        // 0: none, 1: added before the activation, 2: behind it
constexpr bool VECTORS = true;     // operands of columns 0, 8, 16, ... are aligned to 16 bytes
constexpr bool RES_VECTOR = true;  // so are rows of the residual, or to as many as 8 elements have
constexpr int UNIT = 64;           // divides the number of columns: a power of two, at most 64
struct Epilogue {
  const float *x_scale, *w_scale, *bias, *r_scale, *m_scale, *y_scale;
  const T* x_zero;
  const Weight* w_zero;
  const Residual *res, *r_zero;
  const Middle* m_zero;
  const Result* y_zero;
  const int* sums;
  int depth, w_scales, w_zeros;
};
struct Extras {};  // operands of columns
#define READ_EXTRAS(e, x, n, count)
#define READ_FULL(e, m, full, n, count)
#define AFTER(e, c, f, k, m) f
#endif  // GENERATED

// Whether SIZE columns exist, of which `count` do, as vectors take them.
template <int SIZE>
DEV bool whole(int count) {
  return UNIT % SIZE == 0 ? count > 0 : count >= SIZE;
}
// WIDTH neighbours p[0..count), zeros behind them.
template <bool VECTOR, class A>
DEV void load_neighbours(const A* p, int count, A (&v)[WIDTH]) {
  constexpr int SIZE = WIDTH * sizeof(A);
  if (VECTOR && whole<WIDTH>(count)) {
    if constexpr (SIZE == 32) {
      *(uint4*)v = *(const uint4*)p;
      *(uint4*)(v + 4) = *(const uint4*)(p + 4);
    } else if constexpr (SIZE == 8) {
      *(uint2*)v = *(const uint2*)p;
    } else {
      *(u16*)v = *(const u16*)p;
    }
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      v[k] = !(VECTOR && UNIT % WIDTH == 0) && k < count ? p[k] : A(0);
  }
}

// Those of columns n.. among p[0..all); p[0] of every column where all is 1.
template <class A>
DEV void load_columns(const A* p, int all, int n, int count, A (&v)[WIDTH]) {
  if (all == 1) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++) v[k] = *p;
  } else {
    load_neighbours<VECTORS>(p + n, count, v);
  }
}

// How integers stand for numbers: (q - zero) * scale. A scale beyond normal numbers is taken for
// the nearest of these.
struct Steps {
  float scale, inverse, least, most;  // of a number: what saturates, a quarter of a step beyond
  int offset;                         // from the bits of `nearest` to q
  // q - zero + SHIFT of a number: its quotient by the scale, rounded half to even; a NaN becomes
  // the least q. The quotient is a product by the reciprocal with one correction (Markstein), which
  // makes it the division's.
  static constexpr float SHIFT = 12582912.f;  // 1.5 * 2^23: floats around it are integers
  METHOD float nearest(float v) const {
    v = fminf(fmaxf(v, least), most);
    const float q = __fmul_rn(v, inverse);
    return __fadd_rn(__fmaf_rn(__fmaf_rn(-q, scale, v), inverse, q), SHIFT);
  }
  METHOD float round(float v) const { return __fmul_rn(__fsub_rn(nearest(v), SHIFT), scale); }
  METHOD int integer(float v) const { return __float_as_int(nearest(v)) + offset; }
};
template <class Q>
DEV Steps steps_of(const float* scale, const Q* zero) {
  constexpr bool SIGNED = Q(-1) < Q(0);
  constexpr float LARGEST = 3.402823466e38f, NORMAL = 8.507059173e37f;  // 2^126
  const int z = zero ? int(*zero) : 0;
  const float given = scale ? *scale : 1.f,
              s = copysignf(fminf(fmaxf(fabsf(given), 1.f / NORMAL), NORMAL), given);
  const float a = s * ((SIGNED ? -128.25f : -0.25f) - z),
              b = s * ((SIGNED ? 127.25f : 255.25f) - z);
  return {s, 1.f / s, fmaxf(fminf(a, b), -LARGEST), fminf(fmaxf(a, b), LARGEST),
          z - __float_as_int(Steps::SHIFT)};
}

// What is the same for all columns.
struct Scalars {
  Steps middle, result;
  float r_scale, r_zero;
};
DEV Scalars scalars_of(const Epilogue& e) {
  Scalars s;
  if (e.m_scale) s.middle = steps_of(e.m_scale, e.m_zero);
  if (sizeof(Result) == 1) s.result = steps_of(e.y_scale, e.y_zero);
  if (sizeof(Residual) == 1) {
    s.r_scale = e.r_scale ? *e.r_scale : 1.f;
    s.r_zero = e.r_zero ? float(*e.r_zero) : 0.f;
  }
  return s;
}

// Operands of neighbouring columns. start: what is added to their sums for the zero point of x;
// zero: of the weights.
constexpr int ALIGNED = WIDTH < 4 ? 4 * WIDTH : 16;
struct ColumnOperands {
  alignas(ALIGNED) float scale[WIDTH];
  alignas(ALIGNED) float bias[WIDTH];
  alignas(ALIGNED) int start[WIDTH];
  alignas(ALIGNED) Weight zero[WIDTH];
  Extras extras;
};
DEV ColumnOperands column_operands_at(const Epilogue& e, int n, int end) {
  const int count = end - n;
  ColumnOperands c;
#pragma unroll
  for (int k = 0; k < WIDTH; k++) c.scale[k] = 1.f, c.bias[k] = 0.f, c.start[k] = 0, c.zero[k] = 0;
  if (e.w_scale) load_columns(e.w_scale, e.w_scales, n, count, c.scale);
  if (e.x_scale) {
    const float x_scale = *e.x_scale;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) c.scale[k] = __fmul_rn(c.scale[k], x_scale);
  }
  if (e.bias) load_neighbours<VECTORS>(e.bias + n, count, c.bias);
  if (e.w_zero) load_columns(e.w_zero, e.w_zeros, n, count, c.zero);
  if (e.x_zero) {
    const u32 x_zero = u32(int(*e.x_zero));
    load_neighbours<VECTORS>(e.sums + n, count, c.start);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      c.start[k] = int(x_zero * (u32(e.depth) * u32(int(c.zero[k])) - u32(c.start[k])));
  }
  READ_EXTRAS(e, c.extras, n, count)
  return c;
}

struct Columns : Scalars, ColumnOperands {};
DEV void touch_columns(const Epilogue&, int) {}
DEV Columns columns_at(const Epilogue& e, int n, int end) {
  return {scalars_of(e), column_operands_at(e, n, end)};
}

// Takes the weights' zero points times the sum of the row of x from the sums.
DEV void subtract_row(const ColumnOperands& c, int (&v)[WIDTH], int row) {
#pragma unroll
  for (int k = 0; k < WIDTH; k++) v[k] = int(u32(v[k]) - u32(int(c.zero[k])) * u32(row));
}

DEV float number_of(u8 v) {  // a conversion takes four times as long
  return __fsub_rn(__int_as_float(0x4b000000 | v), 8388608.f);
}
DEV float number_of(signed char v) { return __fsub_rn(number_of(u8(v ^ 0x80)), 128.f); }
DEV float number_of(float v) { return v; }

// Columns n.. of row m, of which `count` exist, from sums to results: integers, or the bits of
// floats. full: offset of the row in operands shaped as the result.
DEV void finish(const Epilogue& e, const Scalars& s, const ColumnOperands& c, int (&v)[WIDTH],
                const Residual (&residual)[WIDTH], int m, i64 full, int n, int count) {
#pragma unroll
  for (int k = 0; k < WIDTH; k++) v[k] = int(u32(v[k]) + u32(c.start[k]));
  if (SUMS) return;
  READ_FULL(e, m, full, n, count)
#pragma unroll
  for (int k = 0; k < WIDTH; k++) {
    float f = fmaf(float(v[k]), c.scale[k], c.bias[k]), r = 0.f;
    if (e.m_scale) f = s.middle.round(f);
    if (RES_MODE) {
      r = number_of(residual[k]);
      if (sizeof(Residual) == 1) r = __fmul_rn(r - s.r_zero, s.r_scale);
    }
    if (RES_MODE == 1) f = __fadd_rn(f, r);
    f = AFTER(e, c, f, k, m);
    if (RES_MODE == 2) f = __fadd_rn(f, r);
    v[k] = sizeof(Result) == 1 ? s.result.integer(f) : __float_as_int(f);
  }
}
DEV void finish(const Epilogue& e, const Scalars& s, const ColumnOperands& c, int (&v)[WIDTH],
                int m, i64 full, int n, int count) {
  alignas(16) Residual residual[WIDTH] = {};
  if (RES_MODE) load_neighbours<RES_VECTOR>(e.res + full + n, count, residual);
  finish(e, s, c, v, residual, m, full, n, count);
}
DEV void finish(const Epilogue& e, const Columns& c, int (&v)[WIDTH], int m, i64 full, int n,
                int count) {
  finish(e, c, c, v, m, full, n, count);
}
DEV void finish(const Epilogue& e, int (&v)[WIDTH], int m, i64 full, int n, int count) {
  finish(e, columns_at(e, n, n + count), v, m, full, n, count);
}

DEV void store_result(float* y, int v) { *y = __int_as_float(v); }
template <class Y>
DEV void store_result(Y* y, int v) {
  *y = Y(v);
}
// Stores what `finish` left, of which `count` exist.
template <bool VECTOR, class Y>
DEV void store_results(Y* y, const int (&v)[WIDTH], int count) {
  if (VECTOR && whole<WIDTH>(count)) {
    if constexpr (sizeof(Y) == 4 && WIDTH == 2) {
      *(int2*)y = make_int2(v[0], v[1]);
    } else if constexpr (sizeof(Y) == 4) {
      *(int4*)y = make_int4(v[0], v[1], v[2], v[3]);
      *((int4*)y + 1) = make_int4(v[4], v[5], v[6], v[7]);
    } else if constexpr (WIDTH == 2) {
      *(u16*)y = u16(v[0] & 255 | v[1] << 8);
    } else {
      u32 w[2] = {};
#pragma unroll
      for (int k = 0; k < WIDTH; k++) w[k / 4] |= u32(u8(v[k])) << k % 4 * 8;
      *(uint2*)y = make_uint2(w[0], w[1]);
    }
  } else if (!(VECTOR && UNIT % WIDTH == 0)) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      if (k < count) store_result(y + k, v[k]);
  }
}
