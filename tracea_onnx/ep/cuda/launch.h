// The launches of a bound plan with their arguments laid out, ready to be enqueued; and CUDA graphs
// of them.
#pragma once
#include <vector>

#include "cuda/device.h"
#include "cuda/plan.h"
#include "plan/bound.h"

namespace tracea::cuda {

// Where the bases of operands lie in this run. `empty` stands for tensors without elements.
struct Addresses {
  Address constants = 0, arena = 0, empty = 0,
          fault = 0,  // the word of kernels that may meet bad data
      words = 0;      // those of kernels whose blocks meet, of one launch after the other
  std::vector<Address> inputs, outputs;
  bool operator==(const Addresses& o) const {
    return constants == o.constants && arena == o.arena && fault == o.fault && words == o.words &&
           inputs == o.inputs && outputs == o.outputs;
  }
};

class LaunchList {
 public:
  // `operands` and `ints`: of all launches, one after the other; both and `specs` must outlive the
  // list. Launches whose grid is empty are left out. Throws Failure for a grid the device cannot
  // have or an integer that does not fit.
  LaunchList(Device& device, const std::vector<LaunchSpec>& specs,
             const std::vector<Function>& functions, const std::vector<Place>& operands,
             const std::vector<int64_t>& ints);
  // Writes pointers and encodes tensor maps for these addresses; costs nothing when they are the
  // last ones. Throws Failure.
  void address(const Addresses& to);
  void launch(Stream stream) const {
    for (size_t k = 0; k < items_.size(); k++) launch_one(k, stream);
  }
  // Waits for each launch before the next, so that a failure names the kernel it comes from.
  // `plan`: the name of what they belong to.
  void launch_synchronised(Stream stream, const std::string& plan) const;
  // `overlapped`: it may start before the launch before it has ended, if its kernel was made for
  // that and meets in no words, which are cleared before it.
  void launch_one(size_t index, Stream stream, bool overlapped = true) const;
  size_t size() const { return items_.size(); }
  const char* symbol(size_t index) const { return items_[index].spec->symbol.c_str(); }

 private:
  struct Item {
    const CudaLaunch* spec;
    Function function;
    unsigned grid[3];
    size_t first;
  };
  struct Slot {
    Place place;
    size_t word;
    const CudaMap* map;
    const int64_t* sizes;
    const char* symbol;
  };  // map null: a pointer in `words_`, else `word` indexes `maps_`
  void encode(const Slot& slot, Address address);

  Device& device_;
  std::vector<Item> items_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> words_;  // scalar arguments and pointers
  std::vector<TensorMap> maps_;
  std::vector<void*> arguments_;  // of all items
  Addresses at_;
  bool addressed_ = false;
};

// Launches recorded once and replayed as one.
class Graph {
 public:
  // Records on `side`, a stream nothing else uses meanwhile. Throws Failure.
  Graph(Device& device, const LaunchList& launches, Stream side);
  // Ends a recording that was begun on `side`.
  Graph(Device& device, Stream side);
  ~Graph();
  Graph(Graph&& o) noexcept { std::swap(exec_, o.exec_); }
  Graph& operator=(Graph&& o) noexcept {
    std::swap(exec_, o.exec_);
    return *this;
  }
  explicit operator bool() const { return exec_; }
  Graph() = default;
  void launch(Stream stream) const {
    check(driver().graph_launch(exec_, stream), "replaying a graph");
  }

 private:
  void finish(Device& device, Stream side);
  GraphExecHandle exec_ = nullptr;
};

}  // namespace tracea::cuda
