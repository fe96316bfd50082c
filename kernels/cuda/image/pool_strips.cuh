// Pooling of much work, channels last: a thread marches down a strip of COLUMNS output columns for
// V channels. A row of the window is joined once, for all the output rows that it belongs to, of
// which SLOTS are open at a time; loads of the next rows are under way meanwhile.
//
// Follows strip.cuh. The generator also defines: T, Narrow (a 16-bit T), MODE (0 max, 1 average of
// what lies in the image, 2 average over the window clipped to the padded image), V and THREADS.
// Where C is not a multiple of V, pad channels up to the next one are read and written too.

constexpr int SLOTS = (DEPTH - 1) / SH + 1, WORDS = V * sizeof(T) / 4;
struct alignas(4 * WORDS) Part {
  u32 w[WORDS];
};

#if MODE == 0
typedef Part State;
DEV u32 pair_max(float*, u32 a, u32 b) {
  return __float_as_uint(keep_max(__uint_as_float(a), __uint_as_float(b)));
}
DEV void join(State& to, const State& v) {
#pragma unroll
  for (int k = 0; k < WORDS; k++) to.w[k] = pair_max((T*)0, to.w[k], v.w[k]);
}
DEV State widened(const Part& v) { return v; }
#else
struct State {
  float v[V];
};
DEV void join(State& to, const State& v) {
#pragma unroll
  for (int j = 0; j < V; j++) to.v[j] += v.v[j];
}
DEV State widened(const Part& v) {
  State s;
#pragma unroll
  for (int k = 0; k < WORDS; k++)
    if (sizeof(T) == 4)
      s.v[k] = __uint_as_float(v.w[k]);
    else
      unpack2((Narrow*)0, v.w[k], s.v[2 * k], s.v[2 * k + 1]);
  return s;
}
DEV Part narrowed(const State& s, float scale) {
  Part p;
#pragma unroll
  for (int k = 0; k < WORDS; k++)
    p.w[k] = sizeof(T) == 4 ? __float_as_uint(s.v[k] * scale)
                            : pack2((Narrow*)0, s.v[2 * k] * scale, s.v[2 * k + 1] * scale);
  return p;
}
#endif
// What joins to nothing: negative infinity for a maximum.
DEV Part outside() {
  T low[4 / sizeof(T)];
#pragma unroll
  for (int k = 0; k < 4 / (int)sizeof(T); k++) from_float(low[k], MODE == 0 ? -INF : 0.f);
  Part p;
#pragma unroll
  for (int k = 0; k < WORDS; k++) p.w[k] = *(const u32*)low;
  return p;
}
DEV State nothing() { return widened(outside()); }

// Whether an output row `behind` steps back sees input row `p` of a step.
constexpr bool seen(int behind, int p) {
  return (behind * SH + p) % DH == 0 && (behind * SH + p) / DH < KH;
}
// Taps start + k * dilation, k < taps, in [low, high).
DEV int taps_in(int start, int taps, int dilation, int low, int high) {
  int count = 0;
  for (int k = 0; k < taps; k++)
    count += start + k * dilation >= low && start + k * dilation < high;
  return count;
}

extern "C" __global__ void __launch_bounds__(THREADS) pool_march(PARAMETERS) {
  after_previous();
  const u32 t = blockIdx.x * THREADS + threadIdx.x, chunks = (C + V - 1) / V,
            strips = (OW + COLUMNS - 1) / COLUMNS, bands = (OH + lines - 1) / lines;
  const int c = int(t % chunks) * V;
  u32 rest = t / chunks;
  const int ow0 = int(rest % strips) * COLUMNS;
  rest /= strips;
  const int oh0 = int(rest % bands) * lines, n = int(rest / bands);
  if (n >= N) return;
  const int rows = min(lines, OH - oh0), top = oh0 * SH - PT, left = ow0 * SW - PL;
  const T* corner = x + n * (i64)x_ns + c + (i64)top * x_rs + (i64)left * x_cs;
  T* to = y + n * (i64)y_ns + c + (i64)oh0 * y_rs + (i64)ow0 * y_cs;
  Part in[SH][SPAN];
#pragma unroll
  for (int k = 0; k < SH * SPAN; k++) in[k / SPAN][k % SPAN] = outside();
  const auto fetch = [&](int step, int p) {
    if (!row_used(p) || (u32)(top + step * SH + p) >= (u32)IH) return;
    const T* row = corner + (i64)(step * SH + p) * x_rs;
#pragma unroll
    for (int s = 0; s < SPAN; s++)
      if (column_used(s) && (u32)(left + s) < (u32)IW)
        in[p][s] = *(const Part*)(row + (i64)s * x_cs);
  };
#pragma unroll
  for (int p = 0; p < SH; p++) fetch(0, p);
  State sum[SLOTS][COLUMNS];
#pragma unroll
  for (int k = 0; k < SLOTS * COLUMNS; k++) sum[k / COLUMNS][k % COLUMNS] = nothing();
#pragma unroll 1
  for (int first = 0; first < rows + SLOTS - 1; first += SLOTS) {
#pragma unroll
    for (int u = 0; u < SLOTS; u++) {
      const int step = first + u, done = step - (SLOTS - 1);
#pragma unroll
      for (int p = 0; p < SH; p++) {
        if (!row_used(p)) continue;
        State row[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          row[j] = widened(in[p][j * SW]);
#pragma unroll
          for (int kw = 1; kw < KW; kw++) join(row[j], widened(in[p][j * SW + kw * DW]));
        }
        fetch(step + 1, p);
        if ((u32)(top + step * SH + p) >= (u32)IH) continue;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++)
          if (seen(SLOTS - 1 - slot, p))
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) join(sum[(u + slot) % SLOTS][j], row[j]);
      }
      if ((u32)done < (u32)rows) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          if (ow0 + j >= OW) break;
#if MODE == 0
          *(Part*)(to + (i64)j * y_cs) = sum[u][j];
#else
          const int down = top + done * SH, right = left + j * SW;
          const int count = MODE == 1 ? taps_in(down, KH, DH, 0, IH) * taps_in(right, KW, DW, 0, IW)
                                      : taps_in(down, KH, DH, -PT, IH + PB) *
                                            taps_in(right, KW, DW, -PL, IW + PR);
          *(Part*)(to + (i64)j * y_cs) = narrowed(sum[u][j], count ? 1.f / float(count) : 0.f);
#endif
        }
        to += y_rs;
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) sum[u][j] = nothing();
    }
  }
}
