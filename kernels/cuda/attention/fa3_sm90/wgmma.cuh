// What attention by warpgroup products shares: operands in shared memory, results in registers.

// Keeps the compiler from moving uses of results before the wait.
template <int N>
DEV void results_ready(float (&d)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) asm volatile("" : "+f"(d[k])::"memory");
}
DEV void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
DEV float inverse_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Rows of 128 bytes with the 128-byte swizzle, groups of 8 rows 1024 bytes apart. `panel`: bytes
// between panels of 64 columns when these are the dimension that is not multiplied over. The lower
// half, in which addresses (in units of 16 bytes) add up, and the whole. An address in a cluster
// has the block's number above what it is in the block, where descriptors have the panels.
DEV u32 place(u32 address, u32 panel) {
  return (PARTS == 1 ? address : address & 0xffffffu) >> 4 | panel >> 4 << 16;
}
DEV u64 descriptor(u32 place) { return u64(64u | 1u << 30) << 32 | place; }
