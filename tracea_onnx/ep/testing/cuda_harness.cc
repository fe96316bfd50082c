// Runs a CUDA plan without ONNX Runtime on caller-owned host memory: the C ABI of
// runtime/cuda_harness.py, for kernel tests and the tuner.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda/listing.h"
#include "cuda/partition.h"
#include "ort/boundary.h"
#include "plan/failure.h"
#include "testing/given_plan.h"
#include "testing/host_tensor.h"

using namespace tracea;

namespace {

struct Opened {
  std::shared_ptr<cuda::StreamPool> streams;
  std::unique_ptr<cuda::Partition> partition;
};

struct Run {
  explicit Run(cuda::StreamPool& all) : streams(all), ctx(all.enter()) {}
  ~Run() {
    try {
      streams.leave(true);
    } catch (...) {  // a fault of the run was reported already
    }
  }
  Run(const Run&) = delete;
  cuda::StreamPool& streams;
  cuda::StreamContext& ctx;
};

struct Mark {
  Mark() { cuda::check(cuda::driver().event_create(&event, 0), "making an event"); }
  ~Mark() {
    if (const cuda::Driver* d = cuda::usable()) d->event_destroy(event);
  }
  Mark(const Mark&) = delete;
  void record(cuda::Stream stream) const {
    cuda::check(cuda::driver().event_record(event, stream), "timing");
  }
  // Into the graph that is being recorded, whose replays set it.
  void record_into(cuda::Stream side) const {
    cuda::check(cuda::driver().event_record_flags(event, side, cuda::kRecordExternal), "timing");
  }
  // Microseconds on the device since `earlier`; both must have been reached.
  double since(const Mark& earlier) const {
    float ms = 0;
    cuda::check(cuda::driver().event_elapsed(&ms, earlier.event, event), "timing");
    return double(ms) * 1e3;
  }
  cuda::Event event = nullptr;
};

// Microseconds on the device of what `body` enqueues.
template <class Body>
double timed(cuda::Stream stream, Body body) {
  const Mark begin, end;
  begin.record(stream);
  body();
  end.record(stream);
  cuda::check(cuda::driver().event_synchronize(end.event), "running");
  return end.since(begin);
}

// 0, or 1 and the line of what went wrong.
template <class Body>
int reported(char* message, size_t size, Body body) noexcept {
  return answered(1, message, size, [&] { return body(), 0; });
}

constexpr int kRepeats = 64;

// One launch many times over: as a graph, so that the host's launching is not what is timed.
cuda::Graph repeated(cuda::Device& device, const cuda::LaunchList& launches, size_t k,
                     cuda::Stream side) {
  cuda::check(cuda::driver().capture_begin(side, cuda::kCaptureRelaxed), "recording a graph");
  for (int r = 0; r < kRepeats; r++) launches.launch_one(k, side);
  return cuda::Graph(device, side);
}

// Microseconds of each launch within a run of all of them, on what the others leave in cache, none
// overlapping the next: medians of `replays` replays.
std::vector<double> in_place(const cuda::LaunchList& launches, const cuda::StreamContext& ctx,
                             int replays) {
  const std::vector<Mark> marks(launches.size() + 1);
  cuda::check(cuda::driver().capture_begin(ctx.capture_stream, cuda::kCaptureRelaxed),
              "recording a graph");
  marks[0].record_into(ctx.capture_stream);
  for (size_t k = 0; k < launches.size(); k++) {
    launches.launch_one(k, ctx.capture_stream, false);
    marks[k + 1].record_into(ctx.capture_stream);
  }
  const cuda::Graph graph(ctx.device, ctx.capture_stream);
  std::vector<std::vector<double>> found(launches.size());
  for (int r = 0; r < replays; r++) {
    graph.launch(ctx.stream);
    cuda::check(cuda::driver().stream_synchronize(ctx.stream), "running");
    for (size_t k = 0; k < found.size(); k++) found[k].push_back(marks[k + 1].since(marks[k]));
  }
  std::vector<double> medians;
  for (auto& times : found) {
    std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
    medians.push_back(times[times.size() / 2]);
  }
  return medians;
}

}  // namespace

// What a compile request says of a CUDA device, lines `key=value`; 0 on success, else 1 and a line
// in `message`.
TRACEA_EXPORT int tracea_cuda_device(int ordinal, char* text, size_t size, char* message,
                                     size_t message_size) noexcept {
  return reported(message, message_size, [&] {
    std::string all;
    for (const auto& [key, value] : cuda::Device::get(ordinal).properties())
      all += key + "=" + value + "\n";
    snprintf(text, size, "%s", all.c_str());
  });
}

// Those that CUDA will offer, without initialising it.
TRACEA_EXPORT int tracea_cuda_listed() noexcept {
  int n = 0;
  char message[256];
  reported(message, sizeof message, [&] { n = int(cuda::list_gpus().size()); });
  return n;
}

// Loads the first plan of a pack and prepares its constants. Null and a line in `message` on
// failure.
TRACEA_EXPORT void* tracea_cuda_open(int ordinal, int graphs, const void* pack_bytes, size_t n,
                                     const char* const* names, const void* const* data,
                                     const size_t* bytes, size_t n_initializers, char* message,
                                     size_t message_size) noexcept {
  return answered<void*>(nullptr, message, message_size, [&] {
    auto opened = std::make_unique<Opened>();
    const GivenPlan given({pack_bytes, n, names, data, bytes, n_initializers}, "cuda");
    cuda::Settings settings;
    settings.graphs = graphs != 0;
    opened->streams = std::make_shared<cuda::StreamPool>(cuda::Device::get(ordinal), settings);
    opened->partition = std::make_unique<cuda::Partition>(
        given.plan, opened->streams, [&](const std::string& name) { return given.constant(name); });
    return opened.release();
  });
}

TRACEA_EXPORT void tracea_cuda_close(void* handle) noexcept { delete static_cast<Opened*>(handle); }

// Runs once. `output(context, k, dims, rank)` gives host memory for output k, once per output and
// before anything runs.
TRACEA_EXPORT int tracea_cuda_run(void* handle, const HostTensor* inputs, size_t n_inputs,
                                  HostOutput output, void* context, char* message,
                                  size_t message_size) noexcept {
  const Opened& o = *static_cast<Opened*>(handle);
  return reported(message, message_size, [&] {
    if (n_inputs != o.partition->plan().inputs.size())
      throw Failure("the plan has " + std::to_string(o.partition->plan().inputs.size()) +
                    " inputs");
    std::vector<InputTensor> tensors;
    std::vector<cuda::Tensor> in, out;
    for (size_t k = 0; k < n_inputs; k++) {
      tensors.push_back({inputs[k].data, inputs[k].type, inputs[k].dims, inputs[k].rank});
      in.push_back({const_cast<void*>(inputs[k].data), true});
    }
    const cuda::Current current(o.streams->device);
    const auto bound = o.partition->bound(tensors);
    for (size_t k = 0; k < bound->output_dims.size(); k++)
      out.push_back(
          {output(context, k, bound->output_dims[k].data(), bound->output_dims[k].size()), true});
    const Run run(*o.streams);
    o.partition->run(run.ctx, bound, in, out);
  });
}

// Times the launches of the last shapes given to `tracea_cuda_run`, on the data they left. `us[0]`
// gets the microseconds of all launches as one graph, the mean of `replays` replays; `us[1 + k]`,
// for k < capacity - 1, those of launch k: in a graph of nothing but it or, if `within`, among the
// others. Symbols come as lines in `names`. Returns the number of launches, -1 with a line in
// `message` on failure.
TRACEA_EXPORT int64_t tracea_cuda_time(void* handle, const HostTensor* inputs, size_t n_inputs,
                                       int replays, int within, double* us, size_t capacity,
                                       char* names, size_t names_size, char* message,
                                       size_t message_size) noexcept {
  const Opened& o = *static_cast<Opened*>(handle);
  return answered(int64_t(-1), message, message_size, [&] {
    std::vector<InputTensor> tensors;
    for (size_t k = 0; k < n_inputs; k++)
      tensors.push_back({inputs[k].data, inputs[k].type, inputs[k].dims, inputs[k].rank});
    const cuda::Current current(o.streams->device);
    const auto bound = o.partition->bound(tensors);
    const Run run(*o.streams);
    cuda::StreamContext& ctx = run.ctx;
    const cuda::LaunchList& launches = o.partition->launches(ctx, bound);
    us[0] = 0;
    if (launches.size()) {
      const cuda::Graph graph(ctx.device, launches, ctx.capture_stream);
      graph.launch(ctx.stream);  // the first replay also uploads the graph
      us[0] = timed(ctx.stream,
                    [&] {
                      for (int r = 0; r < replays; r++) graph.launch(ctx.stream);
                    }) /
              replays;
    }
    const std::vector<double> among =
        within ? in_place(launches, ctx, replays) : std::vector<double>();
    std::string text;
    for (size_t k = 0; k < launches.size(); k++) {
      text += std::string(launches.symbol(k)) + "\n";
      if (k + 1 >= capacity) continue;
      if (within) {
        us[k + 1] = among[k];
        continue;
      }
      const cuda::Graph alone = repeated(ctx.device, launches, k, ctx.capture_stream);
      alone.launch(ctx.stream);
      us[k + 1] = timed(ctx.stream, [&] { alone.launch(ctx.stream); }) / kRepeats;
    }
    snprintf(names, names_size, "%s", text.c_str());
    ctx.synchronize();
    return int64_t(launches.size());
  });
}
