// What one run at a time needs on a GPU: a stream, and the arena that all plans of the session share on it, since its stream orders them.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_device.h"

namespace tracea::cuda {

struct Lane {
  explicit Lane(Device& device);  // the context must be current; throws Failure
  ~Lane();
  Lane(const Lane&) = delete;

  // Makes the arena at least this large. Growing it moves it: `generation` changes, and what was laid out on it must be laid out again.
  void reserve(size_t bytes);
  void synchronize();  // throws Failure, also where a kernel has met bad data
  // The word that kernels write which meet bad data, in host memory that the device sees: reading it costs nothing.
  Address fault_word();
  void report_fault();  // throws Failure if it was written; the lane's work must be done
  // Gives `held` back to the pool.
  void release_held();

  Device& device;
  Stream stream = nullptr;  // ordered with the legacy default stream, so that tensors of other libraries' default streams need no more synchronisation
  Stream side = nullptr;    // for recording graphs
  Buffer arena;
  long generation = 0;
  bool recording = false;   // a run on this lane is recorded on `side` as a whole (ORT's graph capture)
  std::vector<Address> held;  // blocks that a recorded run released: its replays use them
  volatile uint32_t* fault = nullptr;
  bool host_copies = false; // the run copied to or from the host, which a graph would not repeat
};

// The lanes of one session: as many as there were concurrent runs.
class Lanes {
 public:
  explicit Lanes(Device& device) : device(device) {}
  ~Lanes();

  // A run begins and ends on this thread (ORT's OnRunStart and OnRunEnd).
  Lane& enter();
  // `keep`: the lane is not used for other runs any more.
  void leave(bool synchronize, bool keep = false);
  // The lane of the run on this thread, or null.
  Lane* here() const;
  Lane& acquire();
  void release(Lane& lane);
  void synchronize();  // all of them

  Device& device;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> all_;
  std::vector<Lane*> idle_;
};

bool running();  // whether a run is on this thread

// The lane of the innermost run on this thread, of whatever session, if it is on this device; else null.
Lane* lane_of_thread(const Device& device);

// The lane a partition runs on: the thread's own, else (ORT's parallel executor) one of the session's, synchronised before and after.
class Borrowed {
 public:
  explicit Borrowed(Lanes& lanes);
  ~Borrowed();
  Borrowed(const Borrowed&) = delete;
  Lane& lane() const { return *lane_; }
  void done();  // throws Failure

 private:
  Lanes& lanes_;
  Lane* lane_;
  bool own_;
};

}  // namespace tracea::cuda
