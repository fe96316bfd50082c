// LSTM, GRU and RNN: h[s + 1] = cell(x[s] W, h[s] R). W and R lie in panels of 32 units of one
// gate, those of one stage side by side ([unit / 32][gate][k][32]), so that the sums of a few units
// stay in L1 until their gates read them.
//
// The input is projected a few steps at a time. A single row waits for its weights R in every step,
// and leaves half of the multiply-adds free: beside its products the next steps are projected.
//
// A task is a direction and some rows of the batch. Where there are too few rows for that, several
// tasks share a direction, each with units of its own, whose weights stay in its core's cache; a
// barrier stands after each stage of a step.
#pragma once
#include "common/tile.h"
#include "cpu/spin.h"

namespace tracea {
namespace TRACEA_NS {
namespace recurrent {

namespace f = fam::recurrent_layer;

// Multiply-adds of a stage that are worth a barrier, and rows of a batch that are worth a task.
constexpr int64_t kStageWork = 1 << 15, kRows = 8;
constexpr int64_t kSteps = 6, kKept = fam::kProjectedSteps;  // projected at once, and kept
constexpr int64_t kNear = 1 << 15;                           // floats of W that stay in L2
static_assert(kKept == 2 * kSteps && (!kPairRows || (kPairRows == kSteps && kTileCols == kPanel)));
constexpr int64_t kRowBlock = 4 * kTileRows, kSums = 1 << 14;  // rows, and floats, of sums at once
constexpr int kMostParts = 31, kLine = 16;                     // int32 of a cache line

static inline int32_t read(const int32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

// The barrier of one direction's tasks. The work of a ticket, a part of the units in one stage, is
// done by the part's own task; by another one where that has not begun: the pool may have fewer
// threads than there are tasks. So whoever waits, waits for a thread that runs.
struct StageBarrier {
  int32_t* lines;  // how many parts of tickets are done; of each part: its next ticket, begun

  static int64_t words(int64_t parts) { return (parts + 1) * kLine; }
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

static const float kZeros[4 * kPanel] = {};

// What is left of the projection of kSteps steps of one row: panels of columns, the first of them
// from its term k on.
struct Ahead {
  const float* a;
  int64_t lda;
  const float* w;
  const float* init;
  float* to;
  int64_t ld, terms, panels, k;

  Beside beside() const {
    const bool first = k == 0;
    return {a + k, lda, w + k * kPanel, to, ld, first ? init : to, first ? 0 : ld};
  }
  void advance(int64_t n) {
    k += n;
    if (k < terms) return;
    k = 0, panels--, w += terms * kPanel, to += kPanel, init += kPanel;
  }
  void finish() {
    while (panels) {
      const int64_t n = std::min(terms - k, kDepth);
      const Beside b = beside();
      kTiles[kSteps](b.a, lda, b.b, to, ld, k ? nullptr : init, n, b.b, 0);
      advance(n);
    }
  }
};

// Rows of a, `lda` apart, times panels of weights, each [terms][32]. The first step has them from
// farther away. Every other step goes through them from last to first: it begins with what the one
// before has left in the caches.
struct Product {
  const float* a;
  int64_t lda, rows;
  const float* w;
  int64_t terms, panels;
  const float* init;  // what is added to each row, or null
  float* to;
  int64_t ld;
  enum { kFirst, kForth, kBack } order;
};

// One direction, and rows m0..m1 of the batch.
struct Layer {
  int64_t T, B, H, I, G, panels, pitch, stages;
  int64_t x_t, x_b, y_t, y_b, h_b, m0, m1, lead;
  bool coupled, backward, plain;
  const float *x, *w, *r, *bias, *peephole, *h0, *c0;
  const int32_t* lens;
  float *y, *y_h, *y_c;
  float *h[2], *c, *more;    // [B][pitch]; of a GRU c holds z, and more r * h
  float *added, *projected;  // [G * pitch] and [kKept][B][G * pitch], in the order of the panels
  float* sums;
  float clip;
  Act act_f, act_g, act_h;
  int* error;

  int64_t first_gate(int64_t stage) const { return stage ? G - 1 : 0; }
  int64_t gates(int64_t stage) const { return stages == 1 ? G : stage ? 1 : G - 1; }
  // It may change while the layer runs: a Plan can have the lengths where a result is written.
  int64_t length(int64_t b) const {
    return lens ? std::min<int64_t>(std::max(read(lens + b), 0), T) : T;
  }
  int64_t tickets() const { return T * stages + 2; }

  static void run_product(const Product& p, Ahead* ahead = nullptr) {
    const int64_t blocks = std::max<int64_t>(1, div_up(p.terms, kDepth)), size = p.terms * kPanel;
    const int64_t group = p.rows <= kWideRows ? kWidePanels[p.rows] : 1,
                  whole = group > 1 ? p.panels / group * group : 0;
    const bool back = p.order == Product::kBack;
    const WideTile* const tiles = p.order == Product::kFirst ? kWideTiles
                                  : back                     ? kBackTiles
                                                             : kSteadyTiles;
    const Epilogue none{};
    for (int64_t j = 0; j < blocks; j++) {
      const int64_t q = back ? blocks - 1 - j : j;
      const int64_t k0 = part(p.terms, blocks, q), k = part(p.terms, blocks, q + 1) - k0;
      const float *const a = p.a + k0, *const from = p.w + k0 * kPanel;
      for (int64_t i = 0; i < whole; i += group) {
        const int64_t n = back ? whole - group - i : i;
        const float* const w = from + n * size;
        float* const to = p.to + n * kPanel;
        const float* const init = p.init ? p.init + n * kPanel : kZeros;
        int64_t done = 0;
        if (kPairRows && ahead)
          for (; ahead->panels && done < k;) {
            const int64_t some = std::min(k - done, ahead->terms - ahead->k),
                          at = back ? k - done - some : done;
            kPairTiles[back](a + at, w + at * kPanel, size, to, j || done ? to : init, some,
                             ahead->beside());
            ahead->advance(some);
            done += some;
          }
        const int64_t at = back ? 0 : done;
        if (done < k || k == 0)
          tiles[p.rows](a + at, p.lda, w + at * kPanel, size, to, p.ld, j || done ? nullptr : init,
                        k - done);
      }
      if (whole == p.panels) continue;
      Block b{};
      b.a = a, b.lda = p.lda, b.b = from + whole * size, b.b_pitch = size;
      b.bias = p.init ? p.init + whole * kPanel : nullptr;
      b.y = p.to + whole * kPanel, b.ldy = p.ld, b.rows = p.rows;
      b.cols = (p.panels - whole) * kPanel;
      b.k = k, b.first = j == 0, b.last = j == blocks - 1, b.epilogue = &none;
      run_block(b);
    }
  }

  // --- the projection of the input
  int64_t columns() const { return G * pitch; }
  // Row b, which has `len` steps, of the input in step s, and where its projection lies.
  const float* input(int64_t s, int64_t b, int64_t len) const {
    return x + (backward ? len - 1 - s : s) * x_t + b * x_b;
  }
  int64_t next_input() const { return backward ? -x_t : x_t; }
  float* projection(int64_t s, int64_t b) const {
    return projected + ((s + kKept - lead) % kKept * B + b) * columns();
  }
  // Steps are projected in groups of kSteps. Of a single row the first group has as many as make
  // the others whole, which are projected beside the products of the group before.
  bool single() const { return kPairRows && m1 - m0 == 1; }
  void group() { lead = single() ? (std::max<int64_t>(length(m0), 1) - 1) % kSteps + 1 : kSteps; }
  int64_t group_of(int64_t s) const { return s < lead ? 0 : s - (s - lead) % kSteps; }
  int64_t group_size(int64_t begin) const { return begin ? kSteps : lead; }
  // Columns of panels q..q+count, of the group that begins with s.
  void project(int64_t s, int64_t q, int64_t count) const {
    const bool by_step = !lens && m1 - m0 >= kSteps;
    const int64_t some = std::max<int64_t>(1, kNear / std::max<int64_t>(1, I * kPanel));
    const auto order = step ? Product::kForth : Product::kFirst;
    for (int64_t end = q + count, n; q < end; q += n) {
      n = std::min(some, end - q);
      const float* const from = w + q * I * kPanel;
      for (int64_t t = s; by_step && t < std::min(s + group_size(s), T); t++)
        run_product({input(t, m0, T), x_b, m1 - m0, from, I, n, added + q * kPanel,
                     projection(t, m0) + q * kPanel, columns(), order});
      for (int64_t b = m0; !by_step && b < m1; b++) {
        const int64_t len = length(b), steps = std::min(group_size(s), len - s);
        if (steps > 0)
          run_product({input(s, b, len), next_input(), steps, from, I, n, added + q * kPanel,
                       projection(s, b) + q * kPanel, B * columns(), order});
      }
    }
  }
  // What this step does of the next group's projection, of panels q..q+count.
  Ahead ahead(int64_t q, int64_t count) const {
    const int64_t begin = group_of(step), size = group_size(begin), s = begin + size;
    const int64_t len = single() ? length(m0) : 0;
    if (s + kSteps > len) return {};
    const int64_t from = part(count, size, step - begin), to = part(count, size, step - begin + 1);
    q += from;
    return {input(s, m0, len),
            next_input(),
            w + q * I * kPanel,
            added + q * kPanel,
            projection(s, m0) + q * kPanel,
            B * columns(),
            I,
            to - from,
            0};
  }

  // Activations of what is clipped. PLAIN: those that ONNX has by default, of what is not.
  template <bool PLAIN>
  __attribute__((always_inline)) vf f(vf v) const {
    if (PLAIN) return G == 3 ? splat(1.f) / one_plus_exp_neg(v) : vtanh(v);
    return act_f(clipped(v));
  }
  template <bool PLAIN>
  __attribute__((always_inline)) vf g(vf v) const {
    return PLAIN ? vtanh(v) : act_g(clipped(v));
  }
  vf clipped(vf v) const { return clip > 0.f ? clamp(v, splat(-clip), splat(clip)) : v; }
  // GRU's last gate takes its two sums apart where reset is applied to the second of them.
  bool apart(int64_t gate) const { return G == 3 && stages == 1 && gate == 2; }

  // Of the units from u on: what the model is given may have nothing behind it.
  vf units_of(const float* p, int64_t u) const {
    return load_n(p + u, int(std::min<int64_t>(W, H - u)));
  }

  // New h of units u..u+W of one row from the two sums of their gates, 32 apart; stage 0 of two
  // leaves z and r * h.
  template <bool PLAIN>
  vf cell(int64_t stage, int64_t b, int64_t u, const float* sum, const float* xs) const {
    const auto in = [&](int64_t gate) {
      const int64_t at = (gate - first_gate(stage)) * kPanel;
      return load(xs + at) + load(sum + at);
    };
    const auto peeped = [&](int64_t gate, int64_t k, vf state) {
      const vf v = in(gate);
      return peephole ? fma(units_of(peephole + k * H, u), state, v) : v;
    };
    float* const cs = c + b * pitch + u;
    const vf old = load(h_at(b) + u);
    if (PLAIN && G == 4) {  // with three divisions instead of five
      const Ratio made = tanh_ratio(in(3));
      const vf next =
          load(cs) / one_plus_exp_neg(in(2)) + made.p / (made.q * one_plus_exp_neg(in(0)));
      store(cs, next);
      const Ratio shown = tanh_ratio(next);
      return shown.p / (shown.q * one_plus_exp_neg(in(1)));
    }
    if (G == 4) {
      const vf state = load(cs);
      const vf i = f<PLAIN>(peeped(0, 0, state));
      const vf forget = coupled ? 1.f - i : f<PLAIN>(peeped(2, 2, state));
      const vf next = fma(forget, state, i * g<PLAIN>(in(3)));
      store(cs, next);
      return f<PLAIN>(peeped(1, 1, next)) * act_h(next);
    }
    if (G != 3) return f<PLAIN>(in(0));
    if (stage == 0) {
      const vf z = f<PLAIN>(in(0)), reset = f<PLAIN>(in(1));
      if (stages == 2) {
        store(cs, z);
        store(more + b * pitch + u, reset * old);
        return old;
      }
      const vf own = load(sum + 2 * kPanel) + (bias ? units_of(bias + 5 * H, u) : vf{});
      return mixed(z, g<PLAIN>(fma(reset, own, load(xs + 2 * kPanel))), old);
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
      const float* const xs =
          projection(step, b) + (first_gate(stage) * panels + u0 / kPanel * n) * kPanel;
      float* const ys = y ? y + t * y_t + b * y_b : nullptr;
      float* const next = h[~step & 1] + b * pitch;
      for (int64_t u = u0; u < u1; u += W) {
        const int64_t panel = (u - u0) / kPanel;
        const int64_t at = panel * n * kPanel + (u - u0) % kPanel;
        const vf made =
            live ? cell<PLAIN>(stage, b, u, sums + i * ld + at, xs + at) : load(h_at(b) + u);
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
    for (int64_t gate = 0; gate < G; gate++) {
      const int64_t stage = stages == 2 && gate == 2, n = gates(stage), first = first_gate(stage);
      for (int64_t u = u0; u < u1; u += W) {
        const int64_t panel = first * panels + u / kPanel * n + gate - first;
        const float* const b = bias + gate * H;
        const vf given = bias ? units_of(b, u) : vf{},
                 own = bias && !apart(gate) ? units_of(b + G * H, u) : vf{};
        store(added + panel * kPanel + u % kPanel, given + own);
      }
    }
    for (int64_t b = m0; b < m1; b++) {
      if (lens && (lens[b] < 0 || lens[b] > T)) *error = 1;
      for (int64_t u = u0; u < u1; u += W) {
        store(h[0] + b * pitch + u, h0 ? units_of(h0 + b * h_b, u) : vf{});
        if (G == 4) store(c + b * pitch + u, c0 ? units_of(c0 + b * h_b, u) : vf{});
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
    const int64_t panel = first_gate(stage) * panels;
    const float* const a = stage ? more : h[step & 1];
    const int64_t across = panels_at_once(std::min(m1 - m0, kRowBlock), n);
    const int64_t chunks = div_up(p1 - p0, across), count = (p1 - p0) * n;
    if (step == group_of(step) && !(step && single())) project(step, panel + p0 * n, count);
    Ahead next = ahead(panel + p0 * n, count);
    const auto order = !step ? Product::kFirst : step & 1 ? Product::kBack : Product::kForth;
    for (int64_t k = 0; k < chunks; k++) {
      const int64_t p = p0 + (step & 1 ? chunks - 1 - k : k) * across, q = std::min(p + across, p1);
      for (int64_t b = m0; b < m1; b += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, m1 - b);
        run_product({a + b * pitch, pitch, rows, r + (panel + p * n) * H * kPanel, H, (q - p) * n,
                     nullptr, sums, (q - p) * n * kPanel, order},
                    &next);
        const int64_t from = p * kPanel, to = std::min(q * kPanel, H);
        plain ? gates_of<true>(stage, b, rows, from, to)
              : gates_of<false>(stage, b, rows, from, to);
      }
    }
    next.finish();
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
  const int64_t work = B * l.i[f::G] * H * (H + l.i[f::I]) / (1 + two_stages(l));
  const int64_t by_units =
      std::min({share, div_up(H, kPanel), int64_t(kMostParts), work / kStageWork});
  return D * std::max<int64_t>({1, by_rows, by_units});
}
// Whether tasks that share a direction have rows of their own.
static inline bool split_rows(const Launch& l, int64_t each) { return l.i[f::B] / kRows >= each; }

static int64_t words(const Launch& l, int threads) {
  const int64_t D = l.i[f::D], each = tasks(l, threads) / D;
  return each <= 1 || split_rows(l, each) ? 0 : D * StageBarrier::words(each);
}

static size_t scratch(const Launch& l, int) {
  const int64_t rows = std::min(l.i[f::B], kRowBlock);
  return size_t(std::max(kSums, rows * l.i[f::G] * kPanel)) * 4 + 64;
}

static Layer layer(const Launch& l, int64_t d, float* sums) {
  const auto at = [&](int operand, int64_t offset) {
    return l.buf[operand] ? (float*)l.buf[operand] + offset : nullptr;
  };
  Layer v{};
  v.T = l.i[f::T], v.B = l.i[f::B], v.H = l.i[f::H], v.I = l.i[f::I], v.G = l.i[f::G];
  v.panels = div_up(v.H, kPanel), v.pitch = v.panels * kPanel, v.stages = 1 + two_stages(l);
  v.x_t = l.i[f::x_t], v.x_b = l.i[f::x_b], v.y_t = l.i[f::y_t], v.y_b = l.i[f::y_b];
  v.h_b = l.i[f::h_b], v.m1 = v.B;
  v.coupled = l.i[f::coupled], v.backward = (d & 1) != l.i[f::reverse];
  v.x = at(f::x, 0), v.w = at(f::w, d * v.G * v.pitch * v.I);
  v.r = at(f::r, d * v.G * v.pitch * v.H), v.bias = at(f::bias, d * 2 * v.G * v.H);
  v.peephole = at(f::peephole, d * 3 * v.H);
  v.h0 = at(f::h, d * l.i[f::h_d]), v.c0 = at(f::c, d * l.i[f::h_d]);
  v.lens = (const int32_t*)l.buf[f::lens];
  v.y = at(f::y, d * l.i[f::y_d]), v.y_h = at(f::y_h, d * l.i[f::h_d]);
  v.y_c = v.G == 4 ? at(f::y_c, d * l.i[f::h_d]) : nullptr;
  const int64_t own = ((4 + kKept * v.G) * v.B + v.G) * v.pitch;
  float* const state = at(f::state, d * own);
  v.h[0] = state, v.h[1] = state + v.B * v.pitch, v.c = state + 2 * v.B * v.pitch;
  v.more = state + 3 * v.B * v.pitch, v.added = state + 4 * v.B * v.pitch;
  v.projected = v.added + v.G * v.pitch;
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
    v.group();
    for (int64_t t = 0; t < v.tickets(); t++) v.run(t, 0, v.panels);
    return;
  }
  v.group();
  const StageBarrier barrier{l.words + d * StageBarrier::words(each)};
  barrier.begin(own);
  for (int64_t t = 0; t < v.tickets(); t++) {
    barrier.wait(t * each);
    for (int64_t k = 0; k < each; k++) {
      const int64_t p = (own + k) % each;
      if ((k && barrier.begun(p)) || !barrier.take(p, int32_t(t))) continue;
      v.run(t, part(v.panels, each, p), part(v.panels, each, p + 1));
      barrier.done();
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
  const int64_t H = l.i[f::H], G = l.i[f::G], K = l.i[f::K], panels = div_up(H, kPanel);
  const int64_t first = std::min(l.i[f::first], G), d = task / (G * panels),
                k = task % (G * panels);
  const bool behind = k >= first * panels;  // in the second stage
  const int64_t n = behind ? G - first : first, j = behind ? k - first * panels : k;
  const int64_t gate = j % n + (behind ? first : 0), u = j / n * kPanel;
  pack_columns((const float*)l.buf[f::r] + ((d * G + gate) * H + u) * K, 1, K, K,
               std::min<int64_t>(kPanel, H - u), (float*)l.buf[f::packed] + task * K * kPanel, 1.f);
}

}  // namespace pack_recurrent

static const Kernel kernel_recurrent = {"recurrent_layer", recurrent::tasks, recurrent::scratch,
                                        recurrent::run, recurrent::words};
static const Kernel kernel_pack_recurrent = {"pack_recurrent", pack_recurrent::tasks, nullptr,
                                             pack_recurrent::run};
static const Kernel* const table_recurrent[] = {&kernel_recurrent, &kernel_pack_recurrent, nullptr};

}  // namespace TRACEA_NS
}  // namespace tracea
