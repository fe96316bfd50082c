// Counters of this process, for tests and `tracea-onnx doctor`.
#pragma once
#include <atomic>

namespace tracea {

struct Stats { std::atomic<long> sessions{0}, claimed_nodes{0}, partitions{0}, runs{0}, bound_plans{0}, compile_requests{0}, threads{0}; };
extern Stats stats;

}  // namespace tracea
