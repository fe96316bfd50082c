#include "ort/provider.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "ort/compatibility.h"
#include "ort/compiler.h"
#include "plan/failure.h"
#include "plan/files.h"
#include "plan/stats.h"

namespace tracea {

OrtStatus* failed(Code code, const char* line) noexcept {
  try {
    return ort.CreateStatus(int(code), (std::string(kProviderName) + ": " + line).c_str());
  } catch (...) {
    return ort.CreateStatus(int(code), "TraceaExecutionProvider: out of memory");
  }
}

namespace {

using Fit = DeviceSession::Fit;

// What ORT holds for one fused node.
struct Compiled : OrtNodeComputeInfo {
  std::shared_ptr<Executable> partition;
  size_t constants = 0;  // bytes of the model that it was made from
  std::vector<size_t> inputs,
      outputs;  // index in the fused node of each of the plan's inputs and outputs
};

// The runtime that a session gets.
const Runtime& runtime_of(const Options& options, const Chosen& device) {
  if (!options.backend.empty()) return *find_runtime(options.backend);
  const bool other = device.ordinal >= 0 || options.device_id >= 0;
  for (const Runtime* r : runtimes())
    if (r->host != other && (device.ordinal < 0 || r->name == device.backend)) return *r;
  throw Failure("this library has no backend for the device");
}

// Whether the graph stays without cycles when the nodes of each group (0, 1, ...; -1 = none) become
// one node. ORT drops every claim otherwise.
bool acyclic(const Graph& graph, const std::vector<int>& group) {
  const int n = int(graph.nodes.size());
  const auto vertex = [&](int node) {
    return group[size_t(node)] < 0 ? node : n + group[size_t(node)];
  };
  std::vector<int> producer(graph.values.size(), -1);
  for (int k = 0; k < n; k++)
    for (int v : graph.nodes[size_t(k)].outputs)
      if (v >= 0) producer[size_t(v)] = k;
  std::vector<std::vector<int>> next(size_t(2 * n));
  std::vector<int> waits(size_t(2 * n), 0), ready;
  std::vector<char> exists(size_t(2 * n), 0);
  for (int k = 0; k < n; k++) {
    exists[size_t(vertex(k))] = 1;
    for (const auto* reads : {&graph.nodes[size_t(k)].inputs, &graph.nodes[size_t(k)].captured})
      for (int v : *reads) {
        const int from = v < 0 ? -1 : producer[size_t(v)];
        if (from < 0 || vertex(from) == vertex(k)) continue;
        next[size_t(vertex(from))].push_back(vertex(k));
        waits[size_t(vertex(k))]++;
      }
  }
  size_t left = 0;
  for (int k = 0; k < 2 * n; k++) {
    left += size_t(exists[size_t(k)]);
    if (exists[size_t(k)] && !waits[size_t(k)]) ready.push_back(k);
  }
  for (; !ready.empty(); left--) {
    const int k = ready.back();
    ready.pop_back();
    for (int to : next[size_t(k)])
      if (!--waits[size_t(to)]) ready.push_back(to);
  }
  return !left;
}

// Who reads each value of a graph.
struct Uses {
  explicit Uses(const Graph& graph) : readers(graph.values.size()), output(graph.values.size(), 0) {
    for (size_t n = 0; n < graph.nodes.size(); n++)
      for (const auto* reads : {&graph.nodes[n].inputs, &graph.nodes[n].captured})
        for (int v : *reads)
          if (v >= 0) readers[size_t(v)].push_back(int(n));
    for (int v : graph.outputs)
      if (v >= 0) output[size_t(v)] = 1;
  }
  std::vector<std::vector<int>> readers;
  std::vector<char> output;  // of the graph
};

// Why an entry's tensors are not those that its nodes (`members`) exchange with the rest of the
// graph, or "". It looks at these nodes and at who reads their results, at nothing else: a graph
// may have as many entries as nodes.
std::string objection(const Graph& graph, const Uses& uses, const Entry& entry,
                      const std::vector<int>& members) {
  const std::unordered_set<int> inside(members.begin(), members.end());
  std::unordered_set<int> made, read, given;
  for (int n : members) {
    const Node& node = graph.nodes[size_t(n)];
    made.insert(node.outputs.begin(), node.outputs.end());
    for (const auto* reads : {&node.inputs, &node.captured})
      read.insert(reads->begin(), reads->end());
  }
  const auto needed = [&](int v) {
    const auto& readers = uses.readers[size_t(v)];
    return uses.output[size_t(v)] ||
           std::any_of(readers.begin(), readers.end(), [&](int n) { return !inside.count(n); });
  };
  // "" where the graph knows nothing else of the tensor's element type and rank than the plan does.
  const auto differs = [](const Border& t, const Value& v, const char* what) -> std::string {
    if (v.type && v.type != t.dtype)
      return std::string("its ") + what + " '" + t.name + "' has the element type " +
             std::to_string(t.dtype) + ", the graph's " + std::to_string(v.type);
    if (v.has_shape && int64_t(v.dims.size()) != t.rank)
      return std::string("its ") + what + " '" + t.name + "' has " + std::to_string(t.rank) +
             " dims, the graph's " + std::to_string(v.dims.size());
    return "";
  };
  for (const Border& t : entry.inputs) {
    const auto it = graph.index.find(t.name);
    if (it == graph.index.end() || !read.count(it->second) || made.count(it->second))
      return "its input '" + t.name + "' is not an input of its nodes";
    const Value& value = graph.values[size_t(it->second)];
    if (value.constant) return "its input '" + t.name + "' is a constant";
    if (const std::string other = differs(t, value, "input"); !other.empty()) return other;
  }
  for (const Border& t : entry.outputs)
    if (const auto it = graph.index.find(t.name); it != graph.index.end()) given.insert(it->second);
  for (int n : members)
    for (int v : graph.nodes[size_t(n)].outputs)
      if (v >= 0 && !given.count(v) && needed(v))
        return "it does not make '" + graph.values[size_t(v)].name + "', which is needed outside";
  for (const Border& t : entry.outputs) {
    const auto it = graph.index.find(t.name);
    if (it == graph.index.end() || !made.count(it->second))
      return "its nodes do not make its output '" + t.name + "'";
    if (!needed(it->second)) return "its output '" + t.name + "' is not needed outside";
    if (const std::string other = differs(t, graph.values[size_t(it->second)], "output");
        !other.empty())
      return other;
  }
  return "";
}

// Whether ORT runs the nodes of a session one after the other. Its parallel executor (1.31) crashes
// where several runs of a session go through a device's control flow at once.
bool in_sequence(const OrtSessionOptions* session) {
  constexpr int kSequential = 0;
  int mode = -1;  // ORT before 1.27 does not tell
  if (ort.GetSessionExecutionMode) check(ort.GetSessionExecutionMode(session, &mode));
  return mode == kSequential;
}

// Whether nodes of the provider make a result of one of the node's bodies.
bool makes_results(const OrtNode* node) {
  size_t n = 0;
  check(ort.Node_GetNumSubgraphs(node, &n));
  std::vector<const OrtGraph*> bodies(n);
  if (n) check(ort.Node_GetSubgraphs(node, bodies.data(), n, nullptr));
  for (const OrtGraph* body : bodies) {
    size_t count = 0;
    check(ort.Graph_GetNumNodes(body, &count));
    std::vector<const OrtNode*> nodes(count);
    if (count) check(ort.Graph_GetNodes(body, nodes.data(), count));
    std::unordered_set<std::string> made;
    for (const OrtNode* inner : nodes) {
      const char* provider = nullptr;
      check(ort.Node_GetEpName(inner, &provider));
      if (!provider || strcmp(provider, kProviderName) != 0) continue;
      for (std::string& name : names_of(inner, true)) made.insert(std::move(name));
    }
    check(ort.Graph_GetNumOutputs(body, &count));
    std::vector<const OrtValueInfo*> outputs(count);
    if (count) check(ort.Graph_GetOutputs(body, outputs.data(), count));
    for (const OrtValueInfo* v : outputs) {
      const char* name = nullptr;
      check(ort.GetValueInfoName(v, &name));
      if (made.count(name)) return true;
    }
  }
  return false;
}

// Whether a Scan goes along other axes than the first, for which ORT wants transposes.
bool along_other_axes(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const Attribute& a) {
    return (a.name == "scan_input_axes" || a.name == "scan_output_axes") &&
           attribute_bytes(a).find_first_not_of('\0') != std::string::npos;
  });
}

}  // namespace

Provider::Provider(const OrtSessionOptions* session, const OrtLogger* logger, const Chosen& device)
    : OrtEp{},
      options_(read_options(session)),
      context_(read_context_options(session)),
      log_{logger, options_.stderr_level} {
  for (const Runtime* r : runtimes()) r->check_options(session);
  new_session();
  if (!options_.kernel_pack.empty())
    pack_ = Pack::read(options_.kernel_pack, options_.kernel_pack_sha256, context_.write);
  ort_version_supported = ort.abi;
  GetName = [](const OrtEp*) { return kProviderName; };
  OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
    static_cast<Provider*>(self)->get_capability(graph, info);
  };
  OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t n,
                      OrtNodeComputeInfo** out, OrtNode** context) {
    for (size_t k = 0; k < n; k++)
      static_cast<Provider*>(self)->compile_one(graphs[k], fused[k], &out[k], &context[k]);
  };
  OrtEp::GetCompiledModelCompatibilityInfo = [](OrtEp* self, const OrtGraph*) {
    return static_cast<Provider*>(self)->compatibility_.c_str();
  };
  OrtEp::GetWeightlessSupport = [](const OrtEp*, int* support) { *support = kWeightless; };
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t n) {
    for (size_t k = 0; k < n; k++) delete static_cast<Compiled*>(infos[k]);
  };
  const Runtime& runtime = runtime_of(options_, device);
  options_.backend = runtime.backend();
  if (runtime.host && (device.ordinal >= 0 || options_.device_id >= 0))
    throw Failure("provider option backend=" + runtime.name + " takes no device_id");
  device_ = runtime.open(
      {session, &options_, device.ordinal >= 0 ? device.ordinal : std::max(options_.device_id, 0),
       device.ordinal >= 0,
       [log = log_](const std::string& line) { log(LogLevel::kWarning, line); }});
  control_flow_ = device_->device_memory() && in_sequence(session);
  device_->attach(*this, [](OrtEp* self) { return static_cast<Provider*>(self)->device_.get(); });
  if (const std::string line = device_->description(); !line.empty()) log_(LogLevel::kInfo, line);
  compatibility_ = Compatibility{options_.backend, device_->architecture()}.text();
  stats.sessions++;
}

std::shared_ptr<const Pack> Provider::ask_compiler(const Graph& graph, bool body) {
  const std::string digest = graph.digest(), asked = digest + (body ? "body" : "");
  const auto known = replies_.find(asked);
  if (known != replies_.end()) return known->second;
  std::vector<std::pair<std::string, std::string>> metadata = {
      {"backend", options_.backend},       {"claim", options_.claim},
      {"specs", options_.specs},           {"tf32", options_.tf32 ? "1" : "0"},
      {"bf16", options_.bf16 ? "1" : "0"}, {"cache_dir", options_.cache_dir},
      {"body", body ? "1" : "0"},          {"digest", digest}};
  const auto device = device_->metadata();
  metadata.insert(metadata.end(), device.begin(), device.end());
  std::shared_ptr<const Pack> pack;
  std::vector<Blob> constants;
  for (const Value& v : graph.values)
    if (v.constant) constants.push_back({static_cast<const char*>(v.data), v.bytes});
  try {
    pack = compile(graph.serialize(metadata), constants, options_.python, context_.write);
  } catch (const Failure& e) {
    log_(LogLevel::kError, "nothing of graph '" + graph.name + "' was compiled: " + e.what());
  }
  replies_.emplace(asked, pack);
  return pack;
}

void Provider::get_capability(const OrtGraph* handle, OrtEpGraphSupportInfo* info) {
  const Graph graph(handle);
  if (graph.nodes.empty()) return;
  if (!graph.ambiguous.empty()) {
    log_(LogLevel::kWarning,
         "graph '" + graph.name + "' is left to ONNX Runtime: " + graph.ambiguous);
    return;
  }
  const OrtNode* parent = nullptr;  // of the body of If, Loop, Scan, BeamSearch ...
  check(ort.Graph_GetParentNode(handle, &parent));
  if (parent) {
    // ORT cannot place a claimed node in the body of the one operator that it will replace by a
    // function (SequenceMap), nor in a body that came with an inlined function: the provider's
    // domain is missing there.
    const char *op = nullptr, *domain = nullptr;
    check(ort.Node_GetOperatorType(parent, &op));
    check(ort.Node_GetDomain(parent, &domain));
    if (!strcmp(op, "SequenceMap")) return;
    if (device_->device_memory() && !strcmp(domain, "com.microsoft")) {
      log_(LogLevel::kInfo, "graph '" + graph.name + "' is left to ONNX Runtime: " + op +
                                " reads on the host what its body makes");
      return;  // where the body left it, which is no address of the host's (BeamSearch,
               // GreedySearch, Sampling)
    }
    size_t n = 0;
    check(ort.Node_GetNumInputs(parent, &n));
    std::vector<const OrtValueInfo*> inputs(n);
    check(ort.Node_GetInputs(parent, inputs.data(), n));
    for (const OrtValueInfo* v : inputs) {
      const char* name = nullptr;
      if (v) check(ort.GetValueInfoName(v, &name));
      if (name && !strncmp(name, "_inlfunc_", 9)) return;
    }
  }
  const long loaded = claim_contexts(graph, handle, info);
  std::unordered_map<std::string, int> by_key;
  for (size_t n = 0; n < graph.nodes.size(); n++)
    if (graph.nodes[n].available && !graph.nodes[n].has_body && !is_context(graph.nodes[n]))
      by_key.emplace(graph.nodes[n].key, int(n));

  long claimed = 0;
  const Uses uses(graph);
  std::vector<int> group(graph.nodes.size(), -1);  // which claim each node belongs to
  struct Candidate {
    std::vector<int> members;
    Claim claim;
    std::string why;  // it is slower than another would be
  };
  const auto mark = [&](const Candidate& c, int as) {
    for (int n : c.members) group[size_t(n)] = as;
  };
  const auto claim = [&](const std::shared_ptr<const Pack>& pack, Fit wanted) {
    std::vector<Candidate> candidates;
    const auto refused = [&](const std::string& why_not) {
      log_(LogLevel::kWarning, "a plan of graph '" + graph.name + "' does not fit: " + why_not);
    };
    for (const Entry& entry : pack->entries()) {
      std::string why;
      if (entry.backend != options_.backend || device_->fit(entry, why) != wanted) continue;
      Candidate c{{}, {pack, &entry, {}}, why};
      for (const std::string& key : entry.nodes) {
        const auto it = by_key.find(key);
        if (it == by_key.end() || group[size_t(it->second)] >= 0) break;
        c.members.push_back(it->second);
      }
      if (c.members.size() != entry.nodes.size()) continue;
      if (const std::string why_not = objection(graph, uses, entry, c.members); !why_not.empty()) {
        refused(why_not);
        continue;
      }
      // ORT ignores what fails here, and asks the CPU. So this is only where a kernel is not for
      // this device; anything else fails again in `compile_one`.
      try {
        c.claim.prepared = device_->prepare(entry, pack);
      } catch (const NoKernel& e) {
        log_(LogLevel::kError,
             "a plan of graph '" + graph.name + "' is left to ONNX Runtime: " + e.what());
        continue;
      } catch (const Failure&) {
      }
      mark(c, int(candidates.size()));
      candidates.push_back(std::move(c));
    }
    // All at once, which a compiler's own plans pass: where all of them leave no cycle, none does.
    if (!acyclic(graph, group)) {
      for (const Candidate& c : candidates) mark(c, -1);
      std::vector<Candidate> kept;
      for (Candidate& c : candidates) {
        mark(c, int(kept.size()));
        if (acyclic(graph, group)) {
          kept.push_back(std::move(c));
        } else {
          mark(c, -1);
          refused("fusing its nodes would make a cycle");
        }
      }
      candidates.swap(kept);
    }
    for (const Candidate& c : candidates) {
      const Entry& entry = *c.claim.entry;
      if (!c.why.empty())
        log_(LogLevel::kWarning, "a plan of graph '" + graph.name + "' was made for " + c.why +
                                     ": it may run slower than one made for it");
      std::vector<const OrtNode*> nodes;
      for (int n : c.members) nodes.push_back(graph.nodes[size_t(n)].handle);
      const OrtNodeFusionOptions fusion{ort.abi, !context_.write};
      check(ort.EpGraphSupportInfo_AddNodesToFuse(info, nodes.data(), nodes.size(), &fusion));
      for (const std::string& key : entry.nodes) claims_[key] = c.claim;
      claimed += long(c.members.size());
    }
  };
  if (pack_) claim(pack_, Fit::kWhole);
  if (pack_ && !claimed && !has_compiler()) claim(pack_, Fit::kSlower);  // better than none
  // Nothing runs here in silence: where bodies and the graph around them have no claim, one line is
  // a warning.
  const auto nothing = [&](const std::string& why) {
    const bool warn = !parent && claims_.empty() && !warned_;
    warned_ = warned_ || warn;
    log_(warn ? LogLevel::kWarning : LogLevel::kInfo,
         "the provider runs nothing of graph '" + graph.name + "'" + why);
  };
  if (claimed || loaded) {
  } else if (pack_ ? has_compiler() : find_compiler(options_.python)) {
    if (const auto pack = ask_compiler(graph, parent != nullptr)) {
      claim(pack, Fit::kWhole);
      if (const auto& left = pack->left(); !claimed && !left.empty())
        nothing(": " + left[0] + "; `tracea-onnx explain MODEL --backend " + options_.backend +
                "` names every node");
      else
        for (const std::string& line : left) log_(LogLevel::kInfo, "left to ONNX Runtime: " + line);
    }
  } else if (pack_) {
    nothing(": no plan of the kernel pack matches; make the pack from this model");
  } else {
    nothing(
        ", since it has no compiler; give the session a kernel_pack (`tracea-onnx optimize "
        "--pack`), or name a Python that has tracea-onnx in the provider option python or in "
        "TRACEA_PYTHON");
  }
  claimed += loaded + claim_control_flow(graph, info);
  if (parent && claimed) device_->expect_bodies();
  stats.claimed_nodes += claimed;
  log_(LogLevel::kInfo, "graph '" + graph.name + "': " + std::to_string(claimed) + " of " +
                            std::to_string(graph.nodes.size()) + " nodes claimed");
}

long Provider::claim_contexts(const Graph& graph, const OrtGraph* handle,
                              OrtEpGraphSupportInfo* info) {
  long claimed = 0;
  for (const Node& node : graph.nodes) {
    if (!node.available || !is_context(node)) continue;
    const OrtNodeFusionOptions fusion{ort.abi, true};
    check(ort.EpGraphSupportInfo_AddNodesToFuse(info, &node.handle, 1, &fusion));
    claimed++;
    // ORT ignores what fails here: `loaded_claim` says what is missing.
    try {
      const ContextPart part = read_part(node);
      if (part.main && !contexts_.count(part.pack))
        contexts_[part.pack] = load_pack(part, folder_of(path_of(handle)));
    } catch (const Failure& e) {
      unread_ = e.what();
    }
  }
  return claimed;
}

// ONNX Runtime has asked about bodies before. With its own kernel of a Loop, what an iteration
// makes on the device would go to the host and back for the next one.
long Provider::claim_control_flow(const Graph& graph, OrtEpGraphSupportInfo* info) const {
  long claimed = 0;
  if (!control_flow_) return claimed;
  for (const Node& node : graph.nodes) {
    const OrtKernelDef* kernel = nullptr;
    if (!node.available || !node.has_body || !node.domain.empty() || along_other_axes(node) ||
        !makes_results(node.handle))
      continue;
    check(ort.EpGraphSupportInfo_LookUpKernel(info, node.handle, &kernel));
    if (!kernel) continue;
    check(ort.EpGraphSupportInfo_AddSingleNode(info, node.handle));
    claimed++;
  }
  return claimed;
}

std::string Provider::path_of(const OrtGraph* graph) const {
  const std::string path = model_path(graph);
  return path.empty() ? context_.model : path;  // of a model in memory
}

// The part of a pack that a node of a compiled model stands for.
Claim Provider::loaded_claim(const Graph& graph) const {
  const Node& node = graph.nodes.front();
  const ContextPart part = read_part(node);
  const auto it = contexts_.find(part.pack);
  if (it == contexts_.end())
    throw Failure(unread_.empty() ? "the pack of node '" + node.name + "' is not in the model"
                                  : unread_);
  const std::shared_ptr<const Pack>& pack = it->second;
  if (part.entry >= pack->entries().size())
    throw Failure("the pack of node '" + node.name + "' has no such part");
  const Entry& entry = pack->entries()[part.entry];
  const std::string again = "; compile the model again with `tracea-onnx compile`";
  if (entry.backend != options_.backend)
    throw Failure("the model was compiled for the backend " + entry.backend +
                  ", and the session runs on " + options_.backend + again);
  if (!find_runtime(entry.backend)->host && !options_.trust_context)
    throw Failure(
        "the compiled model holds machine code, which is trusted like a program: where you know "
        "who made it, set the provider option ep_context to trust");
  std::string why;
  if (device_->fit(entry, why) == Fit::kNone)
    throw Failure("the model was compiled for another device" + again);
  if (const std::string why_not = objection(graph, Uses(graph), entry, {0}); !why_not.empty())
    throw Failure("a plan of the compiled model does not fit: " + why_not);
  return {pack, &entry, device_->prepare(entry, pack)};
}

void Provider::compile_one(const OrtGraph* handle, const OrtNode* fused, OrtNodeComputeInfo** out,
                           OrtNode** context) {
  const Graph graph(handle);
  if (graph.nodes.empty()) throw Failure("internal: ORT asks to compile no node");
  const bool loaded = is_context(graph.nodes.front());
  const auto it = claims_.find(graph.nodes.front().key);
  if (!loaded && it == claims_.end())
    throw Failure("internal: ORT asks to compile nodes that were not claimed (first: '" +
                  graph.nodes.front().name + "')");
  const Claim claim = loaded ? loaded_claim(graph) : it->second;
  auto plan = claim.prepared.plan;
  if (!plan)
    plan = Plan::parse(*claim.entry, claim.pack, device_->variant(),
                       loaded && !options_.trust_context);

  auto compiled = std::make_unique<Compiled>();
  compiled->ort_version_supported = ort.abi;
  compiled->CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) {
    if (static_cast<Compiled*>(self)->constants >= kWorthReturning)
      return_free_memory();  // ORT has dropped what was packed
    *state = self;
  };
  compiled->ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  compiled->Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) {
    return guarded(
        [&] {
          auto& c = *static_cast<Compiled*>(self);
          c.partition->compute(context, c.inputs, c.outputs);
        },
        Code::kInvalidArgument);
  };
  const auto positions = [&](bool outputs, const std::vector<TensorSpec>& wanted) {
    const std::vector<std::string> names = names_of(fused, outputs);
    std::unordered_map<std::string, size_t> place;
    for (size_t k = 0; k < names.size(); k++) place.emplace(names[k], k);
    std::vector<size_t> at;
    for (const TensorSpec& t : wanted) {
      const auto p = place.find(t.name);
      if (p == place.end())
        throw Failure("plan '" + plan->name + "': '" + t.name + "' is not " +
                      (outputs ? "an output" : "an input") + " of the fused node");
      at.push_back(p->second);
    }
    return at;
  };
  compiled->inputs = positions(false, plan->inputs);
  compiled->outputs = positions(true, plan->outputs);
  const auto initializer = [&](const std::string& name) -> Blob {
    const auto v = graph.index.find(name);
    if (v == graph.index.end() || !graph.values[size_t(v->second)].constant)
      throw Failure("plan '" + plan->name + "': '" + name + "' is not a constant of the model");
    const Value& value = graph.values[size_t(v->second)];
    compiled->constants += value.bytes;
    return {static_cast<const char*>(value.data), value.bytes};
  };
  compiled->partition = device_->compile(*claim.entry, plan, initializer);
  stats.partitions++;
  if (context_.write && !loaded) {
    if (!ort.CreateNode) throw Failure("this build of ONNX Runtime writes no compiled models");
    const bool main = written_.insert(claim.pack.get()).second;
    *context = context_node(fused, *claim.pack, size_t(claim.entry - claim.pack->entries().data()),
                            main, context_, model_path(handle));
  }
  *out = compiled.release();
}

}  // namespace tracea
