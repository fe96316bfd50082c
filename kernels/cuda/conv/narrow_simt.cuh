// Convolutions and transposed ones, in groups too, of few channels by FFMA: filters lie in shared
// memory as f32, pixels come straight from global memory.
//
// A thread computes P output pixels of a row for OCT channels of a group: neighbours, or of a
// transposed convolution those SW apart, which the same taps meet; where a window is one pixel
// those PIXELS apart, so that a warp reads and writes memory that follows each other. KS threads
// divide the input channels of a group, CSTEP of them at a time. A CTA has CB of the CHUNKS
// groups of OCT channels for each pixel; where there are no groups of the convolution, neighbouring
// threads have U neighbouring channels each, several times.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3;          // filter window
constexpr int SH = 1, SW = 1;          // stride
constexpr int DH = 1, DW = 1;          // dilation; 1 where TRANSPOSED
constexpr bool TRANSPOSED = false;     // a transposed convolution
constexpr int G = 1, IN = 8, OUT = 8;  // groups, channels of one
constexpr int OCT = 8, P = 2;          // channels and pixels of a thread
constexpr int CB = 1, KS = 1;          // groups of OCT channels; threads that divide channels
constexpr int CSTEP = 8, V = 8;        // input channels at a time, of one load
constexpr int FILTER_PITCH = 8;        // elements of a packed tap
constexpr int THREADS = 128;           // of a CTA
constexpr int ROWS_AHEAD = 1, STEPS_AHEAD = 1;  // of a window, whose loads are under way together
constexpr int Y_BYTES = 16;                     // of a store at most
constexpr int WRITTEN = 0;       // channels that are written, pad channels too, where a
                                 // thread has all that there are: whole sectors; else 0
constexpr bool ONE_ROW = false;  // the output is one row
constexpr bool EARLY = true;     // the weights are constant
#define PARAMETERS                                                                               \
  const T *x, const T *w, T *y, int N, int IH, int IW, int OH, int OW, int PT, int PL, i64 x_cs, \
      i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns, i64 r_cs, i64 r_rs, i64 r_ns
#endif  // GENERATED

constexpr int HITS_H = TRANSPOSED ? (KH + SH - 1) / SH : KH,
              HITS_W = TRANSPOSED ? (KW + SW - 1) / SW : KW;  // taps of a pixel
constexpr bool SPREAD =
    KH * KW == 1 && !TRANSPOSED;  // pixels of a thread are not neighbours, but those of a warp
constexpr int SPAN = SPREAD ? P : TRANSPOSED ? P + HITS_W - 1 : (P - 1) * SW + (KW - 1) * DW + 1;
constexpr int CHUNKS_OF = (OUT + OCT - 1) / OCT, CHUNKS = G * CHUNKS_OF,
              STEPS = (IN + CSTEP - 1) / CSTEP, PIXELS = THREADS / (KS * CB);
constexpr int U = OCT > 2 ? 4 : OCT, UNITS = (OCT + U - 1) / U;  // floats of a load of filters
constexpr bool WOVEN = G == 1 && CB > 1 && OCT % U == 0;  // channels of a thread lie CB * U apart
constexpr int STEP =
    CSTEP * UNITS * CB * U +
    (KS > 1 ? CB * U
            : 0);  // floats of a step of a tap: threads that divide channels read other banks
constexpr bool TOGETHER = IS_F32 || SPREAD;  // threads that divide channels take as many turns, and
                                             // pad channels become zero before they are multiplied
constexpr int HELD = (CSTEP + V - 1) / V * V;
struct alignas(V * sizeof(T)) Part {
  T v[V];
};
struct alignas(U * 4) Taps {
  float v[U];
};
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

// Which of the pixels that a thread holds tap i of its p-th pixel reads.
constexpr int seen(int p, int i) {
  return SPREAD ? p : TRANSPOSED ? p - i + HITS_W - 1 : p * SW + i * DW;
}
constexpr bool used(int s) {
  for (int p = 0; p < P; p++)
    for (int i = 0; i < HITS_W; i++)
      if (seen(p, i) == s) return true;
  return false;
}
template <int N>
struct alignas(N * sizeof(T)) Piece {
  T v[N];
};
// Elements FIRST... of COUNT, by stores as wide as may be; zeros behind those that there are.
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
// Channel o of a thread's, from its first.
constexpr int channel(int o) { return WOVEN ? o / U * (CB * U) + o % U : o; }

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
                lead = WOVEN ? chunk0 * OCT + oc / OCT * U : chunk % CHUNKS_OF * OCT,
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
  constexpr int EACH = SPREAD ? P : 1;  // items of a thread, PIXELS apart
  const int across = SPREAD       ? OW
                     : TRANSPOSED ? (OW + P * SW - 1) / (P * SW) * SW
                                  : (OW + P - 1) / P;
  const u32 items = (u32)N * OH * across;
  const int group = min(chunk, CHUNKS - 1) / CHUNKS_OF,
            own = WOVEN ? chunk0 * OCT + place * U : min(chunk, CHUNKS - 1) % CHUNKS_OF * OCT,
            oc = group * OUT + own;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
#pragma unroll 1
  for (u32 tile = blockIdx.x; tile * (PIXELS * EACH) < items; tile += gridDim.x) {
    const u32 lead = tile * (PIXELS * EACH) + min(pixel, PIXELS - 1), item = min(lead, items - 1);
    const bool real = pixel < PIXELS && lead < items && (WOVEN ? own < OUT : chunk < CHUNKS);
    const int strip = item % across, oh = item / across % OH, n = item / across / OH;
    const int ow0 = TRANSPOSED ? strip / SW * (P * SW) + strip % SW : strip * P;
    const int kh0 = TRANSPOSED ? (oh + PT) % SH : 0, kw0 = TRANSPOSED ? (ow0 + PL) % SW : 0;
    const int ih0 = TRANSPOSED ? (oh + PT) / SH : oh * SH - PT,
              iw0 = TRANSPOSED ? (ow0 + PL) / SW - (HITS_W - 1) : ow0 * SW - PL;
    const T* const line = x + n * x_ns + iw0 * x_cs + group * IN;
    int columns[EACH], rows[EACH], images[EACH];  // of the output pixels that lie apart
    const T* places[EACH];
    bool there[EACH];
    if (SPREAD)
#pragma unroll
      for (int p = 0; p < EACH; p++) {
        const u32 m = min(lead + p * PIXELS, items - 1);
        columns[p] = ONE_ROW ? m : m % OW, rows[p] = ONE_ROW ? 0 : m / OW % OH,
        images[p] = ONE_ROW ? 0 : m / OW / OH;
        const int ih = rows[p] * SH - PT, iw = columns[p] * SW - PL;
        there[p] = (u32)ih < (u32)IH && (u32)iw < (u32)IW;
        places[p] = x + images[p] * x_ns + ih * x_rs + iw * x_cs + group * IN;
      }
    float sum[P][OCT] = {};
#pragma unroll ROWS_AHEAD
    for (int j = 0; j < HITS_H; j++) {
      const int kh = TRANSPOSED ? kh0 + j * SH : j, ih = TRANSPOSED ? ih0 - j : ih0 + j * DH;
      if (TRANSPOSED && KH % SH && kh >= KH) break;
      const bool inside = (u32)ih < (u32)IH;
#pragma unroll STEPS_AHEAD
      for (int turn = 0; TOGETHER ? turn < (STEPS + KS - 1) / KS : turn * KS + part < STEPS;
           turn++) {
        const int step = TOGETHER ? min(turn * KS + part, STEPS - 1) : turn * KS + part;
        const T* const from = line + ih * x_rs + step * CSTEP;
        Part in[SPAN][HELD / V];
#pragma unroll
        for (int s = 0; s < SPAN; s++)
#pragma unroll
          for (int k = 0; k < HELD / V; k++) {
            in[s][k] = Part{};
            if (SPREAD ? there[s % EACH] : used(s) && inside && (u32)(iw0 + s) < (u32)IW)
              in[s][k] =
                  *(const Part*)((SPREAD ? places[s % EACH] + step * CSTEP : from + s * x_cs) +
                                 k * V);
          }
        if (TOGETHER && IN % CSTEP && step == STEPS - 1)  // pad channels may be anything
#pragma unroll
          for (int s = 0; s < SPAN; s++)
#pragma unroll
            for (int e = IN % CSTEP; e < CSTEP; e++) in[s][e / V].v[e % V] = T{};
        if (TOGETHER && STEPS % KS && turn * KS + part >= STEPS) continue;
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
              float v = to_float(in[seen(p, i)][e / V].v[e % V]);
              if (!TOGETHER && IN % CSTEP && e >= IN - step * CSTEP) v = 0.f;
#pragma unroll
              for (int o = 0; o < OCT; o++) sum[p][o] = fmaf(v, f[o / U].v[o % U], sum[p][o]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int apart = KS / 2; apart; apart /= 2)
#pragma unroll
      for (int p = 0; p < P; p++)
#pragma unroll
        for (int o = 0; o < OCT; o++) sum[p][o] += __shfl_xor_sync(0xffffffffu, sum[p][o], apart);
    if (!real) continue;
    T* const own_y = y + n * y_ns + oh * y_rs + ow0 * y_cs + oc;
    const i64 own_full = n * r_ns + oh * r_rs + ow0 * r_cs;
    constexpr int
        PIECE = WOVEN ? U : OCT,
        APART = TRANSPOSED
                    ? SW
                    : 1;  // channels that are stored together; columns from a pixel to the next
#pragma unroll
    for (int p = 0; p < P; p++) {
      if ((SPREAD ? lead + p * PIXELS >= items : ow0 + p * APART >= OW) ||
          (KS > 1 && p % KS != part))
        continue;
      const int q = p % EACH;
      T* const to = SPREAD ? y + images[q] * y_ns + rows[q] * y_rs + columns[q] * y_cs + oc
                           : own_y + p * APART * y_cs;
      const i64 full = SPREAD ? images[q] * r_ns + rows[q] * r_rs + columns[q] * r_cs
                              : own_full + p * APART * r_cs;
#pragma unroll
      for (int first = 0; first < OCT; first += PIECE) {
        const int count = min(PIECE, OUT - own - channel(first));
        if (OUT % (WOVEN ? CB * OCT : OCT) && count <= 0) break;
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
