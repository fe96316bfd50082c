// Counters of this process, for tests and `tracea-onnx doctor`.
#pragma once
#include <atomic>

namespace tracea {

struct Stats {
  // bands: groups of launches that were set up to run together.
  std::atomic<long> sessions{0}, claimed_nodes{0}, partitions{0}, runs{0}, bound_plans{0},
      compile_requests{0}, threads{0}, bands{0};
  // Of what lives now. memory: bytes of constants, arenas and scratch, mapped: those that are not
  // of malloc; pool_blocks: of device memory, free ones included; modules: names of cubins that a
  // device remembers, loaded or not; addresses: sets that partitions remember; graphs: recorded
  // ones.
  std::atomic<long> live_sessions{0}, live_partitions{0}, live_bounds{0}, live_states{0},
      live_memory{0}, live_mapped{0}, live_stream_contexts{0}, live_prepared{0}, live_addresses{0},
      live_graphs{0}, live_modules{0}, live_pool_blocks{0};
};
extern Stats stats;

// A base that counts the objects that live.
template <std::atomic<long> Stats::* Counter>
struct Counted {
  Counted() { ++(stats.*Counter); }
  Counted(const Counted&) { ++(stats.*Counter); }
  Counted& operator=(const Counted&) = default;
  ~Counted() { --(stats.*Counter); }
};

}  // namespace tracea
