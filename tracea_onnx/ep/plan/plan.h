// A Plan as a runtime uses it: parsed, validated, its launches read. Immutable once made.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/pack.h"

namespace tracea {

class Runtime;

enum class ExprOp : uint8_t {
  kConst,
  kSym,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kMax,
  kMin,
  kEq,
  kLt,
  kSelect
};  // order of dims.EXPR_OPS
struct Expr {
  ExprOp op;
  bool constant;
  int64_t a, b, c;
};  // operands are indices of earlier expressions, or the constant / symbol in `a`

struct TensorSpec {
  std::string name;
  int type;
  int rank;
  std::vector<int> dims;  // expressions, of an output
  // Of an output whose size a launch counts: `dims` are the largest ones, of buffer `source`, and
  // buffer `count` gets the size along `axis` (an int64). Else axis -1.
  int axis = -1, source = -1, count = -1;
};
struct AxisSpec {
  int input, axis, expr;
};  // expr unused for symbols
struct RequireSpec {
  bool equal;
  int a, b;
  std::string what;
};  // of two expressions: a == b, or a >= b

// What a launch may touch of a buffer, where the runtime cannot tell: bytes [low, high), two
// expressions.
struct ExtentSpec {
  int buffer, low, high;
  std::string what;
};

enum class BufferKind : uint8_t { kInput, kOutput, kArena, kConst, kInitializer, kBlob };
// index: of input, output or blob; bytes: an expression for arena, a number for const.
struct BufferSpec {
  BufferKind kind;
  int index;
  int64_t bytes;
  std::string name;
};

struct OperandSpec {
  int buffer, offset;
};  // buffer -1 = absent; offset: an expression, in bytes

struct LaunchSpec;

// Of an operand: from its address to the end of its buffer.
struct Room {
  bool present;
  int64_t bytes;
};

// What the runtime has read of a launch.
struct RuntimeLaunch {
  virtual ~RuntimeLaunch() = default;
  virtual const char* name() const = 0;
  // False where the launch has no elements to write: it need not run. Throws Failure when it has a
  // parameter its kernel cannot take, would touch bytes outside [-before[k], rooms[k]) of operand
  // k, or would go over them without end, as far as the plan's extents do not say.
  virtual bool check(const LaunchSpec& /*launch*/, const int64_t* /*ints*/, const Room* /*rooms*/,
                     const int64_t* /*before*/) const {
    return true;
  }
};

struct LaunchSpec {
  std::vector<OperandSpec> operands;
  std::vector<int> ints;  // expressions; a negative one is 0
  std::vector<float> floats;
  std::shared_ptr<const RuntimeLaunch> own;

  const char* name() const { return own->name(); }
};

// Launches, by place in a plan's run and in that order, that may run together at the last one's
// place. idle: launches that have nothing to do where they do.
struct Together {
  std::vector<int> launches, idle;
};

struct Plan {
  std::string name;
  const Runtime* runtime;
  std::vector<TensorSpec> inputs, outputs;
  std::vector<AxisSpec> symbols, checks;
  std::vector<RequireSpec> requirements;
  std::vector<ExtentSpec> extents;
  std::vector<Expr> exprs;
  std::vector<BufferSpec> buffers;
  std::vector<LaunchSpec> init, run;
  std::vector<Together> together;
  std::shared_ptr<const Pack> pack;  // keeps blobs alive
  // Runs find zeros in their outputs: the Plan may have been changed to write only a part of these,
  // and so to give away what the memory held before.
  bool clears = false;

  // `variant`: `DeviceSession::variant`; "" = the machine's best. Throws Failure: a malformed plan,
  // or one whose kernels the runtime does not have.
  static std::shared_ptr<const Plan> parse(const Entry& entry, std::shared_ptr<const Pack> pack,
                                           const char* variant = "", bool clears = false);

  // Values of all expressions for the given symbols (division by zero gives 0: it only occurs in
  // tensors without elements). Throws Failure on overflow.
  std::vector<int64_t> evaluate(const std::vector<int64_t>& symbols) const;
};

}  // namespace tracea
