// The epilogue of 8-bit products: from sums to results, rounded half to even.
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
constexpr int FOLDED = 1;          // scales of columns are over that of 1: `middle`, 2: y, 0: none
constexpr bool LINEAR = true;      // bytes are linear in sums, or what is between, and residuals
constexpr bool STARTS = true;      // x has a zero point
constexpr bool ENDS = true;        // y has one
constexpr bool FIXED = true;       // scales, zero points and bias are constant
constexpr bool RELU = true;        // y begins at 0; AFTER is not the activation
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
    } else if constexpr (SIZE == 16) {
      *(uint4*)v = *(const uint4*)p;
    } else if constexpr (SIZE == 8) {
      *(uint2*)v = *(const uint2*)p;
    } else if constexpr (SIZE == 4) {
      *(u32*)v = *(const u32*)p;
    } else {
      *(u16*)v = *(const u16*)p;
    }
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++) v[k] = !(VECTOR && UNIT % WIDTH == 0) && k < count ? p[k] : A{};
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

// How integers q stand for numbers: (q - zero) * scale. A scale that is no positive normal number
// is taken for the nearest of these. A share s stands for the number (lo + 256 s) * scale: 0 for
// the least q (RELU: for `zero`), so that instructions saturate it.
struct Steps {
  float scale, inverse;
  float lo, hi;                               // q - zero of the least and the largest q
  float factor, first;                        // the share of a number is number * factor + first
  float spare;                                // 1 less the share of hi
  static constexpr float SHIFT = 12582912.f;  // 1.5 * 2^23: floats around it are integers
  // The bits of q - zero + ROUNDED, rounded half to even, as a float: the last ones are q's if zero
  // is 0. What a share is beyond 0 or the largest one becomes that, and a NaN 0.
  static constexpr float ROUNDED = SHIFT + 256.f;
  METHOD float round(float share) const {
    return __fmaf_rn(__saturatef(__fadd_rn(__saturatef(share), spare)), 256.f, SHIFT + hi);
  }
  // A number by the scale, as a division rounds it: a product by the reciprocal with one correction
  // (Markstein).
  METHOD float quotient(float v) const {
    v = fminf(fmaxf(v, scale * (lo - 1.f)), scale * (hi + 1.f));
    const float q = __fmul_rn(v, inverse);
    return __fmaf_rn(__fmaf_rn(-q, scale, v), inverse, q);
  }
};
template <class Q>
struct Signed {
  static constexpr bool value = false;
};
template <>
struct Signed<signed char> {
  static constexpr bool value = true;
};
// A zero point, of bytes.
template <class Q>
DEV int zero_of(const Q* zero) {
  if constexpr (sizeof(Q) == 1) return zero ? int(*zero) : 0;
  return 0;
}
template <class Q>
DEV Steps steps_of(const float* scale, const Q* zero, bool from_zero) {
  constexpr bool SIGNED = Signed<Q>::value;
  constexpr float NORMAL = 8.507059173e37f;  // 2^126
  const int z = zero_of(zero);
  const float s = fminf(fmaxf(scale ? *scale : 1.f, 1.f / NORMAL), NORMAL);
  const float lo = from_zero ? 0.f : (SIGNED ? -128 : 0) - z, hi = (SIGNED ? 127 : 255) - z;
  return {s, 1.f / s, lo, hi, 1.f / s / 256.f, -lo / 256.f, 1.f - (hi - lo) / 256.f};
}

// Of a byte its number plus a constant, raw_number(0): a conversion takes four times as long.
DEV float raw_number(u8 v) { return __int_as_float(__byte_perm(v, 0x4b000000, 0x7440)); }
DEV float raw_number(signed char v) { return raw_number(u8(v ^ 0x80)); }
DEV float raw_number(float v) { return v; }
DEV float raw_number(half_t v) { return to_float(v); }
DEV float raw_number(bfloat_t v) { return to_float(v); }
// The same of byte k of a word, of four bytes of this type. magic: `raw_magic`, in a register: an
// instruction has room for one constant.
DEV u32 raw_magic() {
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return 0x4b000000u + (lane >> 5);
}
DEV float raw_number(const u8*, u32 word, int k, u32 magic) {
  return __int_as_float(__byte_perm(word, magic, 0x7440 + k));
}
DEV float raw_number(const signed char*, u32 word, int k, u32 magic) {
  return raw_number((const u8*)0, word ^ 0x80808080u, k, magic);
}
// Element k of a word of two floats of 16 bits.
template <class R>
DEV float raw_number(const R*, u32 word, int k, u32) {
  float v[2];
  unpack2((R*)0, word, v[0], v[1]);
  return v[k];
}

// What is the same for all columns. zero: of y. LINEAR: the share of y is that of the sums' number
// or, FOLDED 1, `from_middle` times what is between plus `first`; and r_scale times the residual.
struct Scalars {
  Steps middle, result;
  float zero, r_scale, r_zero, from_middle;
};
DEV Scalars scalars_of(const Epilogue& e) {
  Scalars s;
  if (FOLDED == 1) s.middle = steps_of(e.m_scale, e.m_zero, false);
  if (sizeof(Result) == 1) {
    s.result = steps_of(e.y_scale, e.y_zero, RELU);
    s.zero = float(zero_of(e.y_zero));
  }
  s.r_scale = sizeof(Residual) == 1 && e.r_scale ? *e.r_scale : 1.f;
  if (sizeof(Residual) == 1) s.r_zero = raw_number(Residual{}) + float(zero_of(e.r_zero));
  if (LINEAR) s.r_scale *= s.result.factor;
  if (LINEAR && FOLDED == 1) s.from_middle = s.middle.scale * s.result.factor;
  return s;
}

// Operands of neighbouring columns. scale, bias: from sums to numbers or, FOLDED, to shares. start:
// what is added to their sums for the zero point of x; zero: of the weights.
constexpr int ALIGNED = WIDTH < 4 ? 4 * WIDTH : 16;
struct alignas(16) ColumnOperands {
  alignas(ALIGNED) float scale[WIDTH];
  alignas(ALIGNED) float bias[WIDTH];
  alignas(ALIGNED) int start[WIDTH];
  alignas(ALIGNED) Weight zero[WIDTH];
  Extras extras;
};
DEV ColumnOperands column_operands_at(const Epilogue& e, const Scalars& s, int n, int end) {
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
  if (FOLDED) {
    const Steps& steps = FOLDED == 1 ? s.middle : s.result;
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      c.scale[k] *= steps.factor, c.bias[k] = fmaf(c.bias[k], steps.factor, steps.first);
  }
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
  const Scalars s = scalars_of(e);
  return {s, column_operands_at(e, s, n, end)};
}

// What is between the product and the rest, of column k: q - zero of `middle`.
DEV float middle_of(const Scalars& s, const ColumnOperands& c, int sum, int k) {
  return __fsub_rn(s.middle.round(fmaf(float(sum), c.scale[k], c.bias[k])), Steps::ROUNDED);
}

// Takes the weights' zero points times the sum of the row of x from the sums.
DEV void subtract_row(const ColumnOperands& c, int (&v)[WIDTH], int row) {
#pragma unroll
  for (int k = 0; k < WIDTH; k++) v[k] = int(u32(v[k]) - u32(int(c.zero[k])) * u32(row));
}

// Columns n.. of row m, of which `count` exist, from sums to results: bits of which the last ones
// are a byte, or the bits of f32. residual: raw numbers. full: offset of the row in operands shaped
// as the result.
DEV void finish(const Epilogue& e, const Scalars& s, const ColumnOperands& c, int (&v)[WIDTH],
                const float (&residual)[WIDTH], int m, i64 full, int n, int count) {
  if (STARTS)
#pragma unroll
    for (int k = 0; k < WIDTH; k++) v[k] = int(u32(v[k]) + u32(c.start[k]));
  if (SUMS) return;
  READ_FULL(e, m, full, n, count)
#pragma unroll
  for (int k = 0; k < WIDTH; k++) {
    const float r =
        RES_MODE && sizeof(Residual) == 1 ? __fsub_rn(residual[k], s.r_zero) : residual[k];
    float share;
    if (LINEAR) {
      float more = FOLDED == 1 ? s.result.first : c.bias[k];
      if (RES_MODE) more = fmaf(r, s.r_scale, more);
      share = FOLDED == 1 ? fmaf(middle_of(s, c, v[k], k), s.from_middle, more)
                          : fmaf(float(v[k]), c.scale[k], more);
    } else {
      float f = FOLDED == 1 ? __fmul_rn(middle_of(s, c, v[k], k), s.middle.scale)
                            : fmaf(float(v[k]), c.scale[k], c.bias[k]);
      if (RES_MODE == 1) f = __fadd_rn(f, __fmul_rn(r, s.r_scale));
      f = AFTER(e, c, f, k, m);
      if (RES_MODE == 2) f = __fadd_rn(f, __fmul_rn(r, s.r_scale));
      if (sizeof(Result) != 1) {
        v[k] = __float_as_int(f);
        continue;
      }
      share = fmaf(s.result.quotient(f), 1.f / 256.f, s.result.first);
    }
    share = s.result.round(share);
    v[k] = __float_as_int(ENDS ? __fadd_rn(share, s.zero) : share);
  }
}
DEV void finish(const Epilogue& e, const Scalars& s, const ColumnOperands& c, int (&v)[WIDTH],
                int m, i64 full, int n, int count) {
  alignas(16) Residual residual[WIDTH] = {};
  float raw[WIDTH];
  if (RES_MODE) load_neighbours<RES_VECTOR>(e.res + full + n, count, residual);
#pragma unroll
  for (int k = 0; k < WIDTH; k++) raw[k] = raw_number(residual[k]);
  finish(e, s, c, v, raw, m, full, n, count);
}
DEV void finish(const Epilogue& e, const Columns& c, int (&v)[WIDTH], int m, i64 full, int n,
                int count) {
  finish(e, c, c, v, m, full, n, count);
}
DEV void finish(const Epilogue& e, int (&v)[WIDTH], int m, i64 full, int n, int count) {
  finish(e, columns_at(e, n, n + count), v, m, full, n, count);
}

// The last byte of each.
DEV u32 pack_bytes(int a, int b, int c, int d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
DEV void store_result(float* y, int v) { *y = __int_as_float(v); }
DEV void store_result(int* y, int v) { *y = v; }
DEV void store_result(half_t* y, int v) { from_float(*y, __int_as_float(v)); }
DEV void store_result(bfloat_t* y, int v) { from_float(*y, __int_as_float(v)); }
// A word of two results of 16 bits.
template <class Y>
DEV u32 pack_floats(int a, int b) {
  if constexpr (sizeof(Y) == 2) return pack2((Y*)0, __int_as_float(a), __int_as_float(b));
  return 0;
}
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
#pragma unroll
      for (int k = 0; k < WIDTH; k += 4)
        *(int4*)(y + k) = make_int4(v[k], v[k + 1], v[k + 2], v[k + 3]);
    } else if constexpr (sizeof(Y) == 2) {
      u32 words[WIDTH / 2];
#pragma unroll
      for (int k = 0; k < WIDTH / 2; k++) words[k] = pack_floats<Y>(v[2 * k], v[2 * k + 1]);
      if constexpr (WIDTH == 8)
        *(uint4*)y = make_uint4(words[0], words[1], words[2], words[3]);
      else if constexpr (WIDTH == 4)
        *(uint2*)y = make_uint2(words[0], words[1]);
      else
        *(u32*)y = words[0];
    } else if constexpr (WIDTH == 4) {
      *(u32*)y = pack_bytes(v[0], v[1], v[2], v[3]);
    } else if constexpr (WIDTH == 2) {
      *(u16*)y = u16(__byte_perm(v[0], v[1], 0x0040));
    } else {
      *(uint2*)y =
          make_uint2(pack_bytes(v[0], v[1], v[2], v[3]), pack_bytes(v[4], v[5], v[6], v[7]));
    }
  } else if (!(VECTOR && UNIT % WIDTH == 0)) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      if (k < count) store_result(y + k, v[k]);
  }
}
