// Provider options of a session (session config `ep.traceaexecutionprovider.<key>`), and its log.
#pragma once
#include <cstdint>
#include <string>

#include "ort/ort_abi.h"

namespace tracea {

constexpr const char* kProviderName = "TraceaExecutionProvider";

enum class LogLevel {
  kVerbose,
  kInfo,
  kWarning,
  kError,
  kOff
};  // the first four are OrtLoggingLevel's numbers

// Of every session; `Runtime::open` reads what its backend has beside them.
struct Options {
  std::string backend;             // empty = that of the device the session was given
  int device_id = -1;              // -1 = not given
  std::string kernel_pack;         // path of a pack file
  std::string kernel_pack_sha256;  // what that file must have, in lower case; empty = anything
  std::string cache_dir;           // for the compiler
  bool trust_context = false;      // `ep_context`: compiled models may hold machine code
  std::string python;              // path of one that can compile, where no callback is set
  std::string claim = "auto";      // auto: partitions that pay; all: every node a kernel can run
  std::string specs = "rematch";  // whether a fused op's spec is believed: rematch (never: its body
                                  // is matched again), trust; for the compiler
  bool tf32 = false;              // GEMMs of f32 may round their elements to TF32: for the compiler
  bool bf16 = false;              // GEMMs of f32 may round their elements to bfloat16: likewise
  int num_threads = 0;  // 0 = ORT's pool, 1 = the calling thread alone, n = at most n of ORT's pool
  LogLevel stderr_level = LogLevel::kOff;  // `log_level`: also print to stderr from this level on
};

// Each throws Failure with one line for a value that is not allowed.
Options read_options(const OrtSessionOptions* session);
// A session's config entry, a provider option as it was given; "" without one.
std::string session_entry(const OrtSessionOptions* session, const char* name);
std::string option(const OrtSessionOptions* session, const char* key);
uint64_t number(const char* option, const std::string& text, uint64_t least, uint64_t most,
                bool hexadecimal = false);
bool flag(const char* option, const std::string& text);

// One line without control characters: names of a model could write to the terminal, or begin lines
// of their own.
std::string printable(const std::string& text);

struct Log {
  const OrtLogger* logger;
  LogLevel stderr_level;
  // Through ORT's logger, which applies the session's own severity; and to stderr when `log_level`
  // asks for it.
  void operator()(LogLevel level, const std::string& text) const;
};

}  // namespace tracea
