#include "cpu/extent.h"

#include <string>

#include "cpu/plan.h"
#include "extents.h"
#include "plan/failure.h"

namespace tracea {
namespace {

std::string text(Wide v) {
  if (v > INT64_MAX || v < INT64_MIN) return "more than 2^63";
  return std::to_string(int64_t(v));
}

}  // namespace

bool writes(const FamilyInfo* family, size_t operand) {
  return kWritten[family_index(family)] >> operand & 1;
}

bool check_extents(const LaunchSpec& launch, const int64_t* ints, const Room* rooms,
                   const int64_t* before) {
  const FamilyLaunch& l = family_launch(launch);
  const size_t family = family_index(l.family);
  const std::string kernel = std::string("'") + launch.name() + "'";
  Extent found[kMostOperands] = {};
  unsigned present = 0;
  for (size_t k = 0; k < launch.operands.size(); k++) present |= unsigned(rooms[k].present) << k;
  Wide repeats = 0;
  if (const char* wrong = kExtents[family](ints, present, found, &repeats))
    throw Failure(
        kernel + " takes no " + wrong +
        " of this size: the sizes of the inputs do not fit the model, or the plan is damaged");
  const ProgramOperands read = kProgramOperands[family];
  for (int k = read.before; l.has_program && k < l.program.n_in; k++)
    if (const size_t o = size_t(read.first + k - read.before);
        read.first < 0 || o >= launch.operands.size() || !rooms[o].present)
      throw Failure(kernel +
                    " has a program that reads an operand which is not there: the plan is damaged");
  for (size_t k = 0; k < launch.operands.size(); k++) {
    if (!rooms[k].present || found[k].low >= found[k].high) continue;
    if (before[k] % found[k].each)
      throw Failure(kernel + " has operand " + std::to_string(k) + " at byte " +
                    std::to_string(before[k]) +
                    " of its buffer, where no element starts: the plan is damaged");
    if (found[k].low < -Wide(before[k]) || found[k].high > rooms[k].bytes)
      throw Failure(
          kernel + " would touch bytes " + text(found[k].low) + " to " + text(found[k].high) +
          " of operand " + std::to_string(k) + ", which has " + std::to_string(rooms[k].bytes) +
          " (and " + std::to_string(before[k]) +
          " before it): the sizes of the inputs do not fit the model, or the plan is damaged");
  }
  bool writes = false;
  for (size_t k = 0; k < launch.operands.size(); k++)
    writes |= (kResults[family] >> k & 1) && rooms[k].present && found[k].low < found[k].high;
  if (!writes) return false;
  if (repeats > kMostRepeats)
    throw Failure(kernel + " would go over the same elements " + text(repeats) +
                  " times, more than " + std::to_string(kMostRepeats) +
                  ": the sizes of the inputs do not fit the model, or the plan is damaged");
  return true;
}

}  // namespace tracea
