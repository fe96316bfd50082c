// Asynchronous copies of 4, 8 or 16 bytes to shared memory, the latter past the first cache; zeros
// where what is copied is not real.
template <int BYTES>
DEV void fetch(u32 to, const void* from, bool real) {
  if constexpr (BYTES == 16)
    copy_async(to, from, real ? 16 : 0);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(real ? BYTES : 0)
                 : "memory");
}
