// C ABI to single steps of the provider, for tests and tools: what a plan's expressions evaluate
// to, and how an arena is laid out.
#include <cstdio>
#include <cstring>

#include "ort/boundary.h"
#include "plan/bound.h"
#include "plan/failure.h"

using namespace tracea;

// Parses a pack and evaluates all expressions of one entry's plan for the given symbols. Returns
// their number, -1 with a line in `message` on failure.
TRACEA_EXPORT int64_t tracea_evaluate(const void* pack_bytes, size_t n, size_t entry,
                                      const int64_t* symbols, size_t n_symbols, int64_t* out,
                                      size_t capacity, char* message,
                                      size_t message_size) noexcept {
  return answered(int64_t(-1), message, message_size, [&] {
    const auto pack = Pack::parse(pack_bytes, n);
    if (entry >= pack->entries().size()) throw Failure("the pack has no such entry");
    const auto plan = Plan::parse(pack->entries()[entry], pack);
    if (plan->symbols.size() != n_symbols)
      throw Failure("the plan has " + std::to_string(plan->symbols.size()) + " symbols");
    const auto values = plan->evaluate({symbols, symbols + n_symbols});
    for (size_t k = 0; k < values.size() && k < capacity; k++) out[k] = values[k];
    return int64_t(values.size());
  });
}

// Offsets of n intervals (bytes, first and last launch) and the arena's size; -1 when memory is
// short.
TRACEA_EXPORT int64_t tracea_lay_out(const int64_t* bytes, const int32_t* first,
                                     const int32_t* last, size_t n, int64_t* offsets) noexcept {
  return answered(int64_t(-1), nullptr, 0, [&] {
    std::vector<Interval> intervals;
    for (size_t k = 0; k < n; k++) intervals.push_back({bytes[k], first[k], last[k]});
    int64_t total = 0;
    const auto placed = lay_out(intervals, &total);
    for (size_t k = 0; k < n; k++) offsets[k] = placed[k];
    return total;
  });
}
