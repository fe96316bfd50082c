// Products y[m, n] = epilogue(alpha * sum_k A[m, k] * B[n, k]) of two-byte elements that are small,
// or whose rows begin anywhere: operands go from memory straight to the registers of the tensor
// cores (mma.sync), without shared memory, so that a block waits for memory once.
//
// A warp has 16 MT rows by 32 columns and takes 32 k at a time. A tensor core wants of lane (g, t),
// g = lane / 4 and t = lane % 4, row g and pairs of k around 2 t. Which row and which k these are
// is free as long as both operands agree: lane t has k = 8 t.. (eight that follow each other), lane
// g rows 2 MT g.. of A and columns 4 g.. of B. So a lane reads pieces of neighbouring elements in
// either layout, and has eight neighbouring columns of a result. WARPS_K warps divide k and add
// their sums up in shared memory.
//
// The generator defines: T, MMA_TYPE, MT, WARPS_M, WARPS_N, WARPS_K, AHEAD (steps read ahead),
// A_ALONG, B_ALONG (contiguous along k, else along rows), A_WHOLE, B_WHOLE (pieces lie at multiples
// of their size), A_EXACT, B_EXACT (and have all of their elements or none), Y_VECTOR, TO_BATCH and
// the epilogue (struct Epilogue, finish).

constexpr int BK = 32, BM = 16 * MT, BN = 32, THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;

// E elements that a lane reads at once, as the words that they meet, where `there`; else as they
// are. No branch: other reads are to be under way meanwhile.
template <int E>
DEV void load_words(u32* to, u64 at, bool there) {
  if (E == 8)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "l"(at), "r"((int)there));
  else if (E == 4)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(to[0]), "+r"(to[1])
                 : "l"(at), "r"((int)there));
  else
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.u32 %0, [%1];}"
                 : "+r"(to[0])
                 : "l"(at), "r"((int)there));
}
// Two of the operand's elements as a word, of which each may be missing, in the lower halves of
// `even` and `odd`.
DEV void load_halves(u32& even, u32& odd, u64 at, bool there, bool next) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.u16 %0, [%1];}"
               : "+r"(even)
               : "l"(at), "r"((int)there));
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.u16 %0, [%1];}"
               : "+r"(odd)
               : "l"(at + 2), "r"((int)next));
}
// The E elements that begin `shift` bytes behind the first of 2 E.
template <int E>
DEV void shifted(const u32* words, u32 shift, u32* to) {
  u32 a[E];
#pragma unroll
  for (int k = 0; k < E; k++) a[k] = words[k];
#pragma unroll
  for (int by = E / 4; by; by /= 2)
#pragma unroll
    for (int k = 0; k + by < E; k++) a[k] = shift & (by * 4) ? a[k + by] : a[k];
#pragma unroll
  for (int k = 0; k < E / 2; k++) to[k] = __funnelshift_r(a[k], a[k + 1], (shift & 2) * 8);
}

// What a lane has of ROWS rows of one operand for 32 k: of each row one piece of 8 k (ALONG), or of
// each of 8 k one piece of these rows. EXACT: no piece meets an end of the operand.
template <int ROWS, bool ALONG, bool WHOLE, bool EXACT>
struct Operand {
  static constexpr int E = ALONG ? 8 : ROWS, COUNT = ALONG ? ROWS : 8, WORDS = WHOLE ? E / 2 : E,
                       SIZE = 2 * E;
  const T* base;  // the lane's first element
  i64 step;       // elements from piece to piece
  int rows, k;    // what is left of both from the lane's first element on
  u64 low, high;  // pieces that begin from here to there can be read whole
  u32 even, odd;  // of a word of the operand's ends: lanes 0 to 7 have those before and behind
                  // `low`, others those from `high` on
  u32 words[AHEAD][COUNT][WORDS];

  METHOD void start(const T* matrix, i64 row_step, i64 k_step, int row, int k0, int all_rows,
                    int all_k) {
    base = matrix + row * row_step + k0 * k_step;
    step = ALONG ? row_step : k_step;
    rows = all_rows - row, k = all_k - k0;
  }
  // Where the whole operand lies, of all matrices.
  METHOD void read_ends(u64 first, u64 last, int lane) {
    if (EXACT) return;
    low = (first + SIZE - 1) & ~(u64)(SIZE - 1), high = (last & ~(u64)(SIZE - 1)) - WORDS * 4;
    const u64 at = lane < 8 ? low - SIZE + lane * 4 : high + (lane - 8) * 4;
    even = odd = 0;
    load_halves(even, odd, at, at >= first && at < last, at + 2 >= first && at + 2 < last);
  }
  METHOD u64 place(int p, int k0) const {
    return (u64)(base + p * step + (ALONG ? k0 : k0 * step));
  }
  METHOD bool exists(int p, int k0) const {
    return ALONG ? p < rows && k0 < k : k0 + p < k && rows > 0;
  }
  METHOD void read(int slot, int k0) {
    u32 edge = 0;  // pieces that meet an end of the operand
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
      const u64 at = place(p, k0) & ~(u64)(SIZE - 1);
#pragma unroll
      for (int w = 0; w < WORDS; w++) words[slot][p][w] = 0;
      const bool there = exists(p, k0), inside = there && (EXACT || (at >= low && at <= high));
      load_words<E>(words[slot][p], at, inside);
      if (!WHOLE) load_words<E>(words[slot][p] + E / 2, at + SIZE, inside);
      edge |= (u32)(there && !inside) << p;
    }
    if (EXACT || !__any_sync(0xffffffffu, edge)) return;
    const u32 word = even | odd << 16;
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
      const u64 at = place(p, k0) & ~(u64)(SIZE - 1);
      const int from = at < low ? 0 : 8 + (int)((i64)(at - high) >> 2);
#pragma unroll
      for (int w = 0; w < WORDS; w++) {
        const u32 value = __shfl_sync(0xffffffffu, word, from + w);
        if (edge >> p & 1) words[slot][p][w] = value;
      }
    }
  }
  // Four words for each row: its 8 k, zero beyond the last.
  METHOD void fragments(int slot, int k0, u32 (&to)[ROWS][4]) const {
    u32 pieces[COUNT][E / 2];
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
      if (WHOLE) {
#pragma unroll
        for (int w = 0; w < E / 2; w++) pieces[p][w] = words[slot][p][w];
      } else {
        shifted<E>(words[slot][p], (u32)place(p, k0) & (SIZE - 1), pieces[p]);
      }
    }
    if (ALONG) {
      const int left = k - k0;
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const u32 mask = EXACT || left >= 2 * w + 2 ? ~0u : left == 2 * w + 1 ? 0xffffu : 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) to[r][w] = pieces[ALONG ? r : 0][ALONG ? w : 0] & mask;
      }
    } else {
#pragma unroll
      for (int w = 0; w < 4; w++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
          to[r][w] = __byte_perm(pieces[ALONG ? 0 : 2 * w][ALONG ? 0 : r / 2],
                                 pieces[ALONG ? 0 : 2 * w + 1][ALONG ? 0 : r / 2],
                                 r % 2 ? 0x7632 : 0x5410);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, AHEAD > 1 ? 1 : 384 / THREADS)
    product_direct(PARAMETERS) {
  __shared__ float sums[WARPS_K > 1 ? WARPS_M * WARPS_N * WARPS_K * MT * 512
                                    : 1];  // of each warp: row group, column, lane
  __shared__ uint4
      results[Y_VECTOR ? 1 : WARPS_M * WARPS_N * WARPS_K * 32];  // eight rows of each warp, where
                                                                 // rows of y lie anyhow
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3,
            part = warp % WARPS_K, place = warp / WARPS_K;
  const int tiles_m = (M + BM * WARPS_M - 1) / (BM * WARPS_M), tile = blockIdx.x;
  const int m0 = (tile % tiles_m * WARPS_M + place % WARPS_M) * BM,
            n0 = (tile / tiles_m * WARPS_N + place / WARPS_M) * BN;
  const T *const first_a = a, *const first_b = b;
  TO_BATCH;
  const T* const last_a = first_a + LAST_A + (A_ALONG ? (M - 1) * a_m + K : (K - 1) * a_k + M);
  const T* const last_b = first_b + LAST_B + (B_ALONG ? (N - 1) * b_n + K : (K - 1) * b_k + N);
  Operand<2 * MT, A_ALONG, A_WHOLE, A_EXACT> left;
  Operand<4, B_ALONG, B_WHOLE, B_EXACT> right;
  left.start(a, a_m, a_k, m0 + 2 * MT * g, 8 * t, M, K);
  right.start(b, b_n, b_k, n0 + 4 * g, 8 * t, N, K);
  float sum[MT][4][4] = {};
  asm volatile("griddepcontrol.wait;" ::: "memory");
  left.read_ends((u64)first_a, (u64)last_a, lane);
  right.read_ends((u64)first_b, (u64)last_b, lane);
  constexpr int TURN = AHEAD * WARPS_K * BK;
#pragma unroll 1
  for (int k = part * BK - TURN; k < K;
       k += TURN) {  // in the first turn there is nothing to multiply yet
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      const int at = k + s * WARPS_K * BK;
      u32 fa[2 * MT][4], fb[4][4];
      if (k >= 0) {
        left.fragments(s, at, fa);
        right.fragments(s, at, fb);
      }
      if (at + TURN < K) {
        left.read(s, at + TURN);
        right.read(s, at + TURN);
      }
      if (k < 0) continue;
      if (at >= K) break;
#pragma unroll
      for (int half = 0; half < 4; half += 2)
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
                         ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]),
                           "+f"(sum[i][j][3])
                         : "r"(fa[2 * i][half]), "r"(fa[2 * i + 1][half]), "r"(fa[2 * i][half + 1]),
                           "r"(fa[2 * i + 1][half + 1]), "r"(fb[j][half]), "r"(fb[j][half + 1]));
    }
  }
  if (WARPS_K > 1) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          sums[((warp * 2 * MT + 2 * i + e / 2) * 8 + e % 2 * 4 + j) * 32 + lane] = sum[i][j][e];
    __syncthreads();
  }
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  const int n = n0 + 8 * t;
#pragma unroll(WARPS_K > 1 ? 1 : 2 * MT)
  for (int q = part; q < 2 * MT; q += WARPS_K) {  // rows m0 + 2 MT g + q
    const int m = m0 + 2 * MT * g + q;
    float v[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      if (WARPS_K > 1) {
        v[c] = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS_K; w++)
          v[c] += sums[(((place * WARPS_K + w) * 2 * MT + q) * 8 + c) * 32 + lane];
      } else {
        v[c] = sum[q / 2][c % 4][q % 2 * 2 + c / 4];
      }
    }
    if (m < M && n < N) finish(epilogue, v, m, m * ldr, n, N - n);
    const uint4 packed = make_uint4(pack2((T*)0, v[0], v[1]), pack2((T*)0, v[2], v[3]),
                                    pack2((T*)0, v[4], v[5]), pack2((T*)0, v[6], v[7]));
    if (Y_VECTOR) {
      if (m >= M || n >= N) continue;
      T* const to = y + m * ldy + n;
      if (n + 8 <= N) {
        *(uint4*)to = packed;
      } else {
        const u32 w[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int c = 0; c < 7; c++)
          if (n + c < N) to[c].bits = (u16)(w[c / 2] >> (c % 2 * 16));
      }
    } else {
      // Half a warp stores a row: words of two elements where these are aligned.
      __syncwarp();
      results[warp * 32 + lane] = packed;
      __syncwarp();
      const u32* const words = (const u32*)(results + warp * 32);
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        const int half = lane / 16, x = lane % 16, row = m0 + 2 * MT * (r + half) + q,
                  count = N - n0;
        u32 word = words[(r + half) * 16 + x];
        const u32 next = __shfl_down_sync(0xffffffffu, word, 1);
        if (row >= M || count <= 0) continue;
        T* const to = y + row * ldy + n0;
        const bool odd = (u64)to & 2;
        if (odd && x == 0) to->bits = (u16)word;
        const int c = 2 * x + odd;
        if (odd) word = word >> 16 | next << 16;
        if (c + 1 < min(count, BN))
          *(u32*)(to + c) = word;
        else if (c < min(count, BN))
          to[c].bits = (u16)word;
      }
    }
  }
}
