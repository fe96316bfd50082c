// A tensor of a caller outside of this library.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tracea {

struct HostTensor {
  const void* data;
  int32_t type;
  uint32_t rank;
  const int64_t* dims;
};
// Memory for output k of a run.
using HostOutput = void* (*)(void* context, size_t k, const int64_t* dims, size_t rank);

}  // namespace tracea
