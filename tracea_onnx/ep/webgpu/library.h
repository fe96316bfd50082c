// wgpu-native, a shared library that is looked for when a session first wants it.
#pragma once
#include <string>

#include "webgpu/api.h"

namespace tracea::webgpu {

// Where it is looked for before the system's own name, and behind the provider option and the
// environment.
void offer_library(const std::string& path);

// Its functions. `wanted`: a path (the provider option wgpu_library), else $TRACEA_WGPU_LIBRARY,
// the path that was offered, the wheel `wgpu` beside this package, and the system's name count, in
// this order. A process has one. Throws Failure with a line that says what is missing.
const Api& library(const std::string& wanted);

}  // namespace tracea::webgpu
