#include "ort/context.h"

#include <cstdlib>
#include <cstring>

#include "ort/options.h"
#include "plan/failure.h"
#include "plan/files.h"

namespace tracea {
namespace {

constexpr const char *kDomain = "com.microsoft", *kOperator = "EPContext";
enum { kInt = 1, kString = 5 };  // OrtOpAttrType

std::string text(const Node& node, const char* name) {
  for (const Attribute& a : node.attributes)
    if (a.name == name && a.type == kString) return attribute_bytes(a);
  return "";
}
int64_t integer(const Node& node, const char* name) {
  int64_t value = 0;
  for (const Attribute& a : node.attributes)
    if (a.name == name && a.type == kInt) memcpy(&value, attribute_bytes(a).data(), sizeof value);
  return value;
}

std::vector<const char*> pointers(const std::vector<std::string>& names) {
  std::vector<const char*> out;
  for (const std::string& name : names) out.push_back(name.c_str());
  return out;
}

std::string stem(const std::string& model) {
  const std::string name = model.substr(folder_of(model).size());
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || !dot ? name : name.substr(0, dot);
}

}  // namespace

ContextOptions read_context_options(const OrtSessionOptions* session) {
  ContextOptions o;
  o.write = session_entry(session, "ep.context_enable") == "1";
  o.embed = session_entry(session, "ep.context_embed_mode") == "1";
  o.model = session_entry(session, "ep.context_file_path");
  return o;
}

bool is_context(const Node& node) {
  return node.op == kOperator && node.domain == kDomain && text(node, "source") == kProviderName;
}

ContextPart read_part(const Node& node) {
  ContextPart part;
  const std::string name = text(node, "partition_name");
  const size_t slash = name.find('/');
  if (slash != 64 || name.size() < 66 || name.size() > 73 ||
      name.find_first_not_of("0123456789", 65) != std::string::npos)
    throw Failure("node '" + node.name + "' of the compiled model names no part of a pack");
  part.pack = name.substr(0, slash);
  part.entry = size_t(strtoul(name.c_str() + slash + 1, nullptr, 10));
  part.main = integer(node, "main_context") == 1;
  part.embedded = integer(node, "embed_mode") == 1;
  if (part.main) part.content = text(node, "ep_cache_context");
  return part;
}

std::shared_ptr<const Pack> load_pack(const ContextPart& part, const std::string& folder) {
  std::string bytes = part.content;
  if (!part.embedded) {
    if (bytes.empty() || bytes.find_first_of(kPathSeparators) != std::string::npos ||
        bytes.find('\0') != std::string::npos)
      throw Failure("the compiled model names a file that does not lie beside it");
    const std::string path = folder + bytes;
    if (!read_regular_file(path, bytes))
      throw Failure("cannot read '" + path +
                    "', which the compiled model names; it must lie beside it");
  }
  auto pack = Pack::parse(bytes.data(), bytes.size());
  if (pack->sha256() != part.pack)
    throw Failure("the compiled model was made with another pack than it has; compile it again");
  return pack;
}

std::string model_path(const OrtGraph* graph) {
  const PathChar* path = nullptr;
  check(ort.Graph_GetModelPath(graph, &path));
  return utf8(path);
}

OrtNode* context_node(const OrtNode* fused, const Pack& pack, size_t entry, bool main,
                      const ContextOptions& options, const std::string& source_model) {
  std::string content;
  if (main && options.embed) {
    content = pack.bytes();
  } else if (main) {
    const std::string model = options.model.empty() ? source_model : options.model;
    if (model.empty())
      throw Failure(
          "a model in memory has no folder for its pack: set the session entry "
          "ep.context_file_path, or ep.context_embed_mode to 1");
    content = stem(model) + "_tracea_" + pack.sha256().substr(0, 16) + ".bin";
    const std::string path = folder_of(model) + content;
    if (const std::string why = write_whole_file(path, pack.bytes()); !why.empty())
      throw Failure("cannot write '" + path + "': " + why);
  }
  std::vector<OrtOpAttr*> attributes;
  const auto add = [&](const char* name, const void* data, size_t n, int type) {
    attributes.push_back(nullptr);
    check(ort.CreateOpAttr(name, data, int(n), type, &attributes.back()));
  };
  const auto add_text = [&](const char* name, const std::string& value) {
    add(name, value.data(), value.size(), kString);
  };
  const auto add_integer = [&](const char* name, int64_t value) { add(name, &value, 1, kInt); };
  if (content.size() > size_t(INT32_MAX))
    throw Failure("the pack is larger than 2 GB; set ep.context_embed_mode to 0");
  add_integer("main_context", main);
  add_integer("embed_mode", options.embed);
  add_text("ep_cache_context", content);
  add_text("ep_sdk_version", TRACEA_VERSION);
  add_text("source", kProviderName);
  add_text("partition_name", pack.sha256() + "/" + std::to_string(entry));
  const char* name = nullptr;
  check(ort.Node_GetName(fused, &name));
  const std::vector<std::string> inputs = names_of(fused, false), outputs = names_of(fused, true);
  OrtNode* node = nullptr;
  check(ort.CreateNode(kOperator, kDomain, name, pointers(inputs).data(), inputs.size(),
                       pointers(outputs).data(), outputs.size(), attributes.data(),
                       attributes.size(), &node));
  return node;
}

}  // namespace tracea
