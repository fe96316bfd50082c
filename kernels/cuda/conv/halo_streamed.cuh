// Convolutions of stride 1 on Hopper whose weights do not stay in shared memory, in 16-bit types.
//
// As in conv/halo_resident.cuh a slab, the rows of the padded input that a tile sees (64 channels a
// time), serves every filter tap: pixel p of the tile, rows of WIDTH_IN pixels, and a tap meet at
// pixel p
// + kh * DH * WIDTH_IN + kw * DW of the slab. A tile is TILE_H rows of STACK images; each image has
// PER blocks of 64 pixels, which begin where its part of the slab does. Columns of the tile beyond
// the output's width are computed and not stored. Warp 0 copies weights, one tap and 64 channels of
// BN output channels a time, into a ring of STAGES, warp 1 copies slabs into a ring of SLABS; two
// warpgroups share the TOTAL blocks of a tile, and what is copied. SPLIT: blocks of a cluster that
// divide the steps of a tile; each adds up and finishes a part of the sums. SHARE: blocks of a
// cluster that have neighbouring tiles, each of which copies its share of the weights for all.
//
// The generator defines: T, KH, KW, DH, DW, PT, PL, CHUNKS, LAST (products of 16 channels in the
// last chunk), WIDTH_IN, TILE_H, STACK, PER, BN, STAGES, SLABS, SPLIT, SHARE, BEHIND (bytes behind
// the weights that are there to be read alone), EARLY (the weight is constant), WHOLE_CHUNKS (N is
// a multiple of 8) and the epilogue (struct Epilogue, Columns, columns_at, finish, WIDTH 2).

constexpr int TAPS = KH * KW, HEIGHT_IN = TILE_H + (KH - 1) * DH,
              SLAB_BYTES = STACK * HEIGHT_IN * WIDTH_IN * 128,
              SLAB = (SLAB_BYTES + 1023) / 1024 * 1024;
constexpr int STEPS = CHUNKS * KH * KW, TOTAL = STACK * PER, BLOCKS = (TOTAL + 1) / 2,
              B_BYTES = BN * 128;  // BLOCKS: of the first warpgroup; the other may have one less
constexpr bool AHEAD = sizeof(Columns) * (BN / 8) <=
                       128;  // operands of the epilogue wait in registers for a tile's sums
static_assert(TOTAL > 1 && BN % 32 == 0 && (SPLIT == 1 || SHARE == 1), "tile");
template <int N>
struct Constant {
  static constexpr int value = N;
};
#if SPLIT > 1
DEV float4 from_peer(const float4* p, u32 peer) {
  float4 v;
  asm volatile(
      "{.reg .b32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, "
      "%3}, [a];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared_address(p)), "r"(peer)
      : "memory");
  return v;
}
#endif

extern "C" __global__ void __launch_bounds__(384, 1) conv_slab(PARAMETERS) {
  extern __shared__ char shared[];
  const u32 slabs = (shared_address(shared) + 1023u) & ~1023u, ring = slabs + SLABS * SLAB;
  const u32 full = ring + STAGES * B_BYTES + BEHIND, empty = full + 8 * STAGES,
            slab_full = empty + 8 * STAGES, slab_empty = slab_full + 8 * SLABS;
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0), group = warp >> 2;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++)
      barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 2 * SHARE);
    for (int i = 0; i < SLABS; i++)
      barrier_init(slab_full + 8 * i, 1), barrier_init(slab_empty + 8 * i, 2);
    barriers_ready();
  }
  if (SHARE > 1)
    cluster_arrive(), cluster_wait();
  else
    __syncthreads();

  const int part = SPLIT > 1 ? cluster_rank() : 0, peer = SHARE > 1 ? cluster_rank() : 0,
            begin = STEPS * part / SPLIT, end = STEPS * (part + 1) / SPLIT;
  const int tiles_n = (N + BN - 1) / BN, per_image = (OH + TILE_H - 1) / TILE_H,
            tiles = ((IMAGES + STACK - 1) / STACK * per_image + SHARE - 1) / SHARE * tiles_n;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0 && elected()) {
      if (!EARLY) wait_for_producers();
      int slot = 0;
      u32 phase = 0;
      for (int t = blockIdx.x / (SPLIT * SHARE); t < tiles; t += gridDim.x / (SPLIT * SHARE))
        for (int k = begin; k < end; k++) {
          wait(empty + 8 * slot, phase ^ 1);
          expect_bytes(full + 8 * slot, B_BYTES);
          const int n0 = t % tiles_n * BN + peer * (BN / SHARE);
          if (SHARE > 1)
            copy3_all(ring + slot * B_BYTES + peer * (B_BYTES / SHARE), &map_w, full + 8 * slot,
                      k / TAPS * 64, k % TAPS, n0, (u16)((1 << SHARE) - 1));
          else
            copy3(ring + slot * B_BYTES, &map_w, full + 8 * slot, k / TAPS * 64, k % TAPS, n0);
          if (++slot == STAGES) slot = 0, phase ^= 1;
        }
    } else if (warp == 1 && elected()) {
      wait_for_producers();
      int slot = 0;
      u32 phase = 0;
      for (int t = blockIdx.x / (SPLIT * SHARE); t < tiles; t += gridDim.x / (SPLIT * SHARE))
        for (int chunk = begin / TAPS; chunk * TAPS < end; chunk++) {
          const int at = t / tiles_n * SHARE + peer;
          wait(slab_empty + 8 * slot, phase ^ 1);
          expect_bytes(slab_full + 8 * slot, SLAB_BYTES);
          copy4(slabs + slot * SLAB, &map_x, slab_full + 8 * slot, chunk * 64, -PL,
                at % per_image * TILE_H - PT, at / per_image * STACK);
          if (++slot == SLABS) slot = 0, phase ^= 1;
        }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int w = group - 1, thread = threadIdx.x & 127, lane = thread & 31,
              row_warp = (warp & 3) * 16;
    const u64 a0 = descriptor(slabs), b0 = descriptor(ring);
    u32 begins[BLOCKS];  // of a block in the slab, in units of 16 bytes
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
      begins[i] =
          ((w * BLOCKS + i) / PER * (HEIGHT_IN * WIDTH_IN) + (w * BLOCKS + i) % PER * 64) * 8;
    float sum[BLOCKS][BN / 2];
    int slot = 0, slab = 0;
    u32 phase = 0, slab_phase = 0;
    wait_for_producers();  // operands of the epilogue
    const Epilogue epilogue{EPILOGUE_ARGUMENTS};
    for (int t = blockIdx.x / (SPLIT * SHARE); t < tiles; t += gridDim.x / (SPLIT * SHARE)) {
      const int n0 = t % tiles_n * BN;
      Columns columns[AHEAD ? BN / 8 : 4];
      if (AHEAD)
#pragma unroll
        for (int c = 0; c < BN / 8; c++)
          columns[c] = columns_at(epilogue, n0 + c * 8 + (lane & 3) * 2, N);
      int last = -1, last_slab = 0;
      auto multiply_chunk = [&](auto blocks, auto products, int chunk) {
        wait(slab_full + 8 * slab, slab_phase);
        const u64 a_slab = a0 + (u64)(slab * (SLAB / 16));
        const int first_tap = max(begin - chunk * TAPS, 0), end_tap = min(end - chunk * TAPS, TAPS);
        int kw = first_tap % KW, shift = (first_tap / KW * DH * WIDTH_IN + kw * DW) * 8;
#pragma unroll 1
        for (int tap = first_tap; tap < end_tap; tap++) {
          wait(full + 8 * slot, phase);
          const u64 a = a_slab + (u64)shift, b = b0 + (u64)(slot * (B_BYTES / 16));
          multiply_fence();
#pragma unroll
          for (int kk = 0; kk < products.value; kk++)
#pragma unroll
            for (int i = 0; i < blocks.value; i++)
              multiply(sum[i], a + (begins[i] + kk * 2), b + kk * 2, (last + 1 | kk) != 0);
          multiply_commit();
          multiply_wait<1>();  // the step before is done: its weights are free, and the slab of the
                               // chunk before
          if (thread < SHARE && last >= 0) {
            SHARE > 1 ? arrive_at(empty + 8 * last, thread) : arrive(empty + 8 * last);
            if (thread == 0 && tap == first_tap) arrive(slab_empty + 8 * last_slab);
          }
          last = slot;
          if (++slot == STAGES) slot = 0, phase ^= 1;
          shift += DW * 8;
          if (++kw == KW) kw = 0, shift += (DH * WIDTH_IN - KW * DW) * 8;
        }
        last_slab = slab;
        if (++slab == SLABS) slab = 0, slab_phase ^= 1;
      };
      auto multiply_tile = [&](auto blocks) {
#pragma unroll 1
        for (int chunk = begin / TAPS;
             chunk < (LAST < 4 ? CHUNKS - 1 : CHUNKS) && chunk * TAPS < end; chunk++)
          multiply_chunk(blocks, Constant<4>{}, chunk);
        if (LAST < 4 && end > (CHUNKS - 1) * TAPS)
          multiply_chunk(blocks, Constant<LAST>{}, CHUNKS - 1);
        multiply_wait<0>();
      };
      if (TOTAL % 2 == 0 || w == 0)
        multiply_tile(Constant<BLOCKS>{});
      else
        multiply_tile(Constant<TOTAL - BLOCKS>{});
      if (thread < SHARE)
        SHARE > 1 ? arrive_at(empty + 8 * last, thread) : arrive(empty + 8 * last);
      if (thread == 0) arrive(slab_empty + 8 * last_slab);

#if SPLIT > 1
      // 16 sums of a thread at a time: it has them of the same place in every part.
      float4* const staged =
          (float4*)(shared + (slabs - shared_address(shared))) + (threadIdx.x - 128);
      sync_group(1, 256);  // no products read shared memory
#pragma unroll
      for (int item = 0; item < BLOCKS * BN / 32; item++) {
        const float* const v = sum[item % BLOCKS] + item / BLOCKS * 16;
        if (item % SPLIT != part)
#pragma unroll
          for (int k = 0; k < 4; k++)
            staged[(item * 4 + k) * 256] =
                make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
      }
      cluster_sync();
#pragma unroll
      for (int item = 0; item < BLOCKS * BN / 32; item++) {
        float* const v = sum[item % BLOCKS] + item / BLOCKS * 16;
        if (item % SPLIT == part)
#pragma unroll
          for (int other = 1; other < SPLIT; other++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
              const float4 more = from_peer(staged + (item * 4 + k) * 256, (part + other) % SPLIT);
              v[4 * k] += more.x, v[4 * k + 1] += more.y, v[4 * k + 2] += more.z,
                  v[4 * k + 3] += more.w;
            }
      }
      asm volatile("barrier.cluster.arrive.release;" ::
                       : "memory");  // done with what the others have
#endif
      const int at = t / tiles_n * SHARE + peer, first = at / per_image * STACK,
                h0 = at % per_image * TILE_H;
#pragma unroll
      for (int j = 0; j < BN / 8; j += 4) {  // four chunks of 8 columns
        if (n0 + j * 8 >= N) continue;
        if (!AHEAD)
#pragma unroll
          for (int k = 0; k < 4; k++)
            columns[k] = columns_at(epilogue, n0 + (j + k) * 8 + (lane & 3) * 2, N);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
          if ((j / 4 * BLOCKS + i) % SPLIT != part) continue;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int block = w * BLOCKS + i,
                      p = block % PER * 64 + row_warp + (lane >> 2) + half * 8,
                      image = first + block / PER, oh = h0 + p / WIDTH_IN, ow = p % WIDTH_IN;
            const bool inside =
                block < TOTAL && image < IMAGES && oh < min(OH, h0 + TILE_H) && ow < OW;
            const int m = inside ? (image * OH + oh) * OW + ow
                                 : 0;  // pixels that are not are read in bounds and not stored
            u32 out[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
              const int c = j + k, n = n0 + c * 8 + (lane & 3) * 2;
              float v[2] = {sum[i][c * 4 + half * 2], sum[i][c * 4 + half * 2 + 1]};
              finish(epilogue, columns[AHEAD ? c : k], v, m, (i64)m * ldr, n, N - n);
              out[k] = pack2((T*)0, v[0], v[1]);
            }
            gather_chunks(out, lane);
            const int n = n0 + (j + (lane & 3)) * 8;
            if (inside && n < N) store8(y + m * ldy + n, out, N - n);
          }
        }
      }
#if SPLIT > 1
      cluster_wait();
#endif
    }
    if (SHARE > 1) cluster_arrive(), cluster_wait();  // others still tell this one what is free
  }
}
