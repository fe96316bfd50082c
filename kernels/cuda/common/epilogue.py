"""The epilogue of GEMMs and convolutions as CUDA text: scale, bias, residual, and activation or
program, on neighbouring columns of one row.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracea_onnx.codegen.kernel_request import Argument, Float32, Int64, Pointer, Request
from tracea_onnx.ir.abi import ACTIVATIONS
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from . import folded_norm
from .launch import reader
from .prelude import activation_source, program_source

FULL, CHANNEL, ROW, SCALAR = range(4)
Parameter = tuple[str, str, Argument]  # C++ type, name, what the launch passes


@dataclass(frozen=True)
class Epilogue:
    """`source` defines `struct Epilogue` and `finish(e, c, v, m, full, n, count)` on `float
    v[WIDTH]`: columns n.. of row m, of which `count` exist; full: offset of row m in operands
    shaped as the result. `c = columns_at(e, n, end)` has the operands that depend on the column
    alone; columns end at `end`. Without `c`, finish reads them itself.

    parameters: of the kernel. arguments: initialise the struct. column: bytes of a `Column` (the
    operands of one column) with `tabled`: `column_at(e, n, end)` reads one, `columns_of(p)` makes
    Columns of two neighbours. fast: as of `prelude`, where the kernel's element type does not say.
    """

    source: str
    parameters: tuple[Parameter, ...]
    arguments: str
    column: int = 0
    fast: bool | None = None


_LOAD = r"""
// Elements p[0..count), zeros up to WIDTH; VECTOR: by one load (two for eight f32) where all exist.
template <bool VECTOR> DEV void load_columns(const T* p, int count, float (&v)[WIDTH]) {
  if (VECTOR && count >= WIDTH) {
#if IS_F32 && WIDTH == 2
    *(float2*)v = *(const float2*)p;
#elif IS_F32
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4) *(float4*)(v + k) = *(const float4*)(p + k);
#elif WIDTH == 8
    const uint4 w = *(const uint4*)p;
    unpack2((T*)0, w.x, v[0], v[1]);
    unpack2((T*)0, w.y, v[2], v[3]);
    unpack2((T*)0, w.z, v[4], v[5]);
    unpack2((T*)0, w.w, v[6], v[7]);
#elif WIDTH == 4
    const uint2 w = *(const uint2*)p;
    unpack2((T*)0, w.x, v[0], v[1]);
    unpack2((T*)0, w.y, v[2], v[3]);
#else
    unpack2((T*)0, *(const u32*)p, v[0], v[1]);
#endif
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; k++) v[k] = k < count ? to_float(p[k]) : 0.f;
  }
}
"""


_TOUCH = """
// Prefetches the 32 bytes around a constant into L1.
DEV void touch(const void* p) {
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
}
"""


def vector(r: Request, operand: str, pitches: tuple[DimLike, ...], columns: DimLike = 0) -> bool:
    """Whether 16-byte accesses at columns 0, 8, 16, ... of `operand`'s rows are aligned. columns:
    a divisor of the columns where groups start.
    """
    return operand not in r.unaligned and all(
        multiple_of(p) * r.dtype.size >= 16 for p in (*pitches, columns)
    )


def residual(r: Request) -> bool:
    """Whether the request adds a residual."""
    return "res" in r.operands and bool(r.ints.get("res_mode", 0))


def epilogue(
    r: Request, pitches: tuple[DimLike, ...], columns: DimLike = 0, *, scaled: bool = False,
    width: int = 8, staged: bool = False, touched: bool = False,
    tabled: bool = False,
) -> Epilogue:  # fmt: skip
    """pitches: of the residual and, for a convolution, of the program's full operands (those of a
    GEMM have an `o*_ld` each). columns: divisor of the columns where groups start (0: one group).
    scaled: multiplies the accumulator by the launch's float `alpha`. width: columns at a time, 8,
    4 or 2. staged: the residual is another argument of finish, `const float (&r)[WIDTH]`. Where x
    or the residual are normalised, `const Norms& norms` of the row follows (and the residual is
    staged). touched: defines `touch_columns(e, n)`, which prefetches 8 columns of the constants.
    tabled: defines Column, for width 2.
    """
    fields: list[tuple[str, str, Argument]] = []
    ahead: list[tuple[str, str]] = []  # members of Columns, and the statements that read them
    body: list[str] = []
    conv = len(pitches) > 1
    if scaled and r.floats.get("alpha", 1.0) != 1.0:
        fields.append(("float", "alpha", Float32(float(r.floats["alpha"]))))
        body.append("for (int k = 0; k < WIDTH; k++) v[k] *= e.alpha;")
    if "bias" in r.operands:
        fields.append(("const float*", "bias", Pointer("bias")))
        load = reader(r, "bias")
        # lowering pads a bias: 8 values are readable from any multiple of 8
        if multiple_of(columns) >= 8:
            step = min(width, 4)
            read = [
                f"*(float{step}*)(c.bias + {k}) = {load}((const float{step}*)(e.bias + n + {k}));"
                for k in range(0, width, step)
            ]
            ahead.append(("bias", f"if (count > 0) {{ {' '.join(read)} }}"))
        else:
            ahead.append(
                (
                    "bias",
                    (
                        f"for (int k = 0; k < WIDTH; k++) c.bias[k] = k < count ? {load}(e.bias "
                        "+ n "
                        "+ k) : 0.f;"
                    ),
                )
            )
        if "x_stats" not in r.operands:  # else the bias is part of the norm
            body.append("for (int k = 0; k < WIDTH; k++) v[k] += c.bias[k];")
    fields += folded_norm.parameters(r)
    ahead += folded_norm.columns(r, width)
    body += folded_norm.body(r)
    source = f"#define WIDTH {width}\n{_LOAD}"
    if r.program is not None:
        source += program_source(r.program)
        names = ["v[k]"]
        for k in range(int(r.program["n_in"]) - 1):
            names.append(_operand(r, k, conv, pitches, columns, fields, ahead, body))
        body.append(f"for (int k = 0; k < WIDTH; k++) v[k] = program({', '.join(names)});")
    else:
        act, mode = int(r.ints.get("act", 0)), int(r.ints["res_mode"]) if residual(r) else 0
        source += activation_source(act)
        if act:
            fields += [
                ("float", f"p{k}", Float32(float(r.floats.get(f"p{k}", 0.0)))) for k in range(2)
            ]
        value = "activation({}, e.p0, e.p1)" if act else "{}"
        if mode and not staged:
            fields.append(("const T*", "res", Pointer("res")))
            body.append(
                "float r[WIDTH]; "
                f"load_columns<{_bool(vector(r, 'res', pitches, columns))}>(e.res + full + n, "
                "count, r);"
            )
        added = "residual[k]" if "r_stats" in r.operands else "r[k]"
        expression = {
            0: value.format("v[k]"),
            1: value.format(f"v[k] + {added}"),
            2: value.format("v[k]") + f" + {added}",
        }[mode]
        body.append(f"for (int k = 0; k < WIDTH; k++) v[k] = {expression};")
    members = " ".join(f"{t} {n};" for t, n, _ in fields)
    source += (
        f"struct Epilogue {{ {members} }};\nstruct alignas({4 * min(width, 4)}) Columns {{ "
        f"{' '.join(f'float {n}[WIDTH];' for n, _ in ahead)} }};\n"
    )
    reads = _lines(t for _, t in ahead)
    constant = [
        n for n in ("bias", "x_sums", "r_gamma", "r_beta") if n in r.operands and n in r.constant
    ]
    source += (
        f"{_TOUCH}DEV void touch_columns(const Epilogue& e, int n) {{ "
        f"{' '.join(f'touch(e.{name} + n);' for name in constant)} }}\n"
        if touched
        else ""
    )
    source += (
        f"DEV Columns columns_at(const Epilogue& e, int n, int end) {{\n"
        f"  Columns c = {{}};\n  const int count = end - n;\n{reads}\n  return c;\n}}\n"
    )
    column = 0
    if tabled:
        text, column = _table([name for name, _ in ahead])
        source += text
    given = (", const float (&r)[WIDTH]" if staged else "") + (
        ", const Norms& norms" if folded_norm.normed(r) else ""
    )
    source += (
        "DEV void finish(const Epilogue& e, const Columns& c, float (&v)[WIDTH], int m, "
        f"i64 full, int n, int count{given}) {{\n{_lines(body)}\n}}\n"
    )
    source += (
        "DEV void finish(const Epilogue& e, float (&v)[WIDTH], int m, i64 full, int n, int "
        f"count{given}) {{\n"
        "  finish(e, columns_at(e, n, n + count), v, m, full, n, "
        f"count{', r' if staged else ''}{', norms' if folded_norm.normed(r) else ''});\n}}\n"
    )
    return Epilogue(source, tuple(fields), ", ".join(n for _, n, _ in fields), column)


def _table(names: list[str]) -> tuple[str, int]:
    """C++ text of `Column`, and its size in bytes."""
    size = 2
    while size < len(names):
        size *= 2
    reads = " ".join(f"c.v[{k}] = to_float(e.{name}[n]);" for k, name in enumerate(names))
    members = " ".join(
        f"c.{name}[0] = p.a.v[{k}], c.{name}[1] = p.b.v[{k}];" for k, name in enumerate(names)
    )
    text = f"""struct Column {{ float v[{size}]; }};
struct alignas(16) Neighbours {{ Column a, b; }};
DEV Column column_at(const Epilogue& e, int n, int end) {{ Column c = {{}};
  if (n < end) {{ {reads} }} return c; }}
DEV Columns columns_of(const Column* from) {{ Columns c;
  const Neighbours p = *(const Neighbours*)from; {members} return c; }}
"""
    return text, 4 * size


def _lines(statements: Iterable[str]) -> str:
    return "\n".join(
        f"  {'#pragma unroll' + chr(10) + '  ' if line.startswith('for') else ''}{line}"
        for line in statements
    )


def _operand(
    r: Request,
    k: int,
    conv: bool,
    pitches: tuple[DimLike, ...],
    columns: DimLike,
    fields: list[Parameter],
    ahead: list[tuple[str, str]],
    body: list[str],
) -> str:
    """C++ text of program operand k in column `k`; adds the fields and loads that it needs."""
    kind, name = int(r.ints.get(f"o{k}_kind", FULL)), f"o{k}"
    fields.append(("const T*", name, Pointer(name)))
    if kind in (ROW, SCALAR):
        body.append(f"const float {name} = to_float(e.{name}[{'m' if kind == ROW else '0'}]);")
        return name
    if kind == CHANNEL:
        ahead.append(
            (
                name,
                (
                    f"load_columns<{_bool(vector(r, name, (), columns))}>(e.{name} + n, count, "
                    f"c.{name});"
                ),
            )
        )
        return f"c.{name}[k]"
    if conv:
        body.append(
            f"float {name}[WIDTH]; "
            f"load_columns<{_bool(vector(r, name, pitches, columns))}>(e.{name} + full + n, "
            f"count, {name});"
        )
    else:
        ld = r.ints.get(f"{name}_ld", 0)
        fields.append(("i64", f"{name}_ld", Int64(ld)))
        body.append(
            f"float {name}[WIDTH]; "
            f"load_columns<{_bool(vector(r, name, (ld,), columns))}>(e.{name} + m * e.{name}_ld "
            f"+ n, count, {name});"
        )
    return f"{name}[k]"


def _bool(value: bool) -> str:
    return "true" if value else "false"


#: Activations of a few instructions, without special functions.
SIMPLE = frozenset({"none", "relu", "leaky_relu", "clip", "hard_sigmoid"})


def expensive(r: Request) -> bool:
    """Whether the epilogue takes many instructions per result."""
    return r.program is not None or ACTIVATIONS[int(r.ints.get("act", 0))] not in SIMPLE
