#include "cuda/lane.h"

#include <algorithm>
#include <utility>

#include "plan/failure.h"

namespace tracea::cuda {
namespace {

struct Running {
  const Lanes* session;
  Lane* lane;
};
thread_local std::vector<Running> runs;

}  // namespace

Lane::Lane(Device& d, const std::optional<Stream>& user)
    : device(d), stream(user.value_or(nullptr)), foreign(user.has_value()) {
  if (!foreign)
    check(device.attempt([&] { return driver().stream_create(&stream, kStreamDefault); }),
          "making a stream");
  const Result r =
      device.attempt([&] { return driver().stream_create(&side, kStreamNonBlocking); });
  if (r != kSuccess && !foreign) driver().stream_destroy(stream);
  check(r, "making a stream");
}

Lane::~Lane() {
  const Driver* d = usable();
  if (!d) return;
  if (foreign)
    d->context_synchronize();  // its owner may have destroyed it
  else
    d->stream_synchronize(stream), d->stream_destroy(stream);
  release_held();
  device.pool.settle(this);
  if (side) d->stream_destroy(side);
  if (fault) device.pinned.release(reinterpret_cast<Address>(fault), nullptr);
}

void Lane::reserve(size_t bytes) {
  constexpr long kWindow = 256;
  constexpr size_t kUnnoticed = size_t(64) << 20;
  if (++reserves % kWindow == 0) asked_before = std::exchange(asked, 0);
  asked = std::max(asked, bytes);
  const size_t most = std::max(asked, asked_before);
  const bool shrink = reserves > 2 * kWindow && arena.bytes() > 2 * most + kUnnoticed;
  if (arena.bytes() >= bytes && !shrink) return;
  if (arena.bytes()) synchronize();  // the old arena must be idle when it goes back
  arena = Buffer();
  arena = Buffer(device, shrink ? most : bytes);
  generation++;
}

void Lane::synchronize() {
  check(driver().stream_synchronize(stream), "running");
  device.pool.settle(this);
  device.pinned.settle(nullptr);
  report_fault();
}

void order(Device& earlier_device, Stream earlier, Device& later_device, Stream later) {
  Event event = nullptr;
  {
    const Current current(earlier_device);
    check(driver().event_create(&event, kEventNoTiming), "making an event");
    const Result r = driver().event_record(event, earlier);
    if (r != kSuccess) driver().event_destroy(event);
    check(r, "ordering two streams");
  }
  const Current current(later_device);
  const Result r = driver().stream_wait(later, event, 0);
  driver().event_destroy(event);  // once it was reached
  check(r, "ordering two streams");
}

bool Lane::joined(Stream guest) const {
  return std::find(guests.begin(), guests.end(), guest) != guests.end();
}

void Lane::follow(Stream guest) {
  if (guest == stream || joined(guest)) return;
  order(device, guest, device, stream);
  guests.push_back(guest);
}

void Lane::join(Stream guest) {
  if (device.sync_streams.has(guest)) follow(guest);
}

void Lane::join_all() {
  device.sync_streams.each([&](Stream guest) { follow(guest); });
}

void Lane::show(Stream guest) {
  if (joined(guest)) order(device, stream, device, guest);
}

void Lane::leave_guests() {
  if (!guests.empty()) device.sync_streams.each([&](Stream guest) { show(guest); });
  guests.clear();
}

Address Lane::fault_word() {
  if (!fault) {
    fault = reinterpret_cast<uint32_t*>(device.pinned.allocate(sizeof *fault, nullptr));
    *fault = 0;
  }
  return reinterpret_cast<Address>(fault);
}

void Lane::report_fault() {
  const bool earlier = std::exchange(unfinished, false);
  if (!fault || !*fault) return;
  *fault = 0;
  throw Failure(std::string("a Gather met an index out of range of its tensor, or a TopK a row of "
                            "fewer elements than it is to give") +
                (earlier ? ", in this run or an earlier one that was not synchronised" : ""));
}

void Lane::hold(Address block) {
  held.push_back(block);
  device.pool.hold(block);
}

void Lane::release_held() {
  for (Address a : held) device.pool.let_go(a, this);
  held.clear();
}

Lanes::~Lanes() {
  const Current current(device, std::nothrow);
  all_.clear();
  if (threads_) device.pool.expect_threads(false);
}

void Lanes::expect_threads() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!threads_) device.pool.expect_threads(true);
  threads_ = true;
}

Lane& Lanes::acquire() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      Lane* lane = idle_.back();  // the one used last: its arena and argument lists are warm
      idle_.pop_back();
      return *lane;
    }
  }
  auto made = std::make_unique<Lane>(device, settings.user_stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.reserve(all_.size() + 1);  // so that giving one back needs no memory
  all_.push_back(std::move(made));
  return *all_.back();
}

void Lanes::release(Lane& lane) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(&lane);
}

Lane& Lanes::enter() {
  const Current current(device);
  runs.reserve(runs.size() + 1);
  Lane& lane = acquire();
  lane.host_copies = lane.failed = false;
  lane.partitions = 0;
  lane.guests.clear();
  try {
    if (bodies_) lane.join_all();
  } catch (...) {
    release(lane);
    throw;
  }
  runs.push_back({this, &lane});
  return lane;
}

void Lanes::leave(bool synchronize, bool keep) {
  const auto it = std::find_if(runs.rbegin(), runs.rend(),
                               [this](const Running& r) { return r.session == this; });
  if (it == runs.rend()) return;
  Lane& lane = *it->lane;
  runs.erase(std::next(it).base());
  const struct Release {  // also when the run has failed on the device
    Lanes& lanes;
    Lane& lane;
    bool keep;
    ~Release() {
      if (!keep) lanes.release(lane);
    }
  } release{*this, lane, keep};
  const Current current(device);
  if (synchronize) {
    lane.guests.clear();  // what they are given next comes later anyway
    return lane.synchronize();
  }
  lane.unfinished = true;
  device.pool.expect_unfinished();
  lane.leave_guests();
}

Lane* Lanes::here() const {
  for (auto it = runs.rbegin(); it != runs.rend(); ++it)
    if (it->session == this) return it->lane;
  return nullptr;
}

void Lanes::synchronize() {
  const Current current(device);
  std::vector<Lane*> lanes;  // none goes before all of them do
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& lane : all_) lanes.push_back(lane.get());
  }
  for (const Lane* lane : lanes)
    check(driver().stream_synchronize(lane->stream),
          "running");  // which may take long, and nobody waits for the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Lane* lane : idle_) lane->report_fault();  // a run in flight reports its own
}

void Lanes::drain() noexcept {
  try {
    const Current current(device);
    if (settings.user_stream)
      driver().context_synchronize();  // the stream's owner may have destroyed it
    else
      synchronize();
  } catch (...) {  // a run has failed, or the driver is gone: what belongs to the session goes all
                   // the same
  }
}

bool running() { return !runs.empty(); }

Lane* lane_of_thread(const Device& device) {
  const auto it = std::find_if(runs.rbegin(), runs.rend(),
                               [&](const Running& r) { return &r.lane->device == &device; });
  return it == runs.rend() ? nullptr : it->lane;
}

Borrowed::Borrowed(Lanes& lanes) : lanes_(lanes), lane_(lanes.here()), own_(lane_) {
  if (own_) return;
  lanes.expect_threads();
  lanes.elsewhere_++;
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
