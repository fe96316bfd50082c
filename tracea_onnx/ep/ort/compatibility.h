// What a compiled model says of the machine it is for, as ONNX Runtime stores it and asks about it
// before it loads the model.
#pragma once
#include <cstdio>
#include <string>

#include "plan/pack.h"

namespace tracea {

// How ONNX Runtime has the weights of compiled models: all of them as inputs of the nodes
// (OrtWeightlessSupport_ALL_OR_EXTERNAL_ONLY).
constexpr int kWeightless = 3;
constexpr const char* kWeightlessMetadata[][2] = {
    {"weightless_support", "all"}, {"weightless_supported_modes", "all_or_external_only"}};

struct Compatibility {
  std::string backend;
  int64_t architecture = 0;
  int pack = Pack::kVersion;

  std::string text() const {
    return "tracea pack=" + std::to_string(pack) + " backend=" + backend +
           " arch=" + std::to_string(architecture);
  }
  // False for a text of something else.
  bool read(const char* line) {
    char name[32];
    long long arch = 0;
    if (sscanf(line, "tracea pack=%d backend=%31s arch=%lld", &pack, name, &arch) != 3)
      return false;
    backend = name, architecture = arch;
    return true;
  }
};

}  // namespace tracea
