// Depthwise convolution, channels last: one thread computes COLUMNS neighbouring outputs of LINES neighbouring rows for 8 channels, so that it
// reads every input once for all of them. Neighbouring threads take neighbouring channels. Loads have no branches around them: what lies outside
// the image reads as zero, and all of a thread's loads are in flight together.
//
// The generator defines: T, KH, KW, SH, SW, DH, DW, COLUMNS, LINES, THREADS, EARLY, X_VECTOR, Y_VECTOR and the epilogue (struct Epilogue, finish).
// EARLY: all weights are read, into registers, while the kernel before this one still runs.

constexpr int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1, DEPTH = (LINES - 1) * SH + (KH - 1) * DH + 1;  // input columns and rows that a thread reads

// 8 channels as they lie in memory.
#if IS_F32
struct Raw { float v[8]; };
template <bool VECTOR> DEV Raw fetch(const T* p, int count) {
  Raw r = {};
  if (VECTOR) {  // a pitch may be an odd multiple of 4 channels
    *(float4*)r.v = *(const float4*)p;
    if (count > 4) *(float4*)(r.v + 4) = *((const float4*)p + 1);
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) r.v[k] = p[k];
  }
  return r;
}
DEV void widen(const Raw& r, float (&v)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = r.v[k];
}
#else
struct Raw { uint4 v; };
template <bool VECTOR> DEV Raw fetch(const T* p, int count) {
  Raw r = {};
  if (VECTOR) {
    r.v = *(const uint4*)p;
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) ((T*)&r)[k] = p[k];
  }
  return r;
}
DEV void widen(const Raw& r, float (&v)[8]) {
  unpack2((T*)0, r.v.x, v[0], v[1]), unpack2((T*)0, r.v.y, v[2], v[3]), unpack2((T*)0, r.v.z, v[4], v[5]), unpack2((T*)0, r.v.w, v[6], v[7]);
}
#endif

DEV void store8(T* y, const float (&v)[8], int count) {
  if (Y_VECTOR && count >= 8) {
#if IS_F32
    *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
    *((float4*)y + 1) = make_float4(v[4], v[5], v[6], v[7]);
#else
    *(uint4*)y = make_uint4(pack2((T*)0, v[0], v[1]), pack2((T*)0, v[2], v[3]), pack2((T*)0, v[4], v[5]), pack2((T*)0, v[6], v[7]));
#endif
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) from_float(y[k], v[k]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) depthwise(PARAMETERS) {
  const i64 t = (i64)blockIdx.x * THREADS + threadIdx.x;
  const int chunks = (C + 7) / 8, strips = (OW + COLUMNS - 1) / COLUMNS;
  i64 rest = t / chunks;
  const int c = (int)(t % chunks) * 8, count = C - c;
  const int ow0 = (int)(rest % strips) * COLUMNS;
  rest /= strips;
  const int bands = (OH + LINES - 1) / LINES, oh0 = (int)(rest % bands) * LINES;
  const i64 n = rest / bands;
  Raw early[EARLY ? KH * KW : 1];
  if (EARLY)
#pragma unroll
    for (int k = 0; k < KH * KW; k++) early[k] = fetch<true>(w + (i64)k * weight_pitch + c, 8);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
  if (n >= N) return;
  float sum[LINES][COLUMNS][8] = {};
  const int iw0 = ow0 * SW - PL;
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    bool read = false;
#pragma unroll
    for (int line = 0; line < LINES; line++) read |= d >= line * SH && (d - line * SH) % DH == 0 && (d - line * SH) / DH < KH;
    if (!read) continue;
    const int ih = oh0 * SH - PT + d;
    const bool inside = (u32)ih < (u32)IH;
    const T* row = x + n * x_ns + ih * x_rs + c;
    Raw in[SPAN];
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
      in[s] = Raw{};
      if (inside && (u32)(iw0 + s) < (u32)IW) in[s] = fetch<X_VECTOR>(row + (iw0 + s) * x_cs, count);  // pad channels of x are readable, and feed only themselves
    }
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      const int kh = (d - line * SH) / DH;
      if (d < line * SH || (d - line * SH) % DH || kh >= KH) continue;
      float weight[KW][8];
#pragma unroll
      for (int kw = 0; kw < KW; kw++) widen(EARLY ? early[EARLY ? kh * KW + kw : 0] : fetch<true>(w + (i64)(kh * KW + kw) * weight_pitch + c, 8), weight[kw]);
#pragma unroll
      for (int s = 0; s < SPAN; s++) {
        bool used = false;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
          for (int kw = 0; kw < KW; kw++) used |= j * SW + kw * DW == s;
        if (!used) continue;
        float v[8];
        widen(in[s], v);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
          for (int kw = 0; kw < KW; kw++)
            if (j * SW + kw * DW == s)
#pragma unroll
              for (int k = 0; k < 8; k++) sum[line][j][k] = fmaf(v[k], weight[kw][k], sum[line][j][k]);
      }
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll
  for (int line = 0; line < LINES; line++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const int oh = oh0 + line;
      if (ow0 + j >= OW || oh >= OH) continue;
      const i64 to = n * y_ns + oh * y_rs + (ow0 + j) * y_cs + c, full = n * r_ns + oh * r_rs + (ow0 + j) * r_cs;
      finish(epilogue, sum[line][j], 0, full, c, count);
      store8(y + to, sum[line][j], count);
    }
}
