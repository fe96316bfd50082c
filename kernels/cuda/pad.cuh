// Padding. Follows base.cuh.

enum { kConstant, kReflect, kEdge, kWrap };

// Which of the m elements of an axis is read `at` places behind its first; -1 where none is.
template <int MODE> DEV int read_at(int at, int m) {
  if (u32(at) < u32(m)) return at;
  if (MODE == kConstant || m == 0) return -1;
  if (MODE == kEdge) return at < 0 ? 0 : m - 1;
  if (MODE == kReflect) return min(max(at < 0 ? -at : 2 * m - 2 - at, 0), m - 1);
  at %= m;
  return at < 0 ? at + m : at;
}

// n[d] words of axis d of the result, of which p[d] lie before the first of the source's m[d].
template <int MODE, class I, class Word, int R>
DEV void pad_words(const Word* x, Word* y, Word fill, const int (&n)[R], const int (&m)[R], const int (&p)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  I total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= I(n[d]);
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += I(gridDim.x) * blockDim.x) {
    I rest = u;
    i64 from = 0, to = 0;
    bool inside = true;
#pragma unroll
    for (int d = R - 1; d >= 0; d--) {
      const I q = d ? rest / I(n[d]) : 0;
      const int c = int(rest - q * I(n[d])), s = read_at<MODE>(c - p[d], m[d]);
      inside &= s >= 0, from += i64(s) * xs[d], to += i64(c) * ys[d];
      rest = q;
    }
    y[to] = inside ? x[from] : fill;
  }
}

template <int MODE, class Word, int R>
DEV void pad(const Word* x, Word* y, Word fill, const int (&n)[R], const int (&m)[R], const int (&p)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  i64 total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= n[d];
  wait_for_previous();
  if (total < i64(1) << 31) pad_words<MODE, u32>(x, y, fill, n, m, p, xs, ys);
  else pad_words<MODE, u64>(x, y, fill, n, m, p, xs, ys);
}
