// The interpreter of pointwise programs: whole blocks of elements per instruction, so that the
// dispatch costs next to nothing. Registers live on the stack (48 KiB); a register is a pointer and
// a step, so inputs are read in place and scalars are one vector.
//
//   ProgramInput in[] = {{acc, ld, 1}, {bias, 0, 1}, {row_scale, 1, 0}, {scalar, 0, 0}};
//   run_program_rows(*l.prog, in, y, ldy, rows, columns);      y may be the very memory of a full
//   input
#pragma once
#include "common/math.h"
#include "opcodes.h"

namespace tracea {
namespace TRACEA_NS {

// Element (m, n) of an input is p[m * row + n * col]; col is 0 or 1.
struct ProgramInput {
  const float* p;
  int64_t row, col;
};

constexpr int kMaxRegisters = 256;  // `program.py` compiles no program with more
constexpr int kRegisterFloats = 8192, kMaxBlock = 256;

struct ProgramRegister {
  const float* p;
  int64_t step;
};  // vector j of the block is p[j * step ..]; step is W or 0

struct ProgramState {
  alignas(64) float file[kRegisterFloats];      // register r of this block: file + r * block
  alignas(64) float splats[kMaxRegisters * W];  // apart from `file`: a result may replace a scalar
                                                // while it is still read
  ProgramRegister regs[kMaxRegisters];
  int64_t block;
  float* own(int r) { return file + r * block; }
  void set_scalar(int r, float x) {
    store(splats + r * W, splat(x));
    regs[r] = {splats + r * W, 0};
  }
};

static inline float mod_sign_of_divisor(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0.f && (r < 0.f) != (b < 0.f) ? r + b : r;
}

// One instruction over n elements (a multiple of W).
static inline void run_instruction(const Instr& ins, const ProgramRegister* regs, float* d,
                                   int64_t n) {
  const float *pa = regs[ins.a].p, *pb = regs[ins.b].p, *pc = regs[ins.c].p;
  const int64_t sa = regs[ins.a].step, sb = regs[ins.b].step, sc = regs[ins.c].step;
  float* const end = d + n;
  const vf zero{}, one = splat(1.f);
#define TRACEA_OP1(op, value)           \
  case op:                              \
    for (; d < end; d += W, pa += sa) { \
      const vf a = load(pa);            \
      store(d, value);                  \
    }                                   \
    return;
#define TRACEA_OP2(op, value)                     \
  case op:                                        \
    for (; d < end; d += W, pa += sa, pb += sb) { \
      const vf a = load(pa), b = load(pb);        \
      store(d, value);                            \
    }                                             \
    return;
#define TRACEA_OP3(op, value)                               \
  case op:                                                  \
    for (; d < end; d += W, pa += sa, pb += sb, pc += sc) { \
      const vf a = load(pa), b = load(pb), c = load(pc);    \
      store(d, value);                                      \
    }                                                       \
    return;
#define TRACEA_LANE(f) [](auto... x) { return f(x...); }
  switch (ins.op) {
    TRACEA_FLOAT_OPS(TRACEA_OP1, TRACEA_OP2, TRACEA_OP3)
    default: return;
  }
#undef TRACEA_OP1
#undef TRACEA_OP2
#undef TRACEA_OP3
#undef TRACEA_LANE
}

// The code over one block whose input registers are set. The result goes to `y` when it is not null
// (room for n rounded up to W, written by the last instruction alone), else to the returned
// register.
static inline ProgramRegister run_block(const Program& p, ProgramState& s, int64_t n, float* y) {
  const int64_t whole = (n + W - 1) / W * W;
  for (int k = 0; k < p.n_code; k++) {
    const Instr& ins = p.code[k];
    if (ins.op == kOpConst) {
      s.set_scalar(ins.dst, ins.imm);
      continue;
    }
    const bool last = y && k + 1 == p.n_code && ins.dst == p.out;
    float* d = last ? y : s.own(ins.dst);
    run_instruction(ins, s.regs, d, whole);
    s.regs[ins.dst] = {d, W};
  }
  return s.regs[p.out];
}

static inline void copy_row(float* y, const float* x, int64_t n) {
  int64_t j = 0;
  for (; j + W <= n; j += W) store(y + j, load(x + j));
  if (j < n) store_n(y + j, load_n(x + j, int(n - j)), int(n - j));
}

// The register's first n values to y.
static inline void store_register(float* y, ProgramRegister r, int64_t n) {
  if (r.step) {
    if (r.p != y) copy_row(y, r.p, n);
    return;
  }
  const vf v = load(r.p);
  int64_t j = 0;
  for (; j + W <= n; j += W) store(y + j, v);
  if (j < n) store_n(y + j, v, int(n - j));
}

// Rows shorter than half a block share one: register r holds `rows` rows of `pitch` floats.
static inline void run_packed_rows(const Program& p, ProgramState& s, const ProgramInput* in,
                                   float* y, int64_t ldy, int64_t m, int64_t n) {
  const int64_t pitch = (n + W - 1) / W * W, group = s.block / pitch;
  for (int64_t m0 = 0; m0 < m; m0 += group) {
    const int64_t rows = m - m0 < group ? m - m0 : group;
    for (int k = 0; k < p.n_in; k++) {
      const ProgramInput& x = in[k];
      if (!x.row && !x.col) {
        s.set_scalar(k, *x.p);
        continue;
      }
      float* own = s.own(k);
      for (int64_t r = 0; r < rows; r++) {
        const float* row = x.p + (m0 + r) * x.row;
        if (x.col)
          copy_row(own + r * pitch, row, n);
        else
          for (int64_t j = 0; j < pitch; j += W) store(own + r * pitch + j, splat(*row));
      }
      s.regs[k] = {own, W};
    }
    const ProgramRegister out = run_block(p, s, rows * pitch, nullptr);
    for (int64_t r = 0; r < rows; r++)
      store_register(y + (m0 + r) * ldy, {out.p + (out.step ? r * pitch : 0), out.step}, n);
  }
}

// Whether the program is one instruction (and constants): nothing passes through registers, so a
// block may be a whole row.
static inline bool one_pass(const Program& p) {
  for (int k = 0; k + 1 < p.n_code; k++)
    if (p.code[k].op != kOpConst) return false;
  return p.n_code == 0 || p.code[p.n_code - 1].op == kOpConst || p.code[p.n_code - 1].dst == p.out;
}

// y[m*ldy + n] = program(inputs at (m, n)) over m rows of n columns. y may coincide with a full
// input of the same pitch.
inline __attribute__((noinline)) void run_program_rows(const Program& p, const ProgramInput* in,
                                                       float* y, int64_t ldy, int64_t m,
                                                       int64_t n) {
  ProgramState s;
  const int64_t room = kRegisterFloats / (p.n_regs > 0 ? p.n_regs : 1) / W * W;
  s.block = room < kMaxBlock ? room : kMaxBlock;
  for (int k = 0; k < p.n_regs; k++)
    s.regs[k] = {s.splats, 0};  // operands that an opcode does not read still index a register
  if (m > 1 && 2 * ((n + W - 1) / W * W) <= s.block) return run_packed_rows(p, s, in, y, ldy, m, n);
  const int64_t block = one_pass(p) ? n : s.block;
  for (int64_t r = 0; r < m; r++)
    for (int64_t j = 0, count; j < n; j += count) {
      count = n - j < block ? n - j : block;
      if (count >= W)
        count = count / W * W;  // what is left below a vector goes through registers, on its own
      const bool whole = count >= W;
      for (int k = 0; k < p.n_in; k++) {
        const float* x = in[k].p + r * in[k].row;
        if (!in[k].col)
          s.set_scalar(k, *x);
        else if (whole)
          s.regs[k] = {x + j, W};
        else
          copy_row(s.own(k), x + j, count), s.regs[k] = {s.own(k), W};
      }
      float* const row = y + r * ldy + j;
      store_register(row, run_block(p, s, count, whole ? row : nullptr), count);
    }
}

// --- i64
// ------------------------------------------------------------------------------------------------------------------

// Element n of an input is p[n * step]; step is 0 or 1.
struct ProgramInputI64 {
  const int64_t* p;
  int64_t step;
};
constexpr int kBlockI64 = 128, kRegisterInts = 4096;

static inline int64_t divide(
    int64_t a, int64_t b) {  // toward zero; total: x / 0 = 0 and the one overflow wraps
  return b == 0 ? 0 : b == -1 ? int64_t(0 - uint64_t(a)) : a / b;
}
static inline int64_t remainder_of_dividend(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : a % b;
}
static inline int64_t remainder_of_divisor(int64_t a, int64_t b) {
  const int64_t r = remainder_of_dividend(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline void run_instruction_i64(const Instr& ins, int64_t* d, const int64_t* pa,
                                       const int64_t* pb, const int64_t* pc, int64_t n) {
  typedef uint64_t u;  // arithmetic wraps like ORT's on every machine
#define TRACEA_OP(op, value)                         \
  case op:                                           \
    for (int64_t j = 0; j < n; j++) {                \
      const int64_t a = pa[j], b = pb[j], c = pc[j]; \
      (void)a;                                       \
      (void)b;                                       \
      (void)c;                                       \
      d[j] = int64_t(value);                         \
    }                                                \
    return;
  switch (ins.op) {
    TRACEA_INT_OPS(TRACEA_OP)
    default: return;
  }
#undef TRACEA_OP
}

// y[j] = program(inputs at j), j < n; exact. y may coincide with an input of step 1.
inline __attribute__((noinline)) void run_program_i64(const Program& p, const ProgramInputI64* in,
                                                      int64_t* y, int64_t n) {
  int64_t file[kRegisterInts];
  const int64_t room = kRegisterInts / (p.n_regs > 0 ? p.n_regs : 1),
                block = room < kBlockI64 ? room : kBlockI64;
  for (int64_t j = 0; j < n; j += block) {
    const int64_t count = n - j < block ? n - j : block;
    for (int k = 0; k < p.n_in; k++)
      for (int64_t e = 0; e < count; e++) file[k * block + e] = in[k].p[(j + e) * in[k].step];
    for (int k = 0; k < p.n_code; k++) {
      const Instr& ins = p.code[k];
      run_instruction_i64(ins, file + ins.dst * block, file + ins.a * block, file + ins.b * block,
                          file + ins.c * block, count);
    }
    memcpy(y + j, file + p.out * block, 8 * size_t(count));
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
