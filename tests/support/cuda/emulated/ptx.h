// Instructions of PTX as functions of host C++, to which `inline_assembly.py` translates inline
// assembly. A list of registers is an array: of their addresses where they are set.
#pragma once
#include "threads.h"

namespace emulated {
enum Type { F16, BF16, TF32, S8, U8, F32, S32 };
float from_half(u16 bits);
u16 to_half(float v);
inline float from_bfloat(u16 bits) {
  const u32 b = u32(bits) << 16;
  float r;
  memcpy(&r, &b, 4);
  return r;
}
inline u16 to_bfloat(float v) {
  u32 b;
  memcpy(&b, &v, 4);
  return v != v ? 0x7fff : u16((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// Of one warp; `c` is what products are added to, and the sums.
struct Product {
  Type a_type, b_type, sum_type;
  u32 k, a[4], b[2], c[4];
};
void multiply(Product&);
struct Matrices {
  u32 address, count, trans, words[4];
};
void load_matrices(Matrices&);
void store_matrices(Matrices&);

// One of a warpgroup, as a warp has it: 16 rows of a, all of b. a and b are descriptors, or
// `registers` are a. sums: the lane's accumulators.
struct GroupProduct {
  Type a_type, b_type, sum_type;
  u32 n, k;
  u64 a, b;
  bool in_registers, adds, a_across, b_across;
  int a_sign, b_sign;
  u32 registers[4], *sums;
};
void multiply(GroupProduct&);
void commit_products();
void wait_for_products(u32 left);

void mbarrier_init(u32 address, u32 arrivals);
void mbarrier_arrive(u32 address);
void mbarrier_expect(u32 address, u32 bytes, bool arrives);
bool mbarrier_wait(u32 address, u32 parity);  // true
void arrive_after_copies(u32 address);

// What a kernel's tensor map points to. Strides are bytes; `steps` those of elements.
struct TensorMap {
  static constexpr u64 MAGIC = 0x70616d20726f736e;
  u64 magic;
  char* base;
  long long dims[5], strides[5], lower[3], upper[3];
  u32 rank, bytes, swizzle, im2col, channels, pixels, box[5], steps[5];
};
struct TensorCopy {
  const TensorMap* map;
  u32 rank;
  bool im2col;
  int at[5];
  u32 offsets[3];  // of im2col
};
// blocks: of the cluster, which get it (multicast); 0: this one alone.
void tensor_load(const TensorCopy&, u32 to, u32 mbarrier, u32 blocks);
void tensor_store(const TensorCopy&, u32 from);
void bulk_copy(u32 to, u32 from, u32 bytes, u32 mbarrier);
void store_async(u32 to, u32 word, u32 mbarrier);
}  // namespace emulated

namespace ptx {
using emulated::from_bfloat;
using emulated::from_half;
using emulated::to_bfloat;
using emulated::to_half;
using emulated::u16;
using emulated::u32;
using emulated::u64;

// The bits of `from` as they are, with zeros above.
template <class To, class From>
void set(To& to, const From& from) {
  memset(&to, 0, sizeof to);
  memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
}

template <class E, int N, class To>
void load_shared(To* const (&to)[N], u32 from) {
  const char* const p = emulated::at(from, N * sizeof(E), N * sizeof(E), "a load");
  for (int k = 0; k < N; k++) {
    E v;
    memcpy(&v, p + k * sizeof(E), sizeof v);
    set(*to[k], v);
  }
}
template <class E, class To>
void load_shared(To& to, u32 from) {
  load_shared<E, 1, To>({&to}, from);
}
template <class E, int N, class From>
void store_shared(u32 to, const From (&from)[N]) {
  char* const p = emulated::at(to, N * sizeof(E), N * sizeof(E), "a store");
  for (int k = 0; k < N; k++) memcpy(p + k * sizeof(E), &from[k], sizeof(E));
}
template <class E, class From>
void store_shared(u32 to, From from) {
  store_shared<E, 1, From>(to, {from});
}
inline void check_global(u64 place, size_t bytes, const char* what) {
  if (place % bytes) emulated::fail("%s of %zu bytes at %llx", what, bytes, place);
}
template <class E, int N, class To>
void load_global(To* const (&to)[N], u64 from) {
  check_global(from, N * sizeof(E), "a load");
  for (int k = 0; k < N; k++) set(*to[k], ((const E*)from)[k]);
}
template <class E, class To>
void load_global(To& to, u64 from) {
  load_global<E, 1, To>({&to}, from);
}
template <class E, int N, class From>
void store_global(u64 to, const From (&from)[N]) {
  check_global(to, N * sizeof(E), "a store");
  for (int k = 0; k < N; k++) memcpy((E*)to + k, &from[k], sizeof(E));
}
template <class E, class From>
void store_global(u64 to, From from) {
  store_global<E, 1, From>(to, {from});
}

inline void cp_async(u32 to, u64 from, u32 bytes, u32 read) {
  emulated::copy_late(to, (const void*)from, bytes, read);
}
inline void cp_async(u32 to, u64 from, u32 bytes) { cp_async(to, from, bytes, bytes); }
inline void cp_async_commit() { emulated::commit_copies(); }
inline void cp_async_wait(u32 left) { emulated::wait_for_copies(left); }
inline void cp_async_wait_all() {
  emulated::commit_copies();
  emulated::wait_for_copies(0);
}

template <emulated::Type A, emulated::Type B, emulated::Type SUM, int K, int NA, int NB, int ND,
          class D, class C>
void mma(D* const (&d)[ND], const u32 (&a)[NA], const u32 (&b)[NB], const C (&c)[ND]) {
  emulated::Product p{A, B, SUM, K};
  memcpy(p.a, a, sizeof a), memcpy(p.b, b, sizeof b), memcpy(p.c, c, sizeof c);
  emulated::multiply(p);
  for (int k = 0; k < ND; k++) memcpy(d[k], &p.c[k], 4);
}
template <bool TRANS, int N, class To>
void ldmatrix(To* const (&to)[N], u32 from) {
  emulated::Matrices m{from, N, TRANS};
  emulated::load_matrices(m);
  for (int k = 0; k < N; k++) set(*to[k], m.words[k]);
}
template <bool TRANS, int N>
void stmatrix(u32 to, const u32 (&from)[N]) {
  emulated::Matrices m{to, N, TRANS};
  memcpy(m.words, from, sizeof from);
  emulated::store_matrices(m);
}

template <emulated::Type A, emulated::Type B, emulated::Type SUM, int N, int K, int ND, class D>
void wgmma(emulated::GroupProduct p, D* const (&d)[ND]) {
  static_assert(ND == N / 2 && sizeof(D) == 4, "the accumulators of a thread");
  for (int k = 0; k < ND; k++)
    if (d[k] != d[0] + k) emulated::fail("accumulators of wgmma that are not one array");
  p.a_type = A, p.b_type = B, p.sum_type = SUM, p.n = N, p.k = K, p.sums = (u32*)d[0];
  emulated::multiply(p);
}
template <emulated::Type A, emulated::Type B, emulated::Type SUM, int N, int K, int ND, class D>
void wgmma(D* const (&d)[ND], u64 a, u64 b, bool adds, int a_sign = 1, int b_sign = 1,
           bool a_across = false, bool b_across = false) {
  emulated::GroupProduct p = {};
  p.a = a, p.b = b, p.adds = adds, p.a_sign = a_sign, p.b_sign = b_sign;
  p.a_across = a_across, p.b_across = b_across;
  wgmma<A, B, SUM, N, K, ND, D>(p, d);
}
template <emulated::Type A, emulated::Type B, emulated::Type SUM, int N, int K, int ND, class D>
void wgmma(D* const (&d)[ND], const u32 (&a)[4], u64 b, bool adds, int a_sign = 1, int b_sign = 1,
           bool b_across = false) {
  emulated::GroupProduct p = {};
  p.in_registers = true, p.b = b, p.adds = adds, p.a_sign = a_sign, p.b_sign = b_sign;
  p.b_across = b_across;
  memcpy(p.registers, a, sizeof a);
  wgmma<A, B, SUM, N, K, ND, D>(p, d);
}

template <int N>
emulated::TensorCopy tensor_copy(u64 map, const u32 (&at)[N], bool im2col = false) {
  emulated::TensorCopy c = {*(const emulated::TensorMap* const*)map, N, im2col};
  for (int k = 0; k < N; k++) c.at[k] = int(at[k]);
  return c;
}
template <int N>
void tma_load(u32 to, u64 map, const u32 (&at)[N], u32 mbarrier, u32 blocks = 0) {
  emulated::tensor_load(tensor_copy(map, at), to, mbarrier, blocks);
}
template <int N, int WINDOW>
void tma_load_im2col(u32 to, u64 map, const u32 (&at)[N], u32 mbarrier,
                     const u16 (&offsets)[WINDOW], u32 blocks = 0) {
  static_assert(WINDOW == N - 2, "an offset of each spatial dimension");
  emulated::TensorCopy c = tensor_copy(map, at, true);
  for (int k = 0; k < WINDOW; k++) c.offsets[k] = offsets[k];
  emulated::tensor_load(c, to, mbarrier, blocks);
}
template <int N>
void tma_store(u64 map, const u32 (&at)[N], u32 from) {
  emulated::tensor_store(tensor_copy(map, at), from);
}
template <class From>
void st_async(u32 to, From from, u32 mbarrier) {
  u32 word;
  set(word, from);
  emulated::store_async(to, word, mbarrier);
}
inline void mbarrier_arrive(u32 b) { emulated::mbarrier_arrive(b); }
inline void mbarrier_arrive_expect(u32 b, u32 bytes) { emulated::mbarrier_expect(b, bytes, true); }
inline void mbarrier_expect(u32 b, u32 bytes) { emulated::mbarrier_expect(b, bytes, false); }
// The lowest lane of the mask is elected.
inline void elect(bool& elected, u32 mask) {
  emulated::together("elect.sync", [](void**, u32) {}, nullptr, mask);
  elected = threadIdx.x % 32 == u32(__builtin_ctz(mask));
}

template <class To, class From>
void mov(To& to, From from) {
  set(to, from);
}
template <int N, class To, class From>  // unpacks
void mov(To* const (&to)[N], From from) {
  static_assert(sizeof(To) * N == sizeof(From), "all bits");
  for (int k = 0; k < N; k++) memcpy(to[k], (const char*)&from + k * sizeof(To), sizeof(To));
}
template <int N, class To, class From>  // packs
void mov(To& to, const From (&from)[N]) {
  static_assert(sizeof(From) * N == sizeof(To), "all bits");
  memcpy(&to, from, sizeof to);
}
inline float exact_exp2(float x) { return float(__builtin_exp2(double(x))); }
inline float exact_tanh(float x) { return float(__builtin_tanh(double(x))); }
// To f32 so that what is rounded once more is as if it were rounded once.
inline float to_odd(double v) {
  const float f = float(v);
  if (double(f) == v || v != v) return f;
  u32 b;
  memcpy(&b, &f, 4);
  if (__builtin_fabs(double(f)) > __builtin_fabs(v)) b--;
  b |= 1;
  float r;
  memcpy(&r, &b, 4);
  return r;
}
template <emulated::Type TYPE>
float from(u16 bits) {
  return TYPE == emulated::F16 ? from_half(bits) : from_bfloat(bits);
}
template <emulated::Type TYPE>
u16 to(float v) {
  return TYPE == emulated::F16 ? to_half(v) : to_bfloat(v);
}
template <emulated::Type TYPE>
u32 one_pair() {
  return to<TYPE>(1.f) * 0x10001u;
}
template <emulated::Type TYPE>
u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 r = 0;
  for (int k = 0; k < 32; k += 16) {
    const double product = double(from<TYPE>(u16(a >> k))) * double(from<TYPE>(u16(b >> k)));
    r |= u32(to<TYPE>(to_odd(product + double(from<TYPE>(u16(c >> k)))))) << k;
  }
  return r;
}
// The nearest integer within [low, high]; zero for NaN.
inline long long to_integer(float v, bool nearest, double low, double high) {
  if (v != v) return 0;
  const double whole = nearest ? __builtin_rint(double(v)) : __builtin_trunc(double(v));
  return (long long)(whole < low ? low : whole > high ? high : whole);
}
// [high, low of the two, then the low half of c]
template <class E>
u32 pack(int high, int low, u32 c, double least, double most) {
  const auto of = [&](int v) {
    return u32(u16((unsigned char)(E)(v < least ? least : v > most ? most : v)));
  };
  return c << 16 | of(high) << 8 | of(low);
}
// c plus the products of four bytes, signed or not.
template <class A, class B>
u32 dot(u32 a, u32 b, u32 c) {
  for (int k = 0; k < 32; k += 8) {
    const u32 left = A(-1) < A(0) ? (signed char)(a >> k) : int(a >> k & 255),
              right = B(-1) < B(0) ? (signed char)(b >> k) : int(b >> k & 255);
    c += left * right;
  }
  return c;
}
inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (u32 k = 0; k < 8; k++)
    if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return r;
}
inline float min_nan(float a, float b) { return a != a || a < b ? a : b; }
inline float max_nan(float a, float b) { return a != a || a > b ? a : b; }
template <emulated::Type TYPE>
u32 max_pair(u32 a, u32 b) {
  u32 r = 0;
  for (int k = 0; k < 32; k += 16)
    r |= u32(to<TYPE>(max_nan(from<TYPE>(u16(a >> k)), from<TYPE>(u16(b >> k))))) << k;
  return r;
}
inline void bar_sync(u32 id, u32 threads = 0) { emulated::barrier(id, threads, true); }
inline void bar_arrive(u32 id, u32 threads) { emulated::barrier(id, threads, false); }
}  // namespace ptx
