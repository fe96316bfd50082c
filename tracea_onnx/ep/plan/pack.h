// A pack: plans for groups of nodes, with their blobs. Format: docs/plan-format.md, "Plan and
// pack".
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/json.h"
#include "plan/memory.h"

namespace tracea {

struct Blob {
  const char* data;
  size_t bytes;
};

// Contents of a constant by its name; they are read only during the call that gets this.
using Initializers = std::function<Blob(const std::string&)>;

// A value that a plan reads or makes. dtype: element type; rank: how many dims it has.
struct Border {
  std::string name;
  int64_t dtype, rank;
};

struct Entry {
  std::vector<std::string> nodes;  // keys of the nodes the plan computes
  std::vector<Border> inputs, outputs;
  std::string backend;  // whose kernels it names; a pack may hold plans of several
  int64_t arch = 0;     // of a CUDA plan: the compute capability x 10 its cubins are for
  int64_t sms = 0;      // of a CUDA plan: the multiprocessors its grids were chosen for
  const Json* plan;     // points into the pack's header
};

class Pack {
 public:
  static constexpr uint32_t kVersion = 2;
  // Checks magic, version, lengths and SHA-256 before anything else; throws Failure with one line.
  // keep: `bytes` will be asked for.
  static std::shared_ptr<const Pack> parse(const void* data, size_t n, bool keep = false);
  // Of a file, which must have that SHA-256 (in lower case) unless it is empty.
  static std::shared_ptr<const Pack> read(const std::string& path, const std::string& sha256,
                                          bool keep = false);

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Blob>& blobs() const { return blobs_; }
  // Sentences about operators that no entry has.
  const std::vector<std::string>& left() const { return left_; }
  // Of header and blobs, in hexadecimal digits.
  const std::string& sha256() const { return sha256_; }
  // What it was parsed from, where that was kept.
  const std::string& bytes() const { return bytes_; }

 private:
  Json header_;
  Memory payload_;  // blobs, moved to a 64-byte line
  std::vector<Blob> blobs_;
  std::vector<Entry> entries_;
  std::vector<std::string> left_;
  std::string sha256_, bytes_;
};

}  // namespace tracea
