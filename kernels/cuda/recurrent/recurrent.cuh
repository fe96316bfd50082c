// LSTM, GRU and RNN over the steps of a sequence. A CTA has some units of one direction. A warp has
// one unit at a time: it multiplies ROWS rows of h by the unit's rows of R, one per gate, which
// stay in L1 from step to step. h is in global memory; the CTAs synchronise there after each stage
// of a step.
//
// A ticket is the work of one CTA's units in one stage. That CTA does it, or another one if it has
// not started yet. So a CTA only waits for CTAs that run, and the launch ends however few CTAs are
// resident at a time.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int GATES = 4, LINEAR_BEFORE_RESET = 0, H = 64, PITCH = 64, ROWS = 8, UNITS = 8, CTAS = 8,
              WORDS = 32;
constexpr bool COUPLED = false, CLIPPED = false;
DEV float act_f(float x, float, float) { return x; }
DEV float act_g(float x, float, float) { return x; }
DEV float act_h(float x, float, float) { return x; }
#define PARAMETERS                                                                         \
  const T *x, const T *r, const T *bias, const T *peephole, const int *lens, const T *h0,  \
      const T *c0, T *y, T *y_h, T *y_c, float *state, u32 *words, u32 *fault, int steps,  \
      int batch, int directions, int reverse, i64 x_t, i64 x_b, i64 y_t, i64 y_b, i64 y_d, \
      i64 h_b, i64 h_d, i64 bias_d, float clip, float f0, float f1, float g0, float g1,    \
      float p_h0, float p_h1
#endif  // GENERATED
#include "common/base.cuh"

constexpr int STAGES = GATES == 3 && !LINEAR_BEFORE_RESET ? 2 : 1, WARPS = 8;
constexpr int WIDE = 16 / sizeof(T);         // elements of R in a load of a lane
constexpr int H_PITCH = (H + 31) / 32 * 32;  // elements between rows of the state

struct Layer {
  const T *x, *r, *bias, *peephole, *h0, *c0;
  T *y, *y_h, *y_c;
  const int* lens;
  float *h[2], *c, *reset_h;  // [batch][H_PITCH]; of a GRU c holds z, and reset_h r * h
  int steps, batch;
  bool backward;
  i64 x_t, x_b, y_t, y_b, h_b;
  float clip, f0, f1, g0, g1, p_h0, p_h1;

  METHOD int length(int b) const { return lens ? min(max(lens[b], 0), steps) : steps; }
  METHOD float clipped(float v) const { return CLIPPED ? clip_(v, -clip, clip) : v; }
  METHOD float f(float v) const { return act_f(clipped(v), f0, f1); }
  METHOD float g(float v) const { return act_g(clipped(v), g0, g1); }
};

// Lane l gets the sum of v[l % N] over all lanes.
template <int N>
DEV float reduce_scatter(float (&v)[N]) {
#pragma unroll
  for (int o = 16; o >= N; o /= 2) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] += __shfl_xor_sync(FULL_WARP, v[j], o);
  }
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int o = N / 2; o; o /= 2) {
#pragma unroll
    for (int j = 0; j < o; j++) {
      const bool upper = lane & o;
      const float give = upper ? v[j] : v[j + o], keep = upper ? v[j + o] : v[j];
      v[j] = keep + __shfl_xor_sync(FULL_WARP, give, o);
    }
  }
  return v[0];
}

// Copies rows of `from` to shared memory, bypassing L1 (other CTAs wrote them).
DEV void load_rows(const float* from, int rows, float* h_smem) {
  __syncthreads();  // all threads have read the previous rows
  for (int k = threadIdx.x; k < ROWS * PITCH; k += WARPS * 32) {
    const int row = k / PITCH, at = k % PITCH;
    h_smem[k] = row < rows && at < H ? __ldcg(from + i64(row) * H_PITCH + at) : 0.f;
  }
  __syncthreads();
}

// Lane row * SPAN + gate gets the dot product of h[row] and the unit's row of R for that gate.
template <int FIRST, int COUNT, int SPAN>
DEV float dot_products(const T* r, int unit, const float* h_smem) {
  constexpr int N = ROWS * SPAN;
  const T* const from = r + (i64(unit) * GATES + FIRST) * PITCH;
  float sum[N];
#pragma unroll
  for (int j = 0; j < N; j++) sum[j] = 0.f;
  for (int k = (threadIdx.x & 31) * WIDE; k < PITCH; k += 32 * WIDE) {
    float w[COUNT][WIDE];
#pragma unroll
    for (int gate = 0; gate < COUNT; gate++) {
      const Vec<T, WIDE> v = load<WIDE>(from + gate * PITCH + k);
#pragma unroll
      for (int j = 0; j < WIDE; j++) w[gate][j] = to_float(v.v[j]);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
      for (int q = 0; q < WIDE; q += 4) {
        const Vec<float, 4> a = load<4>(h_smem + row * PITCH + k + q);
#pragma unroll
        for (int gate = 0; gate < COUNT; gate++) {
#pragma unroll
          for (int j = 0; j < 4; j++) sum[row * SPAN + gate] += a.v[j] * w[gate][q + j];
        }
      }
    }
  }
  return reduce_scatter<N>(sum);
}

// One stage of a step for units u0..u1 of batch rows b0..b0 + ROWS, gates FIRST..FIRST + COUNT.
template <int STAGE, int FIRST, int COUNT>
DEV void compute_units(const Layer& l, int step, int b0, int u0, int u1, const float* h_smem) {
  constexpr int SPAN = COUNT == 3 ? 4 : COUNT;
  const int lane = threadIdx.x & 31, row = lane / SPAN % ROWS, gate = lane % SPAN;
  const int b = b0 + row, first = lane - gate;
  const bool real = b < l.batch;
  const int len = real ? l.length(b) : 0;
  const bool active = step < len;
  const int t = active && l.backward ? len - 1 - step : step;
  const float* const h_prev = l.h[step & 1] + i64(b) * H_PITCH;
  for (int u = u0 + threadIdx.x / 32; u < u1; u += WARPS) {
    // added to the sum: the projection of x, and the bias; the fourth lane of a GRU has x of its
    // last gate
    const bool split = LINEAR_BEFORE_RESET && GATES == 3;
    const bool spare = gate >= COUNT;
    const int mine = FIRST + (spare ? 2 : gate);
    float added = 0.f;
    if (active && !(split && gate == 2))
      added = to_float(l.x[t * l.x_t + b * l.x_b + mine * H + u]);
    if (active && l.bias && !spare) added += to_float(l.bias[mine * H + u]);
    const float sum = dot_products<FIRST, COUNT, SPAN>(l.r, u, h_smem);
    const float own = (spare ? 0.f : sum) + added;
    float v[4];
#pragma unroll
    for (int k = 0; k < SPAN; k++) v[k] = __shfl_sync(FULL_WARP, own, first + k);
    if (gate || !real || lane >= ROWS * SPAN) continue;
    float* const c = l.c + i64(b) * H_PITCH + u;
    const float old = __ldcg(h_prev + u);
    float h_next = old;
    if (active) {
      if (GATES == 4) {
        const float cell = __ldcg(c);
        const T* const p = l.peephole;
        const float i = l.f(v[0] + (p ? to_float(p[u]) * cell : 0.f));
        const float forget =
            COUPLED ? 1.f - i : l.f(v[2] + (p ? to_float(p[2 * H + u]) * cell : 0.f));
        const float next = forget * cell + i * l.g(v[3]);
        *c = next;
        h_next = l.f(v[1] + (p ? to_float(p[H + u]) * next : 0.f)) * act_h(next, l.p_h0, l.p_h1);
      } else if (GATES == 3 && STAGES == 2 && STAGE == 0) {
        *c = l.f(v[0]);
        l.reset_h[i64(b) * H_PITCH + u] = l.f(v[1]) * old;
      } else if (GATES == 3) {
        const float z = STAGES == 2 ? __ldcg(c) : l.f(v[0]);
        const float hidden = l.g(STAGES == 2 ? v[0] : l.f(v[1]) * v[2] + v[3]);
        h_next = (1.f - z) * hidden + z * old;
      } else {
        h_next = l.f(v[0]);
      }
    }
    if (STAGE < STAGES - 1) continue;
    l.h[~step & 1][i64(b) * H_PITCH + u] = h_next;
    if (l.y) from_float(l.y[t * l.y_t + b * l.y_b + u], active ? h_next : 0.f);
  }
}

// Does one ticket for units u0..u1.
DEV void run_ticket(const Layer& l, int ticket, int u0, int u1, float* h_smem, u32* fault) {
  const bool start = ticket == 0;
  if (start || ticket == l.steps * STAGES + 1) {
    const int n = u1 - u0;
    for (i64 k = threadIdx.x; k < i64(n) * l.batch; k += WARPS * 32) {
      const i64 b = k / n, u = u0 + k % n, at = b * H_PITCH + u, out = b * l.h_b + u;
      if (start) {
        if (l.lens && (l.lens[b] < 0 || l.lens[b] > l.steps)) *fault = 1;
        l.h[0][at] = l.h0 ? to_float(l.h0[out]) : 0.f;
        if (GATES == 4) l.c[at] = l.c0 ? to_float(l.c0[out]) : 0.f;
      } else {
        const bool some = l.length(int(b)) > 0;  // else zeros, as in ONNX Runtime
        if (l.y_h) from_float(l.y_h[out], some ? __ldcg(l.h[l.steps & 1] + at) : 0.f);
        if (GATES == 4 && l.y_c) from_float(l.y_c[out], some ? __ldcg(l.c + at) : 0.f);
      }
    }
    return;
  }
  const int step = (ticket - 1) / STAGES, stage = (ticket - 1) % STAGES;
  const float* const from = stage ? l.reset_h : l.h[step & 1];
  for (int b = 0; b < l.batch; b += ROWS) {
    load_rows(from + i64(b) * H_PITCH, l.batch - b, h_smem);
    if (STAGES == 2 && stage)
      compute_units<STAGES - 1, GATES - 1, 1>(l, step, b, u0, u1, h_smem);
    else
      compute_units<0, 0, STAGES == 2 ? GATES - 1 : GATES>(l, step, b, u0, u1, h_smem);
  }
}

// Words in global memory: tickets done; CTAs started; then per part its next ticket, and whether
// its CTA has started.
struct GridBarrier {
  u32* words;

  METHOD u32 read(int k) const { return *(volatile u32*)(words + k); }
  METHOD bool all_started() const { return read(1) == CTAS; }
  METHOD bool started(int part) const { return read(3 + 2 * part); }
  METHOD void start(int part) const {
    *(volatile u32*)(words + 3 + 2 * part) = 1;
    atomicAdd(words + 1, 1u);
  }
  METHOD bool claim(int part, u32 ticket) const {
    return atomicCAS(words + 2 + 2 * part, ticket, ticket + 1) == ticket;
  }
  METHOD void wait(u32 count) const {
    while (int(read(0) - count) < 0) {
    }
    __threadfence();
  }
  METHOD void arrive() const {
    __threadfence();
    atomicAdd(words, 1u);
  }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32) recurrent(PARAMETERS) {
  extern __shared__ __align__(16) float h_smem[];
  __shared__ bool claimed, nothing_to_steal;
  pdl_begin();
  const int d = blockIdx.x / CTAS, own = blockIdx.x % CTAS;
  Layer l;
  l.x = x + i64(d) * GATES * H;
  l.r = r + i64(d) * H * GATES * PITCH;
  l.bias = bias ? bias + d * bias_d : nullptr;
  l.peephole = peephole ? peephole + i64(d) * 3 * H : nullptr;
  l.lens = lens;
  l.h0 = h0 ? h0 + d * h_d : nullptr, l.c0 = c0 ? c0 + d * h_d : nullptr;
  l.y = y ? y + d * y_d : nullptr;
  l.y_h = y_h ? y_h + d * h_d : nullptr, l.y_c = y_c ? y_c + d * h_d : nullptr;
  l.steps = steps, l.batch = batch, l.backward = (d & 1) != reverse;
  l.x_t = x_t, l.x_b = x_b, l.y_t = y_t, l.y_b = y_b, l.h_b = h_b;
  l.clip = clip, l.f0 = f0, l.f1 = f1, l.g0 = g0, l.g1 = g1, l.p_h0 = p_h0, l.p_h1 = p_h1;
  const i64 rows = i64(batch) * H_PITCH;
  l.h[0] = state + d * 4 * rows;
  l.h[1] = l.h[0] + rows, l.c = l.h[1] + rows, l.reset_h = l.c + rows;
  const GridBarrier barrier{words + d * WORDS};
  const bool first = threadIdx.x == 0;
  if (first) barrier.start(own);
  for (int ticket = 0; ticket < steps * STAGES + 2; ticket++) {
    if (first) barrier.wait(u32(ticket) * CTAS);
    for (int k = 0, parts = CTAS; k < parts; k++) {
      const int part = (own + k) % CTAS;
      if (first) {
        const bool free = k == 0 || !barrier.started(part);
        claimed = free && barrier.claim(part, u32(ticket));
        nothing_to_steal = k == 0 && barrier.all_started();
      }
      __syncthreads();
      const bool mine = claimed;
      if (nothing_to_steal) parts = 1;
      if (mine) run_ticket(l, ticket, part * UNITS, min((part + 1) * UNITS, H), h_smem, fault);
      __syncthreads();
      if (first && mine) barrier.arrive();
    }
  }
}
