// Quantisation to 8 bits.
#pragma once
#include "common/base.cuh"

// As QuantizeLinear, by a scale that is positive and whose reciprocal is a normal number, too:
// rounded half to even, saturated. A quotient is a product by the reciprocal, corrected once.
template <class Q>
struct Quantiser {
  float scale, inverse, least, most;  // numbers a step beyond what saturates
  int zero;
  static constexpr bool SIGNED = Q(-1) < Q(0);
  static constexpr int LO = SIGNED ? -128 : 0, HI = SIGNED ? 127 : 255;
  static constexpr float SHIFT = 12582912.f;  // 1.5 * 2^23: floats around it are integers
  METHOD Quantiser(float step, int z) : scale(step), inverse(__fdiv_rn(1.f, step)), zero(z) {
    least = scale * float(LO - zero - 1), most = scale * float(HI - zero + 1);
  }
  METHOD Quantiser(const float* step, const Q* z)
      : Quantiser(step ? *step : 1.f, z ? int(*z) : 0) {}
  METHOD Q of(float v) const {
    v = fminf(fmaxf(v, least), most);
    float q = __fmul_rn(v, inverse);
    q = __fmaf_rn(__fmaf_rn(-q, scale, v), inverse, q);
    const int n = __float_as_int(__fadd_rn(q, SHIFT)) - __float_as_int(SHIFT) + zero;
    return Q(min(max(n, LO), HI));
  }
};
