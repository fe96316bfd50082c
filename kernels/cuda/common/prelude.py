"""CUDA C++ text that every generated kernel shares: element types, activations, and pointwise
programs as inline functions.

    source = prelude(DType.F16) + activation_source(act, fast=True) + program_source(program,
    fast=True) + template

The text needs no header: NVRTC has the device math functions built in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracea_onnx.ir.abi import ACTIVATIONS, OPCODE, OPCODES, DType

_NARROW = (DType.F16, DType.BF16)
#: C++ type that holds one element in memory (f16 and bf16 are kept as bits).
C_TYPES = {
    DType.F32: "float", DType.F64: "double", DType.F16: "half_t", DType.BF16: "bfloat_t", DType.BOOL: "u8", DType.U8: "u8", DType.I8: "signed char",
    DType.U16: "u16", DType.I16: "short", DType.I32: "int", DType.U32: "u32", DType.I64: "i64", DType.U64: "u64",
}  # fmt: skip

_TYPES = r"""
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
#define DEV static __device__ __forceinline__
#define METHOD __device__ __forceinline__
struct half_t { u16 bits; };
struct bfloat_t { u16 bits; };
DEV float to_float(float v) { return v; }
DEV float to_float(half_t v) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits)); return r; }
DEV float to_float(bfloat_t v) { return __uint_as_float((u32)v.bits << 16); }
DEV void from_float(float& to, float v) { to = v; }
DEV void from_float(half_t& to, float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
#if __CUDA_ARCH__ >= 800
DEV void from_float(bfloat_t& to, float v) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
#endif
// Two neighbouring elements as they lie in a 32-bit word: `a` at the lower address.
DEV u32 pack2(half_t*, float a, float b) { u32 r; asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b)); return r; }
DEV u32 pack2(bfloat_t*, float a, float b) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b)); return r; }
DEV void unpack2(half_t*, u32 v, float& a, float& b) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(a), "=f"(b) : "r"(v));
}
DEV void unpack2(bfloat_t*, u32 v, float& a, float& b) { a = __uint_as_float(v << 16); b = __uint_as_float(v & 0xffff0000u); }
// fminf and fmaxf drop NaN; ONNX keeps it.
DEV float keep_min(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV float keep_max(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV float clip_(float x, float lo, float hi) { return keep_min(keep_max(x, lo), hi); }
DEV float tanh_approximate(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float python_mod(float a, float b) { const float r = fmodf(a, b); return r != 0.f && ((r < 0.f) != (b < 0.f)) ? r + b : r; }
DEV i64 python_mod(i64 a, i64 b) { const i64 r = b ? a % b : 0; return r && ((r < 0) != (b < 0)) ? r + b : r; }
"""

# Exact to a few units of f32: outputs of type f32.
_EXACT = r"""
DEV float exp_(float x) { return expf(x); }
DEV float reciprocal_(float x) { return 1.f / x; }
DEV float divide_(float a, float b) { return a / b; }
DEV float log_(float x) { return logf(x); }
DEV float tanh_(float x) { return tanhf(x); }
DEV float erf_(float x) { return erff(x); }
DEV float sigmoid_(float x) { return 1.f / (1.f + expf(-x)); }
DEV float silu_(float x, float k) { return x / (1.f + expf(-k * x)); }
DEV float softplus_(float x) { return x > 0.f ? x + log1pf(expf(-x)) : log1pf(expf(x)); }
DEV float expm1_(float x) { return expm1f(x); }
DEV float gelu_erf_(float x) { return x * normcdff(x); }
DEV float gelu_tanh_(float x) { return x * sigmoid_(x * (1.5957691216057308f + 0.07135481282553f * x * x)); }
DEV float mish_(float x) { return x * tanhf(softplus_(x)); }
"""

# Within 2^-11 of the largest value involved, which rounding to 16 bits hides: outputs of type f16
# and bf16.
_FAST = r"""
DEV float exp2_ftz(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float reciprocal_ftz(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float exp_(float x) { return exp2_ftz(1.4426950408889634f * x); }
DEV float reciprocal_(float x) { return __frcp_rn(x); }
DEV float divide_(float a, float b) { return a / b; }
DEV float log_(float x) { return logf(x); }
DEV float tanh_(float x) { return fabsf(x) < 0.25f ? x * (1.f + x * x * (-0.33333126f + x * x * 0.13240588f)) : tanh_approximate(x); }
DEV float erf_(float x) { return erff(x); }
// Two special functions and no care for denormal values: 1 + e^-x hides them.
DEV float sigmoid_(float x) { return reciprocal_ftz(1.f + exp2_ftz(-1.4426950408889634f * x)); }
DEV float silu_(float x, float k) { return x * sigmoid_(k * x); }
DEV float softplus_(float x) { return x > 8.f ? x + __expf(-x) : log1pf(__expf(x)); }
DEV float expm1_(float x) { return fabsf(x) < 0.0625f ? x * (1.f + x * (0.5f + x * (1.f / 6.f))) : __expf(x) - 1.f; }
// erf(x / sqrt 2) fitted as tanh of an odd polynomial: absolute error of the result below 6e-5.
DEV float gelu_erf_(float x) {
  const float u = fminf(x * x, 40.f), p = fmaf(fmaf(-0.00035159877727742163f, u, 0.03700603479108432f), u, 0.7975075399400715f), h = 0.5f * x;
  return fmaf(h, tanh_approximate(x * p), h);
}
DEV float gelu_tanh_(float x) { const float p = x * fmaf(0.03567740814f, x * x, 0.7978845608f), h = 0.5f * x; return fmaf(h, tanh_approximate(p), h); }
// tanh(log(1 + e^x)) = (n^2 + 2n) / (n^2 + 2n + 2) with n = e^x.
DEV float mish_(float x) { const float n = __expf(keep_min(x, 20.f)), m = n * (n + 2.f); return x * __fdividef(m, m + 2.f); }
"""


def prelude(dtype: DType, *, fast: bool | None = None) -> str:
    """Types, conversions (`to_float`, `from_float`, `pack2`, `unpack2`) and math functions (`exp_`,
    `gelu_erf_`, ...); `T` is the element type.

    fast: approximations good enough for 16-bit results; by default where `dtype` is f16 or bf16."""
    approximate = fast if fast is not None else dtype in (DType.F16, DType.BF16)
    return f"{_TYPES}{_FAST if approximate else _EXACT}typedef {C_TYPES[dtype]} T;\n"


def _spelled(text: str, *operands: str) -> str:
    """The text of an opcode with these for a, b, c."""
    return re.sub(r"\b[abc]\b", lambda m: operands["abc".index(m[0])], text)


def activation_source(act: int, name: str = "activation") -> str:
    """`float <name>(float x, float p0, float p1)` for the activation number `act` (index into
    `abi.ACTIVATIONS`).
    """
    opcode = ACTIVATIONS[act]
    text = "x" if opcode == "none" else _spelled(OPCODE[opcode].cuda, "x", "p0", "p1")
    if text[0] == "(":
        text = text[1:-1]
    return f"DEV float {name}(float x, float p0, float p1) {{ return {text}; }}\n"


def float_text(value: float) -> str:
    """A C++ float literal of exactly `value` rounded to f32 (hexadecimal; infinities and NaN as
    bits).
    """
    if value != value:
        return "__int_as_float(0x7fffffff)"
    if value in (float("inf"), float("-inf")) or abs(value) >= 2.0**128:
        return f"__int_as_float({'0x7f800000' if value > 0 else '(int)0xff800000'})"
    return f"{'-' if str(value).startswith('-') else ''}{abs(value).hex()}f"


def program_source(program: Mapping[str, Any], name: str = "program") -> str:
    """`<name>(r0, r1, ...)` of a program in the Plan's form: float, or i64 where its type is 1.

    Needs `prelude`.
    """
    integer = bool(program["type"])
    ctype = "i64" if integer else "float"
    n_in, regs = int(program["n_in"]), int(program["regs"])
    lines = (
        [f"  {ctype} {', '.join(f'r{k} = 0' for k in range(n_in, regs))};"] if regs > n_in else []
    )
    for op, dst, a, b, c, imm in program["code"]:
        opcode = OPCODE[OPCODES[int(op)]]
        if opcode.name == "const":
            text = str(int(imm)) if integer else float_text(float(imm))
        else:
            text = _spelled(
                opcode.int_cuda if integer else opcode.cuda, *(f"r{int(r)}" for r in (a, b, c))
            )
        lines.append(f"  r{int(dst)} = {text};")
    body = "\n".join(lines)
    return f"DEV {ctype} {name}({', '.join(f'{ctype} r{k}' for k in range(n_in))}) {{\n{body}\n  return r{int(program['out'])};\n}}\n"


def _read(dtype: DType, integer: bool, value: str) -> str:
    if dtype == DType.BOOL:
        return f"({value} ? 1 : 0)"
    if integer:
        return f"i64(to_float({value}))" if dtype in _NARROW else f"i64({value})"
    return f"to_float({value})"


def _write(dtype: DType, integer: bool, to: str, value: str) -> str:
    """Statement storing the program's result; floats become integers through i64, so that a value
    out of range wraps.
    """
    if dtype == DType.BOOL:
        return f"{to} = {value} != 0;"
    if dtype in (DType.F32, *_NARROW):
        return f"from_float({to}, float({value}));"
    ctype = C_TYPES[dtype]
    return (
        f"{to} = ({ctype})({value});"
        if integer or dtype == DType.F64
        else f"{to} = ({ctype})(i64)({value});"
    )


def stages_source(
    program: Mapping[str, Any], inputs: Sequence[tuple[DType, str]], out: DType, result: str
) -> tuple[str, str, bool]:
    """Text of a program's functions, of the statements that compute `result` (an lvalue of type
    `out`) from `inputs` (type and text of each), and whether approximations good enough for 16-bit
    results do. The result of a stage has its element type before another one reads it."""
    rows = program.get("stages") or [
        {"program": program, "dtype": int(out), "from": list(range(len(inputs)))}
    ]
    source, text = "", ""
    places = list(inputs)
    for k, row in enumerate(rows):
        dtype, integer = DType(row["dtype"]), bool(row["program"]["type"])
        source += program_source(row["program"], f"stage{k}")
        values = ", ".join(_read(places[x][0], integer, places[x][1]) for x in row["from"])
        last = k == len(rows) - 1
        to = result if last else f"s{k}"
        text += (
            ("" if last else f"{C_TYPES[dtype]} s{k}; ")
            + _write(dtype, integer, to, f"stage{k}({values})")
            + " "
        )
        places.append((dtype, f"s{k}"))
    exact = {DType(row["dtype"]) for row in rows if not row["program"]["type"]} - {
        *_NARROW,
        DType.BOOL,
    }
    return source, text, out in _NARROW and not exact
