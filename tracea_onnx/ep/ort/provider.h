// The execution provider of one session.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpu/threads.h"
#include "cuda/session.h"
#include "ort/graph.h"
#include "ort/options.h"
#include "plan/pack.h"
#include "plan/stats.h"

namespace tracea {

// `plan` and `kernels`: of a GPU's entry, whose kernels are loaded before it is claimed.
struct Claim {
  std::shared_ptr<const Pack> pack;
  const Entry* entry;
  std::shared_ptr<const Plan> plan;
  cuda::Kernels kernels;
};

class Provider : public OrtEp, Counted<&Stats::live_sessions> {
 public:
  // `gpu`: CUDA device ORT chose for the session, or -1. Throws Failure.
  Provider(const OrtSessionOptions* session, const OrtLogger* logger, int gpu);

 private:
  void get_capability(const OrtGraph* handle, OrtEpGraphSupportInfo* info);
  void compile_one(const OrtGraph* handle, const OrtNode* fused, OrtNodeComputeInfo** out);
  std::shared_ptr<const Pack> ask_compiler(const Graph& graph, bool body);

  Options options_;
  Log log_;
  std::shared_ptr<Threads> threads_;
  std::unique_ptr<cuda::Session> cuda_;  // null on the CPU
  std::shared_ptr<const Pack> pack_;     // of option kernel_pack
  std::unordered_map<std::string, std::shared_ptr<const Pack>>
      replies_;  // of the compiler, by graph: ORT asks twice while it loads a session
  std::unordered_map<std::string, Claim> claims_;  // by the key of the entry's first node
};

}  // namespace tracea
