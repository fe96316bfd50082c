// Multistage GEMM: one output tile of y[m, n] = epilogue(alpha * sum_k A[m, k] * B[n, k]) per CTA,
// of matrices, and of convolutions and transposed convolutions as implicit GEMM. cp.async copies
// STAGES stages; tensor cores multiply (mma.sync, or wgmma for f32), or FFMA for f32 with TERMS 0.
// Sums of 8-bit GEMMs are integers until the epilogue.
#pragma once
#ifndef GENERATED
#define SPLIT 2            // split-K: 1, 2, 4 or 8
#define CLUSTER 1          // split-K over a cluster, else a second kernel reduces partial sums
#define LAUNCH_BOUNDS 256  // threads, and optionally resident CTAs per SM
#define MMA_TYPE "f16"
#define USE_WGMMA 0  // f32 by wgmma (Hopper)
#endif               // GENERATED
#include "gemm/operands.cuh"
#include "gemm/multistage_sm80/loads.cuh"
#if IS_F32
#include "gemm/multistage_sm80/operands_f32.cuh"
#endif
#if !IS_F32
#include "gemm/multistage_sm80/mainloop_mma.cuh"
#elif TERMS == 0
#include "gemm/multistage_sm80/mainloop_simt.cuh"
#else
#include "gemm/multistage_sm80/mainloop_tf32.cuh"
#endif
#if USE_WGMMA
#include "gemm/multistage_sm80/wgmma_tf32.cuh"
#endif
#include "gemm/multistage_sm80/store.cuh"
#include "common/cluster_splitk.cuh"

#if SPLIT > 1 && CLUSTER
#if IS_INT8
#define PEER_TYPE "s32"
#define TO_PEER "=r"
#else
#define PEER_TYPE "f32"
#define TO_PEER "=f"
#endif
DEV void add_peer4(Partial* v, u32 address, u32 peer) {
  Partial a, b, c, d;
  asm volatile("{.reg .b32 p; mapa.shared::cluster.u32 p, %4, %5; ld.shared::cluster.v4." PEER_TYPE
               " {%0, %1, %2, %3}, [p];}"
               : TO_PEER(a), TO_PEER(b), TO_PEER(c), TO_PEER(d)
               : "r"(address), "r"(peer)
               : "memory");
  v[0] += a, v[1] += b, v[2] += c, v[3] += d;
}
#endif
DEV void wait_for_producers() {
#if __CUDA_ARCH__ >= 900 && IS_F32 && SOURCE == 0
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::
                   : "memory");  // in this order: else waiting CTAs of later kernels occupy SMs,
                                 // and CTAs of this kernel are distributed unevenly
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(LAUNCH_BOUNDS) gemm_multistage(PARAMETERS) {
  extern __shared__ __align__(USE_WGMMA ? 1024 : 128) char shared[];
  const u32 base = smem_address(shared);
  const int part = SPLIT > 1 ? blockIdx.x % SPLIT : 0, tile = blockIdx.x / SPLIT;
  // Tiles are ordered in bands of eight tile rows, whose operands stay in L2.
  const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, band = tile / (8 * tiles_n),
            height = min(tiles_m - band * 8, 8), rest = tile - band * 8 * tiles_n;
  const int m0 = (band * 8 + rest % height) * BM, n0 = rest / height * BN;
  OUTPUT_PHASES
#if SOURCE == 1
  Image image;
  int first_h = 0, first_w = 0;
  image.v = taps_of(KH, SH, DH, kTransposed, PT, phase_h, first_h);
  image.h = taps_of(KW, SW, DW, kTransposed, PL, phase_w, first_w);
  image.rs = x_rs, image.cs = x_cs, image.height = IH, image.width = IW, image.channels = IC,
  image.pitch = pitch;
#pragma unroll
  for (int i = 0; i < Image::Place::COUNT; i++) {
    const int m = m0 + Image::Place::row(i), n = m / (rows_h * rows_w),
              r = m - n * (rows_h * rows_w), oh = r / rows_w, ow = r - oh * rows_w;
    image.pixel[i] = a + (m < M ? n * x_ns : 0) + group * IC;
    image.ih[i] = m >= M ? -(1 << 30) : kTransposed ? first_h + oh : oh * SH - PT;
    image.iw[i] = kTransposed ? first_w + ow : ow * SW - PL;
  }
  const int K = image.v.taps * image.h.taps * pitch;
  const i64 weight_row = (i64)KH * KW * pitch;
  const T* weight = b + (i64)(group * N + n0) * weight_row;
#else
  TO_BATCH;
#if IS_F32
  const Matrix<BM, A_BYTES, A_TRANS, A_GATHER> left{a + m0 * a_m, a_m, a_k, M - m0, K};
  const Matrix<BN, B_BYTES, B_TRANS, B_GATHER> right{b + n0 * b_n, b_n, b_k, N - n0, K};
#else
  const Matrix<BM, A_BYTES, A_TRANS, A_GATHER, A_WHOLE> left{
      a + m0 * a_m, a_m, a_k, M - m0, K, a, a + (A_TRANS ? (K - 1) * a_k + M : (M - 1) * a_m + K)};
  const Matrix<BN, B_BYTES, B_TRANS, B_GATHER, B_WHOLE> right{
      b + n0 * b_n, b_n, b_k, N - n0, K, b, b + (B_TRANS ? (K - 1) * b_k + N : (N - 1) * b_n + K)};
#endif
#endif
  const int steps = (K + BK - 1) / BK, begin = (int)((i64)steps * part / SPLIT),
            end = (int)((i64)steps * (part + 1) / SPLIT), count = end - begin;
#if SOURCE == 1
  image.start(begin * BK);
#define LOAD_LEFT(to, k) image.load(to)
#define LOAD_RIGHT(to, k) image.load_weight((to) + A_STAGE, weight, weight_row, N - n0, KW)
#define ADVANCE image.advance()
#else
#define LOAD_LEFT(to, k) \
  if (!PREFETCHED_A) left.load(to, k)
#define LOAD_RIGHT(to, k) \
  if (!PREFETCHED_B) right.load((to) + A_STAGE, k)
#define ADVANCE
#if !IS_F32
  // Copies staged through registers (of two bytes) are read before the MMAs of a stage and written
  // to shared memory after these, if at most 8 chunks per thread.
  constexpr int REGISTER_COPIES_A = A_BYTES == 2 ? left.COUNT : 0,
                REGISTER_COPIES_B = B_BYTES == 2 ? right.COUNT : 0,
                PREFETCHED_A = REGISTER_COPIES_A + REGISTER_COPIES_B <= 8 ? REGISTER_COPIES_A : 0,
                PREFETCHED_B = REGISTER_COPIES_A + REGISTER_COPIES_B <= 8 ? REGISTER_COPIES_B : 0;
  Piece prefetched_a[PREFETCHED_A ? PREFETCHED_A : 1],
      prefetched_b[PREFETCHED_B ? PREFETCHED_B : 1];
#define READ(k)                                    \
  if (PREFETCHED_A) left.read(k, 0, prefetched_a); \
  if (PREFETCHED_B) right.read(k, 0, prefetched_b);
#define WRITE(to, k)                                    \
  if (PREFETCHED_A) left.write(to, k, 0, prefetched_a); \
  if (PREFETCHED_B) right.write((to) + A_STAGE, k, 0, prefetched_b);
#else
  constexpr int PREFETCHED_A = 0, PREFETCHED_B = 0;
#endif
#endif
#ifndef READ
#define READ(k)
#define WRITE(to, k)
#endif
  wait_for_producers();
#if FILLED
  image.fill = 0x01010101u * (u8)*x_zero;
#endif
  Accumulator sum;
#if IS_F32 && !USE_WGMMA
again:
#endif
  // Prefetched stages; wgmma still reads the stage of the step before.
  constexpr int DISTANCE = STAGES - 1 - USE_WGMMA;
  constexpr int UNROLLED = A_BYTES == 2 || B_BYTES == 2 || TERMS
                               ? 1
                               : DISTANCE;  // copies through registers take many instructions; with
                                            // `again` unrolling costs registers
#pragma unroll UNROLLED
  for (int s = 0; s < DISTANCE; s++) {
    if (s < count) {
      READ((begin + s) * BK);
      LOAD_LEFT(base + s * STAGE, (begin + s) * BK);
      LOAD_RIGHT(base + s * STAGE, (begin + s) * BK);
      WRITE(base + s * STAGE, (begin + s) * BK);
      ADVANCE;
    }
    cp_async_commit();
  }
  sum.clear();
  int slot = 0, target = DISTANCE;
  for (int s = 0; s < count; s++) {
    cp_async_wait<DISTANCE - 1>();
    __syncthreads();
    const int next = s + DISTANCE;
    if (next < count) {
      READ((begin + next) * BK);
      LOAD_LEFT(base + target * STAGE, (begin + next) * BK);
      LOAD_RIGHT(base + target * STAGE, (begin + next) * BK);
      ADVANCE;
    }
    cp_async_commit();
#if USE_WGMMA
    sum.multiply(base + slot * STAGE, base + slot * STAGE + A_STAGE,
                 base + STAGES * STAGE + s % 2 * PARTS_BYTES);
#else
    sum.multiply(base + slot * STAGE, base + slot * STAGE + A_STAGE);
#endif
    if (next < count) {
      WRITE(base + target * STAGE, (begin + next) * BK);
    }
    if (++slot == STAGES) slot = 0;
    if (++target == STAGES) target = 0;
  }
#if USE_WGMMA
  sum.finish();
#endif
  cp_async_wait<0>();
  __syncthreads();
#if USE_WGMMA
  if (sum.again()) {
#if SOURCE == 1
    image.start(begin * BK);
#endif
    sum.clear();
#pragma unroll 1
    for (int s = begin; s < end; s++) {
      LOAD_LEFT(base, s * BK);
      LOAD_RIGHT(base, s * BK);
      ADVANCE;
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      sum.WarpSums::multiply(base, base + A_STAGE);
      __syncthreads();
    }
  }
#elif IS_F32
  if (TERMS && sum.again()) {
#if SOURCE == 1
    image.start(begin * BK);
#endif
    goto again;
  }
#endif
  Partial* staged = (Partial*)shared;
  sum.stage(staged);
#if SPLIT > 1 && CLUSTER
  cluster_sync();
  constexpr int ROWS = (BM + SPLIT - 1) / SPLIT;
  const int row0 = part * ROWS;
#else
  __syncthreads();
  constexpr int ROWS = BM;
  const int row0 = 0;
#endif
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  static_assert(THREADS % (BN / 8) == 0, "a thread has the same columns of every row");
  const int c = threadIdx.x % (BN / 8) * 8, n = channel0 + n0 + c, left_columns = N - n0 - c;
#if SPLIT == 1 || CLUSTER
  const Columns columns = columns_at(epilogue, n, n + left_columns);
#endif
  for (int r = row0 + threadIdx.x / (BN / 8); r < min(row0 + ROWS, BM); r += THREADS / (BN / 8)) {
    const int m = m0 + r;
    i64 to, full;
    if (m >= M || left_columns <= 0 || !out.place(m, to, full)) continue;
    Partial v[8];
    *(float4*)v = *(const float4*)(staged + r * PITCH + c);
    *(float4*)(v + 4) = *(const float4*)(staged + r * PITCH + c + 4);
#if SPLIT > 1 && CLUSTER
#pragma unroll
    for (int peer = 1; peer < SPLIT; peer++) {
      const u32 address = base + (r * PITCH + c) * 4, from = (part + peer) % SPLIT;
      add_peer4(v, address, from);
      add_peer4(v + 4, address + 16, from);
    }
#endif
#if SPLIT > 1 && !CLUSTER
    Partial* partial = scratch + (((i64)blockIdx.z * SPLIT + part) * M + m) * N8 + n0 + c;
    *(float4*)partial = *(const float4*)v;
    *(float4*)(partial + 4) = *(const float4*)(v + 4);
#else
#if ROW_SUMS
    subtract_row(columns, v, staged[r * PITCH + BN]);
#endif
    finish(epilogue, columns, v, m, full, n, left_columns);
    if (Y_VECTOR || IS_INT8) {
      store8(y + to + n, v, left_columns);
    } else {
      *(float4*)(staged + r * PITCH + c) = *(const float4*)v;
      *(float4*)(staged + r * PITCH + c + 4) = *(const float4*)(v + 4);
    }
#endif
  }
#if (SPLIT == 1 || CLUSTER) && !IS_INT8
  if (!Y_VECTOR) {
    __syncthreads();
    const int columns = min(BN, N - n0), end = min(min(row0 + ROWS, BM), M - m0);
    const auto place = [&](int r, i64& to) {
      i64 full;
      const bool there = out.place(m0 + r, to, full);
      to += channel0 + n0;
      return there;
    };
#if !IS_F32
    if (Y_EACH > 1) {
      if (columns > 16 * Y_EACH)
        store_even_rows<32>(y, staged, row0, end, columns, place);
      else if (columns > 8 * Y_EACH)
        store_even_rows<16>(y, staged, row0, end, columns, place);
      else
        store_even_rows<8>(y, staged, row0, end, columns, place);
    } else
#endif
        if (columns > 16 * EACH)
      store_rows<32>(y, staged, row0, end, columns, place);
    else if (columns > 8 * EACH)
      store_rows<16>(y, staged, row0, end, columns, place);
    else
      store_rows<8>(y, staged, row0, end, columns, place);
  }
#endif
#if SPLIT > 1 && CLUSTER
  cluster_sync();
#endif
}

#if SPLIT > 1 && !CLUSTER
// Adds the partial sums of split-K and runs the epilogue: one thread has 8 columns.
extern "C" __global__ void __launch_bounds__(128) gemm_splitk_reduce(PARAMETERS) {
  OUTPUT_PHASES
  wait_for_producers();
  const i64 t = (i64)blockIdx.x * 128 + threadIdx.x;
  const int chunks = N8 / 8, m = (int)(t / chunks), c = (int)(t % chunks) * 8;
  i64 to, full;
  if (m >= M || !out.place(m, to, full)) return;
  Partial v[8] = {};
  for (int part = 0; part < SPLIT; part++) {
    const Partial* partial = scratch + (((i64)blockIdx.z * SPLIT + part) * M + m) * N8 + c;
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] += partial[k];
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int n = channel0 + c;
  finish(epilogue, v, m, full, n, N - c);
  store8(y + to + n, v, N - c);
}
#endif
