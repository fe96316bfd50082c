#include "cuda/session.h"

#include <climits>
#include <cstdlib>
#include <utility>

#include "cuda/factory.h"
#include "cuda/ort_kernels.h"
#include "cuda/stream.h"
#include "ort/graph.h"
#include "ort/provider.h"
#include "plan/failure.h"
#include "plan/stats.h"

namespace tracea::cuda {
namespace {

int graph_id(const OrtRunOptions* options) {
  const char* text = options ? ort.GetRunConfigEntry(options, "gpu_graph_id") : nullptr;
  if (!text || !*text) return 0;
  char* end = nullptr;
  const long id = strtol(text, &end, 10);
  if (*end || id < -1 || id > INT_MAX)
    throw Failure(std::string("run option gpu_graph_id='") + text +
                  "' is not a number from -1 to " + std::to_string(INT_MAX));
  return int(id);
}

DeviceSession* (*find_session)(OrtEp*) = nullptr;

Session* session_of(OrtEp* ep) { return static_cast<Session*>(find_session(ep)); }

}  // namespace

Session::Session(const Runtime::Setup& setup, const SessionOptions& options)
    : device_(Device::get(setup.ordinal)),
      graphs_(options.graphs),
      memory_limit_(options.memory_limit),
      traps_(options.sync_launches) {
  const bool device_memory = setup.device_memory;
  device_.health.need();
  if (graphs_ == GraphMode::kSession && (!device_memory || ort.abi < 26))
    throw Failure(
        device_memory
            ? "enable_cuda_graph=session needs ONNX Runtime 1.26 or newer; use enable_cuda_graph=1"
            : "enable_cuda_graph=session needs a GPU device; add the provider option device_id");
  if (graphs_ == GraphMode::kSession && options.sync_launches)
    throw Failure(
        "sync_launches=1 waits for every launch, which enable_cuda_graph=session cannot record; "
        "leave one of them out");
  Settings settings;
  settings.graphs = graphs_ == GraphMode::kPartition;
  settings.sync_launches = options.sync_launches;
  settings.warn = setup.warn;
  if (options.user_stream) {
    const Current current(device_);
    const auto stream = reinterpret_cast<Stream>(*options.user_stream);
    constexpr uint64_t kNamed =
        2;  // the legacy default stream has two names, the one of each thread one
    Context owner = device_.context();
    if (*options.user_stream > kNamed)
      cuda::check(driver().stream_context(stream, &owner),
                  "looking at the stream of user_compute_stream");
    if (owner != device_.context())
      throw Failure("the stream of the provider option user_compute_stream is not of CUDA device " +
                    std::to_string(setup.ordinal));
    settings.user_stream = stream;
  }
  streams_ = std::make_shared<StreamPool>(device_, std::move(settings));
  if (device_memory) kernels_ = make_kernels(&streams_);
  if (memory_limit_) device_.pool.add_limit(memory_limit_);
}

Session::~Session() {
  streams_->drain();
  {
    const Current current(device_, std::nothrow);
    captures_.clear();
  }
  if (memory_limit_) device_.pool.remove_limit(memory_limit_);
  if (kernels_) ort.ReleaseKernelRegistry(kernels_);
}

// ORT calls it for the inputs of a run and for its outputs (IOBinding). Inputs may come from
// streams that nothing else orders with ours. After each replay of a whole session it does so as
// well, where waiting for everybody's work would be too much.
void Session::synchronize() {
  if (graphs_ != GraphMode::kSession) {
    const Current current(device_);
    cuda::check(driver().context_synchronize(), "running");
  }
  streams_->synchronize();
}

void Session::attach(OrtEp& ep, DeviceSession* (*find)(OrtEp*)) {
  find_session = find;
  ep.OnRunStart = [](OrtEp* self, const OrtRunOptions* options) {
    session_of(self)->run_start(options);
  };
  ep.OnRunEnd = [](OrtEp* self, const OrtRunOptions*, bool synchronize) {
    session_of(self)->run_end(synchronize);
  };
  ep.Sync = [](OrtEp* self) { session_of(self)->synchronize(); };
  if (kernels_) {
    ep.CreateSyncStreamForDevice = [](OrtEp*, const OrtMemoryDevice*, OrtSyncStreamImpl** out) {
      *out = make_session_stream();
    };
    ep.GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** out) {
      *out = session_of(self)->kernels();
    };
  }
  if (graphs_ != GraphMode::kSession) return;
  ep.IsGraphCaptureEnabled = [](const OrtEp*) { return true; };
  ep.IsGraphCaptured = [](const OrtEp* self, int id) {
    return session_of(const_cast<OrtEp*>(self))->captured(id);
  };
  ep.ReplayGraph = [](OrtEp* self, int id) { session_of(self)->replay(id); };
  constexpr int kCpuForShapes = 1;  // their results are fixed as long as the bound tensors are
  ep.GetGraphCaptureNodeAssignmentPolicy = [](const OrtEp*) { return kCpuForShapes; };
  ep.ReleaseCapturedGraph = [](OrtEp* self, int id) { session_of(self)->forget(id); };
}

std::shared_ptr<Executable> Session::compile(const Entry&, std::shared_ptr<const Plan> plan,
                                             const Initializers& initializers) {
  return std::make_shared<Partition>(std::move(plan), streams_, initializers);
}

std::vector<std::pair<std::string, std::string>> Session::metadata() const {
  auto found = device_.properties();
  found.emplace(found.begin(), "traps", traps_ ? "1" : "0");
  return found;
}

DeviceSession::Fit Session::fit(const Entry& entry, std::string& why) const {
  if (entry.arch && entry.arch != device_.about.arch) return Fit::kNone;
  if (!entry.sms || entry.sms == device_.about.sms) return Fit::kWhole;
  why = "a GPU of " + std::to_string(entry.sms) + " multiprocessors, this one has " +
        std::to_string(device_.about.sms);
  return Fit::kSlower;
}

DeviceSession::Prepared Session::prepare(const Entry& entry,
                                         const std::shared_ptr<const Pack>& pack) {
  Prepared made{Plan::parse(entry, pack), nullptr};
  const Current current(device_);
  made.kernels = std::make_shared<Kernels>(load_kernels(device_, *made.plan));
  return made;
}

std::string Session::description() const {
  return "CUDA device " + std::to_string(device_.ordinal) + ", " + device_.about.name + ", sm_" +
         std::to_string(device_.about.arch) + ", " + std::to_string(device_.about.sms) +
         " multiprocessors";
}

void Session::run_start(const OrtRunOptions* options) {
  StreamContext& ctx = streams_->enter();
  forget_refusal();
  if (graphs_ != GraphMode::kSession) return;
  ctx.record = {};
  try {
    const int id = graph_id(options);
    if (id < 0) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Capture& c = captures_[id];
      if (c.done) return;
      ctx.record.id = id;
      if (!c.runs++) return;  // the first run allocates and loads
    }
    const Current current(device_);
    cuda::check(driver().capture_begin(ctx.capture_stream, kCaptureRelaxed), "recording a graph");
  } catch (...) {  // ORT does not end a run that did not begin
    streams_->leave(true);
    throw;
  }
  ctx.recording = true;
  ctx.record.generation = ctx.generation;
  ctx.record.elsewhere = streams_->elsewhere();
}

// Only what was recorded whole may be replayed: no copy from or to the host, no partition that
// failed, ran elsewhere or was not reached.
bool Session::finish_recording(StreamContext& ctx) {
  ctx.recording = false;
  const Current current(device_);
  Graph graph(device_, ctx.capture_stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  Capture& c = captures_[ctx.record.id];
  const bool whole = !ctx.host_copies && !ctx.failed &&
                     ctx.partitions == std::exchange(c.partitions, ctx.partitions) &&
                     streams_->elsewhere() == ctx.record.elsewhere;
  if (!whole || ctx.generation != ctx.record.generation || c.done) return false;
  graph.launch(ctx.stream);  // once now: what instantiating left to the first launch is done, and
                             // the outputs are what they were
  c.done = std::make_unique<Captured>(Captured{std::move(graph), &ctx});
  return true;
}

void Session::run_end(bool synchronize) {
  StreamContext* ctx = streams_->current();
  if (!ctx) return;
  if (!ctx->recording) {
    if (ctx->record.id >= 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      captures_[std::exchange(ctx->record.id, -1)].partitions = ctx->partitions;
    }
    return streams_->leave(synchronize);
  }
  bool keep = false;
  try {
    keep = finish_recording(*ctx);
  } catch (...) {
    ctx->release_retained();
    streams_->leave(true);
    throw;
  }
  if (!keep) ctx->release_retained();
  streams_->leave(true, keep);
}

bool Session::captured(int id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = captures_.find(id);
  return it != captures_.end() && it->second.done;
}

void Session::replay(int id) {
  const std::lock_guard<std::mutex> lock(mutex_);  // replays share their arena
  const auto it = captures_.find(id);
  if (it == captures_.end() || !it->second.done)
    throw Failure("no graph " + std::to_string(id) + " was captured");
  const Current current(device_);
  StreamContext& ctx = *it->second.done->ctx;
  ctx.wait_on_all();  // ORT does not tell the stream of a run that it replays
  ctx.guests.clear();
  it->second.done->graph.launch(ctx.stream);
  ctx.synchronize();
}

void Session::forget(int id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = captures_.find(id);
  if (it == captures_.end()) return;
  if (it->second.done) {
    const Current current(device_);
    StreamContext& ctx = *it->second.done->ctx;
    cuda::check(driver().stream_synchronize(ctx.stream), "running");
    it->second.done.reset();
    ctx.release_retained();
    streams_->release(ctx);
  }
  captures_.erase(it);
}

void Partition::compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
                        const std::vector<size_t>& outputs) {
  const Current current(device_);
  std::vector<InputTensor> tensors(inputs.size());
  std::vector<Tensor> in(inputs.size()), out(outputs.size());
  for (size_t k = 0; k < inputs.size(); k++) {
    const OrtValue* value = nullptr;
    tracea::check(ort.KernelContext_GetInput(context, inputs[k], &value));
    if (!value) throw Failure("input '" + plan_->inputs[k].name + "' is missing");
    InputTensor& t = tensors[k];
    tracea::check(ort.GetTensorElementTypeAndShapeDataReference(value, &t.type, &t.dims, &t.rank));
    tracea::check(ort.GetTensorData(value, &t.data));
    in[k] = {const_cast<void*>(t.data), on_host(value)};
  }
  const auto bound = this->bound(tensors);
  ScopedContext scoped(*streams_);
  void* given = nullptr;  // the stream of the run, if it was given one
  tracea::check(ort.KernelContext_GetGPUComputeStream(context, &given));
  if (given) scoped.ctx().wait_on(static_cast<Stream>(given));
  for (size_t k = 0; k < outputs.size(); k++) {
    const auto& dims = bound->output_dims[k];
    OrtValue* value = nullptr;
    tracea::check(
        ort.KernelContext_GetOutput(context, outputs[k], dims.data(), dims.size(), &value));
    tracea::check(ort.GetTensorMutableData(value, &out[k].data));
    if (bound->output_bytes[k]) need_memory(out[k].data);
    out[k].host = on_host(value);
  }
  try {
    run(scoped.ctx(), bound, in, out);
  } catch (...) {
    scoped.ctx().failed = true;
    throw;
  }
  scoped.done();
  stats.runs++;
}

}  // namespace tracea::cuda
