// A Plan bound to concrete input shapes: every expression evaluated, the arena laid out, every
// operand a (base, offset).
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "plan/pack.h"
#include "plan/plan.h"
#include "plan/stats.h"

namespace tracea {

// A run-time input as ORT hands it over.
struct InputTensor {
  const void* data;
  int type;
  const int64_t* dims;
  size_t rank;
};

enum class Base : uint8_t { kAbsent, kInput, kOutput, kArena, kConst, kFault, kWords };
struct Place {
  Base base;
  int index;
  int64_t offset;
};  // index: of the input or output; kConst: offset into the constants' memory

// The fixed part of a session's constants: where each const, copied initializer and blob buffer
// lies.
struct ConstantLayout {
  std::vector<int64_t> offset, bytes;
  size_t total;
};  // by buffer; offset -1 = has none

// Constants on a device that has memory of its own, in two blocks: `stays` is what run launches
// read; what only init launches use (sources of packed weights, their scratch) is in the other one,
// which goes again.
struct DeviceConstants {
  ConstantLayout stays;         // offsets in the first block; bytes: of all
  std::vector<size_t> passing;  // by buffer without such an offset: its place in the other one
  size_t passing_total = 0;
  std::vector<Blob> source;    // by buffer: what is copied there; null: nothing
  std::vector<int64_t> value;  // of the plan's expressions
};
// Throws Failure where they cannot be had.
DeviceConstants lay_out_constants(const Plan& plan, const Initializers& initializers, size_t align);

// Where a counted output and its size lie in the arena; -1 of one that is written where it belongs.
struct CountedPlace {
  int64_t source = -1, count = -1;
};

struct Bound : Counted<&Stats::live_bounds> {
  std::vector<int64_t> key;  // dims of all inputs
  std::vector<std::vector<int64_t>> output_dims;
  std::vector<size_t> input_bytes, output_bytes;  // of counted outputs the most
  std::vector<CountedPlace> counted;              // by output
  size_t arena_bytes = 0;
  std::vector<Place> operands;  // of all run launches, one after the other
  std::vector<int64_t> ints;    // idem
  std::vector<char> needed;     // of each run launch: whether it has something to write

  bool is_counted(size_t output) const { return counted[output].source >= 0; }
};

// Whether `bound` was made for inputs of these types and dims.
bool fits(const Plan& plan, const Bound& bound, const std::vector<InputTensor>& inputs);

// Checks the inputs against the plan (type, rank, symbols, fixed dims) and binds. Throws Failure
// with one line.
std::shared_ptr<const Bound> bind_plan(const Plan& plan, const ConstantLayout& constants,
                                       const std::vector<InputTensor>& inputs);

// The plans bound last, by the dims of their inputs. Safe to use from several threads.
class BoundPlans {
 public:
  // Binds unless these dims are known. Throws Failure.
  std::shared_ptr<const Bound> get(const Plan& plan, const ConstantLayout& constants,
                                   const std::vector<InputTensor>& inputs);

 private:
  static constexpr size_t kMost = 16;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Bound>> known_;  // most recent first
};

// One interval of an arena: bytes needed from the first to the last launch that touches it.
struct Interval {
  int64_t bytes;
  int first, last;
};
// Offsets of the intervals, aligned with slack, such that no two that live at the same time
// overlap; `total` gets the arena's size. Largest first, each into the smallest gap that holds it.
std::vector<int64_t> lay_out(const std::vector<Interval>& intervals, int64_t* total,
                             size_t align = kAlign);

}  // namespace tracea
