#include "cuda/partition.h"

#include <algorithm>
#include <thread>

#include "cuda/plan.h"
#include "plan/failure.h"

namespace tracea::cuda {
namespace {

constexpr Address kTensorAlign = 16;  // vector accesses and tensor maps

void copy(Address to, Address from, size_t bytes, Stream stream, const char* what) {
  if (bytes) check(driver().copy_async(to, from, bytes, stream), what);
}

// Room for the words of one launch at a time, rounded up.
size_t words_bytes(const std::vector<LaunchSpec>& launches) {
  size_t most = 0;
  for (const LaunchSpec& l : launches) most = std::max(most, size_t(cuda_launch(l).words));
  return align_up(most * sizeof(uint32_t), kDeviceAlign);
}

Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

}  // namespace

Partition::Partition(std::shared_ptr<const Plan> plan, std::shared_ptr<StreamPool> streams,
                     const Initializers& initializer)
    : plan_(std::move(plan)), streams_(std::move(streams)), device_(streams_->device) {
  const Current current(device_);
  for (const LaunchSpec& l : plan_->run) faults_ |= cuda_launch(l).faults;
  words_bytes_ = words_bytes(plan_->run);
  kernels_ = load_kernels(device_, *plan_);
  make_constants(initializer);
  device_.add_cache(this);
}

Partition::~Partition() {
  device_.remove_cache(this);
  streams_->drain();
  const Current current(device_, std::nothrow);
  states_.clear();
  kernels_ = {};
  constants_ = Buffer();
}

Kernels load_kernels(Device& device, const Plan& plan) {
  Kernels out;
  const auto load = [&](const std::vector<LaunchSpec>& launches, std::vector<Function>& functions) {
    for (const LaunchSpec& spec : launches) {
      const CudaLaunch& l = cuda_launch(spec);
      if (device.largest_cluster() && l.cluster > device.largest_cluster())
        throw NoKernel("kernel '" + l.symbol + "' is launched in clusters of " +
                       std::to_string(l.cluster) + ", the device has room for " +
                       std::to_string(device.largest_cluster()) + " at most");
      out.modules.push_back(device.module(plan.pack->blobs()[size_t(l.cubin)]));
      functions.push_back(out.modules.back()->function(l.symbol, l.shared_bytes, l.cluster));
    }
  };
  try {
    load(plan.run, out.run);
    load(plan.init, out.init);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Failure& e) {
    if (device.health.lost()) throw;
    throw NoKernel(e.what());
  }
  return out;
}

void Partition::make_constants(const Initializers& initializer) {
  const DeviceConstants laid = lay_out_constants(*plan_, initializer, kDeviceAlign);
  const size_t n = plan_->buffers.size(), total = laid.stays.total;
  layout_ = laid.stays;
  constants_ = Buffer(device_, total);
  Buffer temporary(device_, laid.passing_total + words_bytes(plan_->init));

  StreamContext& ctx = streams_->acquire();
  const struct Release {
    StreamPool& streams;
    StreamContext& ctx;
    ~Release() {
      driver().stream_synchronize(
          ctx.stream);  // `temporary` must be idle when it goes back, also after a failure
      streams.release(ctx);
    }
  } release{*streams_, ctx};
  check(driver().fill_async(constants_.address(), 0, std::max(total, size_t(1)), ctx.stream),
        "clearing the constants");
  std::vector<Address> base(n, 0);
  for (size_t k = 0; k < n; k++) {
    base[k] = layout_.offset[k] >= 0 ? constants_.address() + Address(layout_.offset[k])
                                     : temporary.address() + laid.passing[k];
    if (const Blob& source = laid.source[k]; source.bytes)
      copy(base[k], address_of(source.data), source.bytes, ctx.stream, "copying the constants");
  }
  if (!plan_->init.empty()) {
    std::vector<Place> operands;
    std::vector<int64_t> ints;
    for (const LaunchSpec& l : plan_->init) {
      for (const OperandSpec& o : l.operands) {
        const int64_t offset = laid.value[size_t(o.offset)];
        if (offset < 0 || offset > layout_.bytes[size_t(o.buffer)])
          throw Failure(std::string("an operand of '") + l.name() + "' starts outside its buffer");
        operands.push_back({Base::kConst, 0, int64_t(base[size_t(o.buffer)]) + offset});
      }
      for (int e : l.ints) ints.push_back(laid.value[size_t(e)]);
    }
    LaunchList launches(device_, plan_->init, kernels_.init, operands, ints);
    Addresses absolute;
    absolute.empty = device_.empty();
    absolute.words = temporary.address() + laid.passing_total;
    if (std::any_of(plan_->init.begin(), plan_->init.end(),
                    [](const LaunchSpec& l) { return cuda_launch(l).faults; }))
      absolute.fault = ctx.fault_word();
    launches.address(absolute);
    streams_->settings.sync_launches ? launches.launch_synchronised(ctx.stream, plan_->name)
                                     : launches.launch(ctx.stream);
  }
  check(driver().stream_synchronize(ctx.stream), "preparing the constants");
  try {
    ctx.report_fault();
  } catch (const Failure& e) {
    bad_constants_ = e.what();
  }
}

// A stream context's state belongs to its run, but for the graphs in it: these may be dropped for
// the sake of others.
struct Partition::Busy {
  explicit Busy(ContextState& s) : state(s) {
    while (state.busy.exchange(true)) std::this_thread::yield();  // dropping is short
  }
  ~Busy() { state.busy = false; }
  Busy(const Busy&) = delete;
  ContextState& state;
};

Partition::ContextState& Partition::state_of(const StreamContext& ctx) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& s : states_)
    if (s->ctx == &ctx) return *s;
  states_.push_back(std::make_unique<ContextState>());
  states_.back()->ctx = &ctx;
  return *states_.back();
}

Partition::Prepared& Partition::prepared(ContextState& state,
                                         const std::shared_ptr<const Bound>& bound) {
  auto& list = state.prepared;
  const auto it =
      std::find_if(list.begin(), list.end(), [&](const auto& p) { return p->bound == bound; });
  if (it != list.end()) {
    std::rotate(list.begin(), it, it + 1);
  } else {
    list.insert(list.begin(), std::make_unique<Prepared>(*this, bound));
    if (list.size() > kPrepared) list.pop_back();
  }
  return *list.front();
}

const LaunchList& Partition::launches(StreamContext& ctx,
                                      const std::shared_ptr<const Bound>& bound) {
  ContextState& state = state_of(ctx);
  const Busy busy(state);
  return prepared(state, bound).launches;
}

bool Partition::drop_graphs(ContextState& state) {
  bool any = false;
  for (const auto& p : state.prepared)
    for (Recorded& r : p->recorded) {
      any |= bool(r.graph);
      r.graph = Graph();
    }
  return any;
}

bool Partition::drop() {
  bool any = false;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& s : states_) {
    if (s->busy.exchange(true)) continue;
    any |= drop_graphs(*s);
    s->busy = false;
  }
  return any;
}

size_t Partition::graphs_per_context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::max(kGraphs / states_.size(), kLaneGraphs);
}

// The least recently used graph goes when there is no room for another.
void Partition::make_room(ContextState& state, size_t most) {
  size_t graphs = 0;
  Prepared* owner = nullptr;
  std::list<Recorded>::iterator oldest;
  for (const auto& p : state.prepared)
    for (auto it = p->recorded.begin(); it != p->recorded.end(); ++it)
      if (it->graph) {
        graphs++;
        if (!owner || it->used < oldest->used) owner = p.get(), oldest = it;
      }
  if (graphs >= most) owner->recorded.erase(oldest);
}

bool Partition::comes_again(Prepared& p, const Addresses& addresses) {
  uint64_t digest = 1;  // two sets of one digest only cost a graph that is made early
  const auto mix = [&](uint64_t v) {
    digest = (digest ^ v) * 0x9E3779B97F4A7C15u, digest ^= digest >> 29;
  };
  for (const Address a : {addresses.constants, addresses.arena, addresses.fault, addresses.words})
    mix(a);
  for (const auto* of : {&addresses.inputs, &addresses.outputs})
    for (const Address a : *of) mix(a);
  if (std::find(p.seen.begin(), p.seen.end(), digest) != p.seen.end()) return true;
  p.seen[p.next_seen++ % kSeen] = digest;
  return false;
}

bool Partition::replay(StreamContext& ctx, ContextState& state, Prepared& p,
                       const Addresses& addresses) {
  if (p.generation != ctx.generation)
    p.recorded.clear(), p.generation = ctx.generation;  // the arena has moved
  const auto older = [](const Recorded& a, const Recorded& b) { return a.used < b.used; };
  const auto too_fast = [&] {
    return p.made >= kTrials && p.replayed < p.made * kReplays;
  };  // addresses come and go
  auto it = std::find_if(p.recorded.begin(), p.recorded.end(),
                         [&](const Recorded& r) { return r.key == addresses; });
  if (it == p.recorded.end()) {
    if (!comes_again(p, addresses) || too_fast())
      return false;  // those that come only once are not worth a graph
    if (p.recorded.size() == kSeen)
      p.recorded.erase(std::min_element(p.recorded.begin(), p.recorded.end(), older));
    it = p.recorded.emplace(p.recorded.end(), addresses, 0);
  }
  it->used = ++state.clock;
  for (bool again = true; !it->plain; again = false) {
    try {
      if (!it->graph) {
        if (too_fast()) return false;
        make_room(state, graphs_per_context());
        it->graph = Graph(device_, p.launches, ctx.capture_stream);
        p.made++;
      }
      it->graph.launch(ctx.stream);
      p.replayed++;
      return true;
    } catch (const OutOfMemory& e) {
      if (!again || !drop_graphs(state)) give_up_graph(*it, e);
    } catch (const Failure& e) {
      if (device_.health.lost()) throw;
      give_up_graph(*it, e);
    }
  }
  return false;
}

// A graph is only faster: without one the launches are made one by one.
void Partition::give_up_graph(Recorded& recorded, const Failure& why) {
  recorded.plain = true;
  recorded.graph = Graph();
  if (!warned_.exchange(true))
    streams_->settings.warn("partition '" + plan_->name +
                            "' runs without a CUDA graph: " + why.what());
}

void Partition::enqueue(StreamContext& ctx, ContextState& state, Prepared& p,
                        const Addresses& addresses) {
  p.launches.address(addresses);
  if (streams_->settings.sync_launches)
    return p.launches.launch_synchronised(ctx.stream, plan_->name);
  if (streams_->settings.graphs && p.launches.size() && replay(ctx, state, p, addresses)) return;
  p.launches.launch(ctx.stream);
}

void Partition::run(StreamContext& ctx, const std::shared_ptr<const Bound>& bound,
                    const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  if (!bad_constants_.empty()) throw Failure(bad_constants_);
  const auto passes = [](const Tensor& t, size_t bytes) {
    return bytes && (t.host || address_of(t.data) % kTensorAlign);
  };
  const size_t words_at = align_up(bound->arena_bytes, kDeviceAlign);
  size_t arena = words_at + words_bytes_;
  const auto places = [&](const std::vector<Tensor>& tensors, const std::vector<size_t>& bytes) {
    std::vector<size_t> at(tensors.size(), 0);
    for (size_t k = 0; k < tensors.size(); k++)
      if (passes(tensors[k], bytes[k]))
        at[k] = arena, arena += align_up(bytes[k] + kSlack, kDeviceAlign);
    return at;
  };
  const std::vector<size_t> input_at = places(inputs, bound->input_bytes),
                            output_at = places(outputs, bound->output_bytes);
  ctx.reserve(arena);

  Addresses addresses;
  addresses.constants = constants_.address();
  addresses.arena = ctx.arena.address();
  addresses.empty = device_.empty();
  if (words_bytes_) addresses.words = addresses.arena + words_at;
  if (faults_) addresses.fault = ctx.fault_word();
  bool host = false;
  const auto locate = [&](const std::vector<Tensor>& tensors, const std::vector<size_t>& bytes,
                          const std::vector<size_t>& at, std::vector<Address>& to) {
    for (size_t k = 0; k < tensors.size(); k++) {
      to.push_back(!bytes[k]                      ? addresses.empty
                   : passes(tensors[k], bytes[k]) ? addresses.arena + at[k]
                                                  : address_of(tensors[k].data));
      host |= tensors[k].host && bytes[k];
    }
  };
  locate(inputs, bound->input_bytes, input_at, addresses.inputs);
  locate(outputs, bound->output_bytes, output_at, addresses.outputs);

  ContextState& state = state_of(ctx);
  const Busy busy(state);
  Prepared& p = prepared(state, bound);
  ctx.partitions++;
  for (size_t k = 0; k < inputs.size(); k++)
    if (passes(inputs[k], bound->input_bytes[k]))
      copy(addresses.inputs[k], address_of(inputs[k].data), bound->input_bytes[k], ctx.stream,
           "copying an input");
  enqueue(ctx, state, p, addresses);
  for (size_t k = 0; k < outputs.size(); k++)
    if (passes(outputs[k], bound->output_bytes[k]))
      copy(address_of(outputs[k].data), addresses.outputs[k], bound->output_bytes[k], ctx.stream,
           "copying an output");
  ctx.host_copies |= host;
  if (ctx.recording && !ctx.host_copies) {
    for (const auto* tensors :
         {&inputs,
          &outputs})  // also those that were there before the run, and that their owner may drop
      for (const Tensor& t : *tensors) ctx.retain(address_of(t.data));
    for (size_t k = 0; k < inputs.size(); k++)
      if (passes(inputs[k], bound->input_bytes[k]))
        copy(addresses.inputs[k], address_of(inputs[k].data), bound->input_bytes[k],
             ctx.capture_stream, "copying an input");
    p.launches.launch(ctx.capture_stream);
    for (size_t k = 0; k < outputs.size(); k++)
      if (passes(outputs[k], bound->output_bytes[k]))
        copy(address_of(outputs[k].data), addresses.outputs[k], bound->output_bytes[k],
             ctx.capture_stream, "copying an output");
  }
  if (host) {
    check(driver().stream_synchronize(ctx.stream), "running partition '" + plan_->name + "'");
    ctx.report_fault();
  }
}

}  // namespace tracea::cuda
