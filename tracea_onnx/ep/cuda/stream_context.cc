#include "cuda/stream_context.h"

#include <algorithm>
#include <utility>

#include "plan/failure.h"

namespace tracea::cuda {
namespace {

struct Running {
  const StreamPool* session;
  StreamContext* ctx;
};
thread_local std::vector<Running> runs;

}  // namespace

StreamContext::StreamContext(Device& d, const std::optional<Stream>& user)
    : device(d), stream(user.value_or(nullptr)), foreign(user.has_value()) {
  if (!foreign)
    check(device.attempt([&] { return driver().stream_create(&stream, kStreamDefault); }),
          "making a stream");
  const Result r =
      device.attempt([&] { return driver().stream_create(&capture_stream, kStreamNonBlocking); });
  if (r != kSuccess && !foreign) driver().stream_destroy(stream);
  check(r, "making a stream");
}

StreamContext::~StreamContext() {
  const Driver* d = usable();
  if (!d) return;
  if (foreign)
    d->context_synchronize();  // its owner may have destroyed it
  else
    d->stream_synchronize(stream), d->stream_destroy(stream);
  release_retained();
  device.pool.on_synchronized(this);
  if (capture_stream) d->stream_destroy(capture_stream);
  if (fault) device.pinned.release(reinterpret_cast<Address>(fault), nullptr);
}

void StreamContext::reserve(size_t bytes) {
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

void StreamContext::synchronize() {
  check(driver().stream_synchronize(stream), "running");
  device.pool.on_synchronized(this);
  device.pinned.on_synchronized(nullptr);
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

bool StreamContext::has_guest(Stream guest) const {
  return std::find(guests.begin(), guests.end(), guest) != guests.end();
}

void StreamContext::add_guest(Stream guest) {
  if (guest == stream || has_guest(guest)) return;
  order(device, guest, device, stream);
  guests.push_back(guest);
}

void StreamContext::wait_on(Stream guest) {
  if (device.sync_streams.has(guest)) add_guest(guest);
}

void StreamContext::wait_on_all() {
  device.sync_streams.each([&](Stream guest) { add_guest(guest); });
}

void StreamContext::signal(Stream guest) {
  if (has_guest(guest)) order(device, stream, device, guest);
}

void StreamContext::signal_guests() {
  if (!guests.empty()) device.sync_streams.each([&](Stream guest) { signal(guest); });
  guests.clear();
}

Address StreamContext::fault_word() {
  if (!fault) {
    fault = reinterpret_cast<uint32_t*>(device.pinned.allocate(sizeof *fault, nullptr));
    *fault = 0;
  }
  return reinterpret_cast<Address>(fault);
}

void StreamContext::report_fault() {
  const bool earlier = std::exchange(unfinished, false);
  if (!fault || !*fault) return;
  *fault = 0;
  throw Failure(std::string("a Gather met an index out of range of its tensor, or a TopK a row of "
                            "fewer elements than it is to give") +
                (earlier ? ", in this run or an earlier one that was not synchronised" : ""));
}

void StreamContext::retain(Address block) {
  retained.push_back(block);
  device.pool.retain(block);
}

void StreamContext::release_retained() {
  for (Address a : retained) device.pool.unretain(a, this);
  retained.clear();
}

StreamPool::~StreamPool() {
  const Current current(device, std::nothrow);
  all_.clear();
  if (threads_) device.pool.require_sync_on_free(false);
}

void StreamPool::mark_threaded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!threads_) device.pool.require_sync_on_free(true);
  threads_ = true;
}

StreamContext& StreamPool::acquire() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      StreamContext* ctx =
          idle_.back();  // the one used last: its arena and argument lists are warm
      idle_.pop_back();
      return *ctx;
    }
  }
  auto made = std::make_unique<StreamContext>(device, settings.user_stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.reserve(all_.size() + 1);  // so that giving one back needs no memory
  all_.push_back(std::move(made));
  return *all_.back();
}

void StreamPool::release(StreamContext& ctx) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(&ctx);
}

StreamContext& StreamPool::enter() {
  const Current current(device);
  runs.reserve(runs.size() + 1);
  StreamContext& ctx = acquire();
  ctx.host_copies = ctx.failed = false;
  ctx.partitions = 0;
  ctx.guests.clear();
  try {
    if (bodies_) ctx.wait_on_all();
  } catch (...) {
    release(ctx);
    throw;
  }
  runs.push_back({this, &ctx});
  return ctx;
}

void StreamPool::leave(bool synchronize, bool keep) {
  const auto it = std::find_if(runs.rbegin(), runs.rend(),
                               [this](const Running& r) { return r.session == this; });
  if (it == runs.rend()) return;
  StreamContext& ctx = *it->ctx;
  runs.erase(std::next(it).base());
  const struct Release {  // also when the run has failed on the device
    StreamPool& streams;
    StreamContext& ctx;
    bool keep;
    // `acquire` has made room for it: NOLINTNEXTLINE(bugprone-exception-escape)
    ~Release() {
      if (!keep) streams.release(ctx);
    }
  } release{*this, ctx, keep};
  const Current current(device);
  if (synchronize) {
    ctx.guests.clear();  // what they are given next comes later anyway
    return ctx.synchronize();
  }
  ctx.unfinished = true;
  device.pool.mark_async();
  ctx.signal_guests();
}

StreamContext* StreamPool::current() const {
  for (auto it = runs.rbegin(); it != runs.rend(); ++it)
    if (it->session == this) return it->ctx;
  return nullptr;
}

void StreamPool::synchronize() {
  const Current current(device);
  std::vector<StreamContext*> streams;  // none goes before all of them do
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& ctx : all_) streams.push_back(ctx.get());
  }
  for (const StreamContext* ctx : streams)
    check(driver().stream_synchronize(ctx->stream),
          "running");  // which may take long, and nobody waits for the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  for (StreamContext* ctx : idle_) ctx->report_fault();  // a run in flight reports its own
}

void StreamPool::drain() noexcept {
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

StreamContext* context_of_thread(const Device& device) {
  const auto it = std::find_if(runs.rbegin(), runs.rend(),
                               [&](const Running& r) { return &r.ctx->device == &device; });
  return it == runs.rend() ? nullptr : it->ctx;
}

ScopedContext::ScopedContext(StreamPool& streams)
    : streams_(streams), ctx_(streams.current()), own_(ctx_) {
  if (own_) return;
  streams.mark_threaded();
  streams.elsewhere_++;
  streams.synchronize();  // other threads of the same run may have made the inputs
  ctx_ = &streams.enter();
}

ScopedContext::~ScopedContext() {
  if (own_) return;
  try {
    streams_.leave(true);
  } catch (...) {  // reported by done(), or the run has failed already
  }
}

void ScopedContext::done() {
  if (!own_) ctx_->synchronize();
}

}  // namespace tracea::cuda
