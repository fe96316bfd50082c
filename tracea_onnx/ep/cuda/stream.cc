#include "cuda/stream.h"

#include <memory>

#include "cuda/stream_context.h"
#include "ort/graph.h"

namespace tracea::cuda {
namespace {

// `device` is null for the stream of a session.
struct SyncStream : OrtSyncStreamImpl {
  Device* device;
  Stream stream;
};

struct Notification : OrtSyncNotificationImpl {
  Device* device;
  Stream stream;
  Event event;  // null until it is activated
};

// What the stream was given so far, and the run on this thread, where that is ordered with the
// stream.
void activate(Notification& n) {
  if (!n.device) return;
  const Current current(*n.device);
  if (!n.event) check(driver().event_create(&n.event, kEventNoTiming), "making an event");
  if (StreamContext* ctx = context_of_thread(*n.device)) ctx->signal(n.stream);
  check(driver().event_record(n.event, n.stream), "recording an event");
}

void wait_on_host(Notification& n) {
  if (!n.event) return;
  const Current current(*n.device);
  check(driver().event_synchronize(n.event), "running");
}

void wait_on_device(Notification& n, OrtSyncStream* consumer) {
  if (!n.event) return;
  const Stream given = stream_of(consumer);
  if (!n.device->sync_streams.has(given))
    return wait_on_host(n);  // of a session, or of another provider
  const Current current(*n.device);
  check(driver().stream_wait(given, n.event, 0), "waiting for an event");
}

OrtSyncNotificationImpl* make_notification(const SyncStream& s) {
  auto n = new Notification();
  n->ort_version_supported = ort.abi;
  n->device = s.device;
  n->stream = s.stream;
  n->Release = [](OrtSyncNotificationImpl* self) {
    const std::unique_ptr<Notification> gone(static_cast<Notification*>(self));
    if (!gone->event) return;
    const Current current(*gone->device, std::nothrow);
    if (const Driver* d = usable()) d->event_destroy(gone->event);
  };
  n->Activate = [](OrtSyncNotificationImpl* self) { activate(*static_cast<Notification*>(self)); };
  n->WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* consumer) {
    wait_on_device(*static_cast<Notification*>(self), consumer);
  };
  n->WaitOnHost = [](OrtSyncNotificationImpl* self) {
    wait_on_host(*static_cast<Notification*>(self));
  };
  return n;
}

void release(OrtSyncStreamImpl* self) {
  const std::unique_ptr<SyncStream> gone(static_cast<SyncStream*>(self));
  if (!gone->device) return;
  gone->device->sync_streams.remove(gone->stream);
  const Current current(*gone->device, std::nothrow);
  if (const Driver* d = usable()) d->stream_destroy(gone->stream);  // its work is still done
}

void flush(const SyncStream& s) {
  if (!s.device) return;
  const Current current(*s.device);
  check(driver().stream_synchronize(s.stream), "running");
}

OrtSyncStreamImpl* make(Device* device, Stream stream) {
  auto s = new SyncStream();
  s->ort_version_supported = ort.abi;
  s->device = device;
  s->stream = stream;
  s->Release = [](OrtSyncStreamImpl* it) { release(it); };
  s->GetHandle = [](OrtSyncStreamImpl* it) {
    return static_cast<void*>(static_cast<SyncStream*>(it)->stream);
  };
  s->CreateNotification = [](OrtSyncStreamImpl* it, OrtSyncNotificationImpl** out) {
    *out = make_notification(*static_cast<SyncStream*>(it));
  };
  s->Flush = [](OrtSyncStreamImpl* it) { flush(*static_cast<SyncStream*>(it)); };
  s->OnSessionRunEnd = [](OrtSyncStreamImpl*) {};
  return s;
}

}  // namespace

OrtSyncStreamImpl* make_user_stream(const OrtMemoryDevice* where) {
  Device& device = Device::get(int(ort.MemoryDevice_GetDeviceId(where)));
  const Current current(device);
  Stream stream = nullptr;
  check(device.attempt([&] { return driver().stream_create(&stream, kStreamDefault); }),
        "making a stream");
  OrtSyncStreamImpl* made = nullptr;
  try {
    made = make(&device, stream);
    device.sync_streams.add(stream);
  } catch (...) {
    delete static_cast<SyncStream*>(made);
    driver().stream_destroy(stream);
    throw;
  }
  return made;
}

OrtSyncStreamImpl* make_session_stream() { return make(nullptr, nullptr); }

}  // namespace tracea::cuda
