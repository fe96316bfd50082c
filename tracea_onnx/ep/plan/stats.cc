#include "plan/stats.h"

#include <cstdio>

#include "ort/boundary.h"

namespace tracea {

Stats stats;

}  // namespace tracea

// JSON of the counters into `out` (at most n bytes, null-terminated); returns the length it needs.
TRACEA_EXPORT int tracea_stats(char* out, size_t n) noexcept {
  const auto& s = tracea::stats;
  const struct {
    const char* name;
    const std::atomic<long>& value;
  } all[] = {{"sessions", s.sessions},
             {"claimed_nodes", s.claimed_nodes},
             {"partitions", s.partitions},
             {"runs", s.runs},
             {"bound_plans", s.bound_plans},
             {"compile_requests", s.compile_requests},
             {"threads", s.threads},
             {"bands", s.bands},
             {"live_sessions", s.live_sessions},
             {"live_partitions", s.live_partitions},
             {"live_bounds", s.live_bounds},
             {"live_states", s.live_states},
             {"live_memory", s.live_memory},
             {"live_mapped", s.live_mapped},
             {"live_stream_contexts", s.live_stream_contexts},
             {"live_prepared", s.live_prepared},
             {"live_addresses", s.live_addresses},
             {"live_graphs", s.live_graphs},
             {"live_modules", s.live_modules},
             {"live_pool_blocks", s.live_pool_blocks}};
  size_t length = 0;  // no memory is asked for: none may be left
  const char* before = "{";
  for (const auto& c : all) {
    length += size_t(snprintf(length < n ? out + length : nullptr, length < n ? n - length : 0,
                              "%s\"%s\":%ld", before, c.name, c.value.load()));
    before = ",";
  }
  return int(length) +
         snprintf(length < n ? out + length : nullptr, length < n ? n - length : 0, "}");
}
