// Element types, conversions, and what ONNX asks of minima, maxima and modulo.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEV static __device__ __forceinline__
#define METHOD __device__ __forceinline__
struct half_t {
  u16 bits;
};
struct bfloat_t {
  u16 bits;
};
DEV float to_float(float v) { return v; }
DEV float to_float(half_t v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
DEV float to_float(bfloat_t v) { return __uint_as_float((u32)v.bits << 16); }
DEV void from_float(float& to, float v) { to = v; }
DEV void from_float(half_t& to, float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
#if __CUDA_ARCH__ >= 800
DEV void from_float(bfloat_t& to, float v) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));
}
#endif
// Two neighbouring elements as a 32-bit word: `a` has the lower address.
DEV u32 pack2(half_t*, float a, float b) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b));
  return r;
}
DEV u32 pack2(bfloat_t*, float a, float b) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b));
  return r;
}
DEV void unpack2(half_t*, u32 v, float& a, float& b) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(a), "=f"(b)
      : "r"(v));
}
DEV void unpack2(bfloat_t*, u32 v, float& a, float& b) {
  a = __uint_as_float(v << 16);
  b = __uint_as_float(v & 0xffff0000u);
}
// fminf and fmaxf drop NaN; ONNX keeps it.
DEV float keep_min(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
DEV float keep_max(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
DEV float clip_(float x, float lo, float hi) { return keep_min(keep_max(x, lo), hi); }
DEV float tanh_approximate(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float python_mod(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0.f && ((r < 0.f) != (b < 0.f)) ? r + b : r;
}
DEV i64 python_mod(i64 a, i64 b) {
  const i64 r = b ? a % b : 0;
  return r && ((r < 0) != (b < 0)) ? r + b : r;
}
