"""Numbers shared by the partition compiler and the native kernels: program opcodes, activations,
element types.

`kernels/cpu.py` writes the C++ twin of these tables when the wheel is built; the order here is the
ABI.
"""

from __future__ import annotations

from enum import IntEnum

from tracea_onnx.ir.traits import Trait as T
from tracea_onnx.support.data_classes import dataclass

_NONE = T(0)

#: The most taps of a window, and their longest stride and dilation, that kernels take: places in an
#: image are counted in 64 bits.
FARTHEST = 1 << 24


@dataclass(frozen=True)
class Opcode:
    """An instruction r[dst] = name(a, b, c) of a pointwise program, of which it reads the first
    `arity` registers. Comparisons and logic give 1 or 0.

    numpy: its value in float64, the reference; cpu: on vectors of `kernels/cpu/common/simd.h`;
    cuda: on f32 registers. int_cpu and int_cuda: on int64; "" where programs of integers do not
    have it. onnx: the operator that is this instruction, with the attributes that are its last
    operands: "Elu(alpha=1.0)"; traits: what is true of it (`op_traits.py`).
    """

    name: str
    arity: int
    numpy: str
    cpu: str
    cuda: str
    int_cpu: str = ""
    int_cuda: str = ""
    commutative: bool = False
    onnx: str = ""
    traits: T = _NONE


def _test(
    name: str,
    numpy: str,
    cpu: str,
    cuda: str,
    integer: str,
    commutative: bool = False,
    onnx: str = "",
) -> Opcode:
    """A comparison of two registers, or what is true of them."""
    floats = f"select({cpu}, one, zero)", f"({cuda} ? 1.f : 0.f)"
    return Opcode(
        name, 2, numpy, *floats, integer, f"(i64)({integer})", commutative, onnx, T.BOOLEAN
    )


def _bits(name: str, arity: int, text: str, onnx: str = "") -> Opcode:
    """An operation on the bits of integers, which programs of floats do not have."""
    shift = name.startswith("shift")
    numpy = text.replace("a", "np.int64(a)").replace("b", "np.int64(b)")
    native = f"u(b) < 64 ? u(a) {text[2:4]} u(b) : 0" if shift else text
    return Opcode(
        name, arity, f"np.where(b < 64, {numpy}, 0)" if shift else numpy, "", "",
        native, f"(i64)({native.replace('u(', 'u64(')})", commutative=arity == 2 and not shift,
        onnx=onnx, traits=T.EXACT,
    )  # fmt: skip


_ROWS = (
    # --- const loads `imm`, which in programs of integers is an integer below 2**24
    Opcode("const", 0, "", "", "", "ins.imm", "imm"),
    Opcode("copy", 1, "a", "a", "a", "a", "a"),
    Opcode(
        "add",
        2,
        "a + b",
        "a + b",
        "a + b",
        "u(a) + u(b)",
        "a + b",
        commutative=True,
        onnx="Add",
        traits=T.NARROW,
    ),
    Opcode(
        "sub", 2, "a - b", "a - b", "a - b", "u(a) - u(b)", "a - b", onnx="Sub", traits=T.NARROW
    ),
    Opcode(
        "mul",
        2,
        "a * b",
        "a * b",
        "a * b",
        "u(a) * u(b)",
        "a * b",
        commutative=True,
        onnx="Mul",
        traits=T.NARROW,
    ),
    # of integers it truncates toward zero, as ONNX's Div
    Opcode(
        "div",
        2,
        "a / b",
        "a / b",
        "divide_(a, b)",
        "divide(a, b)",
        "(b ? a / b : 0)",
        onnx="Div",
        traits=T.NARROW,
    ),
    Opcode("fma", 3, "a * b + c", "fma(a, b, c)", "fmaf(a, b, c)"),
    Opcode(
        "min",
        2,
        "np.minimum(a, b)",
        "vmin_nan(a, b)",
        "keep_min(a, b)",
        "a < b ? a : b",
        "(a < b ? a : b)",
        commutative=True,
    ),
    Opcode(
        "max",
        2,
        "np.maximum(a, b)",
        "vmax_nan(a, b)",
        "keep_max(a, b)",
        "a > b ? a : b",
        "(a > b ? a : b)",
        commutative=True,
    ),
    Opcode("neg", 1, "-a", "-a", "-a", "0 - u(a)", "-a", onnx="Neg", traits=T.EXACT | T.NARROW),
    Opcode(
        "abs",
        1,
        "np.abs(a)",
        "vabs(a)",
        "fabsf(a)",
        "a < 0 ? 0 - u(a) : u(a)",
        "(a < 0 ? -a : a)",
        onnx="Abs",
        traits=T.EXACT | T.NARROW,
    ),
    Opcode("sqrt", 1, "np.sqrt(a)", "vsqrt(a)", "sqrtf(a)", onnx="Sqrt", traits=T.STEEP),
    Opcode("rsqrt", 1, "1 / np.sqrt(a)", "one / vsqrt(a)", "rsqrtf(a)"),
    Opcode(
        "reciprocal", 1, "1 / a", "one / a", "reciprocal_(a)", onnx="Reciprocal", traits=T.STEEP
    ),
    Opcode("exp", 1, "np.exp(a)", "vexp(a)", "exp_(a)", onnx="Exp", traits=T.STEEP),
    Opcode("log", 1, "np.log(a)", "vlog(a)", "log_(a)", onnx="Log", traits=T.STEEP),
    Opcode("erf", 1, "erf(a)", "verf(a)", "erf_(a)", onnx="Erf", traits=T.NARROW),
    Opcode("tanh", 1, "np.tanh(a)", "vtanh(a)", "tanh_(a)", onnx="Tanh", traits=T.NARROW),
    Opcode(
        "sigmoid", 1, "sigmoid(a)", "vsigmoid(a)", "sigmoid_(a)", onnx="Sigmoid", traits=T.NARROW
    ),
    Opcode(
        "floor", 1, "np.floor(a)", "vfloor(a)", "floorf(a)", onnx="Floor", traits=T.EXACT | T.NARROW
    ),
    Opcode(
        "ceil", 1, "np.ceil(a)", "-vfloor(-a)", "ceilf(a)", onnx="Ceil", traits=T.EXACT | T.NARROW
    ),
    # half to even
    Opcode(
        "round", 1, "np.rint(a)", "vround(a)", "rintf(a)", onnx="Round", traits=T.EXACT | T.NARROW
    ),
    Opcode(
        "sign",
        1,
        "np.sign(a)",
        "select(a > zero, one, select(a < zero, -one, a * zero))",
        "(a > 0.f ? 1.f : a < 0.f ? -1.f : a)",
        "(a > 0) - (a < 0)",
        "(i64)((a > 0) - (a < 0))",
        onnx="Sign",
        traits=T.EXACT | T.NARROW,
    ),
    Opcode("pow", 2, "np.power(a, b)", "vpow(a, b)", "powf(a, b)"),
    # the sign of the divisor; the sign of the dividend
    Opcode(
        "mod",
        2,
        "np.mod(a, b)",
        "per_lane(a, b, mod_sign_of_divisor)",
        "python_mod(a, b)",
        "remainder_of_divisor(a, b)",
        "python_mod(a, b)",
    ),
    Opcode(
        "fmod",
        2,
        "np.fmod(a, b)",
        "per_lane(a, b, TRACEA_LANE(fmodf))",
        "fmodf(a, b)",
        "remainder_of_dividend(a, b)",
        "(b ? a % b : 0)",
    ),
    Opcode("sin", 1, "np.sin(a)", "vsin(a)", "sinf(a)", onnx="Sin", traits=T.STEEP),
    Opcode("cos", 1, "np.cos(a)", "vcos(a)", "cosf(a)", onnx="Cos", traits=T.STEEP),
    _test("eq", "a == b", "a == b", "a == b", "a == b", commutative=True, onnx="Equal"),
    _test("lt", "a < b", "a < b", "a < b", "a < b", onnx="Less"),
    _test("le", "a <= b", "a <= b", "a <= b", "a <= b", onnx="LessOrEqual"),
    _test(
        "and",
        "(a != 0) & (b != 0)",
        "(a != zero) & (b != zero)",
        "a != 0.f && b != 0.f",
        "a && b",
        commutative=True,
        onnx="And",
    ),
    _test(
        "or",
        "(a != 0) | (b != 0)",
        "(a != zero) | (b != zero)",
        "a != 0.f || b != 0.f",
        "a || b",
        commutative=True,
        onnx="Or",
    ),
    Opcode(
        "not",
        1,
        "a == 0",
        "select(a == zero, one, zero)",
        "(a == 0.f ? 1.f : 0.f)",
        "!a",
        "(i64)!a",
        onnx="Not",
        traits=T.BOOLEAN,
    ),
    _test(
        "xor",
        "(a != 0) ^ (b != 0)",
        "(a != zero) ^ (b != zero)",
        "(a != 0.f) != (b != 0.f)",
        "!a != !b",
        commutative=True,
        onnx="Xor",
    ),
    Opcode(
        "where",
        3,
        "np.where(a != 0, b, c)",
        "select(a != zero, b, c)",
        "(a != 0.f ? b : c)",
        "a ? b : c",
        "(a ? b : c)",
        onnx="Where",
        traits=T.MOVE | T.EXACT | T.NARROW,
    ),
    Opcode(
        "isnan",
        1,
        "np.isnan(a)",
        "select(a != a, one, zero)",
        "(a != a ? 1.f : 0.f)",
        onnx="IsNaN",
        traits=T.BOOLEAN,
    ),
    Opcode(
        "isinf",
        1,
        "np.isinf(a)",
        "select(vabs(a) == splat(INFINITY), one, zero)",
        "(fabsf(a) == __int_as_float(0x7f800000) ? 1.f : 0.f)",
    ),
    # --- activations: after their operand come their parameters
    Opcode(
        "relu",
        1,
        "np.maximum(a, 0.0)",
        "vrelu(a)",
        "keep_max(a, 0.f)",
        onnx="Relu",
        traits=T.EXACT | T.NARROW,
    ),
    Opcode(
        "leaky_relu",
        2,
        "np.where(a < 0, b * a, a)",
        "vleaky_relu(a, b)",
        "(a >= 0.f ? a : b * a)",
        onnx="LeakyRelu(alpha=0.01)",
        traits=T.NARROW,
    ),
    Opcode("clip", 3, "np.minimum(np.maximum(a, b), c)", "clamp(a, b, c)", "clip_(a, b, c)"),
    Opcode("silu", 1, "a * sigmoid(a)", "vsilu(a)", "silu_(a, 1.f)"),
    Opcode(
        "hard_sigmoid",
        3,
        "np.clip(b * a + c, 0.0, 1.0)",
        "vhard_sigmoid(a, b, c)",
        "clip_(b * a + c, 0.f, 1.f)",
        onnx="HardSigmoid(alpha=0.2, beta=0.5)",
        traits=T.NARROW,
    ),
    Opcode(
        "hard_swish",
        1,
        "a * np.clip(a / 6 + 0.5, 0.0, 1.0)",
        "vhard_swish(a)",
        "a * __saturatef(fmaf(a, 1.f / 6.f, 0.5f))",
        onnx="HardSwish",
        traits=T.NARROW,
    ),
    Opcode(
        "elu",
        2,
        "elu(a, b)",
        "velu(a, b)",
        "(a >= 0.f ? a : b * expm1_(a))",
        onnx="Elu(alpha=1.0)",
        traits=T.NARROW,
    ),
    Opcode("gelu_erf", 1, "0.5 * a * erfc(-a / np.sqrt(2))", "vgelu_erf(a)", "gelu_erf_(a)"),
    Opcode(
        "gelu_tanh",
        1,
        "a * sigmoid(2 * np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))",
        "vgelu_tanh(a)",
        "gelu_tanh_(a)",
    ),
    Opcode(
        "quick_gelu",
        2,
        "a * sigmoid(b * a)",
        "vquick_gelu(a, b)",
        "silu_(a, b)",
        onnx="Swish(alpha=1.0)",
        traits=T.NARROW,
    ),
    Opcode(
        "mish",
        1,
        "a * np.tanh(np.logaddexp(0.0, a))",
        "vmish(a)",
        "mish_(a)",
        onnx="Mish",
        traits=T.NARROW,
    ),
    Opcode(
        "softplus",
        1,
        "np.logaddexp(0.0, a)",
        "vsoftplus(a)",
        "softplus_(a)",
        onnx="Softplus",
        traits=T.STEEP,
    ),
    # --- others
    Opcode("square", 1, "a * a", "a * a", "a * a", "u(a) * u(a)", "a * a"),
    Opcode(
        "prelu",
        2,
        "np.where(a >= 0, a, b * a)",
        "select(a >= zero, a, a * b)",
        "(a >= 0.f ? a : b * a)",
        onnx="PRelu",
        traits=T.SAME_SHAPE | T.NARROW,
    ),
    Opcode(
        "atan",
        1,
        "np.arctan(a)",
        "per_lane(a, TRACEA_LANE(atanf))",
        "atanf(a)",
        onnx="Atan",
        traits=T.NARROW,
    ),
    Opcode(
        "tan",
        1,
        "np.tan(a)",
        "per_lane(a, TRACEA_LANE(tanf))",
        "tanf(a)",
        onnx="Tan",
        traits=T.STEEP,
    ),
    Opcode(
        "asin",
        1,
        "np.arcsin(a)",
        "per_lane(a, TRACEA_LANE(asinf))",
        "asinf(a)",
        onnx="Asin",
        traits=T.STEEP,
    ),
    Opcode(
        "acos",
        1,
        "np.arccos(a)",
        "per_lane(a, TRACEA_LANE(acosf))",
        "acosf(a)",
        onnx="Acos",
        traits=T.STEEP,
    ),
    Opcode(
        "sinh",
        1,
        "np.sinh(a)",
        "per_lane(a, TRACEA_LANE(sinhf))",
        "sinhf(a)",
        onnx="Sinh",
        traits=T.STEEP,
    ),
    Opcode(
        "cosh",
        1,
        "np.cosh(a)",
        "per_lane(a, TRACEA_LANE(coshf))",
        "coshf(a)",
        onnx="Cosh",
        traits=T.STEEP,
    ),
    # its parameters are alpha and gamma
    Opcode(
        "selu",
        3,
        "c * elu(a, b)",
        "c * velu(a, b)",
        "c * (a > 0.f ? a : b * expm1_(a))",
        onnx="Selu(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)",
        traits=T.NARROW,
    ),
    Opcode(
        "celu",
        2,
        "np.where(a < 0, b * np.expm1(np.minimum(a, 0.0) / b), a)",
        "select(a < zero, b * vexpm1(a / b), a)",
        "(keep_max(a, 0.f) + keep_min(0.f, b * expm1_(divide_(a, b))))",
        onnx="Celu(alpha=1.0)",
        traits=T.NARROW,
    ),
    Opcode(
        "softsign",
        1,
        "a / (1 + np.abs(a))",
        "a / (vabs(a) + one)",
        "divide_(a, 1.f + fabsf(a))",
        onnx="Softsign",
        traits=T.NARROW,
    ),
    Opcode("trunc", 1, "np.trunc(a)", "copysign(vfloor(vabs(a)), a)", "truncf(a)"),
    Opcode(
        "acosh",
        1,
        "np.arccosh(a)",
        "per_lane(a, TRACEA_LANE(acoshf))",
        "acoshf(a)",
        onnx="Acosh",
        traits=T.STEEP,
    ),
    Opcode(
        "asinh",
        1,
        "np.arcsinh(a)",
        "per_lane(a, TRACEA_LANE(asinhf))",
        "asinhf(a)",
        onnx="Asinh",
        traits=T.NARROW,
    ),
    Opcode(
        "atanh",
        1,
        "np.arctanh(a)",
        "per_lane(a, TRACEA_LANE(atanhf))",
        "atanhf(a)",
        onnx="Atanh",
        traits=T.STEEP,
    ),
    # --- bits of integers; nothing is left of what is shifted by all of them
    _bits("bit_and", 2, "a & b", onnx="BitwiseAnd"),
    _bits("bit_or", 2, "a | b", onnx="BitwiseOr"),
    _bits("bit_xor", 2, "a ^ b", onnx="BitwiseXor"),
    _bits("bit_not", 1, "~a", onnx="BitwiseNot"),
    _bits("shift_left", 2, "a << b"),
    _bits("shift_right", 2, "a >> b"),
)
OPCODE = {row.name: row for row in _ROWS}
OPCODES = tuple(OPCODE)


def _operator(text: str) -> tuple[str, dict[str, float]]:
    """The name in "Elu(alpha=1.0)", and the defaults of the attributes."""
    name, _, inside = text.removesuffix(")").partition("(")
    given = (a.split("=") for a in inside.split(", ") if a)
    return name, {k: float(v) for k, v in given}


#: ONNX operators that are one instruction: its opcode, and attributes that are its last operands.
OPCODES_OF = {
    name: (row, attributes)
    for row in _ROWS
    if row.onnx
    for name, attributes in [_operator(row.onnx)]
}
#: Opcodes of programs of integers, and of programs of floats.
I64_OPCODES = frozenset(row.name for row in _ROWS if row.int_cpu)
F32_OPCODES = frozenset(row.name for row in _ROWS if row.cpu) | {"const"}
#: Activations a fused epilogue has built in: `none`, and opcodes whose parameters are the launch
#: floats (p0, p1).
ACTIVATIONS = (
    "none", "relu", "leaky_relu", "clip", "sigmoid", "silu", "hard_sigmoid", "hard_swish",
    "tanh", "elu", "gelu_erf", "gelu_tanh", "quick_gelu", "mish", "softplus", "exp",
)  # fmt: skip


class DType(IntEnum):
    """Element types under ONNX's TensorProto numbers."""

    F32 = 1
    U8 = 2
    I8 = 3
    U16 = 4
    I16 = 5
    I32 = 6
    I64 = 7
    BOOL = 9
    F16 = 10
    F64 = 11
    U32 = 12
    U64 = 13
    BF16 = 16

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


#: Floating-point types of expressions, and those of them that backends may have kernels for.
FLOATS = frozenset({DType.F32, DType.F16, DType.BF16, DType.F64})
KERNEL_FLOATS = FLOATS - {DType.F64}
INTEGERS = frozenset(
    (DType.I64, DType.I32, DType.BOOL, DType.I8, DType.U8, DType.I16, DType.U16, DType.U32)
)
#: The largest finite number of each.
LARGEST = {
    DType.F32: 3.4028234663852886e38, DType.F16: 65504.0, DType.BF16: 3.3895313892515355e38,
    DType.F64: 1.7976931348623157e308,
}  # fmt: skip
_SIZES = {
    DType.F32: 4, DType.U8: 1, DType.I8: 1, DType.U16: 2, DType.I16: 2, DType.I32: 4, DType.I64: 8,
    DType.BOOL: 1, DType.F16: 2, DType.F64: 8, DType.U32: 4, DType.U64: 8, DType.BF16: 2,
}  # fmt: skip
