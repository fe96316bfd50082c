// Products y[m, n] = epilogue(alpha * sum_k A[m, k] * B[n, k]) of two-byte elements whose rows
// begin anywhere and are many, with little to multiply: what counts are the instructions of a
// result. Threads read pieces of eight neighbouring elements by accesses of 16 bytes, all of a step
// at once, and shift them on their way to shared memory; tensor cores (mma.sync) take them from
// there. Results lie in shared memory as they do in y, between multiples of 16 bytes, and leave in
// whole chunks: where a block has whole rows of a y without gaps, as one piece.
//
// A warp has 32 rows by 32 columns and takes 32 k at a time.
//
// The generator defines: T, MMA_TYPE, WARPS_M, WARPS_N, HELD (threads of all blocks of a
// multiprocessor), WHOLE (steps, where all of k lies in shared memory at once: that takes few
// registers; else 0), A_ALONG, B_ALONG (contiguous along k, else along rows), A_BYTES, B_BYTES
// (that lines and matrices lie at multiples of), EVEN (rows of y begin and end at even elements),
// TO_BATCH and the epilogue (struct Epilogue, finish). Parameters span_a, span_b: elements from a
// matrix's first to its last; all_a, all_b: of all matrices.

constexpr int BK = 32, BM = 32 * WARPS_M, BN = 32 * WARPS_N, THREADS = 32 * WARPS_M * WARPS_N;

DEV void read16(u32* v, u64 from, bool there) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from), "r"((int)there)
               : "memory");
}
DEV void write16(u32 to, const u32* v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
DEV void write2(u32 to, u32 v) {
  asm volatile(
      "{.reg .b16 l, h; mov.b32 {l, h}, %1; st.shared.b16 [%0], l; st.shared.b16 [%0 + 2], h;}" ::
          "r"(to),
      "r"(v)
      : "memory");
}
DEV void write4(u32 to, u32 v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
DEV void write1(u32 to, u32 v) {
  asm volatile("{.reg .b16 l, h; mov.b32 {l, h}, %1; st.shared.b16 [%0], l;}" ::"r"(to), "r"(v)
               : "memory");
}
DEV void fragment(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
DEV void fragment_turned(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// What a thread reads of ROWS rows of one operand by BK of k: the same piece of every TURN-th line,
// a line being a row (ALONG) or all rows at one k. As TURN is a multiple of 8, all of these begin
// at the same place between multiples of 16 bytes.
template <int ROWS, bool ALONG, int BYTES>
struct Pieces {
  static constexpr int ACROSS = (ALONG ? BK : ROWS) / 8, LINES = ALONG ? ROWS : BK,
                       TURN = THREADS / ACROSS, COUNT = (LINES + TURN - 1) / TURN;
  static constexpr int PITCH = ALONG ? BK * 2 : ROWS * 2 + 16, SIZE = LINES * PITCH,
                       WORDS = BYTES == 16 ? 4 : 8;
  static_assert(TURN % 8 == 0, "one shift for all pieces");
  u64 start;         // the first piece of this step
  i64 hop, advance;  // bytes from piece to piece, from step to step
  u64 low, high;     // where pieces of the operand begin whose words lie within all of its matrices
  u32 even, odd;  // halves of a word of the operand's ends: lanes 0 to 7 have those around `low`,
                  // others those from `high` on
  int own, piece, rows, k;
  u32 shift;
  bool inside;  // whether words that pieces of this block meet lie within the operand
  u32 words[AHEAD][COUNT][WORDS];

  // Of a `matrix` with `span` elements, from row `row` on; `all` elements follow `first`.
  METHOD void begin(const T* matrix, i64 row_step, i64 k_step, int row, int all_rows, int all_k,
                    i64 span, const T* first, i64 all) {
    const T* const base = matrix + row * row_step;
    const i64 step = ALONG ? row_step : k_step;
    own = threadIdx.x / ACROSS, piece = threadIdx.x % ACROSS, rows = all_rows - row, k = all_k;
    low = (u64)first + 15 & ~15ull, high = ((u64)(first + all) & ~15ull) - WORDS * 4;
    start = (u64)(base + own * step + piece * 8), hop = TURN * step * 2,
    advance = ALONG ? BK * 2 : BK * step * 2, shift = (u32)start & 15;
    inside = ((u64)matrix & ~15ull) >= low;
    // Only in the last matrix it takes more to know.
    if (((u64)(matrix + span - 1) & ~15ull) > high &&
        ((u64)(base + (min(rows, ROWS) - 1) * row_step + (k - 1) * k_step) & ~15ull) > high)
      inside = false;
  }
  METHOD void read_ends(const T* first, i64 all) {
    even = odd = 0;
    if (inside) return;
    const u64 from = (u64)first, to = (u64)(first + all);
    const int lane = threadIdx.x & 31;
    const u64 at = lane < 8 ? low - 16 + lane * 4 : high + (lane - 8) * 4;
    if (at >= from && at < to) even = *(const u16*)at;
    if (at + 2 >= from && at + 2 < to) odd = *(const u16*)(at + 2);
  }
  METHOD void read(int slot, int k0) {
    const bool deep = ALONG ? k0 + piece * 8 < k : piece * 8 < rows;
    const int lines = min(ALONG ? rows : k - k0, LINES) - own;
    const u64 first = start & ~15ull;
    start += advance;
    if (inside) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        read16(words[slot][i], first + i * hop, deep && i * TURN < lines);
        if (BYTES < 16) read16(words[slot][i] + 4, first + i * hop + 16, deep && i * TURN < lines);
      }
      return;
    }
    u32 edge = 0;  // pieces that meet an end of the operand
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const u64 from = first + i * hop;
      const bool there = deep && i * TURN < lines, within = there && from >= low && from <= high;
      read16(words[slot][i], from, within);
      if (BYTES < 16) read16(words[slot][i] + 4, from + 16, within);
      edge |= (u32)(there && !within) << i;
    }
    if (!__any_sync(0xffffffffu, edge)) return;
    const u32 word = even | odd << 16;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const u64 from = first + i * hop;
      const int lane = from < low ? 0 : 8 + (int)((i64)(from - high) >> 2);
#pragma unroll
      for (int w = 0; w < WORDS; w++) {
        const u32 value = __shfl_sync(0xffffffffu, word, lane + w);
        if (edge >> i & 1) words[slot][i][w] = value;
      }
    }
  }
  // Zero beyond the last k.
  METHOD void write(int slot, u32 to, int k0) const {
    u32 mask[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const int left = k - k0 - piece * 8 - 2 * w;
      mask[w] = left >= 2 ? ~0u : left == 1 ? 0xffffu : 0;
    }
    const bool two = shift & 8, one = shift & 4;
    const u32 bits = (shift & 2) * 8;
    to += own * PITCH + (ALONG ? (piece ^ (own >> 1 & 3)) << 4 : piece << 4);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (LINES % TURN && own + i * TURN >= LINES) break;
      u32 a[8], r[4];
#pragma unroll
      for (int w = 0; w < 8; w++) a[w] = w < WORDS ? words[slot][i][w < WORDS ? w : 0] : 0;
      if (BYTES < 16) {
#pragma unroll
        for (int w = 0; w < 6; w++) a[w] = two ? a[w + 2] : a[w];
        if (BYTES < 8) {
#pragma unroll
          for (int w = 0; w < 5; w++) a[w] = one ? a[w + 1] : a[w];
        }
      }
      const u32 all = k0 + own + i * TURN < k ? ~0u : 0;
#pragma unroll
      for (int w = 0; w < 4; w++)
        r[w] =
            (BYTES == 2 ? __funnelshift_r(a[w], a[w + 1], bits) : a[w]) & (ALONG ? mask[w] : all);
      write16(to + i * TURN * PITCH, r);
    }
  }
  // The fragments of 16 rows from `row` on, of 16 k: as those of a left operand, or as two of a
  // right one.
  template <bool LEFT>
  DEV void fragments(u32 (&to)[4], u32 from, int row, int kk) {
    const int lane = threadIdx.x & 31, low = lane & 7, mid = lane >> 3 & 1, high = lane >> 4;
    if (ALONG) {
      const int r = row + (LEFT ? mid : high) * 8 + low, c = kk * 2 + (LEFT ? high : mid);
      fragment(to, from + r * PITCH + ((c ^ (r >> 1 & 3)) << 4));
    } else {
      const int line = kk * 16 + (LEFT ? high : mid) * 8 + low, c = row / 8 + (LEFT ? mid : high);
      fragment_turned(to, from + line * PITCH + c * 16);
    }
  }
};

// Elements [low, high) of the chunk at `to`.
DEV void store_chunk(T* to, u32 from, int low, int high) {
  u32 w[4];
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
  if (low <= 0 && high >= 8) {
    *(uint4*)to = make_uint4(w[0], w[1], w[2], w[3]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (2 * k >= low && 2 * k + 2 <= high)
      *(u32*)(to + 2 * k) = w[k];
    else if (2 * k >= low && 2 * k < high)
      to[2 * k].bits = (u16)w[k];
    else if (2 * k + 1 >= low && 2 * k + 1 < high)
      to[2 * k + 1].bits = (u16)(w[k] >> 16);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, HELD / THREADS) product_flat(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const u32 memory = (u32)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tiles_m = (M + BM - 1) / BM,
            tile_n = N > BN ? blockIdx.x / tiles_m : 0;
  const int m0 = (blockIdx.x - tile_n * tiles_m) * BM, n0 = tile_n * BN, wm = warp % WARPS_M * 32,
            wn = warp / WARPS_M * 32;
  const T *const first_a = a, *const first_b = b;
  TO_BATCH;
  typedef Pieces<BM, A_ALONG, A_BYTES> Left;
  typedef Pieces<BN, B_ALONG, B_BYTES> Right;
  constexpr int STAGE = Left::SIZE + Right::SIZE;
  Left left;
  Right right;
  left.begin(a, a_m, a_k, m0, M, K, span_a, first_a, all_a);
  right.begin(b, b_n, b_k, n0, N, K, span_b, first_b, all_b);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  left.read_ends(first_a, all_a);
  right.read_ends(first_b, all_b);
  const int rows = min(BM, M - m0), columns = min(BN, N - n0);
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  Columns own[4];  // of this lane's columns
  const auto read_columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; j++) own[j] = columns_at(epilogue, n0 + wn + j * 8 + lane % 4 * 2, N);
  };
  float sum[2][4][4] = {};
  const auto multiply = [&](u32 stage) {
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
      u32 fa[2][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) Left::template fragments<true>(fa[i], stage, wm + i * 16, kk);
#pragma unroll
      for (int j = 0; j < 2; j++)
        Right::template fragments<false>(fb[j], stage + Left::SIZE, wn + j * 16, kk);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          float (&d)[4] = sum[i][j];
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
                       ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                       : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                       : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]),
                         "r"(fb[j / 2][j % 2 * 2]), "r"(fb[j / 2][j % 2 * 2 + 1]));
        }
    }
  };
  if (WHOLE) {
    read_columns();
#pragma unroll
    for (int s = 0; s < WHOLE; s++) {
      left.read(0, s * BK);
      right.read(0, s * BK);
      left.write(0, memory + s * STAGE, s * BK);
      right.write(0, memory + s * STAGE + Left::SIZE, s * BK);
    }
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < WHOLE; s++) multiply(memory + s * STAGE);
  } else {
    u32 stage = memory;
    constexpr int TURN = AHEAD * BK;
#pragma unroll 1
    for (int k = -TURN; k < K; k += TURN) {  // in the first turn there is nothing to multiply yet
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
        const int at = k + s * BK;
        if (at >= K) break;
        if (k >= 0) {
          left.write(s, stage, at);
          right.write(s, stage + Left::SIZE, at);
          __syncthreads();
        }
        if (at + TURN < K) {
          left.read(s, at + TURN);
          right.read(s, at + TURN);
        }
        if (k < 0) continue;
        multiply(stage);
        stage ^= memory ^ (memory + STAGE);  // the other one
      }
    }
    read_columns();
  }
  __syncthreads();
  const bool flat = N <= BN && ldy == N;
  T* const corner = y + m0 * ldy + n0;
  const auto lay = [&](bool whole) {
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int r = wm + q * 8 + lane / 4, m = m0 + r;
      const u32 row = memory + (flat ? ((u32)(u64)corner & 15) + r * N * 2
                                     : ((u32)(u64)(corner + r * ldy) & 15) + r * (BN * 2 + 16));
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int c = wn + j * 8 + lane % 4 * 2;
        float v[2] = {sum[q / 2][j][q % 2 * 2], sum[q / 2][j][q % 2 * 2 + 1]};
        if (r < rows && c < columns) finish(epilogue, own[j], v, m, m * ldr, n0 + c, columns - c);
        const u32 pair = pack2((T*)0, v[0], v[1]);
        if (EVEN && (whole || c < columns))
          write4(row + c * 2, pair);
        else if (whole || c + 1 < columns)
          write2(row + c * 2, pair);
        else if (c < columns)
          write1(row + c * 2, pair);
      }
    }
  };
  if (wn + 32 <= columns)
    lay(true);
  else
    lay(false);
  __syncthreads();
  if (flat) {
    const int skip = (int)((u64)corner / 2 % 8), end = rows * N + skip;
#pragma unroll 1
    for (int at = threadIdx.x * 8; at < end; at += THREADS * 8)
      store_chunk(corner - skip + at, memory + at * 2, skip - at, end - at);
  } else {
    constexpr int CHUNKS = BN / 8 + 1;
#pragma unroll 1
    for (int at = threadIdx.x; at < rows * CHUNKS; at += THREADS) {
      const int r = at / CHUNKS, c = at % CHUNKS * 8;
      T* const row = corner + r * ldy;
      const int skip = (int)((u64)row / 2 % 8);
      if (c < columns + skip)
        store_chunk(row - skip + c, memory + r * (BN * 2 + 16) + c * 2, skip - c,
                    columns + skip - c);
    }
  }
}
