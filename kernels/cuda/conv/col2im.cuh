// Folds what every input pixel of a transposed convolution gives to each tap: y[n, oh, ow, c] =
// epilogue(sum of products[(n, ih, iw), c, kh, kw] that meet there).
//
// One thread has WIDTH channels of an output pixel, neighbouring threads neighbouring pixels.
//
// The generator defines: KH, KW, SH, SW, CHANNELS, PITCH (floats of a row of products), Y_VECTOR
// (WIDTH channels of y are stored together) and the epilogue.

constexpr int TAPS = KH * KW, HITS_H = (KH + SH - 1) / SH, HITS_W = (KW + SW - 1) / SW;

extern "C" __global__ void __launch_bounds__(256) fold(PARAMETERS) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
  const i64 t = (i64)blockIdx.x * 256 + threadIdx.x;
  const int image = (int)(t / (OH * OW)), pixel = (int)(t - (i64)image * (OH * OW)),
            oh = pixel / OW, ow = pixel - oh * OW;
  const int c0 = blockIdx.y * WIDTH, count = CHANNELS - c0;
  if (image >= N) return;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const Columns columns = columns_at(epilogue, c0, CHANNELS);
  const int last_h = (oh + PT) / SH, last_w = (ow + PL) / SW, kh0 = (oh + PT) % SH,
            kw0 = (ow + PL) % SW;  // of the inputs that meet this pixel, and their first taps
  float v[WIDTH] = {};
#pragma unroll
  for (int i = 0; i < HITS_H; i++)
#pragma unroll
    for (int j = 0; j < HITS_W; j++) {
      const int ih = last_h - i, iw = last_w - j, kh = kh0 + i * SH, kw = kw0 + j * SW;
      if ((u32)ih >= (u32)IH || (u32)iw >= (u32)IW || kh >= KH || kw >= KW) continue;
      const float* from =
          products + ((i64)(image * IH + ih) * IW + iw) * PITCH + c0 * TAPS + kh * KW + kw;
#pragma unroll
      for (int k = 0; k < WIDTH; k++)
        if (k < count) v[k] += from[k * TAPS];
    }
  finish(epilogue, columns, v, 0, image * r_ns + oh * r_rs + ow * r_cs, c0, count);
  T* const to = y + image * y_ns + oh * y_rs + ow * y_cs + c0;
  if (Y_VECTOR && count >= WIDTH && WIDTH >= 4) {
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4)
      *(float4*)(to + k) = float4{v[k], v[k + 1], v[k + 2], v[k + 3]};
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      if (k < count) to[k] = v[k];
  }
}
