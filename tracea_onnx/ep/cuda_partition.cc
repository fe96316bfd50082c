#include "cuda_partition.h"

#include <algorithm>

#include "failure.h"

namespace tracea::cuda {
namespace {

constexpr Address kTensorAlign = 16;  // vector accesses and tensor maps

void copy(Address to, Address from, size_t bytes, Stream stream, const char* what) {
  if (bytes) check(driver().copy_async(to, from, bytes, stream), what);
}

Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

}  // namespace

Partition::Partition(std::shared_ptr<const Plan> plan, std::shared_ptr<Lanes> lanes, const std::function<Blob(const std::string&)>& initializer, bool graphs)
    : plan_(std::move(plan)), lanes_(std::move(lanes)), device_(lanes_->device), graphs_(graphs) {
  const Current current(device_);
  for (const LaunchSpec& l : plan_->run) faults_ |= l.cuda->faults;
  load(plan_->run, run_functions_);
  load(plan_->init, init_functions_);
  make_constants(initializer);
}

Partition::~Partition() {
  try {
    const Current current(device_);
    lanes_->synchronize();
    states_.clear();
    modules_.clear();
    constants_ = Buffer();
  } catch (...) {  // the driver is gone already: the process ends
  }
}

void Partition::load(const std::vector<LaunchSpec>& launches, std::vector<Function>& functions) {
  for (const LaunchSpec& l : launches) {
    modules_.push_back(device_.module(plan_->pack->blobs()[size_t(l.cuda->cubin)]));
    functions.push_back(modules_.back()->function(l.cuda->symbol, l.cuda->shared_bytes, l.cuda->cluster));
  }
}

// Lays out two blocks: what run launches read stays; what only init launches use (sources of packed weights, their scratch) goes again.
void Partition::make_constants(const std::function<Blob(const std::string&)>& initializer) {
  const size_t n = plan_->buffers.size();
  std::vector<char> in_run(n, 0), in_init(n, 0);
  for (const LaunchSpec& l : plan_->run)
    for (const OperandSpec& o : l.operands) in_run[size_t(o.buffer)] = 1;
  for (const LaunchSpec& l : plan_->init)
    for (const OperandSpec& o : l.operands) in_init[size_t(o.buffer)] = 1;
  const std::vector<int64_t> value = plan_->evaluate({});

  layout_.offset.assign(n, -1);
  layout_.bytes.assign(n, 0);
  std::vector<Blob> source(n, {nullptr, 0});
  std::vector<size_t> passing(n, 0);
  size_t total = 0, passing_total = 0;
  for (size_t k = 0; k < n; k++) {
    const BufferSpec& b = plan_->buffers[k];
    if (!in_run[k] && !in_init[k]) continue;
    switch (b.kind) {
      case BufferKind::kInput:
      case BufferKind::kOutput: continue;
      case BufferKind::kConst: layout_.bytes[k] = b.bytes; break;
      case BufferKind::kInitializer: source[k] = initializer(b.name); break;
      case BufferKind::kBlob: source[k] = plan_->pack->blobs()[size_t(b.index)]; break;
      case BufferKind::kArena:
        if (!in_init[k]) continue;
        layout_.bytes[k] = value[size_t(b.bytes)];
        if (!plan_->exprs[size_t(b.bytes)].constant || layout_.bytes[k] < 0) throw Failure("scratch of an init launch has no fixed size");
        break;
    }
    if (source[k].data) layout_.bytes[k] = int64_t(source[k].bytes);
    const size_t room = align_up(size_t(layout_.bytes[k]) + kSlack, kDeviceAlign);
    if (b.kind == BufferKind::kConst || (in_run[k] && b.kind != BufferKind::kArena))
      layout_.offset[k] = int64_t(total), total += room;
    else
      passing[k] = passing_total, passing_total += room;
  }
  layout_.total = total;
  constants_ = Buffer(device_, total);
  Buffer temporary(device_, passing_total);

  Lane& lane = lanes_->acquire();
  const struct Release {
    Lanes& lanes;
    Lane& lane;
    ~Release() {
      driver().stream_synchronize(lane.stream);  // `temporary` must be idle when it goes back, also after a failure
      lanes.release(lane);
    }
  } release{*lanes_, lane};
  check(driver().fill_async(constants_.address(), 0, std::max(total, size_t(1)), lane.stream), "clearing the constants");
  std::vector<Address> base(n, 0);
  for (size_t k = 0; k < n; k++) {
    base[k] = layout_.offset[k] >= 0 ? constants_.address() + Address(layout_.offset[k]) : temporary.address() + passing[k];
    if (source[k].bytes) copy(base[k], address_of(source[k].data), source[k].bytes, lane.stream, "copying the constants");
  }
  if (!plan_->init.empty()) {
    std::vector<Place> operands;
    std::vector<int64_t> ints;
    for (const LaunchSpec& l : plan_->init) {
      for (const OperandSpec& o : l.operands) {
        const int64_t offset = value[size_t(o.offset)];
        if (offset < 0 || offset > layout_.bytes[size_t(o.buffer)]) throw Failure(std::string("an operand of '") + l.name() + "' starts outside its buffer");
        operands.push_back({Base::kConst, 0, int64_t(base[size_t(o.buffer)]) + offset});
      }
      for (int e : l.ints) ints.push_back(value[size_t(e)]);
    }
    LaunchList launches(plan_->init, init_functions_, operands, ints);
    Addresses absolute;
    absolute.empty = device_.empty();
    if (std::any_of(plan_->init.begin(), plan_->init.end(), [](const LaunchSpec& l) { return l.cuda->faults; })) absolute.fault = lane.fault_word();
    launches.address(absolute);
    launches.launch(lane.stream);
  }
  check(driver().stream_synchronize(lane.stream), "preparing the constants");
  lane.report_fault();
}

Partition::Prepared& Partition::prepared(const Lane& lane, const std::shared_ptr<const Bound>& bound) {
  const auto state = [&]() -> LaneState& {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& s : states_)
      if (s->lane == &lane) return *s;
    states_.push_back(std::make_unique<LaneState>(LaneState{&lane, {}}));
    return *states_.back();
  };
  auto& list = state().prepared;  // the lane belongs to this run
  const auto it = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p->bound == bound; });
  if (it != list.end()) {
    std::rotate(list.begin(), it, it + 1);
  } else {
    list.insert(list.begin(), std::make_unique<Prepared>(*this, bound));
    if (list.size() > kPrepared) list.pop_back();
  }
  return *list.front();
}

const LaunchList& Partition::launches(Lane& lane, const std::shared_ptr<const Bound>& bound) { return prepared(lane, bound).launches; }

void Partition::enqueue(Lane& lane, Prepared& p, const Addresses& addresses) {
  p.launches.address(addresses);
  if (!graphs_ || !p.launches.size()) return p.launches.launch(lane.stream);
  if (p.generation != lane.generation) p.recorded.clear(), p.generation = lane.generation;  // the arena has moved
  const auto it = std::find_if(p.recorded.begin(), p.recorded.end(), [&](const Recorded& r) { return r.key == addresses; });
  if (it == p.recorded.end()) {  // addresses that come only once are not worth a graph
    if (p.recorded.size() == kGraphs) p.recorded.erase(p.recorded.begin());
    p.recorded.push_back({addresses, Graph()});
    return p.launches.launch(lane.stream);
  }
  if (!it->graph) {
    if (p.made >= kTrials && p.replayed < p.made * kReplays) return p.launches.launch(lane.stream);  // addresses come and go too fast
    it->graph = Graph(p.launches, lane.side);
    p.made++;
  }
  it->graph.launch(lane.stream);
  p.replayed++;
}

void Partition::run(Lane& lane, const std::shared_ptr<const Bound>& bound, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  const auto passes = [](const Tensor& t, size_t bytes) { return bytes && (t.host || address_of(t.data) % kTensorAlign); };
  size_t arena = align_up(bound->arena_bytes, kDeviceAlign);
  const auto places = [&](const std::vector<Tensor>& tensors, const std::vector<size_t>& bytes) {
    std::vector<size_t> at(tensors.size(), 0);
    for (size_t k = 0; k < tensors.size(); k++)
      if (passes(tensors[k], bytes[k])) at[k] = arena, arena += align_up(bytes[k] + kSlack, kDeviceAlign);
    return at;
  };
  const std::vector<size_t> input_at = places(inputs, bound->input_bytes), output_at = places(outputs, bound->output_bytes);
  lane.reserve(arena);

  Addresses addresses;
  addresses.constants = constants_.address();
  addresses.arena = lane.arena.address();
  addresses.empty = device_.empty();
  if (faults_) addresses.fault = lane.fault_word();
  bool host = false;
  const auto locate = [&](const std::vector<Tensor>& tensors, const std::vector<size_t>& bytes, const std::vector<size_t>& at, std::vector<Address>& to) {
    for (size_t k = 0; k < tensors.size(); k++) {
      to.push_back(!bytes[k] ? addresses.empty : passes(tensors[k], bytes[k]) ? addresses.arena + at[k] : address_of(tensors[k].data));
      host |= tensors[k].host && bytes[k];
    }
  };
  locate(inputs, bound->input_bytes, input_at, addresses.inputs);
  locate(outputs, bound->output_bytes, output_at, addresses.outputs);

  Prepared& p = prepared(lane, bound);
  for (size_t k = 0; k < inputs.size(); k++)
    if (passes(inputs[k], bound->input_bytes[k])) copy(addresses.inputs[k], address_of(inputs[k].data), bound->input_bytes[k], lane.stream, "copying an input");
  enqueue(lane, p, addresses);
  for (size_t k = 0; k < outputs.size(); k++)
    if (passes(outputs[k], bound->output_bytes[k])) copy(address_of(outputs[k].data), addresses.outputs[k], bound->output_bytes[k], lane.stream, "copying an output");
  lane.host_copies |= host;
  if (lane.recording && !lane.host_copies) {
    for (size_t k = 0; k < inputs.size(); k++)
      if (passes(inputs[k], bound->input_bytes[k])) copy(addresses.inputs[k], address_of(inputs[k].data), bound->input_bytes[k], lane.side, "copying an input");
    p.launches.launch(lane.side);
    for (size_t k = 0; k < outputs.size(); k++)
      if (passes(outputs[k], bound->output_bytes[k])) copy(address_of(outputs[k].data), addresses.outputs[k], bound->output_bytes[k], lane.side, "copying an output");
  }
  if (host) {
    check(driver().stream_synchronize(lane.stream), "running partition '" + plan_->name + "'");
    lane.report_fault();
  }
}

}  // namespace tracea::cuda
