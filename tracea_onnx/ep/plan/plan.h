// A Plan as the executor uses it: parsed, validated, kernels resolved. Immutable once made.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cpu/registry.h"
#include "cuda/plan.h"
#include "plan/pack.h"

namespace tracea {

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
  std::vector<int> dims;
};  // dims: expressions, of an output
struct AxisSpec {
  int input, axis, expr;
};  // expr unused for symbols
struct RequireSpec {
  bool equal;
  int a, b;
  std::string what;
};  // of two expressions: a == b, or a >= b

// What a launch on a GPU may touch of a buffer: bytes [low, high), two expressions.
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

struct LaunchSpec {
  const FamilyInfo* family;  // null in a CUDA plan
  const Kernel* kernel;
  std::vector<OperandSpec> operands;
  std::vector<int> ints;  // expressions
  std::vector<float> floats;
  std::vector<Instr> code;
  Program program;  // points to `code`
  bool has_program;
  std::shared_ptr<const CudaLaunch> cuda;  // of a CUDA plan

  const char* name() const { return cuda ? cuda->symbol.c_str() : family->name; }
};

struct Plan {
  std::string name, backend;  // cpu or cuda
  std::vector<TensorSpec> inputs, outputs;
  std::vector<AxisSpec> symbols, checks;
  std::vector<RequireSpec> requirements;
  std::vector<ExtentSpec> extents;
  std::vector<Expr> exprs;
  std::vector<BufferSpec> buffers;
  std::vector<LaunchSpec> init, run;
  std::shared_ptr<const Pack> pack;  // keeps blobs alive

  // Throws Failure: a malformed plan, an unknown family, or a kernel `isa` lacks (of a CPU plan).
  static std::shared_ptr<const Plan> parse(const Entry& entry, std::shared_ptr<const Pack> pack,
                                           const char* isa);

  // Values of all expressions for the given symbols (division by zero gives 0: it only occurs in
  // tensors without elements). Throws Failure on overflow.
  std::vector<int64_t> evaluate(const std::vector<int64_t>& symbols) const;
};

}  // namespace tracea
