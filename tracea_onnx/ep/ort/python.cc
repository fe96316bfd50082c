#include "ort/python.h"

#if defined(_WIN32)
#include <windows.h>
// after it
#include <psapi.h>
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#if defined(__APPLE__)
#include <crt_externs.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "ort/boundary.h"
#include "plan/failure.h"
#include "plan/files.h"

namespace tracea {

#if defined(_WIN32)

std::string library_path() {
  HMODULE library = nullptr;
  wchar_t path[1 << 12] = {};
  constexpr DWORD kByAddress =
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (!GetModuleHandleExW(kByAddress, reinterpret_cast<const wchar_t*>(&library_path), &library) ||
      GetModuleFileNameW(library, path, sizeof path / sizeof *path) == sizeof path / sizeof *path)
    return "";
  return utf8(path);
}

namespace {

// A function of the program or of any of its libraries.
void* function_of_process(const char* name) {
  HMODULE libraries[1 << 10];
  DWORD bytes = 0;
  if (!K32EnumProcessModules(GetCurrentProcess(), libraries, sizeof libraries, &bytes))
    return nullptr;
  for (size_t k = 0; k < std::min(size_t(bytes), sizeof libraries) / sizeof *libraries; k++)
    if (void* const found = reinterpret_cast<void*>(GetProcAddress(libraries[k], name)))
      return found;
  return nullptr;
}

#else

std::string library_path() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&library_path), &info) && info.dli_fname ? info.dli_fname
                                                                                 : "";
}

namespace {

// A function of the program or of any of its libraries.
void* function_of_process(const char* name) { return dlsym(RTLD_DEFAULT, name); }

#if defined(__APPLE__)
char** environment() { return *_NSGetEnviron(); }
constexpr int kNoSignal = 0;  // SO_NOSIGPIPE below
#else
char** environment() { return environ; }
constexpr int kNoSignal = MSG_NOSIGNAL;
#endif

#if defined(SOCK_CLOEXEC)
constexpr int kStream = SOCK_STREAM | SOCK_CLOEXEC;
#else
constexpr int kStream = SOCK_STREAM;  // FD_CLOEXEC below
#endif

// Two ends that no other child inherits, and that raise no signal when the other end is closed.
bool make_sockets(int (&ends)[2]) {
  if (socketpair(AF_UNIX, kStream, 0, ends)) return false;
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
#if defined(__APPLE__)
    const int on = 1;
    setsockopt(end, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  }
  return true;
}

// The child: a socket to its standard input, on which both sides write.
//   request:  u64 bytes, bytes
//   replies:  'c' u64 address, u64 bytes (answered with the bytes there), then
//             'r' or 'e', u64 bytes, bytes
class Child {
 public:
  // The reply, or nothing when the child has ended before it said anything.
  bool ask(const std::string& request, const std::vector<Blob>& constants, std::string& reply,
           bool& failed) {
    const uint64_t n = request.size();
    if (!send(&n, sizeof n) || !send(request.data(), n)) return false;
    char kind;
    if (!receive(&kind, 1)) return false;
    for (; kind == 'c'; expect(receive(&kind, 1))) {
      uint64_t at[2];
      expect(receive(at, sizeof at));
      const auto named = [&](const Blob& b) {
        return reinterpret_cast<uintptr_t>(b.data) == at[0] && b.bytes == at[1];
      };
      const auto found = std::find_if(constants.begin(), constants.end(), named);
      expect(found != constants.end() && send(found->data, found->bytes));
    }
    uint64_t bytes = 0;
    expect((kind == 'r' || kind == 'e') && receive(&bytes, sizeof bytes) && bytes < kMostBytes);
    reply.resize(bytes);
    expect(receive(reply.data(), bytes));
    failed = kind == 'e';
    return true;
  }

  // Whether a child of this Python runs that this process has started.
  bool serves(const std::string& python) const {
    return socket_ >= 0 && python == python_ && owner_ == getpid();
  }

  void start(const std::string& python) {
    end();
    int ends[2];
    if (!make_sockets(ends))
      throw Failure(std::string("no socket for the compiler: ") + strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);  // its output is no output of the program
    // -P: the working directory is no place to import from
    const char* arguments[] = {python.c_str(), "-P", "-m", "tracea_onnx.compiler.serve", nullptr};
    const int error = posix_spawn(&pid_, python.c_str(), &actions, nullptr,
                                  const_cast<char**>(arguments), environment());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error) {
      close(ends[0]);
      throw Failure("'" + python + "' does not start: " + strerror(error));
    }
    socket_ = ends[0], python_ = python, owner_ = getpid();
  }

  void end() {
    if (socket_ < 0) return;
    close(socket_);  // its end of file ends the child
    socket_ = -1;
    if (owner_ == getpid()) waitpid(pid_, nullptr, 0);
  }

 private:
  static constexpr uint64_t kMostBytes = uint64_t(1) << 40;

  bool send(const void* data, size_t n) {
    for (auto p = static_cast<const char*>(data); n;) {
      const ssize_t sent = ::send(socket_, p, n, kNoSignal);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      p += sent, n -= size_t(sent);
    }
    return true;
  }
  bool receive(void* data, size_t n) {
    for (auto p = static_cast<char*>(data); n;) {
      const ssize_t got = recv(socket_, p, n, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      p += got, n -= size_t(got);
    }
    return true;
  }
  void expect(bool true_) {
    if (true_) return;
    end();
    throw Failure("the compiler, a child of this process (" + python_ + "), has ended");
  }

  int socket_ = -1;
  pid_t pid_ = 0, owner_ = 0;
  std::string python_;
};

std::mutex child_mutex;
Child child;

#endif  // _WIN32

}  // namespace

bool attach_own_python() {
  // Python's C API, from whatever program or library has it.
  struct Object;
  const auto function = [](auto*& f, const char* name) {
    return (f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(function_of_process(name)));
  };
  int (*initialized)();
  int (*ensure)();
  void (*release)(int);
  Object* (*import)(const char*);
  Object* (*call)(Object*, const char*, const char*, ...);
  void (*unref)(Object*);
  void (*clear)();
  if (!function(initialized, "Py_IsInitialized") || !initialized() ||
      !function(ensure, "PyGILState_Ensure") || !function(release, "PyGILState_Release") ||
      !function(import, "PyImport_ImportModule") || !function(call, "PyObject_CallMethod") ||
      !function(unref, "Py_DecRef") || !function(clear, "PyErr_Clear"))
    return false;
  const int state = ensure();
  Object* const module = import("tracea_onnx.provider");
  Object* const done = module ? call(module, "attach", "s", library_path().c_str()) : nullptr;
  const bool attached = done;
  if (!attached) clear();
  if (done) unref(done);
  if (module) unref(module);
  release(state);
  return attached;
}

#if defined(_WIN32)

std::string child_python(const std::string& wanted) { return wanted; }

std::string ask_child(const std::string& python, const std::string&, const std::vector<Blob>&,
                      bool&) {
  throw Failure("'" + python +
                "' is not started on Windows; compile the model with `tracea-onnx compile`, or "
                "give the session a kernel_pack");
}

#else

std::string child_python(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  if (const char* named = getenv("TRACEA_PYTHON"); named && *named) return named;
  // PREFIX/lib/pythonX.Y/site-packages/tracea_onnx/LIBRARY
  std::string path = library_path();
  std::string parts[4];
  for (std::string& part : parts) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return "";
    part = path.substr(slash + 1);
    path.resize(slash);
  }
  if (parts[2] != "site-packages" || parts[3].compare(0, 6, "python")) return "";
  path = path.substr(0, path.rfind('/') + 1) + "bin/" + parts[3];
  return access(path.c_str(), X_OK) ? "" : path;
}

std::string ask_child(const std::string& python, const std::string& request,
                      const std::vector<Blob>& constants, bool& failed) {
  const std::lock_guard<std::mutex> lock(child_mutex);
  std::string reply;
  if (child.serves(python) && child.ask(request, constants, reply, failed)) return reply;
  child.start(python);
  if (child.ask(request, constants, reply, failed)) return reply;
  child.end();
  throw Failure("'" + python +
                "' cannot compile: the package tracea-onnx is not installed there, or is broken");
}

#endif

}  // namespace tracea
