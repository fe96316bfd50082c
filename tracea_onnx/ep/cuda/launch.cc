#include "cuda/launch.h"

#include <climits>
#include <cstring>

#include "plan/dtype.h"
#include "plan/failure.h"
#include "plan/stats.h"

namespace tracea::cuda {
namespace {

constexpr int64_t kMaxGrid[3] = {INT32_MAX, 65535, 65535};
const TensorMap kNoMap{};  // what an absent operand's argument points to: as large as any argument

// CUtensorMapDataType of an ONNX element type, and its size.
struct MapType {
  int code, bytes;
};
MapType map_type(int dtype) {
  switch (dtype) {
    case kU8:
    case kI8:
    case kBool: return {0, 1};
    case kU16:
    case kI16: return {1, 2};
    case kU32: return {2, 4};
    case kI32: return {3, 4};
    case kU64: return {4, 8};
    case kI64: return {5, 8};
    case kF16: return {6, 2};
    case kF32: return {7, 4};
    case kF64: return {8, 8};
    case kBF16: return {9, 2};
    default: throw Failure("a tensor map of element type " + std::to_string(dtype));
  }
}

int map_swizzle(int bytes) {
  switch (bytes) {
    case 0: return 0;
    case 32: return 1;
    case 64: return 2;
    case 128: return 3;
    default: throw Failure("a tensor map with swizzle " + std::to_string(bytes));
  }
}

int map_promotion(int bytes) {
  switch (bytes) {
    case 64: return 1;
    case 128: return 2;
    case 256: return 3;
    default: throw Failure("a tensor map with " + std::to_string(bytes) + " bytes read together");
  }
}

}  // namespace

LaunchList::LaunchList(Device& device, const std::vector<LaunchSpec>& specs,
                       const std::vector<Function>& functions, const std::vector<Place>& operands,
                       const std::vector<int64_t>& ints)
    : device_(device) {
  size_t n_arguments = 0, n_maps = 0;
  for (const LaunchSpec& s : specs)
    n_arguments += cuda_launch(s).arguments.size(), n_maps += cuda_launch(s).maps.size();
  words_.reserve(n_arguments);  // pointers into both stay valid
  maps_.reserve(n_maps);
  arguments_.reserve(n_arguments);
  const int64_t* next_int = ints.data();
  size_t next_operand = 0;
  for (size_t l = 0; l < specs.size(); l++) {
    const LaunchSpec& s = specs[l];
    const CudaLaunch& cuda = cuda_launch(s);
    const auto wrong = [&](const std::string& what) {
      return Failure("kernel '" + cuda.symbol + "': " + what);
    };
    Item item{&cuda, functions[l], {}, arguments_.size()};
    const bool empty = next_int[0] <= 0 || next_int[1] <= 0 || next_int[2] <= 0;
    for (int k = 0; k < 3 && !empty; k++) {
      if (next_int[k] > kMaxGrid[k])
        throw wrong("these sizes need a grid of " + std::to_string(next_int[k]) +
                    " blocks along axis " + std::to_string(k) + ", of which a GPU has " +
                    std::to_string(kMaxGrid[k]) + "; run them in smaller batches");
      item.grid[k] = unsigned(next_int[k]);
    }
    if (!empty && item.grid[0] % cuda.cluster)
      throw wrong("its grid of " + std::to_string(item.grid[0]) +
                  " is not a multiple of its cluster of " + std::to_string(cuda.cluster));
    if (empty) {
      next_int += s.ints.size();
      next_operand += s.operands.size();
      continue;
    }
    next_int += 3;
    const float* next_float = s.floats.data();
    const CudaMap* next_map = cuda.maps.data();
    for (CudaArgument a : cuda.arguments) {
      uint64_t word = 0;
      switch (a) {
        case CudaArgument::kNull: arguments_.push_back(const_cast<TensorMap*>(&kNoMap)); continue;
        case CudaArgument::kTensorMap:
          slots_.push_back(
              {operands[next_operand++], maps_.size(), next_map, next_int, cuda.symbol.c_str()});
          maps_.emplace_back();
          arguments_.push_back(&maps_.back());
          next_int += 2 * next_map->rank - 1;
          next_map++;
          continue;
        case CudaArgument::kPointer:
          slots_.push_back({operands[next_operand++], words_.size(), nullptr, nullptr, nullptr});
          break;
        case CudaArgument::kFault:
          slots_.push_back({{Base::kFault, 0, 0}, words_.size(), nullptr, nullptr, nullptr});
          break;
        case CudaArgument::kWords:
          slots_.push_back({{Base::kWords, 0, 0}, words_.size(), nullptr, nullptr, nullptr});
          break;
        case CudaArgument::kInt32: {
          const int64_t v = *next_int++;
          if (v < INT32_MIN || v > INT32_MAX)
            throw wrong("a size of " + std::to_string(v) + " does not fit 32 bits");
          word = uint32_t(int32_t(v));
          break;
        }
        case CudaArgument::kInt64: word = uint64_t(*next_int++); break;
        case CudaArgument::kFloat32: memcpy(&word, next_float++, sizeof(float)); break;
      }
      words_.push_back(word);
      arguments_.push_back(&words_.back());
    }
    items_.push_back(item);
  }
}

void LaunchList::address(const Addresses& to) {
  if (addressed_ && at_ == to) return;
  const bool first = !addressed_;
  addressed_ = false;  // until all is written
  const auto find = [](const Addresses& a, const Place& p) -> Address {
    const Address base = p.base == Base::kInput    ? a.inputs[size_t(p.index)]
                         : p.base == Base::kOutput ? a.outputs[size_t(p.index)]
                         : p.base == Base::kArena  ? a.arena
                         : p.base == Base::kFault  ? a.fault
                         : p.base == Base::kWords  ? a.words
                                                   : a.constants;
    return base == a.empty ? base : base + Address(p.offset);
  };
  for (const Slot& s : slots_) {
    const Address address = find(to, s.place);
    if (!s.map)
      words_[s.word] = address;
    else if (first || find(at_, s.place) != address)
      encode(s, address);
  }
  at_ = to;
  addressed_ = true;
}

void LaunchList::encode(const Slot& slot, Address address) {
  const CudaMap& m = *slot.map;
  const MapType type = map_type(m.dtype);
  const auto rank = size_t(m.rank);
  uint64_t dims[kMaxMapRank], strides[kMaxMapRank] = {}, bytes = uint64_t(type.bytes);
  for (size_t k = 0; k < rank; k++) {
    dims[k] = slot.sizes[k] > 0
                  ? uint64_t(slot.sizes[k])
                  : 1;  // an empty dimension cannot be encoded; a kernel reads nothing along it
    bytes *= dims[k];
    if (k) strides[k - 1] = uint64_t(slot.sizes[rank + k - 1]);
  }
  TensorMap* map = &maps_[slot.word];
  const auto pointer = reinterpret_cast<void*>(address);
  constexpr int kNoInterleave = 0, kFillZero = 0;
  const int promotion = map_promotion(m.together);
  const Driver& d = driver();
  const Result r =
      m.im2col
          ? d.encode_im2col(map, type.code, uint32_t(rank), pointer, dims, strides, m.lower,
                            m.upper, m.channels, m.pixels, m.steps, kNoInterleave,
                            map_swizzle(m.swizzle), promotion, kFillZero)
          : d.encode_tiled(map, type.code, uint32_t(rank), pointer, dims, strides, m.box, m.steps,
                           kNoInterleave, map_swizzle(m.swizzle), promotion, kFillZero);
  if (r != kSuccess) {
    std::string shape;
    for (size_t k = 0; k < rank; k++)
      shape += (k ? "x" : "") + std::to_string(dims[k]) +
               (k ? "/" + std::to_string(strides[k - 1]) : "");
    check(r, std::string("a tensor map of kernel '") + slot.symbol + "' over " + shape);
  }
  // Drivers up to CUDA 13.1 set a bit that makes the hardware misread small im2col tensors; CUTLASS
  // clears it likewise.
  constexpr int kFixedDriver = 13010;
  constexpr uint64_t kSmallTensor = 131072, kWrongBit = uint64_t(1) << 21;
  if (m.im2col && d.version <= kFixedDriver && bytes < kSmallTensor) map->opaque[1] &= ~kWrongBit;
}

void LaunchList::launch_one(size_t index, Stream stream, bool overlapped) const {
  const Item& item = items_[index];
  LaunchAttribute attributes[2];
  LaunchConfig config{{item.grid[0], item.grid[1], item.grid[2]},
                      {item.spec->block, 1, 1},
                      item.spec->shared_bytes,
                      stream,
                      attributes,
                      0};
  if (item.spec->cluster > 1) {
    LaunchAttribute& a = attributes[config.n_attributes++];
    memset(&a, 0, sizeof a);
    a.id = kClusterDimension;
    a.value.cluster = {item.spec->cluster, 1, 1};
  }
  if (item.spec->words)  // on the stream, so that a graph clears them, too, whenever it is replayed
    check(driver().fill_async(at_.words, 0, item.spec->words * sizeof(uint32_t), stream),
          "clearing the words of kernel '" + item.spec->symbol + "'");
  if (item.spec->programmatic && overlapped && !item.spec->words) {
    LaunchAttribute& a = attributes[config.n_attributes++];
    memset(&a, 0, sizeof a);
    a.id = kProgrammaticSerialization;
    a.value.programmatic = 1;
  }
  // The first launch of a kernel may load it, or need memory for its stack.
  const Result r = device_.attempt([&] {
    return driver().launch(&config, item.function,
                           const_cast<void**>(arguments_.data() + item.first), nullptr);
  });
  if (r != kSuccess) check(r, "launching kernel '" + item.spec->symbol + "'");
}

void LaunchList::launch_synchronised(Stream stream, const std::string& plan) const {
  for (size_t k = 0; k < items_.size(); k++) {
    launch_one(k, stream);
    const Result r = driver().stream_synchronize(stream);
    if (r != kSuccess)
      check(r, "running kernel '" + items_[k].spec->symbol + "' (launch " + std::to_string(k + 1) +
                   " of " + std::to_string(items_.size()) + " of partition '" + plan + "')");
  }
}

// --- graphs

Graph::Graph(Device& device, const LaunchList& launches, Stream side) {
  check(driver().capture_begin(side, kCaptureRelaxed), "recording a graph");
  try {
    launches.launch(side);
  } catch (...) {
    GraphHandle abandoned = nullptr;
    driver().capture_end(side, &abandoned);
    if (abandoned) driver().graph_destroy(abandoned);
    throw;
  }
  finish(device, side);
}

Graph::Graph(Device& device, Stream side) { finish(device, side); }

void Graph::finish(Device& device, Stream side) {
  GraphHandle recorded = nullptr;
  check(driver().capture_end(side, &recorded), "recording a graph");
  const Result r = device.attempt([&] { return driver().graph_instantiate(&exec_, recorded, 0); });
  driver().graph_destroy(recorded);
  if (r != kSuccess) exec_ = nullptr;
  check(r, "making a graph");
  stats.live_graphs++;
}

Graph::~Graph() {
  if (exec_) stats.live_graphs--;
  if (const Driver* d = usable(); d && exec_) d->graph_exec_destroy(exec_);
}

}  // namespace tracea::cuda
