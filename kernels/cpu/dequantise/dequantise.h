// Integers of 2, 4 or 8 bits with a scale for each block, dequantised: rows that indices pick, or
// all of them.
#pragma once
#include <algorithm>
#include <cstring>

#include "common/convert.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace dequantise {

namespace f = fam::dequantise;

constexpr int64_t kPiece = 256;

static int64_t tasks(const Launch& l, int threads) {
  const int64_t rows = l.i[f::outer] * l.i[f::count];
  return rows && l.i[f::inner] ? even_tasks(rows, rows * (4 + l.i[f::inner] / 4), threads) : 0;
}

// to[count]: integers from number `first` on; a sign makes the least one 0, as `middle` counts.
template <int BITS>
static inline void unpack(const uint8_t* x, int64_t first, int64_t count, uint32_t sign,
                          int32_t* to) {
  constexpr int64_t per = 8 / BITS;
  int64_t k = 0;
  for (; k < count && (first + k) % per; k++) to[k] = int32_t(bits_at(x, first + k, BITS) ^ sign);
  const uint8_t* p = x + (first + k) / per;
  for (; k + per <= count; k += per, p++)
    for (int64_t i = 0; i < per; i++)
      to[k + i] = int32_t((uint32_t(*p) >> (BITS * i) & ((1u << BITS) - 1)) ^ sign);
  for (; k < count; k++) to[k] = int32_t(bits_at(x, first + k, BITS) ^ sign);
}

struct Scales {
  const Launch& l;
  int64_t bits, dtype, row, pitch, middle;
  uint32_t sign;

  explicit Scales(const Launch& from)
      : l(from),
        bits(from.i[f::bits]),
        dtype(from.i[f::scale_dtype]),
        row(from.i[f::zero_row]),
        pitch((row + 8 / bits - 1) / (8 / bits) * (8 / bits)),
        middle(from.i[f::middle]),
        sign(from.i[f::is_signed] ? 1u << (bits - 1) : 0) {}
  float scale(int64_t k) const {
    const void* const p = l.buf[f::scale];
    if (dtype == kF32) return ((const float*)p)[k];
    return dtype == kF16 ? convert<float>(((const Half*)p)[k])
                         : convert<float>(((const Bfloat*)p)[k]);
  }
  int32_t zero(int64_t k) const {
    const void* const p = l.buf[f::zero];
    return int32_t(p ? bits_at(p, k / row * pitch + k % row, bits) ^ sign : uint32_t(middle));
  }
};

// to[count], at most kPiece: elements from number `first` on.
template <int BITS>
static void floats(const Scales& s, int64_t first, int64_t count, float* to) {
  const int64_t *const i = s.l.i, within = i[f::within], span = i[f::span], block = i[f::block],
                       blocks = (span + block - 1) / block;
  int32_t q[kPiece];
  unpack<BITS>((const uint8_t*)s.l.buf[f::x], first, count, s.sign, q);
  for (int64_t done = 0; done < count;) {
    const int64_t at = first + done, z = at % within, line = at / within, y = line % span,
                  number = (line / span * blocks + y / block) * within + z;
    int64_t n = within == 1 ? std::min(block - y % block, span - y) : within - z;
    n = std::min(n, count - done);
    if (within == 1) {
      const float scale = s.scale(number);
      const int32_t zero = s.zero(number);
      for (int64_t k = 0; k < n; k++) to[done + k] = float(q[done + k] - zero) * scale;
    } else {
      for (int64_t k = 0; k < n; k++)
        to[done + k] = float(q[done + k] - s.zero(number + k)) * s.scale(number + k);
    }
    done += n;
  }
}

template <int BITS>
static void rows(const Launch& l, int64_t task, int64_t tasks) {
  const Scales s(l);
  const int64_t inner = l.i[f::inner], n = l.i[f::n], columns = l.i[f::count],
                count = l.i[f::outer] * columns, dtype = l.i[f::y_dtype];
  float piece[kPiece];
  for (int64_t r = task_begin(count, task, tasks); r < task_begin(count, task + 1, tasks); r++) {
    const int64_t j = r % columns;
    int64_t at = j;
    if (l.buf[f::idx])
      at = l.i[f::idx_dtype] == kI32 ? ((const int32_t*)l.buf[f::idx])[j]
                                     : ((const int64_t*)l.buf[f::idx])[j];
    at += at < 0 ? n : 0;
    const bool found = at >= 0 && at < n;
    for (int64_t k = 0; k < inner; k += kPiece) {
      const int64_t some = std::min(kPiece, inner - k);
      float* const to = dtype == kF32 ? (float*)l.buf[f::y] + r * inner + k : piece;
      if (found)
        floats<BITS>(s, (r / columns * n + at) * inner + k, some, to);
      else
        memset(to, 0, size_t(some) * sizeof(float));
      if (dtype != kF32) write_as(dtype, l.buf[f::y], r * inner + k, to, some);
    }
  }
}

static void run(const Launch& l, int64_t task, int64_t tasks, void*) {
  switch (l.i[f::bits]) {
    case 2: return rows<2>(l, task, tasks);
    case 4: return rows<4>(l, task, tasks);
    default: return rows<8>(l, task, tasks);
  }
}

}  // namespace dequantise

static const Kernel kernel_dequantise = {"dequantise", dequantise::tasks, nullptr, dequantise::run};
static const Kernel* const table_dequantise[] = {&kernel_dequantise, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
