// Convolutions of few input channels (a network's first layer) in 16-bit types on the tensor cores:
// wgmma where WGMMA, else mma.sync.
//
// A block computes TILE_H x TILE_W output pixels times BN channels, 16 pixels of a row (a run) per
// fragment. The patch of the image that they see lies in shared memory with CP channels a pixel, so
// that ldmatrix reads operands of the product straight from it: 16 bytes are one unit of k, a
// filter tap of 8 channels or two neighbouring taps of 4. Weights stay in shared memory while the
// block goes from tile to tile; the next patch is copied while one is multiplied. For wgmma they
// lie as 8 channels x 1 unit in 128 bytes, all channels of a unit together.
//
// The generator defines: T, MMA_TYPE, WGMMA, RESIDENT (blocks a multiprocessor has), IC, KH, KW,
// SH, SW, DH, DW, CP, MT (runs of 16 pixels a warp has), RUNS (of a tile that lie side by side),
// BN, EARLY (the weight is constant), WHOLE_CHUNKS (OC is a multiple of 8), Y_VECTOR and the
// epilogue (Columns, columns_at, finish, WIDTH 2).

constexpr int TAPS = 8 / CP, ROW_UNITS = (KW + TAPS - 1) / TAPS, UNITS = KH * ROW_UNITS,
              STEPS = (UNITS + 1) / 2;
constexpr int TILE_H = 4 * MT / RUNS, TILE_W = 16 * RUNS;
constexpr int PATCH_H = (TILE_H - 1) * SH + (KH - 1) * DH + 1,
              PATCH_W = ((TILE_W - 1) * SW + (ROW_UNITS * TAPS - 1) * DW + 2) / 2 * 2;
constexpr int WEIGHT_PITCH = STEPS * 32 + (WGMMA ? 0 : 16),
              PATCH_BYTES = (PATCH_H * PATCH_W * CP * 2 + 15) / 16 * 16;  // bytes
constexpr int NT = BN / 8;
constexpr int ACROSS = PATCH_W < 128 ? PATCH_W : 128, DOWN = 128 / ACROSS,
              SPANS = (PATCH_W + ACROSS - 1) / ACROSS, ROUNDS = (PATCH_H + DOWN - 1) / DOWN;
static_assert(TAPS == 1 || (SW % 2 == 0 && DW == 1),
              "two taps of 8 bytes each must be aligned together");

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEV void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEV void copy_pixel(u32 to, const T* from, int bytes) {  // the rest of the CP channels becomes zero
  if (CP == 8)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
DEV void ldmatrix(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
// Bytes from a pixel's place in the patch to unit u of its window; whether the unit's second tap
// lies beyond the window; whether all of it does.
DEV constexpr int unit_offset(int u) {
  return u < UNITS ? ((u / ROW_UNITS) * DH * PATCH_W + u % ROW_UNITS * TAPS * DW) * CP * 2 : 0;
}
DEV constexpr bool half_unit(int u) {
  return TAPS == 2 && KW % 2 == 1 && u < UNITS && u % ROW_UNITS == ROW_UNITS - 1;
}

#if !WGMMA
DEV void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

extern "C" __global__ void __launch_bounds__(128, RESIDENT) conv_few(PARAMETERS) {
  extern __shared__ __align__(128) char shared[];
  const u32 weights = shared_address(shared), patches = weights + BN * WEIGHT_PITCH;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n0 = blockIdx.y * BN;
  const int tiles_w = (OW + TILE_W - 1) / TILE_W, tiles_h = (OH + TILE_H - 1) / TILE_H,
            tiles = N * tiles_h * tiles_w;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!EARLY)
    asm volatile("griddepcontrol.wait;" ::
                     : "memory");  // constant weights need not wait for the kernel before
#endif
#pragma unroll 8
  for (int k = 0; k < (BN * STEPS * 2 + 127) / 128; k++) {
    const int i = k * 128 + threadIdx.x;
    if (i >= BN * STEPS * 2) continue;
    const int oc = i / (STEPS * 2), u = i % (STEPS * 2), kh = u / ROW_UNITS,
              kw = u % ROW_UNITS * TAPS;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (n0 + oc < OC && u < UNITS) {
      const T* from = w + (((i64)(n0 + oc) * KH + kh) * KW + kw) * 8;
      if (TAPS == 1) {
        v = *(const uint4*)from;
      } else {
        const uint2 first = *(const uint2*)from;
        v.x = first.x, v.y = first.y;
        if (kw + 1 < KW) {
          const uint2 second = *(const uint2*)(from + 8);
          v.z = second.x, v.w = second.y;
        }
      }
    }
    *(uint4*)(shared +
              (WGMMA ? (u * NT + oc / 8) * 128 + oc % 8 * 16 : oc * WEIGHT_PITCH + u * 16)) = v;
  }
#if WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  // Every thread has a column of the patch (some of them, where it is wide) and every DOWN-th row
  // of it.
  const int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
  auto fetch_patch = [&](int tile, u32 to) {
    const int image = tile / (tiles_h * tiles_w), rest = tile - image * (tiles_h * tiles_w);
    const int top = rest / tiles_w * TILE_H * SH - PT, left = rest % tiles_w * TILE_W * SW - PL;
    const T* const first = x + image * x_ns + (top + down) * x_rs + (left + across) * x_cs;
#pragma unroll
    for (int span = 0; span < SPANS; span++)
#pragma unroll
      for (int k = 0; k < ROUNDS; k++) {
        const int row = k * DOWN + down, column = span * ACROSS + across;
        if (down >= DOWN || row >= PATCH_H || column >= PATCH_W) continue;
        const bool inside = (u32)(top + row) < (u32)IH && (u32)(left + column) < (u32)IW;
        copy_pixel(to + (row * PATCH_W + column) * (CP * 2),
                   inside ? first + k * DOWN * x_rs + span * ACROSS * x_cs : x,
                   inside ? IC * 2 : 0);
      }
  };
  const Epilogue epilogue{EPILOGUE_ARGUMENTS};
  Columns columns[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) columns[j] = columns_at(epilogue, n0 + j * 8 + (lane & 3) * 2, OC);
  int buffer = 0;
  if (blockIdx.x < tiles) fetch_patch(blockIdx.x, patches);
  copy_commit();
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
    copy_wait<0>();
    __syncthreads();  // this patch and the weights have come, and nobody reads the other patch any
                      // more
    if (tile + (int)gridDim.x < tiles)
      fetch_patch(tile + gridDim.x, patches + (buffer ^ 1) * PATCH_BYTES);
    copy_commit();
    const int image = tile / (tiles_h * tiles_w), rest = tile - image * (tiles_h * tiles_w);
    const int row0 = rest / tiles_w * TILE_H, column0 = rest % tiles_w * TILE_W;
    // Results of 16 pixels, run i of this warp's, through the epilogue to y.
    auto finish_run = [&](int i, const float (&sum)[NT][4]) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int run = warp * MT + i, oh = row0 + run / RUNS,
                  ow = column0 + run % RUNS * 16 + (lane >> 2) + half * 8, h = min(oh, OH - 1),
                  v = min(ow, OW - 1), m = (image * OH + h) * OW + v;
        const i64 full = image * r_ns + h * r_rs + v * r_cs;
        T* const to = y + image * y_ns + h * y_rs + v * y_cs + n0 + (lane & 3) * 8;
#pragma unroll
        for (int j = 0; j < NT;
             j += 4) {  // four chunks of 8 channels, of which 16 channels have two
          u32 o[4] = {0, 0, 0, 0};
#pragma unroll
          for (int k = 0; k < 4 && j + k < NT; k++) {
            const int n = n0 + (j + k) * 8 + (lane & 3) * 2;
            float pair[2] = {sum[j + k][half * 2], sum[j + k][half * 2 + 1]};
            finish(epilogue, columns[j + k], pair, m, full, n, OC - n);
            o[k] = pack2((T*)0, pair[0], pair[1]);
          }
          gather_chunks(o, lane);
          const int n = n0 + (j + (lane & 3)) * 8;
          if (oh < OH && ow < OW && j + (lane & 3) < NT && n < OC) store8(to + j * 8, o, OC - n);
        }
      }
    };
    const u32 pixel = patches + buffer * PATCH_BYTES + (lane & 15) * SW * (CP * 2);
    // Pixels of run i at step s of k. What lies beyond the window is multiplied by zero weights,
    // and must not be an infinity.
    auto load_pixels = [&](u32(&a)[4], int i, int s) {
      const int run = warp * MT + i;
      ldmatrix(a, pixel + (run / RUNS * (SH * PATCH_W) + run % RUNS * (16 * SW)) * (CP * 2) +
                      (lane < 16 ? unit_offset(2 * s) : unit_offset(2 * s + 1)));
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const int u = 2 * s + q / 2;
        if (u >= UNITS) a[q] = 0;
        if (half_unit(u) && (lane & 2)) a[q] = 0;
      }
    };
#if WGMMA
#pragma unroll 1
    for (int i = 0; i < MT; i++) {
      u32 a[STEPS][4];
#pragma unroll
      for (int s = 0; s < STEPS; s++) load_pixels(a[s], i, s);
      float sum[NT][4];
      const u64 filter = (u64)(weights >> 4) | (u64)(NT * 8) << 16 | 8ull << 32;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int s = 0; s < STEPS; s++) multiply(sum, a[s], filter + s * (2 * NT * 8), s != 0);
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::
                       : "memory");
      finish_run(i, sum);
    }
#else
    float sum[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.f;
    const u32 filter =
        weights + ((lane >> 4) * 8 + (lane & 7)) * WEIGHT_PITCH + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      u32 a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; i++) load_pixels(a[i], i, s);
#pragma unroll
      for (int j = 0; j < NT / 2; j++) ldmatrix(b[j], filter + j * (16 * WEIGHT_PITCH) + s * 32);
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
          multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < MT; i++) finish_run(i, sum[i]);
#endif
  }
}
