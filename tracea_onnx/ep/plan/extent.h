// What a CPU kernel may touch of its operands, compared with the buffers behind them before it
// runs.
#pragma once
#include <cstdint>

#include "plan/plan.h"

namespace tracea {

struct Room {
  bool present;
  int64_t bytes;
};  // of an operand: from its address to the end of its buffer, and how many lie before it
// Throws Failure when the launch has a parameter its kernel cannot take, or would touch bytes
// outside [-before[k], rooms[k]) of operand k.
void check_extents(const LaunchSpec& launch, const int64_t* ints, const Room* rooms,
                   const int64_t* before);

}  // namespace tracea
