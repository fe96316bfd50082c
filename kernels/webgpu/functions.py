"""Functions that kernels of any family call, as WGSL: a kernel's text has those it uses.

WGSL bounds the errors of its own functions loosely, and says little about infinities and NaN: a NaN
is told by its bits. erf_ and expm1_ err by a few units in the last place; tanh_ is Cephes' tanhf.
"""

from __future__ import annotations

import re

_TEXT = """fn is_nan(a: f32) -> bool { return (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u; }
fn keep_max(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
fn keep_min(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }
fn one(c: bool) -> f32 { return select(0.0, 1.0, c); }
fn sigmoid_(a: f32) -> f32 {
  let e = exp(-abs(a));
  return select(e, 1.0, a >= 0.0) / (1.0 + e);
}
fn expm1_(a: f32) -> f32 {
  let series = a * (1.0 + a * (0.5 + a * (0.16666667 + a * (0.041666668 + a * (0.008333334
    + a * (0.0013888889 + a * 0.00019841270))))));
  return select(exp(a) - 1.0, series, abs(a) < 0.35);
}
fn tanh_(a: f32) -> f32 {
  let t = abs(a);
  let s = a * a;
  let small = ((((-5.70498872745e-3 * s + 2.06390887954e-2) * s - 5.37397155531e-2) * s
    + 1.33314422036e-1) * s - 3.33332819422e-1) * s * a + a;
  let large = 1.0 - 2.0 / (exp(2.0 * min(t, 15.0)) + 1.0);
  return select(select(large, -large, a < 0.0), small, t < 0.625 || is_nan(a));
}
fn erf_(a: f32) -> f32 {
  let t = min(abs(a), 9.0);
  let s = a * a;
  var r = fma(-1.72853470e-5, t, 3.83197126e-4);
  r = fma(r, s, fma(-3.88396438e-3, t, 2.42546219e-2));
  r = fma(r, t, -1.06777877e-1);
  r = fma(r, t, -6.34846687e-1);
  r = fma(r, t, -1.28717512e-1);
  r = 1.0 - exp(fma(r, t, -t));
  var q = fma(-5.96761703e-4, s, 4.99119423e-3);
  q = fma(q, s, -2.67681349e-2);
  q = fma(q, s, 1.12819925e-1);
  q = fma(q, s, -3.76125336e-1);
  q = fma(q, s, 1.28379166e-1);
  return select(fma(q, a, a), select(r, -r, a < 0.0), t > 0.927734375 && !is_nan(a));
}
fn softplus_(a: f32) -> f32 {
  let e = exp(-abs(a));
  let grown = select(log(1.0 + e), e * (1.0 - e * (0.5 - e * 0.33333333)), e < 0.01);
  return select(max(a, 0.0) + grown, a, is_nan(a));
}
fn pow_(a: f32, b: f32) -> f32 {
  if (b == 2.0) { return a * a; }
  if (b == 0.0 || a == 1.0) { return 1.0; }
  let whole = b == trunc(b);
  let odd = whole && b != 2.0 * trunc(b * 0.5);
  let m = pow(abs(a), b);
  if (a >= 0.0) { return m; }
  return select(sqrt(a), select(m, -m, odd), whole);
}
fn mod_(a: f32, b: f32) -> f32 {
  let r = a - b * trunc(a / b);
  return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}
fn float_of_i64(v: vec2<u32>) -> f32 {
  let low = bitcast<i32>(v.x);
  if (v.y == select(0u, 0xffffffffu, low < 0)) { return f32(low); }
  return f32(bitcast<i32>(v.y)) * 4294967296.0 + f32(v.x);
}
fn i64_of_float(given: f32) -> vec2<u32> {
  let v = trunc(given);
  let high = floor(v * f32(1.0 / 4294967296.0));
  return vec2<u32>(u32(v - high * 4294967296.0), bitcast<u32>(i32(high)));
}
"""
#: Each by its name.
_FUNCTIONS = {
    text.removeprefix("fn ").split("(")[0]: text
    for text in re.split(r"^(?=fn )", _TEXT, flags=re.MULTILINE)
    if text
}
_CALL = re.compile(r"\b([a-z]\w*)\(")


def called(text: str) -> str:
    """Functions that WGSL text calls, and those that they call."""
    found: dict[str, None] = {}
    waiting = [text]
    while waiting:
        for name in _CALL.findall(waiting.pop()):
            if name in _FUNCTIONS and name not in found:
                found[name] = None
                waiting.append(_FUNCTIONS[name])
    return "".join(_FUNCTIONS[name] for name in sorted(found))
