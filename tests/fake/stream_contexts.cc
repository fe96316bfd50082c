// What sessions of two GPUs and ONNX Runtime's parallel executor ask of stream contexts and pools,
// on the stand-in of the driver. ONNX Runtime itself begins no run of one session within a run of
// another; custom operators do. A line for each fault, and 1 as the result.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "cuda/device.h"
#include "cuda/factory.cc"
#include "cuda/stream_context.h"

namespace tracea {
// ONNX Runtime is not there, and not asked.
Ort ort;
void check(OrtStatus*) {}
OrtStatus* failed(Code, const char*) noexcept { return nullptr; }
}  // namespace tracea

namespace tracea::cuda {
OrtSyncStreamImpl* make_user_stream(const OrtMemoryDevice*) { return nullptr; }

namespace {

int faults = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  printf("%s\n", what);
  faults++;
}

void nested_runs_on_two_devices() {
  Device &first = Device::get(0), &second = Device::get(1);
  StreamPool outer(first), inner(second);
  StreamContext& x = outer.enter();
  Address block = 0;
  {
    const Current current(first);
    block = first.pool.allocate(1000, context_of_thread(first));
  }
  StreamContext& y = inner.enter();
  expect(context_of_thread(first) == &x && context_of_thread(second) == &y,
         "a stream context is not found below the run of another device");
  {
    const Current current(first);
    first.pool.release(block, context_of_thread(first));
    const Address other = first.pool.allocate(1000, nullptr);
    expect(other != block, "a block of a run in flight went to somebody else");
    first.pool.release(other, nullptr);
  }
  inner.leave(true);
  expect(context_of_thread(first) == &x && !context_of_thread(second),
         "a stream context outlives its run");
  outer.leave(true);
}

// Both stream contexts have work to do when the copy is asked for: one that makes the source, one
// that writes the target first. Whichever stream context is done first.
void copies_between_two_lanes(bool source_first) {
  Device &first = Device::get(0), &second = Device::get(1);
  StreamPool outer(first), inner(second);
  StreamContext &x = outer.enter(), &y = inner.enter();
  constexpr size_t kBytes = 256;
  Address from = 0, to = 0;
  {
    const Current current(first);
    from = first.pool.allocate(kBytes, &x);
    check(driver().fill_async(from, 1, kBytes, x.stream), "filling");
  }
  const Current current(second);
  to = second.pool.allocate(kBytes, &y);
  check(driver().fill_async(to, 2, kBytes, y.stream), "filling");
  copy_across(first, second, from, to, kBytes);
  if (source_first) check(driver().stream_synchronize(x.stream), "waiting");
  check(driver().stream_synchronize(y.stream), "waiting");
  expect(*reinterpret_cast<const char*>(to) == 1,
         source_first
             ? "a copy between devices does not wait for the stream context of its target"
             : "the stream context of its target does not wait for a copy between devices");
  second.pool.release(to, &y);
  inner.leave(true);
  outer.leave(true);
}

Driver::stream_synchronize_t* honest = nullptr;
StreamPool* watched = nullptr;

void nobody_waits_for_a_stream_with_the_lock() {
  auto& table = const_cast<Driver&>(driver());
  StreamPool streams(Device::get(0));
  streams.enter();
  streams.leave(true);
  honest = table.stream_synchronize;
  watched = &streams;
  table.stream_synchronize = [](Stream stream) {
    auto other = std::async(std::launch::async, [] {
      watched->release(watched->acquire());
    });  // an idle one, which needs no context
    if (other.wait_for(std::chrono::seconds(30)) !=
        std::future_status::ready) {  // for ever: whoever holds the lock waits here
      printf("a stream context cannot be had while another one's stream is waited for\n");
      fflush(stdout);
      _exit(1);
    }
    return honest(stream);
  };
  streams.synchronize();
  table.stream_synchronize = honest;
}

long waits_for_the_device(Device& device) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto log = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_cuda_log"));
  reinterpret_cast<void (*)()>(dlsym(library, "fake_cuda_clear"))();
  const Current current(device);
  for (int k = 0; k < 3; k++) device.pool.release(device.pool.allocate(1000, nullptr), nullptr);
  long n = 0;
  for (const char* at = log(); (at = strstr(at, "synchronize device")); at++) n++;
  return n;
}

void releases_wait_only_while_a_session_uses_threads() {
  Device& device = Device::get(0);
  expect(waits_for_the_device(device) == 0, "a release waits though no session uses threads");
  {
    StreamPool streams(device), others(device);
    streams.mark_threaded();
    streams.mark_threaded();
    expect(waits_for_the_device(device) == 3, "a release does not wait for threads of a session");
  }
  expect(waits_for_the_device(device) == 0, "releases wait for a session that is gone");
}

}  // namespace
}  // namespace tracea::cuda

int main() {
  using namespace tracea::cuda;
  nested_runs_on_two_devices();
  copies_between_two_lanes(false);
  copies_between_two_lanes(true);
  releases_wait_only_while_a_session_uses_threads();
  nobody_waits_for_a_stream_with_the_lock();
  return faults != 0;
}
