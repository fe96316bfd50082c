// What one run at a time needs on a GPU: a stream, and the arena that all plans of the session
// share on it, since its stream orders them.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "plan/stats.h"

namespace tracea::cuda {

// What a session asks of its runs.
struct Settings {
  bool graphs = false;                // partitions replay recorded graphs
  bool sync_launches = false;         // wait for every launch, to learn which one fails
  std::optional<Stream> user_stream;  // run on this stream, which belongs to somebody else; null is
                                      // the legacy default stream
  size_t memory_limit =
      0;  // bytes of device memory that the provider may hold; 0 = as many as there are
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

struct StreamContext : Counted<&Stats::live_stream_contexts> {
  StreamContext(Device& device,
                const std::optional<Stream>& user);  // the context must be current; throws Failure
  ~StreamContext();
  StreamContext(const StreamContext&) = delete;

  // Makes the arena at least this large, and smaller again when runs have long asked for much less.
  // Both move it: `generation` changes, and what was laid out on it must be laid out again.
  void reserve(size_t bytes);
  void synchronize();  // throws Failure, also where a kernel has met bad data
  // Orders the run with a stream of ONNX Runtime's user: what it was given so far comes before what
  // the stream context is given next, and what it is given after the run after the stream context's
  // work. The stream context keeps its own stream, where its arena, its blocks and its graphs are.
  // Nothing for a stream that is not among the device's `sync_streams`.
  void wait_on(Stream guest);
  void wait_on_all();  // with all of them: ONNX Runtime does not tell which was meant
  void signal(
      Stream guest);  // lets it wait for the stream context's work so far, if the run waited on it
  void signal_guests();  // the end of the run, which was not waited for
  // The word that kernels write which meet bad data, in host memory that the device sees: reading
  // it costs nothing.
  Address fault_word();
  void report_fault();  // throws Failure if it was written; the stream context's work must be done
  // A recorded graph uses this block: nobody else may get it before `release_retained`.
  void retain(Address block);
  void release_retained();

  Device& device;
  Stream stream = nullptr;  // ordered with the legacy default stream, so that tensors of other
                            // libraries' default streams need no more synchronisation
  Stream capture_stream = nullptr;  // for recording graphs
  Buffer arena;
  long generation = 0;
  struct Record {
    int id = -1;
    long generation = 0, elsewhere = 0;
  } record;  // the graph id of the run (-1: none), and what must be the same at its end
  bool recording = false;  // a run on this stream context is recorded on `capture_stream` as a
                           // whole (ORT's graph capture)
  const bool foreign;      // `stream` belongs to the user
  std::vector<Address>
      retained;  // blocks that a recorded run allocated or released: its replays use them
  size_t asked = 0, asked_before = 0;  // most bytes in this window of `reserve`s and the one before
  long reserves = 0;
  volatile uint32_t* fault = nullptr;
  bool unfinished = false;     // a run on it was not waited for: its faults show later
  long partitions = 0;         // begun by the run
  bool failed = false;         // one of them
  std::vector<Stream> guests;  // joined by the run
  bool host_copies = false;    // the run copied to or from the host, which a graph would not repeat

 private:
  bool has_guest(Stream guest) const;
  void add_guest(Stream guest);
};

// The stream contexts of one session: as many as there were concurrent runs.
class StreamPool {
 public:
  explicit StreamPool(Device& device, Settings settings = {})
      : device(device), settings(std::move(settings)) {}
  ~StreamPool();

  // A run begins and ends on this thread (ORT's OnRunStart and OnRunEnd).
  StreamContext& enter();
  // `keep`: the stream context is not used for other runs any more.
  void leave(bool synchronize, bool keep = false);
  // The stream context of the run on this thread, or null.
  StreamContext* current() const;
  StreamContext& acquire();
  void release(StreamContext& ctx);
  void synchronize();     // all of them
  void drain() noexcept;  // waits for their work before they go
  // Runs are spread over threads from now on.
  void mark_threaded();
  // Partitions lie in bodies of control flow, where ONNX Runtime does not tell the stream that a
  // run was given.
  void expect_bodies() { bodies_ = true; }
  // Partitions that ran on other stream contexts than their run's.
  long elsewhere() const { return elsewhere_; }

  Device& device;
  const Settings settings;

 private:
  std::mutex mutex_;
  bool threads_ = false;
  std::atomic<bool> bodies_{false};
  std::atomic<long> elsewhere_{0};
  friend class ScopedContext;
  std::vector<std::unique_ptr<StreamContext>> all_;
  std::vector<StreamContext*> idle_;
};

// Lets `later` wait for what `earlier` was given so far; they may be of two devices. Throws
// Failure.
void order(Device& earlier_device, Stream earlier, Device& later_device, Stream later);

bool running();  // whether a run is on this thread

// The stream context of the innermost run on this thread that is on this device, of whatever
// session; else null.
StreamContext* context_of_thread(const Device& device);

// The stream context a partition runs on: the thread's own, else (ORT's parallel executor) one of
// the session's, synchronised before and after.
class ScopedContext {
 public:
  explicit ScopedContext(StreamPool& streams);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  StreamContext& ctx() const { return *ctx_; }
  void done();  // throws Failure

 private:
  StreamPool& streams_;
  StreamContext* ctx_;
  bool own_;
};

}  // namespace tracea::cuda
