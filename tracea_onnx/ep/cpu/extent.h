// What a CPU kernel may touch of its operands, and how often, compared with the buffers behind them
// before it runs.
#pragma once
#include <cstdint>

#include "cpu/registry.h"
#include "plan/plan.h"

namespace tracea {

// Whether a launch of the family writes this operand.
bool writes(const FamilyInfo* family, size_t operand);

// Of a family launch: as `RuntimeLaunch::check`.
bool check_extents(const LaunchSpec& launch, const int64_t* ints, const Room* rooms,
                   const int64_t* before);

}  // namespace tracea
