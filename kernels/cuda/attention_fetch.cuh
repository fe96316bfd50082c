// Asynchronous copies of 4, 8 or 16 bytes to shared memory; zeros where what is copied is not real.
template <int BYTES> DEV void fetch(u32 to, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(real ? BYTES : 0) : "memory");
}
