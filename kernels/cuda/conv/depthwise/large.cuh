// Depthwise convolution with a large window, channels last: what a block reads lies in shared
// memory as f32, each channel's pixels beside each other.
//
// A block computes ROWS output rows of GROUPS groups of P neighbouring columns for 8 channels; a
// thread one such group of one channel, by every PARTS-th row of the window. Of such a row it reads
// the pixels and taps once, PIECE taps at a time; sums of the parts meet in shared memory.
//
// Follows depthwise_channels.cuh (WIDTH 4). The generator also defines: SH, SW, TOP, LEFT, KW (the
// packed window's first row and column that meet the image, its width), HIGH, WIDE (rows and
// columns of it that do), P, GROUPS, ROWS, PARTS, PIECE, PATCH_ROWS, THREADS, RESIDENT, EARLY
// (weights are constant) and the epilogue.

constexpr int BANKS = 32, FILTER_ROW = (WIDE + 3) / 4 * 4;
constexpr int HELD = ((P - 1) * SW + PIECE + 3) / 4 * 4;  // pixels of a row that a thread holds
constexpr int PITCH = (GROUPS - 1) * P * SW + (WIDE - 1) / PIECE * PIECE + HELD;
// From a channel to the next: so that eight of them lie in different banks, by four.
constexpr int apart(int floats) { return (floats + BANKS - 5) / BANKS * BANKS + 4; }
constexpr int FILTER = apart(HIGH * FILTER_ROW), PATCH = apart(PATCH_ROWS * PITCH),
              GROUP = P * 8 + 8;
static_assert(P * SW % 4 == 0 && PIECE % 4 == 0 && THREADS == 8 * GROUPS * ROWS * PARTS,
              "threads read whole vectors");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) depthwise_large(PARAMETERS) {
  extern __shared__ __align__(16) float shared[];
  float *const filters = shared, *const patch = shared + 8 * FILTER;
  const int chunks = (C + 7) / 8, across = (OW + GROUPS * P - 1) / (GROUPS * P),
            bands = (OH + ROWS - 1) / ROWS;
  const int c0 = blockIdx.x % chunks * 8, ow0 = blockIdx.x / chunks % across * (GROUPS * P);
  const int oh0 = blockIdx.x / chunks / across % bands * ROWS,
            n = blockIdx.x / chunks / across / bands;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  constexpr int AHEAD = 8;
  // Four channels of a pixel or tap from `read(i)`, i < count, to where `at(i)` says. What is too
  // much is done twice, so that no load waits behind a branch.
  const auto fill = [&](int count, auto read, auto at) {
#pragma unroll 1
    for (int first = threadIdx.x; first < 2 * count; first += THREADS * AHEAD) {
      Raw v[AHEAD];
#pragma unroll
      for (int q = 0; q < AHEAD; q++) {
        const int i = min(first + q * THREADS, 2 * count - 1);
        v[q] = read(i / 2, i % 2 * 4);
      }
#pragma unroll
      for (int q = 0; q < AHEAD; q++) {
        const int i = min(first + q * THREADS, 2 * count - 1);
        float wide[4];
        widen(v[q], wide);
        at(i / 2, i % 2 * 4, wide);
      }
    }
  };
  fill(
      HIGH * WIDE,
      [&](int i, int c) {
        return fetch<true>(
            w + (i64)((TOP + i / WIDE) * KW + LEFT + i % WIDE) * weight_pitch + c0 + c, 4);
      },
      [&](int i, int c, const float (&v)[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++)
          filters[(c + k) * FILTER + i / WIDE * FILTER_ROW + i % WIDE] = v[k];
      });
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int above = oh0 * SH - PT + TOP, low = max(above, 0),
            high = min(above + (ROWS - 1) * SH + HIGH, IH), left = ow0 * SW - PL + LEFT;
  if (high > low) {
    const T* const image = x + n * x_ns + c0;
    const int last = (C - c0 - 1) / 4 * 4;  // a multiple of four channels of which some exist
    fill((high - low) * PITCH,
         [&](int i, int c) {
           const int iw = left + i % PITCH;
           return fetch<X_VECTOR>(
               image + (low + i / PITCH) * x_rs + min(max(iw, 0), IW - 1) * x_cs + min(c, last),
               C - c0 - min(c, last));
         },
         [&](int i, int c, const float (&v)[4]) {
           const bool inside = (u32)(left + i % PITCH) < (u32)IW;
#pragma unroll
           for (int k = 0; k < 4; k++) patch[(c + k) * PATCH + i] = inside ? v[k] : 0.f;
         });
  }
  __syncthreads();
  const int c = threadIdx.x % 8, group = threadIdx.x / 8 % GROUPS,
            line = threadIdx.x / 8 / GROUPS % ROWS, part = threadIdx.x / (8 * GROUPS * ROWS);
  float sum[P] = {};
  const int top = above + line * SH, end = min(HIGH, IH - top);
#pragma unroll 1
  for (int k = max(-top, 0) + part; k < end; k += PARTS) {
    const float *const from = patch + c * PATCH + (top + k - low) * PITCH + group * P * SW,
                       *const filter = filters + c * FILTER + k * FILTER_ROW;
#pragma unroll 1
    for (int first = 0; first < WIDE; first += PIECE) {
      float held[HELD], tap[PIECE];
#pragma unroll
      for (int s = 0; s < HELD; s += 4) *(float4*)(held + s) = *(const float4*)(from + first + s);
#pragma unroll
      for (int s = 0; s < PIECE; s += 4)
        if (WIDE % PIECE == 0 || first + s < WIDE)
          *(float4*)(tap + s) = *(const float4*)(filter + first + s);
#pragma unroll
      for (int s = 0; s < PIECE; s++) {
        if (PIECE >= WIDE ? s >= WIDE : first + s >= WIDE) break;
#pragma unroll
        for (int j = 0; j < P; j++) sum[j] = fmaf(held[j * SW + s], tap[s], sum[j]);
      }
    }
  }
  __syncthreads();
  float* const sums = patch;
#pragma unroll
  for (int j = 0; j < P; j++) sums[threadIdx.x / 8 * GROUP + j * 8 + c] = sum[j];
  __syncthreads();
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * GROUPS * P * 2; i += THREADS) {
    const int own = i % 2 * 4, pixel = i / 2, oh = oh0 + pixel / (GROUPS * P),
              ow = ow0 + pixel % (GROUPS * P), oc = c0 + own;
    if (oh >= OH || ow >= OW || oc >= C) continue;
    float v[4] = {};
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
      const float4 more =
          *(const float4*)(sums + (pixel / P + q * (ROWS * GROUPS)) * GROUP + pixel % P * 8 + own);
      v[0] += more.x, v[1] += more.y, v[2] += more.z, v[3] += more.w;
    }
    finish(epilogue, v, 0, n * r_ns + oh * r_rs + ow * r_cs, oc, C - oc);
    store(y + n * y_ns + oh * y_rs + ow * y_cs + oc, v, C - oc);
  }
}
