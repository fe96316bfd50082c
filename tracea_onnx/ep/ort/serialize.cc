// Graph -> ModelProto (field numbers of onnx.proto).
#include "ort/graph.h"
#include "ort/proto.h"

namespace tracea {
namespace {

// AttributeProto.type for OrtOpAttrType 1..8
constexpr int kProtoType[] = {0, 2, 7, 1, 6, 3, 8, 5, 4};

template <class T>
T at(const std::string& bytes, size_t k) {
  T v;
  memcpy(&v, bytes.data() + k * sizeof(T), sizeof v);
  return v;
}

Proto attribute(const Attribute& a) {
  const std::string v = attribute_bytes(a);
  Proto p;
  p.text(1, a.name);
  switch (a.type) {
    case 1: p.integer(3, at<int64_t>(v, 0)); break;
    case 2:
      for (size_t k = 0; k < v.size() / 8; k++) p.integer(8, at<int64_t>(v, k));
      break;
    case 3: p.real(2, at<float>(v, 0)); break;
    case 4:
      for (size_t k = 0; k < v.size() / 4; k++) p.real(7, at<float>(v, k));
      break;
    case 5: p.text(4, v); break;
    case 6:  // null-terminated, one after the other
      for (size_t start = 0; start < v.size(); start = v.find('\0', start) + 1) {
        const size_t stop = v.find('\0', start);
        p.text(9, v.substr(start, stop == std::string::npos ? stop : stop - start));
        if (stop == std::string::npos) break;
      }
      break;
    case 8: {
      int type;
      uint64_t rank;
      memcpy(&type, v.data(), 4);
      memcpy(&rank, v.data() + 4, 8);
      Proto t;
      for (size_t k = 0; k < rank; k++) {
        int64_t d;
        memcpy(&d, v.data() + 12 + 8 * k, 8);
        t.integer(1, d);
      }
      t.integer(2, type).bytes(9, v.data() + 12 + 8 * rank, v.size() - 12 - 8 * rank);
      p.message(5, t);
      break;
    }
    default: break;
  }
  return p.integer(20, kProtoType[a.type >= 0 && a.type <= 8 ? a.type : 0]);
}

Proto value_info(const Value& v) {
  Proto info;
  info.text(1, v.name);
  if (!v.type) return info;
  Proto tensor;
  tensor.integer(1, v.type);
  if (v.has_shape) {
    Proto shape;
    for (const Dim& d : v.dims) {
      Proto dim;
      if (d.value >= 0)
        dim.integer(1, d.value);
      else if (!d.symbol.empty())
        dim.text(2, d.symbol);
      shape.message(1, dim);
    }
    tensor.message(2, shape);
  }
  return info.message(2, Proto().message(1, tensor));
}

// A constant by reference: external data whose offset is its address.
Proto initializer(const Value& v) {
  Proto t;
  for (const Dim& d : v.dims) t.integer(1, d.value);
  t.integer(2, v.type).text(8, v.name);
  const auto entry = [&t](const char* key, const std::string& value) {
    t.message(13, Proto().text(1, key).text(2, value));
  };
  entry("location", "tracea:memory");
  entry("offset", std::to_string(reinterpret_cast<uintptr_t>(v.data)));
  entry("length", std::to_string(v.bytes));
  return t.integer(14, 1);
}

}  // namespace

std::string Graph::serialize(
    const std::vector<std::pair<std::string, std::string>>& metadata) const {
  const auto value_name = [this](int k) { return k < 0 ? std::string() : values[size_t(k)].name; };
  Proto graph;
  for (const Node& n : nodes) {
    Proto p;
    for (int k : n.inputs) p.text(1, value_name(k));
    for (int k : n.captured) p.text(1, value_name(k));
    for (int k : n.outputs) p.text(2, value_name(k));
    p.text(3, n.name).text(4, n.op);
    for (const Attribute& a : n.attributes) p.message(5, attribute(a));
    p.text(6, n.has_body ? "" : n.key).text(7, n.domain);
    graph.message(1, p);
  }
  graph.text(2, name);
  std::vector<char> listed(values.size(), 0);
  for (const Value& v : values)
    if (v.constant) graph.message(5, initializer(v)), listed[size_t(&v - values.data())] = 1;
  for (int k : inputs)
    if (k >= 0 && !values[size_t(k)].constant)
      graph.message(11, value_info(values[size_t(k)])), listed[size_t(k)] = 1;
  for (int k : outputs)
    if (k >= 0) graph.message(12, value_info(values[size_t(k)])), listed[size_t(k)] = 1;
  for (size_t k = 0; k < values.size(); k++)
    if (!listed[k]) graph.message(13, value_info(values[k]));

  Proto model;
  model.integer(1, ir_version).text(2, "tracea-onnx").message(7, graph);
  for (const auto& [domain, version] : opsets)
    model.message(8, Proto().text(1, domain).integer(2, version));
  for (const auto& [key, value] : metadata) model.message(14, Proto().text(1, key).text(2, value));
  return model.str();
}

}  // namespace tracea
