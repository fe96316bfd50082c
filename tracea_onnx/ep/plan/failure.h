// Errors inside the provider are exceptions of this one type; the ABI boundary turns them into an
// OrtStatus with the same line.
#pragma once
#include <stdexcept>
#include <string>

namespace tracea {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tracea
