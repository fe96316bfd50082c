// Vectors, reductions of warps and CTAs, programmatic dependent launch (PDL). Follows the prelude
// (`common/prelude.py`), which has the element types and conversions.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED

typedef signed char i8;
typedef short i16;
typedef int i32;
#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define FULL_WARP 0xffffffffu

DEV float to_float(double v) { return float(v); }
DEV float to_float(i64 v) { return float(v); }
DEV float to_float(i32 v) { return float(v); }
DEV float to_float(u32 v) { return float(v); }
DEV float to_float(u64 v) { return float(v); }
template <class T>
DEV T rounded(float v) {
  T r;
  from_float(r, v);
  return r;
}

// V elements that one instruction loads or stores.
template <class T, int V>
struct alignas(sizeof(T) * V) Vec {
  T v[V];
};
template <int V, class T>
DEV Vec<T, V> load(const T* p) {
  return *(const Vec<T, V>*)p;
}
template <int V, class T>
DEV void store(T* p, Vec<T, V> v) {
  *(Vec<T, V>*)p = v;
}
// Whether an address (null counts) is a multiple of `bytes`, a power of two.
DEV bool aligned(const void* p, int bytes) { return (u64(p) & u64(bytes - 1)) == 0; }

// Cluster barrier (sm_90 and later), in two halves. relaxed: orders no memory accesses.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

struct Sum {
  template <class A>
  static __device__ __forceinline__ A join(A a, A b) {
    return a + b;
  }
  static __device__ __forceinline__ float start() { return 0.f; }
};
struct Largest {
  static __device__ __forceinline__ float join(float a, float b) { return fmaxf(a, b); }
  static __device__ __forceinline__ float start() { return -INF; }
};

// Reduction of `v` over THREADS threads: a warp (32) or the CTA. Every thread gets the result.
// shared: room for 32 values, used by CTAs of more than one warp.
template <class Op, int THREADS, class A>
DEV A reduce_threads(A v, A* shared) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = Op::join(v, __shfl_xor_sync(FULL_WARP, v, o));
  if (THREADS > 32) {
    const int lane = threadIdx.x & 31;
    __syncthreads();  // readers of an earlier call are done
    if (lane == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = lane < THREADS / 32 ? shared[lane] : A(Op::start());
#pragma unroll
    for (int o = 16; o; o >>= 1) v = Op::join(v, __shfl_xor_sync(FULL_WARP, v, o));
  }
  return v;
}

// Programmatic dependent launch: the next kernel of the stream may start while this one runs, and
// this one waits until the results of the one before are visible. `pdl_begin` is the first
// statement of a kernel; kernels that compute addresses in between call its two halves. Every
// kernel must wait: the next kernel relies on the end of this one implying the end of all before
// it.
DEV void pdl_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void pdl_begin() {
  pdl_launch_dependents();
  pdl_wait();
}

// `pdl_wait` that comes after the computation of given values, such as addresses. The assembler may
// sink computations below a plain wait; here they are operands of the wait.
struct Prologue {
  u32 key = 0;
  METHOD void need(u32 v) { key ^= v; }
  METHOD void need(int v) { key ^= u32(v); }
  METHOD void need(i64 v) { key ^= u32(v) ^ u32(v >> 32); }
  METHOD void need(u64 v) { key ^= u32(v) ^ u32(v >> 32); }
  METHOD void need(const void* v) { need(u64(v)); }
  METHOD void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .pred p; setp.eq.u32 p, %0, 0; @p griddepcontrol.wait; @!p griddepcontrol.wait;}" ::
            "r"(key)
        : "memory");
#endif
  }
};
// The same for values that are known in one place.
template <class... Args>
DEV void pdl_wait_after(Args... known) {
  Prologue places;
  (places.need(known), ...);
  places.wait();
}
