// The graph ORT shows, read once into plain values; node keys; and its serialisation for the
// compiler.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "ort/ort_abi.h"
#include "plan/sha256.h"

namespace tracea {

// Turns a failed ORT call into a Failure with ORT's message.
void check(OrtStatus* status);

// Names of a node's inputs or outputs; "" where there is none.
std::vector<std::string> names_of(const OrtNode* node, bool outputs);

constexpr size_t kKeyedConstantBytes = 4096;  // constants up to this size are part of a node's key

struct Dim {
  int64_t value;
  std::string symbol;
};  // value -1 = not known

struct Value {
  std::string name;
  int type = 0;  // TensorProto element type; 0 = not a tensor or unknown
  bool has_shape = false;
  std::vector<Dim> dims;
  const void* data = nullptr;  // contents of a constant, else null (a constant without elements has
                               // a non-null dummy)
  size_t bytes = 0;
  bool constant = false;  // an initializer nobody can override, with readable contents
};

struct Attribute {
  std::string name;
  int type;
  const OrtOpAttr* handle;
};

struct Node {
  const OrtNode* handle;
  std::string domain, op, name;
  bool available;  // false when another provider has it already
  std::vector<int> inputs, outputs,
      captured;  // indices into Graph::values; -1 = absent. captured: read by the node's bodies
  std::vector<Attribute> attributes;  // without graphs
  bool has_body = false;              // a control-flow node
  std::string key;                    // docs/plan-format.md, "Plan and pack"
};

struct Graph {
  explicit Graph(const OrtGraph* handle);  // throws Failure

  std::string name;
  int64_t ir_version = 0;
  std::vector<std::pair<std::string, int64_t>> opsets;
  std::vector<Value> values;
  std::unordered_map<std::string, int> index;  // value by name
  std::vector<Node> nodes;                     // topological order
  std::vector<int> inputs, outputs;
  std::string ambiguous;  // what makes names mean more than one value, or nothing: a name with a
                          // NUL in it ends there for who calls ORT

  // The ModelProto of a compile request (docs/plan-format.md, "Compiler callback").
  std::string serialize(const std::vector<std::pair<std::string, std::string>>& metadata) const;
  // Of all that a request says but the contents of large constants: equal for equal graphs,
  // wherever their constants lie in memory.
  std::string digest() const;

 private:
  std::vector<const OrtValueInfo*> handles_;  // of `values`
  int value(const OrtValueInfo* info);
  void read_node(const OrtNode* handle);
  std::string key(const Node& node) const;
  void add_value(Sha256& h, int value) const;
};

// The attribute's value in a canonical byte form (numbers little endian, strings length-prefixed,
// tensors with type and dims).
std::string attribute_bytes(const Attribute& a);

// A tensor's element type, dims and contents. Throws Failure.
struct TensorView {
  int type;
  const int64_t* dims;
  size_t rank;
  const void* data;
  size_t bytes;
};
TensorView tensor_view(const OrtValue* value);

}  // namespace tracea
