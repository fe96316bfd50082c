// A launch of a WebGPU Plan as it is written (docs/webgpu.md, "Launches"). The LaunchSpec's
// operands are its pointers; ints begin with the three counts of workgroups.
#pragma once
#include <string>
#include <vector>

#include "plan/json.h"
#include "plan/plan.h"

namespace tracea::webgpu {

enum class Argument : uint8_t { kPointer, kInt, kFloat, kFault };

struct Launch : RuntimeLaunch {
  int source;  // blob
  std::string symbol;
  std::vector<Argument> arguments;
  std::string signature;  // of each buffer that is bound: r, read, or w; as `Device::pipeline`
  bool faults = false;    // may meet bad data: has an argument kFault

  const char* name() const override { return symbol.c_str(); }
};

inline const Launch& webgpu_launch(const LaunchSpec& launch) {
  return static_cast<const Launch&>(*launch.own);
}

// As `Runtime::read_launch`.
void read_webgpu_launch(const Json& row, bool init, const Plan& plan, LaunchSpec& launch);

}  // namespace tracea::webgpu
