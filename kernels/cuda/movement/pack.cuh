// Packing of constants, once per session: a thread for each of `count` results. Absent operands are
// null.
#pragma once
#include "common/base.cuh"

#define PACK_KERNEL extern "C" __global__ void __launch_bounds__(256)
#define EACH(index)                                             \
  pdl_wait();                                                   \
  const i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x; \
  if (index >= count) return

DEV float scale_of(const float* scale, i64 n) { return scale ? scale[n] : 1.f; }

// packed[n0 + n, k] = alpha w[k, n] scale[n] (gamma[k] + gamma_add), zero from K to `pitch`. w is
// [K, N], or [N, K] if `trans`, with rows `ldw` apart.
PACK_KERNEL pack_gemm(const T* w, const float* scale, T* packed, const T* gamma, int trans, int n0,
                      int K, int gamma_add, i64 N, i64 ldw, int pitch, float alpha, i64 count) {
  EACH(index);
  const i64 n = index % N, k = index / N;  // neighbouring threads read neighbouring columns
  float v = 0.f;
  if (k < K)
    v = to_float(trans ? w[n * ldw + k] : w[k * ldw + n]) * alpha * scale_of(scale, n) *
        (gamma ? to_float(gamma[k]) + gamma_add : 1.f);
  from_float(packed[(n0 + n) * pitch + k], v);
}

// Of a norm folded into a GEMM, for column n: sums[n] = unscale sum_k packed[n, k], bias[n] = b[n]
// + alpha sum_k beta[k] w[k, n].
PACK_KERNEL fold_norm(const T* w, const T* packed, const T* beta, const T* b, float* sums,
                      float* bias, int trans, int K, i64 ldw, int pitch, float alpha, float unscale,
                      i64 count) {
  EACH(n);
  double sum = 0.0, shift = b ? double(to_float(b[n])) : 0.0;
  for (int k = 0; k < K; k++) {
    sum += double(to_float(packed[n * pitch + k]));
    if (beta)
      shift += double(to_float(beta[k])) *
               double(to_float(trans ? w[n * ldw + k] : w[k * ldw + n])) * double(alpha);
  }
  sums[n] = float(sum * double(unscale));
  bias[n] = float(shift);
}

// packed[oc, kh, kw, c] = w[oc, c, kh, kw] scale[oc] (transposed: w[c, oc, kh, kw]) of groups of
// OCG x ICG channels. Group packing: `together` groups form a block-diagonal filter, with zeros
// outside the blocks.
PACK_KERNEL pack_conv(const T* w, const float* scale, T* packed, int OCG, int ICG, int KH, int KW,
                      int pitch, int transposed, int together, i64 count) {
  EACH(index);
  int c = int(index % pitch);
  i64 rest = index / pitch;
  const int kw = int(rest % KW);
  rest /= KW;
  const int kh = int(rest % KH), oc = int(rest / KH), group = oc / OCG;
  c -= group % together * ICG;
  float v = 0.f;
  if (c >= 0 && c < ICG) {
    const i64 row =
        transposed ? (i64(group) * ICG + c) * OCG + oc - group * OCG : i64(oc) * ICG + c;
    v = to_float(w[(row * KH + kh) * KW + kw]) * scale_of(scale, oc);
  }
  from_float(packed[index], v);
}

// packed[tap, c] = w[c, tap] scale[c] of OC channels, zero up to `pitch`.
PACK_KERNEL pack_depthwise(const T* w, const float* scale, T* packed, int OC, int taps, int pitch,
                           i64 count) {
  EACH(index);
  const int c = int(index % pitch), tap = int(index / pitch);
  float v = 0.f;
  if (c < OC) v = to_float(w[i64(c) * taps + tap]) * scale_of(scale, c);
  from_float(packed[index], v);
}

// packed[c] = b[c] scale[c] + shift[c] of OC channels, zero behind them.
PACK_KERNEL pack_bias(const T* b, const float* scale, const float* shift, float* packed, int OC,
                      i64 count) {
  EACH(c);
  float v = 0.f;
  if (c < OC) v = (b ? to_float(b[c]) : 0.f) * scale_of(scale, c) + (shift ? shift[c] : 0.f);
  packed[c] = v;
}

// BatchNormalization as x scale[c] + shift[c].
PACK_KERNEL fold_bn(const T* gamma, const T* beta, const T* mean, const T* var, float* scale,
                    float* shift, float eps, i64 count) {
  EACH(c);
  const double s = double(to_float(gamma[c])) / sqrt(double(to_float(var[c])) + double(eps));
  scale[c] = float(s);
  shift[c] = float(double(to_float(beta[c])) - double(to_float(mean[c])) * s);
}
