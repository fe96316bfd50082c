// Seconds, for differences: of the system, or of the time that this thread has run, which is not
// changed by what else runs on the machine.
#pragma once
#include <chrono>
#include <ctime>

namespace tracea {

inline double seconds(bool of_thread) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  if (of_thread) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tracea
