// CUDA C++ on the host: what a kernel's text uses of the language and of device functions.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's functions alone: what C++ adds takes long to read
#include <math.h>
#include "threads.h"
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __clang__
#define __builtin_assume(x)
#endif

// In place of the declarations of shared memory.
#define EMULATED_DYNAMIC_SHARED(type, name, alignment) \
  type* const name = (type*)emulated::dynamic_shared((alignment) > 16 ? (alignment) : 16)
static unsigned emulated_top;
#define EMULATED_VECTORS(type, name)                                      \
  struct name##2 { type x, y; }                                           \
  __attribute__((may_alias, aligned(2 * sizeof(type))));                  \
  struct name##3 { type x, y, z; };                                       \
  struct name##4 { type x, y, z, w; }                                     \
  __attribute__((may_alias, aligned(4 * sizeof(type))));                  \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(signed char, char)
EMULATED_VECTORS(unsigned char, uchar)
struct double2 {
  double x, y;
} __attribute__((may_alias, aligned(16)));
struct longlong2 {
  long long x, y;
} __attribute__((may_alias, aligned(16)));
struct ulonglong2 {
  unsigned long long x, y;
} __attribute__((may_alias, aligned(16)));

template <class To, class From>
static inline To emulated_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}
static inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return emulated_bits<float>(v); }
static inline int __float_as_int(float v) { return emulated_bits<int>(v); }

// What lanes of a warp see of each other: `seen(v of a lane)`.
template <class A, class F>
static A emulated_lanes(const char* what, unsigned mask, A v, F seen) {
  struct Lane {
    A v, result;
    const F* seen;
  } mine{v, v, &seen};
  emulated::together(
      what,
      [](void** lanes, unsigned mask) {
        for (unsigned lane = 0; lane < 32; lane++)
          if (mask >> lane & 1) {
            Lane& own = *(Lane*)lanes[lane];
            own.result = (*own.seen)(lane, mask, [&](unsigned other) {
              return ((Lane*)lanes[mask >> other & 1 ? other : lane])->v;
            });
          }
      },
      &mine, mask);
  return mine.result;
}
static inline void __syncwarp(unsigned mask = ~0u) {
  emulated::together("__syncwarp", [](void**, unsigned) {}, nullptr, mask);
}
template <class A>
static A __shfl_sync(unsigned mask, A v, int from, int width = 32) {
  return emulated_lanes("__shfl_sync", mask, v, [&](unsigned lane, unsigned, auto of) {
    return of(lane / width * width + unsigned(from) % width);
  });
}
template <class A>
static A __shfl_xor_sync(unsigned mask, A v, int apart, int width = 32) {
  return emulated_lanes("__shfl_xor_sync", mask, v, [&](unsigned lane, unsigned, auto of) {
    const unsigned other = lane ^ unsigned(apart);
    return of(other / width <= lane / width ? other : lane);
  });
}
template <class A>
static A __shfl_down_sync(unsigned mask, A v, unsigned far, int width = 32) {
  return emulated_lanes("__shfl_down_sync", mask, v, [&](unsigned lane, unsigned, auto of) {
    return of(lane % width + far < unsigned(width) ? lane + far : lane);
  });
}
template <class A>
static A __shfl_up_sync(unsigned mask, A v, unsigned far, int width = 32) {
  return emulated_lanes("__shfl_up_sync", mask, v, [&](unsigned lane, unsigned, auto of) {
    return of(lane % width >= far ? lane - far : lane);
  });
}
static inline unsigned __ballot_sync(unsigned mask, int v) {
  return emulated_lanes("__ballot_sync", mask, unsigned(v != 0), [](unsigned, unsigned m, auto of) {
    unsigned r = 0;
    for (unsigned lane = 0; lane < 32; lane++)
      if (m >> lane & 1) r |= of(lane) << lane;
    return r;
  });
}
static inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
static inline int __all_sync(unsigned mask, int v) { return __ballot_sync(mask, !v) == 0; }
template <class A, class F>
static A emulated_reduce(unsigned mask, A v, F join) {
  return emulated_lanes("__reduce_sync", mask, v, [&](unsigned lane, unsigned m, auto of) {
    A r = of(lane);
    for (unsigned other = 0; other < 32; other++)
      if (m >> other & 1 && other != lane) r = join(r, of(other));
    return r;
  });
}
template <class A>
static A __reduce_max_sync(unsigned mask, A v) {
  return emulated_reduce(mask, v, [](A a, A b) { return a < b ? b : a; });
}
template <class A>
static A __reduce_min_sync(unsigned mask, A v) {
  return emulated_reduce(mask, v, [](A a, A b) { return a < b ? a : b; });
}
template <class A>
static A __reduce_add_sync(unsigned mask, A v) {
  return emulated_reduce(mask, v, [](A a, A b) { return a + b; });
}

static inline void __syncthreads() { emulated::barrier(0, 0, true); }
static inline int __syncthreads_count(int v) { return int(emulated::barrier(0, 0, true, v != 0)); }
static inline int __syncthreads_or(int v) { return __syncthreads_count(v) != 0; }
static inline int __syncthreads_and(int v) { return __syncthreads_count(!v) == 0; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) { emulated::pause(); }
static inline void __trap() { emulated::fail("__trap"); }
static inline size_t __cvta_generic_to_shared(const void* p) { return emulated::address_of(p); }

// Threads are switched at waits alone.
#define EMULATED_ATOMIC(name, value) \
  template <class A, class B>        \
  static A name(A* p, B given) {     \
    const A was = *p, v = A(given);  \
    *p = value;                      \
    return was;                      \
  }
EMULATED_ATOMIC(atomicAdd, was + v)
EMULATED_ATOMIC(atomicSub, was - v)
EMULATED_ATOMIC(atomicExch, v)
EMULATED_ATOMIC(atomicMax, was < v ? v : was)
EMULATED_ATOMIC(atomicMin, v < was ? v : was)
EMULATED_ATOMIC(atomicAnd, was& v)
EMULATED_ATOMIC(atomicOr, was | v)
template <class A, class B, class C>
static A atomicCAS(A* p, B expected, C v) {
  const A was = *p;
  if (was == A(expected)) *p = A(v);
  return was;
}

static inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned r = 0;
  for (int k = 0; k < 4; k++) {
    const unsigned s = selector >> 4 * k & 15, byte = both >> 8 * (s & 7) & 255;
    r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return r;
}
static inline int __dp4a(int a, int b, int c) {
  for (int k = 0; k < 4; k++) c += (signed char)(a >> 8 * k) * (signed char)(b >> 8 * k);
  return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int k = 0; k < 4; k++) c += (a >> 8 * k & 255) * (b >> 8 * k & 255);
  return c;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf  // C libraries declare these names
#define __logf logf
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-0.70710678f * x); }
static inline unsigned __vmaxu2(unsigned a, unsigned b) {
  const unsigned high = a >> 16 > b >> 16 ? a : b, low = (a & 0xffff) > (b & 0xffff) ? a : b;
  return (high & 0xffff0000u) | (low & 0xffff);
}
static inline unsigned __vmaxs2(unsigned a, unsigned b) {
  return __vmaxu2(a ^ 0x80008000u, b ^ 0x80008000u) ^ 0x80008000u;
}
static inline float __saturatef(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }
static inline int __float2int_rn(float x) {
  return x != x              ? 0
         : x >= 2147483648.f ? 2147483647
         : x < -2147483648.f ? -2147483647 - 1
                             : int(rintf(x));
}
static inline float __int2float_rn(int v) { return float(v); }
template <class A>
static A __ldg(const A* p) {
  return *p;
}
template <class A>
static A __ldcg(const A* p) {
  return *p;
}
template <class A>
static A __ldcs(const A* p) {
  return *p;
}
template <class A>
static void __stcs(A* p, A v) {
  *p = v;
}
template <class A>
static constexpr A min(A a, A b) {
  return a < b ? a : b;
}
template <class A>
static constexpr A max(A a, A b) {
  return a > b ? a : b;
}
static constexpr unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
static constexpr unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
static constexpr unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
static constexpr unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
static constexpr long long min(long long a, int b) { return min(a, (long long)b); }
static constexpr long long max(long long a, int b) { return max(a, (long long)b); }
