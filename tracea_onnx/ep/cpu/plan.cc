#include "cpu/plan.h"

#include "cpu/extent.h"
#include "plan/failure.h"

namespace tracea {
namespace {

constexpr int kUsualVariant = -1;       // of a launch that does not name one
constexpr int64_t kMaxRegisters = 256;  // as common/program.h and expr_program.py have it

void read_program(const Json& p, FamilyLaunch& l) {
  if (p.is_null()) return;
  if (!l.family->program) throw Failure(std::string(l.family->name) + " takes no program");
  const int64_t n_in = p.at("n_in").integer("n_in"), regs = p.at("regs").integer("regs"),
                out = p.at("out").integer("out"), type = p.at("type").integer("type");
  if (n_in < 0 || n_in > regs || regs > kMaxRegisters || out < 0 || out >= regs || type < 0 ||
      type > 1)
    throw Failure("a malformed program");
  for (const Json& row : p.at("code").array("code")) {
    const auto& f = row.array("instruction");
    if (f.size() != 6) throw Failure("a malformed instruction");
    const int op = f[0].index(kOpCount, "opcode");
    Instr ins{op, f[1].index(size_t(regs), "register"), 0, 0, 0, float(f[5].number("immediate"))};
    int32_t* const args[] = {&ins.a, &ins.b, &ins.c};
    for (int k = 0; k < kOpArity[op]; k++)
      *args[k] = f[2 + size_t(k)].index(size_t(regs), "register");
    l.code.push_back(ins);
  }
  l.program = {l.code.data(), int32_t(l.code.size()), int32_t(n_in),
               int32_t(regs), int32_t(out),           int32_t(type)};
  l.has_program = true;
}

}  // namespace

bool FamilyLaunch::check(const LaunchSpec& launch, const int64_t* ints, const Room* rooms,
                         const int64_t* before) const {
  check_variant(*this, ints[family->ints]);
  return check_extents(launch, ints, rooms, before);
}

void check_variant(const FamilyLaunch& launch, int64_t variant) {
  if (variant < 0 || variant >= launch.family->variants)
    throw Failure(std::string("'") + launch.family->name + "' has no variant " +
                  std::to_string(variant) + "; the pack needs another version of tracea-onnx");
}

void read_family_launch(const Json& row, bool init, const Plan& plan, const char* isa,
                        LaunchSpec& launch) {
  const std::string& name = row.at("k").text("family");
  auto l = std::make_shared<FamilyLaunch>();
  l->family = find_family(name.c_str());
  if (!l->family)
    throw Failure("unknown kernel family '" + name +
                  "'; the pack needs another version of tracea-onnx");
  l->kernel = find_kernel(isa, name.c_str());
  if (!l->kernel) throw Failure("this build has no kernel '" + name + "' for " + isa);
  const auto& operands = row.at("b").array("operands");
  const auto& ints = row.at("i").array("integers");
  const auto& floats = row.at("f").array("floats");
  if (int(operands.size()) != l->family->operands ||
      (int(ints.size()) != l->family->ints && int(ints.size()) != l->family->ints + 1) ||
      int(floats.size()) != l->family->floats)
    throw Failure(
        "'" + name +
        "' has the wrong number of parameters; the pack needs another version of tracea-onnx");
  for (size_t k = 0; k < operands.size(); k++) {
    if (operands[k].is_null()) {
      if (!(l->family->optional >> k & 1))
        throw Failure("'" + name + "' lacks operand " + std::to_string(k));
      launch.operands.push_back({-1, 0});
      continue;
    }
    const auto& pair = operands[k].array("operand");
    if (pair.size() != 2) throw Failure("a malformed operand");
    const OperandSpec o{pair[0].index(plan.buffers.size(), "buffer"),
                        pair[1].index(plan.exprs.size(), "expression")};
    const BufferKind kind = plan.buffers[size_t(o.buffer)].kind;
    if (init && (kind == BufferKind::kInput || kind == BufferKind::kOutput ||
                 kind == BufferKind::kArena || !plan.exprs[size_t(o.offset)].constant))
      throw Failure("an init launch may only use constants");
    // The rest belongs to others: the caller, the model's other nodes, runs at the same time.
    const bool own = kind == BufferKind::kConst
                         ? init
                         : kind == BufferKind::kArena || kind == BufferKind::kOutput;
    if (writes(l->family, k) && !own)
      throw Failure("'" + name + "' would write operand " + std::to_string(k) +
                    " to an input or a constant: the plan is damaged");
    launch.operands.push_back(o);
  }
  for (const Json& v : ints) {
    launch.ints.push_back(v.index(plan.exprs.size(), "expression"));
    if (init && !plan.exprs[size_t(launch.ints.back())].constant)
      throw Failure("an init launch may not depend on input shapes");
  }
  if (int(ints.size()) == l->family->ints) launch.ints.push_back(kUsualVariant);
  for (const Json& v : floats) launch.floats.push_back(float(v.number("float")));
  read_program(row.at("p"), *l);
  launch.own = std::move(l);
}

}  // namespace tracea
