// Depthwise convolution, channels last: one thread computes COLUMNS neighbouring outputs of one row for 8 channels, so that it reads every
// input of the row once per kernel row. Neighbouring threads take neighbouring channels.
//
// The generator defines: T, KH, KW, SH, SW, DH, DW, COLUMNS, X_VECTOR, Y_VECTOR and the epilogue (struct Epilogue, finish).

constexpr int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1;  // input columns that the outputs of one thread read

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

extern "C" __global__ void __launch_bounds__(128) depthwise(PARAMETERS) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
  const i64 t = (i64)blockIdx.x * 128 + threadIdx.x;
  const int chunks = (C + 7) / 8, strips = (OW + COLUMNS - 1) / COLUMNS;
  i64 rest = t / chunks;
  const int c = (int)(t % chunks) * 8, count = C - c;
  const int ow0 = (int)(rest % strips) * COLUMNS;
  rest /= strips;
  const int oh = (int)(rest % OH);
  const i64 n = rest / OH;
  if (n >= N) return;
  float sum[COLUMNS][8] = {};
  const int iw0 = ow0 * SW - PL;
#pragma unroll
  for (int kh = 0; kh < KH; kh++) {
    const int ih = oh * SH - PT + kh * DH;
    if ((u32)ih >= (u32)IH) continue;
    const T* row = x + n * x_ns + ih * x_rs + c;
    float weight[KW][8];
#pragma unroll
    for (int kw = 0; kw < KW; kw++) load_columns<true>(w + (i64)(kh * KW + kw) * weight_pitch + c, 8, weight[kw]);
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
      bool used = false;
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int kw = 0; kw < KW; kw++) used |= j * SW + kw * DW == s;
      if (!used) continue;
      float v[8] = {};
      if ((u32)(iw0 + s) < (u32)IW) load_columns<X_VECTOR>(row + (iw0 + s) * x_cs, X_VECTOR ? 8 : count, v);  // pad channels of x are readable, and feed only themselves
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int kw = 0; kw < KW; kw++)
          if (j * SW + kw * DW == s)
#pragma unroll
            for (int k = 0; k < 8; k++) sum[j][k] = fmaf(v[k], weight[kw][k], sum[j][k]);
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll
  for (int j = 0; j < COLUMNS; j++) {
    if (ow0 + j >= OW) break;
    const i64 to = n * y_ns + oh * y_rs + (ow0 + j) * y_cs + c, full = n * r_ns + oh * r_rs + (ow0 + j) * r_cs;
    finish(epilogue, sum[j], 0, full, c, count);
    store8(y + to, sum[j], count);
  }
}
