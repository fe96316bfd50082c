// What compiles partitions: tracea_onnx.compiler.partition_compiler in a Python, of this process (a
// callback) or of a child.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/pack.h"

namespace tracea {

// Whether a callback is set.
bool has_compiler();
// Whether there is a compiler: a callback, which this sets where the process has a Python with the
// package, or a child's Python. `python`: the provider option.
bool find_compiler(const std::string& python);
// Asks the compiler about a request (a ModelProto) whose constants are these, and parses its reply.
// keep: as Pack::parse has it. Throws Failure with the compiler's line. After Ctrl-C in the
// callback it is not asked again on this thread until `new_session`.
std::shared_ptr<const Pack> compile(const std::string& request, const std::vector<Blob>& constants,
                                    const std::string& python, bool keep);
void new_session();

}  // namespace tracea
