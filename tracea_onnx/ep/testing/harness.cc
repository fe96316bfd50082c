// Runs one kernel on caller-owned memory: the C ABI the kernel tests and the tuner use. Nothing
// here runs inside a session.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "cpu/clock.h"
#include "cpu/registry.h"
#include "ort/boundary.h"
#include "plan/memory.h"

using namespace tracea;

namespace {

void run_once(const Kernel& k, Launch launch, int threads, std::vector<void*>& scratch,
              std::vector<int32_t>& words) {
  const int64_t tasks = k.tasks(launch, threads);
  std::fill(words.begin(), words.end(), 0);
  launch.words = words.data();
  std::atomic<int64_t> ticket{0};
  auto work = [&](size_t t) {
    for (int64_t i; (i = ticket.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      k.run(launch, i, tasks, scratch[t]);
  };
  std::vector<std::thread> others;
  others.reserve(size_t(threads));
  for (int t = 1; t < threads; t++)
    if (!contained([&] { others.emplace_back(work, size_t(t)); }, [](const char*) {}))
      break;  // fewer threads do as well
  work(0);
  for (auto& t : others) t.join();
}

}  // namespace

TRACEA_EXPORT const char* tracea_best_isa() noexcept { return best_isa(); }

TRACEA_EXPORT int tracea_has_isa(const char* isa) noexcept { return isa_available(isa); }

TRACEA_EXPORT int tracea_has_kernel(const char* isa, const char* name) noexcept {
  return isa_available(isa) && find_kernel(isa, name);
}

// Runs a kernel `repeat` times and writes the seconds each run took: thread CPU time for one
// thread, wall-clock time for more. Returns 0; 1 and a line in `message` when the kernel does not
// exist; 2 when the kernel reported bad data.
TRACEA_EXPORT int tracea_bench_kernel(const char* isa, const char* name, void* const* buf,
                                      const int64_t* ints, const float* floats,
                                      const Program* program, int threads, int repeat,
                                      double* seconds, char* message,
                                      size_t message_size) noexcept {
  if (!isa_available(isa))
    return snprintf(message, message_size, "instruction set %s is not available here", isa), 1;
  const Kernel* k = find_kernel(isa, name);
  if (!k) return snprintf(message, message_size, "no kernel called %s for %s", name, isa), 1;
  return answered(1, message, message_size, [&] {
    int error = 0;
    const Launch launch{buf, ints, floats, program, &error};
    const size_t bytes = k->scratch ? k->scratch(launch, threads) : 0;
    std::vector<Memory> owned;
    owned.reserve(size_t(threads));
    std::vector<void*> scratch;
    for (int t = 0; t < threads; t++) scratch.push_back(owned.emplace_back(bytes).data());
    const bool meets = k->words && k->tasks(launch, threads) > 0;
    std::vector<int32_t> words(meets ? size_t(k->words(launch, threads)) : 0);
    for (int r = 0; r < repeat; r++) {
      const double start = tracea::seconds(threads == 1);
      run_once(*k, launch, threads, scratch, words);
      seconds[r] = tracea::seconds(threads == 1) - start;
    }
    return error ? 2 : 0;
  });
}

// How many tasks the kernel would split this launch into, -1 when it does not exist.
TRACEA_EXPORT int64_t tracea_kernel_tasks(const char* isa, const char* name, void* const* buf,
                                          const int64_t* ints, const float* floats,
                                          const Program* program, int threads) noexcept {
  const Kernel* k = isa_available(isa) ? find_kernel(isa, name) : nullptr;
  int error = 0;
  const Launch launch{buf, ints, floats, program, &error};
  return k ? k->tasks(launch, threads) : -1;
}
