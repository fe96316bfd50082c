// softmax(scale q k^T + mask) v in plain f32: 256 threads as 16 x 16, each R x R scores (rows ty + 16 i, keys tx + 16 j) and R rows of the output.
// Keys and values share one buffer, a tile of 16 R keys at a time.
constexpr int kTile = 16 * R, kD = (HEAD + 3) / 4 * 4, kDV = (HEAD_V + 63) / 64 * 64, kGroups = kDV / 64;
constexpr int kPitch = kD + 4 + (kD / 4 % 2 ? 4 : 0), kPitchV = kDV + 4, kRow = kPitch > kPitchV ? kPitch : kPitchV, kPitchP = kTile + 4;
struct alignas(16) Four { float v[4]; };

template <int SIZE, int PADDED> DEV void load_rows(float* to, int pitch, const T* from, i64 stride, int first, int rows) {
  for (int u = threadIdx.x; u < kTile * PADDED; u += 256) {
    const int r = u / PADDED, c = u % PADDED;
    to[r * pitch + c] = first + r < rows && c < SIZE ? to_float(from[(first + r) * stride + c]) : 0.f;
  }
}

DEV void attend(const Attention& g) {
  after_previous();
  extern __shared__ float shared_floats[];
  float *queries = shared_floats, *tile = queries + kTile * kPitch, *weights = tile + kTile * kRow;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int tiles = (g.S + kTile - 1) / kTile, head_index = blockIdx.x / tiles, at = blockIdx.x % tiles;
  const int b = head_index / g.H, h = head_index % g.H, kv = h / (g.H / g.KVH), m0 = at * kTile;
  const T *k = g.k + b * g.k_b + kv * g.k_h, *v = g.v + b * g.v_b + kv * g.v_h;
  load_rows<HEAD, kD>(queries, kPitch, g.q + b * g.q_b + h * g.q_h, g.q_s, m0, g.S);
  const int keys = visible_keys(g, min(m0 + kTile, g.S) - 1);
  const float log_scale = g.scale * kLog2e, log_fill = to_log2(g.fill);
  float out[R][kGroups * 4] = {}, top[R], sum[R];
#pragma unroll
  for (int i = 0; i < R; i++) top[i] = -INF, sum[i] = 0.f;

  for (int t0 = 0; t0 < keys; t0 += kTile) {
    __syncthreads();
    load_rows<HEAD, kD>(tile, kPitch, k, g.k_s, t0, g.Tk);
    __syncthreads();
    float s[R][R] = {};
#pragma unroll 4
    for (int d = 0; d < kD; d += 4) {
      Four a[R], c[R];
#pragma unroll
      for (int i = 0; i < R; i++) a[i] = *(const Four*)(queries + (ty + 16 * i) * kPitch + d), c[i] = *(const Four*)(tile + (tx + 16 * i) * kPitch + d);
#pragma unroll
      for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) s[i][j] = fmaf(a[i].v[e], c[j].v[e], s[i][j]);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = m0 + ty + 16 * i, see = visible_keys(g, row);
      const i64 mask_row = b * g.m_b + h * g.m_h + min(row, g.S - 1) * g.m_q;
      float best = top[i];
#pragma unroll
      for (int j = 0; j < R; j++) {
        const int t = t0 + tx + 16 * j;
        float x = s[i][j] * log_scale;
        if (MASK && t < g.Tk) x = masked(x, g.mask, mask_row + t * g.m_k, log_fill);
        s[i][j] = t < see ? x : -INF;
        best = fmaxf(best, s[i][j]);
      }
#pragma unroll
      for (int o = 8; o; o >>= 1) best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, o));
      const float shift = best == -INF ? 0.f : best, shrink = exp2f(top[i] - shift);
      top[i] = best;
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < R; j++) {
        const float p = exp2f(s[i][j] - shift);
        sum[i] += p;
        weights[(ty + 16 * i) * kPitchP + tx + 16 * j] = p;
      }
#pragma unroll
      for (int c = 0; c < kGroups * 4; c++) out[i][c] *= shrink;
    }
    __syncthreads();
    load_rows<HEAD_V, kDV>(tile, kPitchV, v, g.v_s, t0, g.Tk);
    __syncthreads();
#pragma unroll 2
    for (int t = 0; t < kTile; t += 4) {
      Four p[R];
#pragma unroll
      for (int i = 0; i < R; i++) p[i] = *(const Four*)(weights + (ty + 16 * i) * kPitchP + t);
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int c = 0; c < kGroups; c++) {
          const Four x = *(const Four*)(tile + (t + e) * kPitchV + c * 64 + tx * 4);
#pragma unroll
          for (int i = 0; i < R; i++)
#pragma unroll
            for (int f = 0; f < 4; f++) out[i][c * 4 + f] = fmaf(p[i].v[e], x.v[f], out[i][c * 4 + f]);
        }
    }
  }
#pragma unroll
  for (int i = 0; i < R; i++) {
#pragma unroll
    for (int o = 8; o; o >>= 1) sum[i] += __shfl_xor_sync(FULL_WARP, sum[i], o);
    const int row = m0 + ty + 16 * i;
    if (row >= g.S) continue;
    const float inverse = inverse_of(sum[i]);
    T* y = g.y + b * g.y_b + h * g.y_h + row * g.y_s;
#pragma unroll
    for (int c = 0; c < kGroups * 4; c++) {
      const int column = c / 4 * 64 + tx * 4 + c % 4;
      if (column < HEAD_V) from_float(y[column], out[i][c] * inverse);
    }
  }
}
