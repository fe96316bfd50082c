#include "ort/compiler.h"

#include <signal.h>

#include <atomic>

#include "ort/boundary.h"
#include "ort/python.h"
#include "plan/failure.h"
#include "plan/stats.h"

namespace tracea {
namespace {

using Reply = Callback<void(void* context, const uint8_t* bytes, size_t n)>;
using Compiler = int (*)(const uint8_t* request, size_t n, Reply::Pointer reply, void* context);

std::atomic<Compiler> callback{nullptr};

// Ctrl-C came while the callback ran on this thread: every later question of the same session fails
// at once.
thread_local bool interrupted = false;
constexpr int kInterrupted = 2;  // what the callback answers then

}  // namespace

void new_session() { interrupted = false; }

bool has_compiler() { return callback.load() != nullptr; }

bool find_compiler(const std::string& python) {
  return has_compiler() || attach_own_python() || !child_python(python).empty();
}

std::shared_ptr<const Pack> compile(const std::string& request, const std::vector<Blob>& constants,
                                    const std::string& python, bool keep) {
  if (interrupted) throw Failure("interrupted");
  stats.compile_requests++;
  const Compiler ask = callback.load();
  if (!ask) {
    bool failed = false;
    const std::string reply = ask_child(child_python(python), request, constants, failed);
    if (failed) throw Failure(reply);
    return Pack::parse(reply.data(), reply.size(), keep);
  }
  struct {
    std::string bytes;
    bool whole = false;
  } reply;
  const Reply take = [](void* context, const uint8_t* bytes, size_t n) {
    auto& r = *static_cast<decltype(reply)*>(context);
    r.bytes.assign(reinterpret_cast<const char*>(bytes), n);
    r.whole = true;
  };
  const int failed =
      ask(reinterpret_cast<const uint8_t*>(request.data()), request.size(), take, &reply);
  if (failed == kInterrupted) {
    interrupted = true;
    raise(SIGINT);  // the callback could not raise into native code: Python's handler raises once
                    // this thread is back in Python
  }
  if (failed)
    throw Failure(reply.bytes.empty() ? "the compiler failed without a message" : reply.bytes);
  if (!reply.whole) throw Failure("the compiler's reply was not taken; memory is short");
  return Pack::parse(reply.bytes.data(), reply.bytes.size(), keep);
}

}  // namespace tracea

// Null takes the compiler away again.
TRACEA_EXPORT void tracea_set_compiler(tracea::Compiler compiler) noexcept {
  tracea::callback.store(compiler);
}
