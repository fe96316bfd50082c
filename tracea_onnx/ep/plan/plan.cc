#include "plan/plan.h"

#include <cstring>

#include "plan/failure.h"
#include "plan/runtime.h"

namespace tracea {
namespace {

constexpr int64_t kMaxBytes = INT64_MAX / 4;

struct Reader {
  Plan& plan;
  const char* variant;

  static int index(const Json& v, size_t limit, const char* what) { return v.index(limit, what); }

  int expr(const Json& v) const { return index(v, plan.exprs.size(), "expression"); }

  void read_expr(const Json& row) {
    static const struct {
      const char* name;
      size_t args;
    } kOps[] = {{"const", 1}, {"sym", 1}, {"add", 2}, {"sub", 2}, {"mul", 2}, {"floordiv", 2},
                {"mod", 2},   {"max", 2}, {"min", 2}, {"eq", 2},  {"lt", 2},  {"select", 3}};
    const auto& items = row.array("expression");
    if (items.empty()) throw Failure("an empty expression");
    const std::string& op = items[0].text("operator");
    for (size_t k = 0; k < sizeof kOps / sizeof *kOps; k++) {
      if (op != kOps[k].name) continue;
      if (items.size() != kOps[k].args + 1)
        throw Failure("expression '" + op + "' has the wrong number of operands");
      Expr e{ExprOp(k), true, 0, 0, 0};
      if (e.op == ExprOp::kConst) {
        e.a = items[1].integer("constant");
      } else if (e.op == ExprOp::kSym) {
        e.a = index(items[1], plan.symbols.size(), "symbol");
        e.constant = false;
      } else {
        int64_t* const args[] = {&e.a, &e.b, &e.c};
        for (size_t i = 1; i < items.size(); i++) {
          *args[i - 1] = expr(items[i]);
          e.constant &= plan.exprs[size_t(*args[i - 1])].constant;
        }
      }
      plan.exprs.push_back(e);
      return;
    }
    throw Failure("unknown operator '" + op + "'");
  }

  AxisSpec axis(const Json& row, size_t n) const {
    const auto& items = row.array("axis");
    if (items.size() != n) throw Failure("a malformed symbol or check");
    AxisSpec a{index(items[0], plan.inputs.size(), "input"), 0, 0};
    a.axis = index(items[1], size_t(plan.inputs[size_t(a.input)].rank), "axis");
    if (n == 3) a.expr = expr(items[2]);
    return a;
  }

  BufferSpec buffer(const Json& row) const {
    const std::string& kind = row.at("kind").text("kind");
    if (kind == "input")
      return {BufferKind::kInput, index(row.at("index"), plan.inputs.size(), "input"), 0, ""};
    if (kind == "output")
      return {BufferKind::kOutput, index(row.at("index"), plan.outputs.size(), "output"), 0, ""};
    if (kind == "arena") return {BufferKind::kArena, 0, expr(row.at("bytes")), ""};
    if (kind == "blob")
      return {BufferKind::kBlob, index(row.at("index"), plan.pack->blobs().size(), "blob"), 0, ""};
    if (kind == "initializer") return {BufferKind::kInitializer, 0, 0, row.at("name").text("name")};
    if (kind != "const") throw Failure("unknown kind of buffer '" + kind + "'");
    const int64_t bytes = row.at("bytes").integer("bytes");
    if (bytes < 0) throw Failure("a buffer of negative size");
    if (bytes > kMaxBytes)
      throw Failure("a buffer of " + std::to_string(bytes) +
                    " bytes: no machine has as many; make the pack again");
    return {BufferKind::kConst, 0, bytes, ""};
  }

  LaunchSpec launch(const Json& row, bool init) const {
    LaunchSpec l;
    plan.runtime->read_launch(row, init, plan, variant, l);
    return l;
  }

  void read(const Json& j) {
    if (j.at("version").integer("version") != 1)
      throw Failure("plan version " + std::to_string(j.at("version").integer("version")) +
                    " is not version 1");
    const std::string& backend = j.at("backend").text("backend");
    plan.runtime = find_runtime(backend);
    if (!plan.runtime) throw Failure("the plan is for backend '" + backend + "'");
    plan.name = j.at("name").text("name");
    for (const Json& v : j.at("inputs").array("inputs")) {
      const int64_t rank = v.at("rank").integer("rank");
      if (rank < 0 || rank > 64) throw Failure("an input of impossible rank");
      plan.inputs.push_back(
          {v.at("name").text("name"), int(v.at("dtype").integer("dtype")), int(rank), {}});
    }
    for (const Json& v : j.at("symbols").array("symbols")) plan.symbols.push_back(axis(v, 2));
    for (const Json& v : j.at("exprs").array("exprs")) read_expr(v);
    for (const Json& v : j.at("checks").array("checks")) plan.checks.push_back(axis(v, 3));
    for (const Json& v : j.at("requires").array("requires")) {
      const auto& items = v.array("requirement");
      if (items.size() != 4) throw Failure("a malformed requirement");
      const std::string& how = items[0].text("requirement");
      if (how != "eq" && how != "ge") throw Failure("unknown requirement '" + how + "'");
      plan.requirements.push_back(
          {how == "eq", expr(items[1]), expr(items[2]), items[3].text("requirement")});
    }
    for (const Json& v : j.at("outputs").array("outputs")) {
      TensorSpec t{v.at("name").text("name"), int(v.at("dtype").integer("dtype")), 0, {}};
      for (const Json& d : v.at("dims").array("dims")) t.dims.push_back(expr(d));
      t.rank = int(t.dims.size());
      if (const Json* counted = v.find("counted")) {
        const auto& items = counted->array("counted");
        if (items.size() != 3) throw Failure("a malformed counted output");
        if (!plan.runtime->counts())
          throw Failure("backend '" + backend + "' takes sizes of outputs from shapes alone");
        const size_t buffers = j.at("buffers").array("buffers").size();
        t.axis = index(items[0], t.dims.size(), "axis");
        t.source = index(items[1], buffers, "buffer");
        t.count = index(items[2], buffers, "buffer");
      }
      plan.outputs.push_back(std::move(t));
    }
    int64_t constants = 0;  // at most 2 * kMaxBytes before it is compared: sums of them, with what
                            // lies between, fit 64 bits
    for (const Json& v : j.at("buffers").array("buffers")) {
      plan.buffers.push_back(buffer(v));
      if (plan.buffers.back().kind != BufferKind::kConst) continue;
      constants += plan.buffers.back().bytes;
      if (constants > kMaxBytes)
        throw Failure("constants of " + std::to_string(constants) +
                      " bytes: no machine has as many; make the pack again");
    }
    for (const TensorSpec& t : plan.outputs)
      for (int b : {t.source, t.count})
        if (b >= 0 && plan.buffers[size_t(b)].kind != BufferKind::kArena)
          throw Failure("a counted output '" + t.name + "' that is not in the arena");
    for (const Json& v : j.at("extents").array("extents")) {
      const auto& items = v.array("extent");
      if (items.size() != 4) throw Failure("a malformed extent");
      plan.extents.push_back({index(items[0], plan.buffers.size(), "buffer"), expr(items[1]),
                              expr(items[2]), items[3].text("extent")});
    }
    for (const Json& v : j.at("init").array("init")) plan.init.push_back(launch(v, true));
    for (const Json& v : j.at("run").array("run")) plan.run.push_back(launch(v, false));
    plan.runtime->join(plan);
  }
};

void refuse_overflow(bool overflow) {
  if (overflow) throw Failure("a size overflows 64 bits");
}

}  // namespace

std::shared_ptr<const Plan> Plan::parse(const Entry& entry, std::shared_ptr<const Pack> pack,
                                        const char* variant, bool clears) {
  auto plan = std::make_shared<Plan>();
  plan->pack = std::move(pack);
  plan->clears = clears;
  try {
    Reader{*plan, variant}.read(*entry.plan);
  } catch (const Failure& e) {
    throw Failure(std::string("bad plan") + (plan->name.empty() ? "" : " '" + plan->name + "'") +
                  ": " + e.what());
  }
  return plan;
}

std::vector<int64_t> Plan::evaluate(const std::vector<int64_t>& symbols) const {
  std::vector<int64_t> v(exprs.size());
  for (size_t k = 0; k < exprs.size(); k++) {
    const Expr& e = exprs[k];
    const auto a = [&] { return v[size_t(e.a)]; };
    const auto b = [&] { return v[size_t(e.b)]; };
    int64_t r = 0;
    switch (e.op) {
      case ExprOp::kConst: r = e.a; break;
      case ExprOp::kSym:
        r = symbols.empty() ? 0 : symbols[size_t(e.a)];
        break;  // init launches evaluate without symbols and use none
      case ExprOp::kAdd: refuse_overflow(__builtin_add_overflow(a(), b(), &r)); break;
      case ExprOp::kSub: refuse_overflow(__builtin_sub_overflow(a(), b(), &r)); break;
      case ExprOp::kMul: refuse_overflow(__builtin_mul_overflow(a(), b(), &r)); break;
      case ExprOp::kFloorDiv:
        if (b() <= 0) break;
        r = a() / b();
        if (a() % b() < 0) r--;
        break;
      case ExprOp::kMod:
        if (b() <= 0) break;
        r = a() % b();
        if (r < 0) r += b();
        break;
      case ExprOp::kMax: r = a() > b() ? a() : b(); break;
      case ExprOp::kMin: r = a() < b() ? a() : b(); break;
      case ExprOp::kEq: r = a() == b(); break;
      case ExprOp::kLt: r = a() < b(); break;
      case ExprOp::kSelect: r = a() ? b() : v[size_t(e.c)]; break;
    }
    v[k] = r;
  }
  return v;
}

}  // namespace tracea
