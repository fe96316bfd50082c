// The fused epilogue of convolutions and GEMMs: v = acc + bias, then residual and
// activation, or a pointwise program. Clamps (none, relu, clip) with a residual are applied in
// registers by the tile code; everything else runs over the tile just stored, while it is hot in
// L1.
//
//   const Epilogue e = make_epilogue(l, fam::gemm::act, fam::gemm::o0, fam::gemm::p0);
//   in the tile: v = e.after_act ? e.clamp(v) + r : e.clamp(v + r)             (r = 0 without
//   residual) if (!e.in_registers) finish_tile(e, EpilogueTile{...});                     (the tile
//   then stored plain acc + bias)
#pragma once
#include <limits>

#include "common/math.h"
#include "common/program.h"
#include "common/simd.h"

namespace tracea {
namespace TRACEA_NS {

struct Epilogue {
  int64_t act, res_mode;
  float p0, p1;
  float lo, hi;       // bounds the tile code clamps to; infinite when the activation is not a clamp
  bool in_registers;  // the tile code does all: no finish_tile
  bool after_act;     // the in-register residual joins after the clamp
  bool shared_pitch;  // full operands of the program share the residual's pitches (convolution):
                      // use EpilogueTile::at
  const Program* prog;
  const float* o[4];
  int64_t kind[4], ld[4];

  // A NaN passes: vmax and vmin give their second operand when either is NaN.
  vf clamp(vf v) const { return TRACEA_NS::clamp(v, splat(lo), splat(hi)); }
};

// A stored tile: m rows of n channels, y[r*ldy + c] = acc + bias.
struct EpilogueTile {
  float* y;
  int64_t ldy;
  const float* res;  // residual at the tile's first element, or null
  int64_t ldr;
  int64_t m, n;
  int64_t row, col;  // index of the first row (for kRow and kFull) and of the first channel
  int64_t
      at;  // element offset of the tile in a tensor of the residual's pitches (convolution only)
};

// `act` is the index of the first epilogue integer (act, res_mode, then kind/ld pairs), `o0` of the
// first operand (or -1: the family takes no program), `p0` of the first float.
static inline Epilogue make_epilogue(const Launch& l, int act, int o0, int p0,
                                     bool shared_pitch = false) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  Epilogue e{};
  e.act = l.i[act];
  e.res_mode = l.i[act + 1];
  e.p0 = l.f[p0];
  e.p1 = l.f[p0 + 1];
  e.prog = o0 < 0 ? nullptr : l.prog;
  e.shared_pitch = shared_pitch;
  e.lo = -inf;
  e.hi = inf;
  e.in_registers = !e.prog && (e.act == kNone || e.act == kRelu || e.act == kClip);
  e.after_act = e.res_mode == kAfterAct;
  if (e.in_registers && e.act == kRelu) e.lo = 0.f;
  if (e.in_registers && e.act == kClip) e.lo = e.p0, e.hi = e.p1;
  for (int k = 0; o0 >= 0 && k < 4; k++) {
    e.o[k] = (const float*)l.buf[o0 + k];
    e.kind[k] = l.i[act + 2 + 2 * k];
    e.ld[k] = l.i[act + 3 + 2 * k];
  }
  return e;
}

// 1 + e^-x by powers of two: what sigmoid and its products divide by, cheaper than vexp. e^-x
// carries a relative error of |x| 2^-24 and 2 ulps.
TRACEA_INLINE vf one_plus_exp_neg(vf x) {
#if TRACEA_W == 16
  const vf y = vmax(splat(-126.f), x * -1.44269504f),  // smaller ones make no difference to 1
      f = (vf)_mm512_reduce_ps((__m512)y, 9);          // y - floor(y), 0 for the infinities
  // 2^f on [0, 1), minimax in relative error: 9e-8
  const vf p = polynomial(f, 1.87757665e-3f, 8.98934016e-3f, 5.58263180e-2f, 2.40153617e-1f,
                          6.93153073e-1f, 9.99999925e-1f);
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)y) + 1.f;  // scales by 2^floor(y)
#else
  // Beyond the clamp the quotient is x itself or a zero; minus infinity overflows to infinity.
  const vf c = clamp(x, splat(-89.f), splat(87.f)), n = vround(c * -1.44269504f);
  const vf f = fma(c, splat(-1.92596303e-8f),
                   fma(c, splat(-1.44269502f), -n));  // -x log2(e) - n, log2(e) in two parts
  // 2^f on +-1/2, minimax in relative error: 1.5e-7
  const vf p = polynomial(f, 1.3276470e-3f, 9.6755410e-3f, 5.5507131e-2f, 2.4022120e-1f,
                          6.9314694e-1f, 1.0000001f);
  return scale_by_power(p, n, to_int(n)) + 1.f;
#endif
}

// One activation on a vector; the switch in finish_tile makes `act` a constant.
template <int64_t act>
TRACEA_INLINE vf activate(vf v, float p0, float p1) {
  switch (act) {
    case kRelu: return vrelu(v);
    case kLeakyRelu: return vleaky_relu(v, splat(p0));
    case kClip: return clamp(v, splat(p0), splat(p1));
    case kSigmoid: return splat(1.f) / one_plus_exp_neg(v);
    case kSilu: return v / one_plus_exp_neg(v);
    case kHardSigmoid: return vhard_sigmoid(v, splat(p0), splat(p1));
    case kHardSwish: return vhard_swish(v);
    case kTanh: return vtanh(v);
    case kElu: return velu(v, splat(p0));
    case kGeluErf: return vgelu_erf(v);
    case kGeluTanh: return vgelu_tanh(v);
    case kQuickGelu: return v / one_plus_exp_neg(v * splat(p0));
    case kMish: return vmish(v);
    case kSoftplus: return vsoftplus(v);
    case kExp: return vexp(v);
    default: return v;
  }
}

template <int64_t act, int64_t res_mode>
TRACEA_INLINE vf finish_vector(vf v, vf r, float p0, float p1) {
  if (res_mode == kBeforeAct) v = v + r;
  v = activate<act>(v, p0, p1);
  return res_mode == kAfterAct ? v + r : v;
}

// One loop over the whole vectors of all rows: nested ones would fetch the activation's constants
// again for every row.
template <int64_t act, int64_t res_mode>
TRACEA_INLINE void finish_rows(const Epilogue& e, const EpilogueTile& t) {
  const float
      p0 = e.p0,
      p1 = e.p1;  // copies: stores to y could change the originals as far as the compiler knows
  const int64_t n = t.n, whole = n / W * W, ldy = t.ldy, ldr = res_mode ? t.ldr : 0;
  float* y = t.y;
  const float* r = t.res;
  int64_t c = 0, left = t.m * (whole / W);
  const auto advance = [&] {
    c += W;
    if (c == whole) c = 0, y += ldy, r += ldr;
  };
  for (; left >= 2; left -= 2) {
    float* const y0 = y + c;
    const vf r0 = res_mode ? load(r + c) : vf{};
    advance();
    float* const y1 = y + c;
    const vf r1 = res_mode ? load(r + c) : vf{};
    advance();
    const vf a = finish_vector<act, res_mode>(load(y0), r0, p0, p1),
             b = finish_vector<act, res_mode>(load(y1), r1, p0, p1);
    store(y0, a), store(y1, b);
  }
  if (left)
    store(y + c, finish_vector<act, res_mode>(load(y + c), res_mode ? load(r + c) : vf{}, p0, p1));
  if (whole == n) return;
  y = t.y + whole;
  r = res_mode ? t.res + whole : nullptr;
  const int rest = int(n - whole);
  for (int64_t i = 0; i < t.m; i++, y += ldy, r += ldr)
    store_n(
        y, finish_vector<act, res_mode>(load_n(y, rest), res_mode ? load_n(r, rest) : vf{}, p0, p1),
        rest);
}

template <int64_t act>
inline __attribute__((noinline)) void finish_act(const Epilogue& e, const EpilogueTile& t) {
  const int64_t mode = t.res ? e.res_mode : int64_t(kNoResidual);
  if (mode == kBeforeAct)
    finish_rows<act, kBeforeAct>(e, t);
  else if (mode == kAfterAct)
    finish_rows<act, kAfterAct>(e, t);
  else
    finish_rows<act, kNoResidual>(e, t);
}

// The program over the tile: register 0 is the tile, register 1.. the operands read by their kind.
inline __attribute__((noinline)) void finish_program(const Epilogue& e, const EpilogueTile& t) {
  ProgramInput in[5];
  in[0] = {t.y, t.ldy, 1};
  for (int k = 0; k + 1 < e.prog->n_in && k < 4; k++) {
    const float* o = e.o[k];
    switch (e.kind[k]) {
      case kFull:
        in[k + 1] = e.shared_pitch ? ProgramInput{o + t.at, t.ldr, 1}
                                   : ProgramInput{o + t.row * e.ld[k] + t.col, e.ld[k], 1};
        break;
      case kChannel: in[k + 1] = {o + t.col, 0, 1}; break;
      case kRow: in[k + 1] = {o + t.row, 1, 0}; break;
      default: in[k + 1] = {o, 0, 0};
    }
  }
  run_program_rows(*e.prog, in, t.y, t.ldy, t.m, t.n);
}

// Residual and activation, or the program, over a stored tile. Writes exactly m x n elements.
static inline void finish_tile(const Epilogue& e, const EpilogueTile& t) {
  if (e.prog) return finish_program(e, t);
  switch (e.act) {
#define TRACEA_ACT(name) \
  case name: return finish_act<name>(e, t)
    TRACEA_ACT(kNone);
    TRACEA_ACT(kRelu);
    TRACEA_ACT(kLeakyRelu);
    TRACEA_ACT(kClip);
    TRACEA_ACT(kSigmoid);
    TRACEA_ACT(kSilu);
    TRACEA_ACT(kHardSigmoid);
    TRACEA_ACT(kHardSwish);
    TRACEA_ACT(kTanh);
    TRACEA_ACT(kElu);
    TRACEA_ACT(kGeluErf);
    TRACEA_ACT(kGeluTanh);
    TRACEA_ACT(kQuickGelu);
    TRACEA_ACT(kMish);
    TRACEA_ACT(kSoftplus);
    TRACEA_ACT(kExp);
#undef TRACEA_ACT
    default: return;
  }
}

}  // namespace TRACEA_NS
}  // namespace tracea
