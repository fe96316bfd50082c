// Padding. Follows runs.cuh.

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

// n[d] words of axis d of the result, of which p[d] lie before the first of the source's m[d]. per[d]: what `quotient` takes beside n[d]. U words of a thread are
// under way together.
template <int MODE, class I, class Word, int R>
DEV void pad_words(const Word* x, Word* y, Word fill, const int (&n)[R], const int (&m)[R], const int (&p)[R], const u32 (&per)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  constexpr int U = sizeof(Word) > 8 ? 2 : 4;
  I total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= I(n[d]);
  const I step = I(gridDim.x) * blockDim.x;
  for (I u = I(blockIdx.x) * blockDim.x + threadIdx.x; u < total; u += U * step) {
    i64 from[U], to[U];
    bool inside[U];
    Places places;
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (k && u + k * step >= total) continue;
      I rest = u + k * step;
      from[k] = to[k] = 0, inside[k] = true;
#pragma unroll
      for (int d = R - 1; d >= 0; d--) {
        const I q = d ? quotient(rest, I(n[d]), per[d]) : 0;
        const int c = int(rest - q * I(n[d])), s = read_at<MODE>(c - p[d], m[d]);
        inside[k] &= s >= 0, from[k] += i64(s) * xs[d], to[k] += i64(c) * ys[d];
        rest = q;
      }
      places.have(from[k]), places.have(to[k]);
    }
    places.wait();
    Word v[U];
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < total) v[k] = inside[k] ? x[from[k]] : fill;
#pragma unroll
    for (int k = 0; k < U; k++)
      if (k == 0 || u + k * step < total) y[to[k]] = v[k];
  }
}

template <int MODE, class Word, int R>
DEV void pad(const Word* x, Word* y, Word fill, const int (&n)[R], const int (&m)[R], const int (&p)[R], const u32 (&per)[R], const i64 (&xs)[R], const i64 (&ys)[R]) {
  i64 total = 1;
#pragma unroll
  for (int d = 0; d < R; d++) total *= n[d];
  if (total < i64(1) << 31) pad_words<MODE, u32>(x, y, fill, n, m, p, per, xs, ys);
  else pad_words<MODE, u64>(x, y, fill, n, m, p, per, xs, ys);
  wait_for_previous();
}
