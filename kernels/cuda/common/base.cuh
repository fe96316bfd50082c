// Vectors, warp and block reductions. Follows `cuda_text.prelude`, which has the element types and
// conversions.
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

// V elements moved by one access.
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

// All threads of a cluster (sm_90 and later) arrive, later wait for each other; relaxed: which need
// not see what these stored.
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

// `v` of the THREADS threads of a row joined; every thread gets the result. THREADS is 32 (a warp
// has the row) or the block's size; then `shared` holds 32 values.
template <class Op, int THREADS, class A>
DEV A join_threads(A v, A* shared) {
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

// First statement of every kernel: on Hopper the next kernel of the stream may be brought onto the
// device while this one runs, and this one waits until what the one before wrote can be seen.
// Kernels that find their places in between call the two halves; all of them wait some time, since
// the next one takes the end of this one for the end of those before it.
DEV void next_may_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void after_previous() {
  next_may_start();
  wait_for_previous();
}

// What a kernel computes before it waits for the one before: the assembler moves behind a plain
// wait whatever can be there, so this wait asks for it.
struct Places {
  u32 key = 0;
  METHOD void have(u32 v) { key ^= v; }
  METHOD void have(int v) { key ^= u32(v); }
  METHOD void have(i64 v) { key ^= u32(v) ^ u32(v >> 32); }
  METHOD void have(u64 v) { key ^= u32(v) ^ u32(v >> 32); }
  METHOD void have(const void* v) { have(u64(v)); }
  METHOD void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{.reg .pred p; setp.eq.u32 p, %0, 0; @p griddepcontrol.wait; @!p griddepcontrol.wait;}" ::
            "r"(key)
        : "memory");
#endif
  }
};
// Waits once these are known.
template <class... Args>
DEV void wait_with(Args... known) {
  Places places;
  (places.have(known), ...);
  places.wait();
}
