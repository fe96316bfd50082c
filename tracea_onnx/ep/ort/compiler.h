// The callback that compiles partitions: Python's tracea_onnx.compiler.partition_compiler in a
// Python process.
#pragma once
#include <memory>
#include <string>

#include "plan/pack.h"

namespace tracea {

bool has_compiler();
// Asks the compiler about a request (a ModelProto) and parses its reply. Throws Failure with the
// compiler's line. After Ctrl-C in the compiler it is not asked again on this thread until
// `new_session`.
std::shared_ptr<const Pack> compile(const std::string& request);
void new_session();

}  // namespace tracea
