// The C ABI of this library: whatever others call goes through here, so that no exception leaves
// it. ORT, Python's ctypes and the C library have no way to catch one.
#pragma once
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <type_traits>

struct OrtStatus;

#if defined(_WIN32)
#define TRACEA_EXPORT extern "C" __declspec(dllexport)
#else
#define TRACEA_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace tracea {

// OrtErrorCode. Not ORT_EP_FAIL: on that code ORT's Python API silently repeats a run on its CPU
// provider.
enum class Code { kFail = 1, kInvalidArgument = 2 };

// An OrtStatus with `line`, made even when memory is short.
OrtStatus* failed(Code code, const char* line) noexcept;

// Runs `body`; whether it ended without an exception, whose line `report` gets.
template <class Body, class Report>
bool contained(Body&& body, Report report) noexcept {
  try {
    body();
    return true;
  } catch (const std::bad_alloc&) {
    report("out of memory");
  } catch (const std::exception& e) {
    report(e.what());
  } catch (...) {
    report("unknown error");
  }
  return false;
}

// The same; an exception becomes an OrtStatus.
template <class Body>
OrtStatus* guarded(Body&& body, Code code = Code::kFail) noexcept {
  OrtStatus* status = nullptr;
  contained(body, [&](const char* line) noexcept { status = failed(code, line); });
  return status;
}

// The value of `body`; after an exception `otherwise`, and its line in `message` if that is not
// null.
template <class R, class Body>
R answered(R otherwise, char* message, size_t size, Body&& body) noexcept {
  R value = otherwise;
  const bool whole = contained([&] { value = body(); },
                               [&](const char* line) noexcept {
                                 if (message && size) snprintf(message, size, "%s", line);
                               });
  return whole ? value : otherwise;
}

// For what has no way to report: the line goes to stderr.
inline void complain(const char* line) noexcept {
  fprintf(stderr, "tracea-onnx: error: %s\n", line);
}

// A function pointer that C code calls. It takes only lambdas without captures, and none of their
// exceptions passes it: they become an OrtStatus where one is returned (then `body` may return
// nothing), else a line on stderr and a zero, false or null.
template <class Signature>
class Callback;

template <class R, class... A>
class Callback<R(A...)> {
 public:
  using Pointer = R (*)(A...);
  Callback() = default;
  template <class Body,
            class = std::enable_if_t<std::is_empty_v<Body> && !std::is_same_v<Body, Callback>>>
  Callback(Body) noexcept : pointer_(&call<Body>) {}
  operator Pointer() const { return pointer_; }

 private:
  template <class Body>
  static R call(A... a) noexcept {
    // A lambda without captures has no state: any address serves.
    alignas(Body) static const char place[sizeof(Body)] = {};
    const Body& body = *reinterpret_cast<const Body*>(place);
    if constexpr (std::is_same_v<R, OrtStatus*>) {
      if constexpr (std::is_void_v<std::invoke_result_t<const Body&, A...>>) {
        return guarded([&] { body(a...); });
      } else {
        OrtStatus* status = nullptr;
        OrtStatus* const thrown = guarded([&] { status = body(a...); });
        return thrown ? thrown : status;
      }
    } else if constexpr (std::is_void_v<R>) {
      contained([&] { body(a...); }, complain);
    } else {
      R value{};
      return contained([&] { value = body(a...); }, complain) ? value : R{};
    }
  }
  Pointer pointer_ = nullptr;
};
static_assert(sizeof(Callback<void()>) == sizeof(void (*)()) &&
                  std::is_standard_layout_v<Callback<void()>> &&
                  std::is_trivially_copyable_v<Callback<void()>>,
              "a callback lies in ORT's structs as a pointer does");

}  // namespace tracea
