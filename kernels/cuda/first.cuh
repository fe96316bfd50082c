// Convolutions of few input channels by FFMA: the image lies in any order of axes, filters and the pixels that a block reads are f32 in shared memory.
//
// A block computes DOWN rows of GROUPS groups of P neighbouring output pixels, for BN channels; a thread one such group for 8 channels, 4 from each half of BN. Of a
// row of the window it reads every pixel once, for PIECE taps at a time.
//
// Follows depthwise_channels.cuh (WIDTH 4). The generator also defines: IC, KH, KW, SH, SW, DH, DW, P, GROUPS, DOWN, BN, PIECE, THREADS, RESIDENT, EARLY (weights are
// constant), FILTER_PITCH (elements of a packed tap) and the epilogue (struct Epilogue, finish, on 4 channels).

constexpr int TAPS = KH * KW, ROWS = (DOWN - 1) * SH + (KH - 1) * DH + 1, SPAN = (GROUPS * P - 1) * SW + (KW - 1) * DW + 1;
constexpr int HELD = ((P - 1) * SW + (PIECE - 1) * DW + 4) / 4 * 4;  // pixels that a thread holds
constexpr int PITCH = ((GROUPS - 1) * P * SW + (KW - 1) / PIECE * PIECE * DW + HELD + 3) / 4 * 4, CHANNEL_GROUPS = BN / 8;
static_assert(THREADS == GROUPS * DOWN * CHANNEL_GROUPS && P * SW % 4 == 0 && (PIECE >= KW || PIECE * DW % 4 == 0), "pixels of a thread are whole vectors");
static_assert(SPAN <= PITCH && IC <= 4, "rows hold what is read");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_first(PARAMETERS) {
  extern __shared__ __align__(16) float shared[];
  float *const filters = shared, *const patch = shared + IC * TAPS * BN;
  const int across = (OW + GROUPS * P - 1) / (GROUPS * P), bands = (OH + DOWN - 1) / DOWN, oc0 = blockIdx.y * BN;
  const int ow0 = blockIdx.x % across * (GROUPS * P), oh0 = blockIdx.x / across % bands * DOWN, n = blockIdx.x / across / bands;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#pragma unroll 4
  for (int i = threadIdx.x; i < TAPS * BN; i += THREADS) {
    const int oc = i % BN, tap = i / BN;
    Raw channels = {};  // of a tap, which begin at multiples of 8 bytes
    if (oc0 + oc < OC) channels = *(const Raw*)(w + ((i64)(oc0 + oc) * TAPS + tap) * FILTER_PITCH);
    float v[4];
    widen(channels, v);
#pragma unroll
    for (int c = 0; c < IC; c++) filters[(c * TAPS + tap) * BN + oc] = v[c];
  }
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int top = oh0 * SH - PT, left = ow0 * SW - PL;
#pragma unroll 8
  for (int i = threadIdx.x; i < IC * ROWS * SPAN; i += THREADS) {
    const int s = i % SPAN, r = i / SPAN, row = r % ROWS, ih = top + row, iw = left + s;
    float v = 0.f;
    if ((u32)ih < (u32)IH && (u32)iw < (u32)IW) v = to_float(x[n * x_ns + r / ROWS * x_c + ih * x_rs + iw * x_cs]);
    patch[r * PITCH + s] = v;
  }
  __syncthreads();
  const int channel = threadIdx.x % CHANNEL_GROUPS * 4, group = threadIdx.x / CHANNEL_GROUPS % GROUPS, down = threadIdx.x / CHANNEL_GROUPS / GROUPS;
  float sum[P][2][4] = {};
  const float *from = patch + down * SH * PITCH + group * P * SW, *filter = filters + channel;
#pragma unroll 1
  for (int c = 0; c < IC; c++, from += ROWS * PITCH) {
#pragma unroll 1
    for (int kh = 0; kh < KH; kh++) {
#pragma unroll 1
      for (int first = 0; first < KW; first += PIECE) {
        float held[HELD];
#pragma unroll
        for (int s = 0; s < HELD; s += 4) *(float4*)(held + s) = *(const float4*)(from + kh * DH * PITCH + first * DW + s);
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
          if (KW % PIECE && first + k >= KW) break;
          float f[2][4];
          *(float4*)f[0] = *(const float4*)filter, *(float4*)f[1] = *(const float4*)(filter + BN / 2);
          filter += BN;
#pragma unroll
          for (int p = 0; p < P; p++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum[p][j / 4][j % 4] = fmaf(held[p * SW + k * DW], f[j / 4][j % 4], sum[p][j / 4][j % 4]);
        }
      }
    }
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int oh = oh0 + down;
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int ow = ow0 + group * P + p;
    if (oh >= OH || ow >= OW) break;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int oc = oc0 + half * (BN / 2) + channel;
      if (oc >= OC) continue;
      finish(epilogue, sum[p][half], 0, n * r_ns + oh * r_rs + ow * r_cs, oc, OC - oc);
      store(y + n * y_ns + oh * y_rs + ow * y_cs + oc, sum[p][half], OC - oc);
    }
  }
}
