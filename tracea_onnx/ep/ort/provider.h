// The execution provider of one session.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ort/context.h"
#include "ort/graph.h"
#include "ort/options.h"
#include "plan/plan.h"
#include "plan/runtime.h"
#include "plan/stats.h"

namespace tracea {

// Metadata of our ep-devices: the backend's name, and what ORT's Python API compares with the
// provider option device_id (-1 for the host).
constexpr const char *kBackendKey = "tracea_backend", *kDeviceKey = "cuda_device_id";

struct Chosen {
  std::string backend;  // "" where ORT does not tell
  int ordinal = -1;     // of a device with memory of its own
};

struct Claim {
  std::shared_ptr<const Pack> pack;
  const Entry* entry;
  DeviceSession::Prepared prepared;
};

class Provider : public OrtEp, Counted<&Stats::live_sessions> {
 public:
  // `device`: what ORT chose for the session. Throws Failure.
  Provider(const OrtSessionOptions* session, const OrtLogger* logger, const Chosen& device);

 private:
  void get_capability(const OrtGraph* handle, OrtEpGraphSupportInfo* info);
  void compile_one(const OrtGraph* handle, const OrtNode* fused, OrtNodeComputeInfo** out,
                   OrtNode** context);
  // Claims the nodes of a compiled model: how many.
  long claim_contexts(const Graph& graph, const OrtGraph* handle, OrtEpGraphSupportInfo* info);
  // Claims If, Loop and Scan around partitions, where the device has kernels of them: how many.
  long claim_control_flow(const Graph& graph, OrtEpGraphSupportInfo* info) const;
  Claim loaded_claim(const Graph& graph) const;
  std::string path_of(const OrtGraph* graph) const;
  std::shared_ptr<const Pack> ask_compiler(const Graph& graph, bool body);

  Options options_;
  ContextOptions context_;
  Log log_;
  std::unique_ptr<DeviceSession> device_;
  std::shared_ptr<const Pack> pack_;  // of option kernel_pack
  bool warned_ = false;               // that nothing runs here
  bool control_flow_ = false;         // If, Loop and Scan may be claimed
  std::unordered_map<std::string, std::shared_ptr<const Pack>>
      replies_;  // of the compiler, by graph: ORT asks twice while it loads a session
  std::unordered_map<std::string, Claim> claims_;  // by the key of the entry's first node
  // Of compiled models: packs by their SHA-256, why one was not read, what was written.
  std::unordered_map<std::string, std::shared_ptr<const Pack>> contexts_;
  std::string unread_;
  std::unordered_set<const Pack*> written_;
  std::string compatibility_;
};

}  // namespace tracea
