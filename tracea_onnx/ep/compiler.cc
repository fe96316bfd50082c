#include "compiler.h"

#include <signal.h>

#include <atomic>

#include "failure.h"
#include "stats.h"

namespace tracea {
namespace {

using Reply = void (*)(void* context, const uint8_t* bytes, size_t n);
using Callback = int (*)(const uint8_t* request, size_t n, Reply reply, void* context);

std::atomic<Callback> callback{nullptr};

// Ctrl-C came while the callback ran on this thread: every later question of the same session fails at once.
thread_local bool interrupted = false;
constexpr int kInterrupted = 2;  // what the callback answers then

}  // namespace

void new_session() { interrupted = false; }

bool has_compiler() { return callback.load() != nullptr; }

std::shared_ptr<const Pack> compile(const std::string& request) {
  const Callback ask = callback.load();
  if (!ask) throw Failure("no compiler is registered");
  if (interrupted) throw Failure("interrupted");
  std::string reply;
  stats.compile_requests++;
  const int failed = ask(reinterpret_cast<const uint8_t*>(request.data()), request.size(),
                         [](void* context, const uint8_t* bytes, size_t n) { static_cast<std::string*>(context)->assign(reinterpret_cast<const char*>(bytes), n); }, &reply);
  if (failed == kInterrupted) {
    interrupted = true;
    raise(SIGINT);  // the callback could not raise into native code: Python's handler raises once this thread is back in Python
  }
  if (failed) throw Failure(reply.empty() ? "the compiler failed without a message" : reply);
  return Pack::parse(reply.data(), reply.size());
}

}  // namespace tracea

// Null takes the compiler away again.
extern "C" __attribute__((visibility("default"))) void tracea_set_compiler(tracea::Callback cb) { tracea::callback.store(cb); }
