// Vector access to contiguous elements at any address, and fast division.
#pragma once
#include "common/base.cuh"

// k / n by multiplication. per = (2^31 - 1) / n; the estimate is at most one too small.
DEV u32 quotient(u32 k, u32 n, u32 per) {
  const u32 q = __umulhi(k, 2 * per);
  return q + (k - q * n >= n);
}
DEV u64 quotient(u64 k, u64 n, u32) { return k / n; }

// The unsigned integer type of SIZE bytes.
template <int SIZE>
struct Unsigned;
template <>
struct Unsigned<1> {
  typedef u8 type;
};
template <>
struct Unsigned<2> {
  typedef u16 type;
};
template <>
struct Unsigned<4> {
  typedef u32 type;
};
template <class E>
DEV typename Unsigned<sizeof(E)>::type& bits_of(E& e) {
  return *(typename Unsigned<sizeof(E)>::type*)&e;
}

// V contiguous elements in flight: `read` issues loads, `get` waits for them, so several runs can
// be in flight together. Elements of less than 4 bytes are read as the aligned words that hold
// them; they begin `shift_bytes` bytes into the first word. Bytes outside the run are never read.
template <int V, class E, bool WORDS = (sizeof(E) < 4 && V * sizeof(E) >= 4)>
struct UnalignedVector {
  Vec<E, V> v;
  METHOD void read(const E* p) {
    if (aligned(p, V * sizeof(E))) {
      v = load<V>(p);
    } else {
#pragma unroll
      for (int j = 0; j < V; j++) v.v[j] = p[j];
    }
  }
  METHOD Vec<E, V> get() const { return v; }
};
template <int V, class E>
struct UnalignedVector<V, E, true> {
  static constexpr int size = sizeof(E), count = V * size / 4;
  u32 w[count + 1];  // the first ones of a word that starts earlier are its low bytes
  u32 shift_bytes;
  typedef typename Unsigned<size>::type Word;
  METHOD u32 ends(const Word* p, int from, int to) {  // p[from..to) from the low bytes on
    u32 r = 0;
#pragma unroll
    for (int j = 0; j < 4 / size; j++)
      if (from + j < to) r |= u32(p[from + j]) << 8 * size * j;
    return r;
  }
  METHOD void read(const E* p) {
    shift_bytes = u32(u64(p)) & 3;
    w[count] = 0;
    if (aligned(p, 4 * count)) {
      const Vec<u32, count> whole = load<count>((const u32*)p);
#pragma unroll
      for (int k = 0; k < count; k++) w[k] = whole.v[k];
      return;
    }
    const u32* words = (const u32*)((const char*)p - shift_bytes);
#pragma unroll
    for (int k = 1; k < count; k++) w[k] = words[k];
    if (shift_bytes == 0) {
      w[0] = words[0];
    } else if (size == 2) {
      w[0] = *(const Word*)p, w[count] = *(const Word*)(words + count);
    } else {
      w[0] = ends((const Word*)p, 0, 4 - shift_bytes),
      w[count] = ends((const Word*)(words + count), 0, shift_bytes);
    }
  }
  METHOD Vec<E, V> get() const {
    Vec<E, V> v;
#pragma unroll
    for (int j = 0; j < V; j++) {
      const int k = j * size / 4;
      bits_of(v.v[j]) =
          Word(__funnelshift_r(k ? w[k] : w[0] << 8 * shift_bytes, w[k + 1], 8 * shift_bytes) >>
               j * size % 4 * 8);
    }
    return v;
  }
};
template <int V, class E>
DEV Vec<E, V> load_unaligned_vector(const E* p) {
  UnalignedVector<V, E> r;
  r.read(p);
  return r.get();
}
// Elements between `p` and the aligned vector before it.
template <int V, class E>
DEV int misalignment(const E* p) {
  return int(u64(p) & (V * sizeof(E) - 1)) / int(sizeof(E));
}
DEV void store_words(u32* y, const u32 (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
DEV void store_words(u32* y, const u32 (&w)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(y), "r"(w[0]), "r"(w[1]) : "memory");
}
DEV void store_words(u32* y, const u32 (&w)[1]) { *y = w[0]; }
// One store instruction. A plain assignment of elements may be split by the compiler.
template <int V, class E>
DEV void store_vector(E* y, Vec<E, V> v) {
  constexpr int per = sizeof(E) < 4 ? 4 / sizeof(E) : 1;
  if constexpr (sizeof(E) > 4 || V % per) {
    store<V>(y, v);
  } else {
    u32 w[V / per];
#pragma unroll
    for (int k = 0; k < V / per; k++) {
      w[k] = 0;
#pragma unroll
      for (int j = 0; j < per; j++)
        w[k] |= u32(bits_of(v.v[k * per + j])) << 8 * sizeof(E) * j % 32;
    }
    store_words((u32*)y, w);
  }
}
// Stores elements [lo, hi) of V.
template <int V, class E>
DEV void store_part(E* y, const Vec<E, V>& v, int lo, int hi) {
  if (lo <= 0 && hi >= V) {
    store_vector<V>(y, v);
  } else {
#pragma unroll
    for (int j = 0; j < V; j++)
      if (j >= lo && j < hi) y[j] = v.v[j];
  }
}
