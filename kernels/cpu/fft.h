// Discrete Fourier transforms of many signals or frames by Stockham's algorithm, of lengths whose
// prime factors are at most 13. A real transform of even length 2 n is a complex one of length n.
//
// The first pass has its lanes along a signal, and leaves its results for 16 lanes: of some signals
// each, of as many results as the pass makes of one. What follows is the same for all lanes.
#pragma once
#include <algorithm>
#include <type_traits>

#include "common/lanes.h"
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace fft {

namespace f = fam::fft;
enum Kind : int64_t { kComplex, kOfReal, kToReal };
constexpr int64_t kLanes = 16, kPasses = 8;

// Calls g with the radix as a type; false where there is none.
template <class G>
TRACEA_INLINE bool with_radix(int64_t radix, G g) {
  switch (radix) {
#define TRACEA_RADIX(R) \
  case R: g(std::integral_constant<int, R>{}); return true;
    TRACEA_RADIX(1)
    TRACEA_RADIX(2)
    TRACEA_RADIX(3)
    TRACEA_RADIX(4)
    TRACEA_RADIX(5)
    TRACEA_RADIX(7)
    TRACEA_RADIX(8)
    TRACEA_RADIX(11)
    TRACEA_RADIX(13)
    TRACEA_RADIX(16)
#undef TRACEA_RADIX
    default: return false;
  }
}

// Where the tables of a transform lie, in floats; `valid` where they are as long as the launch says
// and the radices make up the length. The tables of a pass are the roots of unity of its radix
// (cosine, sine), then the factors of its results: of the first pass planes of real and imaginary
// parts, of others one behind the other. Behind them, in planes: the chirp and the spectrum of its
// conjugate, where a length is that of no passes (Bluestein's algorithm); the roots of a real
// transform.
struct Transform {
  int64_t n, whole, first, signals, rest;  // `whole`: the length of the passes; `rest`: after one
  int64_t chirp, split;
  bool halved, chirped, valid;
  explicit Transform(const Launch& l) {
    const int64_t length = l.i[f::N];
    halved = l.i[f::kind] != kComplex && length % 2 == 0;
    n = halved ? length / 2 : length;
    int64_t left = whole = 1, at = 0;
    valid = true;
    for (int k = 0; k < kPasses; k++) {
      const int64_t radix = l.i[f::radix0 + k];
      valid = valid && with_radix(radix, [](auto) {}) && whole < INT32_MAX;
      whole *= valid ? radix : 1;
    }
    left = whole;
    for (int k = 0; k < kPasses && valid; k++) {
      const int64_t radix = l.i[f::radix0 + k];
      if (k && radix == 1) continue;
      left /= radix;
      at += 2 * radix + 2 * left * (radix - 1);
    }
    first = l.i[f::radix0], rest = whole / first, signals = kLanes / first;
    chirped = whole != n;
    chirp = at;
    if (chirped) at += 2 * n + 2 * whole;
    split = at;
    if (halved) at += 2 * (n + 1);
    valid = valid && (!chirped || whole >= 2 * n - 1) && at == l.i[f::C] && l.i[f::T] <= length &&
            (l.i[f::kind] == kToReal ? l.i[f::K] == length : l.i[f::K] <= length);
  }
  int64_t row() const { return whole + 3 * kLanes; }  // of a signal, with room around it
  int64_t plane() const { return kLanes * (rest + kLanes + 1); }  // of results of a pass, idem
};

struct Complex {
  vf re, im;
};
TRACEA_INLINE Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
TRACEA_INLINE Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
TRACEA_INLINE Complex times(Complex a, vf re, vf im) {
  return {fma(a.re, re, -(a.im * im)), fma(a.re, im, a.im * re)};
}
TRACEA_INLINE Complex times_minus_i(Complex a) { return {a.im, -a.re}; }
template <int N>
TRACEA_INLINE Complex turned_by(Complex a) {  // by N / 16 of a turn
  constexpr float c[] = {1.f,          0.92387953f,  0.70710678f,  0.38268343f, 0.f,
                         -0.38268343f, -0.70710678f, -0.92387953f, -1.f,        -0.92387953f};
  constexpr float s[] = {0.f,         0.38268343f, 0.70710678f, 0.92387953f, 1.f,
                         0.92387953f, 0.70710678f, 0.38268343f, 0.f,         -0.38268343f};
  if (N == 0) return a;
  if (N == 4) return times_minus_i(a);
  if (N == 2) return {(a.re + a.im) * c[2], (a.im - a.re) * c[2]};
  if (N == 6) return {(a.im - a.re) * c[2], (a.re + a.im) * -c[2]};
  return times(a, splat(c[N]), splat(-s[N]));
}

TRACEA_INLINE void four(Complex& a, Complex& b, Complex& c, Complex& d) {
  const Complex t = a + c, u = a - c, v = b + d, w = times_minus_i(b - d);
  a = t + v, b = u + w, c = t - v, d = u - w;
}

// y[k] = sum_j exp(-2 pi i j k / R) v[j]; `roots` of 1, where R is an odd prime.
template <int R>
struct Butterfly {
  static constexpr int H = R / 2;
  TRACEA_INLINE void apply(Complex (&v)[R], const float* roots) {
    Complex sum[H], difference[H], all = v[0];
#pragma GCC unroll 8
    for (int j = 0; j < H; j++) {
      sum[j] = v[j + 1] + v[R - 1 - j], difference[j] = v[j + 1] - v[R - 1 - j];
      all = all + sum[j];
    }
#pragma GCC unroll 8
    for (int k = 1; k <= H; k++) {
      Complex a = v[0], b{};
#pragma GCC unroll 8
      for (int j = 0; j < H; j++) {
        const vf c = splat(roots[(j + 1) * k % R * 2]), s = splat(roots[(j + 1) * k % R * 2 + 1]);
        a = {fma(sum[j].re, c, a.re), fma(sum[j].im, c, a.im)};
        b = {fma(difference[j].re, s, b.re), fma(difference[j].im, s, b.im)};
      }
      v[k] = a + times_minus_i(b), v[R - k] = a - times_minus_i(b);
    }
    v[0] = all;
  }
};
template <>
struct Butterfly<1> {
  TRACEA_INLINE void apply(Complex (&)[1], const float*) {}
};
template <>
struct Butterfly<2> {
  TRACEA_INLINE void apply(Complex (&v)[2], const float*) {
    const Complex a = v[0], b = v[1];
    v[0] = a + b, v[1] = a - b;
  }
};
template <>
struct Butterfly<4> {
  TRACEA_INLINE void apply(Complex (&v)[4], const float*) { four(v[0], v[1], v[2], v[3]); }
};
template <>
struct Butterfly<8> {
  TRACEA_INLINE void apply(Complex (&v)[8], const float*) {
    four(v[0], v[2], v[4], v[6]), four(v[1], v[3], v[5], v[7]);
    v[3] = turned_by<2>(v[3]), v[5] = turned_by<4>(v[5]), v[7] = turned_by<6>(v[7]);
    const Complex e[] = {v[0], v[2], v[4], v[6]}, o[] = {v[1], v[3], v[5], v[7]};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) v[k] = e[k] + o[k], v[k + 4] = e[k] - o[k];
  }
};
template <>
struct Butterfly<16> {
  TRACEA_INLINE void apply(Complex (&v)[16], const float*) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) four(v[j], v[j + 4], v[j + 8], v[j + 12]);
    v[5] = turned_by<1>(v[5]), v[6] = turned_by<2>(v[6]), v[7] = turned_by<3>(v[7]);
    v[9] = turned_by<2>(v[9]), v[10] = turned_by<4>(v[10]), v[11] = turned_by<6>(v[11]);
    v[13] = turned_by<3>(v[13]), v[14] = turned_by<6>(v[14]), v[15] = turned_by<9>(v[15]);
#pragma GCC unroll 4
    for (int j = 0; j < 16; j += 4) four(v[j], v[j + 1], v[j + 2], v[j + 3]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
      for (int k = j + 1; k < 4; k++) std::swap(v[4 * j + k], v[4 * k + j]);
  }
};

// Real and imaginary parts lie in planes.
struct From {
  const float *re, *im;
};
struct To {
  float *re, *im;
  operator From() const { return {re, im}; }
  To operator+(int64_t at) const { return {re + at, im + at}; }
};

// One vector of butterflies: inputs `step` apart, results `out` apart, times factor(result).
template <int R, class Factor>
TRACEA_INLINE void butterfly(From x, int64_t step, To y, int64_t out, const float* roots,
                             Factor factor) {
  Complex v[R];
#pragma GCC unroll 16
  for (int j = 0; j < R; j++) v[j] = {load(x.re + j * step), load(x.im + j * step)};
  Butterfly<R>::apply(v, roots);
#pragma GCC unroll 16
  for (int j = 0; j < R; j++) {
    const Complex c = j ? factor(v[j], j) : v[j];
    store(y.re + j * out, c.re), store(y.im + j * out, c.im);
  }
}

// The first pass of some signals, whose rows lie `row` apart: results of number p to row p of y, of
// 16 lanes. `tile`: [16][W], zeros where no signal has lanes.
template <int R>
static void first_pass(const Transform& t, From x, int64_t signals, const float* table, To y,
                       To tile) {
  const float *re = table + 2 * R - t.rest, *im = re + (R - 1) * t.rest;
  for (int64_t p = 0; p < t.rest; p += W) {
    for (int64_t s = 0; s < signals; s++)
      butterfly<R>({x.re + s * t.row() + p, x.im + s * t.row() + p}, t.rest, tile + s * R * W, W,
                   table, [&](Complex c, int j) {
                     return times(c, load(re + j * t.rest + p), load(im + j * t.rest + p));
                   });
    for (int64_t lane = 0; lane < kLanes; lane += W) {
      const To to = y + p * kLanes + lane;
      transpose_block(tile.re + lane * W, W, to.re, kLanes, 1.f);
      transpose_block(tile.im + lane * W, W, to.im, kLanes, 1.f);
    }
  }
}

// A pass from transforms of length `length` to R times as many of a part of it, `run` apart.
template <int R>
static void pass(From x, int64_t length, int64_t run, const float* table, To y) {
  const int64_t parts = length / R;
  for (int64_t p = 0; p < parts; p++) {
    const From from = {x.re + p * run, x.im + p * run};
    const To to = y + R * p * run;
    const float* const w = table + 2 * R + 2 * p * (R - 1) - 2;
    auto each = [&](auto factor) {
      for (int64_t q = 0; q < run; q += W)
        butterfly<R>({from.re + q, from.im + q}, parts * run, to + q, run, table, factor);
    };
    if (p)
      each([w](Complex c, int j) { return times(c, splat(w[2 * j]), splat(w[2 * j + 1])); });
    else
      each([](Complex c, int) { return c; });
  }
}

// Of a row of pairs those parts that are first (0) or second (1), and the other way round.
template <int PART, int... I>
TRACEA_INLINE vf parts_of(vf a, vf b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + PART)...);
}
template <int HALF, int... I>
TRACEA_INLINE vf pairs_of(vf a, vf b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (HALF * W / 2 + I / 2 + I % 2 * W)...);
}
template <int... I>
TRACEA_INLINE vf backwards(vf v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (W - 1 - I)...);
}
constexpr std::make_integer_sequence<int, W> kOrder{};

TRACEA_INLINE vf load_most(const float* p, int64_t n) {
  return n >= W ? load(p) : n > 0 ? load_n(p, int(n)) : vf{};
}
TRACEA_INLINE void store_most(float* p, vf v, int64_t n) {
  if (n >= W)
    store(p, v);
  else if (n > 0)
    store_n(p, v, int(n));
}
static void clear(To to, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; k++) to.re[k] = to.im[k] = 0.f;
}

// Pairs (re, im), or two neighbours of a real signal, into planes, times a factor for each pair or
// for each number. Zeros behind them.
template <bool PAIRS>
static void separate(const float* x, int64_t count, const float* factors, To to, int64_t n) {
  auto vector = [&](int64_t k, vf a, vf b) {
    if (!PAIRS) a *= load(factors + 2 * k), b *= load(factors + 2 * k + W);
    vf re = parts_of<0>(a, b, kOrder), im = parts_of<1>(a, b, kOrder);
    if (PAIRS) re *= load(factors + k), im *= load(factors + k);
    store(to.re + k, re), store(to.im + k, im);
  };
  int64_t k = 0;
  for (; 2 * (k + W) <= count; k += W) vector(k, load(x + 2 * k), load(x + 2 * k + W));
  for (; k < n; k += W)
    vector(k, load_most(x + 2 * k, count - 2 * k), load_most(x + 2 * k + W, count - 2 * k - W));
}

// The signal of a half spectrum as a complex one of half its length, of planes [0, n] of x.
static void join(From x, int64_t n, From roots, To to) {
  for (int64_t k = 0; k < n; k += W) {
    const int64_t mirror = n - k - (W - 1);
    const vf ar = load(x.re + k), ai = load(x.im + k), br = backwards(load(x.re + mirror), kOrder),
             bi = backwards(load(x.im + mirror), kOrder), c = load(roots.re + k),
             s = load(roots.im + k), dr = ar - br, di = ai + bi;
    store(to.re + k, fma(dr, s, fma(-di, c, ar + br)));
    store(to.im + k, fma(dr, c, fma(di, s, ai - bi)));
  }
}

// Where a signal begins, in x or y.
TRACEA_INLINE int64_t begin_of(const Launch& l, int64_t index, int outer, int inner) {
  return index / l.i[f::M] * l.i[outer] + index % l.i[f::M] * l.i[inner];
}

// Of signal number `index` the planes of its complex transform.
static void read(const Launch& l, const Transform& t, int64_t index, const float* factors, To spare,
                 To to) {
  const bool real = l.i[f::kind] == kOfReal, joined = l.i[f::kind] == kToReal;
  const int64_t step = l.i[f::x_n], n = t.n + joined, terms = std::min(l.i[f::T], l.i[f::N]),
                most = joined ? std::min(terms, n) : terms;
  const float* const x = (const float*)l.buf[f::x] + begin_of(l, index, f::x_b, f::x_m);
  // exp(+..) of (re, im) is exp(-..) of (im, re)
  const To planes = l.i[f::inverse] && !real ? To{to.im, to.re} : to,
           into = joined ? spare : planes;
  if (real && t.halved && step == 1) {
    separate<false>(x, most, factors, into, n);
  } else if (!real && step == 2) {
    separate<true>(x, 2 * most, factors, into, n);
  } else {
    clear(into, 0, n);
    for (int64_t j = 0; j < most; j++) {
      const float value = x[j * step] * factors[j];
      if (real && t.halved) {
        float* const plane = j % 2 ? into.im : into.re;
        plane[j / 2] = value;
      } else {
        into.re[j] = value, into.im[j] = real ? 0.f : x[j * step + 1] * factors[j];
      }
    }
  }
  if (!joined) return;
  const float* const roots = (const float*)l.buf[f::tables] + t.split;
  into.im[0] = 0.f;
  if (t.halved) {
    into.im[t.n] = 0.f;
    join(into, t.n, {roots, roots + t.n + 1}, planes);
    return;
  }
  planes.re[0] = into.re[0], planes.im[0] = 0.f;
  for (int64_t k = 1; k <= t.n / 2; k++) {
    planes.re[k] = planes.re[t.n - k] = into.re[k];
    planes.im[k] = into.im[k], planes.im[t.n - k] = -into.im[k];
  }
}

// Numbers k to k + W of a row of pairs, of which there are `count`.
TRACEA_INLINE void store_pairs(float* y, int64_t k, int64_t count, vf re, vf im) {
  const vf a = pairs_of<0>(re, im, kOrder), b = pairs_of<1>(re, im, kOrder);
  if (k + W <= count) {
    store(y + 2 * k, a), store(y + 2 * k + W, b);
  } else {
    store_most(y + 2 * k, a, 2 * (count - k)), store_most(y + 2 * k + W, b, 2 * (count - k) - W);
  }
}

// The first `count` numbers of a spectrum, of planes [0, n] of twice a complex transform of half
// the length. Numbers k and n - k are made of the same: the later ones wait in the planes, since
// memory is written fastest in its order.
static void divide(To z, int64_t n, From roots, int64_t count, float* y) {
  auto sums = [&](int64_t k, vf& er, vf& ei, vf& tr, vf& ti) {
    const int64_t mirror = n - k - (W - 1);
    const vf ar = load(z.re + k), ai = load(z.im + k), br = backwards(load(z.re + mirror), kOrder),
             bi = backwards(load(z.im + mirror), kOrder), c = load(roots.re + k),
             s = load(roots.im + k), dr = ai + bi, di = br - ar;
    er = ar + br, ei = ai - bi, tr = fma(dr, c, -(di * s)), ti = fma(di, c, dr * s);
  };
  int64_t k = 0, end = count;
  vf er, ei, tr, ti;
  if (count == n + 1) {
    for (; 2 * (k + W) <= n + 1; k += W) {
      sums(k, er, ei, tr, ti);
      store_pairs(y, k, count, er + tr, ei + ti);
      store(z.re + n - k - (W - 1), backwards(er - tr, kOrder));
      store(z.im + n - k - (W - 1), backwards(ti - ei, kOrder));
    }
    end -= k;
  }
  for (; k < end; k += W) {
    sums(k, er, ei, tr, ti);
    store_pairs(y, k, end, er + tr, ei + ti);
  }
  for (k = end; k < count; k += W) store_pairs(y, k, count, load(z.re + k), load(z.im + k));
}

// Results of signal number `index`, of the planes of its complex transform. `spare`: room for them.
static void write(const Launch& l, const Transform& t, int64_t index, To z, float* spare) {
  const bool back = l.i[f::inverse], to_real = l.i[f::kind] == kToReal;
  const bool of_real = l.i[f::kind] == kOfReal;
  const int64_t count = l.i[f::K], step = l.i[f::y_n], parts = to_real ? 1 : 2;
  float* const y = (float*)l.buf[f::y] + begin_of(l, index, f::y_b, f::y_m);
  float* const out = step == parts ? y : spare;
  if (of_real && t.halved) {
    const float* const roots = (const float*)l.buf[f::tables] + t.split;
    const int64_t half = std::min(count, t.n + 1);
    z.re[t.n] = z.re[0], z.im[t.n] = z.im[0];
    divide(z, t.n, {roots, roots + t.n + 1}, half, out);
    for (int64_t k = half; k < count; k++)
      out[2 * k] = out[2 * (l.i[f::N] - k)], out[2 * k + 1] = -out[2 * (l.i[f::N] - k) + 1];
  } else if (to_real && !t.halved) {
    for (int64_t k = 0; k < count; k++) out[k] = z.im[k];
  } else {
    const From from = back && !of_real ? From{z.im, z.re} : From(z);
    const int64_t pairs = to_real ? t.n : count;
    for (int64_t k = 0; k < pairs; k += W)
      store_pairs(out, k, pairs, load(from.re + k), load(from.im + k));
  }
  if (of_real && back)
    for (int64_t k = 0; k < count; k++) out[2 * k + 1] = -out[2 * k + 1];
  if (out == y) return;
  for (int64_t k = 0; k < count; k++)
    for (int64_t part = 0; part < parts; part++) y[k * step + part] = out[k * parts + part];
}

static int64_t tasks(const Launch& l, int threads) {
  const Transform t(l);
  const int64_t signals = l.i[f::B] * l.i[f::M];
  if (!t.valid) *l.error = 1;
  if (!t.valid || signals <= 0) return 0;
  return even_tasks((signals + t.signals - 1) / t.signals, signals * l.i[f::N], threads);
}

// Rows of the signals and one more, the results of two passes, the tile, factors of a signal and
// results of one.
static size_t scratch(const Launch& l, int) {
  const Transform t(l);
  if (!t.valid) return 0;
  return size_t(2 * (t.row() * (t.signals + 1) + 2 * t.plane() + kLanes * W) +
                3 * (l.i[f::N] + 2 * kLanes)) *
         sizeof(float);
}

// All passes over the rows of some signals. The result is in `x` or `y`, in rows of 16 lanes.
static To transform(const Launch& l, const Transform& t, From rows, int64_t signals, To x, To y,
                    To tile) {
  const float* table = (const float*)l.buf[f::tables];
  with_radix(t.first, [&](auto radix) { first_pass<radix>(t, rows, signals, table, x, tile); });
  table += 2 * t.first + 2 * t.rest * (t.first - 1);
  int64_t length = t.rest, run = kLanes;
  for (int k = 1; k < kPasses; k++) {
    const int64_t radix = l.i[f::radix0 + k];
    if (radix == 1) continue;
    with_radix(radix, [&](auto r) { pass<r>(x, length, run, table, y); });
    table += 2 * radix + 2 * (length / radix) * (radix - 1);
    length /= radix, run *= radix;
    std::swap(x, y);
  }
  return x;
}

// Rows of 16 lanes become rows of signals: lanes of one signal are so already; of 16 they turn; of
// some, what is copied beyond one is overwritten by what comes next.
static To rows_of(const Transform& t, To x, int64_t signals, To rows) {
  if (t.first == kLanes) return x;
  if (t.first == 1) {
    for (int64_t k = 0; k < t.rest; k += W)
      for (int64_t lane = 0; lane < signals; lane += W) {
        const int64_t from = k * kLanes + lane, to = lane * t.row() + k;
        transpose_block(x.re + from, kLanes, rows.re + to, t.row(), 1.f);
        transpose_block(x.im + from, kLanes, rows.im + to, t.row(), 1.f);
      }
    return rows;
  }
  for (int64_t s = 0; s < signals; s++)
    for (int64_t k = 0; k < t.rest; k++)
      for (int64_t lane = 0; lane < t.first; lane += W) {
        const int64_t from = k * kLanes + s * t.first + lane, to = s * t.row() + k * t.first + lane;
        store(rows.re + to, load(x.re + from)), store(rows.im + to, load(x.im + from));
      }
  return rows;
}

static void multiply(From x, From by, int64_t count, To y) {
  for (int64_t k = 0; k < count; k += W) {
    const Complex c = times({load(x.re + k), load(x.im + k)}, load(by.re + k), load(by.im + k));
    store(y.re + k, c.re), store(y.im + k, c.im);
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  const Transform t(l);
  const int64_t count = l.i[f::B] * l.i[f::M], groups = (count + t.signals - 1) / t.signals;
  float* next = (float*)memory;
  auto planes = [&](int64_t size) {
    const To made = {next, next + size};
    next += 2 * size;
    return made;
  };
  const To tile = planes(kLanes * W), a = planes(t.plane()) + kLanes,
           b = planes(t.plane()) + kLanes, rows = planes(t.row() * t.signals) + kLanes,
           spare = planes(t.row()) + kLanes;
  memset(memory, 0, size_t((char*)next - (char*)memory));
  float *const factors = next, *const out = factors + l.i[f::N] + 2 * kLanes;
  const float* const window = (const float*)l.buf[f::window];
  const float scale = l.f[f::scale] * (l.i[f::kind] == kOfReal && t.halved ? 0.5f : 1.f);
  for (int64_t k = 0; k < l.i[f::N] + 2 * kLanes; k++)
    factors[k] = k < l.i[f::N] && window ? scale * window[k] : scale;
  const float* const chirp = (const float*)l.buf[f::tables] + t.chirp;
  const From wave = {chirp, chirp + t.n}, spectrum = {chirp + 2 * t.n, chirp + 2 * t.n + t.whole};
  for (int64_t g = task_begin(groups, task, tasks); g < task_begin(groups, task + 1, tasks); g++) {
    const int64_t begin = g * t.signals, signals = std::min(t.signals, count - begin);
    for (int64_t s = 0; s < signals; s++) {
      const To row = rows + s * t.row();
      read(l, t, begin + s, factors, spare, row);
      if (!t.chirped) continue;
      multiply(row, wave, t.n, row);
      clear(row, t.n, t.whole);
    }
    To z = rows_of(t, transform(l, t, rows, signals, a, b, tile), signals, rows);
    if (t.chirped) {
      // of (im, re) and to (im, re): the inverse transform
      for (int64_t s = 0; s < signals; s++) {
        const To row = rows + s * t.row();
        multiply(z + s * t.row(), spectrum, t.whole, {row.im, row.re});
      }
      z = rows_of(t, transform(l, t, rows, signals, a, b, tile), signals, rows);
      for (int64_t s = 0; s < signals; s++) {
        const From row = z + s * t.row();
        multiply({row.im, row.re}, wave, t.n, rows + s * t.row());
      }
      z = rows;
    }
    for (int64_t s = 0; s < signals; s++) write(l, t, begin + s, z + s * t.row(), out);
  }
}

}  // namespace fft

static const Kernel kernel_fft = {"fft", fft::tasks, fft::scratch, fft::run};
static const Kernel* const table_fft[] = {&kernel_fft, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
