#include "cuda/plan.h"

#include <memory>

#include "plan/failure.h"

namespace tracea {
namespace {

constexpr int64_t kMaxBlock = 1024, kMaxShared = 256 * 1024, kMaxCluster = 16, kMaxWords = 1 << 16;

unsigned bounded(const Json& v, int64_t least, int64_t most, const char* what) {
  const int64_t n = v.integer(what);
  if (n < least || n > most)
    throw Failure(std::string(what) + " " + std::to_string(n) + " is out of range");
  return unsigned(n);
}

struct Reader {
  const Plan& plan;
  LaunchSpec& launch;
  CudaLaunch& cuda;
  bool init;

  void number(const Json& v) {
    launch.ints.push_back(v.index(plan.exprs.size(), "expression"));
    if (init && !plan.exprs[size_t(launch.ints.back())].constant)
      throw Failure("an init launch may not depend on input shapes");
  }

  void operand(const Json& buffer, const Json& offset) {
    const OperandSpec o{buffer.index(plan.buffers.size(), "buffer"),
                        offset.index(plan.exprs.size(), "expression")};
    const BufferKind kind = plan.buffers[size_t(o.buffer)].kind;
    if (init && (kind == BufferKind::kInput || kind == BufferKind::kOutput ||
                 !plan.exprs[size_t(o.offset)].constant))
      throw Failure("an init launch may only use constants");
    launch.operands.push_back(o);
  }

  void map(const Json& v) {
    CudaMap m{};
    operand(v.at("buffer"), v.at("offset"));
    m.dtype = int(v.at("dtype").integer("dtype"));
    m.swizzle = int(v.at("swizzle").integer("swizzle"));
    m.together = int(v.at("together").integer("together"));
    const auto& dims = v.at("dims").array("dims");
    const auto& strides = v.at("strides").array("strides");
    const auto& box = v.at("box").array("box");
    const auto& steps = v.at("steps").array("steps");
    m.rank = int(dims.size());
    m.im2col = !v.at("im2col").is_null();
    if (m.rank < 1 || m.rank > kMaxMapRank || int(strides.size()) != m.rank - 1 ||
        (!m.im2col && int(box.size()) != m.rank) || (!steps.empty() && int(steps.size()) != m.rank))
      throw Failure("a malformed tensor map");
    for (const Json& d : dims) number(d);
    for (const Json& s : strides) number(s);
    for (int k = 0; k < m.rank; k++) {
      m.box[k] = m.im2col ? 1 : bounded(box[size_t(k)], 1, 256, "box");
      m.steps[k] = steps.empty() ? 1 : bounded(steps[size_t(k)], 1, 8, "element step");
    }
    if (m.im2col) {
      const auto& window = v.at("im2col").array("im2col");
      if (window.size() != 4 || m.rank < 3) throw Failure("a malformed tensor map");
      const auto &lower = window[0].array("lower corner"), &upper = window[1].array("upper corner");
      if (int(lower.size()) != m.rank - 2 || int(upper.size()) != m.rank - 2)
        throw Failure("a malformed tensor map");
      for (size_t k = 0; k < lower.size(); k++)
        m.lower[k] = int(lower[k].integer("lower corner")),
        m.upper[k] = int(upper[k].integer("upper corner"));
      m.channels = bounded(window[2], 1, 256, "channels per pixel");
      m.pixels = bounded(window[3], 1, 1024, "pixels per column");
    }
    cuda.maps.push_back(m);
  }

  void argument(const Json& row) {
    const auto& items = row.array("argument");
    if (items.empty()) throw Failure("an empty argument");
    const std::string& kind = items[0].text("kind of argument");
    static const struct {
      const char* name;
      size_t size;
      CudaArgument kind;
    } kKinds[] = {{"p", 3, CudaArgument::kPointer}, {"null", 1, CudaArgument::kNull},
                  {"i", 2, CudaArgument::kInt32},   {"l", 2, CudaArgument::kInt64},
                  {"f", 2, CudaArgument::kFloat32}, {"t", 2, CudaArgument::kTensorMap},
                  {"e", 1, CudaArgument::kFault},   {"w", 2, CudaArgument::kWords}};
    for (const auto& k : kKinds) {
      if (kind != k.name) continue;
      if (items.size() != k.size) throw Failure("a malformed argument '" + kind + "'");
      cuda.arguments.push_back(k.kind);
      switch (k.kind) {
        case CudaArgument::kPointer: return operand(items[1], items[2]);
        case CudaArgument::kNull: return;
        case CudaArgument::kInt32:
        case CudaArgument::kInt64: return number(items[1]);
        case CudaArgument::kFloat32:
          return launch.floats.push_back(float(items[1].number("float")));
        case CudaArgument::kTensorMap: return map(items[1]);
        case CudaArgument::kFault: cuda.faults = true; return;
        case CudaArgument::kWords:
          if (cuda.words) throw Failure("a launch with two arguments 'w'");
          cuda.words = bounded(items[1], 1, kMaxWords, "number of words");
          return;
      }
    }
    throw Failure("unknown kind of argument '" + kind + "'");
  }
};

}  // namespace

void read_cuda_launch(const Json& row, bool init, const Plan& plan, LaunchSpec& launch) {
  if (const std::string& kind = row.at("k").text("family"); kind != "cuda")
    throw Failure("a CUDA plan launches '" + kind + "'");
  auto cuda = std::make_shared<CudaLaunch>();
  cuda->cubin = row.at("cubin").index(plan.pack->blobs().size(), "blob");
  cuda->symbol = row.at("symbol").text("symbol");
  cuda->block = bounded(row.at("block"), 1, kMaxBlock, "block");
  cuda->shared_bytes = bounded(row.at("smem"), 0, kMaxShared, "shared memory");
  cuda->cluster = bounded(row.at("cluster"), 1, kMaxCluster, "cluster");
  cuda->programmatic = row.at("pdl").integer("pdl") != 0;
  Reader reader{plan, launch, *cuda, init};
  const auto& grid = row.at("grid").array("grid");
  if (grid.size() != 3) throw Failure("a malformed grid");
  for (const Json& g : grid) reader.number(g);
  for (const Json& a : row.at("args").array("arguments")) reader.argument(a);
  launch.own = std::move(cuda);
}

}  // namespace tracea
