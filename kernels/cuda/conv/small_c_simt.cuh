// Convolutions of few input channels by FFMA, of images of any layout; filters and the patch of
// pixels that a CTA reads are in shared memory as f32.
//
// A CTA computes DOWN rows of GROUPS groups of P neighbouring output pixels, for BN channels; a
// thread computes one group for 8 channels, 4 from each half of BN. It reads every pixel of a row
// of the window once, for PIECE taps at a time. In small grids, PARTS threads split the rows of the
// windows of all channels.
#pragma once
#ifndef GENERATED
#define WIDTH 4
#include "common/instance.cuh"
#define ASYNCHRONOUS 0                      // cp.async of f32 pixels, else through registers
constexpr int IC = 3, FILTER_PITCH = 4;     // input channels, at most 4; elements of a packed tap
constexpr int KH = 3, KW = 3;               // filter window
constexpr int SH = 1, SW = 1;               // stride
constexpr int DH = 1, DW = 1;               // dilation
constexpr int P = 4, GROUPS = 8, DOWN = 2;  // pixels of a thread; groups of P, rows of a CTA
constexpr int BN = 32;                      // output channels of a CTA
constexpr int PIECE = 3;                    // taps of a row whose pixels are in registers at a time
constexpr int PARTS = 1;                    // threads that split the rows of a window
constexpr int THREADS = 64, RESIDENT = 4;   // of a CTA; CTAs per SM
constexpr bool EARLY = true;                // the weights are constant
#define PARAMETERS                                                                               \
  const T *x, const T *w, T *y, int IH, int IW, int OH, int OW, int OC, int PT, int PL, i64 x_c, \
      i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED
#include "conv/depthwise/channels.cuh"
#if ASYNCHRONOUS
#include "common/async_copy.cuh"
#endif

constexpr int TAPS = KH * KW, ROWS = (DOWN - 1) * SH + (KH - 1) * DH + 1,
              SPAN = (GROUPS * P - 1) * SW + (KW - 1) * DW + 1;
constexpr int ROW_PIXELS = ((P - 1) * SW + (PIECE - 1) * DW + 4) / 4 * 4;  // pixels in registers
constexpr int FILTERS = BN + 4;  // pitch of taps in floats; padded against bank conflicts
constexpr int PITCH =
                  ((GROUPS - 1) * P * SW + (KW - 1) / PIECE * PIECE * DW + ROW_PIXELS + 3) / 4 * 4,
              CHANNEL_GROUPS = BN / 8;
constexpr int PART_THREADS = GROUPS * DOWN * CHANNEL_GROUPS;  // threads of a part
static_assert(THREADS == PART_THREADS * PARTS && P * SW % 4 == 0 &&
                  (PIECE >= KW || PIECE * DW % 4 == 0),
              "pixels of a thread are whole vectors");
static_assert(SPAN <= PITCH && IC <= 4, "rows hold what is read");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_small_c_simt(PARAMETERS) {
  extern __shared__ __align__(16) float shared[];
  float *const filters = shared, *const patch = shared + IC * TAPS * FILTERS;
  const int across = (OW + GROUPS * P - 1) / (GROUPS * P), bands = (OH + DOWN - 1) / DOWN,
            oc0 = blockIdx.y * BN;
  const int ow0 = blockIdx.x % across * (GROUPS * P), oh0 = blockIdx.x / across % bands * DOWN,
            n = blockIdx.x / across / bands;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  // Pixels outside of the image read the edge, and surplus copies are repeated, so that loads need
  // no branches. Output channels beyond the last have the filters of the last one.
  constexpr int AHEAD = 8, ACROSS = (SPAN + 31) / 32, PIECES = IC * ROWS * ACROSS,
                WARPS = THREADS / 32;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
#pragma unroll 1
  for (int first = threadIdx.x; first < TAPS * BN; first += THREADS * AHEAD) {
    Raw channels[AHEAD];  // channels of a tap, aligned to 8 bytes
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * THREADS, TAPS * BN - 1);
      channels[q] =
          *(const Raw*)(w + ((i64)min(oc0 + i / TAPS, OC - 1) * TAPS + i % TAPS) * FILTER_PITCH);
    }
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * THREADS, TAPS * BN - 1);
      float v[4];
      widen(channels[q], v);
#pragma unroll
      for (int c = 0; c < IC; c++) filters[(c * TAPS + i % TAPS) * FILTERS + i / TAPS] = v[c];
    }
  }
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int top = oh0 * SH - PT, left = ow0 * SW - PL;
  const T* image = x + n * x_ns;
#if ASYNCHRONOUS
  // cp.async: WARPS_PER_ROW warps share a row of the image, 32 pixels at a time.
  constexpr int WARPS_PER_ROW = IC * ROWS < WARPS ? WARPS / (IC * ROWS) : 1,
                ROWS_AT_ONCE = WARPS / WARPS_PER_ROW;
  if (warp < ROWS_AT_ONCE * WARPS_PER_ROW) {
#pragma unroll 2
    for (int r = warp / WARPS_PER_ROW; r < IC * ROWS; r += ROWS_AT_ONCE) {
      const int ih = top + r % ROWS;
      const bool row = (u32)ih < (u32)IH;
      const T* const from = image + r / ROWS * x_c + (row ? ih : 0) * x_rs;
#pragma unroll
      for (int a = 0; a < ACROSS; a += WARPS_PER_ROW) {
        const int s = (a + warp % WARPS_PER_ROW) * 32 + lane, iw = left + s;
        const bool inside = row && (u32)iw < (u32)IW;
        if (s < SPAN)
          cp_async<4>(smem_address(patch + r * PITCH + s), inside ? from + iw * x_cs : x,
                      inside ? 4 : 0);
      }
    }
  }
  cp_async_wait_all();
#else
  // A warp has every WARPS-th piece of 32 pixels of a row: the address of the row is uniform.
#pragma unroll 1
  for (int first = warp; first < PIECES; first += WARPS * AHEAD) {
    T v[AHEAD];
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * WARPS, PIECES - 1), r = i / ACROSS,
                iw = left + i % ACROSS * 32 + lane;
      v[q] = image[r / ROWS * x_c + min(max(top + r % ROWS, 0), IH - 1) * x_rs +
                   min(max(iw, 0), IW - 1) * x_cs];
    }
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * WARPS, PIECES - 1), r = i / ACROSS, s = i % ACROSS * 32 + lane;
      if (SPAN % 32 == 0 || s < SPAN)
        patch[r * PITCH + s] =
            (u32)(top + r % ROWS) < (u32)IH && (u32)(left + s) < (u32)IW ? to_float(v[q]) : 0.f;
    }
  }
#endif
  __syncthreads();
  const int channel = threadIdx.x % CHANNEL_GROUPS * 4,
            group = threadIdx.x / CHANNEL_GROUPS % GROUPS,
            down = threadIdx.x / CHANNEL_GROUPS / GROUPS % DOWN;
  const int part = threadIdx.x / PART_THREADS;
  float sum[P][2][4] = {};
#pragma unroll 1
  for (int row = part; row < IC * KH; row += PARTS) {
    const float *const from = patch + (row / KH * ROWS + down * SH + row % KH * DH) * PITCH +
                              group * P * SW,
                       *filter = filters + row * KW * FILTERS + channel;
#pragma unroll 1
    for (int first = 0; first < KW; first += PIECE) {
      float pixels[ROW_PIXELS];
#pragma unroll
      for (int s = 0; s < ROW_PIXELS; s += 4)
        *(float4*)(pixels + s) = *(const float4*)(from + first * DW + s);
#pragma unroll
      for (int k = 0; k < PIECE; k++) {
        if (KW % PIECE && first + k >= KW) break;
        float f[2][4];
        *(float4*)f[0] = *(const float4*)filter, *(float4*)f[1] = *(const float4*)(filter + BN / 2);
        filter += FILTERS;
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
          for (int j = 0; j < 8; j++)
            sum[p][j / 4][j % 4] =
                fmaf(pixels[p * SW + k * DW], f[j / 4][j % 4], sum[p][j / 4][j % 4]);
      }
    }
  }
  if (PARTS > 1) {
    __syncthreads();
    float* const sums = shared + threadIdx.x % PART_THREADS;
    if (part > 0)
#pragma unroll
      for (int k = 0; k < P * 8; k++)
        sums[((part - 1) * P * 8 + k) * PART_THREADS] = sum[k / 8][k / 4 % 2][k % 4];
    __syncthreads();
    if (part > 0) return;
#pragma unroll
    for (int k = 0; k < P * 8; k++)
#pragma unroll
      for (int q = 0; q < PARTS - 1; q++)
        sum[k / 8][k / 4 % 2][k % 4] += sums[(q * P * 8 + k) * PART_THREADS];
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int oh = oh0 + down, oc = oc0 + channel;
  const Columns columns[2] = {columns_at(epilogue, oc, OC), columns_at(epilogue, oc + BN / 2, OC)};
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int ow = ow0 + group * P + p;
    if (oh >= OH || ow >= OW) break;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int c = oc + half * (BN / 2);
      if (c >= OC) continue;
      finish(epilogue, columns[half], sum[p][half], 0, n * r_ns + oh * r_rs + ow * r_cs, c, OC - c);
      store(y + n * y_ns + oh * y_rs + ow * y_cs + c, sum[p][half], OC - c);
    }
  }
}
