// Convolutions of few input channels in 16-bit types over images of any layout; POOL: fused with
// the max pooling of stride 2 that follows.
//
// A team of four warps processes a strip of an image from top to bottom; each warp has 16 columns
// of the convolution: ACROSS warps along columns, DOWN along rows, each with `lines` rows of
// results. Rows of the image are in a ring in shared memory, by channels, so that two neighbouring
// taps of a channel are one word, which is an operand of the MMA for any stride. They are copied in
// pieces of COPY bytes, two steps ahead, or (COPY 0) one by one, staged through registers. With
// every row of the convolution, NEW rows of the window are read; the others stay in registers. A
// unit of k is 4 words of a row of taps; a step has two units. The TEAMS of a CTA share its
// weights, and alternate MMAs and epilogues.
//
// With POOL the 16 columns of a warp are interleaved, even ones in the upper half of the fragment
// and odd ones in the lower: a thread has two columns of a pooling window, gets the third from the
// next pixel's threads, and keeps the maximum of the rows above. Only pooled results are stored.
// H x W: results; OH x OW: results of the convolution; PT, PL: its padding; PPT, PPL: padding of
// the pooling.
#pragma once
#ifndef GENERATED
#define WIDTH 2
#include "common/instance.cuh"
#define WARPGROUPS 1   // wgmma, else mma.sync
#define POOL 0         // with max pooling
#define COPY 8         // bytes of a piece: 4, 8 or 16; 0: pixels one by one, through registers
constexpr int IC = 3;  // input channels, at most 8
constexpr int KH = 7, KW = 7;          // filter window, KW at most 8
constexpr int SH = 2, SW = 2;          // stride
constexpr int PKH = 0, PKW = 0;        // window of the pooling: 2 or 3
constexpr int BN = 64;                 // output channels of a CTA: 16, 32 or 64
constexpr int ACROSS = 4, TEAMS = 2;   // warps along columns (1, 2, 4), teams of four warps
constexpr int RESIDENT = 2;            // CTAs per SM
constexpr int SLOTS = 5;               // groups of rows in the ring
constexpr int WORDS = 68, PITCH = 68;  // words of a channel's row, and its pitch
constexpr int AHEAD = 1;               // columns copied before a strip's first
constexpr int SHIFT = 1;               // zero taps before a window, which align pairs of
                                       // taps to words
constexpr int PAIRS = 4;               // of taps in a row, rounded up to a power of two
constexpr int PPT = 0, PPL = 0;        // padding of the pooling: parameters where POOL
constexpr bool EARLY = true;           // the weights are constant
constexpr bool RELU = false;           // the activation, which follows the pooling
#define PARAMETERS                                                                             \
  const T *x, const T *w, T *y, int IH, int IW, int OH, int OW, int OC, int PT, int PL, int H, \
      int W, int lines, i64 x_c, i64 x_cs, i64 x_rs, i64 x_ns, i64 y_cs, i64 y_rs, i64 y_ns,   \
      i64 r_cs, i64 r_rs, i64 r_ns
#define MMA_TYPE "f16"
#define WGMMA_SIZES WGMMA(64)  // BN

#endif  // GENERATED
#include "common/epilogue_store.cuh"
#include "image/half2_max.cuh"
#include "common/async_copy.cuh"
#if WARPGROUPS
#include "common/hopper.cuh"
#include "common/wgmma.cuh"
#else
#include "common/mma.cuh"
#endif

constexpr int ROW_UNITS = (IC * PAIRS + 3) / 4, UNITS = KH * ROW_UNITS, STEPS = (UNITS + 1) / 2;
// Rows of the image are in groups of SH; a window has GROUPS of them, of the first only its last
// rows.
constexpr int GROUPS = (KH + SH - 1) / SH, LEAD = GROUPS * SH - KH, NEW = SH < KH ? SH : KH;
constexpr int DOWN = 4 / ACROSS,
              RESULTS = !POOL      ? 16
                        : PKW == 3 ? 7
                                   : 8,
              COLUMN_STEP = POOL ? 2 * RESULTS : 16;  // results and columns from warp to warp
constexpr int ROW = IC * PITCH, SLOT = DOWN * SH * ROW, RING = SLOTS * SLOT;  // words
constexpr bool IN_WORDS =
    SW % 2 == 0 && (AHEAD - SHIFT) % 2 == 0;  // pairs of taps are aligned words of the ring
// Copies of a thread per group of rows: pieces of COPY bytes of a channel, or words of all channels
// of a pair of pixels.
constexpr int PIECES = COPY ? IC * WORDS * 4 / COPY : WORDS, TASKS = DOWN * SH * PIECES,
              COPIES = (TASKS + 127) / 128;
constexpr int THREADS = 128 * TEAMS;
constexpr int NT = BN / 8, WEIGHT_PITCH = STEPS * 32 + (WARPGROUPS ? 0 : 16);  // bytes

// Offset of word `pair` of unit u of a channel's weights. wgmma: 8 channels x 1 unit in 128 bytes,
// all channels of a unit contiguous.
DEV constexpr int weight_at(int oc, int u, int pair) {
  return (WARPGROUPS ? (u * NT + oc / 8) * 128 + oc % 8 * 16 : oc * WEIGHT_PITCH + u * 16) +
         pair * 4;
}

#if WARPGROUPS
DEV void sync_team(int team) { named_barrier_sync(1 + team, 128); }
#else
DEV void sync_team(int) { __syncthreads(); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_small_c_pool(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Columns columns[BN / 2];
  const int team = TEAMS == 1 ? 0 : threadIdx.x >> 7, thread = threadIdx.x & 127,
            lane = thread & 31, warp = thread >> 5, t = lane & 3, n0 = blockIdx.y * BN;
  u32* const ring =
      (u32*)(shared + BN * WEIGHT_PITCH) + team * RING;  // [SLOTS][DOWN][SH][IC][PITCH]
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY)
    asm volatile("griddepcontrol.wait;" ::
                     : "memory");  // reads of constant weights need not wait for the kernel before
#endif
  // A thread packs a pair of taps of every row of the window, overlapping the copies of the first
  // rows of the image.
  constexpr int CHANNELS = ROW_UNITS * 4 / PAIRS;  // those beyond IC are zero
  const int pair = threadIdx.x % PAIRS, first_tap = 2 * pair - SHIFT;
  uint4 taps[KH][2];
  const auto load_taps = [&](int oc) {
    const T* const filter = w + ((i64)(n0 + oc) * (KH * KW) + first_tap) * 8;
    const bool first_exists = n0 + oc < OC && (u32)first_tap < KW,
               second_exists = n0 + oc < OC && first_tap + 1 < KW;
#pragma unroll
    for (int kh = 0; kh < KH; kh++) {
      taps[kh][0] = first_exists ? *(const uint4*)(filter + kh * KW * 8) : make_uint4(0, 0, 0, 0);
      taps[kh][1] =
          second_exists ? *(const uint4*)(filter + (kh * KW + 1) * 8) : make_uint4(0, 0, 0, 0);
    }
  };
  const auto put_taps = [&](int oc) {
    char* const place = shared + weight_at(oc, 0, pair);
#pragma unroll
    for (int kh = 0; kh < KH; kh++)
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        const u32 first = ((const u32*)&taps[kh][0])[c / 2],
                  second = ((const u32*)&taps[kh][1])[c / 2];
        const u32 both =
            c % 2 ? __byte_perm(first, second, 0x7632) : __byte_perm(first, second, 0x5410);
        *(u32*)(place + weight_at(0, kh * ROW_UNITS + c * PAIRS / 4, c * PAIRS % 4)) =
            c < IC ? both : 0;
      }
  };
  if (threadIdx.x < BN * PAIRS) load_taps(threadIdx.x / PAIRS);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int strips = (W + ACROSS * RESULTS - 1) / (ACROSS * RESULTS),
            bands = (H + TEAMS * DOWN * lines - 1) / (TEAMS * DOWN * lines);
  const int strip = blockIdx.x % strips, band = blockIdx.x / strips % bands,
            image = blockIdx.x / (strips * bands);
  const auto top_of = [&](int group) {
    const int line = ((band * TEAMS + team) * DOWN + group) * lines;
    return POOL ? 2 * line - PPT : line;
  };  // row of the convolution
  const int left = POOL ? 2 * strip * ACROSS * RESULTS - PPL : strip * ACROSS * RESULTS,
            rows = POOL ? 2 * lines + PKH - 2 : lines;

  // A thread always copies the same columns, SH rows further down each time.
  const T* from[COPIES];
  int row[COPIES], column[COPIES], to[COPIES];
#pragma unroll
  for (int k = 0; k < COPIES; k++) {
    const int task = k * 128 + thread, line = task / PIECES, piece = task % PIECES,
              c = COPY ? piece / (PIECES / IC) : 0,
              j = COPY ? piece % (PIECES / IC) * (COPY / 4) : piece;
    row[k] = top_of(line / SH) * SH - PT + line % SH - LEAD,
    column[k] = left * SW - PL - AHEAD + 2 * j, to[k] = line * ROW + c * PITCH + j;
    from[k] = x + image * x_ns + row[k] * x_rs + c * x_c + column[k] * x_cs;
  }
#if COPY
  const auto copy_rows = [&](u32* at) {
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
      const bool inside = (u32)row[k] < (u32)IH && (u32)column[k] < (u32)IW;
      if (TASKS % 128 == 0 || k * 128 + thread < TASKS)
        cp_async<COPY>(smem_address(at + to[k]), inside ? from[k] : x, inside ? COPY : 0);
      row[k] += SH, from[k] += SH * x_rs;
    }
  };
#else
  struct Staged {
    u16 v[COPIES][IC][2];
  };
  const auto fetch = [&](Staged& staged) {
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
      const bool mine = (u32)row[k] < (u32)IH && (TASKS % 128 == 0 || k * 128 + thread < TASKS);
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < IC; c++)
          staged.v[k][c][h] =
              mine && (u32)(column[k] + h) < (u32)IW ? from[k][c * x_c + h * x_cs].bits : (u16)0;
      row[k] += SH, from[k] += SH * x_rs;
    }
  };
  const auto put = [&](const Staged& staged, u32* at) {
#pragma unroll
    for (int k = 0; k < COPIES; k++)
      if (TASKS % 128 == 0 || k * 128 + thread < TASKS)
#pragma unroll
        for (int c = 0; c < IC; c++)
          at[to[k] + c * PITCH] = staged.v[k][c][0] | (u32)staged.v[k][c][1] << 16;
  };
#endif

#if COPY
#pragma unroll
  for (int k = 0; k <= GROUPS; k++) {
    if (k < GROUPS || rows > 1) copy_rows(ring + k * SLOT);
    cp_async_commit();
  }
#else
  {
    Staged first[GROUPS];
#pragma unroll
    for (int k = 0; k < GROUPS; k++) fetch(first[k]);
#pragma unroll
    for (int k = 0; k < GROUPS; k++) put(first[k], ring + k * SLOT);
  }
#endif
#pragma unroll 1
  for (int oc = threadIdx.x / PAIRS; oc < BN; oc += THREADS / PAIRS) {
    if (oc >= THREADS / PAIRS) load_taps(oc);
    put_taps(oc);
  }
  if (UNITS % 2)
    for (int i = threadIdx.x; i < BN * 4; i += THREADS)
      *(u32*)(shared + weight_at(i / 4, UNITS, i % 4)) = 0;
#if WARPGROUPS
  fence_proxy_async();
#endif

  // Operands: unit u of row kh for both halves of the fragment's pixels. Pixels outside of the
  // window are multiplied by zero weights, and must be finite.
  u32 a[2 * STEPS][2];
  if (UNITS % 2) a[UNITS][0] = a[UNITS][1] = 0;
  const int pixel =
                (warp % ACROSS * COLUMN_STEP + (POOL ? 2 : 1) * (lane >> 2)) * SW + AHEAD - SHIFT,
            other = pixel + (POOL ? 1 : 8) * SW;
  const int mine = warp / ACROSS * SH * ROW + pixel / 2 + t / PAIRS * PITCH + t % PAIRS,
            next = other / 2 - pixel / 2;
  const int tap = t % PAIRS * 2 - SHIFT;
  const u32 tap_mask = ((u32)tap < KW ? 0xffffu : 0u) | (tap + 1 < KW ? 0xffff0000u : 0u);
  const auto read_row = [&](int kh, const u32* group, int line) {
#pragma unroll
    for (int u = 0; u < ROW_UNITS; u++) {
      // Beyond the last channel are words that others may be writing: reads the unit's first
      // channel instead.
      const bool exists = (u * 4 + 4) / PAIRS <= IC || (u * 4 + t) / PAIRS < IC;
      const u32* const p =
          group + line * ROW + u * 4 / PAIRS * PITCH - (exists ? 0 : t / PAIRS * PITCH);
      const u32 mask = exists ? tap_mask : 0u;
      if (IN_WORDS) {
        a[kh * ROW_UNITS + u][0] = p[0] & mask,
                           a[kh * ROW_UNITS + u][1] = p[POOL ? SW / 2 : 4 * SW] & mask;
      } else {
        a[kh * ROW_UNITS + u][0] = __funnelshift_r(p[0], p[1], pixel % 2 * 16) & mask;
        a[kh * ROW_UNITS + u][1] = __funnelshift_r(p[next], p[next + 1], other % 2 * 16) & mask;
      }
    }
  };

  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  if (threadIdx.x < BN / 2) columns[threadIdx.x] = columns_at(epilogue, n0 + threadIdx.x * 2, OC);
  const int line0 = ((band * TEAMS + team) * DOWN + warp / ACROSS) * lines,
            top = top_of(warp / ACROSS), result0 = (strip * ACROSS + warp % ACROSS) * RESULTS;
#if POOL
  T* const out = y + image * y_ns + (result0 + (lane >> 2)) * y_cs + n0 + t * 8;
  const bool written = result0 + (lane >> 2) < W && (lane >> 2) < RESULTS;
  const int even_column = left + warp % ACROSS * COLUMN_STEP + 2 * (lane >> 2);
  const bool even_inside = (u32)even_column < (u32)OW,
             odd_inside = (u32)(even_column + 1) < (u32)OW;
  const u32 lowest = lowest_pair((T*)0);
  u32 even[NT], odd[NT];  // maximum over rows of the pooling window so far
#pragma unroll
  for (int j = 0; j < NT; j++) even[j] = odd[j] = lowest;
#else
  // The four lanes of a pixel store its chunks of 8 channels; with 16 channels those of both their
  // pixels.
  constexpr int SIDES = NT == 2 ? 1 : 2;
  T* out[SIDES];
  bool written[SIDES];
#pragma unroll
  for (int side = 0; side < SIDES; side++) {
    const int at = result0 + (NT == 2 ? t / 2 : side) * 8 + (lane >> 2);
    written[side] = at < W,
    out[side] = y + image * y_ns + line0 * y_rs + at * y_cs + n0 + t % NT * 8;
  }
#endif
#if COPY
  cp_async_wait<2>();
#endif
  __syncthreads();  // all groups of rows but the last of a window, weights and columns are complete
#pragma unroll
  for (int kh = 0; kh < KH - NEW; kh++)
    read_row(kh + NEW, ring + mine + (kh + LEAD) / SH * SLOT, (kh + LEAD) % SH);
#if WARPGROUPS
  if (TEAMS > 1 && team == TEAMS - 1)
    named_barrier_arrive(1 + TEAMS, 256);  // the first team goes first
#endif
  int slot = (GROUPS - 1) * SLOT;
  const auto step_up = [&](int slot) { return slot == (SLOTS - 1) * SLOT ? 0 : slot + SLOT; };
#pragma unroll 1
  for (int r = 0; r < rows; r++) {
#if COPY
    cp_async_wait<1>();
    sync_team(team);  // the new rows are complete
    if (r + 2 < rows) copy_rows(ring + step_up(step_up(slot)));
    cp_async_commit();
#else
    const bool more = r + 1 < rows;
    Staged staged;
    if (more) fetch(staged);
    sync_team(team);
#endif
#pragma unroll
    for (int k = 0; k < (KH - NEW) * ROW_UNITS; k++)
      a[k][0] = a[k + NEW * ROW_UNITS][0], a[k][1] = a[k + NEW * ROW_UNITS][1];
#pragma unroll
    for (int line = 0; line < NEW; line++)
      read_row(KH - NEW + line, ring + (mine + slot), SH - NEW + line);
    slot = step_up(slot);
    float sum[NT][4];
#if WARPGROUPS
    const u64 filter = (u64)(smem_address(shared) >> 4) | (u64)(NT * 8) << 16 | 8ull << 32;
    if (TEAMS > 1)
      named_barrier_sync(1 + TEAMS + team,
                         256);  // teams alternate: one multiplies while others run the epilogue
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < STEPS; s++)
      wgmma(*(float (*)[BN / 2]) sum, {a[2 * s][0], a[2 * s][1], a[2 * s + 1][0], a[2 * s + 1][1]},
            filter + s * (2 * NT * 8), s != 0);
    wgmma_commit();
    if (TEAMS > 1 && (team < TEAMS - 1 || r + 1 < rows))
      named_barrier_arrive(1 + TEAMS + (team + 1) % TEAMS, 256);
#if !COPY
    if (more) put(staged, ring + slot);
#endif
    wgmma_wait<0>();
#else
    const u32 filter = smem_address(shared) + ((lane >> 4) * 8 + (lane & 7)) * WEIGHT_PITCH +
                       ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int j = 0; j < NT; j++) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.f;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        u32 b[4];
        ldmatrix_x4(b, filter + j * (8 * WEIGHT_PITCH) + s * 32);
        multiply(sum[j], {a[2 * s][0], a[2 * s][1], a[2 * s + 1][0], a[2 * s + 1][1]}, b[0], b[1],
                 (T*)0);
        multiply(sum[j + 1], {a[2 * s][0], a[2 * s][1], a[2 * s + 1][0], a[2 * s + 1][1]}, b[2],
                 b[3], (T*)0);
      }
#if !COPY
    if (more) put(staged, ring + slot);
#endif
#endif
    const auto finished = [&](const Columns& c, int j, int half, int m, i64 full) {
      const int n = n0 + j * 8 + t * 2;
      float pair[2] = {sum[j][half * 2], sum[j][half * 2 + 1]};
      finish(epilogue, c, pair, m, full, n, OC - n);
      return pack2((T*)0, pair[0], pair[1]);
    };
#if POOL
    const bool exists = (u32)(top + r) < (u32)OH,
               ends = PKH == 3 ? r > 0 && r % 2 == 0 : r % 2 == 1;
    u32 e[NT], o[NT], pooled[NT];
    if (exists) {
#pragma unroll
      for (int j = 0; j < NT; j++) {
        const Columns c = columns[j * 4 + t];
        e[j] = finished(c, j, 0, 0, 0), o[j] = finished(c, j, 1, 0, 0);
      }
    } else {
#pragma unroll
      for (int j = 0; j < NT; j++) e[j] = o[j] = lowest;
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
      even[j] = pair_max((T*)0, even[j], e[j]), odd[j] = pair_max((T*)0, odd[j], o[j]);
      if (ends) {
        const u32 largest = even_inside ? even[j] : lowest;
        pooled[j] = pair_max((T*)0, largest, odd_inside ? odd[j] : lowest);
        if (PKW == 3)
          pooled[j] = pair_max((T*)0, pooled[j], __shfl_down_sync(0xffffffffu, largest, 4));
        if (RELU) pooled[j] = pair_max((T*)0, pooled[j], 0);
        even[j] = PKH == 3 ? e[j] : lowest, odd[j] = PKH == 3 ? o[j] : lowest;
      }
    }
    if (ends) {
      const int i = line0 + (r - PKH + 1) / 2;
#pragma unroll
      for (int j = 0; j < NT; j += 4) {
        u32 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = j + k < NT ? pooled[j + k < NT ? j + k : 0] : 0;
        gather_chunks(v, lane);
        const int n = n0 + (j + t) * 8;
        if (i < H && written && j + t < NT && n < OC) store8(out + i * y_rs + j * 8, v, OC - n);
      }
    }
#else
    const int i = line0 + r, h = min(i, H - 1);
#pragma unroll
    for (int side = 0; side < SIDES; side++) {
#pragma unroll
      for (int j = 0; j < 2 * NT / SIDES; j += 4) {
        u32 o[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const int half = NT == 2 ? k / 2 : side, v = min(result0 + half * 8 + (lane >> 2), W - 1);
          o[k] = finished(columns[(j + k) % NT * 4 + t], (j + k) % NT, half,
                          (image * H + h) * W + v, image * r_ns + h * r_rs + v * r_cs);
        }
        gather_chunks(o, lane);
        const int n = n0 + (j + t % NT) * 8;
        if (i < H && written[side] && n < OC) store8(out[side] + j * 8, o, OC - n);
      }
      out[side] += y_rs;
    }
#endif
  }
}
