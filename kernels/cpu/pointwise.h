// Pointwise programs over whole tensors: `pointwise` with broadcasting over plain layouts,
// `pointwise_nhwc` over channels-last operands.
#pragma once
#include "common/convert.h"
#include "common/program.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace pointwise {

namespace f = fam::pointwise;

constexpr int kDims = 6, kInputs = 6;
constexpr int64_t kChunk = 2048;      // longest row segment handled at once
constexpr int64_t kTabulated = 1024;  // so many elements of 8 bits are worth a table
constexpr int64_t kGather = 1024;     // elements of an input converted or gathered at once

// The iteration space with unit dims dropped and dims merged wherever every input allows: rows x
// columns with the inner two dims apart.
struct Space {
  int dims;
  int64_t n[kDims], stride[kInputs][kDims];
  int inputs;
};

static inline Space collapse(const Launch& l) {
  Space s{};
  s.inputs = l.prog->n_in;
  for (int d = 0; d < kDims; d++) {
    const int64_t n = l.i[f::n0 + d];
    if (n == 1) continue;
    bool merge = s.dims > 0;
    for (int k = 0; k < s.inputs && merge; k++)
      merge = s.stride[k][s.dims - 1] == l.i[f::x0_0 + 7 * k + d] * n;
    const int at = merge ? s.dims - 1 : s.dims++;
    s.n[at] = merge ? s.n[at] * n : n;
    for (int k = 0; k < s.inputs; k++) s.stride[k][at] = l.i[f::x0_0 + 7 * k + d];
  }
  for (; s.dims < 2; s.dims++) {  // leading unit dims: there are always rows and columns
    for (int d = s.dims; d > 0; d--) {
      s.n[d] = s.n[d - 1];
      for (int k = 0; k < s.inputs; k++) s.stride[k][d] = s.stride[k][d - 1];
    }
    s.n[0] = 1;
    for (int k = 0; k < s.inputs; k++) s.stride[k][0] = 0;
  }
  return s;
}

static inline int64_t size(const Launch& l) {
  int64_t n = 1;
  for (int d = 0; d < kDims; d++) n *= l.i[f::n0 + d];
  return n;
}

// Rough nanoseconds per element of a program.
static inline int64_t cost(const Program& p) {
  int64_t tenths = 2;
  for (int k = 0; k < p.n_code; k++) {
    const int op = p.code[k].op;
    const bool simple = op <= kOpNeg || op == kOpAbs || (op >= kOpEq && op <= kOpWhere) ||
                        op == kOpRelu || op == kOpClip || op == kOpSquare;
    tenths += simple ? 1 : op == kOpPow || op == kOpMod || op == kOpFmod || op >= kOpAtan ? 100 : 5;
  }
  return tenths;
}

static int64_t tasks(const Launch& l, int threads) {
  const int64_t n = size(l);
  if (!n) return 0;
  const Space s = collapse(l);
  int64_t rows = 1;
  for (int d = 0; d + 1 < s.dims; d++) rows *= s.n[d];
  const int64_t columns = s.n[s.dims - 1];
  return even_tasks(rows * ((columns + kChunk - 1) / kChunk), n * cost(*l.prog) / 10, threads);
}

// A block of rows x columns at element `at[k]` of every input, contiguous at y + out.
static inline void block_f32(const Launch& l, const Space& s, const int64_t* at, int64_t out,
                             int64_t rows, int64_t columns) {
  const int last = s.dims - 1;
  const int64_t y_type = l.i[f::y_dtype];
  alignas(64) float gathered[kInputs + 1][kGather];
  bool whole = y_type == kF32, direct[kInputs];
  for (int k = 0; k < s.inputs; k++) {
    direct[k] =
        l.i[f::x0_dtype + 7 * k] == kF32 && (s.stride[k][last] == 0 || s.stride[k][last] == 1);
    whole = whole && direct[k];
  }
  const int64_t step_columns = whole || columns <= kGather ? columns : kGather;
  const int64_t step_rows = whole ? rows : columns <= kGather ? kGather / columns : 1;
  for (int64_t r = 0; r < rows; r += step_rows)
    for (int64_t c = 0; c < columns; c += step_columns) {
      const int64_t m = rows - r < step_rows ? rows - r : step_rows,
                    n = columns - c < step_columns ? columns - c : step_columns;
      ProgramInput in[kInputs];
      for (int k = 0; k < s.inputs; k++) {
        const int64_t row = s.stride[k][last - 1], col = s.stride[k][last],
                      offset = at[k] + r * row + c * col;
        if (direct[k]) {
          in[k] = {(const float*)l.buf[f::x0 + k] + offset, row, col};
        } else if (col == 0) {  // one number for each row
          gather_block(l.i[f::x0_dtype + 7 * k], l.buf[f::x0 + k], offset, row, 1, m, 1,
                       gathered[k]);
          in[k] = {gathered[k], 1, 0};
        } else {
          gather_block(l.i[f::x0_dtype + 7 * k], l.buf[f::x0 + k], offset, row, col, m, n,
                       gathered[k]);
          in[k] = {gathered[k], n, 1};
        }
      }
      const int64_t first = out + r * columns + c;
      if (y_type == kF32) {
        run_program_rows(*l.prog, in, (float*)l.buf[f::y] + first, columns, m, n);
      } else {  // m > 1 only when the block spans all columns: its elements are contiguous in y
        run_program_rows(*l.prog, in, gathered[kInputs], n, m, n);
        write_as(y_type, l.buf[f::y], first, gathered[kInputs], m * n);
      }
    }
}

static inline void block_i64(const Launch& l, const Space& s, const int64_t* at, int64_t out,
                             int64_t rows, int64_t columns) {
  constexpr int64_t step = kGather / 2;
  int64_t gathered[kInputs + 1][step];
  const int last = s.dims - 1;
  const int64_t step_columns = columns <= step ? columns : step,
                step_rows = columns <= step ? step / columns : 1;
  for (int64_t r = 0; r < rows; r += step_rows)
    for (int64_t c = 0; c < columns; c += step_columns) {
      const int64_t m = rows - r < step_rows ? rows - r : step_rows,
                    n = columns - c < step_columns ? columns - c : step_columns;
      ProgramInputI64 in[kInputs];
      for (int k = 0; k < s.inputs; k++) {
        const int64_t row = s.stride[k][last - 1], col = s.stride[k][last];
        gather_block(l.i[f::x0_dtype + 7 * k], l.buf[f::x0 + k], at[k] + r * row + c * col, row,
                     col, m, n, gathered[k]);
        in[k] = {gathered[k], 1};
      }
      run_program_i64(*l.prog, in, gathered[kInputs], m * n);
      write_as(l.i[f::y_dtype], l.buf[f::y], out + r * columns + c, gathered[kInputs], m * n);
    }
}

// The input that alone decides an 8-bit result, being of 8 bits itself where the others are single
// numbers; -1 where there is none.
static inline int byte_input(const Launch& l, const Space& s) {
  const int64_t y_type = l.i[f::y_dtype];
  if (y_type != kU8 && y_type != kI8) return -1;
  int found = -1;
  for (int k = 0; k < s.inputs; k++) {
    bool one = true;
    for (int d = 0; d < s.dims; d++) one = one && s.stride[k][d] == 0;
    if (one) continue;
    const int64_t type = l.i[f::x0_dtype + 7 * k];
    if (found >= 0 || (type != kU8 && type != kI8)) return -1;
    found = k;
  }
  return found;
}

// The results of the 256 values of input `by`.
static inline void tabulate(const Launch& l, const Space& s, int by, uint8_t* table) {
  uint8_t all[256];
  for (int k = 0; k < 256; k++) all[k] = uint8_t(k);
  const auto numbers = [&](auto* values, int k) {
    const bool is_table = k == by;
    gather_block(l.i[f::x0_dtype + 7 * k], is_table ? all : l.buf[f::x0 + k], 0, 0, 1, 1,
                 is_table ? 256 : 1, values);
  };
  if (l.prog->type == kProgI64) {
    int64_t in[kInputs][256], out[256];
    ProgramInputI64 inputs[kInputs];
    for (int k = 0; k < s.inputs; k++) numbers(in[k], k), inputs[k] = {in[k], k == by};
    run_program_i64(*l.prog, inputs, out, 256);
    write_as(l.i[f::y_dtype], table, 0, out, 256);
  } else {
    float in[kInputs][256], out[256];
    ProgramInput inputs[kInputs];
    for (int k = 0; k < s.inputs; k++) numbers(in[k], k), inputs[k] = {in[k], 0, k == by};
    run_program_rows(*l.prog, inputs, out, 256, 1, 256);
    write_as(l.i[f::y_dtype], table, 0, out, 256);
  }
}

static inline void block_mapped(const Launch& l, const Space& s, int by, const uint8_t* table,
                                int64_t at, int64_t out, int64_t rows, int64_t columns) {
  const int64_t row = s.stride[by][s.dims - 2], col = s.stride[by][s.dims - 1];
  const uint8_t* x = (const uint8_t*)l.buf[f::x0 + by] + at;
  uint8_t* y = (uint8_t*)l.buf[f::y] + out;
  for (int64_t r = 0; r < rows; r++, x += row, y += columns)
    if (col == 1)
      map_bytes(table, x, y, columns);
    else
      for (int64_t c = 0; c < columns; c++) y[c] = table[x[c * col]];
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const Space s = collapse(l);
  const int row_dim = s.dims - 2;
  const int64_t columns = s.n[s.dims - 1], segments = (columns + kChunk - 1) / kChunk;
  int64_t rows = 1;
  for (int d = 0; d <= row_dim; d++) rows *= s.n[d];
  const int64_t end = task_begin(rows * segments, task + 1, tasks);
  int by = byte_input(l, s);
  if (size(l) / tasks < kTabulated) by = -1;
  uint8_t table[256];
  if (by >= 0) tabulate(l, s, by, table);
  for (int64_t unit = task_begin(rows * segments, task, tasks); unit < end;) {
    const int64_t row = unit / segments, first = unit % segments * kChunk,
                  inner = row % s.n[row_dim];
    // Whole rows in one go up to the end of the row dim; a long row by its segments.
    int64_t m = 1, n = columns - first < kChunk ? columns - first : kChunk;
    if (segments == 1)
      m = s.n[row_dim] - inner < end - unit ? s.n[row_dim] - inner : end - unit;
    else if (first == 0 && end - unit >= segments)
      n = columns;
    int64_t at[kInputs];
    for (int k = 0; k < s.inputs; k++) {
      int64_t rest = row, offset = first * s.stride[k][s.dims - 1];
      for (int d = row_dim; d >= 0; d--) {
        offset += rest % s.n[d] * s.stride[k][d];
        rest /= s.n[d];
      }
      at[k] = offset;
    }
    if (by >= 0)
      block_mapped(l, s, by, table, at[by], row * columns + first, m, n);
    else if (l.prog->type == kProgI64)
      block_i64(l, s, at, row * columns + first, m, n);
    else
      block_f32(l, s, at, row * columns + first, m, n);
    unit += segments == 1 ? m : n == columns ? segments : 1;
  }
}

}  // namespace pointwise

namespace pointwise_nhwc {

namespace f = fam::pointwise_nhwc;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::N] * l.i[f::H], n = rows * l.i[f::W] * l.i[f::C];
  return n ? even_tasks(rows, n * pointwise::cost(*l.prog) / 10, threads) : 0;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  const int64_t h = l.i[f::H], columns = l.i[f::W], c = l.i[f::C], rows = l.i[f::N] * h;
  const int inputs = l.prog->n_in < 4 ? l.prog->n_in : 4;
  bool dense = l.i[f::y_cs] == c;  // a row of pixels is one run of floats
  for (int k = 0; k < inputs; k++) {
    const int64_t kind = l.i[f::x0_kind + 4 * k];
    dense = dense && (kind == kScalar || (kind == kFull && l.i[f::x0_cs + 4 * k] == c));
  }
  for (int64_t r = task_begin(rows, task, tasks); r < task_begin(rows, task + 1, tasks); r++) {
    const int64_t image = r / h, row = r % h;
    ProgramInput in[4];
    for (int k = 0; k < inputs; k++) {
      const float* x = (const float*)l.buf[f::x0 + k];
      const int64_t kind = l.i[f::x0_kind + 4 * k], rs = l.i[f::x0_rs + 4 * k],
                    ns = l.i[f::x0_ns + 4 * k];
      if (kind == kFull)
        in[k] = {x + image * ns + row * rs, l.i[f::x0_cs + 4 * k], 1};
      else if (kind == kChannel)
        in[k] = {x + image * ns, 0, 1};
      else
        in[k] = {x, 0, 0};
    }
    float* out = (float*)l.buf[f::y] + image * l.i[f::y_ns] + row * l.i[f::y_rs];
    if (dense)
      run_program_rows(*l.prog, in, out, 0, 1, columns * c);
    else
      run_program_rows(*l.prog, in, out, l.i[f::y_cs], columns, c);
  }
}

}  // namespace pointwise_nhwc

static const Kernel kernel_pointwise = {"pointwise", pointwise::tasks, nullptr, pointwise::run};
static const Kernel kernel_pointwise_nhwc = {"pointwise_nhwc", pointwise_nhwc::tasks, nullptr,
                                             pointwise_nhwc::run};
static const Kernel* const table_pointwise[] = {&kernel_pointwise, &kernel_pointwise_nhwc, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
