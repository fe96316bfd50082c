#include "webgpu/plan.h"

#include <memory>

#include "plan/failure.h"

namespace tracea::webgpu {
namespace {

struct Reader {
  const Plan& plan;
  LaunchSpec& launch;
  Launch& own;
  bool init;

  void number(const Json& v) {
    launch.ints.push_back(v.index(plan.exprs.size(), "expression"));
    if (init && !plan.exprs[size_t(launch.ints.back())].constant)
      throw Failure("an init launch may not depend on input shapes");
  }

  void pointer(const Json& buffer, const Json& offset, const std::string& access) {
    const OperandSpec o{buffer.index(plan.buffers.size(), "buffer"),
                        offset.index(plan.exprs.size(), "expression")};
    const BufferKind kind = plan.buffers[size_t(o.buffer)].kind;
    const bool written =
        kind == BufferKind::kInput || kind == BufferKind::kOutput || kind == BufferKind::kArena;
    if (init && (kind == BufferKind::kInput || kind == BufferKind::kOutput ||
                 !plan.exprs[size_t(o.offset)].constant))
      throw Failure("an init launch may only use constants");
    if (access != "r" && access != "w") throw Failure("unknown access '" + access + "'");
    // Constants lie in one buffer and what a run writes in another: none may be both in a launch.
    if (!init && (access == "w") != written)
      throw Failure(written ? "a launch binds what a run writes as a constant"
                            : "a launch of a run may not write a constant");
    if (init && access == "r") throw Failure("an init launch binds a constant as one");
    launch.operands.push_back(o);
    own.signature += access;
  }

  void argument(const Json& row) {
    const auto& items = row.array("argument");
    if (items.empty()) throw Failure("an empty argument");
    const std::string& kind = items[0].text("kind of argument");
    static const struct {
      const char* name;
      size_t size;
      Argument kind;
    } kKinds[] = {{"p", 4, Argument::kPointer},
                  {"i", 2, Argument::kInt},
                  {"f", 2, Argument::kFloat},
                  {"e", 1, Argument::kFault}};
    for (const auto& k : kKinds) {
      if (kind != k.name) continue;
      if (items.size() != k.size) throw Failure("a malformed argument '" + kind + "'");
      own.arguments.push_back(k.kind);
      switch (k.kind) {
        case Argument::kPointer: return pointer(items[1], items[2], items[3].text("access"));
        case Argument::kInt: return number(items[1]);
        case Argument::kFloat: return launch.floats.push_back(float(items[1].number("float")));
        case Argument::kFault:
          own.faults = true;
          own.signature += 'w';
          return;
      }
    }
    throw Failure("unknown kind of argument '" + kind + "'");
  }
};

}  // namespace

void read_webgpu_launch(const Json& row, bool init, const Plan& plan, LaunchSpec& launch) {
  if (const std::string& kind = row.at("k").text("family"); kind != "webgpu")
    throw Failure("a WebGPU plan launches '" + kind + "'");
  auto own = std::make_shared<Launch>();
  own->source = row.at("cubin").index(plan.pack->blobs().size(), "blob");
  own->symbol = row.at("symbol").text("symbol");
  Reader reader{plan, launch, *own, init};
  const auto& grid = row.at("grid").array("grid");
  if (grid.size() != 3) throw Failure("a malformed grid");
  for (const Json& g : grid) reader.number(g);
  for (const Json& a : row.at("args").array("arguments")) reader.argument(a);
  launch.own = std::move(own);
}

}  // namespace tracea::webgpu
