// LSTM, GRU and RNN: h[s + 1] = cell(x[s], h[s] R), where x is the projection of the input, of all
// steps. R lies in panels of 32 units of one gate, those of one stage side by side
// ([unit / 32][gate][k][32]), so that the sums of a few units stay in L1 until their gates read
// them.
//
// A task is a direction and some rows of the batch. Where there are too few rows for that, several
// tasks share a direction, each with units of its own, whose weights stay in its core's cache; they
// meet after each stage of a step.
#pragma once
#include "common/tile.h"
#include "cpu/spin.h"

namespace tracea {
namespace TRACEA_NS {
namespace recurrent {

namespace f = fam::recurrent;

// Multiply-adds of a stage that are worth a meeting, and rows of a batch that are worth a task.
constexpr int64_t kMeeting = 1 << 15, kRows = 8;
constexpr int64_t kRowBlock = 4 * kTileRows, kSums = 1 << 14;  // rows, and floats, of sums at once
constexpr int kMostParts = 31, kLine = 16;                     // int32 of a cache line
static_assert((kMostParts + 1) * kLine == fam::kMeetingPoint);

static inline int32_t read(const int32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

// Where the tasks of one direction meet. The work of a ticket, a part of the units in one stage, is
// done by the part's own task; by another one where that has not begun: the pool may have fewer
// threads than there are tasks. So whoever waits, waits for a thread that runs.
struct Meeting {
  int32_t* lines;  // how many parts of tickets are done; of each part: its next ticket, begun

  int32_t* ticket(int64_t p) const { return lines + (p + 1) * kLine; }
  bool begun(int64_t p) const { return read(ticket(p) + 1); }
  void begin(int64_t p) const { __atomic_store_n(ticket(p) + 1, 1, __ATOMIC_RELEASE); }
  bool take(int64_t p, int32_t n) const {
    return __atomic_compare_exchange_n(ticket(p), &n, n + 1, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
  }
  void done() const { __atomic_fetch_add(lines, 1, __ATOMIC_ACQ_REL); }
  void wait(int64_t count) const {
    for (int spins = 0; read(lines) < count; spins++) spin(spins);
  }
};

struct Act {
  int64_t code;
  float p0, p1;

  __attribute__((noinline)) void other(float* v) const {
    EpilogueTile t{};
    t.y = v, t.m = 1, t.n = W;
    Epilogue e{};
    e.act = code, e.p0 = p0, e.p1 = p1;
    finish_tile(e, t);
  }
  __attribute__((always_inline)) vf operator()(vf v) const {
    if (code == kSigmoid) return splat(1.f) / one_plus_exp_neg(v);
    if (code == kTanh) return vtanh(v);
    float t[W];
    store(t, v);
    other(t);
    return load(t);
  }
};

// One direction, and rows m0..m1 of the batch.
struct Layer {
  int64_t T, B, H, G, panels, pitch, stages;
  int64_t x_t, x_b, y_t, y_b, h_b, m0, m1;
  bool coupled, backward, plain;
  const float *x, *r, *bias, *peephole, *h0, *c0;
  const int32_t* lens;
  float *y, *y_h, *y_c;
  float *h[2], *c, *more;  // [B][pitch]; of a GRU c holds z, and more r * h
  float* sums;
  float clip;
  Act act_f, act_g, act_h;
  int* error;

  int64_t first_gate(int64_t stage) const { return stage ? G - 1 : 0; }
  int64_t gates(int64_t stage) const { return stages == 1 ? G : stage ? 1 : G - 1; }
  int64_t length(int64_t b) const { return lens ? std::min<int64_t>(std::max(lens[b], 0), T) : T; }
  int64_t tickets() const { return T * stages + 2; }

  // sums[i, :] = a[i, :H] times `count` panels of R. The first step has them from farther away.
  // Every other step goes through them from last to first: it begins with what the one before has
  // left in the caches.
  void product(const float* a, int64_t rows, const float* w, int64_t count) const {
    static const float zeros[4 * kPanel] = {};
    const int64_t blocks = div_up(H, kDepth), size = H * kPanel, ld = count * kPanel;
    const int64_t group = rows <= kWideRows ? kWidePanels[rows] : 1,
                  whole = group > 1 ? count / group * group : 0;
    const bool back = step & 1;
    const WideTile* const tiles = step == 0 ? kWideTiles : back ? kBackTiles : kSteadyTiles;
    const Epilogue none{};
    for (int64_t j = 0; j < blocks; j++) {
      const int64_t q = back ? blocks - 1 - j : j;
      const int64_t k0 = part(H, blocks, q), k = part(H, blocks, q + 1) - k0;
      const float* const from = w + k0 * kPanel;
      for (int64_t i = 0; i < whole; i += group) {
        const int64_t p = back ? whole - group - i : i;
        tiles[rows](a + k0, pitch, from + p * size, size, sums + p * kPanel, ld,
                    j ? nullptr : zeros, k);
      }
      if (whole == count) continue;
      Block b{};
      b.a = a + k0, b.lda = pitch, b.b = from + whole * size, b.b_pitch = size;
      b.y = sums + whole * kPanel, b.ldy = ld, b.rows = rows, b.cols = (count - whole) * kPanel;
      b.k = k, b.first = j == 0, b.last = j == blocks - 1, b.epilogue = &none;
      run_block(b);
    }
  }

  // Activations of what is clipped. PLAIN: those that ONNX has by default, of what is not.
  template <bool PLAIN>
  __attribute__((always_inline)) vf f(vf v) const {
    if (PLAIN) return G == 3 || G == 4 ? splat(1.f) / one_plus_exp_neg(v) : vtanh(v);
    return act_f(clipped(v));
  }
  template <bool PLAIN>
  __attribute__((always_inline)) vf g(vf v) const {
    return PLAIN ? vtanh(v) : act_g(clipped(v));
  }
  vf clipped(vf v) const { return clip > 0.f ? clamp(v, splat(-clip), splat(clip)) : v; }
  // What is added to the sum of one gate: of unit u on.
  vf biased(int64_t gate, int64_t u) const { return bias ? load(bias + gate * H + u) : vf{}; }

  // New h of units u..u+W of one row from the sums of their gates, 32 apart; stage 0 of two leaves
  // z and r * h.
  template <bool PLAIN>
  vf cell(int64_t stage, int64_t b, int64_t u, const float* sum, const float* xs) const {
    const auto in = [&](int64_t gate) {
      return load(xs + gate * H) + load(sum + (gate - first_gate(stage)) * kPanel) +
             biased(gate, u);
    };
    const auto peeped = [&](int64_t gate, int64_t k, vf state) {
      const vf v = in(gate);
      return !PLAIN && peephole ? fma(load(peephole + k * H + u), state, v) : v;
    };
    float* const cs = c + b * pitch + u;
    const vf old = load(h_at(b) + u);
    if (G == 4) {
      const vf state = load(cs);
      const vf i = f<PLAIN>(peeped(0, 0, state));
      const vf forget = !PLAIN && coupled ? 1.f - i : f<PLAIN>(peeped(2, 2, state));
      const vf next = fma(forget, state, i * g<PLAIN>(in(3)));
      store(cs, next);
      return f<PLAIN>(peeped(1, 1, next)) * (PLAIN ? vtanh(next) : act_h(next));
    }
    if (G != 3) return f<PLAIN>(in(0));
    if (stage == 0) {
      const vf z = f<PLAIN>(in(0)), reset = f<PLAIN>(in(1));
      if (stages == 2) {
        store(cs, z);
        store(more + b * pitch + u, reset * old);
        return old;
      }
      const vf own = load(sum + 2 * kPanel) + biased(2, u);
      return mixed(z, g<PLAIN>(fma(reset, own, load(xs + 2 * H))), old);
    }
    return mixed(load(cs), g<PLAIN>(in(2)), old);
  }
  static vf mixed(vf z, vf made, vf old) { return fma(z, old - made, made); }

  int64_t step;  // of the ticket at work
  const float* h_at(int64_t b) const { return h[step & 1] + b * pitch; }

  // Units u0..u1 of rows b..b+rows, whose sums are there.
  template <bool PLAIN>
  void gates_of(int64_t stage, int64_t b, int64_t rows, int64_t u0, int64_t u1) const {
    const int64_t n = gates(stage), ld = div_up(u1 - u0, kPanel) * n * kPanel;
    const bool last = stage == stages - 1;
    for (int64_t i = 0; i < rows; i++, b++) {
      const int64_t len = length(b);
      const bool live = step < len;
      const int64_t t = live && backward ? len - 1 - step : step;
      const float* const xs = x + t * x_t + b * x_b;
      float* const ys = y ? y + t * y_t + b * y_b : nullptr;
      float* const next = h[~step & 1] + b * pitch;
      for (int64_t u = u0; u < u1; u += W) {
        const int64_t panel = (u - u0) / kPanel;
        const float* const sum = sums + i * ld + panel * n * kPanel + (u - u0) % kPanel;
        const vf made = live ? cell<PLAIN>(stage, b, u, sum, xs + u) : load(h_at(b) + u);
        if (!last) continue;
        store(next + u, made);
        if (ys) put(ys, u, live ? made : vf{});
      }
    }
  }
  void put(float* row, int64_t u, vf v) const {
    if (u + W <= H)
      store(row + u, v);
    else
      store_n(row + u, v, int(H - u));
  }

  void start(int64_t u0, int64_t u1) const {
    for (int64_t b = m0; b < m1; b++) {
      if (lens && (lens[b] < 0 || lens[b] > T)) *error = 1;
      for (int64_t u = u0; u < u1; u += W) {
        const int n = int(std::min<int64_t>(W, H - u));
        store(h[0] + b * pitch + u, h0 ? load_n(h0 + b * h_b + u, n) : vf{});
        if (G == 4) store(c + b * pitch + u, c0 ? load_n(c0 + b * h_b + u, n) : vf{});
      }
    }
  }
  // The last state of a row of no steps is 0, as ONNX Runtime has it.
  void finish(int64_t u0, int64_t u1) const {
    for (int64_t b = m0; b < m1; b++)
      for (int64_t u = u0; u < u1; u += W) {
        const bool some = length(b) > 0;
        if (y_h) put(y_h + b * h_b, u, some ? load(h[T & 1] + b * pitch + u) : vf{});
        if (y_c) put(y_c + b * h_b, u, some ? load(c + b * pitch + u) : vf{});
      }
  }

  // One ticket for panels p0..p1 of the units.
  void run(int64_t ticket, int64_t p0, int64_t p1) {
    const int64_t u0 = p0 * kPanel, end = std::min(p1 * kPanel, H);
    if (ticket == 0) return start(u0, end);
    if (ticket == tickets() - 1) return finish(u0, end);
    const int64_t stage = (ticket - 1) % stages, n = gates(stage);
    step = (ticket - 1) / stages;
    const float* const w = r + first_gate(stage) * panels * H * kPanel;
    const float* const a = stage ? more : h[step & 1];
    const int64_t across = panels_at_once(std::min(m1 - m0, kRowBlock), n);
    const int64_t chunks = div_up(p1 - p0, across);
    for (int64_t k = 0; k < chunks; k++) {
      const int64_t p = p0 + (step & 1 ? chunks - 1 - k : k) * across, q = std::min(p + across, p1);
      for (int64_t b = m0; b < m1; b += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, m1 - b);
        product(a + b * pitch, rows, w + p * n * H * kPanel, (q - p) * n);
        const int64_t from = p * kPanel, to = std::min(q * kPanel, H);
        plain ? gates_of<true>(stage, b, rows, from, to)
              : gates_of<false>(stage, b, rows, from, to);
      }
    }
  }
  static int64_t panels_at_once(int64_t rows, int64_t gates) {
    return std::max<int64_t>(1, kSums / std::max<int64_t>(rows * gates * kPanel, 1));
  }
};

static inline bool two_stages(const Launch& l) { return l.i[f::G] == 3 && !l.i[f::before]; }

static int64_t tasks(const Launch& l, int threads) {
  const int64_t B = l.i[f::B], H = l.i[f::H], D = l.i[f::D];
  if (B <= 0 || H <= 0 || D <= 0) return 0;
  const int64_t share = std::max<int64_t>(1, threads / D), by_rows = std::min(share, B / kRows);
  const int64_t work = B * l.i[f::G] * H * H / (1 + two_stages(l));
  const int64_t by_units =
      std::min({share, div_up(H, kPanel), int64_t(kMostParts), work / kMeeting});
  return D * std::max<int64_t>({1, by_rows, by_units});
}
// Whether tasks that share a direction have rows of their own.
static inline bool split_rows(const Launch& l, int64_t each) { return l.i[f::B] / kRows >= each; }

static size_t scratch(const Launch& l, int) {
  const int64_t rows = std::min(l.i[f::B], kRowBlock);
  return size_t(std::max(kSums, rows * l.i[f::G] * kPanel)) * 4 + 64;
}

static Layer layer(const Launch& l, int64_t d, float* sums) {
  const auto at = [&](int operand, int64_t offset) {
    return l.buf[operand] ? (float*)l.buf[operand] + offset : nullptr;
  };
  Layer v{};
  v.T = l.i[f::T], v.B = l.i[f::B], v.H = l.i[f::H], v.G = l.i[f::G];
  v.panels = div_up(v.H, kPanel), v.pitch = v.panels * kPanel, v.stages = 1 + two_stages(l);
  v.x_t = l.i[f::x_t], v.x_b = l.i[f::x_b], v.y_t = l.i[f::y_t], v.y_b = l.i[f::y_b];
  v.h_b = l.i[f::h_b], v.m1 = v.B;
  v.coupled = l.i[f::coupled], v.backward = (d & 1) != l.i[f::reverse];
  v.x = at(f::x, d * v.G * v.H), v.r = at(f::r, d * v.G * v.pitch * v.H);
  v.bias = at(f::bias, d * l.i[f::bias_d]), v.peephole = at(f::peephole, d * 3 * v.H);
  v.h0 = at(f::h, d * l.i[f::h_d]), v.c0 = at(f::c, d * l.i[f::h_d]);
  v.lens = (const int32_t*)l.buf[f::lens];
  v.y = at(f::y, d * l.i[f::y_d]), v.y_h = at(f::y_h, d * l.i[f::h_d]);
  v.y_c = v.G == 4 ? at(f::y_c, d * l.i[f::h_d]) : nullptr;
  float* const state = at(f::state, l.i[f::D] * fam::kMeetingPoint + d * 4 * v.B * v.pitch);
  v.h[0] = state, v.h[1] = state + v.B * v.pitch, v.c = state + 2 * v.B * v.pitch;
  v.more = state + 3 * v.B * v.pitch;
  v.sums = sums, v.clip = l.f[f::clip], v.error = l.error;
  v.act_f = {l.i[f::act_f], l.f[f::f0], l.f[f::f1]};
  v.act_g = {l.i[f::act_g], l.f[f::g0], l.f[f::g1]};
  v.act_h = {l.i[f::act_h], l.f[f::h0], l.f[f::h1]};
  const auto gate = v.G == 3 || v.G == 4 ? kSigmoid : kTanh;
  v.plain = v.act_f.code == gate && v.act_g.code == kTanh && v.act_h.code == kTanh && !v.peephole &&
            !v.coupled && v.clip <= 0.f;
  return v;
}

static void run(const Launch& l, int64_t task, int64_t tasks, void* scratch) {
  const int64_t each = tasks / l.i[f::D], d = task / each, own = task % each;
  Layer v = layer(l, d, (float*)scratch);
  if (split_rows(l, each) || each == 1) {
    v.m0 = part(v.B, each, own), v.m1 = part(v.B, each, own + 1);
    for (int64_t t = 0; t < v.tickets(); t++) v.run(t, 0, v.panels);
    return;
  }
  const Meeting meeting{(int32_t*)l.buf[f::state] + d * fam::kMeetingPoint};
  meeting.begin(own);
  for (int64_t t = 0; t < v.tickets(); t++) {
    meeting.wait(t * each);
    for (int64_t k = 0; k < each; k++) {
      const int64_t p = (own + k) % each;
      if ((k && meeting.begun(p)) || !meeting.take(p, int32_t(t))) continue;
      v.run(t, part(v.panels, each, p), part(v.panels, each, p + 1));
      meeting.done();
    }
  }
}

}  // namespace recurrent

namespace pack_recurrent {

namespace f = fam::pack_recurrent;

// A task is a panel: 32 units of one gate.
static int64_t tasks(const Launch& l, int) {
  return l.i[f::D] * l.i[f::G] * div_up(l.i[f::H], kPanel);
}
static void run(const Launch& l, int64_t task, int64_t, void*) {
  const int64_t H = l.i[f::H], G = l.i[f::G], panels = div_up(H, kPanel);
  const int64_t first = std::min(l.i[f::first], G), d = task / (G * panels),
                k = task % (G * panels);
  const bool behind = k >= first * panels;  // in the second stage
  const int64_t n = behind ? G - first : first, j = behind ? k - first * panels : k;
  const int64_t gate = j % n + (behind ? first : 0), u = j / n * kPanel;
  pack_columns((const float*)l.buf[f::r] + ((d * G + gate) * H + u) * H, 1, H, H,
               std::min<int64_t>(kPanel, H - u), (float*)l.buf[f::packed] + task * H * kPanel, 1.f);
}

}  // namespace pack_recurrent

static const Kernel kernel_recurrent = {"recurrent", recurrent::tasks, recurrent::scratch,
                                        recurrent::run};
static const Kernel kernel_pack_recurrent = {"pack_recurrent", pack_recurrent::tasks, nullptr,
                                             pack_recurrent::run};
static const Kernel* const table_recurrent[] = {&kernel_recurrent, &kernel_pack_recurrent, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
