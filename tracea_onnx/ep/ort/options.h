// Provider options of a session (session config `ep.traceaexecutionprovider.<key>`), and its log.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ort/ort_abi.h"

namespace tracea {

constexpr const char* kProviderName = "TraceaExecutionProvider";

// Whether launches are replayed as CUDA graphs: per partition and addresses, or a whole run by ORT
// (fixed IOBinding only).
enum class GraphMode { kOff, kPartition, kSession };

enum class LogLevel {
  kVerbose,
  kInfo,
  kWarning,
  kError,
  kOff
};  // the first four are OrtLoggingLevel's numbers

struct Options {
  std::string backend;  // cpu, cuda; empty = that of the device the session was given
  int device_id = -1;   // CUDA device; -1 = not given
  GraphMode cuda_graph = GraphMode::kPartition;
  size_t memory_limit =
      0;  // gpu_mem_limit: bytes of device memory the provider may hold; 0 = no limit
  std::optional<uint64_t>
      user_stream;  // user_compute_stream: a CUstream as a number; 0 = the legacy default stream
  bool sync_launches = false;  // wait for every launch on a GPU, so that an error names its kernel
  std::string kernel_pack;     // path of a pack file
  std::string kernel_pack_sha256;  // what that file must have, in lower case; empty = anything
  std::string cache_dir;           // for the compiler
  std::string claim = "auto";      // auto: partitions that pay; all: every node a kernel can run
  std::string specs = "rematch";  // whether a fused op's spec is believed: rematch (never: its body
                                  // is matched again), trust; for the compiler
  bool tf32 = false;    // products of f32 may round their elements to TF32: for the compiler
  std::string isa;      // instruction set; default: the machine's best
  int num_threads = 0;  // 0 = ORT's pool, 1 = the calling thread alone, n = at most n of ORT's pool
  LogLevel stderr_level = LogLevel::kOff;  // `log_level`: also print to stderr from this level on
};

// Throws Failure with one line for a value that is not allowed.
Options read_options(const OrtSessionOptions* session);

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
