// Boxes by their scores, without those that overlap a better one of their class.
#pragma once
#include <algorithm>

#include "common/keys.h"
#include "common/simd.h"
#include "common/tasks.h"

namespace tracea {
namespace TRACEA_NS {

namespace nms {

namespace f = fam::nms;

// A product that is rounded before it is added to anything, as without fused multiply-add.
TRACEA_INLINE vf rounded(vf v) {
  asm("" : "+m"(v));
  return v;
}
static inline float rounded(float v) {
  asm("" : "+m"(v));
  return v;
}

struct Box {
  float x0, x1, y0, y1, area;
};

static inline Box box(const float* p, bool center) {
  Box b;
  if (center)
    b = {p[0] - p[2] / 2, p[0] + p[2] / 2, p[1] - p[3] / 2, p[1] + p[3] / 2, 0.f};
  else
    b = {std::min(p[1], p[3]), std::max(p[1], p[3]), std::min(p[0], p[2]), std::max(p[0], p[2]),
         0.f};
  b.area = rounded((b.x1 - b.x0) * (b.y1 - b.y0));
  return b;
}

static inline int64_t most(const Launch& l) { return std::min(l.i[f::most], l.i[f::N]); }
// Floats of one coordinate of the boxes that were taken, in whole vectors.
static inline int64_t room(int64_t count) { return (count + W - 1) / W * W; }

static int64_t tasks(const Launch& l, int threads) {
  const int64_t pairs = l.i[f::B] * l.i[f::C];
  return pairs ? even_tasks(pairs, pairs * (64 + 4 * l.i[f::N]), threads) : 0;
}

static size_t scratch(const Launch& l, int) {
  return size_t(l.i[f::N]) * sizeof(uint64_t) + size_t(room(most(l))) * sizeof(Box);
}

// Whether one of `count` boxes overlaps b by more than the limit. Those behind them have no area.
static inline bool overlapped(const float* taken, int64_t pitch, int64_t count, const Box& b,
                              float limit) {
  if (!(b.area > 0.f)) return false;
  for (int64_t k = 0; k < count; k += W) {
    const vf width =
        vmin(load(taken + pitch + k), splat(b.x1)) - vmax(load(taken + k), splat(b.x0));
    const vf height = vmin(load(taken + 3 * pitch + k), splat(b.y1)) -
                      vmax(load(taken + 2 * pitch + k), splat(b.y0));
    const vf both = rounded(width * height), area = load(taken + 4 * pitch + k),
             either = splat(b.area) + area - both;
    const vi over = (width > 0.f) & (height > 0.f) & (both > 0.f) & (area > 0.f) & (either > 0.f) &
                    (both / either > splat(limit));
    if (lane_bits(over)) return true;
  }
  return false;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* memory) {
  const int64_t n = l.i[f::N], pairs = l.i[f::B] * l.i[f::C], limit = most(l), pitch = room(limit);
  uint64_t* const heap = (uint64_t*)memory;
  float* const taken = (float*)(heap + n);
  int64_t* const counts = (int64_t*)l.buf[f::counts];
  if (n > 0xffffffff) *l.error = 1;  // places fill half a key
  for (int64_t p = task_begin(pairs, task, tasks); p < task_begin(pairs, task + 1, tasks); p++) {
    counts[p] = 0;
    if (!limit || n > 0xffffffff) continue;
    const float* const boxes = (const float*)l.buf[f::boxes] + p / l.i[f::C] * n * 4;
    const float* const scores = (const float*)l.buf[f::scores] + p * n;
    int64_t* const picked = (int64_t*)l.buf[f::picked] + p * limit;
    int64_t left = 0, count = 0;
    for (int64_t j = 0; j < n; j += W) {
      const int lanes = int(std::min<int64_t>(W, n - j));
      uint32_t bits = (1u << lanes) - 1;
      if (l.i[f::above]) {
        const float least = l.f[f::score];  // of lanes behind the last score, too: not above
        bits = lane_bits(load_n(scores + j, lanes, least) > splat(least));
      }
      for (; bits; bits &= bits - 1) {
        const int64_t place = j + __builtin_ctz(bits);
        heap[left++] = key_of(ordered(scores[place]), place);
      }
    }
    std::make_heap(heap, heap + left);
    while (left && count < limit) {
      std::pop_heap(heap, heap + left);
      const int64_t place = place_of(heap[--left]);
      const Box b = box(boxes + 4 * place, l.i[f::center] != 0);
      if (overlapped(taken, pitch, count, b, l.f[f::overlap])) continue;
      if (count % W == 0) store(taken + 4 * pitch + count, vf{});
      taken[count] = b.x0, taken[pitch + count] = b.x1, taken[2 * pitch + count] = b.y0;
      taken[3 * pitch + count] = b.y1, taken[4 * pitch + count] = b.area;
      picked[count++] = place;
    }
    counts[p] = count;
  }
}

}  // namespace nms

namespace nms_list {

namespace f = fam::nms_list;

static void run(const Launch& l, int64_t, int64_t, void*) {
  const int64_t pairs = l.i[f::B] * l.i[f::C], most = l.i[f::most];
  int64_t* y = (int64_t*)l.buf[f::y];
  int64_t found = 0;
  for (int64_t p = 0; p < pairs; p++) {
    const int64_t* const picked = (const int64_t*)l.buf[f::picked] + p * most;
    const int64_t count = std::min(((const int64_t*)l.buf[f::counts])[p], most);
    for (int64_t k = 0; k < count; k++, found++, y += 3)
      y[0] = p / l.i[f::C], y[1] = p % l.i[f::C], y[2] = picked[k];
  }
  *(int64_t*)l.buf[f::count] = found;
}

}  // namespace nms_list

}  // namespace TRACEA_NS
}  // namespace tracea
