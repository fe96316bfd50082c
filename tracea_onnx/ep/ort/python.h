// Pythons that can compile where no callback is set: the one of this process, or a child's.
#pragma once
#include <string>
#include <vector>

#include "plan/pack.h"

namespace tracea {

// Of this library; "" where the system does not tell.
std::string library_path();

// Whether this process has a Python, and it could import the package and set the callback.
bool attach_own_python();

// The Python for a child: `wanted` (the provider option python), else $TRACEA_PYTHON, else the one
// in whose environment this library is installed; "" where there is none.
std::string child_python(const std::string& wanted);

// The reply of a child to a request; it may ask for the contents of `constants`. `failed`: the
// reply is a line that says what went wrong. One child serves all sessions, and ends when it has
// had nothing to do for a while. Throws Failure where there is no such program, or it ends.
std::string ask_child(const std::string& python, const std::string& request,
                      const std::vector<Blob>& constants, bool& failed);

}  // namespace tracea
