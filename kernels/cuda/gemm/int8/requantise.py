"""The epilogue of 8-bit products (`requantise.cuh`) as CUDA text."""

from __future__ import annotations

import math

from tracea_onnx.codegen.kernel_request import Float32, Int32, Int64, Pointer, Request
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ...common.epilogue import CHANNEL, FULL, ROW, Epilogue, Parameter
from ...common.instantiate import constexprs
from ...common.prelude import C_TYPES, activation_source, program_source
from ...common.templates import template

#: Element types of 8 bits.
BYTES = (DType.U8, DType.I8)
WIDTH = 8  # columns at a time


def dtype(r: Request, operand: str, default: DType = DType.U8) -> DType:
    """The element type of x, w, r (the residual), m (between product and epilogue) or y."""
    value = r.ints.get(f"{operand}_dtype", 0)
    return DType(int(value)) if value else default


def typed(r: Request, operand: str) -> str:
    """The same as C++."""
    return C_TYPES[dtype(r, operand)]


def aligned(r: Request, operand: str, size: int, *strides: DimLike) -> bool:
    """Whether columns 0, 8, 16, ... of an operand, with elements of `size` bytes, begin where
    vectors of eight elements, or of 16 bytes, may.
    """
    unit = min(16, WIDTH * size)
    return operand not in r.unaligned and all(multiple_of(s) * size >= unit for s in strides)


def epilogue(
    r: Request,
    depth: int,
    sums: int,
    pitches: tuple[DimLike, ...],
    group: DimLike = 0,
    width: int = WIDTH,
    columns: int = 1,
) -> Epilogue:
    """depth: terms of a sum. sums: bytes in front of the weights' sums behind the packed weights.
    pitches: of the residual and of a convolution's full operands. group: columns of a group of a
    convolution, 0: there is one. width: columns at a time, 8 or 2. columns: what their number is
    a multiple of. Activations are as accurate as floats of the launch's type.
    """
    out, residual = dtype(r, "y", DType.F32), has_residual(r)
    types = {
        "x_scale": "float", "x_zero": "T", "w_scale": "float", "w_zero": "Weight", "bias": "float",
        "res": "Residual", "r_scale": "float", "r_zero": "Residual", "m_scale": "float",
        "m_zero": "Middle", "y_scale": "float", "y_zero": "Result",
    }  # fmt: skip
    fields: list[Parameter] = []
    absent: list[str] = []
    for operand, ctype in types.items():
        if operand in r.operands and (residual or operand not in ("res", "r_scale", "r_zero")):
            fields.append((f"const {ctype}*", operand, Pointer(operand)))
        else:
            absent.append(f"static constexpr const {ctype}* {operand} = nullptr;")
    fields.append(("const int*", "sums", Pointer("w", sums)))
    fields.append(("int", "depth", Int32(depth)))
    for name in ("w_scales", "w_zeros"):
        fields.append(("int", name, Int32(r.ints.get(name, 1))))
    after, extras, full = _after(r, pitches, group, fields)
    reads = " ".join(
        f"load_neighbours<{str(aligned(r, n, 4, group)).lower()}>(e.{n} + n, count, x.{n});"
        for n in extras
    )
    members, unit = " ".join(f"{t} {n};" for t, n, _ in fields), min(16, 4 * width)
    of_columns = [o for o in ("w_scale", "w_zero", "bias") if o in r.operands] + ["sums"]
    source = (
        f"#define WIDTH {width}\ntypedef {typed(r, 'w')} Weight;\n"
        f"typedef {C_TYPES[dtype(r, 'r') if residual else DType.U8]} Residual;\n"
        f"typedef {typed(r, 'm')} Middle;\ntypedef {C_TYPES[out]} Result;\n"
        + constexprs(
            {
                "SUMS": out == DType.I32,
                "RES_MODE": int(r.ints["res_mode"]) if residual else 0,
                "VECTORS": all(aligned(r, o, 4, group) for o in of_columns),
                "FOLDED": 1 if "m_scale" in r.operands else 2 if _linear(r) else 0,
                "LINEAR": _linear(r),
                "STARTS": "x_zero" in r.operands,
                "ENDS": "y_zero" in r.operands,
                "FIXED": r.constant >= {"w", *(n for n in types if n != "res")} & r.operands
                and not extras,
                "RELU": _begins_at_0(r),
                "UNIT": math.gcd(columns, 64),
                "RES_VECTOR": residual and aligned(r, "res", dtype(r, "r").size, *pitches, group),
            }
        )
        + f"struct Epilogue {{ {members} {' '.join(absent)} }};\n"
        + after
        + f"struct Extras {{ {' '.join(f'alignas({unit}) float {n}[WIDTH];' for n in extras)} }};\n"
        + f"#define READ_EXTRAS(e, x, n, count) {reads}\n"
        + f"#define READ_FULL(e, m, full, n, count) {full}\n"
        + template("gemm/int8/requantise")
    )
    # bytes of ColumnOperands of two, for each, and of gaps
    column = (16 + 8 * -(-len(extras) // 2)) * 9 // 8
    arguments = ", ".join(n for _, n, _ in fields)
    return Epilogue(source, tuple(fields), arguments, column, fast=r.dtype != DType.F32)


def has_residual(r: Request) -> bool:
    """Whether the epilogue adds `res` itself; a program has it among its operands."""
    return "res" in r.operands and r.program is None and bool(r.ints.get("res_mode", 0))


def _begins_at_0(r: Request) -> bool:
    """Whether bytes come right behind a ReLU: the least of them stands for 0."""
    last = r.program is None and not (has_residual(r) and r.ints["res_mode"] == 2)
    return dtype(r, "y", DType.F32) in BYTES and last and _activation(r) == "relu"


def _linear(r: Request) -> bool:
    """Whether bytes are linear in what becomes them, and saturate."""
    plain = r.program is None and _activation(r) == "none"
    return dtype(r, "y", DType.F32) in BYTES and (plain or _begins_at_0(r))


def _activation(r: Request) -> str:
    return ACTIVATIONS[int(r.ints.get("act", 0))]


def _after(
    r: Request, pitches: tuple[DimLike, ...], group: DimLike, fields: list[Parameter]
) -> tuple[str, list[str], str]:
    """What follows the product: its functions and the macro AFTER, operands that are read for
    columns, and statements that read full ones. Adds its fields.
    """
    if r.program is None:
        act = int(r.ints.get("act", 0))
        text = "f"
        if act:
            text = "activation(f, e.p0, e.p1)"
            values = (float(r.floats.get(f"p{k}", 0.0)) for k in range(2))
            fields += [("float", f"p{k}", Float32(v)) for k, v in enumerate(values)]
        return f"{activation_source(act)}#define AFTER(e, c, f, k, m) {text}\n", [], ""
    extras: list[str] = []
    full, given = "", ["f"]
    for k in range(int(r.program["n_in"]) - 1):
        name, kind = f"o{k}", int(r.ints.get(f"o{k}_kind", FULL))
        fields.append(("const float*", name, Pointer(name)))
        if kind == CHANNEL:
            extras.append(name)
            given.append(f"c.extras.{name}[k]")
        elif kind == FULL:
            step = "full"
            strides = pitches
            if r.family == "gemm_int8":
                step, strides = f"m * e.{name}_ld", (r.ints.get(f"{name}_ld", 0),)
                fields.append(("i64", f"{name}_ld", Int64(strides[0])))
            vector = str(aligned(r, name, 4, *strides, group)).lower()
            full += f"alignas(16) float {name}[WIDTH]; "
            full += f"load_neighbours<{vector}>(e.{name} + {step} + n, count, {name}); "
            given.append(f"{name}[k]")
        else:
            given.append(f"e.{name}[{'m' if kind == ROW else 0}]")
    text = f"#define AFTER(e, c, f, k, m) program({', '.join(given)})\n"
    return program_source(r.program, alone=True) + text, extras, full
