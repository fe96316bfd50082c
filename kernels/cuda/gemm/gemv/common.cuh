// What the GEMV kernels share.
constexpr int CHUNK = 16 / sizeof(T);  // elements of 16 bytes
DEV void unpack(uint4 w, float (&v)[CHUNK]) {
#if IS_F32
  v[0] = __uint_as_float(w.x), v[1] = __uint_as_float(w.y), v[2] = __uint_as_float(w.z),
  v[3] = __uint_as_float(w.w);
#else
  unpack2((T*)0, w.x, v[0], v[1]), unpack2((T*)0, w.y, v[2], v[3]), unpack2((T*)0, w.z, v[4], v[5]),
      unpack2((T*)0, w.w, v[6], v[7]);
#endif
}
// The elements of a chunk from `low` to `high`, and zeros: of one that reaches beyond the matrix.
DEV uint4 part_of_chunk(u64 chunk, int low, int high) {
#if IS_F32
  const u32* const at = (const u32*)chunk;
#else
  const u16* const at = (const u16*)chunk;
#endif
  u32 v[CHUNK];
#pragma unroll
  for (int e = 0; e < CHUNK; e++) v[e] = e >= low && e < high ? at[e] : 0;
#if IS_F32
  return make_uint4(v[0], v[1], v[2], v[3]);
#else
  return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
#endif
}
// The operand of many rows and that of few, how far it is to the next row and element along k of
// each, and how many rows they have.
#define WIDE_AND_NARROW                       \
  const T* const wide = WIDE_A ? a : b;       \
  const T* const narrow = WIDE_A ? b : a;     \
  const i64 wide_step = WIDE_A ? a_m : b_n;   \
  const i64 wide_k = WIDE_A ? a_k : b_k;      \
  const i64 narrow_step = WIDE_A ? b_n : a_m; \
  const i64 narrow_k = WIDE_A ? b_k : a_k;    \
  const int rows = WIDE_A ? M : N, fews = WIDE_A ? N : M
// Sums over pairs of lanes O apart, of the OF lanes that have them, each of which keeps half of the
// values while there are more than one.
template <int O, int OF, int SLOTS>
DEV void keep_half(float (&sum)[SLOTS], int lane) {
  constexpr int HALF = SLOTS * O / OF;
  if (O >= OF) return;
  if (HALF == 0) {
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], O);
    return;
  }
  const bool upper = lane & O;
#pragma unroll
  for (int q = 0; q < HALF; q++) {
    const float low = sum[q], high = sum[q + HALF],
                given = __shfl_xor_sync(0xffffffffu, upper ? low : high, O);
    sum[q] = (upper ? high : low) + given;
  }
}
// `count` elements along k of the few rows go to shared memory, element k of row c to to[place(c,
// k)]; rows that do not exist are zero. A thread has READS reads under way together where there are
// as many.
template <int FEWS, int READS, class Place>
DEV void fill(float* to, const T* from, i64 row_step, i64 k_step, int rows, int count,
              const Place& place) {
  constexpr int TURNS = READS > FEWS ? READS / FEWS : 1;
  if (TURNS > 1 && count <= 256)
    return fill<FEWS, FEWS>(to, from, row_step, k_step, rows, count, place);
#pragma unroll 1
  for (int k = threadIdx.x; k < count; k += TURNS * 256) {
    float v[TURNS][FEWS];
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int c = 0; c < FEWS; c++)
        v[i][c] = c < rows && k + i * 256 < count
                      ? to_float(from[c * row_step + (k + i * 256) * k_step])
                      : 0.f;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
#pragma unroll
      for (int c = 0; c < FEWS; c++)
        if (k + i * 256 < count) to[place(c, k + i * 256)] = v[i][c];
  }
}
DEV void next_may_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void wait_for_producers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
