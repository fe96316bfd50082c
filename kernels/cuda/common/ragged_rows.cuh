// Vector access to rows whose address or length is no multiple of a vector.
#pragma once
#include "common/base.cuh"

// n elements as aligned vectors of V elements, with fewer than V elements before (head) and after.
template <int V>
struct Span {
  int head, vectors, edges;
  template <class E>
  __device__ __forceinline__ Span(const E* x, int n) {
    head = min(n, int(-(u64(x) / sizeof(E)) & (V - 1)));
    vectors = (n - head) / V;
    edges = n - vectors * V;
  }
  // Index of the element outside the vectors that `lane` handles; -1: none. 2 V - 2 lanes handle
  // all.
  METHOD int edge(int lane) const {
    return lane >= edges ? -1 : lane < head ? lane : lane + vectors * V;
  }
};

// Whether the addresses of x and y are equally far from alignment to a vector.
template <int V, class E>
DEV bool same_misalignment(const E* x, const E* y) {
  return ((u64(x) ^ u64(y)) & (V * sizeof(E) - 1)) == 0;
}

// One store instruction. A plain assignment of elements may be split by the compiler.
template <int V, class E>
DEV void store_vector(E* p, const Vec<E, V>& v) {
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

// Calls f(index, vector) for every STEP-th vector of x, with up to DEPTH loads in flight.
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

// Vectors at any address: one access if aligned, else one per element.
template <int V, class E>
DEV Vec<E, V> load_unaligned(const E* p) {
  if (aligned(p, V * sizeof(E))) return load<V>(p);
  Vec<E, V> v;
#pragma unroll
  for (int j = 0; j < V; j++) v.v[j] = p[j];
  return v;
}
template <int V, class E>
DEV void store_unaligned(E* p, const Vec<E, V>& v) {
  if (aligned(p, V * sizeof(E))) return store<V>(p, v);
#pragma unroll
  for (int j = 0; j < V; j++) p[j] = v.v[j];
}

// n contiguous elements in shared memory, at data[0..n). `room` has 16 bytes more than they need,
// so that data and x can be equally misaligned.
template <int THREADS, class E>
struct Staged {
  static constexpr int V = 16 / sizeof(E);
  E* data;
  METHOD void load_rows(E* room, const E* x, int n) {
    const Span<V> s(x, n);
    data = room + (V - s.head) % V;
    const int edge = s.edge(threadIdx.x);
    pdl_wait_after(x + s.head, s.vectors, edge);
    if (edge >= 0) data[edge] = x[edge];
    over_vectors<V, THREADS, 4>(
        x + s.head, s.vectors, threadIdx.x,
        [&](int i, const Vec<E, V>& raw) { store<V>(data + s.head + i * V, raw); });
    __syncthreads();
  }
  METHOD void store_rows(E* y, int n) const {
    __syncthreads();
    const Span<V> s(y, n);
    const int edge = s.edge(threadIdx.x);
    if (edge >= 0) y[edge] = data[edge];
    for (int i = threadIdx.x; i < s.vectors; i += THREADS)
      store<V>(y + s.head + i * V, load_unaligned<V>(data + s.head + i * V));
  }
};
