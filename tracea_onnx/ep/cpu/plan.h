// A launch of a kernel family as a Plan has it (docs/plan-format.md): operands, integers and floats
// of the LaunchSpec in the family's order.
#pragma once
#include <vector>

#include "cpu/registry.h"
#include "plan/plan.h"

namespace tracea {

struct FamilyLaunch : RuntimeLaunch {
  const FamilyInfo* family = nullptr;
  const Kernel* kernel = nullptr;
  std::vector<Instr> code;
  Program program{};  // points to `code`
  bool has_program = false;

  const char* name() const override { return family->name; }
  bool check(const LaunchSpec& launch, const int64_t* ints, const Room* rooms,
             const int64_t* before) const override;
};

inline const FamilyLaunch& family_launch(const LaunchSpec& launch) {
  return static_cast<const FamilyLaunch&>(*launch.own);
}

// Throws Failure where the launch's kernel has no such variant.
void check_variant(const FamilyLaunch& launch, int64_t variant);

// As `Runtime::read_launch`. Throws Failure: an unknown family, or a kernel that `isa` lacks.
void read_family_launch(const Json& row, bool init, const Plan& plan, const char* isa,
                        LaunchSpec& launch);

}  // namespace tracea
