// Between the parts of the runtime: what waits, and what engines of the device do on their own.
#pragma once
#include <functional>
#include "threads.h"

namespace emulated {
// Waits for wake(key). what: in a message of threads that wait for ever.
void sleep(const char* what, const void* key);
void wake(const void* key);
// Before all others that are ready: what was let go on too early then shows.
void wake_first(const void* key);
// Work of copy engines: it is done when no thread can go on, as late as may be.
void later(std::function<void()> work);
// Those of bulk stores of a thread, which are done when they are waited for.
void store_later(std::function<void()> work);
// Of this thread's warp in the cluster.
u32 warp_in_cluster();
// Copies of this thread that are not waited for (cp.async), as one.
std::function<void()> copies_so_far();
// A new cluster has no instructions of tensor cores in flight.
void clear_tensor_cores();
}  // namespace emulated
