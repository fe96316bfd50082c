// Convolutions of stride 1 on Hopper whose weights fit into shared memory, in 16-bit types.
//
// A tile is TILE_H rows of an output image, WIDTH_IN pixels wide: the input's width with its
// padding. Pixel p of the tile and a filter tap meet at pixel p + kh * DH * WIDTH_IN + kw * DW of
// the slab, the TILE_H + (KH - 1) * DH rows of the padded input that the tile sees. So one copy of
// the slab (64 channels a time) serves every tap: a tap's left operand is the slab from another row
// on. Columns of the tile beyond the output's width are computed and not stored. A block keeps the
// weights of its BN output channels. Warp 0 copies slabs into a ring of STAGES, two warpgroups take
// tiles in turn.
//
// The generator defines: T, KH, KW, DH, DW, PT, PL, CHUNKS, WIDTH_IN, TILE_H, BN, STAGES, EARLY
// (the weight is constant), WHOLE_TILES, WHOLE_CHUNKS (all tiles, all chunks of 8 columns lie
// within N or their bundle), BUNDLE_COLUMNS, BUNDLE_CHANNELS (tma.cuh), PRODUCTS (of 16 channels,
// in a step), EACH (of these that columns share) and MANY (such columns), MIXED (conv/grouped.cuh
// comes along) and the epilogue (struct Epilogue, Columns, columns_at, finish, WIDTH 2).

constexpr int TAPS = KH * KW, SLAB_BYTES = (TILE_H + (KH - 1) * DH) * WIDTH_IN * 128,
              SLAB = (SLAB_BYTES + 1023) / 1024 * 1024;
constexpr int BLOCKS = 2, PANEL = 64 * 128,
              B_BYTES = BN * 128;  // 64-row blocks that one warpgroup multiplies
static_assert(TILE_H * WIDTH_IN <= 64 * BLOCKS && BN % 64 == 0, "tile");

extern "C" __global__ void __launch_bounds__(384, 1) conv_window(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 ring = (shared_address(shared) + 1023u) & ~1023u, kept = ring + STAGES * SLAB;
  const u32 full = kept + TAPS * CHUNKS * B_BYTES, empty = full + 8 * STAGES,
            kept_full = empty + 8 * STAGES;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0), group = warp >> 2;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 1);
    for (int i = 0; i < TAPS * CHUNKS; i++) barrier_init(kept_full + 8 * i, 1);
    barriers_ready();
  }
  __syncthreads();

  const int tiles_n = column_tiles<BN>(N), column = blockIdx.x % tiles_n,
            first = blockIdx.x / tiles_n, step = gridDim.x / tiles_n;
  const int per_image = (OH + TILE_H - 1) / TILE_H, tiles = IMAGES * per_image;
  const TileColumns own = tile_columns<BN>(column, N);
  const int n0 = own.first, end = own.end;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0 && elected()) {
      // Constant weights need not wait for the kernel before.
      if (!EARLY) wait_for_producers();
      for (int chunk = 0; chunk < CHUNKS; chunk++)
        for (int tap = 0; tap < TAPS; tap++) {
          const int k = chunk * TAPS + tap;
          expect_bytes(kept_full + 8 * k, B_BYTES);
          copy3(kept + k * B_BYTES, &map_w, kept_full + 8 * k, chunk * 64, tap, n0);
        }
      wait_for_producers();
      int slot = 0;
      u32 phase = 0;
      for (int t = first; t < tiles; t += step)
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
          wait(empty + 8 * slot, phase ^ 1);
          expect_bytes(full + 8 * slot, SLAB_BYTES);
          copy4(ring + slot * SLAB, &map_x, full + 8 * slot, own.channel + chunk * 64, -PL,
                t % per_image * TILE_H - PT, t / per_image);
          if (++slot == STAGES) slot = 0, phase ^= 1;
        }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int w = group - 1, thread = threadIdx.x & 127, lane = thread & 31,
              row_warp = (warp & 3) * 16;
    const u64 a0 = descriptor(ring), b0 = descriptor(kept);
    float sum[BLOCKS][BN / 2] = {};    // columns that no channels belong to stay zero
    if (w == 1) arrive_group(2, 256);  // the first warpgroup goes first
    int slot = w * CHUNKS % STAGES;
    u32 phase = w * CHUNKS / STAGES & 1;
    bool fresh = true;
    wait_for_producers();  // operands of the epilogue
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    Columns columns[BN / 8];
#pragma unroll
    for (int c = 0; c < BN / 8; c++)
      columns[c] = columns_at(epilogue, n0 + c * 8 + (lane & 3) * 2, end);
    for (int t = first + w * step; t < tiles; t += 2 * step) {
      const int image = t / per_image, h0 = t % per_image * TILE_H;
      sync_group(2 + w, 256);
#pragma unroll 1
      for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (fresh)
          for (int tap = 0; tap < TAPS; tap++) wait(kept_full + 8 * (chunk * TAPS + tap), 0);
        wait(full + 8 * slot, phase);
        multiply_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
          const u64 a = a0 +
                        (u64)(slot * (SLAB / 16) + (tap / KW * DH * WIDTH_IN + tap % KW * DW) * 8),
                    b = b0 + (u64)((chunk * TAPS + tap) * (B_BYTES / 16));
#pragma unroll
          for (int kk = 0; kk < PRODUCTS; kk++)
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
              const int at = kk / EACH * MANY;  // the first column of these channels
              multiply(*(float (*)[MANY / 2])(sum[i] + at / 2), a + (i * (PANEL / 16) + kk * 2),
                       b + (at * 8 + kk * 2), (chunk | tap | kk % EACH) != 0);
            }
        }
        multiply_commit();
        if (chunk == CHUNKS - 1) arrive_group(2 + (w ^ 1), 256);
        multiply_wait<0>();
        if (thread == 0) arrive(empty + 8 * slot);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
      fresh = false;
      {  // skip the other warpgroup's tile
        const int next = slot + CHUNKS;
        phase ^= (next / STAGES) & 1;
        slot = next % STAGES;
      }
#if MIXED
      // Rows that are not stored may be what lay behind the slab, not finite: nothing to mend.
#pragma unroll
      for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int p = i * 64 + row_warp + (lane >> 2) + half * 8;
          if (p < TILE_H * WIDTH_IN && p % WIDTH_IN < OW) continue;
#pragma unroll
          for (int k = 0; k < BN / 2; k++)
            if (k / 2 % 2 == half) sum[i][k] = 0.f;
        }
#pragma unroll
      for (int i = 0; i < BLOCKS; i++)
        mend(sum[i], OWN_GROUP, [&](int k, int& m, int& n) {
          const int p = i * 64 + row_warp + (lane >> 2) + k / 2 % 2 * 8, oh = h0 + p / WIDTH_IN,
                    ow = p % WIDTH_IN;
          m = (image * OH + oh) * OW + ow, n = n0 + k / 4 * 8 + (lane & 3) * 2 + k % 2;
          return oh < min(OH, h0 + TILE_H) && ow < OW && n < end;
        });
#endif
#pragma unroll
      for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int p = i * 64 + row_warp + (lane >> 2) + half * 8, oh = h0 + p / WIDTH_IN,
                    ow = p % WIDTH_IN;
          const bool inside = oh < min(OH, h0 + TILE_H) && ow < OW;
          const int m = (image * OH + min(oh, OH - 1)) * OW + min(ow, OW - 1);
          T* const to = y + m * ldy + n0 + (lane & 3) * 8;
#pragma unroll
          for (int j = 0; j < BN / 8; j += 4) {  // four chunks of 8 columns
            if (!WHOLE_TILES && n0 + j * 8 >= end) continue;
            u32 out[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
              const int c = j + k, n = n0 + c * 8 + (lane & 3) * 2;
              float v[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
              finish(epilogue, columns[c], v, m, (i64)m * ldr, n, end - n);
              out[k] = pack2((T*)0, v[0], v[1]);
            }
            gather_chunks(out, lane);
            const int n = n0 + (j + (lane & 3)) * 8;
            if (inside && (WHOLE_TILES || n < end)) store8(to + j * 8, out, end - n);
          }
        }
    }
  }
}
