// Copies to shared memory of `gemm/multistage_sm80/gemm.cuh`: rows of a matrix with any strides,
// and pixels of a convolution.
//
// Shared memory has rows of 128 bytes (BK elements of k for one m or n) in chunks of 16 bytes.
// Chunk c of row r is at c ^ (r & 7), so that ldmatrix and the copies have no bank conflicts. A
// transposed operand (contiguous along m or n) has panels of 64 of these by BK lines of k.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#ifndef USE_WGMMA
#define USE_WGMMA 0  // f32 by wgmma (wgmma_tf32.cuh)
#endif
#ifndef SOURCE
#define SOURCE 0  // A: 0: a matrix, 1: pixels of a convolution (implicit GEMM)
#endif
#ifndef FILLED
#define FILLED 0  // 8-bit pixels outside of the image are *x_zero, not 0
#endif
#ifndef TERMS
#define TERMS 3  // f32: 3: 3xTF32, 1: TF32 (rounded elements), 0: FFMA
#endif
constexpr int BM = 128, BN = 64;  // rows and columns of a tile
constexpr int WARPS_M = USE_WGMMA ? 8 : 4, WARPS_N = USE_WGMMA ? 1 : 2;  // warps along these
constexpr int WARPS_K = 1;                        // split-K over warps within a stage (f32): 1 to 8
constexpr int STAGES = 3;                         // stages in flight, and the one in use
constexpr int A_BYTES = 16, B_BYTES = 16;         // of a copy: 2 (f32: 4, 8 bits: 1 or 4) to 16
constexpr bool A_TRANS = false, B_TRANS = false;  // contiguous along rows, not along k
constexpr bool A_GATHER = false, B_GATHER = false;  // contiguous along neither
constexpr bool A_WHOLE = false, B_WHOLE = false;    // each copy is entirely inside or outside

#endif  // GENERATED
#include "common/mma.cuh"
#if USE_WGMMA
#include "common/hopper.cuh"
#endif
#if !IS_F32
#include "gemm/multistage_sm80/shifted_loads.cuh"
#endif

constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
constexpr int CHUNK = 16 / sizeof(T);  // elements of one chunk
constexpr int BK = 8 * CHUNK;
constexpr bool SIMT = sizeof(T) == 4;
constexpr int A_STAGE = BM * 128, STAGE = (BM + BN) * 128;
constexpr int PITCH = BN + 8;  // floats per row of the staged accumulators

// Copies SIZE bytes if `there`; `clear` writes zeros.
template <int SIZE>
DEV void copy_if(u32 to, const void* from, bool there) {
  if (SIZE == 16)
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(
            to),
        "l"(from), "r"((int)there)
        : "memory");
  else
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], %3;}" ::"r"(
            to),
        "l"(from), "r"((int)there), "n"(SIZE)
        : "memory");
}
template <int SIZE>
DEV void clear(u32 to) {
  if (SIZE == 16)
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  else if (SIZE == 8)
    asm volatile("st.shared.v2.b32 [%0], {%1, %1};" ::"r"(to), "r"(0) : "memory");
  else
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(0) : "memory");
}
#if IS_INT8
typedef int Partial;  // of a sum
// A chunk of bytes, `step` apart, of which `count` exist; the rest is zero.
DEV uint4 gathered(const T* from, int count, i64 step) {
  u32 v[4] = {};
#pragma unroll
  for (int k = 0; k < 16; k++)
    if (k < count) v[k / 4] |= (u32)(u8)from[k * step] << k % 4 * 8;
  return make_uint4(v[0], v[1], v[2], v[3]);
}
// A chunk whose first `count` bytes are those of `fill`; the rest is zero.
DEV void fill_chunk(u32 to, u32 fill, int count) {
  u32 v[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    // (a comparison of `here` with 4 took 0 for it: ptxas of CUDA 13.0, sm_90)
    const int here = max(0, min(count - 4 * k, 4));
    v[k] = fill & (u32)((1ull << here * 8) - 1);
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
#else
typedef float Partial;
#endif
#if !IS_F32 && !IS_INT8
// A chunk of 16-bit elements, `step` apart, of which `count` exist; the rest is zero.
DEV uint4 gathered(const T* from, int count, i64 step) {
  u32 v[8];
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = k < count ? ((const u16*)from)[k * step] : 0;
  return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}
#endif

// One chunk: `count` elements (0..CHUNK) from `from`, `step` elements apart (1 unless GATHER); the
// rest is zero.
template <int BYTES, bool GATHER>
DEV void copy_chunk(u32 to, const T* from, int count, i64 step) {
  count = max(0, min(count, CHUNK));
  if (BYTES == 16) {
    cp_async<16>(to, from, count * (int)sizeof(T));
  } else if (BYTES == 8) {
#pragma unroll
    for (int k = 0; k < 2; k++)
      cp_async<8>(to + 8 * k,
                  count * (int)sizeof(T) > 8 * k ? (const char*)from + 8 * k : (const char*)from,
                  max(0, min(8, count * (int)sizeof(T) - 8 * k)));
  } else if (BYTES == 4) {
    constexpr int E = 4 / sizeof(T);
#pragma unroll
    for (int k = 0; k < 4; k++)
      cp_async<4>(to + 4 * k, count > E * k ? from + (GATHER ? k * step : E * k) : from,
                  max(0, min(4, (count - E * k) * (int)sizeof(T))));
  } else {
#if !IS_F32
    const uint4 v = gathered(from, count, GATHER ? step : 1);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
#endif
  }
}

// Chunks of a tile of ROWS rows that this thread copies. GATHER: neighbouring threads have
// neighbouring rows.
template <int ROWS, bool GATHER>
struct Rows {
  static constexpr int COUNT = (ROWS * 8 + THREADS - 1) / THREADS;
  DEV int row(int i) {
    const int t = threadIdx.x + i * THREADS;
    return GATHER ? t % ROWS : t / 8;
  }
  DEV int chunk(int i) {
    const int t = threadIdx.x + i * THREADS;
    return GATHER ? t / ROWS : t % 8;
  }
  DEV bool active(int i) {
    return ROWS * 8 % THREADS == 0 || (int)threadIdx.x + i * THREADS < ROWS * 8;
  }
  DEV u32 offset(int i) { return row(i) * 128 + ((chunk(i) ^ (row(i) & 7)) << 4); }
};

#if !IS_F32
// An operand of `rows` by `k`: element (r, k) at base + r * row_step + k * k_step. WHOLE: each copy
// is entirely inside or outside.
template <int ROWS, int BYTES, bool TRANS, bool GATHER, bool WHOLE>
struct Matrix {
  // Copies of less than 16 bytes go to neighbouring threads, so that a warp copies what is
  // contiguous.
  static constexpr int COPY = GATHER || BYTES < 4 ? 16 : BYTES, PARTS = 16 / COPY,
                       E = COPY / sizeof(T), COUNT = (ROWS * 8 * PARTS + THREADS - 1) / THREADS;
  const T* base;
  i64 row_step, k_step;
  int rows, k;            // rows from the tile's first one on; all of k
  const T *first, *last;  // bounds of the whole matrix
  // Copy i of this thread: its offset in shared memory, its address and number of elements (if 0,
  // the address is not used). Unless GATHER, copies of a thread are HOP rows (TRANS: lines of k)
  // apart.
  static constexpr int HOP = THREADS / (TRANS ? ROWS / CHUNK * PARTS : 8 * PARTS);
  METHOD bool place(int i, int k0, u32& to, const T*& from, int& count) const {
    const u32 t = threadIdx.x, part = t % PARTS;
    if (ROWS * 8 * PARTS % THREADS != 0 && t + i * THREADS >= ROWS * 8 * PARTS) return false;
    if (TRANS) {  // contiguous along rows
      constexpr int ACROSS = ROWS / CHUNK;
      static_assert(THREADS % (ACROSS * PARTS) == 0, "copies of a thread have the same rows");
      const int r = t / PARTS % ACROSS, line = t / PARTS / ACROSS + i * HOP,
                e = r * CHUNK + part * E;
      to = (r / 8) * (BK * 128) + line * 128 + (((r & 7) ^ (line & 7)) << 4) + part * COPY;
      count = k0 + line < k ? max(0, min(rows - e, E)) : 0;
      from = base + (i64)(k0 + line) * k_step + e;
    } else if (GATHER) {  // neighbouring threads have neighbouring rows
      const int c = t + i * THREADS, r = c % ROWS, chunk = c / ROWS, kk = k0 + chunk * CHUNK;
      to = r * 128 + ((chunk ^ (r & 7)) << 4);
      count = r < rows ? max(0, min(k - kk, E)) : 0;
      from = base + r * row_step + kk * k_step;
    } else {
      const int r0 = t / (8 * PARTS), r = r0 + i * HOP, chunk = t / PARTS % 8,
                kk = k0 + chunk * CHUNK + part * E;
      to = r * 128 + ((chunk ^ ((HOP % 8 ? r : r0) & 7)) << 4) + part * COPY;
      count = r < rows ? max(0, min(k - kk, E)) : 0;
      from = base + (r0 * row_step + kk) + i * (HOP * row_step);
    }
    return true;
  }
  // Whole copies, with a constant stride per thread. Rows outside of the matrix are left as they
  // are: their results are not stored. k outside of it are zero.
  METHOD void load_whole(u32 to, int k0) const {
    static_assert(!WHOLE || (ROWS * 8 * PARTS % THREADS == 0 && (HOP & (HOP - 1)) == 0),
                  "copies of a thread lie evenly");
    constexpr int ALONG = TRANS ? ROWS / CHUNK : 8;
    const u32 t = threadIdx.x, part = t % PARTS, chunk = t / PARTS % ALONG;
    const int line = t / PARTS / ALONG, e = chunk * CHUNK + part * E;
    const bool here = TRANS ? e < rows : k0 + e < k;
    const i64 step = TRANS ? k_step : row_step;
    const T* from = base + (TRANS ? k0 * k_step + e : k0 + e) + line * step;
    const u32 at =
        to + (chunk / 8) * (BK * 128) + line * 128 + (((chunk ^ line) & 7) << 4) + part * COPY;
    const auto place = [&](int i) { return (at ^ ((i * HOP & 7) << 4)) + i * HOP * 128; };
    const int left = here ? (TRANS ? k - k0 : rows) - line : 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++, from += HOP * step)
      copy_if<COPY>(place(i), from, i * HOP < left);
    if (TRANS ? k0 + BK > k : !here)
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        if (!TRANS || line + i * HOP >= k - k0) clear<COPY>(place(i));
  }
  // Copies of two bytes, which cp.async does not have, are staged through registers: PIECES of them
  // from copy i0 on.
  template <int PIECES>
  METHOD void read(int k0, int i0, Piece (&pieces)[PIECES]) const {
    u32 to;
    const T* from;
    int count;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      if (i0 + j >= COUNT || !place(i0 + j, k0, to, from, count)) continue;
      if (GATHER)
        pieces[j].low = gathered(from, count, k_step);
      else
        pieces[j].read(from, count, first, last);
    }
  }
  template <int PIECES>
  METHOD void write(u32 to, int k0, int i0, const Piece (&pieces)[PIECES]) const {
    u32 at;
    const T* from;
    int count;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      if (i0 + j >= COUNT || !place(i0 + j, k0, at, from, count)) continue;
      const uint4 v = GATHER ? pieces[j].low : pieces[j].elements(count);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + at), "r"(v.x), "r"(v.y),
                   "r"(v.z), "r"(v.w)
                   : "memory");
    }
  }
  METHOD void load(u32 to, int k0) const {
    u32 at;
    const T* from;
    int count;
    if (BYTES == 2) {
      constexpr int BATCH = COUNT < 4 ? COUNT : 4;
#pragma unroll
      for (int i = 0; i < COUNT; i += BATCH) {
        Piece pieces[BATCH];
        read(k0, i, pieces);
        write(to, k0, i, pieces);
      }
      return;
    }
    if (WHOLE) return load_whole(to, k0);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (!place(i, k0, at, from, count)) continue;
      if (GATHER || BYTES == 1)
        copy_chunk<BYTES, GATHER>(to + at, from, count, k_step);
      else if (COPY == 16)
        cp_async<16>(to + at, from, count * (int)sizeof(T));
      else if (COPY == 8)
        cp_async<8>(to + at, from, count * (int)sizeof(T));
      else
        cp_async<4>(to + at, from, count * (int)sizeof(T));
    }
  }
};
#endif

#if SOURCE == 1
// The taps of one output phase of a convolution along an axis: tap t reads input index first +
// t * step and weight index k_first + t * k_step.
struct Axis {
  int taps, step, k_first, k_step;
};

// Rows of A are output pixels, k runs over (kh, kw, channel) with `pitch` channels per tap; B is
// the packed weight [OC, KH, KW, pitch]. All chunks of a thread have the same k, which advances by
// BK per stage.
struct Image {
  using Place = Rows<BM, false>;
  static_assert(THREADS % 8 == 0, "one k per thread");
  const T* pixel[Place::COUNT];
  int ih[Place::COUNT], iw[Place::COUNT];
  int rs, cs, height, width, channels, pitch;
  Axis v, h;
  int kh, kw, c;
#if FILLED
  u32 fill;
#endif
  METHOD void start(int k0) {
    const int k = k0 + (threadIdx.x % 8) * CHUNK, tap = k / pitch;
    c = k - tap * pitch;
    kh = tap / max(h.taps, 1);
    kw = tap - kh * h.taps;
  }
  METHOD void advance() {
    c += BK;
    while (c >= pitch) {
      c -= pitch;
      if (++kw == h.taps) kw = 0, kh++;
    }
  }
  METHOD void load(u32 to) const {
    const int count = kh < v.taps ? channels - c : 0;
#pragma unroll
    for (int i = 0; i < Place::COUNT; i++) {
      if (!Place::active(i)) continue;
      const int y = ih[i] + kh * v.step, x = iw[i] + kw * h.step;
      const bool inside = (u32)y < (u32)height && (u32)x < (u32)width && count > 0;
#if FILLED
      if (!inside) {
        fill_chunk(to + Place::offset(i), fill, count);
        continue;
      }
#endif
      copy_chunk<A_BYTES, false>(to + Place::offset(i),
                                 inside ? pixel[i] + (i64)y * rs + (i64)x * cs + c : pixel[i],
                                 inside ? count : 0, 1);
    }
  }
  METHOD void load_weight(u32 to, const T* w, i64 row_step, int rows, int kernel_width) const {
    using W = Rows<BN, false>;
    const i64 tap =
        (i64)((v.k_first + kh * v.k_step) * kernel_width + h.k_first + kw * h.k_step) * pitch + c;
#pragma unroll
    for (int i = 0; i < W::COUNT; i++) {
      if (!W::active(i)) continue;
      const int r = W::row(i);
      const bool inside = r < rows && kh < v.taps;
      copy_chunk<16, false>(to + W::offset(i), inside ? w + r * row_step + tap : w,
                            inside ? CHUNK : 0, 1);
    }
  }
};

// Taps of a forward convolution, or of the output phase `phase` of a transposed one (its first
// input index is for output index `phase`).
DEV Axis taps_of(int kernel, int stride, int dilation, bool transposed, int pad, int phase,
                 int& first) {
  if (!transposed) return {kernel, dilation, 0, 1};
  Axis a{0, 0, 0, 1};
  for (int k = kernel - 1; k >= 0; k--) {
    const int at = phase + pad - k * dilation;
    if ((at % stride + stride) % stride) continue;
    if (a.taps) a.k_step = a.k_first - k;
    a.taps++;
    a.k_first = k;
    first = at >= 0 ? at / stride : -((-at) / stride);
  }
  a.step = -(a.k_step * dilation) / stride;
  return a;
}
#endif
