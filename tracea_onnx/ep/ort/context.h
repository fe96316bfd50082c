// Compiled models: a node com.microsoft::EPContext in place of each partition, with a pack or the
// name of its file, and the partition's inputs and weights as its inputs (docs/plan-format.md,
// "Compiled models").
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ort/graph.h"
#include "plan/pack.h"

namespace tracea {

// What the session is asked to write.
struct ContextOptions {
  bool write = false;  // ep.context_enable
  bool embed = false;  // ep.context_embed_mode
  std::string model;   // ep.context_file_path: the compiled model's
};
ContextOptions read_context_options(const OrtSessionOptions* session);

// The part of a pack that a node stands for.
struct ContextPart {
  std::string pack;       // its SHA-256 in hexadecimal digits
  size_t entry = 0;       // which of the pack's
  bool main = false;      // the pack is here: others of its parts refer to this one
  bool embedded = false;  // content: the pack, else the name of its file
  std::string content;
};

// Whether a node is one of ours.
bool is_context(const Node& node);
// Throws Failure.
ContextPart read_part(const Node& node);
// The pack of a main part. folder: the compiled model's. Throws Failure.
std::shared_ptr<const Pack> load_pack(const ContextPart& part, const std::string& folder);
// Path of the file that a graph was read from; "" for none.
std::string model_path(const OrtGraph* graph);

// The part as a node for ONNX Runtime's compiled model; a pack beside the model is written here.
// fused: the partition's node.
OrtNode* context_node(const OrtNode* fused, const Pack& pack, size_t entry, bool main,
                      const ContextOptions& options, const std::string& source_model);

}  // namespace tracea
