// Products on Hopper with few tiles: y[m, n] = epilogue(sum_k A[m, k] * B[n, k]) in 16-bit types, one tile per block and no waiting for the last wave.
//
// wgmma multiplies ROWS rows of its left operand (64 per warpgroup) by COLUMNS rows of its right one. SWAP: the weight is the left operand, so that few rows of y
// cost no more than they must. SPLIT blocks of a cluster divide k; SHARE blocks of it have neighbouring left rows and share the right operand (multicast).
// The sums of a tile meet in shared memory as f32, each block of the cluster adds up and finishes its part, always in the same order.
// The last warp copies (TMA) into a ring of STAGES. SOURCE 1: A are the pixels of a convolution, read by im2col TMA; k runs over (kh, kw, 64 channels).
//
// The generator defines: T, ROWS, COLUMNS, SWAP, SPLIT, SHARE, STAGES, RESIDENT, SOURCE, EARLY (the weight is constant), RESIDUAL, R_VECTOR, Y_VECTOR, NORMED,
// MEASURED (norms.cuh) and the epilogue (struct Epilogue, finish, touch_columns, NormInputs, WIDTH 8).

constexpr int GROUPS = ROWS / 64, WORKERS = 128 * GROUPS, CLUSTER = SPLIT * SHARE;
constexpr int LEFT_BYTES = ROWS * 128, RIGHT_BYTES = COLUMNS * 128, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int TILE_M = SWAP ? COLUMNS : ROWS, TILE_N = SWAP ? ROWS : COLUMNS;
constexpr int PITCH = SWAP ? ROWS + 4 : (COLUMNS + 31) / 32 * 32 + 8;  // floats per row of the staged tile: its writes meet no bank twice
// A part is PER_PART units of 8 columns, of which every thread finishes UNITS_EACH; 64 columns of a row, where a tile has so many, are units of neighbouring threads.
constexpr int CHUNKS = TILE_N / 8, UNITS = TILE_M * CHUNKS, PER_PART = (UNITS + 8 * SPLIT - 1) / (8 * SPLIT) * 8, UNITS_EACH = (PER_PART + WORKERS - 1) / WORKERS;
constexpr bool HELD = RESIDUAL && UNITS_EACH <= 4;  // the residual is read while the tile is multiplied
static_assert(ROWS % 64 == 0 && COLUMNS % (8 * SHARE) == 0 && COLUMNS <= 256, "tile");

DEV u32 address_in(u32 address, u32 block) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
DEV float4 load_from(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}
DEV void store8(T* y, const float (&v)[8], int count) {
  if (count >= 8) {
    *(uint4*)y = make_uint4(pack2((T*)0, v[0], v[1]), pack2((T*)0, v[2], v[3]), pack2((T*)0, v[4], v[5]), pack2((T*)0, v[6], v[7]));
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < count) from_float(y[k], v[k]);
  }
}
// Columns [begin, end) of one row by one warp, where rows of y lie anyhow: words of two where these are aligned.
DEV void store_row(T* y, const float* from, int begin, int end, int lane) {
  const int first = begin + int((u64)(y + begin) / sizeof(T) % 2);
  if (lane == 0 && first > begin && begin < end) from_float(y[begin], from[begin]);
  for (int c = first + 2 * lane; c < end; c += 64) {
    if (c + 1 < end)
      *(u32*)(y + c) = pack2((T*)0, from[c], from[c + 1]);
    else
      from_float(y[c], from[c]);
  }
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32, RESIDENT) product_split(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 skip = -shared_address(shared) & 1023u, ring = shared_address(shared) + skip, full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0);
  const int rank = CLUSTER > 1 ? cluster_rank() : 0, part = rank / SHARE, peer = rank % SHARE;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, GROUPS * SHARE);
    barriers_ready();
  }
  if (SHARE > 1)
    cluster_sync();
  else
    __syncthreads();

  // Tiles of y's rows go fastest: a weight is read from memory once.
  const int tile = blockIdx.x / CLUSTER, tiles_m = (M + TILE_M * (SWAP ? 1 : SHARE) - 1) / (TILE_M * (SWAP ? 1 : SHARE));
  const int m0 = (tile % tiles_m * (SWAP ? 1 : SHARE) + (SWAP ? 0 : peer)) * TILE_M, n0 = (tile / tiles_m * (SWAP ? SHARE : 1) + (SWAP ? peer : 0)) * TILE_N;
#if SOURCE == 1
  const int steps = KH * KW * chunks;
#else
  const int steps = (K + 63) / 64, chunks = 1, KW = 1;
#endif
  const int begin = steps * part / SPLIT, count = steps * (part + 1) / SPLIT - begin;
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  struct Unit { int row, column, m, n; bool exists; };
  auto unit = [&](int i) {  // the i-th of this thread
    const int t = i * WORKERS + threadIdx.x, at = part * PER_PART + t, r = at / CHUNKS, c = at % CHUNKS * 8;
    return Unit{r, c, m0 + r, n0 + c, t < PER_PART && at < UNITS && m0 + r < M && n0 + c < N};
  };

  if (threadIdx.x * 8 < TILE_N && n0 + threadIdx.x * 8 < N) touch_columns(epilogue, n0 + threadIdx.x * 8);

  if (warp == WORKERS / 32) {
    if (elected()) {
      // The right operand's rows are divided among the blocks that share it.
      constexpr int MINE = COLUMNS / SHARE;
      const u16 sharers = (u16)(((1 << SHARE) - 1) << (part * SHARE));
      const int right = peer * MINE;
#if SOURCE == 1
      const Window window(m0 + (SWAP ? right : 0), OH, OW, SH, SW, PT, PL);
#endif
      auto copy_weight = [&](int slot, const Step& s) {
        const u32 to = ring + slot * STAGE_BYTES + (SWAP ? 0 : LEFT_BYTES + right * 128), b = full + 8 * slot;
#if SOURCE == 1
        if (!SWAP && SHARE > 1)
          copy3_all(to, &map_w, b, s.chunk * 64, s.kh * KW + s.kw, n0 + right, sharers);
        else
          copy3(to, &map_w, b, s.chunk * 64, s.kh * KW + s.kw, n0);
#else
        if (!SWAP && SHARE > 1)
          copy2_all(to, &map_w, b, s.k * 64, n0 + right, sharers);
        else
          copy2(to, &map_w, b, s.k * 64, n0);
#endif
      };
      auto copy_rows = [&](int slot, const Step& s) {
        const u32 to = ring + slot * STAGE_BYTES + (SWAP ? LEFT_BYTES + right * 128 : 0), b = full + 8 * slot;
#if SOURCE == 1
        if (SWAP && SHARE > 1)
          copy_im2col_all(to, &map_x, b, s.chunk * 64, window.w, window.h, window.image, (u16)(s.kw * DW), (u16)(s.kh * DH), sharers);
        else
          copy_im2col(to, &map_x, b, s.chunk * 64, window.w, window.h, window.image, (u16)(s.kw * DW), (u16)(s.kh * DH));
#else
        if (SWAP && SHARE > 1)
          copy2_all(to, &map_x, b, s.k * 64, m0 + right, sharers);
        else
          copy2(to, &map_x, b, s.k * 64, m0);
#endif
      };
      // Constant weights need not wait for the kernel before.
      if (!EARLY) wait_for_producers();
      Step weight(begin, chunks, KW), row(begin, chunks, KW);
      const int ahead = min(STAGES, count);
      for (int k = 0; k < ahead; k++, weight.next(chunks, KW)) {
        expect_bytes(full + 8 * k, STAGE_BYTES);
        copy_weight(k, weight);
      }
      wait_for_producers();
      for (int k = 0; k < ahead; k++, row.next(chunks, KW)) copy_rows(k, row);
      int slot = 0;
      u32 phase = 0;
      for (int k = ahead; k < count; k++, weight.next(chunks, KW), row.next(chunks, KW)) {
        wait(empty + 8 * slot, phase);
        expect_bytes(full + 8 * slot, STAGE_BYTES);
        copy_weight(slot, weight);
        copy_rows(slot, row);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync(), cluster_sync();
    return;
  }

  const int group = warp >> 2, thread = threadIdx.x & 127, lane = thread & 31, row_warp = group * 64 + (warp & 3) * 16;
#if RESIDUAL
  float given[HELD ? UNITS_EACH : 1][WIDTH];
  if (HELD) {
    wait_for_producers();
#pragma unroll
    for (int i = 0; i < UNITS_EACH; i++) {
      const Unit u = unit(i);
      load_columns<R_VECTOR>(res + u.m * ldr + u.n, u.exists ? N - u.n : 0, given[HELD ? i : 0]);
    }
  }
#endif
#if NORMED
  wait_for_producers();
  Norms norms[(TILE_M + WORKERS - 1) / WORKERS];
#pragma unroll
  for (int i = 0; i * WORKERS < TILE_M; i++) {
    NormInputs<1> inputs;
    inputs.load(epilogue, min(m0 + i * WORKERS + int(threadIdx.x), M - 1), lane);
    norms[i] = inputs.norms(epilogue, lane);
  }
#endif
  float sum[COLUMNS / 2];
  const u64 a0 = descriptor(ring + group * 8192), b0 = descriptor(ring + LEFT_BYTES);
  int slot = 0, last = -1;
  u32 phase = 0;
  for (int k = 0; k < count; k++) {
    wait(full + 8 * slot, phase);
    const u64 a = a0 + (u64)(slot * (STAGE_BYTES / 16)), b = b0 + (u64)(slot * (STAGE_BYTES / 16));
    multiply_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) multiply(sum, a + kk * 2, b + kk * 2, (k | kk) != 0);
    multiply_commit();
    if (last >= 0) {  // the step before is done: its stage is free in every block that shares it
      multiply_wait<1>();
      if (thread < SHARE) SHARE > 1 ? arrive_at(empty + 8 * last, part * SHARE + thread) : arrive(empty + 8 * last);
    }
    last = slot;
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  multiply_wait<0>();
  sync_group(1, WORKERS);  // the ring becomes the staged tile, [TILE_M][PITCH]
  float* staged = (float*)(shared + skip);
  {
    const int r = row_warp + (lane >> 2), c = (lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
      if (SWAP) {
        float* p = staged + (j * 8 + c) * PITCH + r;
        p[0] = sum[j * 4], p[PITCH] = sum[j * 4 + 1], p[8] = sum[j * 4 + 2], p[PITCH + 8] = sum[j * 4 + 3];
      } else {
        float* p = staged + r * PITCH + j * 8 + c;
        *(float2*)p = make_float2(sum[j * 4], sum[j * 4 + 1]);
        *(float2*)(p + 8 * PITCH) = make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
      }
    }
  }
#if NORMED
  Norms* const row_norms = (Norms*)(staged + TILE_M * PITCH);
#pragma unroll
  for (int i = 0; i * WORKERS < TILE_M; i++)
    if (i * WORKERS + threadIdx.x < TILE_M) row_norms[i * WORKERS + threadIdx.x] = norms[i];
#define NORMS , row_norms[u.row]
#else
#define NORMS
#endif
  wait_for_producers();  // operands of the epilogue; and what y overwrites has been read
  if (CLUSTER > 1)
    cluster_sync();
  else
    sync_group(1, WORKERS);
  if (SPLIT > 1) {
    u32 there[SPLIT];
#pragma unroll
    for (int other = 1; other < SPLIT; other++) there[other] = address_in(ring, (part + other) % SPLIT * SHARE + peer);
#pragma unroll 4
    for (int i = 0; i < (2 * PER_PART + WORKERS - 1) / WORKERS; i++) {
      const int t = i * WORKERS + threadIdx.x, at = 2 * part * PER_PART + t;
      if (t >= 2 * PER_PART || at >= 2 * UNITS) continue;
      const u32 offset = (at / (2 * CHUNKS) * PITCH + at % (2 * CHUNKS) * 4) * 4;
      float4 v = *(const float4*)((const char*)staged + offset), a[SPLIT];
#pragma unroll
      for (int other = 1; other < SPLIT; other++) a[other] = load_from(there[other] + offset);
#pragma unroll
      for (int other = 1; other < SPLIT; other++) v.x += a[other].x, v.y += a[other].y, v.z += a[other].z, v.w += a[other].w;
      *(float4*)((char*)staged + offset) = v;  // nobody else reads this part of this block's sums
    }
    sync_group(1, WORKERS);
  }
#pragma unroll
  for (int i = 0; i < UNITS_EACH; i++) {
    const Unit u = unit(i);
    if (!u.exists) continue;
    float v[8];
    // Half of the lanes read their second 16 bytes first: no bank is met twice.
    const int flip = lane & 4;
    float* const from = staged + u.row * PITCH + u.column;
    const float4 a = *(const float4*)(from + flip), b = *(const float4*)(from + 4 - flip);
    *(float4*)v = flip ? b : a;
    *(float4*)(v + 4) = flip ? a : b;
#if RESIDUAL
    if (!HELD) load_columns<R_VECTOR>(res + u.m * ldr + u.n, N - u.n, given[0]);
    finish(epilogue, v, u.m, 0, u.n, N - u.n, given[HELD ? i : 0] NORMS);
#else
    finish(epilogue, v, u.m, u.m * ldr, u.n, N - u.n NORMS);
#endif
#if MEASURED
    static_assert(TILE_N % 64 == 0 && WORKERS % 8 == 0, "64 columns are finished by 8 neighbouring threads");
    const float2 statistics = panel_statistics(v, 0xffu << (lane & 24));
    if ((lane & 7) == 0) epilogue.y_stats[(i64)u.m * (N / 64) + u.n / 64] = statistics;
#endif
    if (Y_VECTOR) {
      store8(y + u.m * ldy + u.n, v, N - u.n);
    } else {
      *(float4*)from = make_float4(v[0], v[1], v[2], v[3]);
      *(float4*)(from + 4) = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
  if (!Y_VECTOR) {
    sync_group(1, WORKERS);
    const int from = part * PER_PART * 8, to = min(from + PER_PART * 8, UNITS * 8);
    for (int r = from / TILE_N + warp; r * TILE_N < to && m0 + r < M; r += WORKERS / 32) {
      const int end = min(min(TILE_N, to - r * TILE_N), N - n0);
      store_row(y + (m0 + r) * ldy + n0, staged + r * PITCH, max(0, from - r * TILE_N), end, lane);
    }
  }
  if (CLUSTER > 1) cluster_sync();  // no block may leave while another reads its sums or signals its barriers
}
