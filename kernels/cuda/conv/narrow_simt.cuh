// Convolutions (also transposed, grouped) of few channels by FFMA: filters are in shared memory as
// f32, pixels are read from global memory.
//
// A thread computes P output pixels of a row for OCT channels of a group: neighbouring pixels; of a
// transposed convolution pixels SW apart, which have the same taps; of a pointwise convolution
// pixels PIXELS apart, so that a warp accesses contiguous memory. KS threads split the input
// channels of a group, CSTEP of them at a time. A CTA has CB of the CHUNKS groups of OCT channels
// for each pixel. INTERLEAVED: neighbouring threads have U contiguous channels each, several times.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3;          // filter window
constexpr int SH = 1, SW = 1;          // stride
constexpr int DH = 1, DW = 1;          // dilation; 1 where TRANSPOSED
constexpr bool TRANSPOSED = false;     // a transposed convolution
constexpr int G = 1, IN = 8, OUT = 8;  // groups, channels of one
constexpr int OCT = 8, P = 2;          // channels and pixels of a thread
constexpr int CB = 1, KS = 1;          // groups of OCT channels; threads that split input channels
constexpr int CSTEP = 8, V = 8;        // input channels at a time, per load
constexpr int FILTER_PITCH = 8;        // elements of a packed tap
constexpr int THREADS = 128;           // of a CTA
constexpr int ROWS_AHEAD = 1, STEPS_AHEAD = 1;  // rows and steps with loads in flight together
constexpr int Y_BYTES = 16;                     // most bytes per store
constexpr int WRITTEN = 0;       // channels stored including padding, if a thread has
                                 // all channels of a pixel (whole sectors); else 0
constexpr bool ONE_ROW = false;  // the output is one row
constexpr bool EARLY = true;     // the weights are constant
#define PARAMETERS                                                                               \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, int PT, int PL, i64 x_cs, \
      i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED

constexpr int HITS_H = TRANSPOSED ? (KH + SH - 1) / SH : KH,
              HITS_W = TRANSPOSED ? (KW + SW - 1) / SW : KW;  // most taps of an output pixel
constexpr bool SPREAD = KH * KW == 1 && !TRANSPOSED;          // pixels of a thread are PIXELS apart
constexpr int SPAN = SPREAD ? P : TRANSPOSED ? P + HITS_W - 1 : (P - 1) * SW + (KW - 1) * DW + 1;
constexpr int CHUNKS_OF = (OUT + OCT - 1) / OCT, CHUNKS = G * CHUNKS_OF,
              STEPS = (IN + CSTEP - 1) / CSTEP, PIXELS = THREADS / (KS * CB);
constexpr int U = OCT > 2 ? 4 : OCT, UNITS = (OCT + U - 1) / U;  // floats per load of filters
constexpr bool INTERLEAVED =
    G == 1 && CB > 1 && OCT % U == 0;  // units of a thread are CB * U channels apart
constexpr int STEP =
    CSTEP * UNITS * CB * U +
    (KS > 1
         ? CB * U
         : 0);  // floats of a step of a tap; the padding avoids bank conflicts between KS threads
constexpr bool UNIFORM = IS_F32 || SPREAD;  // threads that divide channels take as many turns, and
                                            // pad channels become zero before they are multiplied
constexpr int STEP_ELEMENTS = (CSTEP + V - 1) / V * V;
struct alignas(V * sizeof(T)) Part {
  T v[V];
};
struct alignas(U * 4) Taps {
  float v[U];
};
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

// Index of the input pixel that tap i of output pixel p of a thread reads.
constexpr int input_of(int p, int i) {
  return SPREAD ? p : TRANSPOSED ? p - i + HITS_W - 1 : p * SW + i * DW;
}
constexpr bool used(int s) {
  for (int p = 0; p < P; p++)
    for (int i = 0; i < HITS_W; i++)
      if (input_of(p, i) == s) return true;
  return false;
}
template <int N>
struct alignas(N * sizeof(T)) Piece {
  T v[N];
};
// Stores elements FIRST to COUNT with the widest stores allowed; those beyond WIDTH are zero.
template <int FIRST, int COUNT>
DEV void store_pieces(T* y, const float (&v)[WIDTH]) {
  if constexpr (FIRST < COUNT) {
    constexpr int E = Y_BYTES / sizeof(T), N = E >= 8 && COUNT - FIRST >= 8   ? 8
                                               : E >= 4 && COUNT - FIRST >= 4 ? 4
                                               : E >= 2 && COUNT - FIRST >= 2 ? 2
                                                                              : 1;
    Piece<N> piece;
#pragma unroll
    for (int k = 0; k < N; k++)
      from_float(piece.v[k], FIRST + k < WIDTH ? v[(FIRST + k) % WIDTH] : 0.f);
    *(Piece<N>*)(y + FIRST) = piece;
    store_pieces<FIRST + N, COUNT>(y, v);
  }
}
// Offset of channel o of a thread from its first channel.
constexpr int channel(int o) { return INTERLEAVED ? o / U * (CB * U) + o % U : o; }

extern "C" __global__ void __launch_bounds__(THREADS) conv_narrow_simt(PARAMETERS) {
  extern __shared__ __align__(16) float filters[];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int chunk0 = blockIdx.y * CB;
  constexpr int AHEAD = 4, FOURS = (STEPS * CSTEP + 3) / 4, COUNT = CB * OCT * KH * KW * FOURS;
#pragma unroll 1
  for (int first = threadIdx.x; first < COUNT; first += THREADS * AHEAD) {
    Four v[AHEAD];
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * THREADS, COUNT - 1), tap = i / FOURS % (KH * KW),
                oc = i / FOURS / (KH * KW);
      const int chunk = min(chunk0 + oc / OCT, CHUNKS - 1),
                lead = INTERLEAVED ? chunk0 * OCT + oc / OCT * U : chunk % CHUNKS_OF * OCT,
                own = min(lead + channel(oc % OCT), OUT - 1);
      v[q] = *(
          const Four*)(w + ((i64)(chunk / CHUNKS_OF * OUT + own) * (KH * KW) + tap) * FILTER_PITCH +
                       i % FOURS * 4);
    }
#pragma unroll
    for (int q = 0; q < AHEAD; q++) {
      const int i = min(first + q * THREADS, COUNT - 1), tap = i / FOURS % (KH * KW),
                oc = i / FOURS / (KH * KW), o = oc % OCT;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int c = i % FOURS * 4 + k;
        if (c < STEPS * CSTEP)
          filters[(tap * STEPS + c / CSTEP) * STEP +
                  ((c % CSTEP * UNITS + o / U) * CB + oc / OCT) * U + o % U] = to_float(v[q].v[k]);
      }
    }
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int part = threadIdx.x % KS, place = threadIdx.x / KS % CB, pixel = threadIdx.x / (KS * CB),
            chunk = chunk0 + place;
  constexpr int EACH = SPREAD ? P : 1;  // items per thread, PIXELS apart
  const int across = SPREAD       ? OW
                     : TRANSPOSED ? (OW + P * SW - 1) / (P * SW) * SW
                                  : (OW + P - 1) / P;
  const u32 items = (u32)N * OH * across;
  const int group = min(chunk, CHUNKS - 1) / CHUNKS_OF,
            own = INTERLEAVED ? chunk0 * OCT + place * U : min(chunk, CHUNKS - 1) % CHUNKS_OF * OCT,
            oc = group * OUT + own;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll 1
  for (u32 tile = blockIdx.x; tile * (PIXELS * EACH) < items; tile += gridDim.x) {
    const u32 lead = tile * (PIXELS * EACH) + min(pixel, PIXELS - 1), item = min(lead, items - 1);
    const bool real = pixel < PIXELS && lead < items && (INTERLEAVED ? own < OUT : chunk < CHUNKS);
    const int strip = item % across, oh = item / across % OH, n = item / across / OH;
    const int ow0 = TRANSPOSED ? strip / SW * (P * SW) + strip % SW : strip * P;
    const int kh0 = TRANSPOSED ? (oh + PT) % SH : 0, kw0 = TRANSPOSED ? (ow0 + PL) % SW : 0;
    const int ih0 = TRANSPOSED ? (oh + PT) / SH : oh * SH - PT,
              iw0 = TRANSPOSED ? (ow0 + PL) / SW - (HITS_W - 1) : ow0 * SW - PL;
    const T* const line = x + n * x_ns + iw0 * x_cs + group * IN;
    int columns[EACH], rows[EACH], images[EACH];  // output pixels of SPREAD
    const T* addresses[EACH];
    bool inside_image[EACH];
    if (SPREAD)
#pragma unroll
      for (int p = 0; p < EACH; p++) {
        const u32 m = min(lead + p * PIXELS, items - 1);
        columns[p] = ONE_ROW ? m : m % OW, rows[p] = ONE_ROW ? 0 : m / OW % OH,
        images[p] = ONE_ROW ? 0 : m / OW / OH;
        const int ih = rows[p] * SH - PT, iw = columns[p] * SW - PL;
        inside_image[p] = (u32)ih < (u32)IH && (u32)iw < (u32)IW;
        addresses[p] = x + images[p] * x_ns + ih * x_rs + iw * x_cs + group * IN;
      }
    float sum[P][OCT] = {};
#pragma unroll ROWS_AHEAD
    for (int j = 0; j < HITS_H; j++) {
      const int kh = TRANSPOSED ? kh0 + j * SH : j, ih = TRANSPOSED ? ih0 - j : ih0 + j * DH;
      if (TRANSPOSED && KH % SH && kh >= KH) break;
      const bool inside = (u32)ih < (u32)IH;
#pragma unroll STEPS_AHEAD
      for (int iteration = 0;
           UNIFORM ? iteration < (STEPS + KS - 1) / KS : iteration * KS + part < STEPS;
           iteration++) {
        const int step = UNIFORM ? min(iteration * KS + part, STEPS - 1) : iteration * KS + part;
        const T* const from = line + ih * x_rs + step * CSTEP;
        Part in[SPAN][STEP_ELEMENTS / V];
#pragma unroll
        for (int s = 0; s < SPAN; s++)
#pragma unroll
          for (int k = 0; k < STEP_ELEMENTS / V; k++) {
            in[s][k] = Part{};
            if (SPREAD ? inside_image[s % EACH] : used(s) && inside && (u32)(iw0 + s) < (u32)IW)
              in[s][k] =
                  *(const Part*)((SPREAD ? addresses[s % EACH] + step * CSTEP : from + s * x_cs) +
                                 k * V);
          }
        if (UNIFORM && IN % CSTEP && step == STEPS - 1)  // padding channels may have any value
#pragma unroll
          for (int s = 0; s < SPAN; s++)
#pragma unroll
            for (int e = IN % CSTEP; e < CSTEP; e++) in[s][e / V].v[e % V] = T{};
        if (UNIFORM && STEPS % KS && iteration * KS + part >= STEPS) continue;
#pragma unroll
        for (int i = 0; i < HITS_W; i++) {
          const int kw = TRANSPOSED ? kw0 + i * SW : i;
          if (TRANSPOSED && KW % SW && kw >= KW) break;
          const float* const filter = filters + ((kh * KW + kw) * STEPS + step) * STEP + place * U;
#pragma unroll
          for (int e = 0; e < CSTEP; e++) {
            Taps f[UNITS];
#pragma unroll
            for (int k = 0; k < UNITS; k++)
              f[k] = *(const Taps*)(filter + (e * UNITS + k) * (CB * U));
#pragma unroll
            for (int p = 0; p < P; p++) {
              float v = to_float(in[input_of(p, i)][e / V].v[e % V]);
              if (!UNIFORM && IN % CSTEP && e >= IN - step * CSTEP) v = 0.f;
#pragma unroll
              for (int o = 0; o < OCT; o++) sum[p][o] = fmaf(v, f[o / U].v[o % U], sum[p][o]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int offset = KS / 2; offset; offset /= 2)
#pragma unroll
      for (int p = 0; p < P; p++)
#pragma unroll
        for (int o = 0; o < OCT; o++) sum[p][o] += __shfl_xor_sync(0xffffffffu, sum[p][o], offset);
    if (!real) continue;
    T* const own_y = y + n * y_ns + oh * y_rs + ow0 * y_cs + oc;
    const i64 own_full = n * r_ns + oh * r_rs + ow0 * r_cs;
    constexpr int PIECE = INTERLEAVED ? U : OCT,
                  COLUMN_STRIDE = TRANSPOSED ? SW : 1;  // channels that are stored together;
                                                        // columns from a pixel to the next
#pragma unroll
    for (int p = 0; p < P; p++) {
      if ((SPREAD ? lead + p * PIXELS >= items : ow0 + p * COLUMN_STRIDE >= OW) ||
          (KS > 1 && p % KS != part))
        continue;
      const int q = p % EACH;
      T* const to = SPREAD ? y + images[q] * y_ns + rows[q] * y_rs + columns[q] * y_cs + oc
                           : own_y + p * COLUMN_STRIDE * y_cs;
      const i64 full = SPREAD ? images[q] * r_ns + rows[q] * r_rs + columns[q] * r_cs
                              : own_full + p * COLUMN_STRIDE * r_cs;
#pragma unroll
      for (int first = 0; first < OCT; first += PIECE) {
        const int count = min(PIECE, OUT - own - channel(first));
        if (OUT % (INTERLEAVED ? CB * OCT : OCT) && count <= 0) break;
        float v[WIDTH] = {};
#pragma unroll
        for (int o = 0; o < PIECE; o++) v[o] = sum[p][first + o];
        finish(epilogue, v, 0, full, oc + channel(first), count);
        T* const at = to + channel(first);
        if (OUT % PIECE == 0 || count == PIECE) {
          store_pieces<0, WRITTEN ? WRITTEN : PIECE>(at, v);
        } else {
#pragma unroll
          for (int o = 0; o < PIECE; o++)
            if (o < count) from_float(at[o], v[o]);
        }
      }
    }
  }
}
