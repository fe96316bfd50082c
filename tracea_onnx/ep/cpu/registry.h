// The kernels compiled into this library, by instruction set and family name.
#pragma once
#include "families.h"

namespace tracea {

// Kernels found under the name `isa` on machines that have `needs`, which is more than `isa` where
// only some templates gain from it. `lists` is null-terminated; each entry points to one template's
// null-terminated table.
struct IsaKernels {
  const char *isa, *needs;
  const Kernel* const* const* const* lists;
};
extern const IsaKernels kIsaKernels[];  // generated; best first, ends with a null isa

// Name of the best instruction set this machine and this build have.
const char* best_isa();
// Whether the library has `isa`, or what some of its templates need, and the machine can run it.
bool isa_available(const char* isa);
// What the kernel that `find_kernel` finds needs; "" where there is none.
const char* needed(const char* isa, const char* name);
// Null when there is no such kernel. `isa` must be available. What it lacks comes from the next
// one.
const Kernel* find_kernel(const char* isa, const char* name);
// Null when there is no such family.
const FamilyInfo* find_family(const char* name);
// Its place in families.h; of a family that find_family gave (the table is one for each file that
// includes it).
size_t family_index(const FamilyInfo* family);

}  // namespace tracea
