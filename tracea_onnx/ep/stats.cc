#include "stats.h"

#include <cstdio>

#include "boundary.h"

namespace tracea {

Stats stats;

}  // namespace tracea

// JSON of the counters into `out` (at most n bytes, null-terminated); returns the length it needs.
TRACEA_EXPORT int tracea_stats(char* out, size_t n) noexcept {
  const auto& s = tracea::stats;
  return snprintf(out, n, "{\"sessions\":%ld,\"claimed_nodes\":%ld,\"partitions\":%ld,\"runs\":%ld,\"bound_plans\":%ld,\"compile_requests\":%ld,\"threads\":%ld}", s.sessions.load(),
                  s.claimed_nodes.load(), s.partitions.load(), s.runs.load(), s.bound_plans.load(), s.compile_requests.load(), s.threads.load());
}
