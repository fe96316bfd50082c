// What a thread does while it waits for another one that runs.
#pragma once
#include <thread>

namespace tracea {

inline void spin(int spins) {
  if (spins >= 4096) return std::this_thread::yield();
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tracea
