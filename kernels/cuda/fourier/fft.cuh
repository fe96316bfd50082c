// Fourier transforms by Stockham's algorithm: a block has some signals in its shared memory, a
// thread the butterflies of a pass in turn. Sums are in f32.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int N = 400, POINTS = 200, TERMS = 400, BINS = 201, KIND = 1, SIGNALS = 4, THREADS = 128,
              SPLIT = 0;
constexpr bool INVERSE = false, PAIRED = true;
#endif  // GENERATED
#include "common/base.cuh"

constexpr int COMPLEX = 0, OF_REAL = 1, TO_REAL = 2;
constexpr bool HALVED = POINTS < N;

struct alignas(8) Complex {
  float re, im;
};
DEV Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
DEV Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
DEV Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
DEV Complex operator*(Complex a, float b) { return {a.re * b, a.im * b}; }
DEV Complex times_minus_i(Complex a) { return {a.im, -a.re}; }  // -i a
DEV Complex conjugate(Complex a) { return {a.re, -a.im}; }
DEV Complex swap_re_im(Complex a) { return {a.im, a.re}; }

template <int SIXTEENTHS>
DEV Complex twiddle_16th(Complex a) {
  constexpr float c[] = {1.f,          0.92387953f,  0.70710678f,  0.38268343f, 0.f,
                         -0.38268343f, -0.70710678f, -0.92387953f, -1.f,        -0.92387953f};
  constexpr float s[] = {0.f,         0.38268343f, 0.70710678f, 0.92387953f, 1.f,
                         0.92387953f, 0.70710678f, 0.38268343f, 0.f,         -0.38268343f};
  return SIXTEENTHS == 4 ? times_minus_i(a) : a * Complex{c[SIXTEENTHS], -s[SIXTEENTHS]};
}
DEV void radix4(Complex& a, Complex& b, Complex& c, Complex& d) {
  const Complex t = a + c, u = a - c, v = b + d, w = times_minus_i(b - d);
  a = t + v, b = u + w, c = t - v, d = u - w;
}
template <class A>
DEV void exchange(A& a, A& b) {
  const A t = a;
  a = b, b = t;
}

// y[k] = sum_j exp(-2 pi i j k / R) v[j]; `roots` of 1, where R is an odd prime.
template <int R>
struct Butterfly {
  static __device__ __forceinline__ void apply(Complex (&v)[R], const Complex* roots) {
    constexpr int H = R / 2;
    Complex sum[H], difference[H], all = v[0];
#pragma unroll
    for (int j = 0; j < H; j++) {
      sum[j] = v[j + 1] + v[R - 1 - j], difference[j] = v[j + 1] - v[R - 1 - j];
      all = all + sum[j];
    }
#pragma unroll
    for (int k = 1; k <= H; k++) {
      Complex a = v[0], b = {};
#pragma unroll
      for (int j = 0; j < H; j++) {
        const Complex w = roots[(j + 1) * k % R];
        a = a + sum[j] * w.re, b = b + difference[j] * w.im;
      }
      v[k] = a + times_minus_i(b), v[R - k] = a - times_minus_i(b);
    }
    v[0] = all;
  }
};
template <>
struct Butterfly<2> {
  static __device__ __forceinline__ void apply(Complex (&v)[2], const Complex*) {
    const Complex a = v[0], b = v[1];
    v[0] = a + b, v[1] = a - b;
  }
};
template <>
struct Butterfly<4> {
  static __device__ __forceinline__ void apply(Complex (&v)[4], const Complex*) {
    radix4(v[0], v[1], v[2], v[3]);
  }
};
template <>
struct Butterfly<8> {
  static __device__ __forceinline__ void apply(Complex (&v)[8], const Complex*) {
    radix4(v[0], v[2], v[4], v[6]), radix4(v[1], v[3], v[5], v[7]);
    v[3] = twiddle_16th<2>(v[3]), v[5] = twiddle_16th<4>(v[5]), v[7] = twiddle_16th<6>(v[7]);
    const Complex e[] = {v[0], v[2], v[4], v[6]}, o[] = {v[1], v[3], v[5], v[7]};
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = e[k] + o[k], v[k + 4] = e[k] - o[k];
  }
};
template <>
struct Butterfly<16> {
  static __device__ __forceinline__ void apply(Complex (&v)[16], const Complex*) {
#pragma unroll
    for (int j = 0; j < 4; j++) radix4(v[j], v[j + 4], v[j + 8], v[j + 12]);
    v[5] = twiddle_16th<1>(v[5]), v[6] = twiddle_16th<2>(v[6]), v[7] = twiddle_16th<3>(v[7]);
    v[9] = twiddle_16th<2>(v[9]), v[10] = twiddle_16th<4>(v[10]), v[11] = twiddle_16th<6>(v[11]);
    v[13] = twiddle_16th<3>(v[13]), v[14] = twiddle_16th<6>(v[14]), v[15] = twiddle_16th<9>(v[15]);
#pragma unroll
    for (int j = 0; j < 16; j += 4) radix4(v[j], v[j + 1], v[j + 2], v[j + 3]);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int k = j + 1; k < 4; k++) exchange(v[4 * j + k], v[4 * k + j]);
  }
};

// Where number `index` of B x M signals begins.
struct Signals {
  i64 outer, inner;
  u32 many;
  METHOD i64 at(i64 index) const { return index / many * outer + index % many * inner; }
};

// One point of the complex transform of a signal: half of it, of a real one. `roots`: planes.
DEV Complex point(const T* x, i64 step, const T* window, const float* roots, float scale, int j) {
  auto real = [&](int k) {
    return k < TERMS ? to_float(x[k * step]) * (window ? to_float(window[k]) : 1.f) : 0.f;
  };
  auto number = [&](int k) {
    if (k >= TERMS) return Complex{};
    const Complex c = {to_float(x[k * step]), to_float(x[k * step + 1])};
    return c * (window ? to_float(window[k]) : 1.f);
  };
  Complex z;
  if (KIND == OF_REAL) {
    z = HALVED ? Complex{real(2 * j), real(2 * j + 1)} : Complex{real(j), 0.f};
  } else if (KIND == TO_REAL && HALVED) {
    Complex a = number(j), b = conjugate(number(POINTS - j));
    if (j == 0) a.im = b.im = 0.f;
    const Complex root = {roots[j], roots[POINTS + 1 + j]};
    z = (a + b) - times_minus_i((a - b) * conjugate(root));
  } else if (KIND == TO_REAL) {
    z = j <= N / 2 ? number(j) : conjugate(number(N - j));
    if (j == 0) z.im = 0.f;
  } else {
    z = number(j);
  }
  z = z * (KIND == OF_REAL && HALVED ? 0.5f * scale : scale);
  // exp(+..) of (re, im) is exp(-..) of (im, re)
  return INVERSE && KIND != OF_REAL ? swap_re_im(z) : z;
}

// A pass from transforms of length `LENGTH`, RUN apart, to R times as many of a part of it.
// `table`: factors of the results, of the first pass in planes.
template <int R, int LENGTH, int RUN, bool FIRST>
DEV void pass(const Complex* x, const float* table, Complex* y) {
  constexpr int EACH = POINTS / R, PARTS = LENGTH / R;
  const float* const w = table + 2 * R;
  for (int i = threadIdx.x; i < SIGNALS * EACH; i += THREADS) {
    const int signal = i / EACH, b = i % EACH, q = b % RUN, p = b / RUN;
    Complex v[R];
#pragma unroll
    for (int j = 0; j < R; j++) v[j] = x[signal * POINTS + b + j * EACH];
    Butterfly<R>::apply(v, (const Complex*)table);
    Complex* const to = y + signal * POINTS + R * p * RUN + q;
#pragma unroll
    for (int j = 0; j < R; j++) {
      Complex c = v[j];
      if (j && PARTS > 1) {
        const float* const at = FIRST ? w + (j - 1) * PARTS + p : w + 2 * (p * (R - 1) + j - 1);
        c = c * Complex{at[0], at[FIRST ? (R - 1) * PARTS : 1]};
      }
      to[j * RUN] = c;
    }
  }
}

// One number of the result.
DEV Complex bin(const Complex* z, const float* roots, int k) {
  if (KIND == OF_REAL && HALVED) {
    const int j = k <= POINTS ? k : N - k, lower = j == POINTS ? 0 : j;
    const Complex a = z[lower], b = conjugate(z[lower ? POINTS - lower : 0]),
                  root = {roots[j], roots[POINTS + 1 + j]};
    const Complex c = (a + b) + times_minus_i(a - b) * root;
    return (k > POINTS) != INVERSE ? conjugate(c) : c;
  }
  return KIND == OF_REAL ? (INVERSE ? conjugate(z[k]) : z[k]) : INVERSE ? swap_re_im(z[k]) : z[k];
}

DEV void write(const Complex* z, const float* roots, T* y, i64 step, int k) {
  if (KIND == TO_REAL) {
    const Complex c = swap_re_im(z[HALVED ? k / 2 : k]);
    from_float(y[k * step], HALVED && k % 2 ? c.im : c.re);
    return;
  }
  const Complex c = bin(z, roots, k);
  Vec<T, 2> pair;
  from_float(pair.v[0], c.re), from_float(pair.v[1], c.im);
  if (PAIRED)
    store<2>(y + k * step, pair);
  else
    y[k * step] = pair.v[0], y[k * step + 1] = pair.v[1];
}

// All of a block's signals, of `count`: `passes(from, to)` leaves the result in what it returns.
template <class Passes>
DEV void transform(const T* x, const T* window, const float* tables, T* y, i64 count, Signals from,
                   i64 x_step, Signals to, i64 y_step, float scale, Passes passes) {
  __shared__ Complex held[2][SIGNALS * POINTS];
  const i64 first = i64(blockIdx.x) * SIGNALS;
  const float* const roots = tables + SPLIT;
  for (int i = threadIdx.x; i < SIGNALS * POINTS; i += THREADS) {
    const i64 index = first + i / POINTS;
    held[0][i] = index < count ? point(x + from.at(index), x_step, window, roots, scale, i % POINTS)
                               : Complex{};
  }
  __syncthreads();
  const Complex* const z = passes(held[0], held[1]);
  for (int i = threadIdx.x; i < SIGNALS * BINS; i += THREADS) {
    const i64 index = first + i / BINS;
    if (index < count) write(z + i / BINS * POINTS, roots, y + to.at(index), y_step, i % BINS);
  }
}
