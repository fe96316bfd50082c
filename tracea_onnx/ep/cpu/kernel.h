// The contract between a Plan and a CPU kernel: what one bound launch holds and what a kernel
// family must provide. A launch is fully resolved for concrete shapes: pointers are final, integer
// parameters are evaluated.
#pragma once
#include <cstddef>
#include <cstdint>

#include "plan/dtype.h"

namespace tracea {

// Where the residual joins: y = act(acc + r) or y = act(acc) + r.
enum Residual : int64_t { kNoResidual, kBeforeAct, kAfterAct };

// One instruction of a pointwise program over registers of one scalar type (f32 or i64): r[dst] =
// op(r[a], r[b], r[c]). Registers 0..n_in-1 hold the inputs; for an epilogue register 0 is the
// accumulator (bias already in).
struct Instr {
  int32_t op, dst, a, b, c;
  float imm;
};
enum ProgramType : int32_t { kProgF32, kProgI64 };
struct Program {
  const Instr* code;
  int32_t n_code, n_in, n_regs, out, type;
};

// How an extra operand of an epilogue program is read against the output tile (row m, channel n).
enum Broadcast : int64_t {
  kFull /* o[m*ld + n] */,
  kChannel /* o[n] */,
  kRow /* o[m] */,
  kScalar /* o[0] */
};

struct Launch {
  void* const* buf;  // operands in the family's declared order; an absent optional operand is null
  const int64_t* i;  // integer parameters in the family's declared order, and the variant's number
  const float* f;    // float parameters, idem
  const Program* prog;  // pointwise or epilogue program, or null
  int* error;  // a kernel that meets bad data (an index out of range) writes 1 here and goes on
               // safely
  int32_t* words = nullptr;  // as many as `Kernel::words` says, 0 when the tasks start
};

struct Kernel {
  const char* name;  // family name as the Plan writes it
  int64_t (*tasks)(const Launch&,
                   int threads);  // how many independent pieces (>= 0; 0 = nothing to do)
  size_t (*scratch)(const Launch&,
                    int threads);  // bytes of per-thread scratch, 64-byte aligned; may be null
  void (*run)(const Launch&, int64_t task, int64_t tasks,
              void* scratch);  // one piece, on one thread; never throws, never allocates
  int64_t (*words)(const Launch&, int threads) =
      nullptr;  // of a launch that has tasks: how many words of 32 bits they meet in, out of reach
                // of any Plan; none with one thread; may be null
};

// One table per instruction set, terminated by a null name. Each lives in its own translation units
// compiled for that set.
struct KernelTable {
  const char* isa;
  const Kernel* const* kernels;
};

}  // namespace tracea
