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

from .templates import template

_NARROW = (DType.F16, DType.BF16)
#: C++ type that holds one element in memory (f16 and bf16 are kept as bits).
C_TYPES = {
    DType.F32: "float", DType.F64: "double", DType.F16: "half_t", DType.BF16: "bfloat_t",
    DType.BOOL: "u8", DType.U8: "u8", DType.I8: "signed char",
    DType.U16: "u16", DType.I16: "short", DType.I32: "int", DType.U32: "u32", DType.I64: "i64",
    DType.U64: "u64",
}  # fmt: skip


def prelude(dtype: DType, *, fast: bool | None = None) -> str:
    """Types, conversions (`to_float`, `from_float`, `pack2`, `unpack2`) and math functions (`exp_`,
    `gelu_erf_`, ...); `T` is the element type.

    fast: math functions accurate to 16-bit results; the default for f16 and bf16.
    """
    approximate = fast if fast is not None else dtype in (DType.F16, DType.BF16)
    functions = template("common/types", f"common/math_{'fast' if approximate else 'exact'}")
    return f"{functions}typedef {C_TYPES[dtype]} T;\n"


def _spelled(text: str, *operands: str) -> str:
    """The text of an opcode with `operands` in place of a, b, c."""
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


#: Opcodes that the compiler joins to others unless they are spelled so.
_ALONE = {"add": "__fadd_rn(a, b)", "sub": "__fsub_rn(a, b)", "mul": "__fmul_rn(a, b)"}
#: What floats are quantised to.
_QUANTISED = frozenset((DType.U8, DType.I8, DType.U16, DType.I16))


def program_source(
    program: Mapping[str, Any], name: str = "program", *, alone: bool = False
) -> str:
    """`<name>(r0, r1, ...)` of a program in the Plan's form: float, or i64 where its type is 1.
    alone: every operation is rounded, none joined to another.

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
            spelled = _ALONE.get(opcode.name, opcode.cuda) if alone else opcode.cuda
            text = _spelled(
                opcode.int_cuda if integer else spelled, *(f"r{int(r)}" for r in (a, b, c))
            )
        lines.append(f"  r{int(dst)} = {text};")
    body = "\n".join(lines)
    return (
        f"DEV {ctype} {name}({', '.join(f'{ctype} r{k}' for k in range(n_in))}) {{\n{body}\n"
        f"  return r{int(program['out'])};\n}}\n"
    )


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
    """(functions, statements, fast) of a program. The statements compute `result` (an lvalue of
    type `out`) from `inputs` (type and C++ text of each). fast: whether `prelude(fast=True)` is
    accurate enough. The result of a stage is rounded to its element type before another reads it.
    Operations on what is quantised are not joined.
    """
    rows = program.get("stages") or [
        {"program": program, "dtype": int(out), "from": list(range(len(inputs)))}
    ]
    source, text = "", ""
    places = list(inputs)
    types = {out, *(t for t, _ in inputs), *(DType(row["dtype"]) for row in rows)}
    alone = not types.isdisjoint(_QUANTISED)
    for k, row in enumerate(rows):
        dtype, integer = DType(row["dtype"]), bool(row["program"]["type"])
        source += program_source(row["program"], f"stage{k}", alone=alone)
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
