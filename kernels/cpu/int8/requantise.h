// From sums of 8-bit products to results: zero points, scales, bias, residual, activation or
// program, and rounding to 8 bits.
#pragma once
#include "common/bytes.h"
#include "common/epilogue.h"
#include "common/lanes.h"
#include "int8/int8_tile.h"

namespace tracea {
namespace TRACEA_NS {

// Whether a vector has a lane whose distance from an integer is not below a half by more than what
// a product by the reciprocal may be off (7e-5 for results of up to 383); a NaN is.
TRACEA_INLINE bool near_tie(vf distance) {
#if TRACEA_W == 16
  return _mm512_cmp_ps_mask((__m512)vabs(distance), (__m512)splat(0.4998f), _CMP_NLE_UQ);
#else
  return lane_bits(~(vabs(distance) <= splat(0.4998f))) != 0;
#endif
}

// How 8-bit values stand for numbers: (q - zero) * scale.
struct Quantised {
  float scale, inverse, zero;
  float lo, hi;  // q - zero of the smallest and the largest q

  // q - zero; a NaN becomes lo. A division, whose result a product tells except near a tie.
  TRACEA_INLINE vf round(vf v, const Quantised& q) {
    const vf quotient = v * q.inverse;
    vf n = vround(quotient);
    if (__builtin_expect(near_tie(quotient - n), 0)) n = vround(v / splat(q.scale));
    return vmin(vmax(n, splat(q.lo)), splat(q.hi));
  }
};

static inline int32_t read_zero(const void* p, int64_t dtype) {
  return !p ? 0 : dtype == kI8 ? *(const int8_t*)p : *(const uint8_t*)p;
}
static inline Quantised read_quantised(const void* scale, const void* zero, int64_t dtype) {
  const float z = float(read_zero(zero, dtype)), s = scale ? *(const float*)scale : 1.f;
  const bool normal = s > 1e-37f && s < 1e37f;  // else no product tells
  return {s, normal ? 1.f / s : std::numeric_limits<float>::quiet_NaN(), z,
          (dtype == kI8 ? -128.f : 0.f) - z, (dtype == kI8 ? 127.f : 255.f) - z};
}

// What the sums of a panel's columns need; `start` is what they begin with.
struct Columns {
  alignas(64) float scale[kInt8Panel], bias[kInt8Panel];
  alignas(64) int32_t start[kInt8Panel], zero[kInt8Panel];
  alignas(64) float quick_scale[kInt8Panel], quick_bias[kInt8Panel];  // in units of y's scale
  bool quick;  // whether results may be made of these
};

constexpr int kSumRows = 14;  // most rows of a SumTile
// Rows of sums and where their results go.
struct SumTile {
  int32_t* sums;               // [rows][32]
  const int64_t *y_at, *r_at;  // element offsets of each row
  const int32_t* x_sums;       // of x - x_zero of each row; null where no weight has a zero point
  int64_t rows, columns, row, col;  // row, col: of the first element
};

// The operands behind the product, which the three families share.
struct Finish {
  Values x;
  float x_scale;
  const float *w_scale, *bias;
  int64_t w_scale_step, w_zero_step, depth;
  const void* w_zero;
  int32_t w_shift;  // what was taken from the weights when they were packed
  int64_t w_dtype;
  bool w_zeros;  // whether any stored weight has a zero point
  Epilogue epilogue;
  const void* res;
  int64_t r_dtype, y_dtype;
  Quantised r, m, q;
  bool middle;
  Quick again;
  void* y;

  int32_t zero_of(int64_t n) const {
    if (!w_zero) return -w_shift;
    return read_zero((const uint8_t*)w_zero + n * w_zero_step, w_dtype) - w_shift;
  }

  // sums: of the stored weights of each column from n on.
  void prepare(Columns& c, int64_t n, int64_t columns, const int32_t* sums) const {
    for (int64_t j = 0; j < kInt8Panel; j += W) {
      const int here = int(std::max<int64_t>(0, std::min<int64_t>(W, columns - j)));
      const auto some = [&](const void* p) { return here ? load_n((const float*)p, here) : vf{}; };
      const vf scales = !w_scale       ? splat(1.f)
                        : w_scale_step ? some(w_scale + n + j)
                                       : splat(*w_scale);
      store(c.scale + j, scales * x_scale);
      store(c.bias + j, bias ? some(bias + n + j) : vf{});
      store_i(c.start + j, times(bits_i(some(sums + j)), splat_i(-x.offset())));
      store_i(c.zero + j, vi{});
      for (int64_t k = j; w_zeros && k < j + here; k++) c.zero[k] = zero_of(n + k);
    }
    // With u = 2^-24 such a result is off by at most 4 u times itself, 255 where it does not
    // saturate, and 2 u times its bias; a tie is seen within 2048 u.
    c.quick = y_dtype != kF32 && y_dtype != kI32 && epilogue.in_registers;
    c.quick = c.quick && q.inverse == q.inverse && m.inverse == m.inverse;
    const vf unit = splat(middle ? m.scale : q.scale);
    for (int64_t j = 0; c.quick && j < kInt8Panel; j += W) {
      const vf scales = load(c.scale + j) / unit, biases = load(c.bias + j) / unit;
      store(c.quick_scale + j, scales);
      store(c.quick_bias + j, biases);
      c.quick = !lane_bits(~((vabs(biases) < 500.f) & (vabs(scales) < 1e20f)));
    }
  }
  // Whether tiles may store results: nothing comes between the sums and these.
  bool at_once(const Columns& c) const {
    return c.quick && (!middle || again.again) && !res && !w_zeros;
  }
  Quick quick(const Columns& c, int64_t col) const {
    Quick made = again;
    const Quantised& first = middle ? m : q;
    made.scale = c.quick_scale, made.bias = c.quick_bias, made.y = (uint8_t*)y + col;
    made.lo = first.lo, made.hi = first.hi, made.magic = kQuickShift + (middle ? 0.f : q.zero);
    return made;
  }
  // How results that were quantised to `m` are quantised again; whether it is exact for all.
  Quick read_again() const {
    Quick found{};
    found.ratio = m.scale * q.inverse;
    found.again_lo = q.lo, found.again_hi = q.hi, found.again_magic = q.zero + kQuickShift;
    found.again = middle && y_dtype != kF32 && y_dtype != kI32;
    for (int n = int(m.lo); found.again && n <= int(m.hi); n += W) {
      const vf v = vmin(lane_numbers() + float(n), splat(m.hi));
      const vi made = again_bits(v, found) >> kFractionBits,
               exact = to_int(Quantised::round(v * m.scale, q) + q.zero);
      found.again = lane_bits(((made ^ exact) & 255) != 0) == 0;
    }
    return found;
  }

  void finish(const Columns& c, const SumTile& t) const {
    if (t.x_sums)
      for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.columns; j += W) {
          int32_t* s = t.sums + i * kInt8Panel + j;
          store_i(s, minus(load_i(s), times(load_i(c.zero + j), splat_i(t.x_sums[i]))));
        }
    if (y_dtype == kI32) return store_sums(t);
    if (!epilogue.in_registers) return finish_values(c, t);
    const bool bytes = y_dtype != kF32;
    if (middle)
      bytes ? finish_clamped<true, true, true>(c, t) : finish_clamped<true, true, false>(c, t);
    else if (res)
      bytes ? finish_clamped<false, true, true>(c, t) : finish_clamped<false, true, false>(c, t);
    else
      bytes ? finish_clamped<false, false, true>(c, t) : finish_clamped<false, false, false>(c, t);
  }

 private:
  TRACEA_INLINE vf residual(const Finish& f, int64_t at, int n) {
    if (f.r_dtype == kF32) return load_n((const float*)f.res + at, n);
    return (load_bytes((const uint8_t*)f.res + at, n, f.r_dtype == kI8) - f.r.zero) * f.r.scale;
  }
  TRACEA_INLINE void put(const Finish& f, int64_t at, vf v, int n, bool bytes) {
    if (!bytes) return store_n((float*)f.y + at, v, n);
    store_bytes((uint8_t*)f.y + at, to_int(Quantised::round(v, f.q) + f.q.zero), n);
  }
  static int width(const SumTile& t, int64_t j) { return int(std::min<int64_t>(W, t.columns - j)); }

  void store_sums(const SumTile& t) const {
    for (int64_t i = 0; i < t.rows; i++)
      memcpy((int32_t*)y + t.y_at[i] + t.col, t.sums + i * kInt8Panel, size_t(t.columns) * 4);
  }

  // The same as finish_column where a product tells what a division would, but near a tie.
  template <bool middle_too, bool residual_too>
  TRACEA_INLINE void quick_column(const Finish& f, const Columns& c, const SumTile& t, int64_t j,
                                  int n) {
    const bool middle = middle_too && f.middle, res = residual_too && f.res;
    const vf scales = load(c.scale + j), biases = load(c.bias + j);
    const vf quick_scales = load(c.quick_scale + j), quick_biases = load(c.quick_bias + j);
    for (int64_t i = 0; i < t.rows; i++) {
      const vf sum = to_float(load_i(t.sums + i * kInt8Panel + j));
      vf v = fma(sum, scales, biases), near = fma(sum, quick_scales, quick_biases);
      if (middle) {
        near = vmin(vmax(near, splat(f.m.lo)), splat(f.m.hi));
        const bool tie = quick_ties(bits_i(near + kQuickShift));
        v = (__builtin_expect(tie, 0) ? Quantised::round(v, f.m) : vround(near)) * f.m.scale;
      }
      if (res) {
        const vf r = residual(f, t.r_at[i] + t.col + j, n);
        v = f.epilogue.after_act ? f.epilogue.clamp(v) + r : v + r;
      }
      if (middle || res) near = v * f.q.inverse;
      const vi bits =
          bits_i(vmin(vmax(near, splat(f.q.lo)), splat(f.q.hi)) + (f.q.zero + kQuickShift));
      if (__builtin_expect(quick_ties(bits) != 0, 0))
        put(f, t.y_at[i] + t.col + j, v, n, true);
      else
        store_bytes((uint8_t*)f.y + t.y_at[i] + t.col + j, (bits >> kFractionBits) & 255, n);
    }
  }

  template <bool middle_too, bool residual_too, bool bytes>
  TRACEA_INLINE void finish_column(const Finish& f, const Columns& c, const SumTile& t, int64_t j,
                                   int n) {
    const vf scales = load(c.scale + j), biases = load(c.bias + j);
    if (bytes && c.quick) return quick_column<middle_too, residual_too>(f, c, t, j, n);
    for (int64_t i = 0; i < t.rows; i++) {
      vf v = fma(to_float(load_i(t.sums + i * kInt8Panel + j)), scales, biases);
      if (middle_too && f.middle) v = Quantised::round(v, f.m) * f.m.scale;
      if (residual_too && f.res) {
        const vf r = residual(f, t.r_at[i] + t.col + j, n);
        v = f.epilogue.after_act ? f.epilogue.clamp(v) + r : f.epilogue.clamp(v + r);
      } else {
        v = f.epilogue.clamp(v);
      }
      put(f, t.y_at[i] + t.col + j, v, n, bytes);
    }
  }
  template <bool middle_too, bool residual_too, bool bytes>
  __attribute__((noinline)) void finish_clamped(const Columns& c, const SumTile& t) const {
    const Finish f = *this;  // a copy: what is stored could change the original
    int64_t j = 0;
    for (; j + W <= t.columns; j += W)
      finish_column<middle_too, residual_too, bytes>(f, c, t, j, W);
    if (j < t.columns)
      finish_column<middle_too, residual_too, bytes>(f, c, t, j, int(t.columns - j));
  }

  // Any activation, or a program.
  __attribute__((noinline)) void finish_values(const Columns& c, const SumTile& t) const {
    alignas(64) float values[kSumRows * kInt8Panel], residuals[kSumRows * kInt8Panel];
    for (int64_t i = 0; i < t.rows; i++)
      for (int64_t j = 0; j < t.columns; j += W) {
        const int64_t at = i * kInt8Panel + j;
        vf v = fma(to_float(load_i(t.sums + at)), load(c.scale + j), load(c.bias + j));
        if (middle) v = Quantised::round(v, m) * m.scale;
        store(values + at, v);
        if (res) store(residuals + at, residual(*this, t.r_at[i] + t.col + j, width(t, j)));
      }
    // A convolution's program reads full operands at the residual's pitches: equal steps at a time.
    for (int64_t i = 0, next; i < t.rows; i = next) {
      const int64_t step = i + 1 < t.rows ? t.r_at[i + 1] - t.r_at[i] : 0;
      for (next = i + 1; next < t.rows && t.r_at[next] - t.r_at[next - 1] == step;) next++;
      finish_tile(epilogue, {values + i * kInt8Panel, kInt8Panel,
                             res ? residuals + i * kInt8Panel : nullptr, res ? kInt8Panel : step,
                             next - i, t.columns, t.row + i, t.col, t.r_at[i] + t.col});
    }
    for (int64_t i = 0; i < t.rows; i++)
      for (int64_t j = 0; j < t.columns; j += W)
        put(*this, t.y_at[i] + t.col + j, load(values + i * kInt8Panel + j), width(t, j),
            y_dtype != kF32);
  }
};

// Operands have the same numbers in the three families, and parameters the same distance from the
// first of the epilogue's.
static inline Finish read_finish(const Launch& l, int first, int64_t columns, int64_t depth,
                                 bool shared_pitch) {
  using namespace fam::gemm_int8;
  const auto number = [&](int k) { return l.i[first + k - act]; };
  const auto floats = [&](int k) { return (const float*)l.buf[k]; };
  Finish f;
  f.x.flip = number(x_dtype) == kI8 ? 0x80 : 0;
  f.x.zero = uint8_t(read_zero(l.buf[x_zero], kU8)) ^ f.x.flip;
  f.x_scale = l.buf[x_scale] ? *floats(x_scale) : 1.f;
  f.w_scale = floats(w_scale), f.bias = floats(bias);
  f.w_zero = l.buf[w_zero], f.w_dtype = number(w_dtype), f.w_shift = f.w_dtype == kU8 ? 128 : 0;
  f.w_scale_step = number(w_scales) == columns, f.w_zero_step = number(w_zeros) == columns;
  f.depth = depth;
  f.w_zeros = false;
  for (int64_t n = 0; n < (f.w_zero_step ? columns : 1); n++) f.w_zeros |= f.zero_of(n) != 0;
  f.epilogue = make_epilogue(l, first, o0, p0, shared_pitch);
  f.res = f.epilogue.prog || f.epilogue.res_mode == kNoResidual ? nullptr : (const void*)l.buf[res];
  f.r_dtype = number(r_dtype), f.y_dtype = number(y_dtype);
  f.r = read_quantised(l.buf[r_scale], l.buf[r_zero], f.r_dtype);
  f.m = read_quantised(l.buf[m_scale], l.buf[m_zero], number(m_dtype));
  f.q = read_quantised(l.buf[y_scale], l.buf[y_zero], f.y_dtype);
  f.middle = l.buf[m_scale] != nullptr;
  // Rounding is monotonous: a clamp before it is one after it.
  if (f.epilogue.in_registers && !(f.res && f.epilogue.after_act)) {
    const Quantised whole = f.q;
    f.q.lo = Quantised::round(splat(f.epilogue.lo), whole)[0];
    f.q.hi = Quantised::round(splat(f.epilogue.hi), whole)[0];
  }
  f.again = f.read_again();
  f.y = l.buf[y];
  return f;
}

}  // namespace TRACEA_NS
}  // namespace tracea
