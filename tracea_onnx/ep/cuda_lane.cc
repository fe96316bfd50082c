#include "cuda_lane.h"

#include <algorithm>

#include "failure.h"

namespace tracea::cuda {
namespace {

struct Running { const Lanes* session; Lane* lane; };
thread_local std::vector<Running> runs;

}  // namespace

Lane::Lane(Device& d) : device(d) {
  check(driver().stream_create(&stream, kStreamDefault), "making a stream");
  check(driver().stream_create(&side, kStreamNonBlocking), "making a stream");
}

Lane::~Lane() {
  if (stream) driver().stream_synchronize(stream), driver().stream_destroy(stream);
  release_held();
  device.pool.settle(this);
  if (side) driver().stream_destroy(side);
  if (fault) driver().host_free(const_cast<uint32_t*>(fault));
}

void Lane::reserve(size_t bytes) {
  if (arena.bytes() >= bytes) return;
  if (arena.bytes()) synchronize();  // the old arena must be idle when it goes back
  arena = Buffer();
  arena = Buffer(device, bytes);
  generation++;
}

void Lane::synchronize() {
  check(driver().stream_synchronize(stream), "running");
  device.pool.settle(this);
  report_fault();
}

Address Lane::fault_word() {
  if (!fault) {
    constexpr unsigned kPortable = 1, kMapped = 2;
    void* word = nullptr;
    check(driver().host_alloc(&word, sizeof *fault, kPortable | kMapped), "making a fault word");
    fault = static_cast<uint32_t*>(word);
    *fault = 0;
  }
  return reinterpret_cast<Address>(fault);
}

void Lane::report_fault() {
  if (!fault || !*fault) return;
  *fault = 0;
  throw Failure("a Gather met an index out of range of its tensor, or a TopK a row of fewer elements than it is to give");
}

void Lane::release_held() {
  for (Address a : held) device.pool.release(a, this);
  held.clear();
}

Lanes::~Lanes() {
  try {
    const Current current(device);
    all_.clear();
  } catch (...) {  // the driver is gone already: the process ends
  }
}

Lane& Lanes::acquire() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) {
    all_.push_back(std::make_unique<Lane>(device));
    return *all_.back();
  }
  Lane* lane = idle_.back();  // the one used last: its arena and argument lists are warm
  idle_.pop_back();
  return *lane;
}

void Lanes::release(Lane& lane) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(&lane);
}

Lane& Lanes::enter() {
  const Current current(device);
  Lane& lane = acquire();
  lane.host_copies = false;
  runs.push_back({this, &lane});
  return lane;
}

void Lanes::leave(bool synchronize, bool keep) {
  const auto it = std::find_if(runs.rbegin(), runs.rend(), [this](const Running& r) { return r.session == this; });
  if (it == runs.rend()) return;
  Lane& lane = *it->lane;
  runs.erase(std::next(it).base());
  const struct Release {  // also when the run has failed on the device
    Lanes& lanes;
    Lane& lane;
    bool keep;
    ~Release() { if (!keep) lanes.release(lane); }
  } release{*this, lane, keep};
  const Current current(device);
  if (synchronize)
    lane.synchronize();
  else
    device.pool.expect_unfinished();
}

Lane* Lanes::here() const {
  for (auto it = runs.rbegin(); it != runs.rend(); ++it)
    if (it->session == this) return it->lane;
  return nullptr;
}

void Lanes::synchronize() {
  const Current current(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& lane : all_) check(driver().stream_synchronize(lane->stream), "running");
  for (Lane* lane : idle_) lane->report_fault();  // a run in flight reports its own
}

bool running() { return !runs.empty(); }

Lane* lane_of_thread(const Device& device) {
  return !runs.empty() && &runs.back().lane->device == &device ? runs.back().lane : nullptr;
}

Borrowed::Borrowed(Lanes& lanes) : lanes_(lanes), lane_(lanes.here()), own_(lane_) {
  if (own_) return;
  lanes.device.pool.expect_threads();
  lanes.synchronize();  // other threads of the same run may have made the inputs
  lane_ = &lanes.enter();
}

Borrowed::~Borrowed() {
  if (own_) return;
  try {
    lanes_.leave(true);
  } catch (...) {  // reported by done(), or the run has failed already
  }
}

void Borrowed::done() {
  if (!own_) lane_->synchronize();
}

}  // namespace tracea::cuda
