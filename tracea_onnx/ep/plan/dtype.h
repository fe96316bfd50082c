#pragma once
#include <cstdint>

namespace tracea {

// Element types carry ONNX's TensorProto numbers, so a Plan can name them without a table.
enum DType : int64_t {
  kF32 = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kBool = 9,
  kF16 = 10,
  kF64 = 11,
  kU32 = 12,
  kU64 = 13,
  kBF16 = 16
};

}  // namespace tracea
