#include "plan/runtime.h"

#include <algorithm>

namespace tracea {
namespace {

std::vector<const Runtime*>& all() {  // made by the first that registers itself
  static std::vector<const Runtime*> known;
  return known;
}

}  // namespace

const std::vector<const Runtime*>& runtimes() { return all(); }

const Runtime* find_runtime(const std::string& name) {
  for (const Runtime* r : all())
    if (r->name == name) return r;
  return nullptr;
}

void add_runtime(const Runtime* runtime) {
  const auto key = [](const Runtime* r) { return std::make_pair(!r->host, r->name); };
  const auto at = std::find_if(all().begin(), all().end(),
                               [&](const Runtime* r) { return key(runtime) < key(r); });
  all().insert(at, runtime);
}

}  // namespace tracea
