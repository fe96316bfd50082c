// softmax(scale q k^T + mask) v for 16-bit operands with mma.sync: a block has WARPS * 16 query
// rows of one head, keys come in tiles of BN through two shared-memory stages (cp.async), scores
// and running sums stay in registers. Head sizes are padded with zeros to multiples of 16.
constexpr int kD = (HEAD + 15) / 16 * 16, kDV = (HEAD_V + 15) / 16 * 16, BM = WARPS * 16;
constexpr int kPitch = kD * 2 + 16,
              kPitchV = kDV * 2 + 16;  // bytes; an odd number of 16-byte units: no bank conflicts
constexpr int kKeys = BN * kPitch, kStage = kKeys + BN * kPitchV, kQueries = BM * kPitch;
constexpr bool kQueryRegisters = kD <= 128;

// Rows first..first+count of [rows, size] to shared memory; rows from `rows` on and columns from
// `size` on become zero.
template <int SIZE, int PADDED, int PITCH>
DEV void load_rows(u32 to, char* memory, const T* from, i64 stride, int first, int count, int rows,
                   bool wide) {
  constexpr int chunks = PADDED / 8;
  if (wide) {
    for (int u = threadIdx.x; u < count * chunks; u += WARPS * 32) {
      const int r = u / chunks, c = u % chunks;
      const bool real = first + r < rows && c * 8 < SIZE;
      copy_async(to + r * PITCH + c * 16, real ? from + (first + r) * stride + c * 8 : from,
                 real ? 16 : 0);
    }
  } else {
    for (int u = threadIdx.x; u < count * PADDED; u += WARPS * 32) {
      const int r = u / PADDED, c = u % PADDED;
      T v{};
      if (first + r < rows && c < SIZE) v = from[(first + r) * stride + c];
      *(T*)(memory + r * PITCH + c * 2) = v;
    }
  }
}

DEV void attend(const Attention& g) {
  after_previous();
  extern __shared__ char memory[];
  const u32 base = shared_address(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tiles = (g.S + BM - 1) / BM, head_index = blockIdx.x / tiles;
  const int tile = CAUSAL ? tiles - 1 - int(blockIdx.x) % tiles
                          : int(blockIdx.x) % tiles;  // the longest rows first
  const int b = head_index / g.H, h = head_index % g.H, kv = h / (g.H / g.KVH), m0 = tile * BM;
  const T *q = g.q + b * g.q_b + h * g.q_h, *k = g.k + b * g.k_b + kv * g.k_h,
          *v = g.v + b * g.v_b + kv * g.v_h;
  const bool wide_q = HEAD % 8 == 0 && aligned(q, 16) && g.q_s % 8 == 0,
             wide_k = HEAD % 8 == 0 && aligned(k, 16) && g.k_s % 8 == 0;
  const bool wide_v = HEAD_V % 8 == 0 && aligned(v, 16) && g.v_s % 8 == 0;

  const int keys = visible_keys(g, min(m0 + BM, g.S) - 1), steps = (keys + BN - 1) / BN;
  auto load_tile = [&](int step) {
    const int at = kQueries + step % 2 * kStage;
    load_rows<HEAD, kD, kPitch>(base + at, memory + at, k, g.k_s, step * BN, BN, g.Tk, wide_k);
    load_rows<HEAD_V, kDV, kPitchV>(base + at + kKeys, memory + at + kKeys, v, g.v_s, step * BN, BN,
                                    g.Tk, wide_v);
    copy_commit();
  };
  load_rows<HEAD, kD, kPitch>(base, memory, q, g.q_s, m0, BM, g.S, wide_q);
  load_tile(0);

  // This thread's rows are s0 and s0 + 8; its columns of an 8-wide tile are column and column + 1.
  const int s0 = m0 + warp * 16 + lane / 4, column = lane % 4 * 2;
  const int see[2] = {visible_keys(g, s0), visible_keys(g, s0 + 8)},
            least = visible_keys(g, m0 + warp * 16);
  const float log_scale = score_scale(g), log_fill = to_log2(g.fill);
  const i64 mask_row[2] = {b * g.m_b + h * g.m_h + min(s0, g.S - 1) * g.m_q,
                           b * g.m_b + h * g.m_h + min(s0 + 8, g.S - 1) * g.m_q};
  const u32 query =
      base + (warp * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * kPitch + (lane >> 4) * 16;
  const u32 key = ((lane & 7) + (lane >> 4) * 8) * kPitch + (lane >> 3 & 1) * 16,
            value = ((lane & 7) + (lane >> 3 & 1) * 8) * kPitchV + (lane >> 4) * 16;
  u32 a[kQueryRegisters ? kD / 16 : 1][4];
  float out[kDV / 8][4] = {}, top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};

  for (int step = 0; step < steps; step++) {
    copy_wait<0>();
    __syncthreads();  // the tile is there, and every warp is done with the one before
    if (step + 1 < steps) load_tile(step + 1);
    const u32 stage = base + kQueries + step % 2 * kStage;
    if (kQueryRegisters && step == 0)
#pragma unroll
      for (int d = 0; d < kD / 16; d++) load_matrices(a[kQueryRegisters ? d : 0], query + d * 32);

    float s[BN / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kD / 16; d++) {
      if (!kQueryRegisters) load_matrices(a[0], query + d * 32);
#pragma unroll
      for (int n = 0; n < BN / 16; n++) {
        u32 r[4];
        load_matrices(r, stage + key + n * 16 * kPitch + d * 32);
        multiply(s[2 * n], a[kQueryRegisters ? d : 0], r[0], r[1], (T*)nullptr);
        multiply(s[2 * n + 1], a[kQueryRegisters ? d : 0], r[2], r[3], (T*)nullptr);
      }
    }
    const int t0 = step * BN + column;
    const bool edge =
        (step + 1) * BN > least;  // some key of the tile is hidden from some row of the warp
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int t = t0 + n * 8 + (e & 1);
        float x = capped(s[n][e] * log_scale);
        if (MASK && t < g.Tk) x = masked(x, g.mask, mask_row[e >> 1] + t * g.m_k, log_fill);
        if (edge && t >= see[e >> 1]) x = -INF;
        s[n][e] = x;
      }
    weigh(s, out, top, sum);
#pragma unroll
    for (int n = 0; n < BN / 16; n++) {
      const u32 p[4] = {pack2((T*)nullptr, s[2 * n][0], s[2 * n][1]),
                        pack2((T*)nullptr, s[2 * n][2], s[2 * n][3]),
                        pack2((T*)nullptr, s[2 * n + 1][0], s[2 * n + 1][1]),
                        pack2((T*)nullptr, s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDV / 16; d++) {
        u32 r[4];
        load_transposed(r, stage + kKeys + value + n * 16 * kPitchV + d * 32);
        multiply(out[2 * d], p, r[0], r[1], (T*)nullptr);
        multiply(out[2 * d + 1], p, r[2], r[3], (T*)nullptr);
      }
    }
  }
  copy_wait<0>();
#pragma unroll
  for (int e = 0; e < 2; e++) {
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 1);
    sum[e] += __shfl_xor_sync(FULL_WARP, sum[e], 2);
    const float inverse = inverse_of(sum[e]);
    const int s = s0 + e * 8;
    if (s >= g.S) continue;
    T* y = g.y + b * g.y_b + h * g.y_h + s * g.y_s;
    const bool pairs = HEAD_V % 2 == 0 && aligned(y, 4);
#pragma unroll
    for (int d = 0; d < kDV / 8; d++) {
      const int c = d * 8 + column;
      if (pairs && c < HEAD_V)
        *(u32*)(y + c) = pack2((T*)nullptr, normalized(out[d][2 * e], inverse),
                               normalized(out[d][2 * e + 1], inverse));
      else if (!pairs) {
        if (c < HEAD_V) from_float(y[c], normalized(out[d][2 * e], inverse));
        if (c + 1 < HEAD_V) from_float(y[c + 1], normalized(out[d][2 * e + 1], inverse));
      }
    }
  }
}
