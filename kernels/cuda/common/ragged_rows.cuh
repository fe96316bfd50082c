// Rows whose length or address is no multiple of a vector.
#pragma once
#include "common/base.cuh"

// n elements as whole vectors of V, which lie at multiples of their size, and fewer than V elements
// before and after those.
template <int V>
struct Span {
  int head, vectors, edges;
  template <class E>
  __device__ __forceinline__ Span(const E* x, int n) {
    head = min(n, int(-(u64(x) / sizeof(E)) & (V - 1)));
    vectors = (n - head) / V;
    edges = n - vectors * V;
  }
  // Where the element before or after that `lane` takes lies; -1: it takes none. 2 V - 2 lanes take
  // all.
  METHOD int edge(int lane) const {
    return lane >= edges ? -1 : lane < head ? lane : lane + vectors * V;
  }
};

// Whether vectors of x and y, element by element, lie at multiples of their size in the same
// places.
template <int V, class E>
DEV bool together(const E* x, const E* y) {
  return ((u64(x) ^ u64(y)) & (V * sizeof(E) - 1)) == 0;
}

// A vector stored by one instruction, which the compiler's own of elements need not become.
template <int V, class E>
DEV void store_whole(E* p, const Vec<E, V>& v) {
  const u32* w = (const u32*)&v;
  if constexpr (sizeof(v) == 16)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
  else if constexpr (sizeof(v) == 8)
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
  else
    store<V>(p, v);
}

// f(index, vector) for every STEP-th of the vectors at x; DEPTH are on their way at a time, few as
// there may be.
template <int V, int STEP, int DEPTH, class E, class F>
DEV void over_vectors(const E* x, int vectors, int lane, F f) {
  for (int i = lane; i < vectors; i += DEPTH * STEP) {
    Vec<E, V> raw[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (i + k * STEP < vectors) raw[k] = load<V>(x + (i + k * STEP) * V);
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
      if (i + k * STEP < vectors) f(i + k * STEP, raw[k]);
  }
}

// Vectors at addresses that need not be multiples of their size.
template <int V, class E>
DEV Vec<E, V> load_anywhere(const E* p) {
  if (aligned(p, V * sizeof(E))) return load<V>(p);
  Vec<E, V> v;
#pragma unroll
  for (int j = 0; j < V; j++) v.v[j] = p[j];
  return v;
}
template <int V, class E>
DEV void store_anywhere(E* p, const Vec<E, V>& v) {
  if (aligned(p, V * sizeof(E))) return store<V>(p, v);
#pragma unroll
  for (int j = 0; j < V; j++) p[j] = v.v[j];
}

// Elements next to each other in shared memory: number i lies at slab[i]; `room` has 16 bytes more
// than they need.
template <int THREADS, class E>
struct Slabs {
  static constexpr int V = 16 / sizeof(E);
  E* slab;
  METHOD void bring(E* room, const E* x, int n) {
    const Span<V> s(x, n);
    slab = room + (V - s.head) % V;
    const int edge = s.edge(threadIdx.x);
    wait_with(x + s.head, s.vectors, edge);
    if (edge >= 0) slab[edge] = x[edge];
    over_vectors<V, THREADS, 4>(
        x + s.head, s.vectors, threadIdx.x,
        [&](int i, const Vec<E, V>& raw) { store<V>(slab + s.head + i * V, raw); });
    __syncthreads();
  }
  METHOD void take_back(E* y, int n) const {
    __syncthreads();
    const Span<V> s(y, n);
    const int edge = s.edge(threadIdx.x);
    if (edge >= 0) y[edge] = slab[edge];
    for (int i = threadIdx.x; i < s.vectors; i += THREADS)
      store<V>(y + s.head + i * V, load_anywhere<V>(slab + s.head + i * V));
  }
};
