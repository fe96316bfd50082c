#include "ort/graph.h"

#include "plan/failure.h"

namespace tracea {

enum {
  kAttrInt = 1,
  kAttrInts,
  kAttrFloat,
  kAttrFloats,
  kAttrString,
  kAttrStrings,
  kAttrGraph,
  kAttrTensor
};  // OrtOpAttrType
constexpr int kStringTensor = 8;

void check(OrtStatus* status) {
  if (!status) return;
  const std::string message = ort.GetErrorMessage(status);
  ort.ReleaseStatus(status);
  throw Failure(message);
}

// For calls whose failure only means "not known".
static bool succeeded(OrtStatus* status) {
  if (status) ort.ReleaseStatus(status);
  return !status;
}

TensorView tensor_view(const OrtValue* value) {
  TensorView v{};
  check(ort.GetTensorElementTypeAndShapeDataReference(value, &v.type, &v.dims, &v.rank));
  check(ort.GetTensorData(value, &v.data));
  if (v.type != kStringTensor) check(ort.GetTensorSizeInBytes(value, &v.bytes));
  return v;
}

namespace {

// Lists come as a count and a fill call.
template <class Handle, class Count, class Fill>
std::vector<const Handle*> list(Count count, Fill fill) {
  size_t n = 0;
  check(count(&n));
  std::vector<const Handle*> out(n);
  if (n) check(fill(out.data(), n));
  return out;
}

template <class T>
std::vector<T> read_many(const OrtOpAttr* a, int type) {
  size_t bytes = 0;
  succeeded(
      ort.ReadOpAttr(a, type, nullptr, 0, &bytes));  // fails, and says how many bytes it needs
  std::vector<T> out(bytes / sizeof(T));
  if (bytes) check(ort.ReadOpAttr(a, type, out.data(), bytes, &bytes));
  return out;
}

template <class T>
T read_one(const OrtOpAttr* a, int type) {
  T v{};
  size_t bytes = 0;
  check(ort.ReadOpAttr(a, type, &v, sizeof v, &bytes));
  return v;
}

struct TensorAttribute {
  explicit TensorAttribute(const OrtOpAttr* a) {
    check(ort.OpAttr_GetTensorAttributeAsOrtValue(a, &value));
  }
  ~TensorAttribute() { ort.ReleaseValue(value); }
  OrtValue* value = nullptr;
};

}  // namespace

std::vector<std::string> names_of(const OrtNode* node, bool outputs) {
  size_t n = 0;
  check(outputs ? ort.Node_GetNumOutputs(node, &n) : ort.Node_GetNumInputs(node, &n));
  std::vector<const OrtValueInfo*> infos(n);
  if (n)
    check(outputs ? ort.Node_GetOutputs(node, infos.data(), n)
                  : ort.Node_GetInputs(node, infos.data(), n));
  std::vector<std::string> names;
  for (const OrtValueInfo* info : infos) {
    const char* name = "";
    if (info) check(ort.GetValueInfoName(info, &name));
    names.emplace_back(name);
  }
  return names;
}

std::string attribute_bytes(const Attribute& a) {
  std::string out;
  const auto put = [&out](const void* p, size_t n) { out.append(static_cast<const char*>(p), n); };
  switch (a.type) {
    case kAttrInt: {
      const auto v = read_one<int64_t>(a.handle, a.type);
      put(&v, sizeof v);
      break;
    }
    case kAttrFloat: {
      const auto v = read_one<float>(a.handle, a.type);
      put(&v, sizeof v);
      break;
    }
    case kAttrInts: {
      const auto v = read_many<int64_t>(a.handle, a.type);
      put(v.data(), v.size() * sizeof(int64_t));
      break;
    }
    case kAttrFloats: {
      const auto v = read_many<float>(a.handle, a.type);
      put(v.data(), v.size() * sizeof(float));
      break;
    }
    case kAttrString:
    case kAttrStrings: {
      const auto v = read_many<char>(a.handle, a.type);
      put(v.data(), v.size());
      break;
    }
    case kAttrTensor: {
      const TensorAttribute t(a.handle);
      const TensorView v = tensor_view(t.value);
      put(&v.type, sizeof v.type);
      const uint64_t rank = v.rank;
      put(&rank, sizeof rank);
      put(v.dims, v.rank * sizeof(int64_t));
      if (v.bytes) put(v.data, v.bytes);
      break;
    }
    default: break;
  }
  return out;
}

Graph::Graph(const OrtGraph* g) {
  const char* text = nullptr;
  check(ort.Graph_GetName(g, &text));
  name = text ? text : "";
  check(ort.Graph_GetOnnxIRVersion(g, &ir_version));
  size_t n = 0;
  check(ort.Graph_GetNumOperatorSets(g, &n));
  std::vector<const char*> domains(n);
  std::vector<int64_t> versions(n);
  if (n) check(ort.Graph_GetOperatorSets(g, domains.data(), versions.data(), n));
  for (size_t k = 0; k < n; k++) opsets.emplace_back(domains[k], versions[k]);

  for (auto v : list<OrtValueInfo>([&](size_t* c) { return ort.Graph_GetNumInputs(g, c); },
                                   [&](auto p, size_t c) { return ort.Graph_GetInputs(g, p, c); }))
    inputs.push_back(value(v));
  for (auto node : list<OrtNode>([&](size_t* c) { return ort.Graph_GetNumNodes(g, c); },
                                 [&](auto p, size_t c) { return ort.Graph_GetNodes(g, p, c); }))
    read_node(node);
  for (auto v : list<OrtValueInfo>([&](size_t* c) { return ort.Graph_GetNumOutputs(g, c); },
                                   [&](auto p, size_t c) { return ort.Graph_GetOutputs(g, p, c); }))
    outputs.push_back(value(v));
  for (Node& node : nodes)
    if (node.available) node.key = key(node);
}

int Graph::value(const OrtValueInfo* info) {
  if (!info) return -1;
  const char* text = nullptr;
  check(ort.GetValueInfoName(info, &text));
  if (!text || !*text) {
    ambiguous = "a value has no name";
    return -1;
  }
  const auto [it, added] = index.emplace(text, int(values.size()));
  if (!added) {
    if (handles_[size_t(it->second)] != info)
      ambiguous = std::string("two values are called '") + text + "'";
    return it->second;
  }
  handles_.push_back(info);
  Value v;
  v.name = text;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (succeeded(ort.GetValueInfoTypeInfo(info, &type)) && type &&
      succeeded(ort.CastTypeInfoToTensorInfo(type, &tensor)) && tensor) {
    check(ort.GetTensorElementType(tensor, &v.type));
    v.has_shape = ort.TensorTypeAndShape_HasShape(tensor);
    size_t rank = 0;
    if (v.has_shape) check(ort.GetDimensionsCount(tensor, &rank));
    std::vector<int64_t> dims(rank);
    std::vector<const char*> symbols(rank);
    if (rank)
      check(ort.GetDimensions(tensor, dims.data(), rank)),
          check(ort.GetSymbolicDimensions(tensor, symbols.data(), rank));
    for (size_t k = 0; k < rank; k++)
      v.dims.push_back({dims[k], dims[k] < 0 && symbols[k] ? symbols[k] : ""});
  }
  bool constant = false;
  check(ort.ValueInfo_IsConstantInitializer(info, &constant));
  const OrtValue* contents = nullptr;
  if (constant && v.type != kStringTensor &&
      succeeded(ort.ValueInfo_GetInitializerValue(info, &contents)) && contents) {
    const TensorView t = tensor_view(contents);
    v.constant = true;
    v.type = t.type;
    v.data = t.data ? t.data : "";
    v.bytes = t.bytes;
    v.has_shape = true;
    v.dims.clear();
    for (size_t k = 0; k < t.rank; k++) v.dims.push_back({t.dims[k], ""});
  }
  values.push_back(std::move(v));
  return it->second;
}

void Graph::read_node(const OrtNode* handle) {
  Node n;
  n.handle = handle;
  const char* text = nullptr;
  check(ort.Node_GetDomain(handle, &text));
  n.domain = text ? text : "";
  check(ort.Node_GetOperatorType(handle, &text));
  n.op = text ? text : "";
  check(ort.Node_GetName(handle, &text));
  n.name = text ? text : "";
  text = nullptr;
  n.available = !succeeded(ort.Node_GetEpName(handle, &text)) || !text || !*text;
  const auto values_of = [this](auto count, auto fill) {
    std::vector<int> out;
    for (auto v : list<OrtValueInfo>(count, fill)) out.push_back(value(v));
    return out;
  };
  n.inputs = values_of([&](size_t* c) { return ort.Node_GetNumInputs(handle, c); },
                       [&](auto p, size_t c) { return ort.Node_GetInputs(handle, p, c); });
  n.outputs = values_of([&](size_t* c) { return ort.Node_GetNumOutputs(handle, c); },
                        [&](auto p, size_t c) { return ort.Node_GetOutputs(handle, p, c); });
  n.captured =
      values_of([&](size_t* c) { return ort.Node_GetNumImplicitInputs(handle, c); },
                [&](auto p, size_t c) { return ort.Node_GetImplicitInputs(handle, p, c); });
  for (auto a :
       list<OrtOpAttr>([&](size_t* c) { return ort.Node_GetNumAttributes(handle, c); },
                       [&](auto p, size_t c) { return ort.Node_GetAttributes(handle, p, c); })) {
    Attribute out{"", 0, a};
    check(ort.OpAttr_GetName(a, &text));
    out.name = text;
    if (!succeeded(ort.OpAttr_GetType(a, &out.type)) || out.type == kAttrGraph) {
      n.has_body = true;
      continue;
    }
    n.attributes.push_back(out);
  }
  nodes.push_back(std::move(n));
}

// What the compiler is told of a value: all but the contents of a large constant.
void Graph::add_value(Sha256& h, int k) const {
  if (k < 0) {
    h.add_text("");
    return;
  }
  const Value& v = values[size_t(k)];
  h.add_text(v.name).add_u64(uint64_t(v.type)).add_u64(v.has_shape ? v.dims.size() : ~uint64_t(0));
  for (const Dim& d : v.dims) h.add_u64(uint64_t(d.value)).add_text(d.symbol);
  h.add_u64(v.constant);
  if (v.constant && v.bytes <= kKeyedConstantBytes) h.add_u64(v.bytes).add(v.data, v.bytes);
}

std::string Graph::key(const Node& n) const {
  Sha256 h;
  h.add_text(n.domain).add_text(n.op).add_u64(n.attributes.size());
  for (const Attribute& a : n.attributes)
    h.add_text(a.name).add_u64(uint64_t(a.type)).add_text(attribute_bytes(a));
  for (const auto* side : {&n.inputs, &n.outputs}) {
    h.add_u64(side->size());
    for (int k : *side) add_value(h, k);
  }
  return h.hex();
}

std::string Graph::digest() const {
  Sha256 h;
  h.add_u64(nodes.size());
  for (const Node& n : nodes) {
    h.add_text(n.available ? n.key : key(n)).add_text(n.name);
    h.add_u64(n.available).add_u64(n.has_body).add_u64(n.captured.size());
    for (int k : n.captured) add_value(h, k);
  }
  for (const auto* side : {&inputs, &outputs}) {
    h.add_u64(side->size());
    for (int k : *side) add_value(h, k);
  }
  for (const auto& [domain, version] : opsets) h.add_text(domain).add_u64(uint64_t(version));
  return h.hex();
}

}  // namespace tracea
