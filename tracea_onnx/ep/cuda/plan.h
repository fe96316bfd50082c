// A launch of a CUDA Plan as it is written (docs/cuda.md, "CUDA"): what to launch and how its
// arguments are laid out. The buffers, expressions and floats it uses are the LaunchSpec's
// operands, ints and floats, in the order the arguments use them: ints begin with the grid; a
// tensor map takes one operand, then its dims and its strides.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/json.h"
#include "plan/plan.h"

namespace tracea {

enum class CudaArgument : uint8_t {
  kPointer,
  kNull,
  kInt32,
  kInt64,
  kFloat32,
  kTensorMap,
  kFault,
  kWords
};

constexpr int kMaxMapRank = 5;

// The fixed part of a CUtensorMap. Innermost dimension first; `im2col`: lower and upper corner have
// rank - 2 entries.
struct CudaMap {
  int dtype, rank, swizzle,
      together;  // together: bytes that L2 reads of memory when a copy needs one of them
  uint32_t box[kMaxMapRank], steps[kMaxMapRank];
  bool im2col;
  int lower[kMaxMapRank], upper[kMaxMapRank];
  uint32_t channels, pixels;
};

struct CudaLaunch : RuntimeLaunch {
  int cubin;  // blob
  std::string symbol;
  unsigned block, shared_bytes, cluster;
  unsigned words = 0;   // of 32 bits, in which its blocks meet: it has an argument kWords
  bool faults = false;  // may meet bad data: has an argument kFault
  bool
      programmatic;  // starts while the launch before it ends; the kernel waits for its data itself
  std::vector<CudaArgument> arguments;
  std::vector<CudaMap> maps;

  const char* name() const override { return symbol.c_str(); }
};

inline const CudaLaunch& cuda_launch(const LaunchSpec& launch) {
  return static_cast<const CudaLaunch&>(*launch.own);
}

// As `Runtime::read_launch`.
void read_cuda_launch(const Json& row, bool init, const Plan& plan, LaunchSpec& launch);

}  // namespace tracea
