// Depthwise convolution of much work, channels last: a thread marches down a strip of COLUMNS
// output columns for 2 channels, so that neighbouring threads read neighbouring channels. Weights
// stay in registers; every input is read and widened once and joins the sums of all the output rows
// that it belongs to, of which SLOTS are open at a time. Loads are AHEAD steps (of SH input rows)
// before the sums.
//
// Follows common/sliding_window.cuh. The generator also defines: T, C, MULTIPLE, AHEAD, THREADS,
// BLOCKS, EARLY, X_VECTOR, Y_VECTOR, RAGGED, BIAS(k) and the epilogue (struct Epilogue, finish, on
// 2 channels). MULTIPLE: output channels of an input channel. EARLY: weights are read while the
// kernel before this one still runs. RAGGED: the last strip is narrower.

constexpr int SLOTS = (DEPTH - 1) / SH + 1, CHUNKS = (C + 1) / 2;
constexpr bool ROTATE = AHEAD == SLOTS;
static_assert(ROTATE || AHEAD == 1, "rows are where they were after SLOTS steps, or move");

// 2 channels as they lie in memory.
#if IS_F32
struct alignas(8) Pair {
  float v[2];
};
DEV void widen(const Pair& p, float (&v)[2]) { v[0] = p.v[0], v[1] = p.v[1]; }
DEV Pair narrow(const float (&v)[2]) { return {v[0], v[1]}; }
#else
typedef u32 Pair;
DEV void widen(Pair p, float (&v)[2]) { unpack2((T*)0, p, v[0], v[1]); }
DEV Pair narrow(const float (&v)[2]) { return pack2((T*)0, v[0], v[1]); }
#endif
DEV Pair fetch(const T* p, int count, int next) {
  if (MULTIPLE == 1 && X_VECTOR)
    return *(const Pair*)p;  // pad channels of x are readable, and feed only themselves
  Pair r = {};
  ((T*)&r)[0] = p[0];
  if (count > 1) ((T*)&r)[1] = p[next];
  return r;
}

// The row of the window that output row `behind` steps back takes from input row `p` of a step; -1
// if none.
constexpr int window_row(int behind, int p) {
  const int d = behind * SH + p;
  return d % DH == 0 && d / DH < KH ? d / DH : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_strips(PARAMETERS) {
  const u32 t = blockIdx.x * THREADS + threadIdx.x, strips = (OW + COLUMNS - 1) / COLUMNS,
            bands = (OH + lines - 1) / lines;
  const int c = int(t % CHUNKS) * 2, count = C % 2 ? min(C - c, 2) : 2;
  u32 rest = t / CHUNKS;
  const int ow0 = int(rest % strips) * COLUMNS;
  rest /= strips;
  const int oh0 = int(rest % bands) * lines, n = int(rest / bands);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  float weight[KH][KW][2];
#pragma unroll
  for (int k = 0; k < KH * KW; k++)
    widen(*(const Pair*)(w + (i64)k * weight_pitch + c), weight[k / KW][k % KW]);
  const float start[2] = {BIAS(0), count > 1 ? BIAS(1) : 0.f};
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (n >= N) return;
  const int rows = min(lines, OH - oh0), top = oh0 * SH - PT, left = ow0 * SW - PL;
  const int next = (c + 1) / MULTIPLE - c / MULTIPLE;  // input channel of the second output channel
  const T* corner = x + n * (i64)x_ns + c / MULTIPLE + (i64)top * x_rs + (i64)left * x_cs;
  T* to = y + n * (i64)y_ns + c + (i64)oh0 * y_rs + (i64)ow0 * y_cs;
  i64 full = n * (i64)r_ns + (i64)oh0 * r_rs + (i64)ow0 * r_cs;
  u32 columns = 0;  // bit s: column s of the strip lies in the image; a wider strip's are tested
                    // when they are read
#pragma unroll
  for (int s = 0; s < SPAN && SPAN <= 32; s++) columns |= u32((u32)(left + s) < (u32)IW) << s;
  asm("" : "+r"(columns));  // to be tested, not computed again
  Pair in[AHEAD][SH][SPAN] = {};
  const auto load = [&](int step, Pair(&to)[SH][SPAN], int p) {
    if (!row_used(p) || (u32)(top + step * SH + p) >= (u32)IH) return;
    const T* row = corner + (i64)(step * SH + p) * x_rs;
#pragma unroll
    for (int s = 0; s < SPAN; s++)
      if (column_used(s) && (SPAN <= 32 ? columns >> s % 32 & 1 : (u32)(left + s) < (u32)IW))
        to[p][s] = fetch(row + (i64)s * x_cs, count, next);  // what lies outside stays zero
  };
#pragma unroll
  for (int u = 0; u < AHEAD; u++)
#pragma unroll
    for (int p = 0; p < SH; p++) load(u, in[u], p);
  float sum[SLOTS][COLUMNS][2];
#pragma unroll
  for (int k = 0; k < SLOTS * COLUMNS; k++)
    sum[k / COLUMNS][k % COLUMNS][0] = start[0], sum[k / COLUMNS][k % COLUMNS][1] = start[1];
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll 1
  for (int first = 0; first < rows + SLOTS - 1; first += AHEAD) {
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int step = first + u,
                done = step - (SLOTS - 1);  // the output row that is complete after this step
#pragma unroll
      for (int p = 0; p < SH; p++) {
        const bool inside = (u32)(top + step * SH + p) < (u32)IH, last = p == SH - 1;
        float v[SPAN][2];
        if (row_used(p)) {
#pragma unroll
          for (int s = 0; s < SPAN; s++) widen(in[u][p][s], v[s]);
          load(step + AHEAD, in[u], p);
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
          // The oldest row is in slot 0. Rows move down by a slot a step, or where SLOTS steps are
          // unrolled, names do.
          const int from = (slot + (ROTATE ? u : 0)) % SLOTS,
                    onto = last && slot && !ROTATE ? from - 1 : from,
                    kh = window_row(SLOTS - 1 - slot, p);
          if (onto != from)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
              sum[onto][j][0] = sum[from][j][0], sum[onto][j][1] = sum[from][j][1];
          if (kh >= 0 && inside && (u32)(done + slot) < (u32)rows)
#pragma unroll
            for (int kw = 0; kw < KW; kw++)
#pragma unroll
              for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                  sum[onto][j][k] =
                      fmaf(v[j * SW + kw * DW][k], weight[kh][kw][k], sum[onto][j][k]);
          if (slot || !last || (u32)done >= (u32)rows) continue;
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) {
            if (RAGGED && ow0 + j >= OW) break;
            finish(epilogue, sum[from][j], 0, full + (i64)j * r_cs, c, count);
            T* out = to + (i64)j * y_cs;
            if (Y_VECTOR && count == 2) {
              *(Pair*)out = narrow(sum[from][j]);
            } else {
              from_float(out[0], sum[from][j][0]);
              if (count > 1) from_float(out[1], sum[from][j][1]);
            }
          }
          to += y_rs, full += r_rs;
        }
      }
      const int newest = ROTATE ? u : SLOTS - 1;
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) sum[newest][j][0] = start[0], sum[newest][j][1] = start[1];
    }
  }
}
