// A plan of a caller outside of this library: the first of a pack, with its constants.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>

#include "plan/failure.h"
#include "plan/pack.h"
#include "plan/plan.h"
#include "plan/runtime.h"

namespace tracea {

// The caller's arrays: bytes of a pack, and names, addresses and sizes of constants.
struct Given {
  const void* pack;
  size_t pack_bytes;
  const char* const* names;
  const void* const* data;
  const size_t* bytes;
  size_t count;
};

class GivenPlan {
 public:
  // variant: as of `Plan::parse`. Throws Failure for a plan of another backend, too.
  GivenPlan(const Given& given, const std::string& backend, const char* variant = "") {
    const auto pack = Pack::parse(given.pack, given.pack_bytes);
    if (pack->entries().empty()) throw Failure("the pack has no plan");
    plan = Plan::parse(pack->entries().front(), pack, variant);
    if (plan->runtime->name != backend)
      throw Failure("the plan is for backend '" + std::string(plan->runtime->name) + "'");
    for (size_t k = 0; k < given.count; k++)
      constants_[given.names[k]] = {static_cast<const char*>(given.data[k]), given.bytes[k]};
  }

  Blob constant(const std::string& name) const {
    const auto it = constants_.find(name);
    if (it == constants_.end()) throw Failure("initializer '" + name + "' was not given");
    return it->second;
  }

  std::shared_ptr<const Plan> plan;

 private:
  std::unordered_map<std::string, Blob> constants_;
};

}  // namespace tracea
